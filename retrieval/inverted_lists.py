"""Which rows are worth comparing with a query: an inverted file (IVF) over vectors that lie sorted by list.

Every vector belongs to the list of its nearest centroid; a search looks through the lists of the centroids nearest to
the query. How many rows that takes is not guessed but measured when the lists are made: enough to find what an
exhaustive search finds for sample queries (`RECALL`).

IVF rather than a graph: vectors can be deleted and filtered, and a build costs seconds where HNSW's costs minutes
(benchmarks/index.py prints both).
"""

import functools
import math
from collections.abc import Iterator, Mapping
from dataclasses import dataclass

import faiss
import numpy as np

from retrieval.embeddings import Vectors
from retrieval.vector_codes import BLOCK, Ids, VectorCodes

# Share of the true neighbours that a search must find, as measured on sample queries at the time of building.
RECALL = 0.99
# For these numbers of hits it is measured; others go by the next greater one.
_MEASURED_K = (10, 100)
_NUM_QUERIES = 100
# Questions do not lie where passages do; queries from elsewhere need more rows than the sample queries, by about this.
_MARGIN = 1.5
_TRAINED_PER_LIST = 40
_ITERATIONS = 8
_SEED = 0


@dataclass(frozen=True)
class InvertedLists:
    """List l is the rows `starts[l]` to `starts[l + 1]` of the sorted vectors; its centre is `centroids[l]`.

    `budgets` maps a number of hits to how many rows a search for so many looks at. `trained_on` is how many vectors
    there were when the centroids were chosen.
    """

    centroids: Vectors
    starts: Ids
    budgets: Mapping[int, int]
    trained_on: int

    def __len__(self) -> int:
        return len(self.centroids)

    @functools.cached_property
    def sizes(self) -> Ids:
        """How many rows each list has."""
        return np.diff(self.starts)

    def nearest_first(self, query: Vectors, num_rows: float) -> Iterator[Ids]:
        """All lists, nearest first, in parts: those with the first `num_rows` rows or so, then ever longer parts."""
        distances = -(self.centroids @ query)
        num_lists = min(len(self), 8 + int(1.5 * num_rows * len(self) / self.starts[-1]))
        near = np.argpartition(distances, num_lists - 1)[:num_lists]
        near = near[np.argsort(distances[near])]
        near = near[: int(np.searchsorted(np.cumsum(self.sizes[near]), num_rows)) + 1]
        yield near
        rest = np.argsort(distances)
        rest = rest[~np.isin(rest, near)]
        start, size = 0, len(near)
        while start < len(rest):
            yield rest[start : start + size]
            start, size = start + size, 2 * size

    def budget(self, k: int) -> int:
        """How many rows a search for `k` hits looks at."""
        for measured, rows in self.budgets.items():
            if k <= measured:
                return rows
        measured, rows = max(self.budgets.items())
        return math.ceil(rows * k / measured)

    def rows(self, lists: Ids) -> Ids:
        """The rows of these lists, list by list."""
        starts, lengths = self.starts[lists], self.sizes[lists]
        offsets = np.arange(int(lengths.sum())) - np.repeat(np.cumsum(lengths) - lengths, lengths)
        rows: Ids = np.repeat(starts, lengths) + offsets
        return rows

    def list_of(self, rows: Ids) -> Ids:
        """The list that each row lies in."""
        lists: Ids = np.searchsorted(self.starts, rows, side="right") - 1
        return lists


def num_lists(num_vectors: int) -> int:
    """Two lists for a root of n: about as many centroids are compared with a query as rows of a few lists."""
    return min(num_vectors, int(2 * math.sqrt(num_vectors)))


def training_rows(num_vectors: int) -> Ids:
    """The rows, ascending, whose vectors the centroids are chosen by: a sample."""
    random = np.random.default_rng(_SEED)
    size = min(num_vectors, num_lists(num_vectors) * _TRAINED_PER_LIST)
    return np.sort(random.choice(num_vectors, size, replace=False))


def train(sample: Vectors, lists: int) -> Vectors:
    """Centroids [lists, dimension] by spherical k-means."""
    means = faiss.Kmeans(
        sample.shape[1], lists, niter=_ITERATIONS, seed=_SEED, spherical=True, min_points_per_centroid=1
    )
    means.train(np.ascontiguousarray(sample))
    assert means.centroids is not None
    return np.asarray(means.centroids, dtype=np.float32)


def assign(centroids: Vectors, vectors: Vectors) -> Ids:
    """The nearest centroid of each vector."""
    quantizer = faiss.IndexFlatIP(centroids.shape[1])
    quantizer.add(centroids)
    lists: Ids = quantizer.search(np.ascontiguousarray(vectors), 1)[1][:, 0]
    return lists


def measured_budgets(codes: VectorCodes, centroids: Vectors, starts: Ids) -> dict[int, int]:
    """How many rows of the sorted `codes` a search must look at for `RECALL`, by number of hits.

    The sample queries lie half-way between two stored vectors: their neighbours are spread over more lists than those
    of a stored vector itself.
    """
    pairs = np.random.default_rng(_SEED).integers(0, len(codes), (2, _NUM_QUERIES))
    queries = codes.decode(pairs[0]) + codes.decode(pairs[1])
    neighbours = _exact_neighbours(codes, queries, max(_MEASURED_K))
    lists = np.searchsorted(starts, neighbours, side="right") - 1
    # How many rows have been seen when a list is done, in each query's own order of lists.
    order = np.argsort(-(queries @ centroids.T), axis=1)
    seen = np.empty_like(order)
    np.put_along_axis(seen, order, np.cumsum(np.diff(starts)[order], axis=1), axis=1)
    needed = np.take_along_axis(seen, lists, axis=1)
    return {k: int(_MARGIN * np.quantile(needed[:, :k], RECALL, method="higher")) for k in _MEASURED_K}


def _exact_neighbours(codes: VectorCodes, queries: Vectors, k: int) -> Ids:
    heap = faiss.ResultHeap(len(queries), min(k, len(codes)), keep_max=True)
    queries = np.ascontiguousarray(queries, dtype=np.float32)
    for start in range(0, len(codes), BLOCK):
        block = codes.decode(slice(start, start + BLOCK))
        scores, found = faiss.knn(queries, block, min(k, len(block)), metric=faiss.METRIC_INNER_PRODUCT)
        heap.add_result(scores, found + start)
    heap.finalize()
    neighbours: Ids = heap.I
    return neighbours
