"""What of a conversation depends on the model that answers: its chains, its room, and how far it is trusted."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

from langchain_core.runnables import Runnable

from app.answering import Answering
from app.chains import MakeAnswer, State
from app.turn_prompt import (
    CountTokens,
    PassageRule,
    TurnDraft,
    Widen,
    in_their_sections,
    write_excerpt_turn,
    write_turn,
)


@dataclass(frozen=True)
class ModelRoom:
    """How many tokens a model takes, and what of them is spoken for."""

    max_model_len: int
    max_tokens: int
    system_tokens: int

    @property
    def prompt_tokens(self) -> int:
        """Tokens that system prompt, history and question may take together."""
        return self.max_model_len - self.max_tokens


@dataclass(frozen=True)
class Answerer:
    """A model, or a model and those that step in for it, as a conversation uses it.

    `is_weak` tells of a model that stepped in whether its answers are to be held to the sources; None: none would be.
    `settings` are those that answers are made with, where a turn's options name no others: kept with turns.
    """

    retrieval: Runnable[State, State]
    answer: MakeAnswer
    room: ModelRoom
    count_tokens: CountTokens
    answering: Answering | None = None
    is_weak: Callable[[str], bool] | None = None
    settings: Mapping[str, Any] = field(default_factory=dict)


def turn_writer(
    rule: PassageRule, count_tokens: CountTokens, answering: Answering | None = None, widen: Widen | None = None
) -> Callable[[State], TurnDraft]:
    """`write_turn` for the retrieval chain, over the state that a ConversationChain makes.

    With `widen`, a model that reads whole passages reads them in their sections.
    """

    def write(state: State) -> TurnDraft:
        passages = [passage for passage in state["passages"] if passage.score >= rule.min_score]
        is_checked = answering is not None and state["k"] > 0
        if answering is not None and is_checked and answering.mode == "strict":
            return write_excerpt_turn(
                state["input"],
                passages,
                answering.rank(state["queries"], passages),
                numbers=state["numbers"],
                next_number=state["next_number"],
                max_tokens=state["passage_tokens"],
                count_tokens=count_tokens,
            )
        if widen is not None:
            passages = in_their_sections(passages, state["known"], state["passage_tokens"], widen, count_tokens)
        draft = write_turn(
            state["input"],
            passages,
            known=state["known"],
            next_number=state["next_number"],
            max_tokens=state["passage_tokens"],
            count_tokens=count_tokens,
        )
        if answering is not None and is_checked:
            draft.ranking = answering.rank(state["queries"], draft.passages)
        return draft

    return write
