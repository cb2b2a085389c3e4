"""What is decided on the CPU around a GPU index; FAISS's flat index on the CPU stands in the GPU's place."""

from typing import Any

import faiss
import numpy as np
import pytest

from retrieval import IndexOptions, KnowledgeBase, gpu_index
from retrieval.errors import InvalidArgumentError
from retrieval.gpu_index import GpuVectorIndex
from retrieval.vector_codes import VectorCodes
from tests.retrieval.test_vector_index import clustered, exact
from tests.retrieval.word_embedder import WordEmbedder


class Device:
    """Counts the searches that reach the device."""

    def __init__(self, codes: VectorCodes) -> None:
        self._index = faiss.IndexFlatIP(codes.dimension)
        self._index.add(codes.decode(slice(None)))

    def search(self, query: np.ndarray, k: int, params: Any) -> tuple[np.ndarray, np.ndarray]:
        DEVICE_SEARCHES.append(k)
        return self._index.search(query, k)


DEVICE_SEARCHES: list[int] = []


@pytest.fixture
def device(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    monkeypatch.setattr(gpu_index, "_gpu_index", lambda codes: (Device(codes), None, "flat"))
    DEVICE_SEARCHES.clear()
    return DEVICE_SEARCHES


@pytest.mark.parametrize("share", [0.001, 0.02, 0.5, 1.0])
@pytest.mark.parametrize("changed", [False, True])
def test_filters_and_deletions_hold_although_the_device_knows_none(
    share: float, changed: bool, device: list[int]
) -> None:
    vectors = clustered(3000)
    index = GpuVectorIndex(np.arange(3000), vectors, 32, IndexOptions(flat_limit=1000)).compacted()
    if changed:
        kept_rows = np.flatnonzero(np.arange(3000) % 4)
        late = clustered(50, seed=5)
        index = index.updated(kept_rows, np.arange(50) + 5000, late)
        vectors = np.concatenate([vectors[kept_rows], late])
    assert isinstance(index, GpuVectorIndex)
    mask = np.random.default_rng(2).random(len(index)) < share
    for query in clustered(10, seed=3):
        rows, _ = index.search(query, 10, mask)
        assert rows.tolist() == exact(vectors, query, 10, mask)[: min(10, int(mask.sum()))]
    assert bool(device) == (share > 0.01), "what too few of the nearest are allowed for is searched on the CPU"


def test_a_device_that_fails_is_replaced_by_the_cpu(monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(codes: VectorCodes) -> None:
        raise RuntimeError("out of memory")

    monkeypatch.setattr(gpu_index, "_gpu_index", fail)
    vectors = clustered(100)
    index = GpuVectorIndex(np.arange(100), vectors, 32)
    assert index.search(vectors[7], 3)[0].tolist() == exact(vectors, vectors[7], 3)
    assert index.kind == "flat (exact), copy on GPU"


@pytest.mark.skipif(hasattr(faiss, "StandardGpuResources"), reason="this FAISS is built for GPUs")
def test_asking_for_a_gpu_of_a_cpu_build_says_what_to_install(tmp_path: Any) -> None:
    with pytest.raises(InvalidArgumentError, match="this FAISS is built for CPUs: install the extra gpu"):
        KnowledgeBase.open(tmp_path, WordEmbedder(), index=IndexOptions(gpu=True))
