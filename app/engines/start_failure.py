"""Why an engine's process could not start: noted by it in the folder of its socket, read by who started it."""

import contextlib
from pathlib import Path

import orjson

from app.engines.wire import error_body, read_error
from app.errors import RagstoneError, StartupError
from engine.errors import EngineError


def note_failure(socket: Path, error: Exception) -> None:
    """Leaves beside the socket why nothing listens there."""
    if isinstance(error, EngineError):
        body = error_body(error)
    else:
        said = str(error) if isinstance(error, RagstoneError) else f"{type(error).__name__}: {error}"
        body = {"code": StartupError.code, "message": said}
    with contextlib.suppress(OSError):  # who started it may have gone, and its folder with it
        _place(socket).write_bytes(orjson.dumps(body, default=str))


def read_failure(socket: Path) -> EngineError | StartupError | None:
    """The engine's own error where it is one, as if it ran in this process; None where nothing was noted."""
    try:
        body = orjson.loads(_place(socket).read_bytes())
    except (OSError, ValueError):
        return None
    return StartupError(body["message"]) if body["code"] == StartupError.code else read_error(body)


def forget_failure(socket: Path) -> None:
    """Before a start."""
    _place(socket).unlink(missing_ok=True)


def _place(socket: Path) -> Path:
    return socket.with_suffix(".failure")
