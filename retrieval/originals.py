"""The files that documents were made of, kept beside the catalog under the hash of their content.

A file lies here once, however many documents were made of it, and goes with the last of them. Which those are is the
catalog's to say: files come and go inside its write transactions, so that no two processes disagree.
"""

import contextlib
import errno
import os
import re
import secrets
import time
from collections.abc import Callable, Collection, Iterator
from contextlib import contextmanager
from pathlib import Path

from retrieval.errors import StoreFullError

_HASH = re.compile(r"[0-9a-f]{64}")
# What a process that was killed has left is older than any ingest takes.
_STALE_S = 24 * 3600.0


class OriginalStore:
    """Files in `folder` by the SHA-256 of their content, in lower-case hexadecimal. Thread-safe."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder

    def path(self, content_hash: str) -> Path | None:
        """Where the file lies; None where it is not kept."""
        path = self._place(content_hash)
        return path if path.is_file() else None

    @contextmanager
    def adding(self, content_hash: str, data: bytes) -> Iterator[Callable[[], None]]:
        """Writes the file aside; what it yields puts it into its place, within the catalog's write transaction."""
        place = self._place(content_hash)
        aside: Path | None = None
        try:
            if not place.is_file():
                aside = place.parent / f".{secrets.token_hex(8)}"
                self._write(aside, data)

            def put() -> None:
                if aside is not None:
                    os.replace(aside, place)
                elif not place.is_file():  # its last use went meanwhile
                    self._write(place, data)

            yield put
        finally:
            if aside is not None:
                with contextlib.suppress(FileNotFoundError):
                    aside.unlink()

    def remove(self, content_hashes: Collection[str]) -> None:
        """Drops files; those that are not kept are passed over."""
        for content_hash in content_hashes:
            with contextlib.suppress(FileNotFoundError, ValueError):
                self._place(content_hash).unlink()

    def sweep(self, in_use: Callable[[], Collection[str]]) -> None:
        """Drops old files that no document was made of: what broken-off ingests left."""
        if not self.folder.is_dir():
            return
        limit = time.time() - _STALE_S
        used: Collection[str] | None = None
        for path in self.folder.glob("*/*"):
            if _HASH.fullmatch(path.name) and used is None:
                used = in_use()
            with contextlib.suppress(FileNotFoundError):
                if (used is None or path.name not in used) and path.stat().st_mtime < limit:
                    path.unlink()

    def _write(self, path: Path, data: bytes) -> None:
        try:
            path.parent.mkdir(parents=True, exist_ok=True)
            with path.open("wb") as file:
                file.write(data)
                file.flush()
                os.fsync(file.fileno())
        except OSError as error:
            if error.errno != errno.ENOSPC:
                raise
            raise StoreFullError(
                f"no space left in {self.folder}: free some space and try again; nothing is lost"
            ) from error

    def _place(self, content_hash: str) -> Path:
        if not _HASH.fullmatch(content_hash):
            raise ValueError(f"{content_hash!r} is not a SHA-256 in hexadecimal")
        return self.folder / content_hash[:2] / content_hash
