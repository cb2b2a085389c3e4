"""Paged attention in Triton: one kernel for prefill chunks, decode and verification, and one that combines splits.

Formula and source as `kernels.paged_attention`; the cut into tiles and splits is `attention_tiles`' (flash-decoding
with a fixed split size; Dao et al., "Flash-Decoding for long-context inference", 2023). A program takes items in turn,
so that the grid does not depend on the step and can be kept in a CUDA graph. The M tile holds query rows × the query
heads of one key/value head: row m is query row m // GROUPS, head m % GROUPS.

q, out: [tokens, heads, head_dim] float32, float16 or bfloat16; the pool (`kernels.kv_pool`): q's dtype or float8 e4m3.
Softmax and sums are float32; offsets into the pool are int64.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import torch
import triton
import triton.language as tl
from torch import Tensor

from kernels.gpu.attention_tiles import AttentionTiles
from kernels.gpu.compile_case import CompileCase
from kernels.gpu.float8 import decode_e4m3
from kernels.kv_pool import KVPool
from kernels.transfer import to_device

# Query rows × heads of a tile: the least that tensor cores take, for decode and verification; more for prompts.
FEW_ROWS, MANY_ROWS = 16, 64
# Programs at most, as many as fill a large card several times over; each takes several items where there are more.
MAX_PROGRAMS = 1024


@triton.jit
def _load_rows(pool, places, columns, mask, scale, dtype: tl.constexpr, FLOAT8: tl.constexpr):
    """[keys, BLOCK_D] of a pool: as they lie there, or float8 codes times their head's scale."""
    rows = tl.load(pool + places[:, None] + columns[None, :], mask=mask, other=0)
    if FLOAT8:
        rows = (decode_e4m3(rows) * tl.load(scale)).to(dtype)
    return rows


