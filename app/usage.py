"""What each tenant has used, by day and model: requests and tokens, kept in one SQLite file of the data folder.

Counted in memory when a request ends and written every few seconds: a crash loses those, an ordinary end none.
"""

import logging
import sqlite3
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass, fields
from pathlib import Path

from app.database_file import errors_of, open_database
from app.engines.client import RequestTimes

logger = logging.getLogger(__name__)

FLUSH_S = 5.0

SCHEMA = """
CREATE TABLE IF NOT EXISTS usage (
    day TEXT NOT NULL,
    tenant TEXT NOT NULL,
    model TEXT NOT NULL,
    num_requests INTEGER NOT NULL,
    num_prompt_tokens INTEGER NOT NULL,
    num_cached_tokens INTEGER NOT NULL,
    num_output_tokens INTEGER NOT NULL,
    PRIMARY KEY (day, tenant, model)
) STRICT;
"""
_COUNTS = ("num_requests", "num_prompt_tokens", "num_cached_tokens", "num_output_tokens")


@dataclass
class Counts:
    """Requests to a model and their tokens. `num_cached_tokens` are among the prompt's."""

    num_requests: int = 0
    num_prompt_tokens: int = 0
    num_cached_tokens: int = 0
    num_output_tokens: int = 0

    def add(self, other: "Counts") -> None:
        """Adds another's numbers to these."""
        for one in fields(self):
            setattr(self, one.name, getattr(self, one.name) + getattr(other, one.name))


class UsageStore:
    """Counts by (day in UTC, tenant, model). `clock` tells seconds since 1970. Raises DataFolderError."""

    def __init__(self, path: Path, clock: Callable[[], float] = time.time) -> None:
        self._clock = clock
        self._lock = threading.Lock()
        self._waiting: dict[tuple[str, str, str], Counts] = {}
        self._connection = open_database(path, "what tenants use")
        with errors_of(path, "what tenants use"):
            self._connection.execute("PRAGMA journal_mode=WAL")
            self._connection.executescript(SCHEMA)
        self._closing = threading.Event()
        self._thread = threading.Thread(target=self._keep_writing, name="usage", daemon=True)
        self._thread.start()

    def observe(self, model: str, times: RequestTimes) -> None:
        """Counts a request that has ended."""
        day = time.strftime("%Y-%m-%d", time.gmtime(self._clock()))
        counts = Counts(1, times.num_prompt_tokens, times.num_cached_tokens, times.num_output_tokens)
        with self._lock:
            self._waiting.setdefault((day, times.tenant, model), Counts()).add(counts)

    def read(self, *, since: str = "", tenant: str | None = None) -> list[tuple[str, str, str, Counts]]:
        """(day, tenant, model, counts), from a day on, of one tenant or of all."""
        self._write()
        query = f"SELECT day, tenant, model, {', '.join(_COUNTS)} FROM usage WHERE day >= ?"
        values = [since]
        if tenant is not None:
            query += " AND tenant = ?"
            values.append(tenant)
        with self._lock:
            rows = self._connection.execute(query + " ORDER BY day, tenant, model", values).fetchall()
        return [(day, of, model, Counts(*counts)) for day, of, model, *counts in rows]

    def close(self) -> None:
        """Writes what is counted and closes the file."""
        self._closing.set()
        self._thread.join()
        self._write()
        with self._lock:
            self._connection.close()

    def _keep_writing(self) -> None:
        while not self._closing.wait(FLUSH_S):
            self._write()

    def _write(self) -> None:
        """Writes what is counted; what cannot be written now (the disk is full) is kept for the next time."""
        sums = ", ".join(f"{name} = {name} + excluded.{name}" for name in _COUNTS)
        with self._lock:
            if not self._waiting:
                return
            try:
                self._connection.execute("BEGIN IMMEDIATE")
                for key, counts in self._waiting.items():
                    self._connection.execute(
                        f"INSERT INTO usage VALUES (?, ?, ?, ?, ?, ?, ?) ON CONFLICT DO UPDATE SET {sums}",
                        (*key, *(getattr(counts, name) for name in _COUNTS)),
                    )
                self._connection.execute("COMMIT")
            except sqlite3.Error as error:
                if self._connection.in_transaction:
                    self._connection.execute("ROLLBACK")
                logger.warning("usage cannot be written: %s; it is tried again", error)
                return
            self._waiting.clear()
