"""SiLU-and-multiply, the gate of a Llama-family feed-forward layer.

    out = silu(gate) · up,   silu(z) = z · sigmoid(z)

Source: Shazeer, "GLU Variants Improve Transformer" (2020).
"""

from __future__ import annotations

import torch
from torch import Tensor


def reference(gate_up: Tensor) -> Tensor:
    """gate_up: [tokens, 2 · intermediate], gate first; returns [tokens, intermediate] in the same dtype."""
    gate, up = gate_up.chunk(2, dim=-1)
    return torch.nn.functional.silu(gate) * up


silu_and_mul = reference
