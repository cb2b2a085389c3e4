"""The catalog: one SQLite file (WAL), the truth about collections, documents, versions, chunks and their vectors.

This module opens the file, guards it (schema version, embedder, other processes, full disks) and hands out
transactions. What is asked and changed inside one is in `catalog_reader` and `catalog_writer`, the tables are in
`schema`.

Readers never wait: each transaction sees one state of the file. Writers take turns, also between processes.
"""

import logging
import sqlite3
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import UTC, datetime
from pathlib import Path

from retrieval.catalog_reader import CatalogReader
from retrieval.catalog_writer import CatalogWriter
from retrieval.embeddings import PassageEmbedder
from retrieval.errors import (
    EmbedderMismatchError,
    StoreBusyError,
    StoreClosedError,
    StoreDamagedError,
    StoreError,
    StoreFullError,
    StoreUnavailableError,
)
from retrieval.originals import OriginalStore
from retrieval.schema import migrate

FILE_NAME = "catalog.sqlite3"
_WRITE_WAIT_S = 60.0

_log = logging.getLogger(__name__)


class Catalog:
    """Transactions on the catalog in `folder`. Thread-safe; several processes may have the same folder open.

    Raises StoreUnavailableError, SchemaTooNewError, StoreDamagedError on opening.
    """

    def __init__(self, folder: Path, *, write_wait_s: float = _WRITE_WAIT_S) -> None:
        self.path = folder / FILE_NAME
        self.originals = OriginalStore(folder / "originals")
        self._write_wait_s = write_wait_s
        self._idle: list[sqlite3.Connection] = []
        self._lock = threading.Lock()
        self._closed = False
        try:
            folder.mkdir(parents=True, exist_ok=True)
        except OSError as error:
            raise StoreUnavailableError(
                f"cannot create the data folder {folder}: {error.strerror or error}; choose another folder"
            ) from error
        with self._translated():
            connection = self._connect()
            try:
                connection.execute("PRAGMA journal_mode = WAL")
                migrate(connection, str(self.path))
            except BaseException:
                connection.close()
                raise
        self._idle.append(connection)

    def close(self) -> None:
        """Closes idle connections; those in use close when their transaction ends. Harmless when done twice."""
        with self._lock:
            self._closed = True
            idle, self._idle = self._idle, []
        for connection in idle:
            connection.close()

    @contextmanager
    def reading(self) -> Iterator[CatalogReader]:
        """A transaction that sees one state of the catalog, whatever is written meanwhile."""
        with self._transaction("BEGIN") as connection:
            yield CatalogReader(connection)

    @contextmanager
    def writing(self) -> Iterator[CatalogWriter]:
        """A transaction that changes the catalog: all of it when the block ends, nothing when it raises.

        Waits for other writers. Raises StoreBusyError after a minute of that, StoreFullError, StoreUnavailableError.
        """
        with self._transaction("BEGIN IMMEDIATE") as connection:
            # Whole microseconds, which callers read back as datetimes without rounding: a finer moment would fall
            # before itself in a filter.
            writer = CatalogWriter(connection, datetime.now(UTC).timestamp())
            yield writer
            self.originals.remove(writer.contents_without_use())

    def bind_embedder(self, embedder: PassageEmbedder) -> None:
        """Records the embedder in a store that has no vectors, or checks it against the recorded one.

        Raises EmbedderMismatchError.
        """
        with self.reading() as reader:
            recorded = reader.embedder()
            num_vectors = reader.num_vectors()
        given = (embedder.name, embedder.fingerprint, embedder.dimension)
        if recorded is not None and num_vectors and recorded[1:] != given[1:]:
            raise EmbedderMismatchError(
                f"the store {self.path.parent} was made with the embedding model {_described(*recorded)}; "
                f"{_described(*given)} was given, and their vectors cannot be mixed: "
                f"use {recorded[0]!r} again, or run `ragstone reembed --embedding-model {embedder.name}`"
            )
        if recorded != given:
            with self.writing() as writer:
                writer.record_embedder(*given)

    def require_embedder(self, reader: CatalogReader, embedder: PassageEmbedder) -> None:
        """Raises EmbedderMismatchError where the store has been given another model's vectors since it was opened."""
        recorded = reader.embedder()
        if recorded is not None and recorded[1] != embedder.fingerprint:
            raise EmbedderMismatchError(
                f"the store {self.path.parent} was embedded anew with {_described(*recorded)} while it was open with "
                f"{embedder.name!r}: restart with embedding_model set to {recorded[0]!r}"
            )

    @contextmanager
    def _transaction(self, begin: str) -> Iterator[sqlite3.Connection]:
        with self._translated():
            connection = self._take()
            try:
                connection.execute(begin)
                yield connection
                connection.execute("COMMIT")
            except BaseException:
                if connection.in_transaction:
                    connection.execute("ROLLBACK")
                raise
            finally:
                self._give_back(connection)

    def _take(self) -> sqlite3.Connection:
        with self._lock:
            if self._closed:
                raise StoreClosedError(f"the store {self.path.parent} is closed: open it again")
            if self._idle:
                return self._idle.pop()
        return self._connect()

    def _give_back(self, connection: sqlite3.Connection) -> None:
        with self._lock:
            if not self._closed:
                self._idle.append(connection)
                return
        connection.close()

    def _connect(self) -> sqlite3.Connection:
        connection = sqlite3.connect(
            self.path, timeout=self._write_wait_s, isolation_level=None, check_same_thread=False, cached_statements=64
        )
        connection.execute("PRAGMA foreign_keys = ON")
        # With WAL, NORMAL could lose the last commits when the power fails; a document reported as added must stay.
        connection.execute("PRAGMA synchronous = FULL")
        return connection

    @contextmanager
    def _translated(self) -> Iterator[None]:
        try:
            yield
        except sqlite3.DatabaseError as error:
            raise self._translation(error) from error

    def _translation(self, error: sqlite3.DatabaseError) -> StoreError:
        folder = self.path.parent
        code = getattr(error, "sqlite_errorcode", 0) & 0xFF
        if code in (sqlite3.SQLITE_BUSY, sqlite3.SQLITE_LOCKED):
            return StoreBusyError(
                f"another process has been writing to {folder} for {self._write_wait_s:.0f} s: "
                "wait until it is done, or stop it"
            )
        if code == sqlite3.SQLITE_FULL:
            return StoreFullError(f"no space left in {folder}: free some space and try again; nothing is lost")
        if code in (sqlite3.SQLITE_CANTOPEN, sqlite3.SQLITE_READONLY, sqlite3.SQLITE_PERM, sqlite3.SQLITE_IOERR):
            return StoreUnavailableError(f"cannot read and write {self.path}: {error}; check the folder's permissions")
        if code in (sqlite3.SQLITE_NOTADB, sqlite3.SQLITE_CORRUPT):
            return StoreDamagedError(
                f"{self.path} is damaged or is not a catalog ({error}): restore it from a backup, or move it away and "
                "ingest the documents again"
            )
        return StoreError(f"the catalog {self.path} failed: {error}")


def _described(name: str, fingerprint: str, dimension: int) -> str:
    return f"{name!r} ({dimension} dimensions, {fingerprint[:12]})"
