"""SiLU-and-multiply, the gate of a Llama-family feed-forward layer; and the same with GELU (its tanh form).

    out = silu(gate) · up,   silu(z) = z · sigmoid(z)

Source: Shazeer, "GLU Variants Improve Transformer" (2020).
"""

from __future__ import annotations

from torch import Tensor
from torch.nn.functional import gelu, silu

from kernels.dispatch import uses_triton


def reference(gate_up: Tensor) -> Tensor:
    """gate_up: [tokens, 2 · intermediate], gate first; returns [tokens, intermediate] in the same dtype."""
    gate, up = gate_up.chunk(2, dim=-1)
    return silu(gate) * up


def gelu_reference(gate_up: Tensor) -> Tensor:
    """The same with gelu(z) = z / 2 · (1 + tanh(√(2/π) · (z + 0.044715 z³))) in place of silu."""
    gate, up = gate_up.chunk(2, dim=-1)
    return gelu(gate, approximate="tanh") * up


def silu_and_mul(gate_up: Tensor) -> Tensor:
    """`reference` by the fastest path of the device."""
    if uses_triton(gate_up):
        from kernels.gpu import silu_and_mul as gpu

        return gpu.silu_and_mul(gate_up)
    return reference(gate_up)


def gelu_and_mul(gate_up: Tensor) -> Tensor:
    """`gelu_reference` by the fastest path of the device."""
    if uses_triton(gate_up):
        from kernels.gpu import silu_and_mul as gpu

        return gpu.gelu_and_mul(gate_up)
    return gelu_reference(gate_up)
