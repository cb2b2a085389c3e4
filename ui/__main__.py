"""`python -m ui`: serve the chat page, as told by the environment (`ui.settings`).

Everything that this process writes is in its data folder; what it serves is `ui.app`.
"""

import asyncio
import logging
import socket
import sys
import tempfile
from pathlib import Path

from ui.errors import UISettingsError
from ui.gradio_import import import_gradio, prepare
from ui.settings import UISettings

SHUTDOWN_S = 1


def main() -> int:
    """Run until interrupted; the exit status. A setting that cannot be used is one sentence on stderr and status 2."""
    logging.basicConfig(level=logging.INFO, format="%(asctime)s %(levelname)s %(name)s: %(message)s")
    logging.getLogger("httpx").setLevel(logging.WARNING)
    logging.getLogger("uvicorn.error").addFilter(_is_news)
    try:
        settings = UISettings.from_environment()
        _prepare_data_dir(settings.data_dir)
        listener = _listen(settings.host, settings.port)
    except UISettingsError as error:
        print(error, file=sys.stderr)
        return 2
    prepare(settings.data_dir)
    import_gradio()
    _serve(settings, listener)
    return 0


def _is_news(record: logging.LogRecord) -> bool:
    """Leave out what every shutdown with an open tab reports: streams that stay open until they are cut, by design."""
    is_cut = record.exc_info is not None and isinstance(record.exc_info[1], asyncio.CancelledError)
    return not is_cut and not record.getMessage().startswith("Cancel ")


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


def _serve(settings: UISettings, listener: socket.socket) -> None:
    import uvicorn

    from ui.app import create_app

    config = uvicorn.Config(
        create_app(settings),
        log_config=None,
        log_level="warning",
        access_log=False,
        timeout_graceful_shutdown=SHUTDOWN_S,
        lifespan="on",
    )
    host, port = listener.getsockname()[:2]
    logging.getLogger("ui").info("chat UI on http://%s:%s", f"[{host}]" if ":" in host else host, port)
    uvicorn.Server(config).run(sockets=[listener])


if __name__ == "__main__":
    sys.exit(main())
