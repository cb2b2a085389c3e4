import shutil
import socket
import sys
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest

from retrieval import IndexOptions, KnowledgeBase, qdrant_index
from retrieval.embeddings import Vectors, unit_vectors
from retrieval.errors import InvalidArgumentError, InvalidVectorError, StoreBusyError, StoreUnavailableError
from retrieval.qdrant_index import QdrantIndex, QdrantPoints
from tests.retrieval.word_embedder import WordEmbedder

NONE = np.zeros(0, dtype=np.int64)


def drawn(num: int, seed: int = 0) -> Vectors:
    return unit_vectors(np.random.default_rng(seed).standard_normal((num, 16)), 16)


@pytest.fixture
def points(tmp_path: Path) -> Iterator[QdrantPoints]:
    opened = QdrantPoints(str(tmp_path / "qdrant"), tmp_path, 16, "float32")
    yield opened
    opened.close()


@pytest.mark.parametrize("filtered_ids", [0, 10_000])
@pytest.mark.parametrize("share", [0.05, 0.5, 1.0])
def test_search_equals_brute_force_under_every_filter(
    share: float, filtered_ids: int, points: QdrantPoints, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(qdrant_index, "_FILTERED_IDS", filtered_ids)  # both ways of filtering
    vectors = drawn(80)
    index = QdrantIndex(points, NONE, 16).updated(NONE, np.arange(80) * 3, vectors)
    mask = np.random.default_rng(1).random(80) < share
    for query in drawn(5, seed=2):
        rows, scores = index.search(query, 15, mask)
        expected = np.argsort(-np.where(mask, vectors @ query, -np.inf))[: min(15, int(mask.sum()))]
        assert rows.tolist() == expected.tolist()
        assert scores == pytest.approx((vectors @ query)[expected], abs=1e-5)


def test_each_snapshot_finds_what_it_knows_while_the_points_change(points: QdrantPoints) -> None:
    vectors = drawn(30)
    old = QdrantIndex(points, NONE, 16).updated(NONE, np.arange(20), vectors[:20])
    new = old.updated(np.arange(5, 20), np.arange(20, 30), vectors[20:])
    assert new.ids.tolist() == list(range(5, 30))
    assert old.search(vectors[2], 1)[0].tolist() == [2]
    assert len(old.search(vectors[25], 20)[0]) == 20
    rows, _ = new.search(vectors[2], 25)
    assert sorted(rows.tolist()) == list(range(25))
    np.testing.assert_allclose(new.vectors_of(np.array([0, 24])), vectors[[5, 29]], atol=1e-6)
    later = new.updated(np.arange(25), NONE, np.zeros((0, 16), dtype=np.float32))
    assert points.ids().tolist() == later.ids.tolist(), "what was dropped goes one snapshot later"


def test_bad_vectors_are_refused_and_nothing_goes_in(points: QdrantPoints) -> None:
    index = QdrantIndex(points, NONE, 16)
    with pytest.raises(InvalidVectorError, match="NaN"):
        index.updated(NONE, np.array([1]), np.full((1, 16), np.nan, dtype=np.float32))
    with pytest.raises(InvalidVectorError, match=r"shape \[1, 8\]"):
        index.search(np.ones(8, dtype=np.float32), 1)
    assert points.count() == 0


@pytest.mark.parametrize("lost", ["nothing", "points", "index"])
def test_a_store_opened_again_answers_whatever_was_lost_but_the_catalog(lost: str, tmp_path: Path) -> None:
    options = IndexOptions(qdrant=str(tmp_path / "qdrant"))
    for number in range(3):
        (tmp_path / f"{number}.md").write_text(f"Whale number{number}.")
    with KnowledgeBase.open(tmp_path / "store", WordEmbedder(), index=options) as knowledge_base:
        knowledge_base.ingest_paths([tmp_path / f"{number}.md" for number in range(3)])
        knowledge_base.delete_document(knowledge_base.documents()[0].document_id)
        assert knowledge_base.stats()["index"] == f"Qdrant ({tmp_path}/qdrant)"
    if lost != "nothing":
        shutil.rmtree(tmp_path / ("qdrant" if lost == "points" else "store/index"))
    embedder = WordEmbedder()
    with KnowledgeBase.open(tmp_path / "store", embedder, index=options) as again:
        found = again.search("number1 whale", k=5)
        assert sorted(passage.text for passage in found) == ["Whale number1.", "Whale number2."]
        assert embedder.calls == 0
    with KnowledgeBase.open(tmp_path / "store", WordEmbedder()) as back:
        assert back.stats()["index"] == "flat (exact)"
        assert back.search("number1", k=1)[0].text == "Whale number1."


def test_a_server_that_does_not_answer_is_named(tmp_path: Path) -> None:
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        url = f"http://127.0.0.1:{free.getsockname()[1]}"
    with pytest.raises(StoreUnavailableError, match=f"Qdrant at {url} does not do as asked"):
        KnowledgeBase.open(tmp_path, WordEmbedder(), index=IndexOptions(qdrant=url))


def test_a_folder_that_is_open_elsewhere_is_named(points: QdrantPoints, tmp_path: Path) -> None:
    with pytest.raises(StoreBusyError, match="is open elsewhere"):
        QdrantPoints(str(tmp_path / "qdrant"), tmp_path, 16, "float32")


def test_what_qdrant_cannot_do_is_refused_by_name(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(InvalidArgumentError, match="int8 is not offered with Qdrant"):
        QdrantPoints(str(tmp_path / "qdrant"), tmp_path, 16, "int8")
    monkeypatch.setitem(sys.modules, "qdrant_client", None)
    with pytest.raises(InvalidArgumentError, match="needs the package qdrant-client"):
        QdrantPoints(str(tmp_path / "qdrant"), tmp_path, 16, "float32")
