import math
from collections import Counter
from pathlib import Path

import numpy as np
import pytest

from retrieval.keyword_index import K1, B, KeywordIndex
from retrieval.words import terms

TEXTS = [
    "The H100 has 80 GB of HBM3 memory",
    "The A100 has 40 or 80 GB of memory",
    "Paged attention stores the KV cache in blocks of 16 tokens, and a block table finds the blocks",
    "今天天气很好",
    "",
    "memory memory memory",
]


def reference(texts: list[str], query: str) -> list[float]:
    """BM25 as Lucene defines it, by the book."""
    documents = [Counter(terms(text)) for text in texts]
    lengths = [sum(document.values()) for document in documents]
    mean = sum(lengths) / len(lengths)
    scores = []
    for document, length in zip(documents, lengths, strict=True):
        score = 0.0
        for term in terms(query):
            df = sum(term in other for other in documents)
            idf = math.log(1 + (len(texts) - df + 0.5) / (df + 0.5))
            tf = document[term]
            score += idf * tf / (tf + K1 * (1 - B + B * length / mean))
        scores.append(score)
    return scores


@pytest.mark.parametrize("query", ["memory of the H100", "blocks", "天气", "80 GB memory memory", "A100 tokens"])
def test_scores_are_bm25_by_the_book(query: str) -> None:
    assert KeywordIndex.build(TEXTS).scores(query) == pytest.approx(reference(TEXTS, query), abs=1e-5)


def test_only_rows_that_share_a_term_are_found_best_first() -> None:
    index = KeywordIndex.build(TEXTS)
    rows, scores = index.search("memory", 10)
    assert rows.tolist() == [5, 0, 1] or rows.tolist() == [5, 1, 0]
    assert (np.diff(scores) <= 0).all()
    assert index.search("nothing shared", 10)[0].tolist() == []
    assert index.search("the of and", 10)[0].tolist() == []


def test_ties_are_ordered_by_row_also_at_the_cut() -> None:
    index = KeywordIndex.build(["equal words"] * 9 + ["different"])
    assert index.search("equal", 4)[0].tolist() == [0, 1, 2, 3]


def test_a_mask_hides_rows_without_changing_scores() -> None:
    index = KeywordIndex.build(TEXTS)
    mask = np.array([True, False, True, True, True, False])
    rows, scores = index.search("memory", 10, mask)
    assert rows.tolist() == [0]
    assert scores.tolist() == [index.scores("memory")[0]]


def test_an_updated_index_equals_one_built_from_the_same_texts() -> None:
    old = KeywordIndex.build(TEXTS)
    kept = [0, 2, 3, 5]
    new = old.updated(np.array(kept), ["A new text about memory", "天气 H100"])
    expected = KeywordIndex.build([TEXTS[row] for row in kept] + ["A new text about memory", "天气 H100"])
    few = old.updated(np.array([1]), ["blocks"])
    for query in ["memory", "天气", "H100 blocks", "A100"]:
        assert new.scores(query) == pytest.approx(expected.scores(query), abs=1e-6)
        assert few.scores(query) == pytest.approx(KeywordIndex.build([TEXTS[1], "blocks"]).scores(query), abs=1e-6)
    assert len(old) == 6


@pytest.mark.parametrize("texts", [[], [""], ["the"], ["", "of"]])
def test_an_index_without_terms_finds_nothing(texts: list[str]) -> None:
    index = KeywordIndex.build(texts)
    assert index.search("the memory", 3)[0].tolist() == []
    assert index.updated(np.arange(len(texts)), ["memory"]).search("memory", 3)[0].tolist() == [len(texts)]


@pytest.mark.parametrize("texts", [TEXTS, [], ["the"]])
def test_saved_and_loaded_is_the_same_and_can_be_updated(texts: list[str], tmp_path: Path) -> None:
    index = KeywordIndex.build(texts)
    index.save(tmp_path)
    loaded = KeywordIndex.load(tmp_path)
    assert len(loaded) == len(texts)
    assert loaded.scores("memory H100").tolist() == index.scores("memory H100").tolist()
    updated = loaded.updated(np.arange(len(texts)), ["H100 memory"])
    assert (
        updated.scores("memory H100").tolist()
        == KeywordIndex.build([*texts, "H100 memory"]).scores("memory H100").tolist()
    )
    assert not [path for path in tmp_path.rglob("*") if path.is_file() and path.suffix not in (".npy", ".json")]


def test_a_damaged_file_is_refused(tmp_path: Path) -> None:
    KeywordIndex.build(TEXTS).save(tmp_path)
    np.save(tmp_path / "lengths.npy", np.array([1, 2, 3]))
    with pytest.raises(ValueError, match="terms"):
        KeywordIndex.load(tmp_path)


def test_a_term_weighs_more_the_fewer_chunks_hold_it():
    index = KeywordIndex.build(["red apple", "red pear", "red red plum"])
    weights = index.term_weights({"red", "plum", "unheard"})
    assert weights == {
        "red": pytest.approx(math.log(1 + 0.5 / 3.5)),
        "plum": pytest.approx(math.log(1 + 2.5 / 1.5)),
        "unheard": pytest.approx(math.log(1 + 2.5 / 1.5)),
    }
    assert KeywordIndex.build([]).term_weights({"red"}) == {"red": 0.0}
