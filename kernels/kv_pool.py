"""Keys and values of one layer, in blocks of a pool that all sequences share.

Slot s is row s % block_size of block s // block_size. A float8 (e4m3) pool holds value / scale, one scale for each
head, rounded to nearest and saturating at ±448.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

FLOAT8_MAX = 448.0


@dataclass(frozen=True)
class KVPool:
    """
    Attributes:
        k, v: [num_blocks, kv_heads, block_size, head_dim], written in place.
        k_scales, v_scales: [kv_heads] float32 of a float8 pool, else None.
    """

    k: Tensor
    v: Tensor
    k_scales: Tensor | None = None
    v_scales: Tensor | None = None

    @property
    def is_float8(self) -> bool:
        return self.k_scales is not None

    @property
    def codes(self) -> tuple[Tensor, Tensor]:
        """k and v as kernels take them: float8 by its bits, as uint8."""
        return (self.k.view(torch.uint8), self.v.view(torch.uint8)) if self.is_float8 else (self.k, self.v)

    def write(self, k: Tensor, v: Tensor, slots: Tensor) -> None:
        """Store k and v, each [tokens, kv_heads, head_dim], at `slots` [tokens] int64; slot −1 means "do not store"."""
        if bool((slots < 0).any()):
            keep = slots >= 0
            k, v, slots = k[keep], v[keep], slots[keep]
        blocks, offsets = slots // self.k.shape[2], slots % self.k.shape[2]
        for pool, values, scales in zip(self.codes, (k, v), (self.k_scales, self.v_scales), strict=True):
            pool[blocks, :, offsets] = values if scales is None else to_float8(values, scales).view(torch.uint8)

    def gather_k(self, blocks: Tensor, dtype: torch.dtype) -> Tensor:
        """Keys of the given blocks [n], in a dtype: [n, kv_heads, block_size, head_dim]."""
        return _gather(self.k, blocks, self.k_scales, dtype)

    def gather_v(self, blocks: Tensor, dtype: torch.dtype) -> Tensor:
        """Values, as `gather_k`."""
        return _gather(self.v, blocks, self.v_scales, dtype)


def to_float8(x: Tensor, scales: Tensor) -> Tensor:
    """x: [..., kv_heads, head_dim]; scales: [kv_heads]; float8 codes in x's shape."""
    return (x.float() / scales[:, None]).clamp(-FLOAT8_MAX, FLOAT8_MAX).to(torch.float8_e4m3fn)


def _gather(pool: Tensor, blocks: Tensor, scales: Tensor | None, dtype: torch.dtype) -> Tensor:
    if scales is None:
        return pool.index_select(0, blocks)
    codes = pool.view(torch.uint8).index_select(0, blocks).view(torch.float8_e4m3fn)
    return (codes.float() * scales[:, None, None]).to(dtype)
