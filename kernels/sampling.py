"""Choosing tokens from logits: penalties, filters and counter-based noise; and the tokens' log-probabilities.

The noise of a token depends on (seed, position, token) only, so a seed gives the same tokens alone, in a batch, after a
preemption and with speculation. The draw is argmax(logits / temperature + Gumbel noise), which samples the softmax
exactly (Gumbel-max trick; Maddison et al., "A* Sampling", 2014).
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from kernels.dispatch import uses_triton
from kernels.transfer import to_device

_MASK = 0xFFFFFFFF
# Candidates looked at before a full sort is paid for; a chat model's top-p mass nearly always lies within them.
FAST_CANDIDATES = 256


@dataclass(frozen=True)
class Draw:
    """How the token of one row is drawn: `sample_row`'s arguments; temperature above 0."""

    temperature: float
    top_k: int
    top_p: float
    min_p: float
    seed: int
    position: int


@dataclass(frozen=True)
class Penalty:
    """How one row is penalised: `apply_penalties`' arguments; `output_ids` are among `seen_ids`."""

    seen_ids: Sequence[int]
    output_ids: Sequence[int]
    repetition: float
    presence: float
    frequency: float


def _mix_int(value: int) -> int:
    value &= _MASK
    value = ((value ^ (value >> 16)) * 0x85EBCA6B) & _MASK
    value = ((value ^ (value >> 13)) * 0xC2B2AE35) & _MASK
    return value ^ (value >> 16)


def _mix(value: Tensor) -> Tensor:
    value = ((value ^ (value >> 16)) * 0x85EBCA6B) & _MASK
    value = ((value ^ (value >> 13)) * 0xC2B2AE35) & _MASK
    return value ^ (value >> 16)


def noise_keys(seed: int, position: int) -> tuple[int, int]:
    """What `gumbel_noise` mixes with a token: two numbers of 32 bits."""
    key = _mix_int(seed ^ 0x9E3779B9)
    key = _mix_int(key ^ _mix_int((seed >> 32) + 0x7F4A7C15))
    key = _mix_int(key ^ _mix_int(position + 0x165667B1))
    return key, _mix_int(key + 0x27D4EB2F)


def gumbel_noise(seed: int, position: int, token_ids: Tensor) -> Tensor:
    """Standard Gumbel noise, float64 in the shape of `token_ids` (int64).

    The generator is MurmurHash3's 32-bit finaliser, chained over seed, position and token; a uniform value is
    (hash + 0.5) / 2³², strictly inside (0, 1).
    """
    key, second = noise_keys(seed, position)
    hashed = _mix(_mix((token_ids + second) & _MASK) ^ key)
    uniform = (hashed.double() + 0.5) / 2.0**32
    return -torch.log(-torch.log(uniform))


def _mix_rows(value: npt.NDArray[np.uint32]) -> None:
    """`_mix` in place, on this thread."""
    value ^= value >> np.uint32(16)
    value *= np.uint32(0x85EBCA6B)
    value ^= value >> np.uint32(13)
    value *= np.uint32(0xC2B2AE35)
    value ^= value >> np.uint32(16)


def _may_win(values: Tensor, token_ids: Tensor, seed: int, position: int) -> Tensor | slice:
    """Indices, in order, of those tokens on a CPU that may be the best with their noise. Most cannot.

    values: [n] float32; token_ids: [n] int64. Of the others no logarithm is taken: with m the complement of the hash,
    the noise is at most log(2³² / m), and the bits of a float, read as an integer, are at most 2²³ (127 + log₂) of it
    (Mitchell, "Computer Multiplication and Division Using Binary Logarithms", 1962).
    """
    key, second = noise_keys(seed, position)
    hashed = token_ids.numpy().astype(np.uint32)
    hashed += np.uint32(second)
    _mix_rows(hashed)
    hashed ^= np.uint32(key)
    _mix_rows(hashed)
    row = values.numpy()
    np.invert(hashed, out=hashed)
    most = hashed.astype(np.float32).view(np.int32).astype(np.float32)
    most *= np.float32(-math.log(2) / 2**23)
    most += row
    best = int(most.argmax())
    value = float(row[best])
    uniform = (2**32 - 1 - int(hashed[best]) + 0.5) / 2.0**32
    reached = value - math.log(-math.log(uniform))
    if not math.isfinite(reached):
        return slice(None)
    # What `most` lacks, but for what its sums in float32 are wrong by.
    offset = 159 * math.log(2) + 1e-3 + 2.0**-20 * (abs(value) + 256)
    return torch.from_numpy(np.flatnonzero(most >= reached - offset))


