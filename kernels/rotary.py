"""Rotary position embedding with optional q/k RMSNorm, and the write of keys and values into the paged pool.

    rotate(x, p)[i]         = x[i] · cos(p·f_i) − x[i + d/2] · sin(p·f_i)          for i < d/2
    rotate(x, p)[i + d/2]   = x[i + d/2] · cos(p·f_i) + x[i] · sin(p·f_i)

(the half-split form of Hugging Face checkpoints; GGUF files of the `llama` architecture store q and k interleaved and
are permuted back when they are loaded). Angles are kept in float32. Source: Su et al., "RoFormer" (2021).

The pool of one layer is [num_blocks, kv_heads, block_size, head_dim]; slot s is row s % block_size of block
s // block_size, and slot −1 means "do not store". A float8 (e4m3) pool holds value / scale, one scale for each head,
rounded to nearest and saturating at ±448.
"""

from __future__ import annotations

import torch
from torch import Tensor

from kernels.dispatch import uses_triton
from kernels.rms_norm import rms_norm

FLOAT8_MAX = 448.0


def rotate(x: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
    """x: [tokens, heads, head_dim]; cos, sin: [tokens, 1, head_dim / 2] float32; computed in float32, x's dtype out."""
    half = x.shape[-1] // 2
    first, second = x[..., :half].float(), x[..., half:].float()
    return torch.cat((first * cos - second * sin, second * cos + first * sin), dim=-1).to(x.dtype)


def write_kv(
    k: Tensor,
    v: Tensor,
    k_pool: Tensor,
    v_pool: Tensor,
    slots: Tensor,
    k_scales: Tensor | None = None,
    v_scales: Tensor | None = None,
) -> None:
    """Store k and v, each [tokens, kv_heads, head_dim], at `slots` [tokens] int64 of the pool (in place).

    k_scales, v_scales: [kv_heads] float32, for float8 pools.
    """
    block_size = k_pool.shape[2]
    if bool((slots < 0).any()):
        keep = slots >= 0
        k, v, slots = k[keep], v[keep], slots[keep]
    blocks, offsets = slots // block_size, slots % block_size
    k_pool[blocks, :, offsets] = k if k_scales is None else _to_float8(k, k_scales)
    v_pool[blocks, :, offsets] = v if v_scales is None else _to_float8(v, v_scales)


def _to_float8(x: Tensor, scales: Tensor) -> Tensor:
    return (x.float() / scales[:, None]).clamp(-FLOAT8_MAX, FLOAT8_MAX).to(torch.float8_e4m3fn)


def rope_and_write_kv(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    cos: Tensor,
    sin: Tensor,
    k_pool: Tensor,
    v_pool: Tensor,
    slots: Tensor,
    q_norm: Tensor | None = None,
    k_norm: Tensor | None = None,
    eps: float = 1e-6,
    k_scales: Tensor | None = None,
    v_scales: Tensor | None = None,
) -> Tensor:
    """Normalise q and k where the model does, rotate both, store k and v; returns the rotated q.

    q: [tokens, heads, head_dim]; k, v: [tokens, kv_heads, head_dim]; cos, sin: [tokens, 1, head_dim / 2] float32
    (already taken at each token's position); k_pool, v_pool: [num_blocks, kv_heads, block_size, head_dim], written in
    place;
    slots: [tokens] int64; q_norm, k_norm: [head_dim]; k_scales, v_scales: [kv_heads] float32 of a float8 pool.
    """
    if uses_triton(q):
        from kernels.gpu import rotary as gpu

        return gpu.rope_and_write_kv(q, k, v, cos, sin, k_pool, v_pool, slots, q_norm, k_norm, eps, k_scales, v_scales)
    return reference(q, k, v, cos, sin, k_pool, v_pool, slots, q_norm, k_norm, eps, k_scales, v_scales)


def reference(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    cos: Tensor,
    sin: Tensor,
    k_pool: Tensor,
    v_pool: Tensor,
    slots: Tensor,
    q_norm: Tensor | None = None,
    k_norm: Tensor | None = None,
    eps: float = 1e-6,
    k_scales: Tensor | None = None,
    v_scales: Tensor | None = None,
) -> Tensor:
    """`rope_and_write_kv` in plain torch."""
    if q_norm is not None:
        q = rms_norm(q, q_norm, eps)
    if k_norm is not None:
        k = rms_norm(k, k_norm, eps)
    write_kv(rotate(k, cos, sin), v, k_pool, v_pool, slots, k_scales, v_scales)
    return rotate(q, cos, sin)
