"""From logits to the next token of each request, with log-probabilities where they were asked for."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import torch
from torch import Tensor

from engine.errors import StepFailedError
from engine.outputs import TokenLogprob
from engine.request import Request
from engine.tokenizer import Tokenizer
from kernels import uses_triton
from kernels.sampling import Draw, Penalty, apply_penalties, best_tokens, penalize_rows, sample_row, sample_rows

# A token and, where asked for, its log-probability.
Choice = tuple[int, TokenLogprob | None]


class Sampler:
    """Chooses tokens. Stateless: what a choice depends on is in the request."""

    def __init__(self, tokenizer: Tokenizer, vocab_size: int) -> None:
        self.tokenizer = tokenizer
        self.vocab_size = vocab_size
        self._end_ids = tuple(token_id for token_id in tokenizer.eos_token_ids if token_id < vocab_size)

    @torch.inference_mode()
    def sample(self, requests: Sequence[Request], logits: Tensor) -> list[Iterator[Choice]]:
        """For each request, its choices in order: the next token, then the one behind each of its drafts.

        logits: [rows, vocab] float32, 1 + len(draft_token_ids) consecutive rows a request (`ModelRunner.run`).

        A choice is made when it is asked for, from the request as it then stands: the caller appends each token to the
        request before it asks for the one behind it, and stops asking at the first that differs from its draft. So
        penalties, min_tokens, noise and grammar advance along a draft exactly as they do without one.

        Order of operations: logit_bias and min_tokens, penalties, grammar, temperature, min_p, top_k, top_p, draw.
        Log-probabilities are taken from the untouched logits.
        """
        if uses_triton(logits):
            return self._sample_together(requests, logits)
        plain = [_takes_best(request) for request in requests]
        best = best_tokens(logits) if any(plain) else []
        # The largest of a row with a NaN in it is NaN.
        largest = logits[torch.arange(len(best)), torch.tensor(best, dtype=torch.int64)] if best else logits[:0]
        finite = torch.isfinite(largest).tolist()
        choices: list[Iterator[Choice]] = []
        start = 0
        for request, is_plain in zip(requests, plain, strict=True):
            end = start + 1 + len(request.draft_token_ids)
            if is_plain and all(finite[start:end]):
                choices.append(iter([(token_id, None) for token_id in best[start:end]]))
            else:
                choices.append(self._choose(request, logits[start:end]))
            start = end
        return choices

    def _sample_together(self, requests: Sequence[Request], logits: Tensor) -> list[Iterator[Choice]]:
        """`sample` on a GPU: rows are drawn in one launch, as if every draft before them were accepted.

        Where one is not, the caller stops asking, so that what was drawn behind it is never seen. Requests with a
        grammar, a bias, tokens to forbid or log-probabilities to tell are sampled one by one on the CPU.
        """
        largest, best = logits.max(-1)
        finite, best_ids = torch.isfinite(largest).tolist(), best.tolist()
        choices: list[Iterator[Choice]] = []
        drawn: list[tuple[int, Request, int, int]] = []
        start = 0
        for index, request in enumerate(requests):
            end = start + 1 + len(request.draft_token_ids)
            if _takes_best(request) and all(finite[start:end]):
                choices.append(iter([(token_id, None) for token_id in best_ids[start:end]]))
            elif _is_drawn_together(request) and all(finite[start:end]):
                choices.append(iter(()))
                drawn.append((index, request, start, end))
            else:
                choices.append(self._choose(request, logits[start:end].cpu()))
            start = end
        if drawn:
            rows = [row for _, _, first, end in drawn for row in range(first, end)]
            tokens = iter(_draw(drawn, logits[torch.tensor(rows, device=logits.device)]))
            for index, _, first, end in drawn:
                choices[index] = iter([(next(tokens), None) for _ in range(first, end)])
        return choices

    @torch.inference_mode()
    def _choose(self, request: Request, rows: Tensor) -> Iterator[Choice]:
        for row in rows:
            yield self._sample_one(request, row)

    def _sample_one(self, request: Request, raw: Tensor) -> Choice:
        params = request.params
        if not bool(torch.isfinite(raw.max())):
            raise StepFailedError(
                "the model computed logits that are not finite (NaN or infinity): its file may be damaged, or its "
                "numbers too large for the dtype that was chosen"
            )
        edited = params.changes_logits or request.grammar is not None
        row = self._edit(request, raw.clone()) if edited else raw
        if params.is_greedy:
            (token_id,) = best_tokens(row[None])
        else:
            token_id = sample_row(
                row, params.temperature, params.top_k, params.top_p, params.min_p, request.seed, request.num_tokens
            )
        return token_id, None if params.logprobs is None else self._logprob(raw, token_id, params.logprobs)

    def _edit(self, request: Request, row: Tensor) -> Tensor:
        params = request.params
        if params.logit_bias:
            ids = torch.tensor(list(params.logit_bias), device=row.device)
            row[ids] += torch.tensor(list(params.logit_bias.values()), dtype=row.dtype, device=row.device)
        if request.num_output_tokens < params.min_tokens:
            ends = list(params.stop_token_ids) + ([] if params.ignore_eos else list(self._end_ids))
            row[torch.tensor(ends, dtype=torch.int64, device=row.device)] = float("-inf")
        if params.repetition_penalty != 1.0 or params.presence_penalty or params.frequency_penalty:
            seen = torch.tensor(request.token_ids, device=row.device)
            output = seen[request.num_prompt_tokens :]
            apply_penalties(
                row, seen, output, params.repetition_penalty, params.presence_penalty, params.frequency_penalty
            )
        if request.grammar is not None:
            request.grammar.mask_row(row, request.num_output_tokens)
        return row

    def _logprob(self, raw: Tensor, token_id: int, num_top: int) -> TokenLogprob:
        logprobs = raw.log_softmax(-1)
        top: tuple[TokenLogprob, ...] = ()
        if num_top:
            values, ids = logprobs.topk(num_top)
            top = tuple(self._describe(i, v) for i, v in zip(ids.tolist(), values.tolist(), strict=True))
        chosen = self._describe(token_id, float(logprobs[token_id]))
        return TokenLogprob(chosen.token_id, chosen.token, chosen.logprob, chosen.bytes, top)

    def _describe(self, token_id: int, logprob: float) -> TokenLogprob:
        raw = self.tokenizer.token_bytes(token_id)
        return TokenLogprob(token_id, raw.decode("utf-8", errors="replace"), logprob, raw)


def _takes_best(request: Request) -> bool:
    """Whether the request takes the largest of the untouched logits and nothing else is asked about them."""
    params = request.params
    return params.is_greedy and not params.changes_logits and params.logprobs is None and request.grammar is None


def _is_drawn_together(request: Request) -> bool:
    params = request.params
    return (
        request.grammar is None
        and params.logprobs is None
        and not params.logit_bias
        and request.num_output_tokens >= params.min_tokens
    )


def _draw(drawn: Sequence[tuple[int, Request, int, int]], logits: Tensor) -> list[int]:
    """Tokens of the rows of requests (index, request, first row, end), whose logits are edited in place."""
    places = [(request, offset) for _, request, first, end in drawn for offset in range(end - first)]
    penalties = [
        Penalty(
            [*request.token_ids, *request.draft_token_ids[:offset]],
            [*request.token_ids[request.num_prompt_tokens :], *request.draft_token_ids[:offset]],
            request.params.repetition_penalty,
            request.params.presence_penalty,
            request.params.frequency_penalty,
        )
        if request.params.changes_logits
        else Penalty((), (), 1.0, 0.0, 0.0)
        for request, offset in places
    ]
    if any(request.params.changes_logits for request, _ in places):
        penalize_rows(logits, penalties)
    draws = [
        # Of temperature 0 all but the best token is cut off.
        Draw(1.0, 1, 1.0, 0.0, 0, 0)
        if request.params.is_greedy
        else Draw(
            request.params.temperature,
            request.params.top_k,
            request.params.top_p,
            request.params.min_p,
            request.seed,
            request.num_tokens + offset,
        )
        for request, offset in places
    ]
    return sample_rows(logits, draws)
