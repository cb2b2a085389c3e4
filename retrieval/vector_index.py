"""Nearest neighbours by inner product, exact: an immutable FAISS flat index whose ids are the catalog's chunk ids.

Up to about 100,000 vectors an exact index answers within milliseconds, and filters stay exact in it. On disk it is
FAISS's own format (no pickle), written beside and renamed into place.
"""

import os
from pathlib import Path
from typing import Any

import faiss
import numpy as np
import numpy.typing as npt

from retrieval.embeddings import Vectors, check_vectors
from retrieval.errors import InvalidVectorError

Ids = npt.NDArray[np.int64]
Mask = npt.NDArray[np.bool_]

# Below this many candidates a filtered search multiplies them directly instead of walking the whole index.
_SUBSET = 4096


class VectorIndex:
    """`ids` [n] are distinct, `vectors` [n, dimension] finite. Row i of everything belongs to `ids[i]`."""

    def __init__(self, ids: Ids, vectors: Vectors, dimension: int) -> None:
        """Raises InvalidVectorError for a wrong dimension, NaN, infinity, or ids that repeat or are too few or many."""
        check_vectors(vectors, dimension)
        if len(ids) != len(vectors) or len(np.unique(ids)) != len(ids):
            raise InvalidVectorError(f"{len(ids)} ids ({len(np.unique(ids))} distinct) for {len(vectors)} vectors")
        index = faiss.IndexIDMap2(faiss.IndexFlatIP(dimension))
        index.add_with_ids(np.ascontiguousarray(vectors, dtype=np.float32), np.ascontiguousarray(ids, dtype=np.int64))
        self._adopt(index)

    def _adopt(self, index: "faiss.IndexIDMap2") -> None:
        self._index = index
        self._flat = _flat_part(index)
        self.dimension = int(index.d)
        self.ids: Ids = faiss.vector_to_array(index.id_map).astype(np.int64)
        self.ids.flags.writeable = False
        # A view of FAISS's own memory; `_index` keeps it alive.
        size = index.ntotal * index.d
        self.vectors: Vectors = (
            faiss.rev_swig_ptr(self._flat.get_xb(), size).reshape(-1, index.d)
            if size
            else np.zeros((0, index.d), dtype=np.float32)
        )

    def __len__(self) -> int:
        return len(self.ids)

    def updated(self, kept_rows: npt.NDArray[np.int64], new_ids: Ids, new_vectors: Vectors) -> "VectorIndex":
        """A new index of the kept rows, in that order, and then the new vectors."""
        if len(kept_rows) == len(self) and not len(new_ids):
            return self
        return VectorIndex(
            np.concatenate([self.ids[kept_rows], new_ids]),
            np.concatenate([self.vectors[kept_rows], new_vectors.reshape(-1, self.dimension)]),
            self.dimension,
        )

    def search(self, query: Vectors, k: int, mask: Mask | None = None) -> tuple[npt.NDArray[np.int64], Vectors]:
        """Rows and inner products of the `k` nearest to `query` [dimension], nearest first.

        `mask` [n] says which rows may be found: min(k, allowed rows) are. Raises InvalidVectorError.
        """
        check_vectors(query.reshape(1, -1), self.dimension)
        allowed = len(self) if mask is None else int(mask.sum())
        k = min(k, allowed)
        if k <= 0:
            return np.zeros(0, dtype=np.int64), np.zeros(0, dtype=np.float32)
        if mask is not None and allowed <= _SUBSET:
            return self._search_subset(query, k, np.flatnonzero(mask))
        parameters: Any = None
        if mask is not None and allowed < len(self):
            bits = np.packbits(mask, bitorder="little")
            selector = faiss.IDSelectorBitmap(len(mask), faiss.swig_ptr(bits))
            parameters = faiss.SearchParameters()
            parameters.sel = selector
        scores, rows = self._flat.search(query.reshape(1, -1).astype(np.float32), k, params=parameters)
        found = rows[0] >= 0
        return rows[0][found], scores[0][found]

    def _search_subset(
        self, query: Vectors, k: int, rows: npt.NDArray[np.int64]
    ) -> tuple[npt.NDArray[np.int64], Vectors]:
        scores = self.vectors[rows] @ query.astype(np.float32)
        order = np.lexsort((rows, -scores))[:k]
        return rows[order], scores[order]

    def save(self, path: Path) -> None:
        """Writes the index to `path`: whole and on the disk, or not at all."""
        temporary = path.with_name(f".{path.name}.{os.getpid()}.tmp")
        try:
            faiss.write_index(self._index, str(temporary))
            with temporary.open("rb+") as file:
                os.fsync(file.fileno())
            temporary.replace(path)
        finally:
            temporary.unlink(missing_ok=True)

    @classmethod
    def load(cls, path: Path, dimension: int) -> "VectorIndex":
        """Reads what `save` wrote. Raises ValueError where the file is damaged or of another kind."""
        try:
            index = faiss.read_index(str(path))
        except RuntimeError as error:
            raise ValueError(f"{path} is not a readable FAISS index: {error}") from error
        if not isinstance(index, faiss.IndexIDMap2) or not isinstance(
            faiss.downcast_index(index.index), faiss.IndexFlatIP
        ):
            raise ValueError(f"{path} holds a {type(index).__name__}, not a flat index with ids")
        if index.d != dimension or index.metric_type != faiss.METRIC_INNER_PRODUCT:
            raise ValueError(f"{path} holds vectors of dimension {index.d}, {dimension} expected")
        loaded = cls.__new__(cls)
        loaded._adopt(index)
        return loaded


def _flat_part(index: "faiss.IndexIDMap2") -> Any:
    """The flat index inside, as what it is: SWIG hands it out as the base class, without the access to its vectors."""
    return faiss.downcast_index(index.index)
