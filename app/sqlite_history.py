"""Conversations in one SQLite file: the tables, their migrations, and the store over them."""

import json
import sqlite3
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

from langchain_core.messages import messages_from_dict, messages_to_dict

from app.database_file import errors_of, open_database
from app.errors import DataFolderError
from app.history import (
    Conversation,
    ConversationStore,
    Feedback,
    Turn,
    TurnResult,
    new_turn_id,
    oldest_kept,
    stored_now,
    title_of,
)
from app.text_search import contains, snippet

_INITIAL = """
CREATE TABLE conversations (
    user TEXT NOT NULL, session_id TEXT NOT NULL, title TEXT NOT NULL, window_start INTEGER NOT NULL DEFAULT 0,
    created_at TEXT NOT NULL, updated_at TEXT NOT NULL,
    PRIMARY KEY (user, session_id)
) WITHOUT ROWID;
CREATE TABLE turns (
    user TEXT NOT NULL, session_id TEXT NOT NULL, number INTEGER NOT NULL,
    question TEXT NOT NULL, prompt TEXT NOT NULL, answer TEXT NOT NULL, sources TEXT NOT NULL, placed TEXT NOT NULL,
    num_tokens INTEGER NOT NULL, interrupted INTEGER NOT NULL, messages TEXT, created_at TEXT NOT NULL,
    PRIMARY KEY (user, session_id, number),
    FOREIGN KEY (user, session_id) REFERENCES conversations (user, session_id) ON DELETE CASCADE
);
"""
_GROUNDING = "ALTER TABLE turns ADD COLUMN grounding TEXT;"
# Deleted conversations wait in their place; everything that is not `restore` passes over them.
_TURN_FACTS = """
ALTER TABLE conversations ADD COLUMN renamed INTEGER NOT NULL DEFAULT 0;
ALTER TABLE conversations ADD COLUMN deleted_at TEXT;
CREATE INDEX deleted_conversations ON conversations (deleted_at) WHERE deleted_at IS NOT NULL;
ALTER TABLE turns ADD COLUMN turn_id TEXT NOT NULL DEFAULT '';
ALTER TABLE turns ADD COLUMN finish_reason TEXT;
ALTER TABLE turns ADD COLUMN statistics TEXT;
ALTER TABLE turns ADD COLUMN settings TEXT;
ALTER TABLE turns ADD COLUMN feedback TEXT;
UPDATE turns SET turn_id = lower(hex(randomblob(16)));
CREATE UNIQUE INDEX turns_by_id ON turns (turn_id);
CREATE INDEX rated_turns ON turns (user) WHERE feedback IS NOT NULL;
"""
# What begins or ends a turn asks for the newest of these times, and must not read a user's every conversation for it.
_TIMES = """
CREATE INDEX used_conversations ON conversations (user, updated_at DESC);
CREATE INDEX deletions ON conversations (user, deleted_at) WHERE deleted_at IS NOT NULL;
"""
# Migration n brings a file from version n to n + 1. Entries are only ever appended.
MIGRATIONS = (_INITIAL, _GROUNDING, _TURN_FACTS, _TIMES)
SCHEMA_VERSION = len(MIGRATIONS)

_CONVERSATION = """
    SELECT session_id, title,
        (SELECT count(*) FROM turns t WHERE t.user = c.user AND t.session_id = c.session_id),
        window_start, created_at, updated_at
    FROM conversations c WHERE user = ?1 AND deleted_at IS NULL """
_MATCHES = """
    AND (contains(title, ?2) OR EXISTS (
        SELECT 1 FROM turns t WHERE t.user = c.user AND t.session_id = c.session_id
        AND (contains(question, ?2) OR contains(answer, ?2)))) """
_TURN = """
    SELECT session_id, number, question, prompt, answer, sources, placed, num_tokens, interrupted, messages,
        t.created_at, grounding, turn_id, finish_reason, statistics, settings, feedback
    FROM turns t JOIN conversations c USING (user, session_id) WHERE user = ?1 AND deleted_at IS NULL """


