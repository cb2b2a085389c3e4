"""A whole decoder step in compiled code: embeddings, all layers, head; every thread of the team runs this function.

Each phase's units (rows, panels, attention tiles) are claimed from a shared counter, so that a thread which the system
takes away for a while holds nobody up for long; what a unit computes does not depend on who computes it.
"""

from __future__ import annotations

from numba import njit

from kernels.packed.attention import attend_split, merge_quantize
from kernels.packed.layout import (
    ATTENTION_SCRATCH,
    CODES,
    COS,
    DELTA,
    DOWN_PRODUCT,
    EMBEDDING,
    EMBEDDING_KIND,
    EPS,
    FINAL_NORM,
    FIRST_LAYER,
    GATE_UP,
    GATE_UP_PRODUCT,
    GATE_UP_ROWS,
    HEAD,
    HEAD_DIM,
    HEADS,
    HIDDEN,
    INNER,
    INNER_CODES,
    INNER_SUMS,
    INPUT_NORM,
    K_NORM,
    K_POOL,
    KV_HEADS,
    LAST_LAYER,
    LAYER_WORDS_COUNT,
    LAYERS,
    LOGIT_ROWS,
    LOGITS,
    MERGED,
    NUM_LAYERS,
    NUM_LOGITS,
    NUM_ROWS,
    NUM_SPLITS,
    NUM_THREADS,
    NUM_UNITS,
    OUTPUT_PRODUCT,
    PARTIALS,
    POSITIONS,
    POST_NORM,
    Q_NORM,
    QKV,
    QKV_BIAS,
    QKV_PRODUCT,
    QUADS,
    RESIDUAL,
    SCALE,
    SCRATCH_BYTES,
    SEGMENT_WORDS,
    SIN,
    SLOTS,
    SUMS,
    TOKENS,
    UNIT_KV_HEAD,
    UNIT_NUM_ROWS,
    UNIT_POSITION,
    UNIT_ROW,
    UNIT_SPLIT,
    UNIT_TABLE,
    UNIT_WORDS,
    UNITS,
    V_POOL,
    WINDOW,
)
from kernels.packed.matmul import panels
from kernels.packed.rows import embed, norm_quantize, rope_write, silu_quantize
from kernels.packed.simd import load_f32, load_i64
from kernels.packed.team import await_job, barrier, claim


@njit
def _word(base, index):
    return load_i64(base + index * 8)


