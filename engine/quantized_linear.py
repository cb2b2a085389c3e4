"""Linear layers on a GPU with float8 (W8A8) or 4-bit (W4A16) weights: rounded when loaded, or stored so (AWQ, GPTQ)."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from kernels.int4_matmul import Int4Weight, int4_matmul, joined, quantize
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
    """y = x · Wᵀ + b with 4-bit weights."""

    def __init__(self, weight: Int4Weight, bias: Tensor | None) -> None:
        self.weight = weight
        self.bias = bias

    @classmethod
    def rounded(cls, weight: Tensor, bias: Tensor | None) -> Int4Linear:
        """Of a matrix [out, in], in groups of `GROUP` inputs (or all of them, where they cannot be cut so)."""
        return cls(quantize(weight, GROUP if weight.shape[1] % GROUP == 0 else weight.shape[1]), bias)

    def __call__(self, x: Tensor) -> Tensor:
        """x: [tokens, in]; returns [tokens, out] in x's dtype."""
        return int4_matmul(x, self.weight, self.bias)


class SplitLinear:
    """Layers of the same x, their results side by side: for 4-bit weights whose inputs are moved differently."""

    def __init__(self, layers: Sequence[Int4Linear]) -> None:
        self.layers = layers

    def __call__(self, x: Tensor) -> Tensor:
        """x: [tokens, in]; returns [tokens, all outs] in x's dtype."""
        return torch.cat([layer(x) for layer in self.layers], dim=-1)


def int4_linear(weights: Sequence[Int4Weight], biases: Sequence[Tensor] | None) -> Int4Linear | SplitLinear:
    """One product for all where they go together."""
    whole = joined(weights)
    if whole is not None:
        return Int4Linear(whole, None if biases is None else torch.cat(list(biases)))
    return SplitLinear([Int4Linear(w, None if biases is None else biases[i]) for i, w in enumerate(weights)])