class SQLiteConversationStore(ConversationStore):
    """Conversations in one SQLite file (write-ahead log, so that readers never wait for a writer)."""

    def __init__(self, path: Path) -> None:
        """Opens or makes the file. Raises DataFolderError where it cannot, or where a newer version wrote it."""
        self.path = path
        self._lock = threading.RLock()  # one connection, many threads
        self._connection = open_database(path, "conversations")
        with errors_of(path, "conversations"):
            self._connection.execute("PRAGMA journal_mode=WAL")
            self._connection.execute("PRAGMA synchronous=NORMAL")
            self._connection.execute("PRAGMA foreign_keys=ON")
            self._connection.create_function("contains", 2, contains, deterministic=True)
            self._migrate()
            with self._transaction() as connection:
                _purge(connection)

    def _migrate(self) -> None:
        (version,) = self._connection.execute("PRAGMA user_version").fetchone()
        if version > SCHEMA_VERSION:
            raise DataFolderError(
                f"{self.path} was written by a newer version (schema {version}; this one knows {SCHEMA_VERSION}): "
                "upgrade, or choose another folder with --data",
                folder=self.path.parent,
            )
        if version < SCHEMA_VERSION:
            steps = "".join(MIGRATIONS[version:])
            try:
                self._connection.executescript(f"BEGIN; {steps} PRAGMA user_version={SCHEMA_VERSION}; COMMIT;")
            except sqlite3.Error:
                if self._connection.in_transaction:
                    self._connection.execute("ROLLBACK")
                raise

    @contextmanager
    def _transaction(self) -> Iterator[sqlite3.Connection]:
        with self._lock:
            self._connection.execute("BEGIN IMMEDIATE")
            try:
                yield self._connection
                self._connection.execute("COMMIT")
            except BaseException:
                if self._connection.in_transaction:  # SQLite itself has gone back where the disk is full
                    self._connection.execute("ROLLBACK")
                raise

    def _rows(self, query: str, *values: Any) -> list[tuple[Any, ...]]:
        with self._lock:
            return self._connection.execute(query, values).fetchall()

    # ── reading ──────────────────────────────────────────────────────────────────────────────────────────────────────

    def conversations(
        self, user: str, *, query: str = "", limit: int | None = None, offset: int = 0
    ) -> list[Conversation]:
        rows = self._rows(
            f"{_CONVERSATION}{_MATCHES} ORDER BY updated_at DESC, session_id LIMIT ?3 OFFSET ?4",
            user,
            query,
            -1 if limit is None else limit,
            offset,
        )
        found = [Conversation(*row) for row in rows]
        if not query.strip():
            return found
        return [replace(entry, snippet=self._snippet(user, entry.session_id, query)) for entry in found]

    def _snippet(self, user: str, session_id: str, query: str) -> str | None:
        """The surroundings of the first hit in a turn; None where only the title was hit."""
        rows = self._rows(
            "SELECT question, answer FROM turns WHERE user = ?1 AND session_id = ?2 "
            "AND (contains(question, ?3) OR contains(answer, ?3)) ORDER BY number LIMIT 1",
            user,
            session_id,
            query,
        )
        return next((snippet(text, query) for row in rows for text in row if contains(text, query)), None)

    def conversation(self, user: str, session_id: str) -> Conversation | None:
        rows = self._rows(_CONVERSATION + "AND session_id = ?2", user, session_id)
        return Conversation(*rows[0]) if rows else None

    def turns(self, user: str, session_id: str) -> list[Turn]:
        return [_turn(row) for row in self._rows(_TURN + "AND session_id = ?2 ORDER BY number", user, session_id)]

    def turn(self, user: str, turn_id: str) -> tuple[str, Turn] | None:
        rows = self._rows(_TURN + "AND turn_id = ?2", user, turn_id)
        return (str(rows[0][0]), _turn(rows[0])) if rows else None

    def rated_turns(self, user: str) -> list[tuple[str, Turn]]:
        rows = self._rows(_TURN + "AND feedback IS NOT NULL ORDER BY t.created_at, session_id, number", user)
        return [(str(row[0]), _turn(row)) for row in rows]

    # ── turns ────────────────────────────────────────────────────────────────────────────────────────────────────────

    def begin_turn(self, user: str, session_id: str, question: str, *, turn_id: str | None = None) -> int:
        with self._transaction() as connection:
            now = _now(connection, user)
            _purge(connection)
            connection.execute(
                "DELETE FROM conversations WHERE user = ? AND session_id = ? AND deleted_at IS NOT NULL",
                (user, session_id),
            )
            connection.execute(
                "INSERT INTO conversations (user, session_id, title, created_at, updated_at) VALUES (?, ?, ?, ?, ?) "
                "ON CONFLICT (user, session_id) DO UPDATE SET updated_at = excluded.updated_at",
                (user, session_id, title_of(question), now, now),
            )
            (index,) = connection.execute(
                "SELECT coalesce(max(number) + 1, 0) FROM turns WHERE user = ? AND session_id = ?", (user, session_id)
            ).fetchone()
            connection.execute(
                "INSERT INTO turns (user, session_id, number, question, prompt, answer, sources, placed, num_tokens, "
                "interrupted, created_at, turn_id) VALUES (?, ?, ?, ?, '', '', '[]', '[]', 0, 1, ?, ?)",
                (user, session_id, index, question, now, turn_id or new_turn_id()),
            )
        return int(index)

    def note_progress(self, user: str, session_id: str, index: int, result: TurnResult) -> None:
        with self._transaction() as connection:
            _write(connection, (user, session_id, index), replace(result, interrupted=True, finish_reason=None))

    def finish_turn(self, user: str, session_id: str, index: int, result: TurnResult) -> None:
        with self._transaction() as connection:
            _write(connection, (user, session_id, index), result)
            connection.execute(
                "UPDATE conversations SET updated_at = ? WHERE user = ? AND session_id = ?",
                (_now(connection, user), user, session_id),
            )

    def set_feedback(self, user: str, session_id: str, index: int, feedback: Feedback | None) -> bool:
        with self._transaction() as connection:
            cursor = connection.execute(
                "UPDATE turns SET feedback = ?1 WHERE user = ?2 AND session_id = ?3 AND number = ?4 AND EXISTS "
                "(SELECT 1 FROM conversations WHERE user = ?2 AND session_id = ?3 AND deleted_at IS NULL)",
                (_json(None if feedback is None else vars(feedback)), user, session_id, index),
            )
        return cursor.rowcount > 0

    # ── conversations ────────────────────────────────────────────────────────────────────────────────────────────────

    def set_window_start(self, user: str, session_id: str, index: int) -> None:
        self._change("window_start = ?", index, user, session_id)

    def rename(self, user: str, session_id: str, title: str) -> bool:
        return self._change("renamed = 1, title = ?", title, user, session_id)

    def _change(self, assignments: str, value: Any, user: str, session_id: str) -> bool:
        """Sets columns of a conversation that is there; False where it is not."""
        with self._transaction() as connection:
            cursor = connection.execute(
                f"UPDATE conversations SET {assignments} WHERE user = ? AND session_id = ? AND deleted_at IS NULL",
                (value, user, session_id),
            )
        return cursor.rowcount > 0

    def truncate(self, user: str, session_id: str, index: int) -> bool:
        key = (user, session_id, index)
        with self._transaction() as connection:
            if not connection.execute(_TURN + "AND session_id = ?2 AND number = ?3", key).fetchone():
                return False
            connection.execute("DELETE FROM turns WHERE user = ? AND session_id = ? AND number >= ?", key)
            connection.execute(
                "UPDATE conversations SET window_start = min(window_start, ?), updated_at = ? "
                "WHERE user = ? AND session_id = ?",
                (index, _now(connection, user), user, session_id),
            )
            if index == 0:
                connection.execute(
                    "DELETE FROM conversations WHERE user = ? AND session_id = ? AND NOT renamed", key[:2]
                )
        return True

    def delete(self, user: str, session_id: str) -> bool:
        with self._transaction() as connection:
            _purge(connection)
            now = _now(connection, user)
        return self._change("deleted_at = ?", now, user, session_id)

    def restore(self, user: str, session_id: str) -> bool:
        with self._transaction() as connection:
            _purge(connection)
            cursor = connection.execute(
                "UPDATE conversations SET deleted_at = NULL "
                "WHERE user = ? AND session_id = ? AND deleted_at IS NOT NULL",
                (user, session_id),
            )
        return cursor.rowcount > 0

    def close(self) -> None:
        with self._lock:
            self._connection.close()


