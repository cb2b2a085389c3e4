"""The vector index with a copy of its vectors on a GPU: flat, inverted lists or CAGRA, through a GPU build of FAISS.

The index on the CPU stays whole: it is what is saved, what a restart reads, and what answers whatever the GPU cannot.
Classic GPU indexes take a selector and ignore it, so that none is given to them: more than k neighbours are fetched,
each is checked here against the filter and the deletions, and where too few are left the CPU searches instead.

Written against FAISS 1.15's interface and not yet run on a card; the tests put an index on the CPU in the GPU's place.
"""

import logging
import threading
import weakref
from typing import Any

import faiss
import numpy as np

from retrieval.embeddings import Vectors
from retrieval.errors import InvalidArgumentError
from retrieval.inverted_lists import num_lists, training_rows
from retrieval.vector_codes import BLOCK, Ids, VectorCodes
from retrieval.vector_index import Mask, VectorIndex

# A card compares a query with a million vectors in about a millisecond.
_FLAT_ROWS = 1_000_000
# FAISS's GPU indexes find no more neighbours than this (GPU_MAX_SELECTION_K).
_MOST_FOUND = 2048
_PROBED_LISTS = 64

_faiss: Any = faiss
_log = logging.getLogger(__name__)
# Copies by the codes that they are of: indexes that share codes share the copy.
_copies: "weakref.WeakKeyDictionary[VectorCodes, GpuCopy]" = weakref.WeakKeyDictionary()
_copying = threading.Lock()


def check_gpu() -> None:
    """Raises InvalidArgumentError unless FAISS is built for GPUs and finds one."""
    if not hasattr(faiss, "StandardGpuResources"):
        raise InvalidArgumentError(
            "vector_gpu", "this FAISS is built for CPUs: install the extra gpu or gpu-cuvs, or set vector_gpu=false"
        )
    if not _faiss.get_num_gpus():
        raise InvalidArgumentError("vector_gpu", "FAISS finds no GPU: see that one is visible, or set vector_gpu=false")


class GpuCopy:
    """All rows of `codes` on a GPU. Thread-safe: FAISS's GPU indexes are not, so that searches take turns."""

    def __init__(self, codes: VectorCodes) -> None:
        self._turn = threading.Lock()
        self._index, self._parameters, self.kind = _gpu_index(codes)

    def search(self, query: Vectors, k: int) -> tuple[Ids, Vectors]:
        """Positions and inner products of the `k` nearest, nearest first; fewer where the index finds no more."""
        with self._turn:
            scores, positions = self._index.search(query.reshape(1, -1), k, params=self._parameters)
        found = positions[0] >= 0
        return positions[0][found], scores[0][found]


class GpuVectorIndex(VectorIndex):
    """A `VectorIndex` whose sorted part is searched on the GPU where that gives the same answer sooner."""

    @property
    def kind(self) -> str:
        return f"{super().kind}, copy on GPU"

    def _nearest_sorted(self, query: Vectors, k: int, mask: Mask | None, num_allowed: int) -> tuple[Ids, Vectors]:
        # Twice as many as are needed when allowed rows lie among the others by chance.
        fetched = k if num_allowed == len(self._codes) else 2 * k * len(self._codes) // num_allowed + k
        if fetched > min(_MOST_FOUND, len(self._codes)):
            return super()._nearest_sorted(query, k, mask, num_allowed)
        try:
            positions, scores = _copy_of(self._codes).search(np.ascontiguousarray(query, dtype=np.float32), fetched)
        except RuntimeError as error:  # no memory left on the card, or a card that was lost
            _log.warning("not searched on the GPU but on the CPU: %s", error)
            return super()._nearest_sorted(query, k, mask, num_allowed)
        rows = self._row_at[positions]
        allowed = rows >= 0
        if mask is not None:
            allowed &= mask[rows]  # row -1 is the last one here, and is not allowed above
        if np.count_nonzero(allowed) < min(k, len(self._positions)):
            return super()._nearest_sorted(query, k, mask, num_allowed)
        return rows[allowed][:k], scores[allowed][:k]


def _copy_of(codes: VectorCodes) -> GpuCopy:
    with _copying:
        copy = _copies.get(codes)
        if copy is None:
            copy = _copies[codes] = GpuCopy(codes)
            _log.info("vectors copied to the GPU: rows=%d kind=%s", len(codes), copy.kind)
        return copy


def _gpu_index(codes: VectorCodes) -> tuple[Any, Any, str]:
    """An index on the GPU with all rows of `codes`, its search parameters, and its name."""
    resources = _faiss.StandardGpuResources()
    if len(codes) <= _FLAT_ROWS:
        flat = _faiss.GpuIndexFlatConfig()
        flat.useFloat16 = codes.format != "float32"
        index = _faiss.GpuIndexFlatIP(resources, codes.dimension, flat)
        _add_all(index, codes)
        return index, None, "flat"
    if hasattr(faiss, "GpuIndexCagra"):
        index = _faiss.GpuIndexCagra(resources, codes.dimension, faiss.METRIC_INNER_PRODUCT, _graph_options())
        index.train(codes.decode(slice(None)))  # builds the graph: over everything at once, and nothing is added later
        return index, _faiss.SearchParametersCagra(), "CAGRA"
    lists = num_lists(len(codes))
    index = _faiss.GpuIndexIVFFlat(resources, codes.dimension, lists, faiss.METRIC_INNER_PRODUCT)
    index.train(codes.decode(training_rows(len(codes))))
    _add_all(index, codes)
    parameters = faiss.SearchParametersIVF()
    parameters.nprobe = min(_PROBED_LISTS, lists)
    return index, parameters, "IVF"


def _graph_options() -> Any:
    options = _faiss.GpuIndexCagraConfig()
    options.graph_degree = 64
    options.intermediate_graph_degree = 128
    return options


def _add_all(index: Any, codes: VectorCodes) -> None:
    for start in range(0, len(codes), BLOCK):
        index.add(codes.decode(slice(start, start + BLOCK)))
