"""From logits to the next token of each request, with log-probabilities where they were asked for."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from typing import NoReturn

import numpy as np
import torch
from torch import Tensor

from engine.choices import Choice, Choices, RowLogprobs
from engine.errors import StepFailedError
from engine.outputs import TokenLogprob
from engine.request import Request
from engine.tokenizer import Tokenizer
from kernels import uses_triton
from kernels.sampling import (
    Draw,
    Penalty,
    apply_penalties,
    best_tokens,
    penalize_rows,
    reference_logprobs,
    sample_row,
    sample_rows,
    shift_rows,
    token_logprobs,
)
from kernels.transfer import to_device


class Sampler:
    """Chooses tokens. Stateless: what a choice depends on is in the request.

    `together`: choose on a CPU in the way of a GPU, which costs more there.
    """

    def __init__(self, tokenizer: Tokenizer, vocab_size: int, *, together: bool = False) -> None:
        self.together = together
        self.tokenizer = tokenizer
        self.vocab_size = vocab_size
        self._end_ids = tuple(token_id for token_id in tokenizer.eos_token_ids if token_id < vocab_size)

    @torch.inference_mode()
    def sample(self, requests: Sequence[Request], logits: Tensor, behind: Choices | None = None) -> Choices:
        """Choose for each request the next token, and the one behind each of its drafts.

        logits: [rows, vocab] float32, 1 + len(draft_token_ids) consecutive rows a request (`ModelRunner.run`). behind:
        the choices of the step before, where requests await their newest token from it.

        On a CPU a choice is made when it is asked for, from the request as it then stands: so penalties, min_tokens,
        noise and grammar advance along a draft exactly as they do without one. On a GPU, see `_sample_together`.

        Order of operations: logit_bias and min_tokens, penalties, grammar, temperature, min_p, top_k, top_p, draw.
        Log-probabilities are taken from the untouched logits.
        """
        if self.together or uses_triton(logits):
            return self._sample_together(requests, logits, behind)
        plain = [_takes_best(request) and request.params.logprobs is None for request in requests]
        best = best_tokens(logits).tolist() if any(plain) else []
        # The largest of a row with a NaN in it is NaN.
        largest = logits[torch.arange(len(best)), torch.tensor(best, dtype=torch.int64)] if best else logits[:0]
        finite = torch.isfinite(largest).tolist()
        choices: list[Callable[[], Iterator[Choice]]] = []
        start = 0
        for request, is_plain in zip(requests, plain, strict=True):
            end = start + 1 + len(request.draft_token_ids)
            if is_plain and all(finite[start:end]):
                choices.append(partial(_untold, best[start:end]))
            else:
                choices.append(partial(self._choose, request, logits[start:end]))
            start = end
        return Choices(requests, choices)

    def chooses_on_device(self, request: Request) -> bool:
        """Whether a GPU chooses the request's tokens without being told of its newest one by the host."""
        return request.grammar is None

    def _sample_together(self, requests: Sequence[Request], logits: Tensor, behind: Choices | None) -> Choices:
        """`sample` on a GPU: rows are drawn in one launch, as if every draft before them were accepted.

        Where one is not, the caller stops asking, so that what was drawn behind it is never seen. Requests with a
        grammar are sampled one by one on the CPU, when they are asked for. Nothing waits for the device.
        """
        largest, token_ids = logits.max(-1)
        on_host: list[Callable[[], Iterator[Choice]] | None] = []
        drawn: list[tuple[Request, int, int]] = []
        told: list[tuple[Request, int, int]] = []
        start = 0
        for request in requests:
            end = start + 1 + len(request.draft_token_ids)
            on_device = self.chooses_on_device(request)
            if on_device and not _takes_best(request):
                drawn.append((request, start, end))
            if on_device and request.params.logprobs is not None:
                told.append((request, start, end))
            on_host.append(None if on_device else partial(self._choose, request, logits[start:end]))
            start = end
        is_finite = torch.isfinite(largest)
        if drawn:
            rows = [row for _, first, end in drawn for row in range(first, end)]
            index = to_device(torch.tensor(rows, dtype=torch.int64), logits.device)
            # Of logits that are no numbers anything may be drawn; the step behind this one looks it up all the same.
            token_ids[index] = self._draw(drawn, logits[index], behind).long().clamp(0, logits.shape[1] - 1)
        logprobs = self._tell(told, logits, token_ids) if told else None
        return Choices(requests, on_host, token_ids, is_finite, _refuse, logprobs)

    def _draw(self, drawn: Sequence[tuple[Request, int, int]], logits: Tensor, behind: Choices | None) -> Tensor:
        """Tokens [rows] of the rows of requests (request, first row, end), whose logits are edited in place."""
        places = [(request, offset) for request, first, end in drawn for offset in range(end - first)]
        shift_rows(logits, [self._shift(request, offset) for request, offset in places])
        if any(request.params.penalizes for request, _ in places):
            newest = None
            if any(request.num_awaited for request, _ in places):
                assert behind is not None, "requests await their newest token from the step before"
                index, token_ids = behind.newest_of([request for request, _ in places])
                newest = torch.full((len(places),), -1, dtype=torch.int64, device=logits.device)
                newest[index] = token_ids
            penalize_rows(logits, [_penalty(request, offset) for request, offset in places], newest)
        return sample_rows(logits, [_draw_of(request, offset) for request, offset in places])

    def _shift(self, request: Request, num_drafts: int) -> dict[int, float]:
        """What is added to the logits behind so many of a request's drafts: its bias, and −inf where it may not end."""
        params = request.params
        shift = dict(params.logit_bias)
        if request.num_output_tokens + num_drafts < params.min_tokens:
            ends = [*params.stop_token_ids, *(() if params.ignore_eos else self._end_ids)]
            shift.update(dict.fromkeys(ends, -math.inf))
        return shift

    def _tell(self, told: Sequence[tuple[Request, int, int]], logits: Tensor, token_ids: Tensor) -> RowLogprobs:
        """Log-probabilities of the rows of requests (request, first row, end), from untouched logits."""
        rows = [row for _, first, end in told for row in range(first, end)]
        index = to_device(torch.tensor(rows, dtype=torch.int64), logits.device)
        most = max(request.params.logprobs or 0 for request, _, _ in told)
        chosen, ids, values = token_logprobs(logits[index], token_ids[index], most)
        return RowLogprobs(rows, torch.cat([chosen[:, None], values], dim=1), ids, self._describe_row)

    @torch.inference_mode()
    def _choose(self, request: Request, rows: Tensor) -> Iterator[Choice]:
        for row in rows.cpu():
            yield self._sample_one(request, row)

    def _sample_one(self, request: Request, raw: Tensor) -> Choice:
        params = request.params
        # As in `best_tokens`: numpy stays on this thread.
        if not math.isfinite(raw.numpy().max()):
            _refuse()
        edited = params.changes_logits or request.grammar is not None
        row = self._edit(request, torch.from_numpy(raw.numpy().copy())) if edited else raw
        if params.is_greedy:
            token_id = int(best_tokens(row[None]))
        else:
            token_id = sample_row(
                row, params.temperature, params.top_k, params.top_p, params.min_p, request.seed, request.num_tokens
            )
        return token_id, None if params.logprobs is None else self._logprob(raw, token_id, params.logprobs)

    def _edit(self, request: Request, row: Tensor) -> Tensor:
        params = request.params
        shift_rows(row[None], [self._shift(request, 0)])
        if params.penalizes:
            seen = torch.from_numpy(np.array(request.token_ids, dtype=np.int64))
            output = seen[request.num_prompt_tokens :]
            apply_penalties(
                row, seen, output, params.repetition_penalty, params.presence_penalty, params.frequency_penalty
            )
        if request.grammar is not None:
            request.grammar.mask_row(row, request.num_output_tokens)
        return row

    def _logprob(self, raw: Tensor, token_id: int, num_top: int) -> TokenLogprob:
        chosen, ids, values = reference_logprobs(raw[None], torch.tensor([token_id], device=raw.device), num_top)
        return self._describe_row(token_id, [*chosen.tolist(), *values[0].tolist()], ids[0].tolist())

    def _describe_row(self, token_id: int, logprobs: Sequence[float], top_ids: Sequence[int]) -> TokenLogprob:
        """What is told of a token; logprobs: its own, then those of `top_ids`."""
        chosen = self._describe(token_id, logprobs[0])
        top = tuple(self._describe(i, value) for i, value in zip(top_ids, logprobs[1:], strict=True))
        return TokenLogprob(chosen.token_id, chosen.token, chosen.logprob, chosen.bytes, top)

    def _describe(self, token_id: int, logprob: float) -> TokenLogprob:
        raw = self.tokenizer.token_bytes(token_id)
        return TokenLogprob(token_id, raw.decode("utf-8", errors="replace"), logprob, raw)


