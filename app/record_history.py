"""Conversations as records in a store that knows none of their rules: what Redis and Postgres have in common.

Here is what turns, searches, deletions and restorations mean; a store reads a user's conversations and one
conversation's turns, and applies one change as a whole or not at all.
"""

from abc import abstractmethod
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Any

from langchain_core.messages import messages_from_dict, messages_to_dict

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

Record = dict[str, Any]


@dataclass
class Change:
    """What becomes of one conversation. `head`: its new head, None drops it with all its turns.

    `turns`: by number, their new records, None for those that are dropped.
    """

    head: Record | None
    turns: dict[int, Record | None] = field(default_factory=dict)


class RecordConversationStore(ConversationStore):
    """The rules of conversations over `_heads`, `_head`, `_newest`, `_records`, `_record`, `_apply` and `_put`.

    A head is {title, renamed, window_start, num_turns, created_at, updated_at, deleted_at}, a record a turn's fields.
    """

    @abstractmethod
    def _heads(self, user: str) -> dict[str, Record]:
        """The heads of all conversations of a user, deleted ones too, by name."""

    @abstractmethod
    def _head(self, user: str, session_id: str) -> Record | None:
        """One head."""

    @abstractmethod
    def _newest(self, user: str) -> str | None:
        """The newest `newest_time` of a user's heads; None where there are none."""

    @abstractmethod
    def _records(self, user: str, session_id: str) -> dict[int, Record]:
        """A conversation's turns by number."""

    @abstractmethod
    def _record(self, user: str, session_id: str, number: int) -> Record | None:
        """One turn."""

    @abstractmethod
    def _apply(self, user: str, session_id: str, change: Change) -> None:
        """Makes a change, the whole of it or nothing."""

    @abstractmethod
    def _put(self, user: str, session_id: str, number: int, record: Record) -> None:
        """Changes one turn that is there, and nothing of its conversation's head."""

    # ── reading ──────────────────────────────────────────────────────────────────────────────────────────────────────

    def conversations(
        self, user: str, *, query: str = "", limit: int | None = None, offset: int = 0
    ) -> list[Conversation]:
        there = [(name, head) for name, head in self._heads(user).items() if head["deleted_at"] is None]
        there.sort(key=lambda entry: entry[0])
        there.sort(key=lambda entry: str(entry[1]["updated_at"]), reverse=True)
        found = [_conversation(name, head) for name, head in there]
        if query.strip():
            found = [hit for entry in found if (hit := self._hit(user, entry, query)) is not None]
        return found[offset : None if limit is None else offset + limit]

    def _hit(self, user: str, entry: Conversation, query: str) -> Conversation | None:
        texts = [
            text
            for _, record in sorted(self._records(user, entry.session_id).items())
            for text in (record["question"], record["answer"])
            if contains(text, query)
        ]
        if texts:
            return replace(entry, snippet=snippet(texts[0], query))
        return entry if contains(entry.title, query) else None

    def conversation(self, user: str, session_id: str) -> Conversation | None:
        head = self._present(user, session_id)
        return None if head is None else _conversation(session_id, head)

    def turns(self, user: str, session_id: str) -> list[Turn]:
        if self._present(user, session_id) is None:
            return []
        return [_turn(number, record) for number, record in sorted(self._records(user, session_id).items())]

    def turn(self, user: str, turn_id: str) -> tuple[str, Turn] | None:
        every = ((name, turn) for name in self._names(user) for turn in self.turns(user, name))
        return next(((name, turn) for name, turn in every if turn.turn_id == turn_id), None)

    def rated_turns(self, user: str) -> list[tuple[str, Turn]]:
        every = [(name, turn) for name in self._names(user) for turn in self.turns(user, name)]
        rated = [(name, turn) for name, turn in every if turn.feedback is not None]
        return sorted(rated, key=lambda entry: (entry[1].created_at, entry[0], entry[1].index))

    def _names(self, user: str) -> list[str]:
        return [name for name, head in self._heads(user).items() if head["deleted_at"] is None]

    def _present(self, user: str, session_id: str) -> Record | None:
        head = self._head(user, session_id)
        return None if head is None or head["deleted_at"] is not None else head

    # ── turns ────────────────────────────────────────────────────────────────────────────────────────────────────────

    def begin_turn(self, user: str, session_id: str, question: str, *, turn_id: str | None = None) -> int:
        now, head = stored_now(self._newest(user)), self._head(user, session_id)
        dropped: dict[int, Record | None] = {}
        if head is not None and head["deleted_at"] is not None:
            dropped = dict.fromkeys(self._records(user, session_id))
            head = None
        if head is None:
            head = {
                "title": title_of(question), "renamed": False, "window_start": 0, "num_turns": 0, "created_at": now,
                "updated_at": now, "deleted_at": None,
            }  # fmt: skip
        index = int(head["num_turns"])
        head = {**head, "num_turns": index + 1, "updated_at": now}
        record = {
            "question": question, "prompt": "", "answer": "", "sources": [], "placed": [], "num_tokens": 0,
            "interrupted": True, "messages": None, "created_at": now, "grounding": None,
            "turn_id": turn_id or new_turn_id(), "finish_reason": None, "statistics": None, "settings": None,
            "feedback": None,
        }  # fmt: skip
        self._apply(user, session_id, Change(head, {**dropped, index: record}))
        return index

    def note_progress(self, user: str, session_id: str, index: int, result: TurnResult) -> None:
        record = self._record(user, session_id, index)
        if record is not None:
            so_far = replace(result, interrupted=True, finish_reason=None)
            self._put(user, session_id, index, {**record, **_fields(so_far)})

    def finish_turn(self, user: str, session_id: str, index: int, result: TurnResult) -> None:
        head, record = self._head(user, session_id), self._record(user, session_id, index)
        if head is None or record is None:
            return  # dropped while it was being answered
        self._apply(
            user,
            session_id,
            Change({**head, "updated_at": stored_now(head["updated_at"])}, {index: {**record, **_fields(result)}}),
        )

    def set_feedback(self, user: str, session_id: str, index: int, feedback: Feedback | None) -> bool:
        head = self._present(user, session_id)
        record = None if head is None else self._record(user, session_id, index)
        if record is None:
            return False
        self._put(user, session_id, index, {**record, "feedback": None if feedback is None else vars(feedback)})
        return True

    # ── conversations ────────────────────────────────────────────────────────────────────────────────────────────────

    def set_window_start(self, user: str, session_id: str, index: int) -> None:
        self._change(user, session_id, {"window_start": index})

    def rename(self, user: str, session_id: str, title: str) -> bool:
        return self._change(user, session_id, {"title": title, "renamed": True})

    def _change(self, user: str, session_id: str, fields: Mapping[str, Any]) -> bool:
        head = self._present(user, session_id)
        if head is None:
            return False
        self._apply(user, session_id, Change({**head, **fields}))
        return True

    def truncate(self, user: str, session_id: str, index: int) -> bool:
        head = self._present(user, session_id)
        if head is None or not 0 <= index < head["num_turns"]:
            return False
        if index == 0 and not head["renamed"]:
            self._apply(user, session_id, Change(None))
            return True
        window_start = min(head["window_start"], index)
        kept = {**head, "num_turns": index, "window_start": window_start, "updated_at": stored_now(self._newest(user))}
        self._apply(user, session_id, Change(kept, dict.fromkeys(range(index, head["num_turns"]))))
        return True

    def delete(self, user: str, session_id: str) -> bool:
        self._purge(user)
        return self._change(user, session_id, {"deleted_at": stored_now(self._newest(user))})

    def restore(self, user: str, session_id: str) -> bool:
        self._purge(user)
        head = self._head(user, session_id)
        if head is None or head["deleted_at"] is None:
            return False
        self._apply(user, session_id, Change({**head, "deleted_at": None}))
        return True

    def _purge(self, user: str) -> None:
        """Drops for good what was deleted too long ago to be restored."""
        oldest = oldest_kept()
        for name, head in self._heads(user).items():
            if head["deleted_at"] is not None and head["deleted_at"] < oldest:
                self._apply(user, name, Change(None))


