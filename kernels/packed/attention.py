"""Attention over the paged pool of float16 keys and values, in splits of 256 keys, four or eight query rows at a time.

For a query row q at position p, over the keys j of one split that it may see (j ≤ p, and j > p − window):

    m = max_j q·k_j,   l = Σ_j exp(q·k_j − m),   acc = Σ_j exp(q·k_j − m) · v_j

and splits are merged in order. A split covers fixed positions, so a row's result does not depend on which rows or
sequences are computed with it. Method: flash-decoding (Dao et al., 2023) with splits of fixed size.
"""

from __future__ import annotations

from numba import njit

from kernels.packed.layout import MOST_ROWS, SCORE_BYTES, SPLIT
from kernels.packed.rows import exponential, quantize_block
from kernels.packed.simd import (
    HAS_AVX512,
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
    store_i64,
    subtract,
    sum_lanes,
)

MINUS_INFINITY = -3.0e38


@njit(forceinline=True)
def _query(rows, lane):
    return load_i64(rows + lane * 16)


@njit(forceinline=True)
def _partial(rows, lane):
    return load_i64(rows + lane * 16 + 8)


@njit(forceinline=True)
def _score_rows4(rows, keys, head_dim, scores):
    """Scores of four query rows with the sixteen keys of one block."""
    q0, q1, q2, q3 = _query(rows, 0), _query(rows, 1), _query(rows, 2), _query(rows, 3)
    s0 = s1 = s2 = s3 = splat_f32(0.0)
    for i in range(head_dim):
        key = load_f16x16(keys + i * 32)
        s0 = fma(splat_f32(load_f32(q0 + i * 4)), key, s0)
        s1 = fma(splat_f32(load_f32(q1 + i * 4)), key, s1)
        s2 = fma(splat_f32(load_f32(q2 + i * 4)), key, s2)
        s3 = fma(splat_f32(load_f32(q3 + i * 4)), key, s3)
    store_f32x16(scores, s0)
    store_f32x16(scores + SCORE_BYTES, s1)
    store_f32x16(scores + 2 * SCORE_BYTES, s2)
    store_f32x16(scores + 3 * SCORE_BYTES, s3)


