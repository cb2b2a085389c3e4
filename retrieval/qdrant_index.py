"""The vector index in Qdrant, for stores that outgrow one machine: the interface of `VectorIndex`, vectors elsewhere.

The catalog stays the truth. A point's id is the chunk id and it carries nothing else: which chunks a search may find is
decided here, as with the index in memory. Chunk ids are never used twice, so points may be written before the snapshot
that knows them is published, and points that a snapshot does not know are passed over.
"""

import json
import os
import threading
import uuid
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np

from retrieval.embeddings import Vectors, check_vectors
from retrieval.errors import InvalidArgumentError, StoreBusyError, StoreUnavailableError
from retrieval.vector_codes import Ids, VectorFormat
from retrieval.vector_index import Mask

# Up to so many allowed chunks go with the query as a filter, which Qdrant then answers exactly.
_FILTERED_IDS = 10_000
_BATCH = 500
_TIMEOUT_S = 60


class QdrantPoints:
    """One collection of points in Qdrant. Thread-safe.

    `location` is a URL, or a folder for Qdrant's own local mode (for trying out: it compares a query with everything,
    and one process may have it open). A server's API key is read from QDRANT_API_KEY. The collection belongs to the
    store in `folder`, where its name is kept.

    Raises InvalidArgumentError where qdrant-client is not installed, StoreUnavailableError, StoreBusyError.
    """

    def __init__(self, location: str, folder: Path, dimension: int, format: VectorFormat) -> None:
        try:
            from qdrant_client import QdrantClient, models
        except ImportError as error:
            raise InvalidArgumentError(
                "vector_store",
                f"qdrant:{location} needs the package qdrant-client: pip install 'qdrant-client>=1.15,<2'",
            ) from error
        if format == "int8":
            raise InvalidArgumentError(
                "vector_format", "int8 is not offered with Qdrant: use float32 or float16, or Qdrant's own quantization"
            )
        self.location = location
        self.name = f"ragstone-{_store_id(folder)}-{dimension}"
        self._models = models
        # The local mode is plain Python over shared lists.
        self._turn = threading.RLock()
        self._remote = "://" in location
        with self._translated():
            self._client = (
                QdrantClient(
                    url=location,
                    api_key=os.environ.get("QDRANT_API_KEY"),
                    timeout=_TIMEOUT_S,
                    check_compatibility=False,  # it would print, and the first request says what is wrong
                )
                if self._remote
                else QdrantClient(path=location)
            )
            if not self._client.collection_exists(self.name):
                datatype = models.Datatype.FLOAT16 if format == "float16" else models.Datatype.FLOAT32
                self._client.create_collection(
                    self.name,
                    vectors_config=models.VectorParams(
                        size=dimension, distance=models.Distance.DOT, datatype=datatype, on_disk=True
                    ),
                )

    def close(self) -> None:
        self._client.close()

    def put(self, ids: Ids, vectors: Vectors) -> None:
        """Writes points, or replaces those with the same ids."""
        for start in range(0, len(ids), _BATCH):
            part = slice(start, start + _BATCH)
            points = self._models.Batch(ids=ids[part].tolist(), vectors=vectors[part].tolist())
            with self._translated():
                self._client.upsert(self.name, points, wait=True)

    def delete(self, ids: Ids) -> None:
        """Deletes points; those that are not there are no error."""
        for start in range(0, len(ids), _BATCH):
            selector = self._models.PointIdsList(points=ids[start : start + _BATCH].tolist())
            with self._translated():
                self._client.delete(self.name, selector, wait=True)

    def count(self) -> int:
        with self._translated():
            return int(self._client.count(self.name, exact=True).count)

    def ids(self) -> Ids:
        """The ids of all points, ascending."""
        found: list[int] = []
        offset: Any = None
        while True:
            with self._translated():
                records, offset = self._client.scroll(
                    self.name, limit=10_000, offset=offset, with_payload=False, with_vectors=False
                )
            found += [int(record.id) for record in records]
            if offset is None:
                return np.sort(np.array(found, dtype=np.int64))

    def vectors(self, ids: Ids) -> Vectors:
        """The vectors [ids, dimension] of points that are there. Raises StoreUnavailableError for others."""
        with self._translated():
            records = self._client.retrieve(self.name, ids.tolist(), with_payload=False, with_vectors=True)
        vectors = {int(record.id): record.vector for record in records}
        if len(vectors) < len(set(ids.tolist())):
            raise StoreUnavailableError(
                f"{self.location} lacks points of {self.name}: restart, and they are written anew"
            )
        return np.array([vectors[id_] for id_ in ids.tolist()], dtype=np.float32)

    def nearest(self, query: Vectors, limit: int, among: Ids | None = None) -> tuple[Ids, Vectors]:
        """Ids and inner products of the nearest points, nearest first; only those `among` these ids, exactly."""
        models = self._models
        condition = None if among is None else models.Filter(must=[models.HasIdCondition(has_id=among.tolist())])
        # The local mode is always exact, and warns of being told.
        parameters = models.SearchParams(exact=True) if self._remote and among is not None else None
        with self._translated():
            points = self._client.query_points(
                self.name,
                query=query.tolist(),
                limit=limit,
                query_filter=condition,
                search_params=parameters,
                with_payload=False,
                with_vectors=False,
            ).points
        ids = np.array([point.id for point in points], dtype=np.int64)
        return ids, np.array([point.score for point in points], dtype=np.float32)

    @contextmanager
    def _translated(self) -> Iterator[None]:
        import httpx
        from qdrant_client.http.exceptions import ApiException, ResponseHandlingException

        try:
            if self._remote:
                yield
            else:
                with self._turn:
                    yield
        except (ApiException, ResponseHandlingException, httpx.HTTPError, OSError) as error:
            raise StoreUnavailableError(
                f"Qdrant at {self.location} does not do as asked ({error}): see that it runs, or set vector_store=faiss"
            ) from error
        except RuntimeError as error:
            raise StoreBusyError(
                f"the Qdrant folder {self.location} is open elsewhere ({error}): close that, or use a Qdrant server"
            ) from error


