"""A matrix of vectors as it is stored: float32, float16 or int8. Knows how to compare a query with some of its rows.

The arithmetic is FAISS's; the memory is numpy's, so that a matrix may lie in a mapped file and be shared by indexes.
int8 has one range for each component (FAISS's QT_8bit): 256 steps from its least to its greatest value.
"""

import itertools
import os
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from functools import cache
from pathlib import Path
from typing import Any, Literal, TypeVar, get_args

import faiss
import numpy as np
import numpy.typing as npt

from retrieval.embeddings import Vectors

Ids = npt.NDArray[np.int64]
Codes = npt.NDArray[Any]
VectorFormat = Literal["float32", "float16", "int8"]
FORMATS: tuple[str, ...] = get_args(VectorFormat)

_faiss: Any = faiss  # its stubs lack some of what is in it

# Room in an int8 range for values that come later; where it does not suffice, everything is coded anew.
_MARGIN = 0.1
# Rows decoded at a time where a whole matrix is gone through.
BLOCK = 16_384
# Single rows (of 384) that are worth another thread: half a millisecond or so of waiting for memory.
_SHARED_COMPONENTS = 2_500 * 384

_Part = TypeVar("_Part")
_Result = TypeVar("_Result")


class VectorCodes:
    """Immutable. `codes` is [n, dimension] of float32, or [n, bytes a vector] of uint8; `ranges` [2, dimension] (least
    value, width) for int8 only. `file` is where the codes lie on the disk, mapped into memory.
    """

    def __init__(
        self, codes: Codes, format: VectorFormat, ranges: Vectors | None = None, file: Path | None = None
    ) -> None:
        self.codes = codes
        self.format = format
        self.ranges = ranges
        self.file = file
        self.dimension = codes.shape[1] // (2 if format == "float16" else 1)
        self._quantizer: Any = None if format == "float32" else _quantizer(self.dimension, format, ranges)
        self._scanners: list[Any] = []

    @classmethod
    def encode(cls, vectors: Vectors, format: VectorFormat) -> "VectorCodes":
        """Codes of `vectors` [n, dimension]."""
        ranges = _ranges(vectors) if format == "int8" else None
        return cls(_encoded(vectors, format, ranges), format, ranges)

    def __len__(self) -> int:
        return len(self.codes)

    def decode(self, rows: Ids | slice) -> Vectors:
        """The vectors [rows, dimension], as near as the format holds them."""
        codes = self.codes[rows]
        if self.format == "float32":
            return np.asarray(codes, dtype=np.float32)
        if self.format == "float16":
            return codes.view(np.float16).astype(np.float32)
        assert self.ranges is not None
        decoded: Vectors = self.ranges[0] + self.ranges[1] * ((codes.astype(np.float32) + 0.5) / 255)
        return decoded

    def extended(self, rows: Ids, vectors: Vectors, places: Ids | None = None) -> "VectorCodes":
        """These rows and then new `vectors`, in that order; or the i-th of them at `places[i]`.

        Nothing is coded twice unless an int8 range must grow.
        """
        if not len(rows) and places is None:
            return VectorCodes.encode(vectors, self.format)
        ranges = self.ranges
        if ranges is not None and len(vectors):
            low, high = ranges[0], ranges[0] + ranges[1]
            if (vectors.min(axis=0) < low).any() or (vectors.max(axis=0) > high).any():
                ranges = _ranges(np.concatenate([vectors, [low, high]]))
        places = np.arange(len(rows) + len(vectors)) if places is None else places
        codes = np.empty((len(places), self.codes.shape[1]), dtype=self.codes.dtype)
        for start in range(0, len(rows), BLOCK):
            block = rows[start : start + BLOCK]
            codes[places[start : start + len(block)]] = (
                self.codes[block] if ranges is self.ranges else _encoded(self.decode(block), self.format, ranges)
            )
        codes[places[len(rows) :]] = _encoded(vectors, self.format, ranges)
        return VectorCodes(codes, self.format, ranges)

    def nearest(self, query: Vectors, k: int, rows: Ids) -> tuple[Ids, Vectors]:
        """The `k` of `rows` with the greatest inner products with `query` [dimension], greatest first."""
        k = min(k, len(rows))
        query = np.ascontiguousarray(query, dtype=np.float32)
        rows = np.ascontiguousarray(rows, dtype=np.int64)
        if k == 0:
            return np.zeros(0, dtype=np.int64), np.zeros(0, dtype=np.float32)
        return self._nearest_exact(query, k, rows) if self._quantizer is None else self._nearest_coded(query, k, rows)

    def nearest_of_all(self, query: Vectors, k: int) -> tuple[Ids, Vectors]:
        """The same among all rows."""
        if self._quantizer is not None or not len(self):
            return self.nearest(query, k, np.arange(len(self)))
        k = min(k, len(self))
        query = np.ascontiguousarray(query, dtype=np.float32)
        scores, found = np.empty(k, dtype=np.float32), np.empty(k, dtype=np.int64)
        faiss.knn_inner_product(
            _pointer(query), _pointer(self.codes), self.dimension, 1, len(self), k, _pointer(scores), _pointer(found)
        )
        return found, scores

    def _nearest_exact(self, query: Vectors, k: int, rows: Ids) -> tuple[Ids, Vectors]:
        parts = np.array_split(rows, max(1, len(rows) * self.dimension // _SHARED_COMPONENTS))
        found = _by_threads(lambda part: self._nearest_of_part(query, min(k, len(part)), part), parts)
        if len(found) == 1:
            return found[0]
        nearest, scores = (np.concatenate(column) for column in zip(*found, strict=True))
        best = np.lexsort((nearest, -scores))[:k]
        return nearest[best], scores[best]

    def _nearest_of_part(self, query: Vectors, k: int, rows: Ids) -> tuple[Ids, Vectors]:
        scores, found = np.empty(k, dtype=np.float32), np.empty(k, dtype=np.int64)
        _faiss.knn_inner_products_by_idx(
            _pointer(query), _pointer(self.codes), _pointer(rows), self.dimension, 1, len(self), len(rows), k,
            _pointer(scores), _pointer(found), len(rows),
        )  # fmt: skip
        return found, scores

    def _nearest_coded(self, query: Vectors, k: int, rows: Ids) -> tuple[Ids, Vectors]:
        # One scanner serves one search at a time. They are kept, because FAISS's binding cannot destroy them.
        try:
            scanner = self._scanners.pop()
        except IndexError:
            scanner = self._quantizer.select_InvertedListScanner(faiss.METRIC_INNER_PRODUCT, None, False, None, False)
        scores = np.full(k, -np.inf, dtype=np.float32)
        found = np.full(k, -1, dtype=np.int64)
        scanner.set_query(_pointer(query))
        scanner.set_list(0, 0.0)
        for start, stop in _runs(rows):
            # A run of neighbours is read where it lies; single rows are gathered.
            whole = rows[stop - 1] - rows[start] == stop - 1 - start
            codes = self.codes[rows[start] : rows[stop - 1] + 1] if whole else self.codes[rows[start:stop]]
            part = rows[start:stop]
            scanner.scan_codes(stop - start, _pointer(codes), _pointer(part), _pointer(scores), _pointer(found), k)
        self._scanners.append(scanner)
        order = np.lexsort((found, -scores))
        return found[order], scores[order]


@cache
def _threads() -> ThreadPoolExecutor:
    return ThreadPoolExecutor(max(1, (os.cpu_count() or 1) - 1), thread_name_prefix="nearest")


def _by_threads(work: Callable[[_Part], _Result], parts: Sequence[_Part]) -> list[_Result]:
    """`work` of each part, in any order. A part that no other thread has begun is done here: a busy machine costs
    no waiting."""
    begun = [_threads().submit(work, part) for part in parts[1:]]
    results = [work(parts[0])]
    for part, future in zip(reversed(parts[1:]), reversed(begun), strict=True):
        results.append(work(part) if future.cancel() else future.result())
    return results


def _runs(rows: Ids) -> list[tuple[int, int]]:
    """Cuts `rows` into long runs of successive numbers and, between them, stretches of everything else."""
    breaks = np.flatnonzero(np.diff(rows) != 1) + 1
    if len(breaks) * 64 > len(rows):
        return [(start, min(start + BLOCK, len(rows))) for start in range(0, len(rows), BLOCK)]
    edges = [0, *breaks.tolist(), len(rows)]
    return list(itertools.pairwise(edges))


def _ranges(vectors: Vectors) -> Vectors:
    """Least value and width of each component, with some room on both sides."""
    if not len(vectors):
        return np.zeros((2, vectors.shape[1]), dtype=np.float32)
    low, high = vectors.min(axis=0), vectors.max(axis=0)
    room = _MARGIN * (high - low) + 1e-6
    return np.stack([low - room, high - low + 2 * room]).astype(np.float32)


def _encoded(vectors: Vectors, format: VectorFormat, ranges: Vectors | None) -> Codes:
    if format == "float32":
        return np.ascontiguousarray(vectors, dtype=np.float32)
    if format == "float16":
        return np.ascontiguousarray(vectors, dtype=np.float16).view(np.uint8)
    assert ranges is not None
    shares = (vectors - ranges[0]) / np.where(ranges[1] > 0, ranges[1], 1)
    codes: Codes = np.clip(np.floor(shares * 255), 0, 255).astype(np.uint8)
    return codes


def _quantizer(dimension: int, format: VectorFormat, ranges: Vectors | None) -> Any:
    kind = faiss.ScalarQuantizer.QT_fp16 if format == "float16" else faiss.ScalarQuantizer.QT_8bit
    quantizer = faiss.ScalarQuantizer(dimension, kind)
    if ranges is not None:
        faiss.copy_array_to_vector(np.ascontiguousarray(ranges, dtype=np.float32).ravel(), quantizer.trained)
    return quantizer


def _pointer(array: npt.NDArray[Any]) -> Any:
    assert array.flags.c_contiguous, "FAISS reads memory in C order"
    return faiss.swig_ptr(array)
