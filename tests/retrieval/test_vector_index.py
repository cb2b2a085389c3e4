from pathlib import Path

import numpy as np
import pytest

from retrieval import vector_index
from retrieval.embeddings import Vectors, unit_vectors
from retrieval.errors import InvalidVectorError
from retrieval.vector_index import VectorIndex


def clustered(num: int, dimension: int = 32, seed: int = 0) -> Vectors:
    random = np.random.default_rng(seed)
    centres = random.standard_normal((10, dimension))
    return unit_vectors(
        centres[random.integers(0, 10, num)] + 0.5 * random.standard_normal((num, dimension)), dimension
    )


def exact(vectors: Vectors, query: Vectors, k: int, mask: np.ndarray | None = None) -> list[int]:
    scores = vectors @ query
    if mask is not None:
        scores = np.where(mask, scores, -np.inf)
    return np.argsort(-scores, kind="stable")[:k].tolist()


def test_search_equals_brute_force() -> None:
    vectors = clustered(2000)
    index = VectorIndex(np.arange(2000) * 7, vectors, 32)
    for query in clustered(20, seed=1):
        rows, scores = index.search(query, 10)
        assert rows.tolist() == exact(vectors, query, 10)
        assert scores == pytest.approx(vectors[rows] @ query, abs=1e-5)


@pytest.mark.parametrize("share", [0.001, 0.01, 0.5, 0.99, 1.0])
@pytest.mark.parametrize("subset", [0, 4096])
def test_a_filter_is_exact_at_every_selectivity(share: float, subset: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(vector_index, "_SUBSET", subset)  # both ways of filtering
    vectors = clustered(3000)
    index = VectorIndex(np.arange(3000), vectors, 32)
    mask = np.random.default_rng(2).random(3000) < share
    for query in clustered(10, seed=3):
        rows, _ = index.search(query, 10, mask)
        assert rows.tolist() == exact(vectors, query, 10, mask)[: min(10, int(mask.sum()))]


def test_asking_for_more_than_there_is_gives_what_there_is() -> None:
    index = VectorIndex(np.array([5, 9]), clustered(2), 32)
    assert sorted(index.search(clustered(1)[0], 10)[0].tolist()) == [0, 1]
    assert index.search(clustered(1)[0], 10, np.zeros(2, dtype=bool))[0].tolist() == []
    empty = VectorIndex(np.zeros(0, dtype=np.int64), np.zeros((0, 32), dtype=np.float32), 32)
    assert empty.search(clustered(1)[0], 3)[0].tolist() == []


def test_nan_infinity_and_wrong_dimensions_are_refused_by_name() -> None:
    vectors = clustered(4)
    vectors[2, 5] = np.nan
    with pytest.raises(InvalidVectorError, match="vector 2 holds NaN or infinity"):
        VectorIndex(np.arange(4), vectors, 32)
    with pytest.raises(InvalidVectorError, match=r"shape \[4, 32\]; this index takes \[n, 16\]"):
        VectorIndex(np.arange(4), clustered(4), 16)
    index = VectorIndex(np.arange(4), clustered(4), 32)
    with pytest.raises(InvalidVectorError, match=r"shape \[1, 8\]"):
        index.search(np.ones(8, dtype=np.float32), 1)
    with pytest.raises(InvalidVectorError, match="NaN"):
        index.search(np.full(32, np.nan, dtype=np.float32), 1)
    with pytest.raises(InvalidVectorError, match="NaN"):
        index.updated(np.arange(4), np.array([9]), np.full((1, 32), np.inf, dtype=np.float32))


def test_ids_that_repeat_or_are_too_few_are_refused() -> None:
    with pytest.raises(InvalidVectorError, match=r"3 ids \(2 distinct\) for 3 vectors"):
        VectorIndex(np.array([1, 1, 2]), clustered(3), 32)
    with pytest.raises(InvalidVectorError, match="2 ids"):
        VectorIndex(np.array([1, 2]), clustered(3), 32)


def test_an_update_keeps_what_was_kept_and_leaves_the_old_index_as_it_was() -> None:
    vectors = clustered(6)
    old = VectorIndex(np.arange(6), vectors[:6], 32)
    new_vectors = clustered(2, seed=9)
    new = old.updated(np.array([0, 2, 5]), np.array([6, 7]), new_vectors)
    assert new.ids.tolist() == [0, 2, 5, 6, 7]
    np.testing.assert_array_equal(new.vectors, np.concatenate([vectors[[0, 2, 5]], new_vectors]))
    assert old.ids.tolist() == [0, 1, 2, 3, 4, 5]
    assert old.search(vectors[1], 1)[0].tolist() == [1]


def test_saved_and_loaded_is_the_same_and_no_temporary_file_stays(tmp_path: Path) -> None:
    vectors = clustered(50)
    VectorIndex(np.arange(50) + 100, vectors, 32).save(tmp_path / "vectors.faiss")
    loaded = VectorIndex.load(tmp_path / "vectors.faiss", 32)
    assert loaded.ids.tolist() == list(range(100, 150))
    np.testing.assert_array_equal(loaded.vectors, vectors)
    assert [path.name for path in tmp_path.iterdir()] == ["vectors.faiss"]


def test_a_damaged_or_foreign_file_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "vectors.faiss"
    VectorIndex(np.arange(50), clustered(50), 32).save(path)
    with pytest.raises(ValueError, match="dimension 32, 16 expected"):
        VectorIndex.load(path, 16)
    path.write_bytes(path.read_bytes()[:500])
    with pytest.raises(ValueError, match="not a readable FAISS index"):
        VectorIndex.load(path, 32)