def _takes_best(request: Request) -> bool:
    """Whether the request takes the largest of the untouched logits."""
    params = request.params
    return params.is_greedy and not params.changes_logits and request.grammar is None


def _untold(token_ids: Sequence[int]) -> Iterator[Choice]:
    return iter([(token_id, None) for token_id in token_ids])


def _refuse() -> NoReturn:
    raise StepFailedError(
        "the model computed logits that are not finite (NaN or infinity): its file may be damaged, or its numbers too "
        "large for the dtype that was chosen"
    )


def _draw_of(request: Request, num_drafts: int) -> Draw:
    """How a token is drawn behind so many of a request's drafts."""
    params = request.params
    if params.is_greedy:
        return Draw(1.0, 1, 1.0, 0.0, 0, 0)  # all but the best token is cut off
    position = request.num_tokens + num_drafts
    return Draw(params.temperature, params.top_k, params.top_p, params.min_p, request.seed, position)


def _penalty(request: Request, num_drafts: int) -> Penalty:
    """A request's penalties behind so many of its drafts, and before the token that it awaits."""
    params, drafts = request.params, request.draft_token_ids[:num_drafts]
    if not params.penalizes:
        return Penalty((), (), 1.0, 0.0, 0.0)
    return Penalty(
        [*request.token_ids, *drafts],
        [*request.token_ids[request.num_prompt_tokens :], *drafts],
        params.repetition_penalty,
        params.presence_penalty,
        params.frequency_penalty,
    )