def _purge(connection: sqlite3.Connection) -> None:
    """Drops for good what was deleted too long ago to be restored."""
    connection.execute("DELETE FROM conversations WHERE deleted_at < ?", (oldest_kept(),))


def _write(connection: sqlite3.Connection, turn: tuple[str, str, int], result: TurnResult) -> None:
    """Sets what is known of a turn: (user, conversation, number)."""
    connection.execute(
        "UPDATE turns SET prompt = ?, answer = ?, sources = ?, placed = ?, num_tokens = ?, interrupted = ?, "
        "messages = ?, grounding = ?, finish_reason = ?, statistics = ?, settings = ? "
        "WHERE user = ? AND session_id = ? AND number = ?",
        (
            result.prompt,
            result.answer,
            json.dumps(list(result.sources)),
            json.dumps(list(result.placed)),
            result.num_tokens,
            int(result.interrupted),
            _json(messages_to_dict(result.messages) if result.messages else None),
            _json(result.grounding),
            result.finish_reason,
            _json(result.statistics),
            _json(result.settings),
            *turn,
        ),
    )


def _turn(row: tuple[Any, ...]) -> Turn:
    _, index, question, prompt, answer, sources, placed, num_tokens, interrupted, messages, created_at, *facts = row
    grounding, turn_id, finish_reason, statistics, settings, feedback = facts
    return Turn(
        index=index,
        question=question,
        prompt=prompt,
        answer=answer,
        sources=tuple(json.loads(sources)),
        placed=tuple(json.loads(placed)),
        num_tokens=num_tokens,
        interrupted=bool(interrupted),
        messages=tuple(messages_from_dict(json.loads(messages))) if messages else (),
        created_at=created_at,
        grounding=json.loads(grounding) if grounding else None,
        turn_id=turn_id,
        finish_reason=finish_reason,
        statistics=json.loads(statistics) if statistics else None,
        settings=json.loads(settings) if settings else None,
        feedback=Feedback(**json.loads(feedback)) if feedback else None,
    )


def _json(value: Any) -> str | None:
    return None if value is None else json.dumps(value)


def _now(connection: sqlite3.Connection, user: str) -> str:
    used, deleted = (
        connection.execute(f"SELECT max({time}) FROM conversations WHERE user = ? AND {time} > ''", (user,)).fetchone()
        for time in ("updated_at", "deleted_at")
    )
    return stored_now(max(filter(None, (*used, *deleted)), default=None))
