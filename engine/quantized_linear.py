"""Linear layers on a GPU whose weights are rounded when they are loaded: float8 (W8A8) or 4 bits (W4A16)."""

from __future__ import annotations

import torch
from torch import Tensor

from kernels.int4_matmul import int4_matmul, quantize
from kernels.rowwise_matmul import RowwiseWeight, rowwise_matmul

# `EngineConfig.dtype` for them; activations, keys, values, embeddings and head stay bfloat16.
FLOAT8, INT4 = "fp8", "int4"
FORMATS = (FLOAT8, INT4)
# Inputs that share a scale in 4 bits.
GROUP = 128


class Float8Linear:
    """y = x · Wᵀ + b with one float8 scale for each output and each row of x."""

    def __init__(self, weight: Tensor, bias: Tensor | None) -> None:
        self.weight = RowwiseWeight.of(weight, torch.float8_e4m3fn)
        self.bias = bias

    def __call__(self, x: Tensor) -> Tensor:
        """x: [tokens, in]; returns [tokens, out] in x's dtype."""
        return rowwise_matmul(x, self.weight, self.bias)


class Int4Linear:
    """y = x · Wᵀ + b with 4-bit weights, in groups of `GROUP` inputs (or all of them, where they cannot be cut so)."""

    def __init__(self, weight: Tensor, bias: Tensor | None) -> None:
        self.weight = quantize(weight, GROUP if weight.shape[1] % GROUP == 0 else weight.shape[1])
        self.bias = bias

    def __call__(self, x: Tensor) -> Tensor:
        """x: [tokens, in]; returns [tokens, out] in x's dtype."""
        return int4_matmul(x, self.weight, self.bias)
