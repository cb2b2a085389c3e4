"""What a step's threads are to do, worked out before they begin: attention units, and the start of the job."""

from __future__ import annotations

from numba import njit

from kernels.packed.layout import GENERATION, PARKED, SPLIT, TILE, UNIT_WORDS
from kernels.packed.simd import atomic_add, load_i64, store_i64


@njit
def start_job(shared):
    """Count a job up and tell how many helpers sleep; one that is about to asks the counter once more."""
    atomic_add(shared + GENERATION, 1)
    return atomic_add(shared + PARKED, 0)


@njit
def _store_unit(unit, row, num_rows, position, table, split, kv_head):
    store_i64(unit, row)
    store_i64(unit + 8, num_rows)
    store_i64(unit + 16, position)
    store_i64(unit + 24, table)
    store_i64(unit + 32, split)
    store_i64(unit + 40, kv_head)


@njit
def plan_units(query_lens, context_lens, tables, num_sequences, kv_heads, window, units, capacity):
    """Attention units of a step: (first row, rows, position, table, split, kv head) each; returns how many there are.

    query_lens, context_lens, tables: addresses of [num_sequences] int64; units: address of [capacity, UNIT_WORDS],
    where those that fit are stored. Units of one split and head follow each other, for all sequences: those that share
    a prefix then find its keys and values in the cache of the core that has just read them.
    """
    longest = 0
    for index in range(num_sequences):
        longest = max(longest, load_i64(context_lens + index * 8))
    count, splits = 0, (longest - 1) // SPLIT + 1
    for kv_head in range(kv_heads):
        for split in range(splits):
            row = 0
            for index in range(num_sequences):
                query_len = load_i64(query_lens + index * 8)
                start = load_i64(context_lens + index * 8) - query_len
                for tile in range(0, query_len, TILE):
                    rows = min(TILE, query_len - tile)
                    position = start + tile
                    first = 0 if window == 0 else max(0, position + 1 - window) // SPLIT
                    if first <= split <= (position + rows - 1) // SPLIT:
                        if count < capacity:
                            unit, table = units + count * UNIT_WORDS * 8, load_i64(tables + index * 8)
                            _store_unit(unit, row + tile, rows, position, table, split, kv_head)
                        count += 1
                row += query_len
    return count
