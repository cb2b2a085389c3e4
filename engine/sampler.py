"""From logits to the next token of each request, with log-probabilities where they were asked for."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from engine.outputs import TokenLogprob
from engine.request import Request
from engine.tokenizer import Tokenizer
from kernels.sampling import apply_penalties, sample_row


class Sampler:
    """Chooses tokens. Stateless: what a choice depends on is in the request."""

    def __init__(self, tokenizer: Tokenizer, vocab_size: int) -> None:
        self.tokenizer = tokenizer
        self.vocab_size = vocab_size
        self._end_ids = tuple(token_id for token_id in tokenizer.eos_token_ids if token_id < vocab_size)

    @torch.inference_mode()
    def sample(self, requests: Sequence[Request], logits: Tensor) -> list[tuple[int, TokenLogprob | None]]:
        """logits: [requests, vocab] float32; returns each request's token and, where asked for, its log-probability.

        Order of operations: min_tokens and logit_bias, penalties, temperature, min_p, top_k, top_p, draw.
        Log-probabilities are taken from the untouched logits.
        """
        if all(r.params.is_greedy and not r.params.changes_logits and r.params.logprobs is None for r in requests):
            return [(token_id, None) for token_id in logits.argmax(-1).tolist()]
        return [self._sample_one(request, row) for request, row in zip(requests, logits, strict=True)]

    def _sample_one(self, request: Request, raw: Tensor) -> tuple[int, TokenLogprob | None]:
        params = request.params
        row = self._edit(request, raw.clone()) if params.changes_logits else raw
        if params.is_greedy:
            token_id = int(row.argmax())
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
