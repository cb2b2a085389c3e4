import sqlite3
from collections.abc import Mapping, Sequence
from pathlib import Path

import numpy as np
import pytest

from retrieval import Embedder, KnowledgeBase
from retrieval.catalog import FILE_NAME, Catalog
from retrieval.embeddings import Vectors, unit_vectors
from retrieval.hybrid import QueryForm, hybrid_search
from retrieval.keyword_index import KeywordIndex
from retrieval.reembed import reembed
from retrieval.sentence_vectors import closest_sentences, embedded_sentences, encoded
from retrieval.vector_index import VectorIndex
from tests.retrieval.word_embedder import WordEmbedder

PAGE = "# Leave\n\nAnnual leave is asked for two weeks ahead. The team approves it in writing."


def sentences_in(catalog: Catalog) -> dict[int, bytes]:
    with catalog.reading() as reader:
        return reader.sentence_vectors(reader.live_chunks()[0].tolist())


def test_the_cosine_of_the_best_sentence_is_told_for_each_row() -> None:
    random = np.random.default_rng(0)
    vectors = unit_vectors(random.standard_normal((7, 384)), 384)
    query = unit_vectors(random.standard_normal((1, 384)), 384)[0]
    codes = encoded(vectors)
    found = closest_sentences(query, {5: b"".join(codes[:4]), 2: b"".join(codes[4:])})
    cosines = vectors @ query
    assert found == pytest.approx({5: float(cosines[:4].max()), 2: float(cosines[4:].max())}, abs=0.005)
    assert closest_sentences(query, {}) == {}
    assert closest_sentences(query, {1: encoded(np.zeros((1, 384), np.float32))[0]}) == {1: 0.0}


def test_a_text_of_one_sentence_is_its_own_sentence() -> None:
    assert embedded_sentences("Annual leave is asked for two weeks ahead.") == []
    assert (
        embedded_sentences("Leave\nAnnual leave is asked for two weeks ahead. Yes.") == []
    )  # the others say too little
    assert embedded_sentences(PAGE) == [
        "Annual leave is asked for two weeks ahead.",
        "The team approves it in writing.",
    ]


def test_of_texts_that_are_equally_near_the_one_whose_sentence_says_it_comes_first() -> None:
    vectors = unit_vectors([[1.0, 1.0, 0.0], [1.0, 0.0, 1.0], [0.0, 1.0, 1.0]], 3)
    index, keywords = VectorIndex(np.arange(3), vectors, 3), KeywordIndex.build(["first", "second", "third"])
    form = QueryForm("unheard", np.array([1.0, 0.0, 0.0], dtype=np.float32))

    def closest(rows: Sequence[int], query: Vectors) -> Mapping[int, float]:
        assert sorted(rows) == [0, 1, 2]
        return {1: 0.9}

    assert [row for row, _ in hybrid_search(index, keywords, [form], 3)] == [0, 1, 2]
    assert [row for row, _ in hybrid_search(index, keywords, [form], 3, closest=closest)] == [1, 0, 2]


def test_what_only_words_found_is_ordered_by_its_sentences_too(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("retrieval.hybrid.DEPTH", 1)
    vectors = unit_vectors([[1.0, 0.2], [0.5, 1.0]], 2)
    index, keywords = VectorIndex(np.arange(2), vectors, 2), KeywordIndex.build(["laptop", "annual leave"])
    form = QueryForm("leave", np.array([1.0, 0.0], dtype=np.float32))
    found = hybrid_search(index, keywords, [form], 1, closest=lambda rows, _: {row: float(row == 1) for row in rows})
    assert found == [(1, 1.0)]  # the best of both legs


def test_a_sentence_within_a_passage_about_other_things_is_found(embedder: Embedder, tmp_path: Path) -> None:
    (tmp_path / "office.md").write_text(
        "The office has two floors and a garden. Coffee is in the kitchen by the lift. Lights go out by themselves. "
        "Whoever adopts a dog may stay away for three days. Meeting rooms are booked at the door. The printer is blue."
    )
    (tmp_path / "animals.md").write_text(
        "Animals at work: dogs, cats and birds. Animals are kept on a lead. Animals drink from the bowls in the hall."
    )
    with KnowledgeBase.open(tmp_path / "store", embedder) as knowledge_base:
        knowledge_base.ingest_paths([tmp_path / "office.md", tmp_path / "animals.md"], relative_to=tmp_path)
        assert len(sentences_in(knowledge_base.catalog)) == 2
        assert knowledge_base.search("Is there time off for someone who takes in a puppy?", 1)[0].source == "office.md"


def test_another_model_brings_its_own_sentences(tmp_path: Path) -> None:
    (tmp_path / "leave.md").write_text(PAGE)
    with KnowledgeBase.open(tmp_path / "store", WordEmbedder()) as knowledge_base:
        knowledge_base.ingest_file(tmp_path / "leave.md")
        assert [len(kept) for kept in sentences_in(knowledge_base.catalog).values()] == [2 * 64]
    other = WordEmbedder("other", 32)
    reembed(tmp_path / "store", other)
    with KnowledgeBase.open(tmp_path / "store", other) as knowledge_base:
        assert [len(kept) for kept in sentences_in(knowledge_base.catalog).values()] == [2 * 32]
        assert knowledge_base.search("annual leave", 1)[0].source.endswith("leave.md")


def test_a_store_from_before_sentences_were_kept_answers_and_gets_them_by_reembedding(tmp_path: Path) -> None:
    (tmp_path / "leave.md").write_text(PAGE)
    with KnowledgeBase.open(tmp_path / "store", WordEmbedder()) as knowledge_base:
        knowledge_base.ingest_file(tmp_path / "leave.md")
    with sqlite3.connect(tmp_path / "store" / FILE_NAME) as raw:
        raw.execute("ALTER TABLE vectors DROP COLUMN sentences")
        raw.execute("PRAGMA user_version = 1")
    with KnowledgeBase.open(tmp_path / "store", WordEmbedder()) as knowledge_base:
        assert knowledge_base.search("annual leave", 1)[0].source.endswith("leave.md")
        assert sentences_in(knowledge_base.catalog) == {}
    reembed(tmp_path / "store", WordEmbedder())
    with KnowledgeBase.open(tmp_path / "store", WordEmbedder()) as knowledge_base:
        assert len(sentences_in(knowledge_base.catalog)) == 1
