"""The folder that an engine's process has its socket in; those that killed servers left behind are removed."""

import os
import re
import shutil
import socket
import tempfile
from pathlib import Path

SOCKET = "engine.sock"
MOST_PATH_BYTES = 107
"""Of a socket's path; see unix(7)."""

_NAME = re.compile(r"ragstone-(?P<pid>\d+)-\w+")


def make_folder(data: Path) -> "tempfile.TemporaryDirectory[str]":
    """A new folder that nobody else can enter: below the data folder, or in /tmp where paths there are too long."""
    for parent in (data.absolute() / "tmp", Path("/tmp")):  # nosec B108
        parent.mkdir(parents=True, exist_ok=True)
        _remove_left_over(parent)
        prefix = f"ragstone-{os.getpid()}-"
        # `tempfile` adds eight characters.
        if len(os.fsencode(parent / f"{prefix}12345678" / SOCKET)) <= MOST_PATH_BYTES:
            break
    return tempfile.TemporaryDirectory(prefix=prefix, dir=parent)


def _remove_left_over(parent: Path) -> None:
    for folder in parent.iterdir():
        name = _NAME.fullmatch(folder.name)
        if name is not None and not _is_running(int(name["pid"])) and not _is_listening(folder / SOCKET):
            shutil.rmtree(folder, ignore_errors=True)


def _is_running(pid: int) -> bool:
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    except PermissionError:  # another user's
        return True
    return True


def _is_listening(path: Path) -> bool:
    """Whether somebody answers there: the process may be of another container, whose numbers mean nothing here."""
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as probe:
        return probe.connect_ex(str(path)) == 0
