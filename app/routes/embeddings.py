"""Texts to vectors, by the model that the documents are searched with: OpenAI's route, with NIM's fields.

Formats: https://platform.openai.com/docs/api-reference/embeddings and
https://docs.nvidia.com/nim/nemo-retriever/text-embedding/latest/reference.html
"""

import asyncio
import base64
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, Literal

import numpy as np
from fastapi import APIRouter
from pydantic import ConfigDict, Field

from app.errors import RequestError, UnknownModelError
from app.routes import sse
from app.routes.openai_schema import HARMLESS, CheckedBody, Integer, unsupported
from app.services import Services

if TYPE_CHECKING:
    from retrieval.embeddings import PassageEmbedder, Vectors

# Of one request, as OpenAI has it.
MAX_INPUTS = 2048


class InputTokensError(RequestError):
    """A text that is longer than the embedding model reads."""

    code = "context_length_exceeded"
    status_code = 400

    def __init__(self, field: str, given: int, limit: int) -> None:
        super().__init__(
            f'{field} has {given:,} tokens; this model reads {limit:,}: send shorter texts, or "truncate": "END" to '
            "have what is beyond them left out",
            field=field,
        )


class EmbeddingRequest(CheckedBody):
    """OpenAI's request, with NIM's `input_type` and `truncate`. Other fields are refused by name."""

    model_config = ConfigDict(extra="allow")

    model: str
    input: str | list[str] | list[Integer] | list[list[Integer]]
    encoding_format: Literal["float", "base64"] | None = "float"
    dimensions: Integer | None = Field(None, description="The model's own; it cannot be asked for fewer.")
    input_type: Literal["query", "passage"] | None = Field("passage", description="What the texts are.")
    truncate: Literal["NONE", "END"] | None = Field("NONE", description="END cuts a text that is too long.")

    def check_fields(self) -> None:
        """Raises UnsupportedParameterError for the first field that would have to be ignored."""
        for name, value in (self.model_extra or {}).items():
            if value is not None and name not in HARMLESS:
                raise unsupported(name, type(self).model_fields)

    def texts(self) -> list[str]:
        """The texts to embed. Raises RequestError for token ids, for none, and for an empty one."""
        texts = [self.input] if isinstance(self.input, str) else list(self.input)
        if not 1 <= len(texts) <= MAX_INPUTS:
            raise RequestError(f"input must hold 1 to {MAX_INPUTS:,} texts, not {len(texts):,}", field="input")
        for number, text in enumerate(texts):
            if not isinstance(text, str):
                raise RequestError(
                    "input must be text: token ids belong to another model's vocabulary than ours (langchain-openai "
                    "sends text with check_embedding_ctx_length=False)",
                    field="input",
                )
            if not text.strip():
                place = "input" if isinstance(self.input, str) else f"input[{number}]"
                raise RequestError(f"{place} is empty: leave it out", field=place)
        return [text for text in texts if isinstance(text, str)]


def create_router(services: Services) -> APIRouter:
    """/v1/embeddings."""
    router = APIRouter(prefix="/v1", tags=["OpenAI"], route_class=sse.AbandonableRoute)

    @router.post("/embeddings")
    async def embeddings(body: EmbeddingRequest) -> dict[str, Any]:
        """A vector of length one for each text."""
        services.require_ready()
        if body.model != services.embedding_model_name:
            raise UnknownModelError(body.model, services.embedding_model_name)
        body.check_fields()
        texts, embedder = body.texts(), services.knowledge_base.embedder
        if body.dimensions not in (None, embedder.dimension):
            raise RequestError(
                f"dimensions is {body.dimensions}; this model's vectors have {embedder.dimension}: leave it out",
                field="dimensions",
            )
        num_tokens = await asyncio.to_thread(_count, texts, embedder)
        limit = embedder.max_tokens
        for number, count in enumerate(num_tokens):
            if count > limit and body.truncate != "END":
                raise InputTokensError("input" if isinstance(body.input, str) else f"input[{number}]", count, limit)
        vectors: list[Vectors] = []
        # In batches, so that searches for questions get their turn in between, and a client that leaves stops it.
        size = services.settings.embedding_batch_size
        for start in range(0, len(texts), size):
            vectors += await asyncio.to_thread(_embed, texts[start : start + size], embedder, body.input_type)
        total = sum(min(count, limit) for count in num_tokens)
        return {
            "object": "list",
            "data": [
                {"object": "embedding", "index": index, "embedding": _encoded(vector, body.encoding_format)}
                for index, vector in enumerate(vectors)
            ],
            "model": body.model,
            "usage": {"prompt_tokens": total, "total_tokens": total},
        }

    return router


def _count(texts: Sequence[str], embedder: "PassageEmbedder") -> list[int]:
    return [embedder.count_tokens(text) for text in texts]


def _embed(texts: Sequence[str], embedder: "PassageEmbedder", input_type: str | None) -> "list[Vectors]":
    if input_type == "query":
        return [embedder.embed_query(text) for text in texts]
    return list(embedder.embed_passages(texts))


def _encoded(vector: "Vectors", encoding: str | None) -> list[float] | str:
    """Numbers, or the bytes of little-endian float32 in base64, which OpenAI's client asks for by itself."""
    if encoding == "base64":
        return base64.b64encode(vector.astype(np.dtype("<f4")).tobytes()).decode("ascii")
    numbers: list[float] = vector.tolist()
    return numbers
