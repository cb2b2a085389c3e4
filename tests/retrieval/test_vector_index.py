import functools
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from retrieval import vector_index
from retrieval.embeddings import Vectors, unit_vectors
from retrieval.errors import InvalidArgumentError, InvalidVectorError
from retrieval.vector_codes import FORMATS, VectorFormat
from retrieval.vector_index import IndexOptions, VectorIndex


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
def test_a_filter_is_exact_at_every_selectivity(share: float) -> None:
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
    np.testing.assert_array_equal(new.vectors_of(np.arange(5)), np.concatenate([vectors[[0, 2, 5]], new_vectors]))
    assert old.ids.tolist() == [0, 1, 2, 3, 4, 5]
    assert old.search(vectors[1], 1)[0].tolist() == [1]


@pytest.mark.parametrize("format", FORMATS)
@pytest.mark.parametrize("ivf", [False, True])
def test_saved_and_loaded_is_the_same(format: VectorFormat, ivf: bool, tmp_path: Path) -> None:
    vectors = clustered(3000)
    index = VectorIndex(np.arange(3000) + 100, vectors, 32, IndexOptions(format, 1000 if ivf else 5000))
    if ivf:
        index = index.compacted().updated(np.arange(10, 3000), np.array([9000]), clustered(1, seed=4))
    index.save(tmp_path)
    loaded = VectorIndex.load(tmp_path, 32, index.options)
    assert loaded.kind == index.kind
    assert loaded.ids.tolist() == index.ids.tolist()
    rows = np.arange(len(index))
    np.testing.assert_array_equal(loaded.vectors_of(rows), index.vectors_of(rows))
    for query in clustered(5, seed=1):
        assert loaded.search(query, 10)[0].tolist() == index.search(query, 10)[0].tolist()


def test_saving_what_was_loaded_links_the_vectors_and_copies_them_only_where_that_fails(tmp_path: Path) -> None:
    folders = [tmp_path / str(index) for index in range(3)]
    for folder in folders:
        folder.mkdir()
    VectorIndex(np.arange(50), clustered(50), 32).save(folders[0])
    loaded = VectorIndex.load(folders[0], 32)
    loaded.save(folders[1])
    assert (folders[1] / "codes.npy").samefile(folders[0] / "codes.npy")
    (folders[0] / "codes.npy").unlink()
    loaded.save(folders[2])
    np.testing.assert_array_equal(VectorIndex.load(folders[2], 32).vectors_of(np.arange(50)), clustered(50))


def test_a_truncated_or_foreign_file_is_refused(tmp_path: Path) -> None:
    VectorIndex(np.arange(50), clustered(50), 32).save(tmp_path)
    with pytest.raises(ValueError, match="float32 vectors of dimension 32, float32 of dimension 16 expected"):
        VectorIndex.load(tmp_path, 16)
    with pytest.raises(ValueError, match="float32 vectors of dimension 32, int8 of dimension 32 expected"):
        VectorIndex.load(tmp_path, 32, IndexOptions("int8"))
    path = tmp_path / "codes.npy"
    path.write_bytes(path.read_bytes()[:500])
    with pytest.raises(ValueError, match="mmap"):
        VectorIndex.load(tmp_path, 32)


def test_options_out_of_range_are_refused() -> None:
    with pytest.raises(InvalidArgumentError, match="vector format 'int4' is not one of: float32, float16, int8"):
        IndexOptions("int4")  # type: ignore[arg-type]
    with pytest.raises(InvalidArgumentError, match="flat_limit is -1"):
        IndexOptions(flat_limit=-1)