# What changes from step to step is not looked at when a kernel is chosen: each variant would be compiled while somebody
# waits.
@triton.jit(
    do_not_specialize=["table_stride"],
    do_not_specialize_on_alignment=["starts", "context_lens", "block_tables", "tiles", "items", "counts"],
)
def _attend(
    q, k_pool, v_pool, out, part_out, part_max, part_sum, starts, context_lens, block_tables, tiles, items, counts,
    k_scales, v_scales, scale, q_stride, block_stride, head_stride, table_stride,
    GROUPS: tl.constexpr, HEAD_DIM: tl.constexpr, BLOCK_D: tl.constexpr, BLOCK_M: tl.constexpr, KEYS: tl.constexpr,
    BLOCK_SIZE: tl.constexpr, WINDOW: tl.constexpr, FLOAT8: tl.constexpr,
):  # fmt: skip
    kv_head, kv_heads = tl.program_id(1), tl.num_programs(1)
    ROWS: tl.constexpr = BLOCK_M // GROUPS
    m, d = tl.arange(0, BLOCK_M), tl.arange(0, BLOCK_D)
    heads = kv_head * GROUPS + m % GROUPS
    for item in range(tl.program_id(0), tl.load(counts), tl.num_programs(0)):
        tile, split = tl.load(items + 2 * item), tl.load(items + 2 * item + 1)
        sequence, first_row = tl.load(tiles + 4 * tile), tl.load(tiles + 4 * tile + 1)
        num_splits = tl.load(tiles + 4 * tile + 3)
        start = tl.load(starts + sequence)
        query_len = tl.load(starts + sequence + 1) - start
        cached = tl.load(context_lens + sequence) - query_len
        rows = first_row + m // GROUPS
        valid = (m < ROWS * GROUPS) & (rows < query_len)
        positions = cached + rows
        places = (start + rows).to(tl.int64) * q_stride + heads * HEAD_DIM
        mask = valid[:, None] & (d < HEAD_DIM)[None, :]
        queries = tl.load(q + places[:, None] + d[None, :], mask=mask, other=0.0)

        split_keys = tl.load(counts + 1)
        low = split * split_keys
        high = tl.minimum(low + split_keys, cached + tl.minimum(first_row + ROWS, query_len))
        if WINDOW > 0:
            # From the first tile of keys that the first row sees; keys before it change no bit.
            low = tl.maximum(low, tl.maximum(cached + first_row - WINDOW + 1, 0) // KEYS * KEYS)
        largest = tl.full([BLOCK_M], float("-inf"), tl.float32)
        total = tl.zeros([BLOCK_M], tl.float32)
        acc = tl.zeros([BLOCK_M, BLOCK_D], tl.float32)
        for first_key in range(low, high, KEYS):
            keys = first_key + tl.arange(0, KEYS)
            inside = keys < high
            table = block_tables + sequence.to(tl.int64) * table_stride
            blocks = tl.load(table + keys // BLOCK_SIZE, mask=inside, other=0).to(tl.int64)
            slots = blocks * block_stride + kv_head * head_stride + keys % BLOCK_SIZE * HEAD_DIM
            # Slots outside may hold anything, NaN included: never loaded, since 0 · NaN would still be NaN.
            loaded = inside[:, None] & (d < HEAD_DIM)[None, :]
            k = _load_rows(k_pool, slots, d, loaded, k_scales + kv_head, queries.dtype, FLOAT8)
            v = _load_rows(v_pool, slots, d, loaded, v_scales + kv_head, queries.dtype, FLOAT8)
            scores = tl.dot(queries, tl.trans(k), input_precision="ieee") * (scale * 1.4426950408889634)
            seen = inside[None, :] & (keys[None, :] <= positions[:, None])
            if WINDOW > 0:
                seen = seen & (keys[None, :] > positions[:, None] - WINDOW)
            scores = tl.where(seen, scores, float("-inf"))
            larger = tl.maximum(largest, tl.max(scores, axis=1))
            # A row that has seen nothing yet: −inf − −inf would be NaN.
            base = tl.where(larger == float("-inf"), 0.0, larger)
            weights = tl.exp2(scores - base[:, None])
            kept = tl.exp2(largest - base)
            total = total * kept + tl.sum(weights, axis=1)
            acc = tl.dot(weights.to(v.dtype), v, acc * kept[:, None], input_precision="ieee")
            largest = larger

        if num_splits == 1:
            result = acc / tl.where(total == 0.0, 1.0, total)[:, None]
            target = (start + rows).to(tl.int64) * (kv_heads * GROUPS * HEAD_DIM) + heads * HEAD_DIM
            tl.store(out + target[:, None] + d[None, :], result.to(out.dtype.element_ty), mask=mask)
        else:
            part = (tl.cast(item, tl.int64) * kv_heads + kv_head) * BLOCK_M + m
            tl.store(part_max + part, largest, mask=valid)
            tl.store(part_sum + part, total, mask=valid)
            tl.store(part_out + part[:, None] * HEAD_DIM + d[None, :], acc, mask=mask)


@triton.jit(do_not_specialize_on_alignment=["starts", "tiles"])
def _combine(
    out, part_out, part_max, part_sum, starts, tiles,
    GROUPS: tl.constexpr, HEAD_DIM: tl.constexpr, BLOCK_D: tl.constexpr, BLOCK_M: tl.constexpr,
):  # fmt: skip
    """One query row and head: its splits' sums, first to last."""
    tile, kv_head, m = tl.program_id(0), tl.program_id(1) // BLOCK_M, tl.program_id(1) % BLOCK_M
    kv_heads = tl.num_programs(1) // BLOCK_M
    ROWS: tl.constexpr = BLOCK_M // GROUPS
    d = tl.arange(0, BLOCK_D)
    sequence, first_row = tl.load(tiles + 4 * tile), tl.load(tiles + 4 * tile + 1)
    first_item, num_splits = tl.load(tiles + 4 * tile + 2), tl.load(tiles + 4 * tile + 3)
    start = tl.load(starts + sequence)
    row = first_row + m // GROUPS
    if (num_splits > 1) & (m < ROWS * GROUPS) & (start + row < tl.load(starts + sequence + 1)):
        largest, total = float("-inf"), 0.0
        acc = tl.zeros([BLOCK_D], tl.float32)
        for split in range(0, num_splits):
            part = (tl.cast(first_item + split, tl.int64) * kv_heads + kv_head) * BLOCK_M + m
            split_max = tl.load(part_max + part)
            larger = tl.maximum(largest, split_max)
            base = tl.where(larger == float("-inf"), 0.0, larger)
            kept, weight = tl.exp2(largest - base), tl.exp2(split_max - base)
            total = total * kept + tl.load(part_sum + part) * weight
            acc = acc * kept + tl.load(part_out + part * HEAD_DIM + d, mask=d < HEAD_DIM, other=0.0) * weight
            largest = larger
        target = ((start + row).to(tl.int64) * kv_heads * GROUPS + kv_head * GROUPS + m % GROUPS) * HEAD_DIM
        tl.store(out + target + d, (acc / total).to(out.dtype.element_ty), mask=d < HEAD_DIM)


@dataclass(frozen=True)
class AttentionPlan:
    """`AttentionTiles` and block tables on the device, all int32, and room for the splits' results.

    Attributes:
        counts: [2] the number of items (those beyond it are not looked at, nor are the tiles they would name), and the
            keys of a split.
        block_m: rows × heads of a tile.
        is_split: whether any tile can have more than one split.
        part_out, part_max, part_sum: [items, kv_heads, block_m(, head_dim)] float32; empty if nothing is split.
    """

    starts: Tensor
    context_lens: Tensor
    block_tables: Tensor
    tiles: Tensor
    items: Tensor
    counts: Tensor
    block_m: int
    is_split: bool
    part_out: Tensor
    part_max: Tensor
    part_sum: Tensor


def block_m(max_query_len: int, groups: int, *, deterministic: bool) -> int:
    """Rows × heads of a tile: more where prompts are read, unless results must not depend on that."""
    few = max(FEW_ROWS, int(triton.next_power_of_2(groups)))
    return few if deterministic or max_query_len * groups <= few else max(MANY_ROWS, few)


def make_plan(tiles: AttentionTiles, block_tables: Tensor, block_m: int, kv_heads: int, head_dim: int) -> AttentionPlan:
    """Bring a step's tiles to the device of its block tables [sequences, width] int32."""
    device = block_tables.device
    num_parts = len(tiles.items) if tiles.is_split else 0
    part_out, part_max, part_sum = make_parts(num_parts, kv_heads, block_m, head_dim, device)
    flat = [tiles.starts, tiles.context_lens, tiles.tiles.reshape(-1), tiles.items.reshape(-1)]
    counts = torch.tensor([len(tiles.items), tiles.split], dtype=torch.int32)
    # One copy for all: each would cost a launch.
    joined = to_device(torch.cat([*(torch.from_numpy(part) for part in flat), counts]), device)
    starts, context_lens, tile_table, items, on_device = joined.split([*(len(part) for part in flat), 2])
    return AttentionPlan(
        starts, context_lens, block_tables, tile_table.view(-1, 4), items.view(-1, 2), on_device,
        block_m, tiles.is_split, part_out, part_max, part_sum,
    )  # fmt: skip


def make_parts(
    num_items: int, kv_heads: int, block_m: int, head_dim: int, device: torch.device
) -> tuple[Tensor, Tensor, Tensor]:
    """Room for the results of so many items: sums of values, largest scores, sums of weights."""
    shape = (num_items, kv_heads, block_m)
    part_out = torch.empty((*shape, head_dim), dtype=torch.float32, device=device)
    part_max, part_sum = (torch.empty(shape, dtype=torch.float32, device=device) for _ in range(2))
    return part_out, part_max, part_sum


def _launch_options(head_dim: int, rows: int, *, is_float32: bool, is_float8: bool) -> tuple[int, int, int]:
    """(keys of a tile, warps, stages): more warps where four would not hold the tile in registers."""
    if is_float32:
        return 32, 4, 1
    if rows <= FEW_ROWS:
        return (32, 4, 1) if head_dim > 128 else (64, 4, 2)
    num_warps = 8 if head_dim > 128 or (is_float8 and head_dim > 64) else 4
    return 32, num_warps, 1 if head_dim > 128 else 2


def paged_attention(q: Tensor, pool: KVPool, plan: AttentionPlan, scale: float, window: int | None) -> Tensor:
    """q: [tokens, heads, head_dim] (last two axes contiguous); returns the same shape."""
    tokens, heads, head_dim = q.shape
    k_pool, v_pool = pool.codes
    kv_heads, block_size = k_pool.shape[1], k_pool.shape[2]
    groups = heads // kv_heads
    if q.stride()[1:] != (head_dim, 1):
        q = q.contiguous()
    out = q.new_empty(tokens, heads, head_dim)
    keys, num_warps, num_stages = _launch_options(
        head_dim, plan.block_m, is_float32=q.dtype == torch.float32, is_float8=pool.is_float8
    )
    block_d = max(16, triton.next_power_of_2(head_dim))
    _attend[(min(plan.items.shape[0], max(1, MAX_PROGRAMS // kv_heads)), kv_heads)](
        q, k_pool, v_pool, out, plan.part_out, plan.part_max, plan.part_sum, plan.starts, plan.context_lens,
        plan.block_tables, plan.tiles, plan.items, plan.counts,
        plan.part_max if pool.k_scales is None else pool.k_scales,
        plan.part_max if pool.v_scales is None else pool.v_scales,
        scale, q.stride(0), k_pool.stride(0), k_pool.stride(1), plan.block_tables.stride(0),
        GROUPS=groups, HEAD_DIM=head_dim, BLOCK_D=block_d, BLOCK_M=plan.block_m, KEYS=keys, BLOCK_SIZE=block_size,
        WINDOW=window or 0, FLOAT8=pool.is_float8, num_warps=num_warps, num_stages=num_stages,
    )  # fmt: skip
    if plan.is_split:
        _combine[(plan.tiles.shape[0], kv_heads * plan.block_m)](
            out, plan.part_out, plan.part_max, plan.part_sum, plan.starts, plan.tiles,
            GROUPS=groups, HEAD_DIM=head_dim, BLOCK_D=block_d, BLOCK_M=plan.block_m, num_warps=1,
        )  # fmt: skip
    return out


def compile_cases() -> Iterator[CompileCase]:
    """Decode and prefill tiles for every head size; both kinds of pool; with and without a window."""
    pointers = {
        **dict.fromkeys(("part_out", "part_max", "part_sum"), "*fp32"),
        **dict.fromkeys(("starts", "context_lens", "block_tables", "tiles", "items", "counts"), "*i32"),
        **dict.fromkeys(("k_scales", "v_scales"), "*fp32"),
    }
    strides = ("q_stride", "block_stride", "head_stride", "table_stride")
    for head_dim in (64, 80, 96, 128, 256):
        for rows in (FEW_ROWS, MANY_ROWS):
            for float8, window in ((False, 0), (True, 0), (False, 4096)):
                if window and head_dim != 128:
                    continue
                keys, num_warps, num_stages = _launch_options(head_dim, rows, is_float32=False, is_float8=float8)
                pool = "*u8" if float8 else "*bf16"
                yield CompileCase(
                    f"paged_attention bf16 head_dim={head_dim} {'decode' if rows == FEW_ROWS else 'prefill'}"
                    f"{' fp8' if float8 else ''}{' window' if window else ''}",
                    _attend,
                    {
                        "q": "*bf16", "k_pool": pool, "v_pool": pool, "out": "*bf16", **pointers, "scale": "fp32",
                        **dict.fromkeys(strides, "i32"),
                    },
                    {
                        "GROUPS": 4, "HEAD_DIM": head_dim, "BLOCK_D": triton.next_power_of_2(head_dim),
                        "BLOCK_M": rows, "KEYS": keys, "BLOCK_SIZE": 16, "WINDOW": window, "FLOAT8": float8,
                    },
                    num_warps=num_warps,
                    num_stages=num_stages,
                    spill_bytes=0 if rows == FEW_ROWS else 64,
                    aligned=frozenset(strides) - {"table_stride"},
                )  # fmt: skip
        yield CompileCase(
            f"paged_attention combine bf16 head_dim={head_dim}",
            _combine,
            {
                "out": "*bf16", **dict.fromkeys(("part_out", "part_max", "part_sum"), "*fp32"), "starts": "*i32",
                "tiles": "*i32",
            },
            {"GROUPS": 4, "HEAD_DIM": head_dim, "BLOCK_D": triton.next_power_of_2(head_dim), "BLOCK_M": FEW_ROWS},
            num_warps=1,
        )  # fmt: skip
