"""A linear layer over floating-point weights, for the torch decoder; packed weights are `kernels.packed`'s."""

from __future__ import annotations

import torch
from torch import Tensor
from torch.nn.functional import linear, pad

# Up to this many rows a product takes as long as reading its weights, so that half the bytes win over slow arithmetic;
# on CPUs with AVX2 only, float32 is ahead again from about four rows on.
FEW_ROWS = 3
# Rows of every product in deterministic mode. Libraries pick their loops, and so the order of additions, by the number
# of rows; with one number of rows it is one order, wherever in it a row stands.
TILE_ROWS = 16


class Linear:
    """y = x · Wᵀ + b with W [out, in] in a floating-point dtype.

    With `halved`, a bfloat16 copy of the weight serves steps of few rows: for CPUs that compute in float32 and whose
    decode speed is the speed of their memory. It costs half as much memory again.

    With `deterministic`, a row's result does not depend on the number or the content of the other rows.
    """

    def __init__(
        self, weight: Tensor, bias: Tensor | None = None, *, halved: bool = False, deterministic: bool = False
    ) -> None:
        assert not (halved and deterministic), "two weight formats by number of rows can not give one result"
        self.weight = weight
        self.bias = bias
        self.deterministic = deterministic
        self.few_rows_weight = weight.to(torch.bfloat16) if halved else None
        self.few_rows_bias = bias.to(torch.bfloat16) if halved and bias is not None else None

    def __call__(self, x: Tensor) -> Tensor:
        """x: [tokens, in]; returns [tokens, out] in x's dtype."""
        if self.few_rows_weight is not None and x.shape[0] <= FEW_ROWS:
            return linear(x.to(torch.bfloat16), self.few_rows_weight, self.few_rows_bias).to(x.dtype)
        if self.deterministic:
            return self._in_tiles(x)
        return linear(x, self.weight, self.bias)

    def _in_tiles(self, x: Tensor) -> Tensor:
        num_rows = x.shape[0]
        tiles = torch.split(pad(x, (0, 0, 0, -num_rows % TILE_ROWS)), TILE_ROWS)
        return torch.cat([linear(tile, self.weight, self.bias) for tile in tiles])[:num_rows]