def newest_time(head: Record) -> str:
    """When the conversation was last used or deleted."""
    return max(str(head["updated_at"]), str(head["deleted_at"] or ""))


def _conversation(session_id: str, head: Record) -> Conversation:
    return Conversation(
        session_id, head["title"], head["num_turns"], head["window_start"], head["created_at"], head["updated_at"]
    )


def _fields(result: TurnResult) -> Record:
    """Of a turn's record, what its end, or what has come so far, tells."""
    return {
        "prompt": result.prompt, "answer": result.answer, "sources": list(result.sources),
        "placed": list(result.placed), "num_tokens": result.num_tokens, "interrupted": result.interrupted,
        "messages": messages_to_dict(result.messages) if result.messages else None, "grounding": result.grounding,
        "finish_reason": result.finish_reason, "statistics": result.statistics, "settings": result.settings,
    }  # fmt: skip


def _turn(index: int, record: Record) -> Turn:
    kept = {
        name: record[name]
        for name in (
            "question", "prompt", "answer", "num_tokens", "interrupted", "created_at", "grounding", "turn_id",
            "finish_reason", "statistics", "settings",
        )
    }  # fmt: skip
    return Turn(
        index=index,
        sources=tuple(record["sources"]),
        placed=tuple(record["placed"]),
        messages=tuple(messages_from_dict(record["messages"])) if record["messages"] else (),
        feedback=Feedback(**record["feedback"]) if record["feedback"] else None,
        **kept,
    )
