"""Conversations on disk: turns of (user, session), in SQLite, and LangChain's message-history interface over them.

A store knows nothing of models, prompts or HTTP. Which turns a model is shown is decided in `app/memory.py`, and turns
of one conversation are kept apart by `app/turn_lock.py`.
"""

import json
import sqlite3
import threading
from abc import ABC, abstractmethod
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from langchain_core.chat_history import BaseChatMessageHistory
from langchain_core.messages import (
    AIMessage,
    BaseMessage,
    BaseMessageChunk,
    HumanMessage,
    message_chunk_to_message,
    messages_from_dict,
    messages_to_dict,
)

from app.errors import DataFolderError, NotFoundError

SCHEMA_VERSION = 2
TITLE_CHARS = 80

SCHEMA = """
CREATE TABLE conversations (
    user TEXT NOT NULL, session_id TEXT NOT NULL, title TEXT NOT NULL, window_start INTEGER NOT NULL DEFAULT 0,
    created_at TEXT NOT NULL, updated_at TEXT NOT NULL,
    PRIMARY KEY (user, session_id)
) WITHOUT ROWID;
CREATE TABLE turns (
    user TEXT NOT NULL, session_id TEXT NOT NULL, number INTEGER NOT NULL,
    question TEXT NOT NULL, prompt TEXT NOT NULL, answer TEXT NOT NULL, sources TEXT NOT NULL, placed TEXT NOT NULL,
    num_tokens INTEGER NOT NULL, interrupted INTEGER NOT NULL, messages TEXT, created_at TEXT NOT NULL, grounding TEXT,
    PRIMARY KEY (user, session_id, number),
    FOREIGN KEY (user, session_id) REFERENCES conversations (user, session_id) ON DELETE CASCADE
);
"""


@dataclass(frozen=True)
class Turn:
    """One question and what came of it."""

    index: int
    question: str
    prompt: str = ""
    """What the model was sent for this turn: the passages that were new, and the question."""
    answer: str = ""
    sources: tuple[dict[str, Any], ...] = ()
    placed: tuple[int, ...] = ()
    """Numbers `n` of those sources whose text stands in this turn's prompt."""
    num_tokens: int = 0
    """Tokens of prompt and answer."""
    interrupted: bool = False
    """Stopped by the user, broken by a fault, or cut off by the end of the process."""
    messages: tuple[BaseMessage, ...] = ()
    """The turn's messages where they are more than a question and an answer (tool calls, system messages)."""
    created_at: str = ""
    grounding: dict[str, Any] | None = None
    """How the answer stands to its sources (`app/answering.py`); None where it was not checked."""

    def as_messages(self) -> list[BaseMessage]:
        """The turn as LangChain messages, without passages."""
        if self.messages:
            return list(self.messages)
        answer = [AIMessage(self.answer)] if self.answer else []
        return [HumanMessage(self.question), *answer]


@dataclass(frozen=True)
class Conversation:
    """A conversation without its turns. `window_start` is the first turn that the model was last shown."""

    session_id: str
    title: str
    num_turns: int
    window_start: int
    created_at: str
    updated_at: str


@dataclass(frozen=True)
class TurnResult:
    """What is known of a turn when it ends."""

    prompt: str = ""
    answer: str = ""
    sources: Sequence[dict[str, Any]] = ()
    placed: Sequence[int] = ()
    num_tokens: int = 0
    interrupted: bool = False
    messages: Sequence[BaseMessage] = field(default=())
    grounding: Mapping[str, Any] | None = None


class ConversationStore(ABC):
    """Keeps conversations. All methods may block and may be called from any thread; a user sees only their own."""

    @abstractmethod
    def conversations(self, user: str) -> list[Conversation]:
        """A user's conversations, the one used last first."""

    @abstractmethod
    def conversation(self, user: str, session_id: str) -> Conversation | None:
        """One conversation, or None where there is none of that name."""

    @abstractmethod
    def turns(self, user: str, session_id: str) -> list[Turn]:
        """All turns in order; empty for an unknown conversation."""

    @abstractmethod
    def begin_turn(self, user: str, session_id: str, question: str) -> int:
        """Notes the question, marked interrupted until `finish_turn`; answers the turn's index."""

    @abstractmethod
    def finish_turn(self, user: str, session_id: str, index: int, result: TurnResult) -> None:
        """Stores what came of a turn."""

    @abstractmethod
    def set_window_start(self, user: str, session_id: str, index: int) -> None:
        """Notes the first turn that the model is shown from now on."""

    @abstractmethod
    def truncate(self, user: str, session_id: str, index: int) -> bool:
        """Drops the turn of that index and all later ones; False where there is no such turn."""

    @abstractmethod
    def delete(self, user: str, session_id: str) -> bool:
        """Drops a whole conversation; False where there is none of that name."""

    @abstractmethod
    def close(self) -> None:
        """Gives back files and connections."""


