"""A turn while it is being answered: what is known of it, what it said so far, and how it ends."""

import threading
from dataclasses import dataclass, field
from typing import Any

from app.answerer import Answerer
from app.answering import Answering
from app.chat_schema import ChatOptions
from app.continuing import answering_of, options_of, was_unchecked, without_last_mark
from app.history import FinishReason, Turn, TurnResult, new_turn_id
from app.privacy import note_private
from app.turn_prompt import TurnDraft
from app.turn_statistics import AnswerRecord


@dataclass(frozen=True)
class Choice:
    """Who answers a turn, and whether the turn is private."""

    answerer: Answerer
    private: bool = False


@dataclass
class OpenTurn:
    """A turn that is being answered; holds its conversation's lock.

    `answer` is what comes now; where the turn goes on, it `began` with the words of `continues`.
    """

    user: str
    session_id: str
    question: str
    options: ChatOptions
    answerer: Answerer
    private: bool = False
    index: int | None = None
    turn_id: str = field(default_factory=new_turn_id)
    draft: TurnDraft | None = None
    continues: Turn | None = None
    answering: Answering | None = field(init=False)
    began: str = ""
    answer: list[str] = field(default_factory=list)
    record: AnswerRecord = field(default_factory=AnswerRecord)
    num_turns_left_out: int = 0
    grounding: dict[str, Any] | None = None
    refused: bool = False
    finish_reason: FinishReason = "abort"
    storing: threading.Lock = field(default_factory=threading.Lock)
    """Held by who writes it down; `has_ended` tells that its end has been."""
    has_ended: bool = False

    def __post_init__(self) -> None:
        self.answering = self.answerer.answering

    def take(self, choice: Choice) -> None:
        """It is answered so."""
        self.answerer, self.private = choice.answerer, choice.private
        self.answering = self.answerer.answering
        if self.private:
            note_private()

    @property
    def settings(self) -> dict[str, Any]:
        """What its answer is made with, as it is kept with the turn.

        How it is checked is its own, where it began under another setting than the server's.
        """
        made = {**self.answerer.settings, **self.options.as_settings()}
        if "model" in self.answerer.settings:
            made["model"] = self.record.model or self.answerer.settings["model"]
        if "grounding" in self.answerer.settings:
            made["grounding"] = self.answering.mode if self.answering else "off"
        return {**made, "private": True} if self.private else made

    @property
    def key(self) -> tuple[str, str]:
        """The conversation that it belongs to."""
        return (self.user, self.session_id)

    @property
    def said(self) -> str:
        """The answer as far as it has come."""
        return self.began + "".join(self.answer)

    @property
    def is_unchanged(self) -> bool:
        """It went on with an answer and failed before a new word: what is stored of it holds."""
        return self.continues is not None and not self.answer and self.finish_reason in ("abort", "error")

    def go_on(self, turn: Turn) -> None:
        """This is `turn` again, whose answer was cut or stopped."""
        self.continues, self.question, self.index, self.turn_id = turn, turn.question, turn.index, turn.turn_id
        self.options = options_of(turn, self.options)
        if not turn.answer.strip():
            return
        self.answering = answering_of(turn, self.answering)
        is_marked = turn.finish_reason == "length" and self.answering is not None and not was_unchecked(turn)
        self.began = without_last_mark(turn.answer) if is_marked else turn.answer

    @property
    def statistics(self) -> dict[str, Any]:
        """What is known of it so far, as `TurnStatistics` has it."""
        draft = self.draft or TurnDraft(prompt="")
        return self.record.statistics(
            num_passages=len(draft.sources),
            num_passages_left_out=len(draft.left_out),
            num_turns_left_out=self.num_turns_left_out,
        ).model_dump()

    @property
    def result(self) -> TurnResult:
        """What is known of it so far, except how many tokens it has."""
        draft = self.draft or TurnDraft(prompt=self.question)
        return TurnResult(
            prompt=draft.prompt,
            answer=self.said,
            sources=draft.sources,
            placed=draft.placed,
            interrupted=self.finish_reason in ("abort", "error"),
            grounding=self.grounding or (self.continues.grounding if self.continues else None),
            finish_reason=self.finish_reason,
            statistics=self.statistics,
            settings=self.settings,
        )

    def complete(self) -> None:
        """The answer has come to its end."""
        if self.continues is not None and not self.answer:
            self.began = self.continues.answer
        sentences = (self.grounding or {}).get("sentences") or [{}]
        # A quotation is whole, whatever became of the model's words.
        self.finish_reason = "length" if self.record.was_cut and sentences[-1].get("origin") != "quote" else "stop"
