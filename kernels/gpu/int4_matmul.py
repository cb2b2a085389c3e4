"""W4A16 in Triton: a product with 4-bit weights, the second pass that adds up its splits, and unpacking for many rows.

    y[m, n] = Σ_k x[m, k] · round((code[k, n] − zero[g, n]) · scale[g, n]) + bias[n],   g = k // group

(rounded to x's dtype, summed in float32). Layout and source as `kernels.int4_matmul`. A tile of packed words
[BLOCK_W, BLOCK_N] gives eight sub-tiles, one for each nibble; each meets the columns of x it belongs to, so that no
word is read twice. K is cut into splits, whose sums are added in order by a second launch: no atomics, so the same bits
every time.
"""

from __future__ import annotations

from collections.abc import Iterator

import torch
import triton
import triton.language as tl
from torch import Tensor

from kernels.gpu.compile_case import CompileCase

# Rows of a small tile; and those above which weights are unpacked for a dense product instead.
FEW_ROWS, MANY_ROWS = 16, 256
BLOCK_N, BLOCK_K = 64, 128
SPLITS = 4
# Words and columns that a program unpacks.
UNPACK_W, UNPACK_N = 8, 128


@triton.jit(do_not_specialize=["m_rows"])
def _int4_matmul(
    x, words, scales, zeros, out, m_rows, n_columns, k_words, x_stride, group, words_per_split,
    BLOCK_M: tl.constexpr, BLOCK_N: tl.constexpr, BLOCK_W: tl.constexpr, ONE_GROUP: tl.constexpr,
):  # fmt: skip
    """words: [k_words, n_columns] int32; out: [splits, m_rows, n_columns] float32.

    ONE_GROUP: a tile of words lies in one group, whose scales and zeros are then read once for it.
    """
    n = tl.program_id(0) * BLOCK_N + tl.arange(0, BLOCK_N)
    m = tl.program_id(1) * BLOCK_M + tl.arange(0, BLOCK_M)
    split = tl.program_id(2)
    n_inside, m_inside = n < n_columns, m < m_rows
    acc = tl.zeros([BLOCK_M, BLOCK_N], tl.float32)
    end = tl.minimum((split + 1) * words_per_split, k_words)
    for start in range(split * words_per_split, end, BLOCK_W):
        w = start + tl.arange(0, BLOCK_W)
        inside = (w < end)[:, None] & n_inside[None, :]
        packed = tl.load(words + w.to(tl.int64)[:, None] * n_columns + n[None, :], mask=inside, other=0)
        if ONE_GROUP:
            place = (tl.cast(start * 8 // group, tl.int64) * n_columns + n)[None, :]
            known = n_inside[None, :]
        else:
            place = (w * 8 // group).to(tl.int64)[:, None] * n_columns + n[None, :]
            known = inside
        scale = tl.load(scales + place, mask=known, other=0.0).to(tl.float32)
        zero = tl.load(zeros + place, mask=known, other=0.0).to(tl.float32)
        for nibble in tl.static_range(8):
            code = ((packed >> (4 * nibble)) & 15).to(tl.float32)
            weight = ((code - zero) * scale).to(x.dtype.element_ty)
            columns = m.to(tl.int64)[:, None] * x_stride + w[None, :] * 8 + nibble
            activations = tl.load(x + columns, mask=m_inside[:, None] & (w < end)[None, :], other=0.0)
            acc = tl.dot(activations, weight, acc, input_precision="ieee")
    place = (split.to(tl.int64) * m_rows + m)[:, None] * n_columns + n[None, :]
    tl.store(out + place, acc.to(out.dtype.element_ty), mask=m_inside[:, None] & n_inside[None, :])


@triton.jit
def _add_splits(parts, bias, out, size, n_columns, splits, BLOCK: tl.constexpr, HAS_BIAS: tl.constexpr):
    """out[i] = Σ parts[s, i] over the splits, first to last, + bias."""
    index = tl.program_id(0).to(tl.int64) * BLOCK + tl.arange(0, BLOCK)
    inside = index < size
    acc = tl.zeros([BLOCK], tl.float32)
    for split in range(splits):
        acc += tl.load(parts + split * size + index, mask=inside, other=0.0)
    if HAS_BIAS:
        acc += tl.load(bias + index % n_columns, mask=inside, other=0.0).to(tl.float32)
    tl.store(out + index, acc.to(out.dtype.element_ty), mask=inside)


@triton.jit
def _unpack(words, scales, zeros, out, n_columns, k_words, group, BLOCK_W: tl.constexpr, BLOCK_N: tl.constexpr):
    """out: [8 · k_words, n_columns], rounded as `_int4_matmul` rounds it."""
    n = tl.program_id(0) * BLOCK_N + tl.arange(0, BLOCK_N)
    w = tl.program_id(1) * BLOCK_W + tl.arange(0, BLOCK_W)
    inside = (w < k_words)[:, None] & (n < n_columns)[None, :]
    packed = tl.load(words + w.to(tl.int64)[:, None] * n_columns + n[None, :], mask=inside, other=0)
    place = (w * 8 // group).to(tl.int64)[:, None] * n_columns + n[None, :]
    scale = tl.load(scales + place, mask=inside, other=0.0).to(tl.float32)
    zero = tl.load(zeros + place, mask=inside, other=0.0).to(tl.float32)
    for nibble in tl.static_range(8):
        value = (((packed >> (4 * nibble)) & 15).to(tl.float32) - zero) * scale
        rows = (w * 8 + nibble).to(tl.int64)[:, None] * n_columns
        tl.store(out + rows + n[None, :], value.to(out.dtype.element_ty), mask=inside)


def unpack(words: Tensor, scales: Tensor, zeros: Tensor, group: int, dtype: torch.dtype) -> Tensor:
    """`kernels.int4_matmul.Int4Weight.dequantize`: [in, out]."""
    k_words, columns = words.shape
    out = torch.empty((8 * k_words, columns), dtype=dtype, device=words.device)
    _unpack[(triton.cdiv(columns, UNPACK_N), triton.cdiv(k_words, UNPACK_W))](
        words, scales, zeros, out, columns, k_words, group, BLOCK_W=UNPACK_W, BLOCK_N=UNPACK_N
    )
    return out


def int4_matmul(x: Tensor, words: Tensor, scales: Tensor, zeros: Tensor, group: int, bias: Tensor | None) -> Tensor:
    """x: [rows, in]; the weight's parts as in `kernels.int4_matmul.Int4Weight`; returns [rows, out] in x's dtype."""
    x = x.contiguous()
    rows, (k_words, columns) = x.shape[0], words.shape
    # Which row a result belongs to changes nothing in it: the number of splits depends on the weight alone.
    splits = min(SPLITS, triton.cdiv(k_words * 8, BLOCK_K))
    words_per_split = triton.cdiv(triton.cdiv(k_words, splits), BLOCK_K // 8) * (BLOCK_K // 8)
    splits = triton.cdiv(k_words, words_per_split)
    parts = torch.empty((splits, rows, columns), dtype=torch.float32, device=x.device)
    out = x.new_empty(rows, columns)
    if not rows:
        return out
    block_m = FEW_ROWS if rows <= FEW_ROWS else 64
    _int4_matmul[(triton.cdiv(columns, BLOCK_N), triton.cdiv(rows, block_m), splits)](
        x, words, scales, zeros, parts, rows, columns, k_words, x.stride(0), group, words_per_split,
        BLOCK_M=block_m, BLOCK_N=BLOCK_N, BLOCK_W=BLOCK_K // 8, ONE_GROUP=group % BLOCK_K == 0,
        num_warps=4, num_stages=2,
    )  # fmt: skip
    size = rows * columns
    _add_splits[(triton.cdiv(size, 1024),)](
        parts, out if bias is None else bias, out, size, columns, splits, BLOCK=1024, HAS_BIAS=bias is not None
    )
    return out


def compile_cases() -> Iterator[CompileCase]:
    for block_m, one_group in ((FEW_ROWS, True), (FEW_ROWS, False), (64, True), (64, False)):
        integers = ("m_rows", "n_columns", "k_words", "x_stride", "group", "words_per_split")
        yield CompileCase(
            f"int4_matmul bf16 rows={block_m} groups of {'128' if one_group else '32'}",
            _int4_matmul,
            {
                "x": "*bf16", "words": "*i32", "scales": "*fp16", "zeros": "*fp16", "out": "*fp32",
                **dict.fromkeys(integers, "i32"),
            },
            {"BLOCK_M": block_m, "BLOCK_N": BLOCK_N, "BLOCK_W": BLOCK_K // 8, "ONE_GROUP": one_group},
            spill_bytes=64,
            aligned=frozenset(integers) - {"m_rows"},
        )  # fmt: skip
    yield CompileCase(
        "int4_matmul unpack bf16",
        _unpack,
        {
            "words": "*i32", "scales": "*fp16", "zeros": "*fp16", "out": "*bf16",
            **dict.fromkeys(("n_columns", "k_words", "group"), "i32"),
        },
        {"BLOCK_W": UNPACK_W, "BLOCK_N": UNPACK_N},
        aligned=frozenset({"n_columns", "k_words", "group"}),
    )  # fmt: skip
    for has_bias in (False, True):
        yield CompileCase(
            f"add_splits bf16{' bias' if has_bias else ''}",
            _add_splits,
            {
                "parts": "*fp32", "bias": "*bf16", "out": "*bf16",
                **dict.fromkeys(("size", "n_columns", "splits"), "i32"),
            },
            {"BLOCK": 1024, "HAS_BIAS": has_bias},
            spill_bytes=64,
            aligned=frozenset({"size", "n_columns"}),
        )  # fmt: skip
