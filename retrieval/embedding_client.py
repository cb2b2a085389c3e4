"""An embedder behind any OpenAI-compatible `/v1/embeddings` (NIM, vLLM, Ollama, llama.cpp, OpenAI itself).

Protocol: https://platform.openai.com/docs/api-reference/embeddings
"""

import hashlib
from collections.abc import Sequence
from typing import Any

import httpx
import numpy as np

from retrieval.embeddings import Vectors, encodable, unit_vectors
from retrieval.errors import EmbedderError
from retrieval.model_server import ask

_TIMEOUT_S = 60.0


class EmbeddingClient:
    """The model `model` at `url` (…/v1). Thread-safe. Asks for one vector at once, to learn the dimension.

    The protocol tells neither the model's languages nor its window: texts of up to `max_tokens` are sent, by an upper
    estimate of their length. Raises EmbedderError for a server that does not answer, refuses, or answers otherwise
    than the protocol says.
    """

    def __init__(
        self, model: str, url: str, *, api_key: str | None = None, batch_size: int = 32, max_tokens: int = 512
    ) -> None:
        self._model = model
        self._url = url.rstrip("/") + "/embeddings"
        self._batch_size = batch_size
        self._max_tokens = max_tokens
        headers = {"Authorization": f"Bearer {api_key}"} if api_key else {}
        self._http = httpx.Client(headers=headers, timeout=_TIMEOUT_S)
        self._dimension = len(self._request(["dimension"])[0])

    @property
    def name(self) -> str:
        return self._model

    @property
    def fingerprint(self) -> str:
        """Of name and dimension: the same model may move to another address."""
        return hashlib.sha256(f"openai:{self._model}:{self._dimension}".encode()).hexdigest()

    @property
    def dimension(self) -> int:
        return self._dimension

    @property
    def max_tokens(self) -> int:
        return self._max_tokens

    @property
    def languages(self) -> frozenset[str] | None:
        """Unknown: the protocol does not tell."""
        return None

    def count_tokens(self, text: str) -> int:
        """An upper estimate: a token for every three bytes."""
        return len(text.encode("utf-8", "replace")) // 3 + 1

    def embed_passages(self, texts: Sequence[str]) -> Vectors:
        """Vectors [len(texts), dimension], `batch_size` texts a request."""
        rows: list[list[float]] = []
        for start in range(0, len(texts), self._batch_size):
            rows += self._request(texts[start : start + self._batch_size])
        return unit_vectors(rows, self._dimension) if rows else np.zeros((0, self._dimension), dtype=np.float32)

    def embed_query(self, text: str) -> Vectors:
        """The vector [dimension] of one query."""
        vector: Vectors = self.embed_passages([text])[0]
        return vector

    def _request(self, texts: Sequence[str]) -> list[list[float]]:
        # Servers refuse an empty input; a blank stands for it.
        body = {"model": self._model, "input": [encodable(text) or " " for text in texts], "encoding_format": "float"}
        return ask(
            self._http, self._url, body, lambda answer: _vectors(answer, len(texts)), EmbedderError, "embedding_url"
        )


def _vectors(answer: Any, expected: int) -> list[list[float]]:
    entries = sorted(answer["data"], key=lambda entry: int(entry["index"]))
    rows = [[float(value) for value in entry["embedding"]] for entry in entries]
    if len(rows) != expected or any(not row or len(row) != len(rows[0]) for row in rows):
        raise ValueError(f"{len(rows)} vectors of lengths {sorted({len(row) for row in rows})} for {expected} texts")
    return rows
