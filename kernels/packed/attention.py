"""Attention over the paged pool of keys and values, in splits of 256 keys, four or eight query rows at a time.

For a query row q at position p, over the keys j of one split that it may see (j ≤ p, and j > p − window):

    m = max_j q·k_j,   l = Σ_j exp(q·k_j − m),   acc = Σ_j exp(q·k_j − m) · v_j

and splits are merged in order. A split covers fixed positions, so a row's result does not depend on which rows or
sequences are computed with it. Method: flash-decoding (Dao et al., 2023) with splits of fixed size.
"""

from __future__ import annotations

from numba import njit

from kernels.packed.layout import LANE_WORDS, MOST_ROWS, PARTIAL, QUERY, SCORE_BYTES, SCORES, SPLIT
from kernels.packed.rows import exponential, exponential_or_zero, quantize_block
from kernels.packed.simd import (
    HAS_AVX512,
    KV_PACK,
    WEIGHT_BYTES,
    add,
    divide,
    dot_kv,
    fma,
    load_f32,
    load_f32x16,
    load_i64,
    load_kv,
    max_lanes,
    maximum,
    multiply,
    prefetch,
    splat_f32,
    store_f32,
    store_f32x16,
    store_i64,
    store_weights,
    subtract,
    sum_lanes,
)

MINUS_INFINITY = -3.0e38


@njit(forceinline=True)
def _lane(lanes, lane, word, offset):
    """One of the addresses of a run's row `lane`, moved by `offset` bytes."""
    return load_i64(lanes + (lane * LANE_WORDS + word) * 8) + offset


@njit(forceinline=True)
def _accumulate4(lanes, weight, weight_offset, out, out_offset, vectors, stride, count, fresh):
    """out[row] (+)= Σ_i weight[row, i] · vector[i] for four rows, whose addresses are words `weight` and `out`.

    vectors: address of the first vector of keys or values; the `count` of them lie `stride` bytes apart.
    """
    w0, w1 = _lane(lanes, 0, weight, weight_offset), _lane(lanes, 1, weight, weight_offset)
    w2, w3 = _lane(lanes, 2, weight, weight_offset), _lane(lanes, 3, weight, weight_offset)
    o0, o1 = _lane(lanes, 0, out, out_offset), _lane(lanes, 1, out, out_offset)
    o2, o3 = _lane(lanes, 2, out, out_offset), _lane(lanes, 3, out, out_offset)
    if fresh:
        a0 = a1 = a2 = a3 = splat_f32(0.0)
    else:
        a0, a1, a2, a3 = load_f32x16(o0), load_f32x16(o1), load_f32x16(o2), load_f32x16(o3)
    for i in range(count):
        vector = load_kv(vectors + i * stride)
        a0 = dot_kv(a0, vector, w0 + i * 4)
        a1 = dot_kv(a1, vector, w1 + i * 4)
        a2 = dot_kv(a2, vector, w2 + i * 4)
        a3 = dot_kv(a3, vector, w3 + i * 4)
    store_f32x16(o0, a0)
    store_f32x16(o1, a1)
    store_f32x16(o2, a2)
    store_f32x16(o3, a3)


@njit(forceinline=True)
def _accumulate8(lanes, weight, weight_offset, out, out_offset, vectors, stride, count, fresh):
    """The same for eight rows, for CPUs with registers enough."""
    w0, w1 = _lane(lanes, 0, weight, weight_offset), _lane(lanes, 1, weight, weight_offset)
    w2, w3 = _lane(lanes, 2, weight, weight_offset), _lane(lanes, 3, weight, weight_offset)
    w4, w5 = _lane(lanes, 4, weight, weight_offset), _lane(lanes, 5, weight, weight_offset)
    w6, w7 = _lane(lanes, 6, weight, weight_offset), _lane(lanes, 7, weight, weight_offset)
    o0, o1 = _lane(lanes, 0, out, out_offset), _lane(lanes, 1, out, out_offset)
    o2, o3 = _lane(lanes, 2, out, out_offset), _lane(lanes, 3, out, out_offset)
    o4, o5 = _lane(lanes, 4, out, out_offset), _lane(lanes, 5, out, out_offset)
    o6, o7 = _lane(lanes, 6, out, out_offset), _lane(lanes, 7, out, out_offset)
    if fresh:
        a0 = a1 = a2 = a3 = a4 = a5 = a6 = a7 = splat_f32(0.0)
    else:
        a0, a1, a2, a3 = load_f32x16(o0), load_f32x16(o1), load_f32x16(o2), load_f32x16(o3)
        a4, a5, a6, a7 = load_f32x16(o4), load_f32x16(o5), load_f32x16(o6), load_f32x16(o7)
    for i in range(count):
        vector = load_kv(vectors + i * stride)
        a0 = dot_kv(a0, vector, w0 + i * 4)
        a1 = dot_kv(a1, vector, w1 + i * 4)
        a2 = dot_kv(a2, vector, w2 + i * 4)
        a3 = dot_kv(a3, vector, w3 + i * 4)
        a4 = dot_kv(a4, vector, w4 + i * 4)
        a5 = dot_kv(a5, vector, w5 + i * 4)
        a6 = dot_kv(a6, vector, w6 + i * 4)
        a7 = dot_kv(a7, vector, w7 + i * 4)
    store_f32x16(o0, a0)
    store_f32x16(o1, a1)
    store_f32x16(o2, a2)
    store_f32x16(o3, a3)
    store_f32x16(o4, a4)
    store_f32x16(o5, a5)
    store_f32x16(o6, a6)
    store_f32x16(o7, a7)


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
    """Scores of one row to weights exp(score − m), 0 outside [low, high), as `dot_kv` wants them, in the same place.

    Stores m and l behind the row's `head_dim` sums.
    """
    end = (num_keys + 15) // 16 * 16
    _fill(scores, 0, low, MINUS_INFINITY)
    _fill(scores, high, end, MINUS_INFINITY)
    largest = splat_f32(MINUS_INFINITY)
    for i in range(0, end * 4, 64):
        largest = maximum(largest, load_f32x16(scores + i))
    m = max_lanes(largest)
    # Where nothing is seen every score is as large as the largest: all of them are to become 0.
    offset = splat_f32(m if low < high else 0.0)
    total = splat_f32(0.0)
    for i in range(0, end, 16):
        weights = exponential_or_zero(subtract(load_f32x16(scores + i * 4), offset))
        total = add(total, weights)
        store_weights(scores + i * WEIGHT_BYTES, weights)
    store_f32(partial + head_dim * 4, m)
    store_f32(partial + head_dim * 4 + 4, sum_lanes(total))


