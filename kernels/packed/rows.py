"""Row-wise parts of a decoder step: normalise, quantise, rotate, store keys and values, activate.

Each function handles one row given by addresses of float32 buffers and depends on that row alone. A quantised row of n
values is n int8 codes and, for each block of 32, two float32: the scale and scale · Σ codes.
"""

from __future__ import annotations

from math import sqrt

from numba import njit

from kernels.packed.formats import INT4, INT4_BLOCK_BYTES, INT8_BLOCK_BYTES
from kernels.packed.simd import (
    KV_PACK,
    WEIGHT_BYTES,
    absolute,
    add,
    add_int,
    copy_i16,
    divide,
    fma,
    load_f16,
    load_f32x16,
    load_i8,
    max_lanes,
    maximum,
    minimum,
    multiply,
    power_of_two,
    round_even,
    splat_f32,
    store_f32,
    store_f32x16,
    store_i8x16,
    store_kv,
    store_weights,
    subtract,
    sum_lanes,
    sum_lanes_int,
    to_int,
    where_above,
)


@njit(forceinline=True)
def exponential(x):
    """e^x of sixteen lanes to within 2 units in the last place; Cephes' polynomial after a reduction by ln 2."""
    x = minimum(maximum(x, splat_f32(-87.0)), splat_f32(88.0))
    n = round_even(multiply(x, splat_f32(1.44269504088896341)))
    r = fma(n, splat_f32(-0.693359375), x)
    r = fma(n, splat_f32(2.12194440e-4), r)
    p = splat_f32(1.9875691500e-4)
    p = fma(p, r, splat_f32(1.3981999507e-3))
    p = fma(p, r, splat_f32(8.3334519073e-3))
    p = fma(p, r, splat_f32(4.1665795894e-2))
    p = fma(p, r, splat_f32(1.6666665459e-1))
    p = fma(p, r, splat_f32(5.0000001201e-1))
    p = fma(p, multiply(r, r), add(r, splat_f32(1.0)))
    return multiply(p, power_of_two(to_int(n)))


@njit(forceinline=True)
def exponential_or_zero(x):
    """e^x, and 0 below −80, where it adds nothing to a sum that holds e^0."""
    return where_above(x, splat_f32(-80.0), exponential(x))


@njit(forceinline=True)
def quantize_block(low, high, codes, sums):
    """32 values, given as two vectors, to codes and (scale, scale · Σ codes)."""
    largest = max_lanes(maximum(absolute(low), absolute(high)))
    scale = largest / 127.0
    inverse = 127.0 / largest if largest > 0.0 else 0.0
    factor = splat_f32(inverse)
    a, b = to_int(round_even(multiply(low, factor))), to_int(round_even(multiply(high, factor)))
    store_i8x16(codes, a)
    store_i8x16(codes + 16, b)
    store_f32(sums, scale)
    store_f32(sums + 4, scale * sum_lanes_int(add_int(a, b)))


@njit(forceinline=True)
def inverse_rms(x, width, eps):
    total = splat_f32(0.0)
    for i in range(0, width * 4, 64):
        value = load_f32x16(x + i)
        total = fma(value, value, total)
    return 1.0 / sqrt(sum_lanes(total) / width + eps)


