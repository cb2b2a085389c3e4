"""A fast, deterministic embedder for tests that are not about meaning: a text's vector is the sum of its words'."""

import hashlib
from collections.abc import Sequence

import numpy as np

from retrieval.embeddings import Vectors


class WordEmbedder:
    """Texts that share words are near each other. `calls` counts the texts embedded so far."""

    def __init__(self, name: str = "words", dimension: int = 64) -> None:
        self.name = name
        self.fingerprint = f"{name}-{dimension}"
        self.dimension = dimension
        self.max_tokens = 254
        self.languages: frozenset[str] | None = None
        self.calls = 0

    def count_tokens(self, text: str) -> int:
        return len(text) // 4 + 1

    def embed_passages(self, texts: Sequence[str]) -> Vectors:
        self.calls += len(texts)
        return np.stack([self._vector(text) for text in texts]) if texts else np.zeros((0, self.dimension), np.float32)

    def embed_query(self, text: str) -> Vectors:
        return self._vector(text)

    def _vector(self, text: str) -> Vectors:
        total = np.full(self.dimension, 1e-3, dtype=np.float32)
        for word in text.lower().split():
            seed = int.from_bytes(hashlib.sha256(word.strip(".,:?!#").encode("utf-8", "replace")).digest()[:8])
            total += np.random.default_rng(seed).standard_normal(self.dimension).astype(np.float32)
        return (total / np.linalg.norm(total)).astype(np.float32)
