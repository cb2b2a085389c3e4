"""`python -m ui`: serve the chat page, as told by the environment (`ui.settings`).

Everything that this process writes is in its data folder; what it serves is `ui.app`.
"""

import logging
import os
import socket
import sys
import tempfile
from pathlib import Path

from ui.errors import UISettingsError
from ui.settings import UISettings

SHUTDOWN_S = 2


def main() -> int:
    """Run until interrupted; the exit status. A setting that cannot be used is one sentence on stderr and status 2."""
    logging.basicConfig(level=logging.INFO, format="%(asctime)s %(levelname)s %(name)s: %(message)s")
    logging.getLogger("httpx").setLevel(logging.WARNING)
    try:
        settings = UISettings.from_environment()
        _prepare_data_dir(settings.data_dir)
        listener = _listen(settings.host, settings.port)
    except UISettingsError as error:
        print(error, file=sys.stderr)
        return 2
    _set_gradio_environment(settings.data_dir)
    _serve(settings, listener)
    return 0


def _prepare_data_dir(folder: Path) -> None:
    try:
        folder.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryFile(dir=folder):
            pass
    except OSError as error:
        raise UISettingsError(
            f"RAGSTONE_UI_DATA: cannot write to {folder} ({error.strerror}); free space there or name another folder."
        ) from error


def _listen(host: str, port: int) -> socket.socket:
    """A listening socket, made before the slow imports, so that a port in use is reported at once."""
    try:
        return socket.create_server(
            (host, port), family=socket.AF_INET6 if ":" in host else socket.AF_INET, backlog=2048
        )
    except OSError as error:
        raise UISettingsError(
            f"cannot listen on {host}:{port} ({error.strerror}); stop what uses it, or set RAGSTONE_UI_PORT (or "
            "RAGSTONE_UI_HOST)."
        ) from error


def _set_gradio_environment(data_dir: Path) -> None:
    """Gradio reads these when it is imported: no telemetry, no version check, and all its files in our folder."""
    for folder in ("tmp", "examples"):
        (data_dir / folder).mkdir(exist_ok=True)
    os.environ["GRADIO_ANALYTICS_ENABLED"] = "False"
    os.environ["GRADIO_TEMP_DIR"] = str(data_dir / "tmp")
    os.environ["GRADIO_EXAMPLES_CACHE"] = str(data_dir / "examples")
    os.environ["GRADIO_RUN_HISTORY"] = "False"
    os.environ["HF_HUB_DISABLE_TELEMETRY"] = "1"
    os.environ["HF_HUB_OFFLINE"] = "1"
    # Parts of an upload are spooled to the temporary folder before Gradio moves them to its own.
    tempfile.tempdir = str(data_dir / "tmp")


def _serve(settings: UISettings, listener: socket.socket) -> None:
    import uvicorn

    from ui.app import create_app

    config = uvicorn.Config(
        create_app(settings), log_level="warning", timeout_graceful_shutdown=SHUTDOWN_S, lifespan="on"
    )
    host, port = listener.getsockname()[:2]
    logging.getLogger("ui").info("chat UI on http://%s:%s", f"[{host}]" if ":" in host else host, port)
    uvicorn.Server(config).run(sockets=[listener])


if __name__ == "__main__":
    sys.exit(main())
