"""Conversations in Postgres: a table of heads and a table of turns, each row a JSON text."""

import json
import os
import socket
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from typing import TypeVar

import psycopg

from app.outage import ANSWER_S, Outage
from app.record_history import Change, Record, RecordConversationStore, newest_time

T = TypeVar("T")

# Text and not jsonb: what is stored must come back to the letter, and jsonb knows no NUL characters.
SCHEMA = """
CREATE TABLE IF NOT EXISTS ragstone_conversations (
    owner TEXT NOT NULL, session_id TEXT NOT NULL, head TEXT NOT NULL, PRIMARY KEY (owner, session_id)
);
CREATE TABLE IF NOT EXISTS ragstone_turns (
    owner TEXT NOT NULL, session_id TEXT NOT NULL, number INTEGER NOT NULL, record TEXT NOT NULL,
    PRIMARY KEY (owner, session_id, number),
    FOREIGN KEY (owner, session_id) REFERENCES ragstone_conversations ON DELETE CASCADE
);
ALTER TABLE ragstone_conversations ADD COLUMN IF NOT EXISTS newest TEXT COLLATE "C" NOT NULL DEFAULT '';
CREATE INDEX IF NOT EXISTS ragstone_newest ON ragstone_conversations (owner, newest);
"""
CONNECT_S = 5
# An earlier version's rows are brought up to date at the start, of which there may be many.
MIGRATION_S = 600.0


class PostgresConversationStore(RecordConversationStore):
    """Conversations in the database at `url` (postgresql://…). Reconnects after a restart of the server."""

    def __init__(self, url: str) -> None:
        """Connects and makes the tables. Raises StoreUnavailableError."""
        self._url = url
        self._lock = threading.Lock()  # one connection, many threads
        self._connection: psycopg.Connection | None = None
        self._outage = Outage("Postgres")
        self._ask(_bring_up_to_date, MIGRATION_S)

    def _heads(self, user: str) -> dict[str, Record]:
        query = "SELECT session_id, head FROM ragstone_conversations WHERE owner = %s"
        rows = self._ask(lambda connection: connection.execute(query, (user,)).fetchall())
        return {name: json.loads(text) for name, text in rows}

    def _head(self, user: str, session_id: str) -> Record | None:
        query = "SELECT head FROM ragstone_conversations WHERE owner = %s AND session_id = %s"
        row = self._ask(lambda connection: connection.execute(query, (user, session_id)).fetchone())
        return None if row is None else dict(json.loads(row[0]))

    def _newest(self, user: str) -> str | None:
        query = "SELECT max(newest) FROM ragstone_conversations WHERE owner = %s"
        row = self._ask(lambda connection: connection.execute(query, (user,)).fetchone())
        return None if row is None else row[0]

    def _records(self, user: str, session_id: str) -> dict[int, Record]:
        query = "SELECT number, record FROM ragstone_turns WHERE owner = %s AND session_id = %s"
        rows = self._ask(lambda connection: connection.execute(query, (user, session_id)).fetchall())
        return {number: json.loads(text) for number, text in rows}

    def _record(self, user: str, session_id: str, number: int) -> Record | None:
        query = "SELECT record FROM ragstone_turns WHERE owner = %s AND session_id = %s AND number = %s"
        row = self._ask(lambda connection: connection.execute(query, (user, session_id, number)).fetchone())
        return None if row is None else dict(json.loads(row[0]))

    def _apply(self, user: str, session_id: str, change: Change) -> None:
        key = (user, session_id)

        def apply(connection: psycopg.Connection) -> None:
            if change.head is None:
                connection.execute("DELETE FROM ragstone_conversations WHERE owner = %s AND session_id = %s", key)
                return
            connection.execute(
                "INSERT INTO ragstone_conversations (owner, session_id, head, newest) VALUES (%s, %s, %s, %s) "
                "ON CONFLICT (owner, session_id) DO UPDATE SET head = excluded.head, newest = excluded.newest",
                (*key, json.dumps(change.head), newest_time(change.head)),
            )
            for number, record in change.turns.items():
                if record is None:
                    connection.execute(
                        "DELETE FROM ragstone_turns WHERE owner = %s AND session_id = %s AND number = %s",
                        (*key, number),
                    )
                else:
                    connection.execute(
                        "INSERT INTO ragstone_turns VALUES (%s, %s, %s, %s) "
                        "ON CONFLICT (owner, session_id, number) DO UPDATE SET record = excluded.record",
                        (*key, number, json.dumps(record)),
                    )

        self._ask(apply)

    def _put(self, user: str, session_id: str, number: int, record: Record) -> None:
        statement = "UPDATE ragstone_turns SET record = %s WHERE owner = %s AND session_id = %s AND number = %s"
        self._ask(lambda connection: connection.execute(statement, (json.dumps(record), user, session_id, number)))

    def close(self) -> None:
        with self._lock:
            if self._connection is not None:
                self._connection.close()

    @property
    def problem(self) -> str:
        return self._outage.reason

    def _ask(self, work: Callable[[psycopg.Connection], T], longest_s: float = ANSWER_S) -> T:
        """What `work` makes, in one transaction; tried once more over a new connection where the old one is gone."""
        self._outage.check()
        if not self._lock.acquire(timeout=longest_s):
            raise self._outage.failed("", waited=True)
        try:
            for is_last in (False, True):
                expired = threading.Event()
                try:
                    if self._connection is None or self._connection.closed:
                        self._connection = psycopg.connect(self._url, connect_timeout=CONNECT_S)
                    with _at_most(longest_s, self._connection, expired), self._connection.transaction():
                        found = work(self._connection)
                    self._outage.succeeded()
                    return found
                except psycopg.OperationalError as error:
                    if self._connection is not None:
                        self._connection.close()
                    waited = expired.is_set() or isinstance(error, psycopg.errors.ConnectionTimeout)
                    if is_last or waited:
                        raise self._outage.failed(error, waited=waited) from error
                except psycopg.Error as error:
                    raise self._outage.failed(error) from error
        finally:
            self._lock.release()
        raise AssertionError("the loop returns or raises")


@contextmanager
def _at_most(longest_s: float, connection: psycopg.Connection, expired: threading.Event) -> Iterator[None]:
    """Breaks the connection off where the block takes longer, and sets `expired`.

    Postgres has time-outs of its own, but a server that hangs, or that cannot be reached any more, keeps none.
    """

    def break_off() -> None:
        expired.set()
        with suppress(psycopg.Error, OSError), socket.socket(fileno=os.dup(connection.fileno())) as other:
            other.shutdown(socket.SHUT_RDWR)

    timer = threading.Timer(longest_s, break_off)
    timer.daemon = True
    timer.start()
    try:
        yield
    finally:
        timer.cancel()


def _bring_up_to_date(connection: psycopg.Connection) -> None:
    """Makes the tables, or what an earlier version has not made of them."""
    connection.execute(SCHEMA)
    without = "SELECT owner, session_id, head FROM ragstone_conversations WHERE newest = ''"
    for owner, session_id, head in connection.execute(without).fetchall():
        connection.execute(
            "UPDATE ragstone_conversations SET newest = %s WHERE owner = %s AND session_id = %s",
            (newest_time(json.loads(head)), owner, session_id),
        )