@njit(forceinline=True)
def _score_run(run, lanes, table, num_keys, k_pool, v_pool, block_bytes, head_offset, head_dim):
    """Scores of a run of rows with the split's first `num_keys` keys, whose blocks begin at `table`."""
    for first in range(0, num_keys, 16):
        keys = k_pool + load_i64(table + first // 16 * 8) * block_bytes + head_offset
        # Blocks lie anywhere in the pool, where no hardware looks ahead: ask for the next one, at last for values.
        if first + 16 < num_keys:
            following = k_pool + load_i64(table + (first // 16 + 1) * 8) * block_bytes
        else:
            following = v_pool + load_i64(table) * block_bytes
        _prefetch_block(following + head_offset, head_dim * 32)
        count, stride = head_dim // KV_PACK, 32 * KV_PACK
        if run == 8:
            _accumulate8(lanes, QUERY, 0, SCORES, first * 4, keys, stride, count, True)
        else:
            _accumulate4(lanes, QUERY, 0, SCORES, first * 4, keys, stride, count, True)


@njit(forceinline=True)
def _sum_values(run, lanes, table, num_keys, v_pool, block_bytes, head_offset, head_dim):
    """acc of a run of rows: Σ exp · v over the split's first `num_keys` keys, whose blocks begin at `table`."""
    stride = head_dim * 2 * KV_PACK
    for first in range(0, num_keys, 16):
        values = v_pool + load_i64(table + first // 16 * 8) * block_bytes + head_offset
        if first + 16 < num_keys:
            following = load_i64(table + (first // 16 + 1) * 8)
            _prefetch_block(v_pool + following * block_bytes + head_offset, head_dim * 32)
        # Of a last pair that is half full, the other half has the weight 0.
        count = (min(16, num_keys - first) + KV_PACK - 1) // KV_PACK
        for column in range(0, head_dim, 16):
            vectors, out = values + column * 2 * KV_PACK, column * 4
            if run == 8:
                _accumulate8(lanes, SCORES, first * WEIGHT_BYTES, PARTIAL, out, vectors, stride, count, first == 0)
            else:
                _accumulate4(lanes, SCORES, first * WEIGHT_BYTES, PARTIAL, out, vectors, stride, count, first == 0)


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
    scratch,
):
    """One kv head of `num_rows` tokens (the first at `position`) with the keys of one split; writes their partials.

    queries: address of the first token's first query head of this group; `group` heads follow each other in a token;
    partials: the same for (sums [head_dim], m, l); scratch: SCRATCH_BYTES of this thread's.
    """
    start = split * SPLIT
    num_keys = min(SPLIT, position + num_rows - start)
    block_bytes, head_offset = kv_heads * head_dim * 32, kv_head * head_dim * 32
    # Scores of each row of a run, then the addresses of its query, scores and partial.
    lanes = scratch + MOST_ROWS * SCORE_BYTES
    table += start // 16 * 8
    total = num_rows * group
    index = 0
    while index < total:
        run = 8 if HAS_AVX512 and index + 4 < total else 4
        for lane in range(run):
            # Row numbers are repeated at the end: the same result is then written twice.
            row = min(index + lane, total - 1)
            token, head = row // group, row % group
            words = lanes + lane * LANE_WORDS * 8
            store_i64(words + QUERY * 8, queries + token * row_bytes + head * head_dim * 4)
            store_i64(words + SCORES * 8, scratch + lane * SCORE_BYTES)
            store_i64(words + PARTIAL * 8, partials + token * partial_row_bytes + head * partial_head_bytes)
        # The last row of the run sees the most keys, the first the earliest.
        seen = min(num_keys, position + min(index + run - 1, total - 1) // group + 1 - start)
        if seen > 0:
            _score_run(run, lanes, table, seen, k_pool, v_pool, block_bytes, head_offset, head_dim)
            for lane in range(run):
                own = position + min(index + lane, total - 1) // group
                low = 0 if window == 0 else min(seen, max(0, own + 1 - window - start))
                high = max(low, min(seen, own + 1 - start))
                _soften(scratch + lane * SCORE_BYTES, seen, low, high, _lane(lanes, lane, PARTIAL, 0), head_dim)
            _sum_values(run, lanes, table, seen, v_pool, block_bytes, head_offset, head_dim)
        index += run


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