class SQLiteConversationStore(ConversationStore):
    """Conversations in one SQLite file (write-ahead log, so that readers never wait for a writer)."""

    def __init__(self, path: Path) -> None:
        """Opens or makes the file. Raises DataFolderError where it cannot, or where a newer version wrote it."""
        self.path = path
        self._lock = threading.RLock()  # one connection, many threads
        try:
            path.parent.mkdir(parents=True, exist_ok=True)
            self._connection = sqlite3.connect(path, timeout=30, isolation_level=None, check_same_thread=False)
            self._connection.execute("PRAGMA journal_mode=WAL")
            self._connection.execute("PRAGMA synchronous=NORMAL")
            self._connection.execute("PRAGMA foreign_keys=ON")
            self._migrate()
        except (OSError, sqlite3.Error) as error:
            raise DataFolderError(
                f"{path}: conversations cannot be stored there: {error}; make the folder writable or choose another "
                "with --data",
                folder=path.parent,
            ) from error

    def _migrate(self) -> None:
        (version,) = self._connection.execute("PRAGMA user_version").fetchone()
        if version > SCHEMA_VERSION:
            raise DataFolderError(
                f"{self.path} was written by a newer version (schema {version}; this one knows {SCHEMA_VERSION}): "
                "upgrade, or choose another folder with --data",
                folder=self.path.parent,
            )
        if version == 0:
            self._connection.executescript(f"BEGIN; {SCHEMA} PRAGMA user_version={SCHEMA_VERSION}; COMMIT;")
        if version == 1:
            added = "ALTER TABLE turns ADD COLUMN grounding TEXT"
            self._connection.executescript(f"BEGIN; {added}; PRAGMA user_version={SCHEMA_VERSION}; COMMIT;")

    @contextmanager
    def _transaction(self) -> Iterator[sqlite3.Connection]:
        with self._lock:
            self._connection.execute("BEGIN IMMEDIATE")
            try:
                yield self._connection
            except BaseException:
                self._connection.execute("ROLLBACK")
                raise
            self._connection.execute("COMMIT")

    def _rows(self, query: str, *values: Any) -> list[tuple[Any, ...]]:
        with self._lock:
            return self._connection.execute(query, values).fetchall()

    _CONVERSATION = """
        SELECT session_id, title,
            (SELECT count(*) FROM turns t WHERE t.user = c.user AND t.session_id = c.session_id),
            window_start, created_at, updated_at
        FROM conversations c """

    def conversations(self, user: str) -> list[Conversation]:
        query = self._CONVERSATION + "WHERE user = ? ORDER BY updated_at DESC, session_id"
        return [Conversation(*row) for row in self._rows(query, user)]

    def conversation(self, user: str, session_id: str) -> Conversation | None:
        rows = self._rows(self._CONVERSATION + "WHERE user = ? AND session_id = ?", user, session_id)
        return Conversation(*rows[0]) if rows else None

    def turns(self, user: str, session_id: str) -> list[Turn]:
        rows = self._rows(
            "SELECT number, question, prompt, answer, sources, placed, num_tokens, interrupted, messages, created_at, "
            "grounding FROM turns WHERE user = ? AND session_id = ? ORDER BY number",
            user,
            session_id,
        )
        return [_turn(row) for row in rows]

    def begin_turn(self, user: str, session_id: str, question: str) -> int:
        now = _now()
        with self._transaction() as connection:
            connection.execute(
                "INSERT INTO conversations VALUES (?, ?, ?, 0, ?, ?) "
                "ON CONFLICT (user, session_id) DO UPDATE SET updated_at = excluded.updated_at",
                (user, session_id, title_of(question), now, now),
            )
            (index,) = connection.execute(
                "SELECT coalesce(max(number) + 1, 0) FROM turns WHERE user = ? AND session_id = ?", (user, session_id)
            ).fetchone()
            connection.execute(
                "INSERT INTO turns VALUES (?, ?, ?, ?, '', '', '[]', '[]', 0, 1, NULL, ?, NULL)",
                (user, session_id, index, question, now),
            )
        return int(index)

    def finish_turn(self, user: str, session_id: str, index: int, result: TurnResult) -> None:
        messages = messages_to_dict(result.messages) if result.messages else None
        with self._transaction() as connection:
            connection.execute(
                "UPDATE turns SET prompt = ?, answer = ?, sources = ?, placed = ?, num_tokens = ?, interrupted = ?, "
                "messages = ?, grounding = ? WHERE user = ? AND session_id = ? AND number = ?",
                (
                    result.prompt,
                    result.answer,
                    json.dumps(list(result.sources)),
                    json.dumps(list(result.placed)),
                    result.num_tokens,
                    int(result.interrupted),
                    None if messages is None else json.dumps(messages),
                    None if result.grounding is None else json.dumps(result.grounding),
                    user,
                    session_id,
                    index,
                ),
            )
            connection.execute(
                "UPDATE conversations SET updated_at = ? WHERE user = ? AND session_id = ?", (_now(), user, session_id)
            )

    def set_window_start(self, user: str, session_id: str, index: int) -> None:
        with self._transaction() as connection:
            connection.execute(
                "UPDATE conversations SET window_start = ? WHERE user = ? AND session_id = ?",
                (index, user, session_id),
            )

    def truncate(self, user: str, session_id: str, index: int) -> bool:
        key = (user, session_id, index)
        with self._transaction() as connection:
            if not connection.execute(
                "SELECT 1 FROM turns WHERE user = ? AND session_id = ? AND number = ?", key
            ).fetchone():
                return False
            connection.execute("DELETE FROM turns WHERE user = ? AND session_id = ? AND number >= ?", key)
            connection.execute(
                "UPDATE conversations SET window_start = min(window_start, ?), updated_at = ? "
                "WHERE user = ? AND session_id = ?",
                (index, _now(), user, session_id),
            )
            if index == 0:
                connection.execute("DELETE FROM conversations WHERE user = ? AND session_id = ?", key[:2])
        return True

    def delete(self, user: str, session_id: str) -> bool:
        with self._transaction() as connection:
            cursor = connection.execute(
                "DELETE FROM conversations WHERE user = ? AND session_id = ?", (user, session_id)
            )
        return cursor.rowcount > 0

    def close(self) -> None:
        with self._lock:
            self._connection.close()