def apply_penalties(
    logits: Tensor, seen_ids: Tensor, output_ids: Tensor, repetition: float, presence: float, frequency: float
) -> None:
    """Penalise one row of logits [vocab], float32, in place.

    `repetition` divides positive and multiplies negative logits of every token in `seen_ids` (prompt and output; Keskar
    et al., "CTRL", 2019); `presence` is subtracted once and `frequency` once per occurrence for tokens in `output_ids`
    (OpenAI's definition). Both id tensors are int64.
    """
    if logits.device.type == "cpu":
        return _apply_penalties_alone(logits, seen_ids, output_ids, repetition, presence, frequency)
    if repetition != 1.0 and seen_ids.numel():
        unique = torch.unique(seen_ids)
        values = logits[unique]
        logits[unique] = torch.where(values > 0, values / repetition, values * repetition)
    if (presence or frequency) and output_ids.numel():
        unique, counts = torch.unique(output_ids, return_counts=True)
        logits[unique] -= presence + frequency * counts.to(logits.dtype)
    return None


def _apply_penalties_alone(
    logits: Tensor, seen_ids: Tensor, output_ids: Tensor, repetition: float, presence: float, frequency: float
) -> None:
    """`apply_penalties` on this thread of a CPU: torch would wake its own, which then spin on the next step's cores."""
    row = logits.numpy()
    if repetition != 1.0 and seen_ids.numel():
        unique = np.unique(seen_ids.numpy())
        values = row[unique]
        row[unique] = np.where(values > 0, values / repetition, values * repetition)
    if (presence or frequency) and output_ids.numel():
        unique, counts = np.unique(output_ids.numpy(), return_counts=True)
        row[unique] -= presence + frequency * counts.astype(row.dtype)


def keep_candidates(scaled: Tensor, top_k: int, top_p: float, min_p: float) -> tuple[Tensor, Tensor]:
    """The tokens of one row that may be drawn: (token ids, their scaled logits).

    `scaled` is [vocab], logits divided by the temperature. Filters apply in the order min_p, top_k, top_p; top_p counts
    probabilities renormalised over what the earlier filters left and keeps the smallest set that reaches it (at least
    one).
    """
    ids, values = torch.arange(scaled.shape[0], device=scaled.device), scaled
    if min_p > 0.0:
        alive = values >= values.max() + math.log(min_p)
        ids, values = ids[alive], values[alive]
    if 0 < top_k < values.shape[0]:
        values, picked = values.topk(top_k)
        ids = ids[picked]
    if top_p < 1.0:
        picked, count = _nucleus(values, top_p)
        ids, values = ids[picked[:count]], values[picked[:count]]
    return ids, values


def _nucleus(values: Tensor, top_p: float) -> tuple[Tensor, int]:
    """Indices of `values` best first, and how many of them make the smallest set whose probability reaches top_p."""
    total = torch.logsumexp(values, dim=0)
    width = min(values.shape[0], FAST_CANDIDATES)
    ordered, picked = values.topk(width)
    cumulative = torch.exp(ordered - total).cumsum(0)
    if width < values.shape[0] and bool(cumulative[-1] < top_p):
        ordered, picked = values.sort(descending=True, stable=True)
        cumulative = torch.exp(ordered - total).cumsum(0)
    return picked, min(int((cumulative < top_p).sum()) + 1, picked.shape[0])


def token_logprobs(logits: Tensor, token_ids: Tensor, num_top: int) -> tuple[Tensor, Tensor, Tensor]:
    """Log-probabilities logit − log Σ exp(logits) in each row of logits [rows, vocab] float32.

    Of one token a row, `token_ids` [rows] int64, and of the `num_top` most likely ones: ([rows] float32, ids
    [rows, num_top] int64, [rows, num_top] float32), the best first, on the logits' device, which is not waited for.
    """
    if uses_triton(logits):
        from kernels.gpu import sampling as gpu

        sums = gpu.log_sum_exp(logits)
        values, ids = logits.topk(num_top, dim=-1)
        return logits.gather(1, token_ids[:, None])[:, 0] - sums, ids, values - sums[:, None]
    return reference_logprobs(logits, token_ids, num_top)


