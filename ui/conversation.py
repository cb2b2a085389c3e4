"""A conversation as the page shows it: turns with their answers and sources. Values only; nothing is drawn or sent."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Any


@dataclass(frozen=True)
class Source:
    """One passage given with an answer, numbered `n` from 1 as the answer cites it."""

    n: int
    document_id: str
    title: str
    page: int | None
    heading: str | None
    text: str
    score: float | None

    @classmethod
    def from_json(cls, value: Mapping[str, Any]) -> "Source":
        """From an item of the API's `sources`; absent optional keys become None."""
        score = value.get("score")
        return cls(
            n=int(value.get("n") or 0),
            document_id=str(value.get("document_id") or ""),
            title=str(value.get("title") or "Untitled document"),
            page=None if value.get("page") is None else int(value["page"]),
            heading=None if not value.get("heading") else str(value["heading"]),
            text=str(value.get("text") or ""),
            score=None if score is None else float(score),
        )


def is_not_found(grounding: Any) -> bool:
    """Whether the API's `grounding` of an answer, which may be missing, says that the documents do not hold it."""
    return isinstance(grounding, Mapping) and grounding.get("state") == "not_found"


class TurnState(StrEnum):
    """How far the answer to a question has come."""

    WAITING = "waiting"  # nothing of the answer has arrived
    STREAMING = "streaming"
    DONE = "done"
    STOPPED = "stopped"  # by the person, or (read back from the server) in any way before its end
    FAILED = "failed"


@dataclass
class Turn:
    """A question with what there is of its answer. `sources` is None until the server has named them.

    `is_accepted`: the server has taken the question, so that it keeps (or will keep) this turn too. `not_found`: the
    documents do not hold the answer, and the sources are only what comes nearest.
    """

    question: str
    answer: str = ""
    sources: list[Source] | None = None
    state: TurnState = TurnState.WAITING
    error: str = ""
    is_accepted: bool = False
    not_found: bool = False

    @property
    def is_open(self) -> bool:
        """Whether more of the answer may still come."""
        return self.state in (TurnState.WAITING, TurnState.STREAMING)

    @classmethod
    def from_json(cls, value: Mapping[str, Any]) -> "Turn":
        """From an item of the API's `turns`."""
        return cls(
            question=str(value["question"]),
            answer=str(value.get("answer") or ""),
            sources=[Source.from_json(source) for source in value.get("sources") or []],
            state=TurnState.STOPPED if value.get("interrupted") else TurnState.DONE,
            is_accepted=True,
            not_found=is_not_found(value.get("grounding")),
        )


@dataclass
class Conversation:
    """The turns of one browser tab, oldest first, under the id the server keeps them by."""

    session_id: str
    turns: list[Turn] = field(default_factory=list)

    @property
    def last(self) -> Turn | None:
        """The newest turn, or None before the first question."""
        return self.turns[-1] if self.turns else None
