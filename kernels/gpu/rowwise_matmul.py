"""W8A8 in Triton: rows of activations rounded to 8 bits, and their product with 8-bit weights (int8 or float8 e4m3).

    y[m, n] = (Σ_k x8[m, k] · w8[n, k]) · x_scale[m] · w_scale[n] + bias[n]

Formulas and sources as `kernels.rowwise_matmul`. int8 sums are int32 and exact; float8 sums are float32. Where a card's
tensor cores take no float8 (sm_80), and in the interpreter, its codes are widened to float16, which holds them exactly.
"""

from __future__ import annotations

from collections.abc import Iterator

import torch
import triton
import triton.language as tl
from torch import Tensor

from kernels.gpu.compile_case import CompileCase
from kernels.gpu.float8 import decode_e4m3, encode_e4m3

BLOCK_N, BLOCK_K = 64, 128
FEW_ROWS, MANY_ROWS = 16, 64


@triton.jit
def _quantize_rows(x, codes, scales, width, BLOCK: tl.constexpr, FLOAT8: tl.constexpr):
    row = tl.program_id(0).to(tl.int64)
    lanes = tl.arange(0, BLOCK)
    largest = tl.full([], 0.0, tl.float32)
    for start in range(0, width, BLOCK):
        columns = start + lanes
        value = tl.load(x + row * width + columns, mask=columns < width, other=0.0).to(tl.float32)
        largest = tl.maximum(largest, tl.max(tl.abs(value), axis=0))
    scale = tl.maximum(largest, 1e-12) / (448.0 if FLOAT8 else 127.0)
    tl.store(scales + row, scale)
    for start in range(0, width, BLOCK):
        columns = start + lanes
        value = tl.load(x + row * width + columns, mask=columns < width, other=0.0).to(tl.float32) / scale
        if FLOAT8:
            code = encode_e4m3(value)
        else:
            # Adding 1.5 · 2²³ rounds to whole numbers, ties to even.
            code = ((value + 12582912.0) - 12582912.0).to(tl.int8)
        tl.store(codes + row * width + columns, code, mask=columns < width)


@triton.jit(do_not_specialize=["m_rows"])
def _rowwise_matmul(
    x, weight, x_scales, w_scales, bias, out, m_rows, n_columns, k_inputs,
    BLOCK_M: tl.constexpr, BLOCK_N: tl.constexpr, BLOCK_K: tl.constexpr, HAS_BIAS: tl.constexpr, KIND: tl.constexpr,
):  # fmt: skip
    """KIND: "int8", "float8" (as the card multiplies it) or "float8 bits" (uint8 codes, widened)."""
    n = tl.program_id(0) * BLOCK_N + tl.arange(0, BLOCK_N)
    m = tl.program_id(1) * BLOCK_M + tl.arange(0, BLOCK_M)
    n_inside, m_inside = n < n_columns, m < m_rows
    acc = tl.zeros([BLOCK_M, BLOCK_N], tl.int32 if KIND == "int8" else tl.float32)
    for start in range(0, k_inputs, BLOCK_K):
        k = start + tl.arange(0, BLOCK_K)
        x_place = m.to(tl.int64)[:, None] * k_inputs + k[None, :]
        w_place = n.to(tl.int64)[None, :] * k_inputs + k[:, None]
        x_mask, w_mask = m_inside[:, None] & (k < k_inputs)[None, :], n_inside[None, :] & (k < k_inputs)[:, None]
        if KIND == "float8":
            acc = tl.dot(
                tl.load(x + x_place, mask=x_mask, other=0.0), tl.load(weight + w_place, mask=w_mask, other=0.0), acc
            )
        elif KIND == "float8 bits":
            wide_x = decode_e4m3(tl.load(x + x_place, mask=x_mask, other=0)).to(tl.float16)
            wide_w = decode_e4m3(tl.load(weight + w_place, mask=w_mask, other=0)).to(tl.float16)
            acc = tl.dot(wide_x, wide_w, acc)
        else:
            acc = tl.dot(
                tl.load(x + x_place, mask=x_mask, other=0),
                tl.load(weight + w_place, mask=w_mask, other=0),
                acc,
                out_dtype=tl.int32,
            )
    x_scale = tl.load(x_scales + m, mask=m_inside, other=0.0)
    w_scale = tl.load(w_scales + n, mask=n_inside, other=0.0)
    result = acc.to(tl.float32) * x_scale[:, None] * w_scale[None, :]
    if HAS_BIAS:
        result += tl.load(bias + n, mask=n_inside, other=0.0).to(tl.float32)[None, :]
    place = m.to(tl.int64)[:, None] * n_columns + n[None, :]
    tl.store(out + place, result.to(out.dtype.element_ty), mask=m_inside[:, None] & n_inside[None, :])


