"""A smaller model that proposes what it would say itself. Its keys and values lie under the target's block tables.

Both models write a token's keys and values at the same slot of their own pools, so allocation, prefix cache and
preemption are the target's alone. Drafts are its most likely tokens (argmax), which is what *sample and match* needs.
Source: Leviathan et al., "Fast Inference from Transformers via Speculative Decoding" (2023).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import torch
from torch import Tensor

from engine.errors import InvalidParameterError, ModelLoadError
from engine.request import Request
from engine.scheduler import StepPlan
from engine.speculation import LONGEST_MATCH
from engine.step_batch import StepBatch
from engine.step_decoder import StepDecoder
from engine.tokenizer import Tokenizer
from engine.weights import Checkpoint, open_checkpoint
from kernels.sampling import best_tokens
from kernels.transfer import Arrival, to_device


def open_draft(path: Path, target: Tokenizer) -> Checkpoint:
    """The checkpoint of a draft model for a target with this tokenizer.

    Raises:
        ModelLoadError: its files are missing, broken or not supported.
        InvalidParameterError: it has another tokenizer; the message names the first difference.
    """
    try:
        checkpoint = open_checkpoint(path)
    except ModelLoadError as error:
        raise ModelLoadError(f"the draft model {path} can not be loaded: {error}") from error
    difference = tokenizer_difference(target, checkpoint.tokenizer)
    if difference is not None:
        raise InvalidParameterError(
            "draft_model",
            f"{checkpoint.name} has another tokenizer than the model it should draft for: {difference}; give a model "
            f"of the same family, whose token ids mean the same",
        )
    return checkpoint


def tokenizer_difference(target: Tokenizer, draft: Tokenizer) -> str | None:
    """What first tells the token ids of two tokenizers apart, in words; None if they mean the same."""
    if draft.vocab_size != target.vocab_size:
        return f"it has {draft.vocab_size:,} tokens, the model {target.vocab_size:,}"
    for token_id in range(target.vocab_size):
        if draft.token_str(token_id) != target.token_str(token_id):
            return f"token {token_id} is {draft.token_str(token_id)!r}, the model's is {target.token_str(token_id)!r}"
    return None


@dataclass
class _Progress:
    """How many first tokens of a request the draft model has computed, and in which life of its block table."""

    num_computed: int
    num_preemptions: int


class DraftModel:
    """Drafts tokens with a smaller model (a `Drafter`).

    A request's `num_computed` bounds the draft model's: what it computed for rejected drafts is void. After a full
    acceptance it lacks the last draft, after steps without drafts some tokens; it catches up before it drafts again.
    """

    def __init__(self, decoder: StepDecoder, block_size: int, vocab_size: int) -> None:
        self.decoder = decoder
        self.block_size = block_size
        # Embeddings may be padded to different sizes; ids beyond the smaller one mean nothing.
        self.vocab_size = min(vocab_size, decoder.config.vocab_size)
        self._progress: dict[tuple[str, int], _Progress] = {}

    def strength(self, request: Request) -> int:
        return LONGEST_MATCH

    def follow(self, plan: StepPlan) -> None:
        """Read the same part of each prompt that the target reads in this step."""
        batch = StepBatch(self.block_size)
        for request, num_tokens in plan:
            progress = self._progress_of(request)
            end = request.num_computed + num_tokens
            if not request.is_decoding and progress.num_computed < end:
                self._add(batch, request.ids_between(progress.num_computed, end), progress.num_computed, request)
                progress.num_computed = end
        if batch.token_ids:
            self.decoder.forward(batch)

    @torch.inference_mode()
    def draft(self, wanted: Sequence[tuple[Request, int]]) -> list[list[int]]:
        """Each round's tokens are the next one's inputs on the device; the host learns of all of them at the end."""
        # Longest first: so those that still draft are the first of those that did in the round before.
        ordered = sorted(wanted, key=lambda pair: -pair[1])
        rounds: list[Tensor] = []
        for done in range(ordered[0][1]):
            batch = StepBatch(self.block_size)
            for request in [request for request, count in ordered if count > done]:
                progress = self._progress[request.key] if rounds else self._progress_of(request)
                start = progress.num_computed
                ids = [0] if rounds else request.token_ids[start:]
                self._add(batch, ids, start, request)
                batch.rows.append(len(batch.token_ids) - 1)
                progress.num_computed = start + len(ids)
            if rounds:
                drafted = rounds[-1][: len(batch.rows)]
                batch.awaited = to_device(torch.tensor(batch.rows), drafted.device), drafted
            rounds.append(best_tokens(self.decoder.forward(batch)[:, : self.vocab_size]))
        drafts: dict[tuple[str, int], list[int]] = {request.key: [] for request, _ in wanted}
        arrived = iter(Arrival(torch.cat(rounds)).wait().tolist())
        for tokens in rounds:
            for request, _ in ordered[: len(tokens)]:
                drafts[request.key].append(next(arrived))
        return list(drafts.values())

    def forget(self, request: Request) -> None:
        self._progress.pop(request.key, None)

    def _add(self, batch: StepBatch, token_ids: list[int], start: int, request: Request) -> None:
        batch.add([min(token_id, self.vocab_size - 1) for token_id in token_ids], start, request.block_table)

    def _progress_of(self, request: Request) -> _Progress:
        """At the start of a step: what still holds of the request's progress."""
        progress = self._progress.get(request.key)
        if progress is None or progress.num_preemptions != request.num_preemptions:
            # Whoever filled the cached blocks had the draft model follow.
            progress = _Progress(request.num_cached, request.num_preemptions)
            self._progress[request.key] = progress
        progress.num_computed = min(progress.num_computed, request.num_computed)
        return progress
