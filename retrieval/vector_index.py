"""Nearest neighbours by inner product: an immutable index whose ids are the catalog's chunk ids, its kind by its size.

Up to `flat_limit` vectors every search is exact. Beyond, most vectors lie sorted into inverted lists (IVF) and a search
looks through the nearest lists, in as many rows as was measured to be enough. What came later stands in a tail that is
always searched, what was deleted is skipped, and `compacted` makes one whole of it again, beside the searches.

    rows (ascending chunk ids):   0 ........ num_sorted | num_sorted ......... n
    lie in:                       codes[positions[row]] | tail[row - num_sorted]

A filter is applied before anything is compared. Few allowed rows are compared one and all, so that a narrow filter is
exact at every size; many are found through the lists, looking further until enough *allowed* rows have been seen.
"""

import json
import os
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol, Self

import numpy as np
import numpy.typing as npt

from retrieval.embeddings import Vectors, check_vectors
from retrieval.errors import InvalidArgumentError, InvalidVectorError
from retrieval.inverted_lists import InvertedLists, assign, measured_budgets, num_lists, train, training_rows
from retrieval.vector_codes import BLOCK, FORMATS, Ids, VectorCodes, VectorFormat

Mask = npt.NDArray[np.bool_]

# Allowed rows x components that a filtered search compares one and all rather than by lists (20,000 rows of 384).
_EXACT_COMPONENTS = 8_000_000
# Compaction is due when the tail, which every search goes through, is longer than this, or than its share of all rows,
# whichever is more …
_TAIL_ROWS = 10_000
_TAIL_SHARE = 1 / 64
# … or when this share of the sorted vectors is deleted.
_DEAD_SHARE = 1 / 4
# Centroids are chosen anew when the index has grown to so many times the size they were trained on.
_RETRAIN_GROWTH = 2
_CODES_FILE = "codes.npy"


@dataclass(frozen=True)
class IndexOptions:
    """How vectors are stored, and up to how many every search is exact. Raises InvalidArgumentError.

    With `qdrant`, the URL or folder of a Qdrant, they lie there, and `flat_limit` says nothing. With `gpu` a copy is
    searched on a GPU.
    """

    format: VectorFormat = "float32"
    flat_limit: int = 100_000
    qdrant: str | None = None
    gpu: bool = False

    def __post_init__(self) -> None:
        if self.format not in FORMATS:
            raise InvalidArgumentError("format", f"vector format {self.format!r} is not one of: {', '.join(FORMATS)}")
        if self.flat_limit < 0:
            raise InvalidArgumentError("flat_limit", f"flat_limit is {self.flat_limit}; give 0 or more vectors")


class AnyVectorIndex(Protocol):
    """What a snapshot needs of its vectors, wherever they lie; described at `VectorIndex`."""

    @property
    def ids(self) -> Ids: ...
    @property
    def kind(self) -> str: ...
    @property
    def needs_compaction(self) -> bool: ...
    def __len__(self) -> int: ...
    def search(self, query: Vectors, k: int, mask: Mask | None = None) -> tuple[Ids, Vectors]: ...
    def vectors_of(self, rows: Ids) -> Vectors: ...
    def updated(self, kept_rows: Ids, new_ids: Ids, new_vectors: Vectors) -> Self: ...
    def compacted(self) -> Self: ...
    def caught_up(self, newer: Self) -> Self: ...
    def save(self, folder: Path) -> None: ...
    def mapped(self, folder: Path) -> Self: ...