def reference_logprobs(logits: Tensor, token_ids: Tensor, num_top: int) -> tuple[Tensor, Tensor, Tensor]:
    """`token_logprobs` in torch, row by row."""
    rows = [row.log_softmax(-1) for row in logits]
    best = [row.topk(num_top) for row in rows]
    chosen = torch.stack([row[token_id] for row, token_id in zip(rows, token_ids, strict=True)])
    return chosen, torch.stack([ids for _, ids in best]), torch.stack([values for values, _ in best])


def best_tokens(logits: Tensor) -> Tensor:
    """The id of the largest logit in each row of [rows, vocab]; the first of equals. [rows] int64, on their device.

    On a CPU numpy finds it: torch would wake its own threads for it, which then spin on the cores of the next step.
    """
    if logits.device.type == "cpu":
        return torch.from_numpy(logits.numpy().argmax(-1))
    return logits.argmax(-1)


def sample_row(
    logits: Tensor, temperature: float, top_k: int, top_p: float, min_p: float, seed: int, position: int
) -> int:
    """Draw one token from a row of logits [vocab] float32; `position` is its index in the sequence."""
    ids, values = keep_candidates(logits / temperature, top_k, top_p, min_p)
    if ids.shape[0] == 1:
        return int(ids[0])
    if values.device.type == "cpu" and values.shape[0] > FAST_CANDIDATES:
        likely = _may_win(values, ids, seed, position)
        ids, values = ids[likely], values[likely]
        if ids.shape[0] == 1:
            return int(ids[0])
    return int(ids[torch.argmax(values.double() + gumbel_noise(seed, position, ids))])


def sample_rows(logits: Tensor, draws: Sequence[Draw]) -> Tensor:
    """Draw one token from each row of logits [rows, vocab] float32: `sample_row`, on a GPU in one launch.

    Returns [rows] int32 on the logits' device, which is not waited for.
    """
    if uses_triton(logits):
        from kernels.gpu import sampling as gpu

        return gpu.sample_rows(logits, draws)
    tokens = [
        sample_row(row, draw.temperature, draw.top_k, draw.top_p, draw.min_p, draw.seed, draw.position)
        for row, draw in zip(logits, draws, strict=True)
    ]
    return torch.tensor(tokens, dtype=torch.int32, device=logits.device)


def shift_rows(logits: Tensor, shifts: Sequence[Mapping[int, float]]) -> None:
    """Add to some logits of each row of [rows, vocab] float32, in place: `shifts` are by token, −inf forbids one.

    Nothing waits for the logits' device.
    """
    entries = [(row, token_id, value) for row, shift in enumerate(shifts) for token_id, value in shift.items()]
    if entries:
        rows, token_ids, values = zip(*entries, strict=True)
        places = to_device(torch.tensor([rows, token_ids], dtype=torch.int64), logits.device)
        # No place comes twice, so that it does not matter in which order they are added to.
        logits[places[0], places[1]] += to_device(torch.tensor(values, dtype=logits.dtype), logits.device)


def penalize_rows(logits: Tensor, penalties: Sequence[Penalty], newest: Tensor | None = None) -> None:
    """Penalise rows of logits [rows, vocab] float32 in place: `apply_penalties`, on a GPU in one launch.

    newest: [rows] int64 on the logits' device, one more token of each row's output that only the device knows, behind
    those of its `Penalty`; -1 where there is none.
    """
    if uses_triton(logits):
        from kernels.gpu import sampling as gpu

        return gpu.penalize_rows(logits, penalties, newest)
    more = [[token] if token >= 0 else [] for token in newest.tolist()] if newest is not None else [[]] * len(penalties)
    for row, penalty, ids in zip(logits, penalties, more, strict=True):
        seen = torch.tensor([*penalty.seen_ids, *ids], dtype=torch.int64, device=row.device)
        output = torch.tensor([*penalty.output_ids, *ids], dtype=torch.int64, device=row.device)
        apply_penalties(row, seen, output, penalty.repetition, penalty.presence, penalty.frequency)
    return None
