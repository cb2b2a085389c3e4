"""Exact search: the k vectors with the largest inner product with each query.

    score[q, v] = scale[v] · Σ_d query[q, d] · vector[v, d]

float16, bfloat16 or float32 vectors, or int8 with one scale for each. Of equal scores the lower number comes first.
Source: Johnson et al., "Billion-scale similarity search with GPUs" (2017): the best are selected while scores are made.
"""

from __future__ import annotations

import torch
from torch import Tensor

from kernels.dispatch import uses_triton

MAX_K = 256


def reference(queries: Tensor, vectors: Tensor, k: int, scales: Tensor | None = None) -> tuple[Tensor, Tensor]:
    """queries: [queries, dim] floating point; vectors: [vectors, dim]; scales: [vectors] float32 or None.

    Returns (scores [queries, k] float32, numbers [queries, k] int64), best first.
    """
    scores = queries.float() @ vectors.float().t()
    if scales is not None:
        scores = scores * scales
    ordered, picked = scores.sort(dim=1, descending=True, stable=True)
    return ordered[:, :k], picked[:, :k]


def search(queries: Tensor, vectors: Tensor, k: int, scales: Tensor | None = None) -> tuple[Tensor, Tensor]:
    """`reference` by the fastest path of the device; queries in the vectors' dtype (float16 for int8 vectors).

    Raises ValueError for a k below 1, or above the number of vectors.
    """
    if not 1 <= k <= vectors.shape[0]:
        raise ValueError(f"k must be 1 to {vectors.shape[0]:,}, the number of vectors; got {k:,}")
    if k <= MAX_K and queries.shape[0] and uses_triton(vectors):
        from kernels.gpu import vector_search as gpu

        return gpu.search(queries, vectors, k, scales)
    if scales is None and vectors.dtype == torch.float32:
        scores = queries @ vectors.t()
        ordered, picked = scores.sort(dim=1, descending=True, stable=True)
        return ordered[:, :k], picked[:, :k]
    return reference(queries, vectors, k, scales)
