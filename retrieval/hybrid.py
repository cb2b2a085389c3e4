"""One search over both indexes: nearest vectors and best keyword matches of every form of the query, fused.

By meaning a text is as near as its vector and its best sentence are on average (`retrieval/sentence_vectors.py`).

Each leg weighs as much as it can know. A vector says little of a text in a language that its model was not trained on,
and nothing of the part of a text that the model did not read, where sentences have no vectors of their own. Words say
little where no text has what is asked for in these words, and vectors little of numbers and identifiers. The share of a
text, or of a question, that a leg knows counts by its square root: half of it tells more than half of what it is about.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from itertools import islice

import numpy as np
import numpy.typing as npt

from retrieval.embeddings import PassageEmbedder, Vectors
from retrieval.fusion import Scores, best, fuse, min_max
from retrieval.keyword_index import KeywordIndex, TextFacts
from retrieval.language import foreign, language_of, uses_latin_letters
from retrieval.sentence_vectors import ClosestSentences
from retrieval.vector_index import AnyVectorIndex, Mask

# How far down each list is read before fusing. Below, scaled scores are near 0 and change no order at the top.
DEPTH = 100
# How many of the best hits of a leg are looked at for what of the query they have.
_GOOD_HITS = 10
# What a leg counts that knows nothing: it orders what the other does not tell apart, and changes no other order.
_LEAST_WEIGHT = 1e-6


@dataclass(frozen=True)
class Reach:
    """What an embedder's vectors can stand for: texts in these languages (None: any), up to so many tokens."""

    languages: frozenset[str] | None = None
    max_tokens: int | None = None

    @classmethod
    def of(cls, embedder: PassageEmbedder) -> "Reach":
        return cls(embedder.languages, embedder.max_tokens)


@dataclass(frozen=True)
class QueryForm:
    """One wording of what is asked, with its vector [dimension] and its weight among the wordings."""

    text: str
    vector: Vectors
    weight: float = 1.0


def hybrid_search(
    vectors: AnyVectorIndex,
    keywords: KeywordIndex,
    forms: Sequence[QueryForm],
    k: int,
    mask: Mask | None = None,
    reach: Reach = Reach(),
    closest: ClosestSentences | None = None,
) -> list[tuple[int, float]]:
    """The `k` best rows with fused scores in 0..1, best first. Row i means the same chunk in both indexes.

    Where both legs know all that is to be known, they weigh the same. With `closest`, what is near by meaning is put in
    order by its sentences too, and no text is too long for its vectors. `mask` [rows] says which rows may be
    found; as the vector leg ranks every one of them, k hits come whenever k rows are allowed.
    """
    depth = max(k, DEPTH)
    reach = reach if closest is None else replace(reach, max_tokens=None)
    lists: list[Scores] = []
    weights: list[float] = []
    for form in forms:
        by_meaning = _scores(*vectors.search(form.vector, depth, mask))
        by_words = _scores(*keywords.search(form.text, depth, mask))
        near = by_meaning
        if closest is not None:
            near = _with_sentences(form.vector, by_meaning, by_words, vectors, closest)
        lists += [near, _with_absent(by_words, near, depth)]
        shares = (
            vector_share(form.text, by_meaning, keywords.facts, reach)
            * literal_share(form.text, by_meaning, by_words, keywords),
            word_share(form.text, by_words, keywords),
        )
        weights += [form.weight * max(_LEAST_WEIGHT, share) for share in shares]
    return best(fuse(lists, weights), k)


def _with_sentences(
    query: Vectors, by_meaning: Scores, by_words: Scores, vectors: AnyVectorIndex, closest: ClosestSentences
) -> Scores:
    """As many hits as `by_meaning` has, of both legs' hits: the mean of the cosines of the text and its best sentence.

    A text without sentences has its own cosine alone.
    """
    cosines = dict(by_meaning)
    if others := [row for row in by_words if row not in by_meaning]:
        cosines.update(zip(others, (vectors.vectors_of(np.array(others)) @ query).tolist(), strict=True))
    sentences = closest(list(cosines), query)
    means = {row: (cosine + sentences.get(row, cosine)) / 2 for row, cosine in cosines.items()}
    return dict(best(means, len(by_meaning)))


def _with_absent(by_words: Scores, near: Scores, depth: int) -> Scores:
    """The keyword hits and, where they are all that there are, the texts near by meaning that have none of the words.

    Those have a score too, 0. Without it the least of few hits would count as much as no hit.
    """
    if not 0 < len(by_words) < depth:
        return by_words
    return {**dict.fromkeys(near, 0.0), **by_words}


def vector_share(query: str, found: Scores, facts: TextFacts, reach: Reach) -> float:
    """How much vectors can know of what they found, from 0 to 1.

    The mean over the rows, each by its scaled score: 0 for one in another language than the model's, for one longer
    than its window the square root of the share that it read. For a query in letters that the model cannot read it is
    0; one in Latin letters is too short to tell its language by, and the rows that it finds tell it.
    """
    if not found:
        return 0.0
    if reach.languages is not None and not uses_latin_letters(query) and language_of(query) not in reach.languages:
        return 0.0
    rows = np.fromiter(found, dtype=np.int64)
    known = np.ones(len(rows))
    if reach.max_tokens is not None:
        known = np.sqrt(np.minimum(1, reach.max_tokens / np.maximum(1, facts.sizes[rows])))
    if reach.languages is not None:
        known = np.where(foreign(facts.languages[rows], reach.languages), 0, known)
    return float(np.average(known, weights=np.fromiter(min_max(found).values(), dtype=np.float64)))


def literal_share(query: str, by_meaning: Scores, by_words: Scores, keywords: KeywordIndex) -> float:
    """How much of what is asked vectors can have seen, from 0 to 1: all but the figures that their good hits lack.

    A number, a date or an identifier is found or not, and has hardly a meaning: rows of a table that differ by one are
    the same to a vector. Where good keyword hits have it and those of the vectors do not, the vectors did not see it.
    """
    near, worded = (list(islice(found, _GOOD_HITS)) for found in (by_meaning, by_words))
    return 1 - keywords.missed_figures(query, near, worded)


def word_share(query: str, found: Scores, keywords: KeywordIndex) -> float:
    """How much words can know of what is asked, from 0 to 1: the square root of the share that a good hit covers."""
    return math.sqrt(keywords.coverage(query, islice(found, _GOOD_HITS)))


def _scores(rows: npt.NDArray[np.int64], scores: Vectors) -> Scores:
    return dict(zip(rows.tolist(), scores.tolist(), strict=True))
