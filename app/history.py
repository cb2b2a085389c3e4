"""Conversations: turns of (user, session), what a store of them does, and LangChain's message history over one.

The store on disk is `app/sqlite_history.py`. A store knows nothing of models, prompts or HTTP. Which turns a model is
shown is decided in `app/memory.py`, and turns of one conversation are kept apart by `app/turn_lock.py`.
"""

import uuid
from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from typing import Any, Literal

from langchain_core.chat_history import BaseChatMessageHistory
from langchain_core.messages import (
    AIMessage,
    BaseMessage,
    BaseMessageChunk,
    HumanMessage,
    message_chunk_to_message,
)

from app.errors import NotFoundError

TITLE_CHARS = 80
DELETED_KEPT = timedelta(days=1)
"""How long a deleted conversation can be restored."""

FinishReason = Literal["stop", "length", "abort", "error"]


@dataclass(frozen=True)
class Feedback:
    """What a person thinks of an answer."""

    rating: Literal["up", "down"]
    comment: str | None = None


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
    """Tokens of prompt and answer; 0: not measured."""
    interrupted: bool = False
    """Stopped by the user, broken by a fault, or cut off by the end of the process."""
    messages: tuple[BaseMessage, ...] = ()
    """The turn's messages where they are more than a question and an answer (tool calls, system messages)."""
    created_at: str = ""
    grounding: dict[str, Any] | None = None
    """How the answer stands to its sources (`app/answering.py`); None where it was not checked."""
    turn_id: str = ""
    """Names the turn among all turns of all conversations."""
    finish_reason: FinishReason | None = None
    """"length": cut by max_tokens; "abort": stopped by the client; None while it runs, and for older turns."""
    statistics: dict[str, Any] | None = None
    """What the engine did for it (`app/turn_statistics.py`)."""
    settings: dict[str, Any] | None = None
    """What the answer was made with: model, sampling, memory, passages."""
    feedback: Feedback | None = None

    def as_messages(self) -> list[BaseMessage]:
        """The turn as LangChain messages, without passages."""
        if self.messages:
            return list(self.messages)
        answer = [AIMessage(self.answer)] if self.answer else []
        return [HumanMessage(self.question), *answer]


@dataclass(frozen=True)
class Conversation:
    """A conversation without its turns.

    `window_start` is the first turn that the model was last shown; `snippet` the place where a search hit a turn.
    """

    session_id: str
    title: str
    num_turns: int
    window_start: int
    created_at: str
    updated_at: str
    snippet: str | None = None


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
    finish_reason: FinishReason | None = None
    statistics: Mapping[str, Any] | None = None
    settings: Mapping[str, Any] | None = None


class ConversationStore(ABC):
    """Keeps conversations. All methods may block and may be called from any thread; a user sees only their own."""

    @property
    def problem(self) -> str:
        """Why the store did not answer at the last time; "" where it did."""
        return ""

    @abstractmethod
    def conversations(
        self, user: str, *, query: str = "", limit: int | None = None, offset: int = 0
    ) -> list[Conversation]:
        """A user's conversations, the one used last first; those whose title or a turn holds all words of `query`."""

    @abstractmethod
    def conversation(self, user: str, session_id: str) -> Conversation | None:
        """One conversation, or None where there is none of that name."""

    @abstractmethod
    def turns(self, user: str, session_id: str) -> list[Turn]:
        """All turns in order; empty for an unknown conversation."""

    @abstractmethod
    def turn(self, user: str, turn_id: str) -> tuple[str, Turn] | None:
        """One turn by its id, with its conversation's name; None where the user has none of that id."""

    @abstractmethod
    def begin_turn(self, user: str, session_id: str, question: str, *, turn_id: str | None = None) -> int:
        """Notes the question, marked interrupted until `finish_turn`; answers the turn's index.

        A deleted conversation of that name can be restored no more.
        """

    @abstractmethod
    def note_progress(self, user: str, session_id: str, index: int, result: TurnResult) -> None:
        """Stores what has come so far of a turn that is being answered: interrupted, and without an end."""

    @abstractmethod
    def finish_turn(self, user: str, session_id: str, index: int, result: TurnResult) -> None:
        """Stores what came of a turn; feedback on it stays."""

    @abstractmethod
    def set_feedback(self, user: str, session_id: str, index: int, feedback: Feedback | None) -> bool:
        """Sets or takes away what the user thinks of an answer; False where there is no such turn."""

    @abstractmethod
    def rated_turns(self, user: str) -> list[tuple[str, Turn]]:
        """All turns with feedback, oldest first, each with its conversation's name."""

    @abstractmethod
    def rename(self, user: str, session_id: str, title: str) -> bool:
        """Gives a conversation a title; False where there is none of that name."""

    @abstractmethod
    def set_window_start(self, user: str, session_id: str, index: int) -> None:
        """Notes the first turn that the model is shown from now on."""

    @abstractmethod
    def truncate(self, user: str, session_id: str, index: int) -> bool:
        """Drops the turn of that index and all later ones; False where there is no such turn.

        A conversation without turns goes too, unless its title was given by the user.
        """

    @abstractmethod
    def delete(self, user: str, session_id: str) -> bool:
        """Drops a whole conversation; False where there is none of that name. `restore` brings it back for a day."""

    @abstractmethod
    def restore(self, user: str, session_id: str) -> bool:
        """Brings a deleted conversation back; False where there is none, or none any more."""

    @abstractmethod
    def close(self) -> None:
        """Gives back files and connections."""


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


def new_turn_id() -> str:
    """A name for a turn that nobody can guess."""
    return uuid.uuid4().hex


def utc_now() -> datetime:
    """The machine's clock."""
    return datetime.now(UTC)


def as_stored(moment: datetime) -> str:
    """A time as stores keep it: of one length, so that texts sort as times do."""
    return moment.isoformat(timespec="milliseconds")


def stored_now(newest: str | None) -> str:
    """The time now; behind `newest`, the newest time of the user's conversations, also where the clock was set back.

    What is used later sorts later for ever, and a deletion is never dated so early that its day to restore is over.
    """
    now = as_stored(utc_now())
    if newest is None or now > newest:
        return now
    return as_stored(datetime.fromisoformat(newest) + timedelta(milliseconds=1))


def oldest_kept() -> str:
    """Conversations that were deleted before this time can be restored no more."""
    return as_stored(utc_now() - DELETED_KEPT)


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
