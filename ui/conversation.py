"""A conversation as the page shows it: turns with their answers and sources. Values only; nothing is drawn or sent."""

import itertools
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


Span = tuple[int, int]
"""From and to, in characters."""


@dataclass(frozen=True)
class Sentence:
    """One sentence of an answer: whether source `n` supports it, by which of its own sentences, or what failed.

    `span` and `words` are where that sentence, and the words of it that the answer has too, stand in the source's text.
    """

    text: str
    is_supported: bool
    n: int | None
    quote: str | None
    reason: str | None
    span: Span | None = None
    words: tuple[Span, ...] = ()


@dataclass(frozen=True)
class Grounding:
    """How an answer stands to its sources: `state` is "answered", "not_found" or "unchecked".

    `left_out` holds the titles of passages that were found and had no room.
    """

    state: str
    sentences: tuple[Sentence, ...] = ()
    left_out: tuple[str, ...] = ()

    @classmethod
    def from_json(cls, value: Any) -> "Grounding | None":
        """From the API's `grounding`, which may be missing."""
        if not isinstance(value, Mapping):
            return None
        return cls(
            state=str(value.get("state") or "unchecked"),
            sentences=tuple(
                Sentence(
                    text=str(item.get("text") or ""),
                    is_supported=bool(item.get("supported")),
                    n=None if item.get("n") is None else int(item["n"]),
                    quote=None if item.get("quote") is None else str(item["quote"]),
                    reason=None if item.get("reason") is None else str(item["reason"]),
                    span=None if item.get("span") is None else _span(item["span"]),
                    words=tuple(_span(word) for word in item.get("words") or ()),
                )
                for item in value.get("sentences") or ()
            ),
            left_out=tuple(str(item.get("title") or "") for item in value.get("left_out") or ()),
        )

    def quotes_of(self, n: int) -> list[str]:
        """The sentences of source `n` that support the answer."""
        return [item.quote for item in self.supported_by(n) if item.quote]

    def supported_by(self, n: int) -> list[Sentence]:
        """The sentences of the answer that source `n` supports."""
        return [item for item in self.sentences if item.is_supported and item.n == n]


def _span(value: Any) -> Span:
    start, end = value
    return int(start), int(end)


@dataclass(frozen=True)
class Feedback:
    """What a person thought of an answer: "up" or "down", and why."""

    rating: str
    comment: str = ""

    @classmethod
    def from_json(cls, value: Any) -> "Feedback | None":
        """From the API's `feedback`, which may be missing."""
        if not isinstance(value, Mapping) or value.get("rating") not in ("up", "down"):
            return None
        return cls(str(value["rating"]), str(value.get("comment") or ""))


class TurnState(StrEnum):
    """How far the answer to a question has come."""

    WAITING = "waiting"  # nothing of the answer has arrived
    STREAMING = "streaming"
    DONE = "done"
    STOPPED = "stopped"  # by the person, or (read back from the server) in any way before its end
    UNFINISHED = "unfinished"  # the server has no end of it: it was killed, or somebody else's answer is being made
    FAILED = "failed"


@dataclass
class Turn:
    """A question with what there is of its answer. `sources` is None until the server has named them.

    `is_accepted`: the server has taken the question, so that it keeps (or will keep) this turn too. `position`: place
    in the queue while it waits. `statistics`: what the engine did, under the API's names. `model`: which one answered.
    `key`: the turn's own in this process.
    """

    question: str
    answer: str = ""
    sources: list[Source] | None = None
    state: TurnState = TurnState.WAITING
    error: str = ""
    error_code: str = ""
    is_accepted: bool = False
    grounding: Grounding | None = None
    finish_reason: str = ""
    statistics: Mapping[str, float] = field(default_factory=dict)
    model: str = ""
    feedback: Feedback | None = None
    position: int | None = None
    key: int = field(default_factory=itertools.count().__next__)

    @property
    def is_open(self) -> bool:
        """Whether more of the answer may still come."""
        return self.state in (TurnState.WAITING, TurnState.STREAMING)

    @property
    def not_found(self) -> bool:
        """Whether the documents do not hold the answer, so that the sources are only what comes nearest."""
        return self.grounding is not None and self.grounding.state == "not_found"

    @property
    def can_continue(self) -> bool:
        """Whether the answer ended before it was whole, by its length, the person or the end of the server."""
        is_stopped = self.state in (TurnState.STOPPED, TurnState.UNFINISHED)
        is_cut = is_stopped or (self.state is TurnState.DONE and self.finish_reason == "length")
        is_broken_off = self.state is TurnState.FAILED and self.is_accepted
        return bool(self.answer) and (is_cut or is_broken_off)

    @classmethod
    def from_json(cls, value: Mapping[str, Any]) -> "Turn":
        """From an item of the API's `turns`."""
        return cls(
            question=str(value["question"]),
            answer=str(value.get("answer") or ""),
            sources=[Source.from_json(source) for source in value.get("sources") or []],
            state=_state_of(value),
            is_accepted=True,
            grounding=Grounding.from_json(value.get("grounding")),
            finish_reason=str(value.get("finish_reason") or ""),
            statistics=numbers(value.get("statistics")),
            model=str((value.get("statistics") or {}).get("model") or ""),
            feedback=Feedback.from_json(value.get("feedback")),
        )


def _state_of(value: Mapping[str, Any]) -> TurnState:
    if not value.get("interrupted"):
        return TurnState.DONE
    return TurnState.STOPPED if value.get("finish_reason") else TurnState.UNFINISHED


def numbers(value: Any) -> dict[str, float]:
    """The numbers of a JSON object, which may be missing."""
    if not isinstance(value, Mapping):
        return {}
    return {str(key): item for key, item in value.items() if isinstance(item, int | float)}


@dataclass
class Conversation:
    """The turns of one browser tab, oldest first, under the id the server keeps them by."""

    session_id: str
    turns: list[Turn] = field(default_factory=list)

    @property
    def last(self) -> Turn | None:
        """The newest turn, or None before the first question."""
        return self.turns[-1] if self.turns else None