@njit
def norm_quantize(residual, delta, weight, eps, width, codes, sums):
    """residual += delta (unless 0); codes, sums = quantised rms_norm(residual) · weight."""
    if delta != 0:
        for i in range(0, width * 4, 64):
            store_f32x16(residual + i, add(load_f32x16(residual + i), load_f32x16(delta + i)))
    factor = splat_f32(inverse_rms(residual, width, eps))
    for block in range(width // 32):
        i = block * 128
        low = multiply(multiply(load_f32x16(residual + i), factor), load_f32x16(weight + i))
        high = multiply(multiply(load_f32x16(residual + i + 64), factor), load_f32x16(weight + i + 64))
        quantize_block(low, high, codes + block * 32, sums + block * 8)


@njit
def silu_quantize(gate, up, width, codes, sums):
    """codes, sums = quantised silu(gate) · up."""
    one, zero = splat_f32(1.0), splat_f32(0.0)
    for block in range(width // 32):
        i = block * 128
        a, b = load_f32x16(gate + i), load_f32x16(gate + i + 64)
        low = divide(multiply(a, load_f32x16(up + i)), add(one, exponential(subtract(zero, a))))
        high = divide(multiply(b, load_f32x16(up + i + 64)), add(one, exponential(subtract(zero, b))))
        quantize_block(low, high, codes + block * 32, sums + block * 8)


@njit(forceinline=True)
def rotate_head(x, cos, sin, head_dim, scale, norm, eps):
    """In place: x = rotate(norm(x)) · scale for one head; halves apart, `norm` 0 where the model has none."""
    half = head_dim * 2
    if norm != 0:
        factor = splat_f32(inverse_rms(x, head_dim, eps))
        for i in range(0, head_dim * 4, 64):
            store_f32x16(x + i, multiply(multiply(load_f32x16(x + i), factor), load_f32x16(norm + i)))
    scales = splat_f32(scale)
    for i in range(0, half, 64):
        first, second = load_f32x16(x + i), load_f32x16(x + half + i)
        c, s = load_f32x16(cos + i), load_f32x16(sin + i)
        store_f32x16(x + i, multiply(subtract(multiply(first, c), multiply(second, s)), scales))
        store_f32x16(x + half + i, multiply(add(multiply(second, c), multiply(first, s)), scales))


@njit
def rope_write(qkv, bias, cos, sin, heads, kv_heads, head_dim, scale, q_norm, k_norm, eps, k_pool, v_pool, slot):
    """One row of q, k and v: rotate q (scaled for the attention) in place, store k and v at `slot` of the pools.

    k_pool: [blocks, kv_heads, head_dim, 16], so that a vector holds sixteen keys; v_pool: [blocks, kv_heads, 16,
    head_dim]; both as `simd.store_kv` makes them, and, for KV_PACK 2, the pairs that `simd.dot_kv` takes side by side:
    [.., head_dim / 2, 16, 2] and [.., 8, head_dim, 2]. Queries become weights of `dot_kv`, from the start of each
    head's place. A slot of −1 stores nothing.
    """
    width = head_dim * 4
    if bias != 0:
        for i in range(0, (heads + 2 * kv_heads) * width, 64):
            store_f32x16(qkv + i, add(load_f32x16(qkv + i), load_f32x16(bias + i)))
    for head in range(heads):
        query = qkv + head * width
        rotate_head(query, cos, sin, head_dim, scale, q_norm, eps)
        for i in range(0, head_dim, 16):
            store_weights(query + i * WEIGHT_BYTES, load_f32x16(query + i * 4))
    if slot < 0:
        return
    block, offset = slot // 16, slot % 16
    for head in range(kv_heads):
        k, v = qkv + (heads + head) * width, qkv + (heads + kv_heads + head) * width
        rotate_head(k, cos, sin, head_dim, 1.0, k_norm, eps)
        # Narrowed in place: each sixteen go where the first half of what was read already was.
        for i in range(0, head_dim, 16):
            store_kv(k + i * 2, load_f32x16(k + i * 4))
            store_kv(v + i * 2, load_f32x16(v + i * 4))
        start = (block * kv_heads + head) * head_dim * 32
        keys = k_pool + start + offset * 2 * KV_PACK
        values = v_pool + start + (offset // KV_PACK * head_dim * KV_PACK + offset % KV_PACK) * 2
        for i in range(head_dim):
            copy_i16(k + i * 2, keys + (i // KV_PACK * 16 * KV_PACK + i % KV_PACK) * 2)
            copy_i16(v + i * 2, values + i * 2 * KV_PACK)


@njit
def embed(weight, kind, num_blocks, token_id, out):
    """One row of a packed embedding as float32."""
    lane = token_id % 16
    block_bytes = INT4_BLOCK_BYTES if kind == INT4 else INT8_BLOCK_BYTES
    panel = weight + (token_id // 16) * num_blocks * block_bytes
    for block in range(num_blocks):
        w = panel + block * block_bytes
        for i in range(32):
            j = i // 4
            if kind == INT4:
                code = load_i8(w + 64 * (j % 4) + 4 * lane + i % 4) & 255
                code = code & 15 if j < 4 else code >> 4
                value = load_f16(w + 256 + 2 * lane) * code + load_f16(w + 288 + 2 * lane)
            else:
                value = load_f16(w + 512 + 2 * lane) * load_i8(w + 64 * j + 4 * lane + i % 4)
            store_f32(out + (block * 32 + i) * 4, value)
