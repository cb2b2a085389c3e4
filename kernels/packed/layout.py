"""Where compiled code finds what Python gives it: words of int64 in memory, and the sizes of scratch.

Without numba, which is needed to compile only.
"""

from __future__ import annotations

# Keys of a split of the attention, and tokens whose query rows share one reading of it.
SPLIT = 256
TILE = 32
# Most query rows that are computed together: as many as there are registers for.
MOST_ROWS = 8
SCORE_BYTES = SPLIT * 4
# Words of such a row: addresses of its query, its scores and its partial result.
QUERY, SCORES, PARTIAL, LANE_WORDS = range(4)
SCRATCH_BYTES = MOST_ROWS * (SCORE_BYTES + LANE_WORDS * 8)

# Rows whose gate and up products a thread holds at a time, a block of 32 of each.
GATE_UP_ROWS = 64

# The block that the threads of a team share: words on a cache line each, as byte offsets.
LINE = 64
GENERATION = 0 * LINE  # counts jobs; a change starts one
ARRIVED = 1 * LINE  # threads at the barrier
PHASE = 2 * LINE  # counts barriers
CLAIMED = 3 * LINE  # next unit of work of this phase
PARKED = 4 * LINE  # helpers asleep
SHARED_WORDS = 5 * LINE // 8

# Words of the job, filled by `kernels.packed.model.PackedModel`. Addresses, unless it says otherwise.
(
    NUM_THREADS,
    FIRST_LAYER,
    LAST_LAYER,
    NUM_LAYERS,
    NUM_ROWS,
    NUM_LOGITS,
    NUM_UNITS,
    NUM_SPLITS,
    QUADS,
    LAYERS,
    HIDDEN,
    HEADS,
    KV_HEADS,
    HEAD_DIM,
    INNER,
    EPS,
    SCALE,
    EMBEDDING,
    EMBEDDING_KIND,
    FINAL_NORM,
    HEAD,
    COS,
    SIN,
    TOKENS,
    POSITIONS,
    SLOTS,
    LOGIT_ROWS,
    UNITS,
    RESIDUAL,
    DELTA,
    QKV,
    GATE_UP,
    CODES,
    SUMS,
    INNER_CODES,
    INNER_SUMS,
    PARTIALS,
    ATTENTION_SCRATCH,
    MERGED,
    LOGITS,
) = range(40)
JOB_WORDS = 40

# Words of a layer.
(
    INPUT_NORM,
    POST_NORM,
    Q_NORM,
    K_NORM,
    QKV_BIAS,
    K_POOL,
    V_POOL,
    WINDOW,
    QKV_PRODUCT,
    OUTPUT_PRODUCT,
    GATE_UP_PRODUCT,
    DOWN_PRODUCT,
) = range(12)
LAYER_WORDS_COUNT = 12

# A product is three segments (q, k, v; gate, up), each: address, format, panels; none: panels 0.
SEGMENT_WORDS = 3
PRODUCT_WORDS = 3 * SEGMENT_WORDS

# Words of an attention unit.
UNIT_ROW, UNIT_NUM_ROWS, UNIT_POSITION, UNIT_TABLE, UNIT_SPLIT, UNIT_KV_HEAD = range(6)
UNIT_WORDS = 6
