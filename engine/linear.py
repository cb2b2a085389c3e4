"""Weight formats of a linear layer behind one call. Today: plain floating point; packed formats join here."""

from __future__ import annotations

from torch import Tensor
from torch.nn.functional import linear


class Linear:
    """y = x · Wᵀ + b with W [out, in] in a floating-point dtype."""

    def __init__(self, weight: Tensor, bias: Tensor | None = None) -> None:
        self.weight = weight
        self.bias = bias

    def __call__(self, x: Tensor) -> Tensor:
        """x: [tokens, in]; returns [tokens, out]."""
        return linear(x, self.weight, self.bias)