@njit(forceinline=True)
def _score_rows8(rows, keys, head_dim, scores):
    """Scores of eight query rows with the sixteen keys of one block."""
    q0, q1, q2, q3 = _query(rows, 0), _query(rows, 1), _query(rows, 2), _query(rows, 3)
    q4, q5, q6, q7 = _query(rows, 4), _query(rows, 5), _query(rows, 6), _query(rows, 7)
    s0 = s1 = s2 = s3 = s4 = s5 = s6 = s7 = splat_f32(0.0)
    for i in range(head_dim):
        key = load_f16x16(keys + i * 32)
        s0 = fma(splat_f32(load_f32(q0 + i * 4)), key, s0)
        s1 = fma(splat_f32(load_f32(q1 + i * 4)), key, s1)
        s2 = fma(splat_f32(load_f32(q2 + i * 4)), key, s2)
        s3 = fma(splat_f32(load_f32(q3 + i * 4)), key, s3)
        s4 = fma(splat_f32(load_f32(q4 + i * 4)), key, s4)
        s5 = fma(splat_f32(load_f32(q5 + i * 4)), key, s5)
        s6 = fma(splat_f32(load_f32(q6 + i * 4)), key, s6)
        s7 = fma(splat_f32(load_f32(q7 + i * 4)), key, s7)
    store_f32x16(scores, s0)
    store_f32x16(scores + SCORE_BYTES, s1)
    store_f32x16(scores + 2 * SCORE_BYTES, s2)
    store_f32x16(scores + 3 * SCORE_BYTES, s3)
    store_f32x16(scores + 4 * SCORE_BYTES, s4)
    store_f32x16(scores + 5 * SCORE_BYTES, s5)
    store_f32x16(scores + 6 * SCORE_BYTES, s6)
    store_f32x16(scores + 7 * SCORE_BYTES, s7)


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
def _score_run(run, rows, table, num_keys, k_pool, v_pool, block_bytes, head_offset, head_dim, scores):
    """Scores of a run of rows with the split's first `num_keys` keys, whose blocks begin at `table`."""
    for first in range(0, num_keys, 16):
        keys = k_pool + load_i64(table + first // 16 * 8) * block_bytes + head_offset
        # Blocks lie anywhere in the pool, where no hardware looks ahead: ask for the next one, at last for values.
        if first + 16 < num_keys:
            following = k_pool + load_i64(table + (first // 16 + 1) * 8) * block_bytes
        else:
            following = v_pool + load_i64(table) * block_bytes
        _prefetch_block(following + head_offset, head_dim * 32)
        if run == 8:
            _score_rows8(rows, keys, head_dim, scores + first * 4)
        else:
            _score_rows4(rows, keys, head_dim, scores + first * 4)


@njit(forceinline=True)
def _sum_values4(rows, table, num_keys, v_pool, block_bytes, head_offset, head_dim, scores):
    """acc of four rows: Σ exp · v over the split's first `num_keys` keys, whose blocks begin at `table`."""
    for column in range(0, head_dim, 16):
        a0 = a1 = a2 = a3 = splat_f32(0.0)
        for first in range(0, num_keys, 16):
            values = v_pool + load_i64(table + first // 16 * 8) * block_bytes + head_offset + column * 2
            if column == 0 and first + 16 < num_keys:
                following = load_i64(table + (first // 16 + 1) * 8)
                _prefetch_block(v_pool + following * block_bytes + head_offset, head_dim * 32)
            for key in range(min(16, num_keys - first)):
                value = load_f16x16(values + key * head_dim * 2)
                weight = scores + (first + key) * 4
                a0 = fma(splat_f32(load_f32(weight)), value, a0)
                a1 = fma(splat_f32(load_f32(weight + SCORE_BYTES)), value, a1)
                a2 = fma(splat_f32(load_f32(weight + 2 * SCORE_BYTES)), value, a2)
                a3 = fma(splat_f32(load_f32(weight + 3 * SCORE_BYTES)), value, a3)
        store_f32x16(_partial(rows, 0) + column * 4, a0)
        store_f32x16(_partial(rows, 1) + column * 4, a1)
        store_f32x16(_partial(rows, 2) + column * 4, a2)
        store_f32x16(_partial(rows, 3) + column * 4, a3)


@njit(forceinline=True)
def _sum_values8(rows, table, num_keys, v_pool, block_bytes, head_offset, head_dim, scores):
    """acc of eight rows: Σ exp · v over the split's first `num_keys` keys, whose blocks begin at `table`."""
    for column in range(0, head_dim, 16):
        a0 = a1 = a2 = a3 = a4 = a5 = a6 = a7 = splat_f32(0.0)
        for first in range(0, num_keys, 16):
            values = v_pool + load_i64(table + first // 16 * 8) * block_bytes + head_offset + column * 2
            if column == 0 and first + 16 < num_keys:
                following = load_i64(table + (first // 16 + 1) * 8)
                _prefetch_block(v_pool + following * block_bytes + head_offset, head_dim * 32)
            for key in range(min(16, num_keys - first)):
                value = load_f16x16(values + key * head_dim * 2)
                weight = scores + (first + key) * 4
                a0 = fma(splat_f32(load_f32(weight)), value, a0)
                a1 = fma(splat_f32(load_f32(weight + SCORE_BYTES)), value, a1)
                a2 = fma(splat_f32(load_f32(weight + 2 * SCORE_BYTES)), value, a2)
                a3 = fma(splat_f32(load_f32(weight + 3 * SCORE_BYTES)), value, a3)
                a4 = fma(splat_f32(load_f32(weight + 4 * SCORE_BYTES)), value, a4)
                a5 = fma(splat_f32(load_f32(weight + 5 * SCORE_BYTES)), value, a5)
                a6 = fma(splat_f32(load_f32(weight + 6 * SCORE_BYTES)), value, a6)
                a7 = fma(splat_f32(load_f32(weight + 7 * SCORE_BYTES)), value, a7)
        store_f32x16(_partial(rows, 0) + column * 4, a0)
        store_f32x16(_partial(rows, 1) + column * 4, a1)
        store_f32x16(_partial(rows, 2) + column * 4, a2)
        store_f32x16(_partial(rows, 3) + column * 4, a3)
        store_f32x16(_partial(rows, 4) + column * 4, a4)
        store_f32x16(_partial(rows, 5) + column * 4, a5)
        store_f32x16(_partial(rows, 6) + column * 4, a6)
        store_f32x16(_partial(rows, 7) + column * 4, a7)


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
    # Scores of each row of a run, then the addresses of its query and its partial.
    scores, rows = scratch, scratch + MOST_ROWS * SCORE_BYTES
    table += start // 16 * 8
    total = num_rows * group
    index = 0
    while index < total:
        run = 8 if HAS_AVX512 and index + 4 < total else 4
        for lane in range(run):
            # Row numbers are repeated at the end: the same result is then written twice.
            row = min(index + lane, total - 1)
            token, head = row // group, row % group
            store_i64(rows + lane * 16, queries + token * row_bytes + head * head_dim * 4)
            store_i64(rows + lane * 16 + 8, partials + token * partial_row_bytes + head * partial_head_bytes)
        # The last row of the run sees the most keys, the first the earliest.
        seen = min(num_keys, position + min(index + run - 1, total - 1) // group + 1 - start)
        if seen > 0:
            _score_run(run, rows, table, seen, k_pool, v_pool, block_bytes, head_offset, head_dim, scores)
            for lane in range(run):
                own = position + min(index + lane, total - 1) // group
                low = 0 if window == 0 else min(seen, max(0, own + 1 - window - start))
                high = max(low, min(seen, own + 1 - start))
                _soften(scores + lane * SCORE_BYTES, seen, low, high, _partial(rows, lane), head_dim)
            if run == 8:
                _sum_values8(rows, table, seen, v_pool, block_bytes, head_offset, head_dim, scores)
            else:
                _sum_values4(rows, table, seen, v_pool, block_bytes, head_offset, head_dim, scores)
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
