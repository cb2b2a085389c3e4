"""RMSNorm, alone and fused with the residual add.

    y = x / sqrt(mean(x²) + eps) · weight        (the mean over the last axis, in float32)

Llama's order: the normalised value is cast to the input's dtype before it is multiplied by the weight.
Source: Zhang & Sennrich, "Root Mean Square Layer Normalization" (2019).
"""

from __future__ import annotations

import torch
from torch import Tensor

from kernels.dispatch import uses_triton


def reference(x: Tensor, weight: Tensor, eps: float) -> Tensor:
    """Normalise the last axis. x: [..., hidden], weight: [hidden]; returns the shape and dtype of x."""
    wide = x.float()
    wide = wide * torch.rsqrt(wide.pow(2).mean(-1, keepdim=True) + eps)
    return weight * wide.to(x.dtype)


def rms_norm(x: Tensor, weight: Tensor, eps: float) -> Tensor:
    """`reference` by the fastest path of the device. x: [..., hidden], weight: [hidden]."""
    if uses_triton(x):
        from kernels.gpu import rms_norm as gpu

        return gpu.rms_norm(x, weight, eps)
    if x.dtype == torch.float32:
        return torch.nn.functional.rms_norm(x, (x.shape[-1],), weight, eps)
    return reference(x, weight, eps)


def add_rms_norm(x: Tensor, residual: Tensor, weight: Tensor, eps: float) -> tuple[Tensor, Tensor]:
    """Add, then normalise: returns (norm(x + residual), x + residual), each [..., hidden]."""
    if uses_triton(x):
        from kernels.gpu import rms_norm as gpu

        return gpu.add_rms_norm(x, residual, weight, eps)
    total = x + residual
    return rms_norm(total, weight, eps), total
