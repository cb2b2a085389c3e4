"""Passages put in order for a question, by the reranker that searches end with. NIM's route.

Format: https://docs.nvidia.com/nim/nemo-retriever/text-reranking/latest/reference.html
"""

import asyncio
from collections.abc import Sequence
from typing import Any, Literal

from fastapi import APIRouter
from pydantic import BaseModel, ConfigDict, Field

from app.errors import NotFoundError, UnknownModelError
from app.routes import sse
from app.routes.openai_schema import CheckedBody
from app.services import Services

# Of one request, as NIM has it.
MAX_PASSAGES = 512
MAX_CHARS = 100_000


class NoRerankerError(NotFoundError):
    """The server has no model that ranks."""

    code = "no_reranker"

    def __init__(self) -> None:
        super().__init__(
            "this server has no reranker: set `reranker` (RAGSTONE_RERANKER) to a cross-encoder's folder or repo id, "
            "or to the name of a model behind `reranker_url`",
            field="model",
        )


class RankedText(BaseModel):
    """A question or a passage."""

    model_config = ConfigDict(extra="forbid")

    text: str = Field(max_length=MAX_CHARS)


class RankingRequest(CheckedBody):
    """A question, and the passages to put in order. What a passage has beyond the model's window is not read."""

    model_config = ConfigDict(
        extra="forbid",
        json_schema_extra={
            "examples": [
                {
                    "model": "cross-encoder/ms-marco-MiniLM-L6-v2",
                    "query": {"text": "What does TTFT measure?"},
                    "passages": [{"text": "TTFT is the time to the first token."}, {"text": "Bicycles have gears."}],
                }
            ]
        },
    )

    model: str
    query: RankedText
    passages: list[RankedText] = Field(min_length=1, max_length=MAX_PASSAGES)
    truncate: Literal["NONE", "END"] | None = Field(default="END", description="END cuts what is too long.")


def create_router(services: Services) -> APIRouter:
    """/v1/ranking."""
    router = APIRouter(prefix="/v1", tags=["OpenAI"], route_class=sse.AbandonableRoute)

    @router.post("/ranking")
    async def ranking(body: RankingRequest) -> dict[str, Any]:
        """The passages by their places in the request, best first, each with the model's logit."""
        services.require_ready()
        reranker = services.knowledge_base.reranker
        name = services.reranker_model_name
        if reranker is None or name is None:
            raise NoRerankerError
        if body.model != name:
            raise UnknownModelError(body.model, name)
        texts: Sequence[str] = [passage.text for passage in body.passages]
        logits = await asyncio.to_thread(reranker.scores, body.query.text, texts)
        order = sorted(range(len(texts)), key=lambda index: -logits[index])
        return {"rankings": [{"index": index, "logit": float(logits[index])} for index in order]}

    return router