class QdrantIndex:
    """What one snapshot sees of the points: those with its `ids` [n], ascending. Row i is `ids[i]`."""

    def __init__(self, points: QdrantPoints, ids: Ids, dimension: int, dropped: Ids | None = None) -> None:
        self.ids = ids.view()  # the caller's own stays writable
        self.ids.flags.writeable = False
        self.dimension = dimension
        self._points = points
        # Not in this snapshot any more. Searches that run on the one before may still meet them, so they go one later.
        self._dropped = np.zeros(0, dtype=np.int64) if dropped is None else dropped

    def __len__(self) -> int:
        return len(self.ids)

    @property
    def kind(self) -> str:
        return f"Qdrant ({self._points.location})"

    @property
    def needs_compaction(self) -> bool:
        return False  # Qdrant does so itself

    def compacted(self) -> "QdrantIndex":
        return self

    def caught_up(self, newer: "QdrantIndex") -> "QdrantIndex":
        return newer

    def mapped(self, folder: Path) -> "QdrantIndex":
        return self

    def vectors_of(self, rows: Ids) -> Vectors:
        """The vectors [rows, dimension] of these rows."""
        return self._points.vectors(self.ids[rows])

    def updated(self, kept_rows: Ids, new_ids: Ids, new_vectors: Vectors) -> "QdrantIndex":
        """A new index of the kept rows (ascending) and then the new vectors. Raises InvalidVectorError, StoreError."""
        new_vectors = new_vectors.reshape(-1, self.dimension)
        check_vectors(new_vectors, self.dimension)
        self._points.put(new_ids, new_vectors)
        self._points.delete(self._dropped)
        ids = np.concatenate([self.ids[kept_rows], new_ids])
        dropped = np.delete(self.ids, kept_rows)
        if not len(self) and len(ids):
            # Begun anew: what is there from before, and is no later chunk of another process, is nobody's.
            left = np.setdiff1d(self._points.ids(), ids)
            dropped = left[left < ids[-1]]
        return QdrantIndex(self._points, ids, self.dimension, dropped)

    def search(self, query: Vectors, k: int, mask: Mask | None = None) -> tuple[Ids, Vectors]:
        """Rows and inner products of the `k` nearest to `query` [dimension], nearest first.

        `mask` [n] says which rows may be found: min(k, allowed rows) are. Raises InvalidVectorError, StoreError.
        """
        check_vectors(query.reshape(1, -1), self.dimension)
        num_allowed = len(self) if mask is None else int(np.count_nonzero(mask))
        k = min(k, num_allowed)
        if k <= 0:
            return np.zeros(0, dtype=np.int64), np.zeros(0, dtype=np.float32)
        if mask is not None and num_allowed <= min(_FILTERED_IDS, len(self) - 1):
            return self._known(*self._points.nearest(query, k, self.ids[mask]), k, mask)
        # Of so many nearest points about k are allowed; if it was fewer, more are asked for.
        limit = k + int(k * len(self) / num_allowed) + len(self._dropped)
        while True:
            ids, scores = self._points.nearest(query, limit)
            rows, best = self._known(ids, scores, k, mask)
            if len(rows) >= k or len(ids) < limit:
                return rows, best
            limit *= 4

    def _known(self, ids: Ids, scores: Vectors, k: int, mask: Mask | None) -> tuple[Ids, Vectors]:
        """Rows of those ids that this snapshot has and the mask allows, best first."""
        rows = np.minimum(np.searchsorted(self.ids, ids), len(self) - 1)
        known = self.ids[rows] == ids
        if mask is not None:
            known &= mask[rows]
        rows, scores = rows[known], scores[known]
        best = np.lexsort((rows, -scores))[:k]
        return rows[best], scores[best]

    def save(self, folder: Path) -> None:
        """Writes which points are meant into an empty folder; the points are where they are."""
        np.save(folder / "ids.npy", self.ids, allow_pickle=False)
        about = {"qdrant": self._points.name, "dropped": self._dropped.tolist()}
        (folder / "index.json").write_text(json.dumps(about), encoding="ascii")

    @classmethod
    def load(cls, folder: Path, points: QdrantPoints, dimension: int) -> "QdrantIndex":
        """Reads what `save` wrote. Raises OSError, ValueError or KeyError where that is not whole or points lack."""
        about = json.loads((folder / "index.json").read_text(encoding="ascii"))
        ids = np.load(folder / "ids.npy", allow_pickle=False)
        if about["qdrant"] != points.name or points.count() < len(ids):
            raise ValueError(f"{points.location} does not hold the {len(ids)} points of {about['qdrant']}")
        return cls(points, ids, dimension, np.array(about["dropped"], dtype=np.int64))


def _store_id(folder: Path) -> str:
    """A name for the store in `folder`, made once and kept there."""
    path = folder / "store_id"
    try:
        with path.open("x", encoding="ascii") as file:
            file.write(uuid.uuid4().hex)
    except FileExistsError:
        pass
    return path.read_text(encoding="ascii")
