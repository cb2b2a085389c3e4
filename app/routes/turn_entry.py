"""A turn of a conversation as clients see it."""

from collections.abc import Sequence
from typing import Any, Literal

from pydantic import BaseModel, ConfigDict, Field

from app.answering import Grounding
from app.chat_schema import Source
from app.turn_statistics import TurnStatistics

TURN_EXAMPLE: dict[str, Any] = {
    "index": 0,
    "turn_id": "5f0c3a1e8b7d4c6f9a2b1c0d3e4f5a6b",
    "question": "What does TTFT measure?",
    "answer": "TTFT measures the time until the first token of the answer arrives. [1]",
    "sources": [
        {
            "n": 1,
            "document_id": "0d8c8a4f2f6e4b0f8f3c5f1a2b3c4d5e",
            "title": "Latency",
            "page": None,
            "heading": "TTFT",
            "text": "TTFT means time to first token. …",
            "score": 0.97,
        }
    ],
    "interrupted": False,
    "created_at": "2026-11-30T12:00:00.000+00:00",
    "finish_reason": "stop",
    "statistics": {
        "time_to_first_token_s": 0.21,
        "tokens_per_s": 31.5,
        "num_prompt_tokens": 310,
        "num_cached_tokens": 64,
        "num_output_tokens": 18,
        "num_draft_tokens": 6,
        "num_accepted_tokens": 4,
        "num_passages": 2,
        "num_passages_left_out": 0,
        "num_turns_left_out": 0,
    },
    "feedback": {"rating": "up", "comment": None},
}


class FeedbackEntry(BaseModel):
    """What the user thinks of an answer."""

    model_config = ConfigDict(from_attributes=True)

    rating: Literal["up", "down"]
    comment: str | None = None


class TurnEntry(BaseModel):
    """A question and what came of it; `interrupted`: stopped or broken, so that `answer` is what was produced."""

    model_config = ConfigDict(from_attributes=True, json_schema_extra={"examples": [TURN_EXAMPLE]})

    index: int
    turn_id: str
    question: str
    answer: str
    sources: Sequence[Source]
    interrupted: bool
    created_at: str
    grounding: Grounding | None = None
    finish_reason: Literal["stop", "length", "abort", "error"] | None = Field(
        default=None,
        description="length: cut by max_tokens; abort: stopped; null for a turn that runs, for one that the end of the "
        "server broke off, and for old ones.",
    )
    statistics: TurnStatistics | None = None
    feedback: FeedbackEntry | None = None
