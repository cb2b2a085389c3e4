"""Exact top-k inner products in Triton: scores are never written; each program keeps its running best.

Formula and shapes as `kernels.vector_search`. A program takes a tile of queries over one part of the vectors. A score
and its vector's number make one 64-bit key (the score's bits in order above, the number's complement below), so that
the largest key is the best score and, of equal scores, the lowest number. A tile of vectors is merged, by taking the
largest of both K times, only if one of its scores is above the least kept, which soon becomes rare. The parts' lists
are merged by a sort of their keys.
"""

from __future__ import annotations

from collections.abc import Iterator

import torch
import triton
import triton.language as tl
from torch import Tensor

from kernels.gpu.compile_case import CompileCase

BLOCK_Q, BLOCK_V, BLOCK_D = 16, 64, 64
MAX_PARTS = 264


@triton.jit(do_not_specialize=["num_queries", "num_vectors"])
def _search(
    queries, vectors, scales, keys, num_queries, num_vectors, dim, part_size,
    BLOCK_Q: tl.constexpr, BLOCK_V: tl.constexpr, BLOCK_D: tl.constexpr, K: tl.constexpr, SCALED: tl.constexpr,
):  # fmt: skip
    """keys: [parts, num_queries, K] int64, best first."""
    q = tl.program_id(0) * BLOCK_Q + tl.arange(0, BLOCK_Q)
    part = tl.program_id(1).to(tl.int64)
    q_inside = q < num_queries
    places = tl.arange(0, K)
    least = tl.full([BLOCK_Q], -(2**63), tl.int64)
    best = tl.full([BLOCK_Q, K], -(2**63), tl.int64)
    end = tl.minimum((part + 1) * part_size, num_vectors)
    for start in range(part * part_size, end, BLOCK_V):
        v = start + tl.arange(0, BLOCK_V)
        v_inside = v < end
        scores = tl.zeros([BLOCK_Q, BLOCK_V], tl.float32)
        for first in range(0, dim, BLOCK_D):
            d = first + tl.arange(0, BLOCK_D)
            d_inside = d < dim
            rows = tl.load(
                queries + q.to(tl.int64)[:, None] * dim + d[None, :],
                mask=q_inside[:, None] & d_inside[None, :],
                other=0.0,
            )
            columns = tl.load(
                vectors + v.to(tl.int64)[None, :] * dim + d[:, None],
                mask=v_inside[None, :] & d_inside[:, None],
                other=0.0,
            )
            scores = tl.dot(rows, columns.to(rows.dtype), scores, input_precision="ieee")
        if SCALED:
            scores *= tl.load(scales + v, mask=v_inside, other=0.0)[None, :]
        bits = (scores + 0.0).to(tl.int32, bitcast=True)
        ordered = (bits ^ ((bits >> 31) & 0x7FFFFFFF)).to(tl.int64)
        key = (ordered << 32) | (0xFFFFFFFF - v.to(tl.int64))[None, :]
        key = tl.where(v_inside[None, :], key, -(2**63))
        if tl.max((tl.max(key, axis=1) > least).to(tl.int32), axis=0) > 0:
            kept = best
            for rank in range(K):
                largest = tl.maximum(tl.max(kept, axis=1), tl.max(key, axis=1))
                best = tl.where((places == rank)[None, :], largest[:, None], best)
                kept = tl.where(kept == largest[:, None], -(2**63), kept)
                key = tl.where(key == largest[:, None], -(2**63), key)
            least = tl.min(best, axis=1)
    place = (part * num_queries + q)[:, None] * K + places[None, :]
    tl.store(keys + place, best, mask=q_inside[:, None])


def search(queries: Tensor, vectors: Tensor, k: int, scales: Tensor | None) -> tuple[Tensor, Tensor]:
    """`kernels.vector_search.search` for k up to 256."""
    queries, vectors = queries.contiguous(), vectors.contiguous()
    num_queries, num_vectors = queries.shape[0], vectors.shape[0]
    width = max(16, triton.next_power_of_2(k))
    num_parts = min(MAX_PARTS, triton.cdiv(num_vectors, 4 * BLOCK_V))
    part_size = triton.cdiv(triton.cdiv(num_vectors, num_parts), BLOCK_V) * BLOCK_V
    num_parts = triton.cdiv(num_vectors, part_size)
    keys = torch.empty((num_parts, num_queries, width), dtype=torch.int64, device=queries.device)
    _search[(triton.cdiv(num_queries, BLOCK_Q), num_parts)](
        queries, vectors, keys if scales is None else scales, keys, num_queries, num_vectors, queries.shape[1],
        part_size, BLOCK_Q=BLOCK_Q, BLOCK_V=BLOCK_V, BLOCK_D=BLOCK_D, K=width, SCALED=scales is not None,
        num_warps=_num_warps(width), num_stages=2,
    )  # fmt: skip
    merged = keys.transpose(0, 1).reshape(num_queries, -1).sort(dim=1, descending=True).values[:, :k]
    ordered = (merged >> 32).to(torch.int32)
    scores = (ordered ^ ((ordered >> 31) & 0x7FFFFFFF)).view(torch.float32)
    return scores, 0xFFFFFFFF - (merged & 0xFFFFFFFF)


def _num_warps(width: int) -> int:
    return 4 if width <= 64 else 8


def compile_cases() -> Iterator[CompileCase]:
    for width in (16, 64, 128):
        for kind, query, vector in (("fp16", "*fp16", "*fp16"), ("bf16", "*bf16", "*bf16"), ("int8", "*fp16", "*i8")):
            yield CompileCase(
                f"vector_search {kind} k={width}",
                _search,
                {
                    "queries": query, "vectors": vector, "scales": "*fp32", "keys": "*i64",
                    **dict.fromkeys(("num_queries", "num_vectors", "dim", "part_size"), "i32"),
                },
                {
                    "BLOCK_Q": BLOCK_Q, "BLOCK_V": BLOCK_V, "BLOCK_D": BLOCK_D, "K": width, "SCALED": kind == "int8",
                },
                num_warps=_num_warps(width),
                spill_bytes=64,
                aligned=frozenset({"dim"}),
            )  # fmt: skip
