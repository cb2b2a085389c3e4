"""Penalties and the draw of one token a row in Triton: one program a row, no sort.

Order and meaning as `kernels.sampling`: logits / temperature, min_p, top_k, top_p, then argmax(logits + Gumbel noise),
the noise float64 from the same counter-based hash, so that tokens are those of the CPU. A threshold is found by its
bits: float32 values are mapped to integers in the same order, and two bits of the threshold are settled in each pass
over the row by counting (top_k) or summing probabilities (top_p) at or above three candidates: 16 passes, exact. Of
equal values at a threshold the first are kept, as many as still fit.

logits: [rows, vocab] float32, rows contiguous.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence

import torch
import triton
import triton.language as tl
from torch import Tensor

from kernels.gpu.compile_case import CompileCase
from kernels.sampling import Draw, Penalty, noise_keys
from kernels.transfer import to_device

BLOCK, PENALTY_BLOCK = 2048, 256


@triton.jit
def _mix(value):
    value = (value ^ (value >> 16)) * 0x85EBCA6B
    value = (value ^ (value >> 13)) * 0xC2B2AE35
    return value ^ (value >> 16)


@triton.jit
def _ordered(value):
    """float32 to uint32 in the same order (−0 as +0)."""
    bits = (value + 0.0).to(tl.uint32, bitcast=True)
    return tl.where(bits >= 0x80000000, bits ^ 0xFFFFFFFF, bits | 0x80000000)


@triton.jit
def _value(ordered):
    """The inverse of `_ordered`, for a scalar."""
    bits = tl.where(ordered >= 0x80000000, ordered & 0x7FFFFFFF, ordered ^ 0xFFFFFFFF)
    return bits.to(tl.float32, bitcast=True)


@triton.jit
def _scaled(row, columns, vocab, temperature):
    raw = tl.load(row + columns, mask=columns < vocab, other=float("-inf"))
    return tl.div_rn(raw, tl.zeros_like(raw) + temperature)


@triton.jit
def _top_k_bound(row, vocab, temperature, top_k, BLOCK: tl.constexpr):
    """The rank of the top_k-th value, two bits a pass: at least top_k values have it or a higher one."""
    lanes = tl.arange(0, BLOCK)
    one = tl.full([], 1, tl.uint32)
    found = tl.full([], 0, tl.uint32)
    for step in range(16):
        unit = one << tl.cast(30 - 2 * step, tl.uint32)
        first = tl.full([], 0, tl.int32)
        second = tl.full([], 0, tl.int32)
        third = tl.full([], 0, tl.int32)
        for start in range(0, vocab, BLOCK):
            inside = start + lanes < vocab
            rank = _ordered(_scaled(row, start + lanes, vocab, temperature))
            first += tl.sum(((rank >= found + unit) & inside).to(tl.int32), axis=0)
            second += tl.sum(((rank >= found + 2 * unit) & inside).to(tl.int32), axis=0)
            third += tl.sum(((rank >= found + 3 * unit) & inside).to(tl.int32), axis=0)
        digits = (first >= top_k).to(tl.uint32) + (second >= top_k).to(tl.uint32) + (third >= top_k).to(tl.uint32)
        found += digits * unit
    return found


@triton.jit
def _num_above(row, vocab, temperature, bound, BLOCK: tl.constexpr):
    """How many values rank above `bound`."""
    lanes = tl.arange(0, BLOCK)
    above = tl.full([], 0, tl.int32)
    for start in range(0, vocab, BLOCK):
        rank = _ordered(_scaled(row, start + lanes, vocab, temperature))
        above += tl.sum(((rank > bound) & (start + lanes < vocab)).to(tl.int32), axis=0)
    return above


@triton.jit
def _mass_above(row, vocab, temperature, largest, bound, BLOCK: tl.constexpr):
    """(Σ exp(value − largest) over the values that rank above `bound`, how many rank equal to it)."""
    lanes = tl.arange(0, BLOCK)
    mass = tl.full([], 0.0, tl.float32)
    tied = tl.full([], 0, tl.int32)
    for start in range(0, vocab, BLOCK):
        scaled = _scaled(row, start + lanes, vocab, temperature)
        rank = _ordered(scaled)
        mass += tl.sum(tl.where(rank > bound, tl.exp(scaled - largest), 0.0), axis=0)
        tied += tl.sum(((rank == bound) & (start + lanes < vocab)).to(tl.int32), axis=0)
    return mass, tied


@triton.jit
def _top_p_bound(row, vocab, temperature, largest, low, wanted, BLOCK: tl.constexpr):
    """The highest rank from which upwards the values above `low` have the mass `wanted`, two bits a pass."""
    lanes = tl.arange(0, BLOCK)
    one = tl.full([], 1, tl.uint32)
    found = tl.full([], 0, tl.uint32)
    for step in range(16):
        unit = one << tl.cast(30 - 2 * step, tl.uint32)
        first_mass = tl.full([], 0.0, tl.float32)
        second_mass = tl.full([], 0.0, tl.float32)
        third_mass = tl.full([], 0.0, tl.float32)
        for start in range(0, vocab, BLOCK):
            scaled = _scaled(row, start + lanes, vocab, temperature)
            rank = _ordered(scaled)
            mass = tl.where(rank > low, tl.exp(scaled - largest), 0.0)
            first_mass += tl.sum(tl.where(rank >= found + unit, mass, 0.0), axis=0)
            second_mass += tl.sum(tl.where(rank >= found + 2 * unit, mass, 0.0), axis=0)
            third_mass += tl.sum(tl.where(rank >= found + 3 * unit, mass, 0.0), axis=0)
        digits = (first_mass >= wanted).to(tl.uint32) + (second_mass >= wanted).to(tl.uint32)
        digits += (third_mass >= wanted).to(tl.uint32)
        found += digits * unit
    return found


@triton.jit
def _best_with_noise(row, vocab, temperature, low, ties, key, second_key, BLOCK: tl.constexpr):
    """The token of the largest value + noise among the kept: above `low`, and the first `ties` equal to it."""
    lanes = tl.arange(0, BLOCK)
    best = tl.full([], float("-inf"), tl.float64)
    token = tl.full([], 0, tl.int32)
    tied_before = tl.full([], 0, tl.int32)
    for start in range(0, vocab, BLOCK):
        columns = start + lanes
        inside = columns < vocab
        scaled = _scaled(row, columns, vocab, temperature)
        rank = _ordered(scaled)
        is_tied = (rank == low) & inside
        order = tied_before + tl.cumsum(is_tied.to(tl.int32), axis=0)
        kept = ((rank > low) & inside) | (is_tied & (order <= ties))
        hashed = _mix(_mix(columns.to(tl.uint32) + second_key) ^ key)
        uniform = (hashed.to(tl.float64) + 0.5) * (1.0 / 4294967296.0)
        noise = -tl.log(-tl.log(uniform))
        score = tl.where(kept, scaled.to(tl.float64) + noise, float("-inf"))
        block_best = tl.max(score, axis=0)
        block_token = tl.min(tl.where(score == block_best, columns, 2147483647), axis=0)
        token = tl.where(block_best > best, block_token, token)
        best = tl.maximum(best, block_best)
        tied_before += tl.sum(is_tied.to(tl.int32), axis=0)
    return token


# Rows of one tensor a step, aligned or not by the number of requests: no reason to compile another variant.
@triton.jit(
    do_not_specialize_on_alignment=["logits", "temperatures", "top_ks", "top_ps", "log_min_ps", "keys", "seconds"]
)
def _draw(logits, out, temperatures, top_ks, top_ps, log_min_ps, keys, seconds, row_stride, vocab, BLOCK: tl.constexpr):
    index = tl.program_id(0)
    row = logits + index.to(tl.int64) * row_stride
    temperature, top_k = tl.load(temperatures + index), tl.load(top_ks + index).to(tl.int32)
    top_p, log_min_p = tl.load(top_ps + index), tl.load(log_min_ps + index)
    largest = tl.full([], float("-inf"), tl.float32)
    for start in range(0, vocab, BLOCK):
        largest = tl.maximum(largest, tl.max(_scaled(row, start + tl.arange(0, BLOCK), vocab, temperature), axis=0))
    # What is kept: everything above `low` in order, and the first `ties` equal to it.
    low = _ordered(largest + log_min_p)
    ties = tl.full([], 2147483647, tl.int32)

    if (top_k > 0) & (top_k < vocab):
        found = _top_k_bound(row, vocab, temperature, top_k, BLOCK)
        if found >= low:
            low = found
            ties = top_k - _num_above(row, vocab, temperature, found, BLOCK)

    if top_p < 1.0:
        total, tied = _mass_above(row, vocab, temperature, largest, low, BLOCK)
        wanted = top_p * (total + tl.minimum(tied, ties).to(tl.float32) * tl.exp(_value(low) - largest))
        found = low
        if total >= wanted:
            found = _top_p_bound(row, vocab, temperature, largest, low, wanted, BLOCK)
        above, _ = _mass_above(row, vocab, temperature, largest, found, BLOCK)
        needed = tl.maximum(tl.ceil((wanted - above) / tl.exp(_value(found) - largest)), 1.0)
        fit = tl.minimum(needed, 2147483520.0).to(tl.int32)
        ties = tl.where(found == low, tl.minimum(ties, fit), fit)
        low = found

    key, second_key = tl.load(keys + index).to(tl.uint32), tl.load(seconds + index).to(tl.uint32)
    tl.store(out + index, _best_with_noise(row, vocab, temperature, low, ties, key, second_key, BLOCK))


@triton.jit(do_not_specialize_on_alignment=["logits", "out"])
def _log_sum_exp(logits, out, row_stride, vocab, BLOCK: tl.constexpr):
    """log Σ exp(row), in two passes: the largest value, then the sum relative to it."""
    index = tl.program_id(0)
    row = logits + index.to(tl.int64) * row_stride
    lanes = tl.arange(0, BLOCK)
    largest = tl.full([], float("-inf"), tl.float32)
    for start in range(0, vocab, BLOCK):
        values = tl.load(row + start + lanes, mask=start + lanes < vocab, other=float("-inf"))
        largest = tl.maximum(largest, tl.max(values, axis=0))
    total = tl.full([], 0.0, tl.float32)
    for start in range(0, vocab, BLOCK):
        values = tl.load(row + start + lanes, mask=start + lanes < vocab, other=float("-inf"))
        total += tl.sum(tl.exp(values - largest), axis=0)
    tl.store(out + index, largest + tl.log(total))


@triton.jit(
    do_not_specialize=["width"], do_not_specialize_on_alignment=["logits", "repetitions", "presences", "frequencies"]
)
def _penalize(logits, ids, counts, repetitions, presences, frequencies, row_stride, width, BLOCK: tl.constexpr):
    """ids: [rows, width] different tokens of each row, −1 behind the last; counts: how often each is in the answer."""
    index = tl.program_id(0)
    columns = tl.program_id(1) * BLOCK + tl.arange(0, BLOCK)
    token = tl.load(ids + index * width + columns, mask=columns < width, other=-1)
    count = tl.load(counts + index * width + columns, mask=columns < width, other=0)
    repetition = tl.load(repetitions + index)
    place = logits + index.to(tl.int64) * row_stride + token
    value = tl.load(place, mask=token >= 0, other=0.0)
    value = tl.where(value > 0, tl.div_rn(value, tl.zeros_like(value) + repetition), value * repetition)
    subtracted = tl.load(presences + index) + tl.load(frequencies + index) * count.to(tl.float32)
    tl.store(place, tl.where(count > 0, value - subtracted, value), mask=token >= 0)


def sample_rows(logits: Tensor, draws: Sequence[Draw]) -> Tensor:
    """`kernels.sampling.sample_rows`."""
    keys = [noise_keys(draw.seed, draw.position) for draw in draws]
    device = logits.device
    floats = torch.tensor(
        [
            [draw.temperature for draw in draws],
            [draw.top_p for draw in draws],
            [math.log(draw.min_p) if draw.min_p > 0 else -math.inf for draw in draws],
        ],
        dtype=torch.float32,
    )
    integers = torch.tensor(
        [[draw.top_k for draw in draws], [key for key, _ in keys], [second for _, second in keys]], dtype=torch.int64
    )
    floats, integers = to_device(floats, device), to_device(integers, device)
    out = torch.empty(len(draws), dtype=torch.int32, device=device)
    _draw[(len(draws),)](
        logits, out, floats[0], integers[0], floats[1], floats[2], integers[1], integers[2], logits.stride(0),
        logits.shape[1], BLOCK=BLOCK, num_warps=8, enable_fp_fusion=False,
    )  # fmt: skip
    return out


def log_sum_exp(logits: Tensor) -> Tensor:
    """log Σ exp of each row of logits [rows, vocab]: [rows] float32."""
    out = torch.empty(len(logits), dtype=torch.float32, device=logits.device)
    _log_sum_exp[(len(logits),)](logits, out, logits.stride(0), logits.shape[1], BLOCK=BLOCK, num_warps=8)
    return out


def penalize_rows(logits: Tensor, penalties: Sequence[Penalty], newest: Tensor | None = None) -> None:
    """`kernels.sampling.penalize_rows`."""
    device = logits.device
    distinct = [torch.unique(torch.tensor(penalty.seen_ids, dtype=torch.int64)) for penalty in penalties]
    # One column more for the newest token, which may be none of those before it.
    width = max(1, *(len(ids) for ids in distinct)) + (newest is not None)
    ids = torch.full((len(penalties), width), -1, dtype=torch.int32)
    counts = torch.zeros((len(penalties), width), dtype=torch.int32)
    for row, (penalty, unique) in enumerate(zip(penalties, distinct, strict=True)):
        ids[row, : len(unique)] = unique.int()
        if penalty.output_ids:
            output, occurrences = torch.unique(torch.tensor(penalty.output_ids), return_counts=True)
            counts[row, torch.searchsorted(unique, output)] = occurrences.int()
    floats = torch.tensor(
        [
            [penalty.repetition for penalty in penalties],
            [penalty.presence for penalty in penalties],
            [penalty.frequency for penalty in penalties],
        ],
        dtype=torch.float32,
    )
    ids, counts, floats = (to_device(values, device) for values in (ids, counts, floats))
    if newest is not None:
        _count_newest(ids, counts, newest)
    _penalize[(len(penalties), triton.cdiv(width, PENALTY_BLOCK))](
        logits, ids, counts, floats[0], floats[1], floats[2], logits.stride(0), width, BLOCK=PENALTY_BLOCK,
        enable_fp_fusion=False,
    )  # fmt: skip


def _count_newest(ids: Tensor, counts: Tensor, newest: Tensor) -> None:
    """Count one more token of each row, in place: where it stands already, else in the last column, which is free."""
    token = newest.int()[:, None]
    known = (ids == token) & (token >= 0)
    counts += known
    is_other = (token >= 0) & ~known.any(1, keepdim=True)
    ids[:, -1:] = torch.where(is_other, token, -1)
    counts[:, -1:] = is_other.int()


def compile_cases() -> Iterator[CompileCase]:
    floats = dict.fromkeys(("temperatures", "top_ps", "log_min_ps"), "*fp32")
    yield CompileCase(
        "sample_rows float32",
        _draw,
        {
            "logits": "*fp32", "out": "*i32", **floats, **dict.fromkeys(("top_ks", "keys", "seconds"), "*i64"),
            "row_stride": "i32", "vocab": "i32",
        },
        {"BLOCK": BLOCK},
        num_warps=8,
        spill_bytes=64,
        aligned=frozenset({"row_stride", "vocab"}),
    )  # fmt: skip
    yield CompileCase(
        "log_sum_exp float32",
        _log_sum_exp,
        {"logits": "*fp32", "out": "*fp32", "row_stride": "i32", "vocab": "i32"},
        {"BLOCK": BLOCK},
        num_warps=8,
        spill_bytes=64,
        aligned=frozenset({"row_stride", "vocab"}),
    )
    yield CompileCase(
        "penalize_rows float32",
        _penalize,
        {
            "logits": "*fp32", **dict.fromkeys(("ids", "counts"), "*i32"),
            **dict.fromkeys(("repetitions", "presences", "frequencies"), "*fp32"), "row_stride": "i32", "width": "i32",
        },
        {"BLOCK": PENALTY_BLOCK},
        spill_bytes=64,
    )  # fmt: skip
