"""Attention over the paged pool of float16 keys and values, in splits of 256 keys, four query rows at a time.

For a query row q at position p, over the keys j of one split that it may see (j ≤ p, and j > p − window):

    m = max_j q·k_j,   l = Σ_j exp(q·k_j − m),   acc = Σ_j exp(q·k_j − m) · v_j

and splits are merged in order. A split covers fixed positions, so a row's result does not depend on which rows or
sequences are computed with it. Method: flash-decoding (Dao et al., 2023) with splits of fixed size.
"""

from __future__ import annotations

from numba import njit

from kernels.packed.rows import exponential, quantize_block
from kernels.packed.simd import (
    add,
    divide,
    fma,
    load_f16x16,
    load_f32,
    load_f32x16,
    load_i64,
    max_lanes,
    maximum,
    multiply,
    prefetch,
    splat_f32,
    store_f32,
    store_f32x16,
    subtract,
    sum_lanes,
)

SPLIT = 256
# Tokens whose query rows share one reading of a split.
TILE = 32
MINUS_INFINITY = -3.0e38


@njit(forceinline=True)
def _score_rows(q0, q1, q2, q3, keys, head_dim, scores, stride):
    """Scores of four query rows with the sixteen keys of one block."""
    s0 = s1 = s2 = s3 = splat_f32(0.0)
    for i in range(head_dim):
        key = load_f16x16(keys + i * 32)
        s0 = fma(splat_f32(load_f32(q0 + i * 4)), key, s0)
        s1 = fma(splat_f32(load_f32(q1 + i * 4)), key, s1)
        s2 = fma(splat_f32(load_f32(q2 + i * 4)), key, s2)
        s3 = fma(splat_f32(load_f32(q3 + i * 4)), key, s3)
    store_f32x16(scores, s0)
    store_f32x16(scores + stride, s1)
    store_f32x16(scores + 2 * stride, s2)
    store_f32x16(scores + 3 * stride, s3)


@njit(forceinline=True)
def _prefetch_block(address, num_bytes):
    for line in range(0, num_bytes, 64):
        prefetch(address + line)


@njit(forceinline=True)
def _fill(scores, first, last, value):
    for i in range(first, last):
        store_f32(scores + i * 4, value)


@njit
def _soften(scores, num_keys, low, high, partial, head_dim):
    """Scores of one row to exp(score − m), 0 outside [low, high); stores m and l behind the row's `head_dim` sums."""
    end = (num_keys + 15) // 16 * 16
    _fill(scores, 0, low, MINUS_INFINITY)
    _fill(scores, high, end, MINUS_INFINITY)
    largest = splat_f32(MINUS_INFINITY)
    for i in range(0, end * 4, 64):
        largest = maximum(largest, load_f32x16(scores + i))
    m = max_lanes(largest)
    offset = splat_f32(m)
    for i in range(0, end * 4, 64):
        store_f32x16(scores + i, exponential(subtract(load_f32x16(scores + i), offset)))
    _fill(scores, 0, low, 0.0)
    _fill(scores, high, end, 0.0)
    total = splat_f32(0.0)
    for i in range(0, end * 4, 64):
        total = add(total, load_f32x16(scores + i))
    store_f32(partial + head_dim * 4, m)
    store_f32(partial + head_dim * 4 + 4, sum_lanes(total))


