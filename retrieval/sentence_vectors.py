"""The sentences of a passage as vectors of their own, beside the one vector of the whole.

A question is mostly answered by one sentence, whose meaning is lost in the mean over a passage, or beyond the window of
the model. So a passage is as near to a query as its vector and its best sentence are on average: where the passage is
about what is asked, and a sentence says it. Only passages that a search has found are looked at, so the vectors need no
index; they are kept in 8 bits, which change a cosine by less than 0.005.

    kept for a passage    [sentences, dimension] of int8, row after row; each row is scaled to use the whole range, and
                          what it was scaled by does not matter, as vectors are of length one
"""

from collections.abc import Callable, Mapping, Sequence

import numpy as np

from retrieval.embeddings import PassageEmbedder, Vectors
from retrieval.sentences import split_sentences

# A shorter one is a mark or a word, and means too little for a vector of its own.
_LEAST_CHARS = 16

ClosestSentences = Callable[[Sequence[int], Vectors], Mapping[int, float]]
"""Rows, and a query's vector -> the cosine of the best sentence of each row; rows whose sentences have none lack."""


def embedded_sentences(text: str) -> list[str]:
    """The sentences of an indexed text that get vectors; none where it has but one, which the text's own stands for."""
    sentences = [sentence.text for sentence in split_sentences(text) if len(sentence.text) >= _LEAST_CHARS]
    return sentences if len(sentences) > 1 else []


def embed_sentences(embedder: PassageEmbedder, texts: Sequence[str]) -> list[bytes | None]:
    """For each indexed text the vectors of its sentences as they are kept; None where it has none."""
    sentences = [embedded_sentences(text) for text in texts]
    distinct = list(dict.fromkeys(sentence for some in sentences for sentence in some))
    coded = dict(zip(distinct, encoded(embedder.embed_passages(distinct)), strict=True)) if distinct else {}
    return [b"".join(coded[sentence] for sentence in some) or None for some in sentences]


def encoded(vectors: Vectors) -> list[bytes]:
    """Each of `vectors` [n, dimension] in 8 bits."""
    largest = np.abs(vectors).max(axis=1, keepdims=True)
    codes = np.rint(vectors * (127 / np.where(largest > 0, largest, 1))).astype(np.int8)
    return [code.tobytes() for code in codes]


def closest_sentences(query: Vectors, kept: Mapping[int, bytes]) -> dict[int, float]:
    """The highest cosine of `query` [dimension], of length one, with a sentence of each row in `kept`."""
    if not kept:
        return {}
    codes = np.frombuffer(b"".join(kept.values()), dtype=np.int8).reshape(-1, len(query)).astype(np.float32)
    lengths = np.sqrt(np.einsum("ij,ij->i", codes, codes))
    cosines = codes @ query / np.maximum(lengths, 1)
    counts = np.array([len(sentences) // len(query) for sentences in kept.values()])
    best = np.maximum.reduceat(cosines, np.cumsum(counts) - counts)
    return dict(zip(kept, best.tolist(), strict=True))
