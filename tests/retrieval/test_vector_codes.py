"""Comparing a query with chosen rows: the same whatever the number of parts that threads share."""

from concurrent.futures import ThreadPoolExecutor

import numpy as np
import pytest

from retrieval import vector_codes
from retrieval.vector_codes import Ids, VectorCodes


@pytest.mark.parametrize("part_rows", [1, 7, 100, 5000])
@pytest.mark.parametrize("k", [1, 10, 300])
def test_parts_shared_by_threads_give_the_nearest_of_all(
    monkeypatch: pytest.MonkeyPatch, part_rows: int, k: int
) -> None:
    monkeypatch.setattr(vector_codes, "_SHARED_COMPONENTS", 8 * part_rows)
    random = np.random.default_rng(0)
    vectors = random.standard_normal((2000, 8), dtype=np.float32)
    codes = VectorCodes.encode(vectors, "float32")
    rows = np.sort(random.choice(2000, 500, replace=False))

    def check(query: np.ndarray) -> Ids:
        found, scores = codes.nearest(query, k, rows)
        expected = rows[np.argsort(-(vectors[rows] @ query))[:k]]
        np.testing.assert_array_equal(found, expected)
        np.testing.assert_allclose(scores, vectors[found] @ query, atol=1e-5)
        return found

    queries = random.standard_normal((20, 8), dtype=np.float32)
    with ThreadPoolExecutor(4) as pool:
        assert len(list(pool.map(check, queries))) == len(queries)