class VectorIndex:
    """`ids` [n] are distinct, `vectors` [n, dimension] finite. Row i of everything belongs to `ids[i]`.

    A new index is flat, whatever its size: `compacted` gives it the kind that its size asks for.
    """

    def __init__(self, ids: Ids, vectors: Vectors, dimension: int, options: IndexOptions | None = None) -> None:
        """Raises InvalidVectorError for a wrong dimension, NaN, infinity, or ids that repeat or are too few or many."""
        options = options or IndexOptions()
        check_vectors(vectors, dimension)
        if len(ids) != len(vectors):
            raise InvalidVectorError(f"{len(ids)} ids ({len(np.unique(ids))} distinct) for {len(vectors)} vectors")
        codes = VectorCodes.encode(vectors, options.format)
        self._adopt(np.asarray(ids, dtype=np.int64), codes, None, np.arange(len(ids)), _no_tail(dimension), options)

    def _adopt(
        self,
        ids: Ids,
        codes: VectorCodes,
        lists: InvertedLists | None,
        positions: Ids,
        tail: VectorCodes,
        options: IndexOptions,
    ) -> None:
        if not (np.diff(ids) > 0).all() and len(np.unique(ids)) != len(ids):
            raise InvalidVectorError(f"{len(ids)} ids ({len(np.unique(ids))} distinct) for {len(ids)} vectors")
        assert len(positions) + len(tail) == len(ids), "every row stands in the sorted part or in the tail"
        self.dimension = codes.dimension
        self.options = options
        self.ids = ids.view()  # the caller's own stays writable
        self.ids.flags.writeable = False
        self._codes = codes
        self._lists = lists
        self._positions = positions
        self._tail = tail
        # The row at each position of the sorted part, -1 where it was deleted.
        self._row_at = np.full(len(codes), -1, dtype=np.int64)
        self._row_at[positions] = np.arange(len(positions))

    @classmethod
    def _of(
        cls,
        ids: Ids,
        codes: VectorCodes,
        lists: InvertedLists | None,
        positions: Ids,
        tail: VectorCodes,
        options: IndexOptions,
    ) -> Self:
        index = cls.__new__(cls)
        index._adopt(ids, codes, lists, positions, tail, options)
        return index

    def __len__(self) -> int:
        return len(self.ids)

    @property
    def lists(self) -> InvertedLists | None:
        """The inverted lists; None while the index is flat."""
        return self._lists

    @property
    def kind(self) -> str:
        """What it is, for people: 'flat (exact)', 'IVF (2,000 lists, 8,000 vectors looked at), int8'."""
        stored = "" if self.options.format == "float32" else f", {self.options.format}"
        if self._lists is None:
            return f"flat (exact){stored}"
        return f"IVF ({len(self._lists):,} lists, {self._lists.budget(10):,} vectors looked at){stored}"

    def vectors_of(self, rows: Ids) -> Vectors:
        """The vectors [rows, dimension] of these rows, as near as the format holds them."""
        rows = np.asarray(rows, dtype=np.int64)
        vectors = np.empty((len(rows), self.dimension), dtype=np.float32)
        in_tail = rows >= len(self._positions)
        vectors[~in_tail] = self._codes.decode(self._positions[rows[~in_tail]])
        vectors[in_tail] = self._tail.decode(rows[in_tail] - len(self._positions))
        return vectors

    def updated(self, kept_rows: Ids, new_ids: Ids, new_vectors: Vectors) -> Self:
        """A new index of the kept rows (ascending) and then the new vectors. Raises InvalidVectorError."""
        if len(kept_rows) == len(self) and not len(new_ids):
            return self
        assert (np.diff(kept_rows) > 0).all(), "rows keep their order"
        new_vectors = new_vectors.reshape(-1, self.dimension)
        check_vectors(new_vectors, self.dimension)
        ids = np.concatenate([self.ids[kept_rows], new_ids])
        num_sorted = int(np.searchsorted(kept_rows, len(self._positions)))
        positions = self._positions[kept_rows[:num_sorted]]
        if self._lists is None:
            codes = self._codes.extended(positions, new_vectors)
            return self._of(ids, codes, None, np.arange(len(ids)), self._tail, self.options)
        tail = self._tail.extended(kept_rows[num_sorted:] - len(self._positions), new_vectors)
        return self._of(ids, self._codes, self._lists, positions, tail, self.options)

    @property
    def needs_compaction(self) -> bool:
        """Whether `compacted` would make searches faster, or the index smaller."""
        if self._lists is None:
            return len(self) > self.options.flat_limit
        dead = len(self._codes) - len(self._positions)
        return (
            len(self) * 2 < self.options.flat_limit
            or len(self._tail) > max(_TAIL_ROWS, _TAIL_SHARE * len(self))
            or dead > _DEAD_SHARE * len(self._codes)
        )

    def compacted(self) -> Self:
        """The same rows as one whole, of the kind that their number asks for. Takes a minute for a million vectors."""
        tail = self._tail.decode(slice(None))
        if len(self) <= self.options.flat_limit:
            codes = self._codes.extended(self._positions, tail)
            return self._of(self.ids, codes, None, np.arange(len(self)), _no_tail(self.dimension), self.options)
        lists, centroids = self._lists, None
        if lists is not None and len(self) < _RETRAIN_GROWTH * lists.trained_on:
            centroids, trained_on = lists.centroids, lists.trained_on
            list_of_row = np.concatenate([lists.list_of(self._positions), assign(centroids, tail)])
        else:
            trained_on = len(self)
            centroids = train(self.vectors_of(training_rows(trained_on)), num_lists(trained_on))
            blocks = [np.arange(start, min(start + BLOCK, len(self))) for start in range(0, len(self), BLOCK)]
            list_of_row = np.concatenate([assign(centroids, self.vectors_of(rows)) for rows in blocks])
        positions = np.empty(len(self), dtype=np.int64)
        positions[np.argsort(list_of_row, kind="stable")] = np.arange(len(self))
        starts = np.concatenate([[0], np.cumsum(np.bincount(list_of_row, minlength=len(centroids)))])
        codes = self._codes.extended(self._positions, tail, positions)
        lists = InvertedLists(centroids, starts, measured_budgets(codes, centroids, starts), trained_on)
        return self._of(self.ids, codes, lists, positions, _no_tail(self.dimension), self.options)

    def caught_up(self, newer: Self) -> Self:
        """This index with the rows of `newer`, which was made by updates of what this one was compacted from."""
        kept_rows = np.flatnonzero(np.isin(self.ids, newer.ids))
        missing = np.flatnonzero(~np.isin(newer.ids, self.ids))
        return self.updated(kept_rows, newer.ids[missing], newer.vectors_of(missing))

    def search(self, query: Vectors, k: int, mask: Mask | None = None) -> tuple[Ids, Vectors]:
        """Rows and inner products of the `k` nearest to `query` [dimension], nearest first.

        `mask` [n] says which rows may be found: min(k, allowed rows) are. Raises InvalidVectorError.
        """
        check_vectors(query.reshape(1, -1), self.dimension)
        num_allowed = len(self) if mask is None else int(np.count_nonzero(mask))
        k = min(k, num_allowed)
        if k <= 0:
            return np.zeros(0, dtype=np.int64), np.zeros(0, dtype=np.float32)
        if num_allowed == len(self):
            mask = None
        num_sorted = len(self._positions)
        rows, scores = self._nearest_sorted(query, k, mask, num_allowed)
        if len(self._tail):
            allowed = np.arange(len(self._tail)) if mask is None else np.flatnonzero(mask[num_sorted:])
            late, late_scores = self._tail.nearest(query, k, allowed)
            rows, scores = np.concatenate([rows, late + num_sorted]), np.concatenate([scores, late_scores])
        best = np.lexsort((rows, -scores))[:k]
        return rows[best], scores[best]

    def _nearest_sorted(self, query: Vectors, k: int, mask: Mask | None, num_allowed: int) -> tuple[Ids, Vectors]:
        """Rows and inner products of the nearest of those that are not in the tail."""
        if self._lists is None and mask is None:
            return self._codes.nearest_of_all(query, k)
        positions, scores = self._codes.nearest(query, k, self._candidates(query, k, mask, num_allowed))
        return self._row_at[positions], scores

    def _candidates(self, query: Vectors, k: int, mask: Mask | None, num_allowed: int) -> Ids:
        """The positions to compare with the query: every allowed one, or those in the nearest lists."""
        lists = self._lists
        if mask is not None and (lists is None or num_allowed * self.dimension <= _EXACT_COMPONENTS):
            # In the order in which they lie: neighbours in memory are read one after the other.
            return np.sort(self._positions[np.flatnonzero(mask[: len(self._positions)])])
        assert lists is not None, "a flat index without a filter is searched as it lies"
        wanted = max(k, lists.budget(k))
        parts: list[Ids] = []
        num_found = 0
        for near in lists.nearest_first(query, wanted * len(self._codes) / num_allowed):
            parts.append(self._allowed(lists.rows(near), mask))
            num_found += len(parts[-1])
            if num_found >= wanted:
                break
        return parts[0] if len(parts) == 1 else np.concatenate(parts)

    def _allowed(self, positions: Ids, mask: Mask | None) -> Ids:
        """Those positions that are not deleted, and whose rows may be found."""
        if mask is None and len(self._positions) == len(self._codes):
            return positions
        rows = self._row_at[positions]
        allowed = rows >= 0
        if mask is not None:
            allowed &= mask[rows]  # row -1 is the last one here, and is not allowed above
        return positions[allowed]

    def save(self, folder: Path) -> None:
        """Writes the index into an empty folder. Vectors that lie in a file already are linked, not copied."""
        _link_or_write(folder / _CODES_FILE, self._codes)
        arrays = {"ids": self.ids, "positions": self._positions, "tail": self._tail.codes}
        if self._codes.ranges is not None:
            arrays["ranges"] = self._codes.ranges
        about = {"format": self.options.format, "dimension": self.dimension, "lists": None}
        if self._lists is not None:
            arrays |= {"centroids": self._lists.centroids, "starts": self._lists.starts}
            about["lists"] = {"budgets": dict(self._lists.budgets), "trained_on": self._lists.trained_on}
        for name, array in arrays.items():
            np.save(folder / f"{name}.npy", array, allow_pickle=False)
        (folder / "index.json").write_text(json.dumps(about), encoding="ascii")

    def mapped(self, folder: Path) -> Self:
        """The same index with its vectors in the file that `save` wrote into `folder`, and no longer in memory."""
        codes = _mapped_codes(folder, self.options.format, self._codes.ranges)
        return self._of(self.ids, codes, self._lists, self._positions, self._tail, self.options)

    @classmethod
    def load(cls, folder: Path, dimension: int, options: IndexOptions | None = None) -> Self:
        """Maps what `save` wrote into memory: vectors are read from the disk as searches come to them.

        Raises OSError, ValueError or KeyError where it is not whole, or was made with another format or dimension.
        """
        options = options or IndexOptions()
        about = json.loads((folder / "index.json").read_text(encoding="ascii"))
        if (about["dimension"], about["format"]) != (dimension, options.format):
            raise ValueError(
                f"{folder} holds {about['format']} vectors of dimension {about['dimension']}, "
                f"{options.format} of dimension {dimension} expected"
            )

        def array(name: str) -> npt.NDArray[Any]:
            loaded: npt.NDArray[Any] = np.load(folder / f"{name}.npy", allow_pickle=False)
            return loaded

        codes = _mapped_codes(folder, options.format, array("ranges") if options.format == "int8" else None)
        ids, positions, tail = array("ids"), array("positions"), VectorCodes(array("tail"), "float32")
        if codes.dimension != dimension or len(positions) + len(tail) != len(ids):
            raise ValueError(f"{folder}: {len(ids)} ids for {len(positions)} + {len(tail)} vectors")
        lists = None
        if about["lists"] is not None:
            budgets = {int(k): int(rows) for k, rows in about["lists"]["budgets"].items()}
            lists = InvertedLists(array("centroids"), array("starts"), budgets, about["lists"]["trained_on"])
        return cls._of(ids, codes, lists, positions, tail, options)


def _mapped_codes(folder: Path, format: VectorFormat, ranges: Vectors | None) -> VectorCodes:
    file = folder / _CODES_FILE
    # A plain array: views of numpy's own memmap class are slow to make.
    codes = np.asarray(np.load(file, allow_pickle=False, mmap_mode="r"))
    return VectorCodes(codes, format, ranges, file)


def _no_tail(dimension: int) -> VectorCodes:
    return VectorCodes(np.zeros((0, dimension), dtype=np.float32), "float32")


def _link_or_write(path: Path, codes: VectorCodes) -> None:
    if codes.file is not None:
        try:
            os.link(codes.file, path)
            return
        except OSError:
            pass  # replaced by another process meanwhile, or a file system without links
    np.save(path, codes.codes, allow_pickle=False)