def test_the_kind_follows_the_size() -> None:
    index = VectorIndex(np.arange(3000), clustered(3000), 32, IndexOptions(flat_limit=2000))
    assert index.kind == "flat (exact)"
    assert index.needs_compaction
    index = index.compacted()
    assert index.kind.startswith("IVF (109 lists, ")
    assert not index.needs_compaction
    index = index.updated(np.arange(900), np.zeros(0, dtype=np.int64), np.zeros((0, 32), dtype=np.float32))
    assert index.needs_compaction
    index = index.compacted()
    assert index.kind == "flat (exact)"
    assert index.ids.tolist() == list(range(900))
    assert index.search(clustered(3000)[7], 1)[0].tolist() == [7]


@pytest.mark.parametrize(("format", "least"), [("float32", 0.97), ("float16", 0.97), ("int8", 0.93)])
def test_inverted_lists_find_what_an_exhaustive_search_finds(
    format: VectorFormat, least: float, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(vector_index, "_EXACT_COMPONENTS", 0)
    index = ivf(format)
    assert recall(index, VECTORS) >= least
    assert index._lists is not None
    assert index._lists.budget(10) < len(index) / 2, "most rows are not looked at"


@pytest.mark.parametrize("share", [0.002, 0.01, 0.1, 0.5, 0.99])
@pytest.mark.parametrize("exact_components", [0, 8_000_000])
def test_filters_hold_in_inverted_lists(share: float, exact_components: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(vector_index, "_EXACT_COMPONENTS", exact_components)  # both ways of filtering
    index = ivf()
    mask = np.random.default_rng(2).random(len(index)) < share
    for query in clustered(10, seed=3):
        rows, _ = index.search(query, 10, mask)
        assert mask[rows].all()
        assert len(set(rows.tolist())) == min(10, int(mask.sum())), "k hits whenever k are allowed"
    assert recall(index, VECTORS, mask) == 1.0 if exact_components else recall(index, VECTORS, mask) >= 0.97


def test_a_filter_whose_rows_lie_far_from_the_query_still_gives_k_hits(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(vector_index, "_EXACT_COMPONENTS", 0)
    index = ivf()
    query = VECTORS[0]
    mask = VECTORS @ query < np.quantile(VECTORS @ query, 0.2)
    rows, _ = index.search(query, 10, mask)
    assert len(rows) == 10
    assert mask[rows].all()


@pytest.mark.parametrize("format", FORMATS)
def test_updates_of_inverted_lists_are_searched_at_once_and_deleted_rows_never_found(
    format: VectorFormat, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(vector_index, "_EXACT_COMPONENTS", 0)
    index = ivf(format)
    late = clustered(300, seed=8)
    kept_rows = np.flatnonzero(np.arange(len(index)) % 3 != 0)
    updated = index.updated(kept_rows, np.arange(300) + 50_000, late)
    updated = updated.updated(np.arange(5, len(updated)), np.array([60_000]), clustered(1, seed=11))
    vectors = np.concatenate([VECTORS[kept_rows], late, clustered(1, seed=11)])[5:]
    assert len(updated) == len(vectors)
    assert updated.ids[-1] == 60_000
    np.testing.assert_allclose(updated.vectors_of(np.arange(len(vectors))), vectors, atol=0.01)
    least = 0.93 if format == "int8" else 0.97
    assert recall(updated, vectors) >= least
    assert updated.search(late[7], 1)[0].tolist() == [len(kept_rows) + 7 - 5]
    compacted = updated.compacted()
    assert compacted.ids.tolist() == updated.ids.tolist()
    assert not len(compacted._tail)
    assert recall(compacted, vectors) >= least
    assert recall(index, VECTORS) >= least, "the old index is as it was"


def test_a_compaction_catches_up_with_what_came_meanwhile() -> None:
    before = VectorIndex(np.arange(4000), VECTORS[:4000], 32, IndexOptions(flat_limit=1000))
    newer = before.updated(np.arange(10, 4000), np.arange(4000, 4100), VECTORS[4000:4100])
    newer = newer.updated(np.arange(len(newer) - 1), np.array([7777]), VECTORS[:1])
    caught_up = before.compacted().caught_up(newer)
    assert caught_up.ids.tolist() == newer.ids.tolist()
    rows = np.arange(len(newer))
    np.testing.assert_array_equal(caught_up.vectors_of(rows), newer.vectors_of(rows))
    assert caught_up.kind.startswith("IVF")


def test_a_growing_index_keeps_its_centroids_until_it_has_doubled() -> None:
    def grown(num: int) -> VectorIndex:
        new = clustered(num, seed=5)
        return index.updated(np.arange(len(index)), np.arange(num) + 100_000, new).compacted()

    index = ivf()
    assert index._lists is not None
    small, large = grown(500)._lists, grown(6000)._lists
    assert small is not None
    assert large is not None
    np.testing.assert_array_equal(small.centroids, index._lists.centroids)
    assert len(large) == int(2 * 12_000**0.5)


@settings(max_examples=25, deadline=None)
@given(st.data())
def test_any_history_of_updates_and_compactions_holds_just_what_was_kept(data: st.DataObject) -> None:
    format = data.draw(st.sampled_from(["float32", "float16", "int8"]))
    index = VectorIndex(np.arange(40), VECTORS[:40], 32, IndexOptions(format, 30))
    kept, next_id = list(range(40)), 40
    for _ in range(data.draw(st.integers(1, 5))):
        rows = [row for row in range(len(kept)) if data.draw(st.integers(0, 3), label="deleted where 0")]
        num_new = data.draw(st.integers(0, 25))
        new_ids = list(range(next_id, next_id + num_new))
        index = index.updated(np.array(rows, dtype=np.int64), np.array(new_ids, dtype=np.int64), VECTORS[new_ids])
        kept, next_id = [kept[row] for row in rows] + new_ids, next_id + num_new
        if data.draw(st.booleans()):
            index = index.compacted()
    assert index.ids.tolist() == kept
    np.testing.assert_allclose(index.vectors_of(np.arange(len(kept))), VECTORS[kept].reshape(-1, 32), atol=0.02)
    mask = np.arange(len(kept)) % 2 == 0
    rows_found, _ = index.search(VECTORS[0], 1000, mask)
    assert sorted(rows_found.tolist()) == np.flatnonzero(mask).tolist()
    assert len(index.search(VECTORS[0], 5)[0]) == min(5, len(kept))


@pytest.mark.parametrize("format", FORMATS)
def test_threads_search_one_index_at_once(format: VectorFormat, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(vector_index, "_EXACT_COMPONENTS", 0)
    index, queries = ivf(format), clustered(200, seed=6)
    expected = [index.search(query, 10)[0].tolist() for query in queries]
    with ThreadPoolExecutor(8) as threads:
        assert list(threads.map(lambda query: index.search(query, 10)[0].tolist(), queries)) == expected


def test_an_int8_range_grows_with_what_comes_later() -> None:
    narrow = VectorIndex(np.arange(100), 0.1 * clustered(100), 32, IndexOptions("int8"))
    wide = narrow.updated(np.arange(100), np.array([100]), np.eye(32, dtype=np.float32)[:1])
    np.testing.assert_allclose(wide.vectors_of(np.array([100]))[0], np.eye(32)[0], atol=0.01)
    np.testing.assert_allclose(wide.vectors_of(np.arange(100)), 0.1 * clustered(100), atol=0.01)


VECTORS = clustered(6000)


@functools.cache
def ivf(format: VectorFormat = "float32") -> VectorIndex:
    return VectorIndex(np.arange(6000), VECTORS, 32, IndexOptions(format, 1000)).compacted()


def recall(index: VectorIndex, vectors: Vectors, mask: np.ndarray | None = None) -> float:
    found = 0
    wanted = 0
    for query in clustered(50, seed=6):
        truth = exact(vectors, query, 10, mask)[: 10 if mask is None else int(mask.sum())]
        found += len(set(truth) & set(index.search(query, 10, mask)[0].tolist()))
        wanted += len(truth)
    return found / wanted
