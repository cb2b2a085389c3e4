"""Exact search in Triton's interpreter against a sort of all scores."""

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from kernels.vector_search import reference, search


@given(
    num_queries=st.sampled_from([1, 3, 17]),
    num_vectors=st.sampled_from([5, 64, 257, 700]),
    dim=st.sampled_from([8, 72]),
    k=st.sampled_from([1, 5, 20]),
    kind=st.sampled_from(["float32", "float16", "int8"]),
    seed=st.integers(0, 99),
)
def test_neighbours_and_their_scores(
    num_queries: int, num_vectors: int, dim: int, k: int, kind: str, seed: int
) -> None:
    torch.manual_seed(seed)
    # Small whole numbers: many equal scores, and sums that are exact in every order.
    queries = torch.randint(-3, 4, (num_queries, dim)).to(torch.float32 if kind == "float32" else torch.float16)
    vectors = torch.randint(-3, 4, (num_vectors, dim)).to(getattr(torch, kind))
    scales = torch.tensor([0.5, 1.0, 0.25])[torch.randint(0, 3, (num_vectors,))] if kind == "int8" else None
    k = min(k, num_vectors)
    scores, numbers = search(queries, vectors, k, scales)
    expected_scores, expected_numbers = reference(queries, vectors, k, scales)
    assert torch.equal(scores, expected_scores)
    assert torch.equal(numbers, expected_numbers)
    again_scores, again_numbers = search(queries, vectors, k, scales)
    assert torch.equal(again_scores, scores)
    assert torch.equal(again_numbers, numbers)


def test_more_neighbours_than_there_are_vectors_are_refused() -> None:
    with pytest.raises(ValueError, match="k must be 1 to 3"):
        search(torch.zeros(1, 4), torch.zeros(3, 4), 4)
