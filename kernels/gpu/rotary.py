"""q/k RMSNorm, rotation and the write of keys and values into the paged pool, in one launch.

One program a token and head. Query heads: normalise (where the model does), rotate, store to the output. Key heads the
same into the pool, together with the value head. Formulas, shapes and source as `kernels.rotary`; angles are float32,
offsets into the pool int64. A float8 pool (e4m3 codes as uint8) is written as value / scale of its head.
"""

from __future__ import annotations

from collections.abc import Iterator

import triton
import triton.language as tl
from torch import Tensor

from kernels.gpu.compile_case import CompileCase
from kernels.gpu.float8 import encode_e4m3
from kernels.kv_pool import KVPool


@triton.jit
def _rope_and_write_kv(
    q, k, v, cos, sin, q_norm, k_norm, out, k_pool, v_pool, k_scales, v_scales, slots,
    q_stride, k_stride, v_stride, block_stride, head_stride, block_size, heads, eps,
    HEAD_DIM: tl.constexpr, BLOCK_HALF: tl.constexpr, NORMS: tl.constexpr, FLOAT8: tl.constexpr,
):  # fmt: skip
    token, head = tl.program_id(0).to(tl.int64), tl.program_id(1)
    HALF: tl.constexpr = HEAD_DIM // 2
    columns = tl.arange(0, BLOCK_HALF)
    inside = columns < HALF
    is_key = head >= heads
    kv_head = head - heads
    source = q + token * q_stride + head * HEAD_DIM
    weight = q_norm
    if is_key:
        source = k + token * k_stride + kv_head * HEAD_DIM
        weight = k_norm
    first = tl.load(source + columns, mask=inside, other=0.0).to(tl.float32)
    second = tl.load(source + HALF + columns, mask=inside, other=0.0).to(tl.float32)
    if NORMS:
        mean = (tl.sum(first * first, axis=0) + tl.sum(second * second, axis=0)) / HEAD_DIM
        factor = 1.0 / tl.sqrt(mean + eps)
        dtype = out.dtype.element_ty
        first_weight = tl.load(weight + columns, mask=inside, other=0.0).to(tl.float32)
        second_weight = tl.load(weight + HALF + columns, mask=inside, other=0.0).to(tl.float32)
        first = ((first * factor).to(dtype).to(tl.float32) * first_weight).to(dtype).to(tl.float32)
        second = ((second * factor).to(dtype).to(tl.float32) * second_weight).to(dtype).to(tl.float32)
    cosine = tl.load(cos + token * HALF + columns, mask=inside, other=0.0)
    sine = tl.load(sin + token * HALF + columns, mask=inside, other=0.0)
    low = (first * cosine - second * sine).to(out.dtype.element_ty)
    high = (second * cosine + first * sine).to(out.dtype.element_ty)
    if is_key:
        slot = tl.load(slots + token).to(tl.int64)
        stored = inside & (slot >= 0)
        place = slot // block_size * block_stride + kv_head * head_stride + slot % block_size * HEAD_DIM
        values = v + token * v_stride + kv_head * HEAD_DIM
        low_value = tl.load(values + columns, mask=inside, other=0.0)
        high_value = tl.load(values + HALF + columns, mask=inside, other=0.0)
        if FLOAT8:
            k_scale, v_scale = tl.load(k_scales + kv_head), tl.load(v_scales + kv_head)
            tl.store(k_pool + place + columns, encode_e4m3(low.to(tl.float32) / k_scale), mask=stored)
            tl.store(k_pool + place + HALF + columns, encode_e4m3(high.to(tl.float32) / k_scale), mask=stored)
            tl.store(v_pool + place + columns, encode_e4m3(low_value.to(tl.float32) / v_scale), mask=stored)
            tl.store(v_pool + place + HALF + columns, encode_e4m3(high_value.to(tl.float32) / v_scale), mask=stored)
        else:
            tl.store(k_pool + place + columns, low, mask=stored)
            tl.store(k_pool + place + HALF + columns, high, mask=stored)
            tl.store(v_pool + place + columns, low_value, mask=stored)
            tl.store(v_pool + place + HALF + columns, high_value, mask=stored)
    else:
        target = out + (token * heads + head) * HEAD_DIM
        tl.store(target + columns, low, mask=inside)
        tl.store(target + HALF + columns, high, mask=inside)


def rope_and_write_kv(
    q: Tensor, k: Tensor, v: Tensor, cos: Tensor, sin: Tensor, pool: KVPool, slots: Tensor,
    q_norm: Tensor | None = None, k_norm: Tensor | None = None, eps: float = 1e-6,
) -> Tensor:  # fmt: skip
    """`kernels.rotary.rope_and_write_kv`; q, k and v may be views of the packed product (last two axes contiguous).

    slots: [tokens] int32 or int64. The pool: any strides of blocks and heads; a head's block contiguous.
    """
    tokens, heads, head_dim = q.shape
    assert (q_norm is None) == (k_norm is None), "models normalise both or neither"
    q, k, v = (x if x.stride()[1:] == (head_dim, 1) else x.contiguous() for x in (q, k, v))
    out = q.new_empty(tokens, heads, head_dim)
    k_pool, v_pool = pool.codes
    if tokens:
        _rope_and_write_kv[(tokens, heads + k.shape[1])](
            q, k, v, cos, sin, q if q_norm is None else q_norm, k if k_norm is None else k_norm, out, k_pool, v_pool,
            cos if pool.k_scales is None else pool.k_scales, cos if pool.v_scales is None else pool.v_scales, slots,
            q.stride(0), k.stride(0), v.stride(0), k_pool.stride(0), k_pool.stride(1), k_pool.shape[2], heads, eps,
            HEAD_DIM=head_dim, BLOCK_HALF=triton.next_power_of_2(head_dim // 2), NORMS=q_norm is not None,
            FLOAT8=pool.is_float8, num_warps=1,
        )  # fmt: skip
    return out


def compile_cases() -> Iterator[CompileCase]:
    """Head sizes of the supported models, with and without q/k norm, both kinds of pool."""
    strides = ("q_stride", "k_stride", "v_stride", "block_stride", "head_stride", "block_size")
    for head_dim in (64, 80, 96, 128, 256):
        for norms in (False, True):
            for float8 in (False, True):
                pool = "*u8" if float8 else "*bf16"
                yield CompileCase(
                    f"rope_and_write_kv bf16 head_dim={head_dim}{' norms' if norms else ''}{' fp8' if float8 else ''}",
                    _rope_and_write_kv,
                    {
                        **dict.fromkeys(("q", "k", "v"), "*bf16"), **dict.fromkeys(("cos", "sin"), "*fp32"),
                        **dict.fromkeys(("q_norm", "k_norm", "out"), "*bf16"), "k_pool": pool, "v_pool": pool,
                        **dict.fromkeys(("k_scales", "v_scales"), "*fp32"), "slots": "*i32",
                        **dict.fromkeys(strides, "i32"), "heads": "i32", "eps": "fp32",
                    },
                    {
                        "HEAD_DIM": head_dim, "BLOCK_HALF": triton.next_power_of_2(head_dim // 2), "NORMS": norms,
                        "FLOAT8": float8,
                    },
                    num_warps=1,
                    aligned=frozenset(strides),
                )  # fmt: skip
