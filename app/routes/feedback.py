"""Feedback on answers: given, taken back, and exported for evaluation."""

import asyncio
import json
import re
from collections.abc import Sequence
from typing import Annotated, Any, Literal

from fastapi import APIRouter, Query, Response
from pydantic import BaseModel, ConfigDict, Field

from app.errors import NotFoundError
from app.history import Feedback, Turn, require_conversation
from app.routes.access import CurrentUser
from app.routes.attachments import attachment
from app.routes.openai_schema import CheckedBody, Integer
from app.routes.turn_entry import FeedbackEntry
from app.services import Services

MAX_COMMENT_CHARS = 4000
MAX_INDEX = 2**31 - 1
_MARKS = re.compile(r"\s*\[(?:\d+|\?)\]")


class NewFeedback(CheckedBody):
    """What the user thinks of an answer; it takes the place of what was given before."""

    model_config = ConfigDict(
        extra="forbid",
        json_schema_extra={
            "examples": [{"session_id": "my-chat", "index": 0, "rating": "down", "comment": "It is the mean."}]
        },
    )

    session_id: str
    index: Integer = Field(ge=0, le=MAX_INDEX, description="The turn's place in its conversation, from 0.")
    rating: Literal["up", "down"]
    comment: str | None = Field(default=None, max_length=MAX_COMMENT_CHARS)


class RatedAnswer(BaseModel):
    """An answer with feedback. A line of the JSONL export is one of these, and a case for `ragstone eval`.

    `source` holds the titles of the documents that it draws on, `passages` all that it was given. An answer that is
    rated down is no right one: such a line is passed over by `ragstone eval` until the right answer is written into it
    as `expected`.
    """

    model_config = ConfigDict(
        json_schema_extra={
            "examples": [
                {
                    "id": "5f0c3a1e8b7d4c6f9a2b1c0d3e4f5a6b",
                    "question": "What does TTFT measure?",
                    "answer": "TTFT measures the time until the first token.",
                    "source": ["Latency"],
                    "answerable": True,
                    "rating": "up",
                    "comment": None,
                    "passages": [
                        {
                            "n": 1,
                            "document_id": "0d8c8a4f",
                            "title": "Latency",
                            "page": None,
                            "heading": "TTFT",
                            "text": "…",
                        }
                    ],
                    "settings": {"model": "smollm2-135m-instruct", "temperature": 0.0},
                    "session_id": "my-chat",
                    "index": 0,
                    "created_at": "2026-11-30T12:00:00.000+00:00",
                }
            ]
        }
    )

    id: str
    question: str
    answer: str | None
    source: Sequence[str] | None
    answerable: bool
    rating: Literal["up", "down"]
    comment: str | None
    passages: Sequence[dict[str, Any]]
    settings: dict[str, Any] | None
    session_id: str
    index: int
    created_at: str


class RatedAnswers(BaseModel):
    feedback: Sequence[RatedAnswer]


def create_router(services: Services) -> APIRouter:
    """/api/v1/feedback."""
    router = APIRouter(prefix="/api/v1/feedback", tags=["conversations"])
    history = services.history

    @router.put("", response_model=FeedbackEntry)
    async def give(user: CurrentUser, body: NewFeedback) -> FeedbackEntry:
        """Rates an answer, with a comment or without."""
        comment = (body.comment or "").strip() or None
        await _set(user, body.session_id, body.index, Feedback(body.rating, comment))
        return FeedbackEntry(rating=body.rating, comment=comment)

    @router.delete("", status_code=204)
    async def take_back(
        user: CurrentUser,
        session_id: Annotated[str, Query(max_length=1000)],
        index: Annotated[int, Query(ge=0, le=MAX_INDEX)],
    ) -> Response:
        """Takes the rating of an answer away."""
        await _set(user, session_id, index, None)
        return Response(status_code=204)

    @router.get(
        "",
        response_model=RatedAnswers,
        responses={200: {"content": {"application/x-ndjson": {}}, "description": "As `format` says."}},
    )
    async def export(
        user: CurrentUser, format: Annotated[Literal["json", "jsonl"], Query()] = "json"
    ) -> RatedAnswers | Response:
        """All rated answers, oldest first; as JSONL, a file that `ragstone eval` reads."""
        rated = [rated_answer(*entry) for entry in await asyncio.to_thread(history.rated_turns, user)]
        if format == "json":
            return RatedAnswers(feedback=rated)
        lines = "".join(json.dumps(answer.model_dump(exclude_none=True)) + "\n" for answer in rated)
        return attachment(lines.encode(), "feedback.jsonl", "application/x-ndjson")

    async def _set(user: str, session_id: str, index: int, feedback: Feedback | None) -> None:
        await asyncio.to_thread(require_conversation, history, user, session_id)
        if not await asyncio.to_thread(history.set_feedback, user, session_id, index, feedback):
            raise NotFoundError(f"conversation {session_id!r} has no turn {index}", field="index")

    return router


def rated_answer(session_id: str, turn: Turn) -> RatedAnswer:
    """A turn with feedback, as it is exported."""
    assert turn.feedback is not None
    grounding = turn.grounding or {}
    answerable = grounding.get("state") != "not_found"
    cited = {sentence["n"] for sentence in grounding.get("sentences", ()) if sentence["supported"]}
    drawn_on = [source for source in turn.sources if source["n"] in cited] or list(turn.sources[:1])
    titles = list(dict.fromkeys(source["title"] for source in drawn_on)) if answerable else []
    return RatedAnswer(
        id=turn.turn_id,
        question=turn.question,
        answer=_MARKS.sub("", turn.answer).strip() or None,
        source=titles or None,
        answerable=answerable,
        rating=turn.feedback.rating,
        comment=turn.feedback.comment,
        passages=turn.sources,
        settings=turn.settings,
        session_id=session_id,
        index=turn.index,
        created_at=turn.created_at,
    )