class RagstoneChatMessageHistory(BaseChatMessageHistory):
    """A conversation as LangChain's message history, for a user's own chains.

    The same conversation shows in `/api/v1/conversations`: a human message begins a turn, what follows belongs to it.
    Chunks are stored as plain messages.
    """

    def __init__(self, store: ConversationStore, session_id: str, *, user: str = "local") -> None:
        if not session_id:
            raise ValueError("session_id is empty: give the conversation a name, or people would share one history")
        self.store = store
        self.session_id = session_id
        self.user = user

    @property
    def messages(self) -> list[BaseMessage]:  # type: ignore[override]
        turns = self.store.turns(self.user, self.session_id)
        return [message for turn in turns for message in turn.as_messages()]

    def add_messages(self, messages: Sequence[BaseMessage]) -> None:
        """Appends messages in order."""
        for turn_messages in _split_turns([_plain(message) for message in messages]):
            begins = isinstance(turn_messages[0], HumanMessage)
            turns = [] if begins else self.store.turns(self.user, self.session_id)
            if turns:
                turn_messages = [*turns[-1].as_messages(), *turn_messages]
                index = turns[-1].index
            else:
                question = turn_messages[0].text if begins else ""
                index = self.store.begin_turn(self.user, self.session_id, question)
            answer = "\n\n".join(message.text for message in turn_messages if isinstance(message, AIMessage))
            self.store.finish_turn(self.user, self.session_id, index, TurnResult(answer=answer, messages=turn_messages))

    def clear(self) -> None:
        """Drops the conversation."""
        self.store.delete(self.user, self.session_id)


def title_of(question: str) -> str:
    """A conversation's title: its first question on one line, cut at a word."""
    line = " ".join(question.split())
    if len(line) <= TITLE_CHARS:
        return line
    return line[: TITLE_CHARS - 1].rsplit(" ", 1)[0] + "…"


def require_conversation(store: ConversationStore, user: str, session_id: str) -> Conversation:
    """The conversation, or NotFoundError."""
    conversation = store.conversation(user, session_id)
    if conversation is None:
        raise NotFoundError(
            f"there is no conversation {session_id!r}; GET /api/v1/conversations lists them", field="session_id"
        )
    return conversation


def _split_turns(messages: Sequence[BaseMessage]) -> list[list[BaseMessage]]:
    """Parts that each begin with a human message (the first perhaps not)."""
    parts: list[list[BaseMessage]] = []
    for message in messages:
        if not parts or isinstance(message, HumanMessage):
            parts.append([])
        parts[-1].append(message)
    return parts


def _plain(message: BaseMessage) -> BaseMessage:
    return message_chunk_to_message(message) if isinstance(message, BaseMessageChunk) else message


def _turn(row: tuple[Any, ...]) -> Turn:
    index, question, prompt, answer, sources, placed, num_tokens, interrupted, messages, created_at, grounding = row
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
    )


def _now() -> str:
    return datetime.now(UTC).isoformat(timespec="milliseconds")
