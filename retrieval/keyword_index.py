"""BM25 over chunks: an immutable bm25s index, row for row like the vector index. Its texts are chosen elsewhere.

bm25s scores eagerly and cannot be added to, so an updated index is built anew from stored term ids; only new texts are
cut into terms again. On disk: .npy and JSON, never pickle.
"""

import json
import logging
import math
import re
from collections.abc import Collection, Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path

import bm25s
import numpy as np
import numpy.typing as npt

from retrieval.language import Languages, languages_of
from retrieval.words import UNSPACED, terms

# bm25s sets its own logger to DEBUG, whatever the program asks for.
logging.getLogger("bm25s").setLevel(logging.WARNING)

K1 = 1.5
B = 0.75

_PIECE = re.compile(rf"[{UNSPACED}]|[^\W\d_]+|\d+|[^\w\s]")

_DIGIT = re.compile(r"\d")

TermIds = npt.NDArray[np.int32]
Mask = npt.NDArray[np.bool_]


@dataclass(frozen=True)
class TextFacts:
    """What is known of each row's text besides its terms: its language and its size in pieces, both [n].

    Pieces are words, figures, punctuation marks and characters of unspaced scripts. A tokenizer makes about a token of
    each or more, so that a text of more pieces than a model reads tokens is cut. A table has many for its length.
    """

    languages: Languages
    sizes: npt.NDArray[np.int32]

    @classmethod
    def of(cls, texts: Sequence[str]) -> "TextFacts":
        return cls(languages_of(texts), np.array([len(_PIECE.findall(text)) for text in texts], dtype=np.int32))

    def updated(self, kept_rows: npt.NDArray[np.int64], new_texts: Sequence[str]) -> "TextFacts":
        new = TextFacts.of(new_texts)
        return TextFacts(
            np.concatenate([self.languages[kept_rows], new.languages]),
            np.concatenate([self.sizes[kept_rows], new.sizes]),
        )