@njit(forceinline=True)
def _sum_values(scores, stride, table, first_block, num_keys, v_pool, block_bytes, head_offset, head_dim, partials):
    """acc of four rows: Σ exp · v over the split's first `num_keys` keys."""
    p0, p1, p2, p3 = partials
    for column in range(0, head_dim, 16):
        a0 = a1 = a2 = a3 = splat_f32(0.0)
        for first in range(0, num_keys, 16):
            block = load_i64(table + (first_block + first // 16) * 8)
            values = v_pool + block * block_bytes + head_offset + column * 2
            if column == 0 and first + 16 < num_keys:
                following = load_i64(table + (first_block + first // 16 + 1) * 8)
                _prefetch_block(v_pool + following * block_bytes + head_offset, head_dim * 32)
            for key in range(min(16, num_keys - first)):
                value = load_f16x16(values + key * head_dim * 2)
                weight = scores + (first + key) * 4
                a0 = fma(splat_f32(load_f32(weight)), value, a0)
                a1 = fma(splat_f32(load_f32(weight + stride)), value, a1)
                a2 = fma(splat_f32(load_f32(weight + 2 * stride)), value, a2)
                a3 = fma(splat_f32(load_f32(weight + 3 * stride)), value, a3)
        store_f32x16(p0 + column * 4, a0)
        store_f32x16(p1 + column * 4, a1)
        store_f32x16(p2 + column * 4, a2)
        store_f32x16(p3 + column * 4, a3)


@njit
def attend_split(
    queries,
    row_bytes,
    num_rows,
    position,
    group,
    table,
    split,
    window,
    k_pool,
    v_pool,
    kv_heads,
    kv_head,
    head_dim,
    partials,
    partial_row_bytes,
    partial_head_bytes,
    scores,
):
    """One kv head of `num_rows` tokens (the first at `position`) with the keys of one split; writes their partials.

    queries: address of the first token's first query head of this group; `group` heads follow each other in a token;
    partials: the same for (sums [head_dim], m, l); scores: [4, 256] float32 of scratch.
    """
    start = split * SPLIT
    num_keys = min(SPLIT, position + num_rows - start)
    block_bytes, head_offset = kv_heads * head_dim * 32, kv_head * head_dim * 32
    stride = SPLIT * 4
    total = num_rows * group
    for index in range(0, total, 4):
        # Row numbers are repeated at the end: the same result is then written twice.
        i1, i2, i3 = min(index + 1, total - 1), min(index + 2, total - 1), min(index + 3, total - 1)
        q0 = queries + index // group * row_bytes + index % group * head_dim * 4
        q1 = queries + i1 // group * row_bytes + i1 % group * head_dim * 4
        q2 = queries + i2 // group * row_bytes + i2 % group * head_dim * 4
        q3 = queries + i3 // group * row_bytes + i3 % group * head_dim * 4
        # The last of the four rows sees the most keys, the first the earliest.
        seen = min(num_keys, position + i3 // group + 1 - start)
        if seen <= 0:
            continue
        for first in range(0, seen, 16):
            block = load_i64(table + (start + first) // 16 * 8)
            # Blocks lie anywhere in the pool, where no hardware looks ahead: ask for the next one, at last for values.
            following = start + first + 16
            if first + 16 < seen:
                _prefetch_block(
                    k_pool + load_i64(table + following // 16 * 8) * block_bytes + head_offset, head_dim * 32
                )
            else:
                _prefetch_block(v_pool + load_i64(table + start // 16 * 8) * block_bytes + head_offset, head_dim * 32)
            _score_rows(
                q0, q1, q2, q3, k_pool + block * block_bytes + head_offset, head_dim, scores + first * 4, stride
            )
        p0 = partials + index // group * partial_row_bytes + index % group * partial_head_bytes
        p1 = partials + i1 // group * partial_row_bytes + i1 % group * partial_head_bytes
        p2 = partials + i2 // group * partial_row_bytes + i2 % group * partial_head_bytes
        p3 = partials + i3 // group * partial_row_bytes + i3 % group * partial_head_bytes
        for lane in range(4):
            row = min(index + lane, total - 1)
            partial = p0 if lane == 0 else (p1 if lane == 1 else (p2 if lane == 2 else p3))
            own = position + row // group
            low = 0 if window == 0 else min(seen, max(0, own + 1 - window - start))
            high = max(low, min(seen, own + 1 - start))
            _soften(scores + lane * stride, seen, low, high, partial, head_dim)
        _sum_values(
            scores, stride, table, start // 16, seen, v_pool, block_bytes, head_offset, head_dim, (p0, p1, p2, p3)
        )


@njit
def merge_quantize(partials, split_bytes, head_bytes, position, window, heads, head_dim, merged, codes, sums):
    """Merge the splits of one row in order and quantise it. merged: [heads · head_dim] float32 of scratch."""
    last = position // SPLIT
    first = 0 if window == 0 else max(0, position + 1 - window) // SPLIT
    for head in range(heads):
        base, out = partials + head * head_bytes, merged + head * head_dim * 4
        part = base + first * split_bytes
        m, mass = load_f32(part + head_dim * 4), load_f32(part + head_dim * 4 + 4)
        for i in range(0, head_dim * 4, 64):
            store_f32x16(out + i, load_f32x16(part + i))
        for split in range(first + 1, last + 1):
            part = base + split * split_bytes
            m2, mass2 = load_f32(part + head_dim * 4), load_f32(part + head_dim * 4 + 4)
            most = max(m, m2)
            a, b = exponential(splat_f32(m - most)), exponential(splat_f32(m2 - most))
            for i in range(0, head_dim * 4, 64):
                store_f32x16(out + i, fma(load_f32x16(part + i), b, multiply(load_f32x16(out + i), a)))
            mass = sum_lanes(a) / 16.0 * mass + sum_lanes(b) / 16.0 * mass2
            m = most
        divisor = splat_f32(mass)
        for i in range(0, head_dim * 4, 64):
            store_f32x16(out + i, divide(load_f32x16(out + i), divisor))
    for block in range(heads * head_dim // 32):
        quantize_block(
            load_f32x16(merged + block * 128),
            load_f32x16(merged + block * 128 + 64),
            codes + block * 32,
            sums + block * 8,
        )