def quantize_rows(x: Tensor, dtype: torch.dtype) -> tuple[Tensor, Tensor]:
    """`kernels.rowwise_matmul.quantize_rows`. x: [rows, in]."""
    x = x.contiguous()
    codes = torch.empty(x.shape, dtype=dtype, device=x.device)
    scales = torch.empty(x.shape[0], dtype=torch.float32, device=x.device)
    is_float8 = dtype == torch.float8_e4m3fn
    if x.shape[0]:
        _quantize_rows[(x.shape[0],)](
            x, codes.view(torch.uint8) if is_float8 else codes, scales, x.shape[1], BLOCK=1024, FLOAT8=is_float8
        )
    return codes, scales


def rowwise_matmul(x: Tensor, weight: Tensor, w_scales: Tensor, bias: Tensor | None) -> Tensor:
    """x: [rows, in] in the result's dtype; weight: [out, in] int8 or float8 e4m3; w_scales: [out] float32."""
    codes, x_scales = quantize_rows(x, weight.dtype)
    rows, columns = x.shape[0], weight.shape[0]
    out = x.new_empty(rows, columns)
    if not rows:
        return out
    kind = "int8"
    if weight.dtype == torch.float8_e4m3fn:
        kind = "float8" if x.is_cuda and torch.cuda.get_device_capability(x.device) >= (8, 9) else "float8 bits"
        if kind == "float8 bits":
            codes, weight = codes.view(torch.uint8), weight.view(torch.uint8)
    block_m = FEW_ROWS if rows <= FEW_ROWS else MANY_ROWS
    _rowwise_matmul[(triton.cdiv(columns, BLOCK_N), triton.cdiv(rows, block_m))](
        codes, weight, x_scales, w_scales, out if bias is None else bias, out, rows, columns, x.shape[1],
        BLOCK_M=block_m, BLOCK_N=BLOCK_N, BLOCK_K=BLOCK_K, HAS_BIAS=bias is not None, KIND=kind, num_warps=4,
        num_stages=3,
    )  # fmt: skip
    return out


def compile_cases() -> Iterator[CompileCase]:
    for float8 in (False, True):
        yield CompileCase(
            f"quantize_rows bf16 to {'float8' if float8 else 'int8'}",
            _quantize_rows,
            {"x": "*bf16", "codes": "*u8" if float8 else "*i8", "scales": "*fp32", "width": "i32"},
            {"BLOCK": 1024, "FLOAT8": float8},
            spill_bytes=64,
            aligned=frozenset({"width"}),
        )
    for kind, dtype, targets in (
        ("int8", "*i8", (80, 90)),
        ("float8", "*fp8e4nv", (90,)),
        ("float8 bits", "*u8", (80,)),
    ):
        for block_m in (FEW_ROWS, MANY_ROWS):
            yield CompileCase(
                f"rowwise_matmul {kind} to bf16 rows={block_m}",
                _rowwise_matmul,
                {
                    "x": dtype, "weight": dtype, "x_scales": "*fp32", "w_scales": "*fp32", "bias": "*bf16",
                    "out": "*bf16", **dict.fromkeys(("m_rows", "n_columns", "k_inputs"), "i32"),
                },
                {"BLOCK_M": block_m, "BLOCK_N": BLOCK_N, "BLOCK_K": BLOCK_K, "HAS_BIAS": False, "KIND": kind},
                num_stages=3,
                spill_bytes=64,
                targets=targets,
                aligned=frozenset({"n_columns", "k_inputs"}),
            )  # fmt: skip
