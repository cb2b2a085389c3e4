"""Rotary position embedding with optional q/k RMSNorm, and the write of keys and values into the paged pool.

    rotate(x, p)[i]         = x[i] · cos(p·f_i) − x[i + d/2] · sin(p·f_i)          for i < d/2
    rotate(x, p)[i + d/2]   = x[i + d/2] · cos(p·f_i) + x[i] · sin(p·f_i)

(the half-split form of Hugging Face checkpoints; GGUF files of the `llama` architecture store q and k interleaved and
are permuted back when they are loaded). Angles are kept in float32. Source: Su et al., "RoFormer" (2021).
"""

from __future__ import annotations

import torch
from torch import Tensor

from kernels.dispatch import uses_triton
from kernels.kv_pool import KVPool
from kernels.rms_norm import rms_norm


def rotate(x: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
    """x: [tokens, heads, head_dim]; cos, sin: [tokens, 1, head_dim / 2] float32; computed in float32, x's dtype out."""
    half = x.shape[-1] // 2
    first, second = x[..., :half].float(), x[..., half:].float()
    return torch.cat((first * cos - second * sin, second * cos + first * sin), dim=-1).to(x.dtype)


def reference(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    cos: Tensor,
    sin: Tensor,
    pool: KVPool,
    slots: Tensor,
    q_norm: Tensor | None = None,
    k_norm: Tensor | None = None,
    eps: float = 1e-6,
) -> Tensor:
    """`rope_and_write_kv` in plain torch."""
    if q_norm is not None:
        q = rms_norm(q, q_norm, eps)
    if k_norm is not None:
        k = rms_norm(k, k_norm, eps)
    pool.write(rotate(k, cos, sin), v, slots)
    return rotate(q, cos, sin)


def rope_and_write_kv(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    cos: Tensor,
    sin: Tensor,
    pool: KVPool,
    slots: Tensor,
    q_norm: Tensor | None = None,
    k_norm: Tensor | None = None,
    eps: float = 1e-6,
) -> Tensor:
    """Normalise q and k where the model does, rotate both, store k and v; returns the rotated q.

    q: [tokens, heads, head_dim]; k, v: [tokens, kv_heads, head_dim]; cos, sin: [tokens, 1, head_dim / 2] float32
    (already taken at each token's position); slots: [tokens] int64; q_norm, k_norm: [head_dim].
    """
    path = reference
    if uses_triton(q):
        from kernels.gpu import rotary as gpu

        path = gpu.rope_and_write_kv
    return path(q, k, v, cos, sin, pool, slots, q_norm, k_norm, eps)
