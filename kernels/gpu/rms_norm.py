"""RMSNorm with optional residual add in Triton: one program a row, the whole row in registers.

    total = x + residual  (rounded to x's dtype)        y = weight · round(total / sqrt(mean(total²) + eps))

x, residual, y, total: [rows, hidden] contiguous, float32, float16 or bfloat16; weight: [hidden]. Sums are float32.
Source: Zhang & Sennrich, "Root Mean Square Layer Normalization" (2019).
"""

from __future__ import annotations

from collections.abc import Iterator

import torch
import triton
import triton.language as tl
from torch import Tensor

from kernels.gpu.compile_case import CompileCase


@triton.jit
def _rms_norm(x, residual, weight, out, total, hidden, eps, BLOCK: tl.constexpr, ADDS: tl.constexpr):
    row = tl.program_id(0).to(tl.int64) * hidden
    columns = tl.arange(0, BLOCK)
    inside = columns < hidden
    wide = tl.load(x + row + columns, mask=inside, other=0.0).to(tl.float32)
    if ADDS:
        wide += tl.load(residual + row + columns, mask=inside, other=0.0).to(tl.float32)
        rounded = wide.to(total.dtype.element_ty)
        tl.store(total + row + columns, rounded, mask=inside)
        wide = rounded.to(tl.float32)
    mean = tl.sum(wide * wide, axis=0) / hidden
    normed = (wide * (1.0 / tl.sqrt(mean + eps))).to(out.dtype.element_ty).to(tl.float32)
    scale = tl.load(weight + columns, mask=inside, other=0.0).to(tl.float32)
    tl.store(out + row + columns, (normed * scale).to(out.dtype.element_ty), mask=inside)


def _num_warps(block: int) -> int:
    return min(max(block // 512, 1), 16)


def rms_norm(x: Tensor, weight: Tensor, eps: float) -> Tensor:
    """`kernels.rms_norm.reference`. x: [..., hidden]."""
    rows = x.reshape(-1, x.shape[-1]).contiguous()
    out = torch.empty_like(rows)
    block = triton.next_power_of_2(rows.shape[1])
    if rows.shape[0]:
        _rms_norm[(rows.shape[0],)](
            rows, rows, weight, out, out, rows.shape[1], eps, BLOCK=block, ADDS=False, num_warps=_num_warps(block)
        )
    return out.view(x.shape)


def add_rms_norm(x: Tensor, residual: Tensor, weight: Tensor, eps: float) -> tuple[Tensor, Tensor]:
    """`kernels.rms_norm.add_rms_norm`. x, residual: [..., hidden]."""
    rows, added = (tensor.reshape(-1, x.shape[-1]).contiguous() for tensor in (x, residual))
    out, total = torch.empty_like(rows), torch.empty_like(rows)
    block = triton.next_power_of_2(rows.shape[1])
    if rows.shape[0]:
        _rms_norm[(rows.shape[0],)](
            rows, added, weight, out, total, rows.shape[1], eps, BLOCK=block, ADDS=True, num_warps=_num_warps(block)
        )
    return out.view(x.shape), total.view(x.shape)


def compile_cases() -> Iterator[CompileCase]:
    """Hidden sizes from SmolLM2-135M's to Llama-3.1-70B's."""
    for hidden in (576, 1024, 4096, 8192):
        block = triton.next_power_of_2(hidden)
        for adds in (False, True):
            yield CompileCase(
                f"{'add_' if adds else ''}rms_norm bf16 hidden={hidden}",
                _rms_norm,
                {**dict.fromkeys(("x", "residual", "weight", "out", "total"), "*bf16"), "hidden": "i32", "eps": "fp32"},
                {"BLOCK": block, "ADDS": adds},
                num_warps=_num_warps(block),
                aligned=frozenset({"hidden"}),
            )