@njit
def _chunk(units, num_threads):
    return max(1, units // (num_threads * 4))


@njit
def _panel_chunk(panels, num_rows, num_threads):
    """Panels of a claim: few where each is much work, so that the last claim keeps nobody waiting for long."""
    return max(1, panels // (num_threads * (4 if num_rows < 64 else 16)))


@njit
def _row_chunk(num_rows, num_threads):
    """Rows of a claim that write keys: whole blocks, since the sixteen keys of one lie in the same cache lines."""
    return max(1, num_rows // num_threads) if num_rows < 16 * num_threads else min(64, num_rows // num_threads)


@njit
def _product(shared, num_threads, segments, width, quads, codes, sums, num_rows, out):
    """All segments of one product side by side in `out`."""
    total = 0
    for s in range(3):
        total += _word(segments, s * SEGMENT_WORDS + 2)
    chunk = _panel_chunk(total, num_rows, num_threads)
    stride = total * 64
    first = claim(shared, chunk)
    while first < total:
        last, start = min(total, first + chunk), 0
        for s in range(3):
            count = _word(segments, s * SEGMENT_WORDS + 2)
            low, high = max(first, start) - start, min(last, start + count) - start
            if low < high:
                panels(
                    _word(segments, s * SEGMENT_WORDS),
                    _word(segments, s * SEGMENT_WORDS + 1),
                    width // 32,
                    quads,
                    low,
                    high,
                    codes,
                    sums,
                    num_rows,
                    out + start * 64,
                    stride,
                )
            start += count
        first = claim(shared, chunk)
    barrier(shared, num_threads)


@njit(forceinline=True)
def _row(rows, index):
    """Which row of the step is the `index`-th of a phase: `rows` is the address of their numbers, 0 for all."""
    return index if rows == 0 else load_i64(rows + index * 8)


@njit
def _norm_phase(shared, num_threads, job, rows, delta, weight, num_rows):
    """residual += delta (unless 0), then normalise and quantise; delta and what comes out are of these rows only."""
    hidden, eps = _word(job, HIDDEN), load_f32(job + EPS * 8)
    residual, codes, sums = _word(job, RESIDUAL), _word(job, CODES), _word(job, SUMS)
    chunk = _chunk(num_rows, num_threads)
    first = claim(shared, chunk)
    while first < num_rows:
        for i in range(first, min(num_rows, first + chunk)):
            moved = 0 if delta == 0 else delta + i * hidden * 4
            here = residual + _row(rows, i) * hidden * 4
            norm_quantize(here, moved, weight, eps, hidden, codes + i * hidden, sums + i * hidden // 32 * 8)
        first = claim(shared, chunk)
    barrier(shared, num_threads)


@njit
def _embed_phase(shared, num_threads, job, num_rows):
    hidden = _word(job, HIDDEN)
    chunk = _chunk(num_rows, num_threads)
    first = claim(shared, chunk)
    while first < num_rows:
        for row in range(first, min(num_rows, first + chunk)):
            embed(
                _word(job, EMBEDDING),
                _word(job, EMBEDDING_KIND),
                hidden // 32,
                load_i64(_word(job, TOKENS) + row * 8),
                _word(job, RESIDUAL) + row * hidden * 4,
            )
        first = claim(shared, chunk)
    barrier(shared, num_threads)


@njit
def _rope_phase(shared, num_threads, job, layer, num_rows):
    heads, kv_heads, head_dim = _word(job, HEADS), _word(job, KV_HEADS), _word(job, HEAD_DIM)
    eps, scale = load_f32(job + EPS * 8), load_f32(job + SCALE * 8)
    row_bytes = (heads + 2 * kv_heads) * head_dim * 4
    chunk = _row_chunk(num_rows, num_threads)
    first = claim(shared, chunk)
    while first < num_rows:
        for row in range(first, min(num_rows, first + chunk)):
            angle = load_i64(_word(job, POSITIONS) + row * 8) * head_dim * 2
            rope_write(
                _word(job, QKV) + row * row_bytes,
                _word(layer, QKV_BIAS),
                _word(job, COS) + angle,
                _word(job, SIN) + angle,
                heads,
                kv_heads,
                head_dim,
                scale,
                _word(layer, Q_NORM),
                _word(layer, K_NORM),
                eps,
                _word(layer, K_POOL),
                _word(layer, V_POOL),
                load_i64(_word(job, SLOTS) + row * 8),
            )
        first = claim(shared, chunk)
    barrier(shared, num_threads)


@njit(forceinline=True)
def _is_wanted(rows, num_wanted, first, count):
    """Whether a unit of rows holds one of the wanted."""
    found = rows == 0
    for i in range(0 if found else num_wanted):
        found = found or first <= load_i64(rows + i * 8) < first + count
    return found


@njit
def _attention_phase(shared, num_threads, thread, job, layer, rows, num_wanted):
    heads, kv_heads, head_dim = _word(job, HEADS), _word(job, KV_HEADS), _word(job, HEAD_DIM)
    group, num_units, splits = heads // kv_heads, _word(job, NUM_UNITS), _word(job, NUM_SPLITS)
    row_bytes = (heads + 2 * kv_heads) * head_dim * 4
    split_bytes = (head_dim + 16) * 4
    head_bytes = splits * split_bytes
    scratch = _word(job, ATTENTION_SCRATCH) + thread * SCRATCH_BYTES
    chunk = max(1, num_units // (num_threads * 32))
    first = claim(shared, chunk)
    while first < num_units:
        for index in range(first, min(num_units, first + chunk)):
            unit = _word(job, UNITS) + index * UNIT_WORDS * 8
            row, kv_head, split = _word(unit, UNIT_ROW), _word(unit, UNIT_KV_HEAD), _word(unit, UNIT_SPLIT)
            if not _is_wanted(rows, num_wanted, row, _word(unit, UNIT_NUM_ROWS)):
                continue
            attend_split(
                _word(job, QKV) + row * row_bytes + kv_head * group * head_dim * 4,
                row_bytes,
                _word(unit, UNIT_NUM_ROWS),
                _word(unit, UNIT_POSITION),
                group,
                _word(unit, UNIT_TABLE),
                split,
                _word(layer, WINDOW),
                _word(layer, K_POOL),
                _word(layer, V_POOL),
                kv_heads,
                kv_head,
                head_dim,
                _word(job, PARTIALS) + (row * heads + kv_head * group) * head_bytes + split * split_bytes,
                heads * head_bytes,
                head_bytes,
                scratch,
            )
        first = claim(shared, chunk)
    barrier(shared, num_threads)


@njit
def _merge_phase(shared, num_threads, thread, job, layer, rows, num_rows):
    heads, head_dim, splits = _word(job, HEADS), _word(job, HEAD_DIM), _word(job, NUM_SPLITS)
    split_bytes, width = (head_dim + 16) * 4, heads * head_dim
    head_bytes = splits * split_bytes
    merged = _word(job, MERGED) + thread * width * 4
    chunk = _chunk(num_rows, num_threads)
    first = claim(shared, chunk)
    while first < num_rows:
        for i in range(first, min(num_rows, first + chunk)):
            row = _row(rows, i)
            merge_quantize(
                _word(job, PARTIALS) + row * heads * head_bytes,
                split_bytes,
                head_bytes,
                load_i64(_word(job, POSITIONS) + row * 8),
                _word(layer, WINDOW),
                heads,
                head_dim,
                merged,
                _word(job, CODES) + i * width,
                _word(job, SUMS) + i * width // 32 * 8,
            )
        first = claim(shared, chunk)
    barrier(shared, num_threads)


@njit
def _gate_up_block(job, layer, products, block, num_rows):
    """One block of 32 of the inner width, for all rows. products: this thread's, [GATE_UP_ROWS, 64] float32."""
    hidden, blocks = _word(job, HIDDEN), _word(job, INNER) // 32
    for first in range(0, num_rows, GATE_UP_ROWS):
        count = min(GATE_UP_ROWS, num_rows - first)
        for part in range(2):
            segment = _word(layer, GATE_UP_PRODUCT) + part * SEGMENT_WORDS * 8
            panels(
                _word(segment, 0),
                _word(segment, 1),
                hidden // 32,
                _word(job, QUADS),
                2 * block,
                2 * block + 2,
                _word(job, CODES) + first * hidden,
                _word(job, SUMS) + first * hidden // 32 * 8,
                count,
                products + (part - block) * 128,
                256,
            )
        for row in range(count):
            gate, at = products + row * 256, (first + row) * blocks + block
            silu_quantize(gate, gate + 128, 32, _word(job, INNER_CODES) + at * 32, _word(job, INNER_SUMS) + at * 8)


@njit
def _gate_up_phase(shared, num_threads, thread, job, layer, num_rows):
    """codes, sums of the inner width = quantised silu(gate) · up.

    Block by block, so that the products, the widest of a step, never leave the cache of the core that computes them.
    """
    products = _word(job, GATE_UP) + thread * GATE_UP_ROWS * 256
    blocks = _word(job, INNER) // 32
    # Claims that follow each other lie far apart: threads do not write to the same cache lines at the same time.
    share = (blocks + num_threads - 1) // num_threads
    run = max(1, share // 4) if num_rows < GATE_UP_ROWS else 1
    total = (share + run - 1) // run * num_threads
    unit = claim(shared, 1)
    while unit < total:
        start = unit % num_threads * share
        first = start + unit // num_threads * run
        for block in range(first, min(first + run, start + share, blocks)):
            _gate_up_block(job, layer, products, block, num_rows)
        unit = claim(shared, 1)
    barrier(shared, num_threads)


@njit
def run_step(shared, job, thread):
    """One thread's share of the layers FIRST_LAYER to LAST_LAYER; the first embeds, the last makes the logits."""
    num_threads, num_rows = _word(job, NUM_THREADS), _word(job, NUM_ROWS)
    hidden, inner = _word(job, HIDDEN), _word(job, INNER)
    width = _word(job, HEADS) * _word(job, HEAD_DIM)
    codes, sums, delta = _word(job, CODES), _word(job, SUMS), _word(job, DELTA)
    inner_codes, inner_sums = _word(job, INNER_CODES), _word(job, INNER_SUMS)
    quads = _word(job, QUADS)
    # Nothing of the job may be read behind the last barrier: the caller fills in the next one.
    num_logits = _word(job, NUM_LOGITS)
    last_layer = _word(job, LAST_LAYER)
    ends = last_layer == _word(job, NUM_LAYERS)
    if _word(job, FIRST_LAYER) == 0:
        _embed_phase(shared, num_threads, job, num_rows)
    for index in range(_word(job, FIRST_LAYER), last_layer):
        layer = _word(job, LAYERS) + index * LAYER_WORDS_COUNT * 8
        _norm_phase(shared, num_threads, job, 0, 0 if index == 0 else delta, _word(layer, INPUT_NORM), num_rows)
        _product(shared, num_threads, _word(layer, QKV_PRODUCT), hidden, quads, codes, sums, num_rows, _word(job, QKV))
        _rope_phase(shared, num_threads, job, layer, num_rows)
        rows, wanted = 0, num_rows
        if ends and index == last_layer - 1:
            # Of the last layer nobody reads more than keys, values and the rows that get logits.
            if num_logits == 0:
                return
            rows, wanted = _word(job, LOGIT_ROWS), num_logits
        _attention_phase(shared, num_threads, thread, job, layer, rows, wanted)
        _merge_phase(shared, num_threads, thread, job, layer, rows, wanted)
        _product(shared, num_threads, _word(layer, OUTPUT_PRODUCT), width, quads, codes, sums, wanted, delta)
        _norm_phase(shared, num_threads, job, rows, delta, _word(layer, POST_NORM), wanted)
        _gate_up_phase(shared, num_threads, thread, job, layer, wanted)
        _product(
            shared, num_threads, _word(layer, DOWN_PRODUCT), inner, quads, inner_codes, inner_sums, wanted, delta
        )  # fmt: skip
    if ends:
        _norm_phase(shared, num_threads, job, _word(job, LOGIT_ROWS), delta, _word(job, FINAL_NORM), num_logits)
        _product(shared, num_threads, _word(job, HEAD), hidden, quads, codes, sums, num_logits, _word(job, LOGITS))


@njit
def work(shared, job, thread, pipe, scratch):
    """Thread 0: its share of the job whose address lies at `job`. Others: wait for jobs and run them, for ever."""
    if thread == 0:
        run_step(shared, load_i64(job), thread)
        return 0
    seen = 0
    # The count never turns negative; numba does not compile a loop that is never left.
    while seen >= 0:
        seen = await_job(shared, seen, pipe, scratch)
        run_step(shared, load_i64(job), thread)
    return 0
