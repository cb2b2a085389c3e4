"""Reranking: a model that reads question and passage together puts the best of what was found in order.

A sentence-transformers `CrossEncoder` in a local folder (Nogueira & Cho 2019, arXiv 1901.04085), or a server with NIM's
`/v1/ranking`. Optional, and costly: every passage is read once for every question.
"""

import logging
import threading
from collections.abc import Sequence
from pathlib import Path
from typing import Any, Protocol

import httpx
import numpy as np
import numpy.typing as npt

from retrieval.embeddings import encodable
from retrieval.errors import RerankerError
from retrieval.model_server import ask

DEPTH = 30
"""How many passages are read for a question, at the least."""

_TIMEOUT_S = 60.0
_log = logging.getLogger(__name__)


class Reranker(Protocol):
    """Scores passages for one question; larger is better, and only comparable within the call."""

    @property
    def name(self) -> str: ...
    def scores(self, query: str, passages: Sequence[str]) -> npt.NDArray[np.float64]: ...


class CrossEncoderReranker:
    """A cross-encoder in a folder. Thread-safe. Raises RerankerError when the folder is not such a model."""

    def __init__(self, model_path: Path, *, device: str = "auto", batch_size: int = 16) -> None:
        from sentence_transformers import CrossEncoder  # seconds of imports

        self._path = Path(model_path)
        self._batch_size = batch_size
        self._lock = threading.Lock()
        try:
            self._model: Any = CrossEncoder(
                str(self._path),
                num_labels=1,
                device=None if device == "auto" else device,
                local_files_only=True,
                model_kwargs={"dtype": "float32"},
            )
        except Exception as error:  # each library beneath has its own kind
            raise RerankerError(
                f"cannot load the reranker in {self._path}: {error}; give a folder with a sentence-transformers "
                "CrossEncoder"
            ) from error

    @property
    def name(self) -> str:
        """The folder's name."""
        return self._path.resolve().name

    def scores(self, query: str, passages: Sequence[str]) -> npt.NDArray[np.float64]:
        """The model's scores [len(passages)]."""
        pairs = [(encodable(query), encodable(passage)) for passage in passages]
        with self._lock:
            scores = self._model.predict(pairs, batch_size=self._batch_size, show_progress_bar=False)
        return _checked(scores, len(passages), str(self._path))


class RankingClient:
    """The model `model` behind NIM's ranking API at `url` (…/v1). Thread-safe.

    Protocol: https://docs.nvidia.com/nim/nemo-retriever/text-reranking/latest/reference.html
    """

    def __init__(self, model: str, url: str, *, api_key: str | None = None) -> None:
        self._model = model
        self._url = url.rstrip("/") + "/ranking"
        headers = {"Authorization": f"Bearer {api_key}"} if api_key else {}
        self._http = httpx.Client(headers=headers, timeout=_TIMEOUT_S)

    @property
    def name(self) -> str:
        return self._model

    def scores(self, query: str, passages: Sequence[str]) -> npt.NDArray[np.float64]:
        """The server's logits [len(passages)]. Raises RerankerError where it does not answer as the API does."""
        body = {
            "model": self._model,
            "query": {"text": encodable(query)},
            "passages": [{"text": encodable(passage)} for passage in passages],
            "truncate": "END",
        }

        def read(answer: Any) -> npt.NDArray[np.float64]:
            by_index = {int(entry["index"]): float(entry["logit"]) for entry in answer["rankings"]}
            return _checked([by_index[index] for index in range(len(passages))], len(passages), self._url)

        return ask(self._http, self._url, body, read, RerankerError, "reranker_url")


def rerank(reranker: Reranker, query: str, passages: Sequence[str]) -> list[tuple[int, float]]:
    """Indexes of `passages` with scores in 0..1, best first; ties keep their order.

    Scores are the logistic function of the model's, so they order these passages and no others. A reranker that fails
    is logged and leaves the order as it was: a search that was good enough without it is not lost.
    """
    if not passages:
        return []
    try:
        logits = reranker.scores(query, passages)
    except RerankerError as error:
        _log.warning("not reranked: %s", error)
        return [(index, 1.0 - index / len(passages)) for index in range(len(passages))]
    scores = 1 / (1 + np.exp(-np.clip(logits, -60, 60)))
    order = np.argsort(-logits, kind="stable")
    return [(int(index), float(scores[index])) for index in order]


def _checked(scores: npt.ArrayLike, expected: int, source: str) -> npt.NDArray[np.float64]:
    values = np.asarray(scores, dtype=np.float64)
    if values.shape != (expected,) or not np.isfinite(values).all():
        raise RerankerError(f"{source} gave scores of shape {list(values.shape)} for {expected} passages, or NaN")
    return values
