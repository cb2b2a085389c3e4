"""`ragstone engine` as a process: the engine's server on a port, or on a Unix socket for an app that started it."""

import contextlib
import gc
import logging
import socket
from pathlib import Path

from app import preflight
from app.engines.start_failure import note_failure
from app.serve import StopRequested, base_url, configure_logging, run_server, stop_on_signals
from app.settings import Settings, unknown_variables

logger = logging.getLogger(__name__)


def serve_engine(settings: Settings, path: Path | None = None) -> int:
    """Serve the engine alone until SIGINT or SIGTERM; the exit code.

    `path`: listen on a Unix socket there and not on `settings.port`. Raises RagstoneError where it cannot start.
    """
    configure_logging(settings)
    for warning in unknown_variables():
        logger.warning(warning)
    with stop_on_signals():
        try:
            if path is None and (warned := preflight.check_keys(settings)):
                logger.warning(warned)
            listener = preflight.bind_port(settings, preflight.API) if path is None else preflight.bind_socket(path)
            with contextlib.closing(listener):
                preflight.set_process_environment(settings)
                return _run(settings, listener, path)
        except StopRequested:
            logger.info("stopped")
            return 0
        except Exception as error:
            if path is not None:
                note_failure(path, error)
            raise
        finally:
            gc.freeze()


def _run(settings: Settings, listener: socket.socket, path: Path | None) -> int:
    gc.disable()
    from app.engine_server import create_app

    address = "" if path is not None else f"  API   {base_url(settings.host, settings.port)}/v1"
    app = create_app(settings, path)
    code = run_server(app, settings, listener, [address] if address else [], None)
    if path is not None and app.state.services.load_error is not None:
        note_failure(path, app.state.services.load_error)
    return code