class KeywordIndex:
    """`rows` is a term-id array for each chunk, `vocabulary` gives the ids. Build one with `build` or `updated`."""

    def __init__(
        self,
        rows: Sequence[TermIds],
        vocabulary: dict[str, int],
        facts: TextFacts,
        scorer: bm25s.BM25 | None = None,
    ) -> None:
        assert len(rows) == len(facts.languages) == len(facts.sizes), "a row is the same text everywhere"
        self.facts = facts
        self._rows = list(rows)
        self._vocabulary = vocabulary
        # Without a single term there is nothing to score, and bm25s would divide by an average length of zero.
        self._scorer = scorer or (_score_all(self._rows, vocabulary) if any(map(len, self._rows)) else None)

    @classmethod
    def build(cls, texts: Sequence[str]) -> "KeywordIndex":
        return cls((), {}, TextFacts.of(())).updated(np.zeros(0, dtype=np.int64), texts)

    def updated(self, kept_rows: npt.NDArray[np.int64], new_texts: Sequence[str]) -> "KeywordIndex":
        """A new index of the kept rows, in that order, and then the new texts."""
        if len(kept_rows) == len(self._rows) and not new_texts:
            return self
        # The vocabulary starts anew when most rows go, or it would keep the terms of everything ever seen.
        if len(kept_rows) * 2 < len(self._rows):
            return self._restarted(kept_rows, new_texts)
        vocabulary = dict(self._vocabulary)
        rows = [self._rows[row] for row in kept_rows]
        rows += [_term_ids(terms(text), vocabulary) for text in new_texts]
        return KeywordIndex(rows, vocabulary, self.facts.updated(kept_rows, new_texts))

    def _restarted(self, kept_rows: npt.NDArray[np.int64], new_texts: Sequence[str]) -> "KeywordIndex":
        names = list(self._vocabulary)
        vocabulary: dict[str, int] = {}
        rows = [_term_ids([names[term] for term in self._rows[row]], vocabulary) for row in kept_rows]
        rows += [_term_ids(terms(text), vocabulary) for text in new_texts]
        return KeywordIndex(rows, vocabulary, self.facts.updated(kept_rows, new_texts))

    def __len__(self) -> int:
        return len(self._rows)

    def search(
        self, query: str, k: int, mask: Mask | None = None
    ) -> tuple[npt.NDArray[np.int64], npt.NDArray[np.float32]]:
        """Rows and scores of the `k` best, best first; ties by row. Only rows that share a term with the query.

        `mask` [rows] says which rows may be found.
        """
        scores = self.scores(query)
        if mask is not None:
            scores = np.where(mask, scores, 0)
        hits = np.flatnonzero(scores > 0)
        if len(hits) > k:
            # Every row that ties with the k-th stays in until the sort has put ties in order.
            threshold = np.partition(scores[hits], len(hits) - k)[len(hits) - k]
            hits = hits[scores[hits] >= threshold]
        hits = hits[np.lexsort((hits, -scores[hits]))][:k]
        return hits, scores[hits]

    def scores(self, query: str) -> npt.NDArray[np.float32]:
        """The BM25 score of every row, 0 where no term is shared."""
        known = [self._vocabulary[term] for term in terms(query) if term in self._vocabulary]
        if self._scorer is None or not known:
            return np.zeros(len(self._rows), dtype=np.float32)
        scores: npt.NDArray[np.float32] = self._scorer.get_scores_from_ids(known)
        return scores

    def term_weights(self, wanted: Collection[str]) -> dict[str, float]:
        """Inverse document frequencies, ln(1 + (N - n + 0.5) / (n + 0.5)) as in Lucene, n being 1 at least.

        In a small store a term that no chunk holds would else outweigh all that some do: in three chunks, twice over.
        """
        total = len(self._rows)
        frequencies = (
            np.diff(self._scorer.scores["indptr"]) if self._scorer is not None else np.zeros(0, dtype=np.int64)
        )

        def weight(term: str) -> float:
            row = self._vocabulary.get(term, -1)
            frequency = max(1, int(frequencies[row])) if 0 <= row < len(frequencies) else 1
            return math.log1p(max(0.0, total - frequency + 0.5) / (frequency + 0.5))

        return {term: weight(term) for term in wanted}

    def coverage(self, query: str, rows: Iterable[int]) -> float:
        """The largest share of the query's terms that one of the rows has, each weighed by `term_weights`; from 0 to 1.

        Terms that no row of the index has count, as what is asked of them is surely not found by words.
        """
        weights = self.term_weights(frozenset(terms(query)))
        by_id = {self._vocabulary[term]: weight for term, weight in weights.items() if term in self._vocabulary}
        found = (sum(by_id[term] for term in by_id.keys() & set(self._rows[row].tolist())) for row in rows)
        return max(found, default=0.0) / sum(weights.values()) if by_id else 0.0

    def missed_figures(self, query: str, rows: Iterable[int], hits: Iterable[int]) -> float:
        """How much of what `hits` have of the query, by weight, are figures and identifiers that none of `rows` has."""
        weights = self.term_weights(frozenset(terms(query)))
        if not any(_DIGIT.search(term) for term in weights):
            return 0.0
        in_hits, in_rows = ({int(term) for row in some for term in self._rows[row]} for some in (hits, rows))
        had = {term: weight for term, weight in weights.items() if self._vocabulary.get(term, -1) in in_hits}
        missed = (
            weight for term, weight in had.items() if _DIGIT.search(term) and self._vocabulary[term] not in in_rows
        )
        return sum(missed) / sum(had.values()) if had else 0.0

    def save(self, folder: Path) -> None:
        """Writes the index into an existing folder."""
        lengths = np.array([len(row) for row in self._rows], dtype=np.int64)
        flat = np.concatenate(self._rows) if self._rows else np.zeros(0, dtype=np.int32)
        np.save(folder / "terms.npy", flat.astype(np.int32), allow_pickle=False)
        np.save(folder / "lengths.npy", lengths, allow_pickle=False)
        np.save(folder / "languages.npy", self.facts.languages, allow_pickle=False)
        np.save(folder / "sizes.npy", self.facts.sizes, allow_pickle=False)
        (folder / "vocabulary.json").write_text(json.dumps(list(self._vocabulary), ensure_ascii=True), encoding="ascii")
        if self._scorer is not None:
            self._scorer.save(folder / "bm25", show_progress=False)

    @classmethod
    def load(cls, folder: Path) -> "KeywordIndex":
        """Reads what `save` wrote. Raises OSError, ValueError or KeyError where that is not whole."""
        flat = np.load(folder / "terms.npy", allow_pickle=False)
        lengths = np.load(folder / "lengths.npy", allow_pickle=False)
        if int(lengths.sum()) != len(flat):
            raise ValueError(f"{folder}: {len(flat)} terms, {int(lengths.sum())} expected")
        facts = TextFacts(
            np.load(folder / "languages.npy", allow_pickle=False), np.load(folder / "sizes.npy", allow_pickle=False)
        )
        rows = np.split(flat, np.cumsum(lengths)[:-1]) if len(lengths) else []
        names = json.loads((folder / "vocabulary.json").read_text(encoding="ascii"))
        vocabulary = {name: index for index, name in enumerate(names)}
        scorer = None
        if len(flat):
            scorer = bm25s.BM25.load(
                folder / "bm25", load_vocab=False, mmap=False, allow_pickle=False, show_progress=False
            )
        return cls(rows, vocabulary, facts, scorer)


def _term_ids(row: Sequence[str], vocabulary: dict[str, int]) -> TermIds:
    return np.array([vocabulary.setdefault(term, len(vocabulary)) for term in row], dtype=np.int32)


def _score_all(rows: Sequence[TermIds], vocabulary: dict[str, int]) -> bm25s.BM25:
    scorer = bm25s.BM25(k1=K1, b=B)
    scorer.index(([row.tolist() for row in rows], dict(vocabulary)), show_progress=False)
    return scorer
