"""SiLU-and-multiply and GELU-and-multiply in Triton: one program a row and block of columns.

    out = f(gate) · up,   silu(z) = z · sigmoid(z),   gelu(z) = z / 2 · (1 + tanh(√(2/π) · (z + 0.044715 z³)))

gate_up: [rows, 2 · intermediate] contiguous, gate first, float32, float16 or bfloat16; f is computed in float32 and
rounded before the product, as torch does. Source: Shazeer, "GLU Variants Improve Transformer" (2020).
"""

from __future__ import annotations

from collections.abc import Iterator

import triton
import triton.language as tl
from torch import Tensor

from kernels.gpu.compile_case import CompileCase

BLOCK = 1024


@triton.jit
def _act_and_mul(gate_up, out, width, BLOCK: tl.constexpr, GELU: tl.constexpr):
    row = tl.program_id(0).to(tl.int64)
    columns = tl.program_id(1) * BLOCK + tl.arange(0, BLOCK)
    inside = columns < width
    gate = tl.load(gate_up + row * 2 * width + columns, mask=inside, other=0.0).to(tl.float32)
    up = tl.load(gate_up + row * 2 * width + width + columns, mask=inside, other=0.0).to(tl.float32)
    if GELU:
        # z/2 · (1 + tanh(u)) = z · sigmoid(2u)
        inner = 1.5957691216057308 * (gate + 0.044715 * gate * gate * gate)
    else:
        inner = gate
    activated = (gate / (1.0 + tl.exp(-inner))).to(out.dtype.element_ty).to(tl.float32)
    tl.store(out + row * width + columns, (activated * up).to(out.dtype.element_ty), mask=inside)


def _launch(gate_up: Tensor, gelu: bool) -> Tensor:
    width = gate_up.shape[-1] // 2
    rows = gate_up.reshape(-1, 2 * width).contiguous()
    out = rows.new_empty(rows.shape[0], width)
    if rows.shape[0]:
        _act_and_mul[(rows.shape[0], triton.cdiv(width, BLOCK))](rows, out, width, BLOCK=BLOCK, GELU=gelu)
    return out.view(*gate_up.shape[:-1], width)


def silu_and_mul(gate_up: Tensor) -> Tensor:
    """gate_up: [..., 2 · intermediate]; returns [..., intermediate]."""
    return _launch(gate_up, gelu=False)


def gelu_and_mul(gate_up: Tensor) -> Tensor:
    """gate_up: [..., 2 · intermediate]; returns [..., intermediate]."""
    return _launch(gate_up, gelu=True)


def compile_cases() -> Iterator[CompileCase]:
    for gelu in (False, True):
        yield CompileCase(
            f"{'gelu' if gelu else 'silu'}_and_mul bf16",
            _act_and_mul,
            {"gate_up": "*bf16", "out": "*bf16", "width": "i32"},
            {"BLOCK": BLOCK, "GELU": gelu},
            aligned=frozenset({"width"}),
        )
