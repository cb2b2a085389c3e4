"""Opening the SQLite files that a server keeps in its data folder: readable by their owner only, errors in words."""

import sqlite3
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from app.errors import DataFolderError

WAIT_S = 30.0
PRIVATE = 0o600

_ELSEWHERE = "or choose another folder with --data"


def open_database(path: Path, what: str, *, wait_s: float = WAIT_S) -> sqlite3.Connection:
    """A connection for any thread, in autocommit mode; the file is made where there is none.

    `what` is kept in it ("conversations"). Another process's writing is waited for, `wait_s` at most. Raises
    DataFolderError.
    """
    with errors_of(path, what, wait_s=wait_s):
        path.parent.mkdir(parents=True, exist_ok=True)
        path.touch(mode=PRIVATE)
        return sqlite3.connect(path, timeout=wait_s, isolation_level=None, check_same_thread=False)


@contextmanager
def errors_of(path: Path, what: str, *, wait_s: float = WAIT_S) -> Iterator[None]:
    """Within it, errors of the file become DataFolderError, which says what to do."""
    try:
        yield
    except (OSError, sqlite3.Error) as error:
        raise DataFolderError(f"{path}: {what} {_told(error, wait_s)}", folder=path.parent) from error


def _told(error: OSError | sqlite3.Error, wait_s: float) -> str:
    # Above the lowest byte stands which of the errors of that kind it is.
    code = getattr(error, "sqlite_errorcode", 0) & 0xFF
    if code in (sqlite3.SQLITE_BUSY, sqlite3.SQLITE_LOCKED):
        return (
            f"cannot be kept there: another program has held the file for {wait_s:.0f} s; end that program "
            f"(`fuser` names it), {_ELSEWHERE}"
        )
    if code in (sqlite3.SQLITE_CORRUPT, sqlite3.SQLITE_NOTADB):
        return (
            f"cannot be read: the file is damaged, or no database ({error}); restore it from a backup, or move it away "
            "to begin with none"
        )
    if code == sqlite3.SQLITE_FULL:
        return f"cannot be kept there: no space is left; free some on its disk, {_ELSEWHERE}"
    said = getattr(error, "strerror", None) or error
    return f"cannot be kept there: {said}; make the file and its folder writable, {_ELSEWHERE}"
