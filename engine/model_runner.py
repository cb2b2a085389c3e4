"""A step plan turned into tensors, run through the decoder. Owns the models and their KV pools; holds no queues."""

from __future__ import annotations

import logging
import random
from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from pathlib import Path

import torch
from torch import Tensor

from engine.available_memory import available_bytes
from engine.choices import Choices
from engine.config import EngineConfig
from engine.decoder import Decoder
from engine.draft_model import open_draft
from engine.errors import InsufficientMemoryError, InvalidParameterError, ModelLoadError
from engine.gpu_memory import MeasuredPool, measure
from engine.memory_plan import MemoryPlan
from engine.request import Request
from engine.scheduler import StepPlan
from engine.step_batch import StepBatch
from engine.step_decoder import StepDecoder, load_decoder, pick_format
from engine.weights import Checkpoint, open_checkpoint
from kernels import KernelsUnavailableError, packed, runs_triton, uses_triton
from kernels.dispatch import forced
from kernels.sampling import Draw, Penalty, penalize_rows, sample_rows, token_logprobs

log = logging.getLogger(__name__)

# Tokens from which the scales of float8 keys and values are taken.
CALIBRATION_TOKENS = 512


class ModelRunner:
    """The model on its device, with its pools of keys and values, and its draft model where there is one.

    Attributes:
        weight_format: "packed" (4 and 8 bits), or the torch dtype's name.
        memory_plan: what all of this takes, as it was counted before loading.

    Raises:
        ModelLoadError: the model's files are missing, broken or not supported.
        InsufficientMemoryError: model, context and pool are more than the device has free; no tensor was read.
        InvalidParameterError: a setting does not fit the model or the machine.
    """

    def __init__(self, config: EngineConfig) -> None:
        self.device = pick_device(config.device)
        try:
            if forced() == "triton":
                runs_triton(self.device)
        except KernelsUnavailableError as error:
            raise ModelLoadError(f"{error}; unset RAGSTONE_KERNELS, or set it to torch") from None
        if self.device.type == "cpu" and (
            config.dtype == "int8" or (config.dtype == "auto" and Path(config.model).suffix == ".gguf")
        ):
            packed.load_ahead()  # while the tokenizer is built
        checkpoint = open_checkpoint(Path(config.model))
        self.model_name = checkpoint.name
        self.tokenizer = checkpoint.tokenizer
        self.model_config = checkpoint.config
        draft = self._plan(config, checkpoint)
        try:
            self.memory_plan.check()
        except InsufficientMemoryError as error:
            if config.device != "auto" or self.device.type == "cpu":
                raise
            log.warning(
                "the GPU has %s bytes free and the model needs %s: it is computed on the CPU",
                f"{error.available_bytes:,}",
                f"{error.needed_bytes:,}",
            )
            self.device = torch.device("cpu")
            draft = self._plan(config, checkpoint)
            self.memory_plan.check()
        self.max_model_len = self.memory_plan.max_model_len
        self.num_blocks = self.memory_plan.num_blocks
        self.block_size = config.block_size
        self.draft_decoder: StepDecoder | None = None
        with self.on_device():
            self._load(config, checkpoint, draft)

    def _plan(self, config: EngineConfig, checkpoint: Checkpoint) -> tuple[Checkpoint, str] | None:
        """Choose the format of the weights and count the memory, for `self.device`; returns the draft model."""
        self.weight_format = pick_format(checkpoint, config.dtype, self.device, config.block_size)
        draft = self._open_draft(config)
        self.memory_plan = MemoryPlan.of(
            config, self.device, available_bytes(self.device), checkpoint, self.weight_format, draft
        )
        return draft

    def _load(self, config: EngineConfig, checkpoint: Checkpoint, draft: tuple[Checkpoint, str] | None) -> None:
        self.decoder = load_decoder(
            checkpoint,
            self.weight_format,
            self.device,
            max_position=self.max_model_len,
            halved=config.dtype == "auto" and not config.deterministic,
            exact=config.deterministic,
        )
        if config.kv_cache_dtype == "fp8":
            assert isinstance(self.decoder, Decoder), "the memory plan refuses float8 beside packed weights"
            self.decoder.calibrate_float8(self._calibration_ids())
        if draft is not None:
            # Nothing depends on the draft model's last bits, so it computes in what is fastest here.
            self.draft_decoder = load_decoder(
                *draft, self.device, max_position=self.max_model_len, halved=True, exact=False
            )
        if self._records(self.decoder, config):
            self._record(config)
        else:
            self.decoder.allocate(self.num_blocks, self.block_size)
        if self.draft_decoder is not None:
            self.draft_decoder.allocate(self.num_blocks, self.block_size)
        if self.device.type == "cuda":
            self._warm_up()

    def on_device(self) -> AbstractContextManager[object]:
        """Kernels are launched on the thread's current device, which has to be the model's."""
        return torch.cuda.device(self.device) if self.device.type == "cuda" else nullcontext()

    def _calibration_ids(self) -> list[int]:
        """Random tokens behind the one that begins a text, whose keys and values are like no other's."""
        draw = random.Random(0)
        count = min(CALIBRATION_TOKENS, self.max_model_len)
        ids = self.tokenizer.encode("", add_bos=True)
        return (ids + [draw.randrange(self.tokenizer.vocab_size) for _ in range(count)])[:count]

    @torch.inference_mode()
    def _warm_up(self) -> None:
        """Have every kernel compiled that a step may need: while a request waits, it would look like a stall."""
        size = self.memory_plan.size.max_num_batched_tokens
        limit = min(size, self.max_model_len, self.num_blocks * self.block_size)
        for decoder in filter(None, (self.decoder, self.draft_decoder)):
            # Of every kind of tile: for one row, for few and for many, and with keys in more than one split.
            for num_tokens in sorted({min(count, limit) for count in (1, 32, 128, 1024)}):
                batch = StepBatch(self.block_size)
                batch.add([0] * num_tokens, 0, list(range(-(-num_tokens // self.block_size))))
                batch.rows.append(num_tokens - 1)
                logits = decoder.forward(batch)
        penalize_rows(logits, [Penalty([0], [0], 1.1, 0.1, 0.1)])
        token_logprobs(logits, sample_rows(logits, [Draw(0.8, 2, 0.9, 0.1, 0, 0)]).long(), 1)

    def _records(self, decoder: StepDecoder, config: EngineConfig) -> bool:
        """Whether steps are replayed as CUDA graphs: not in deterministic mode, since bits differ between buckets."""
        return (
            isinstance(decoder, Decoder)
            and self.device.type == "cuda"
            and not config.deterministic
            and uses_triton(decoder.embeddings)
        )

    def _record(self, config: EngineConfig) -> None:
        """Size the pool by what the largest step and the graphs leave free, unless told; then record over it."""
        assert isinstance(self.decoder, Decoder), "only torch's decoder is recorded"
        decoder, block_size = self.decoder, self.block_size

        def record(num_blocks: int) -> None:
            decoder.record_graphs(
                num_blocks,
                block_size,
                max_tokens=max(self.memory_plan.size.max_num_seqs, config.max_speculative_rows),
                max_query_len=1 if config.speculation == "off" else 1 + config.num_draft_tokens,
                max_context_len=self.max_model_len,
            )

        # A draft model's pool grows with the target's: then the plan's count, made before loading, holds.
        if config.num_kv_blocks is None and config.kv_memory_bytes is None and self.draft_decoder is None:
            measured = self._measure(decoder, record)
            useful = self.memory_plan.size.max_num_seqs * self.memory_plan.blocks_of_context
            self.num_blocks = min(measured.num_blocks, max(2, useful))
            if self.num_blocks < 2:
                parts = [("the largest step", measured.step_bytes), ("graphs", measured.graph_bytes)]
                needed = measured.step_bytes + measured.graph_bytes + 2 * measured.block_bytes
                raise InsufficientMemoryError(self.model_name, parts, needed, measured.free_bytes)
        record(self.num_blocks)

    def _measure(self, decoder: Decoder, record: Callable[[int], None]) -> MeasuredPool:
        step, size = self.memory_plan.size, self.block_size
        tokens = step.max_num_batched_tokens
        num_blocks = -(-tokens // size)
        batch, table = StepBatch(size), list(range(num_blocks))
        for start in range(0, tokens, self.max_model_len):
            batch.add([0] * min(self.max_model_len, tokens - start), 0, table)
        batch.rows += range(tokens - step.logit_rows, tokens)

        def free() -> int:
            decoder.graphs = None
            decoder.pools = []
            torch.cuda.empty_cache()
            return available_bytes(self.device)

        def peak_of(call: Callable[[], object]) -> int:
            decoder.allocate(num_blocks, size)
            torch.cuda.reset_peak_memory_stats(self.device)
            start = torch.cuda.memory_allocated(self.device)
            call()
            return torch.cuda.max_memory_allocated(self.device) - start

        def free_with_graphs() -> int:
            torch.cuda.empty_cache()
            return available_bytes(self.device) + decoder.kv_bytes_per_token * size * 3

        def largest_step() -> Tensor:
            logits = decoder.forward(batch)
            return logits.softmax(-1)  # the sampler's copies

        measured = measure(
            decoder.kv_bytes_per_token * size, free, peak_of, largest_step, lambda: record(2), free_with_graphs
        )
        free()
        return measured

    @property
    def kv_bytes_per_token(self) -> int:
        """Bytes of one token's keys and values, the draft model's included."""
        draft = self.draft_decoder.kv_bytes_per_token if self.draft_decoder is not None else 0
        return self.decoder.kv_bytes_per_token + draft

    @torch.inference_mode()
    def run(
        self, plan: StepPlan, is_abandoned: Callable[[], bool] | None = None, behind: Choices | None = None
    ) -> tuple[list[Request], Tensor]:
        """Compute every token of the plan; `is_abandoned` is `Decoder.forward`'s, `behind` `StepBatch.of`'s.

        Returns the requests whose newest token has now been computed, in plan order, and logits [rows, vocab] float32.
        Each of them has 1 + len(draft_token_ids) consecutive rows: the distribution of its next token, then of the one
        behind each draft.
        """
        batch, complete = StepBatch.of(plan, self.block_size, behind)
        return complete, self.decoder.forward(batch, is_abandoned)

    def _open_draft(self, config: EngineConfig) -> tuple[Checkpoint, str] | None:
        """The draft model's checkpoint and the format it is loaded in."""
        if config.draft_model is None:
            return None
        checkpoint = open_draft(Path(config.draft_model), self.tokenizer)
        return checkpoint, pick_format(checkpoint, "auto", self.device, config.block_size)


def pick_device(name: str) -> torch.device:
    """The device that `EngineConfig.device` names. Raises InvalidParameterError if it is unknown or not there."""
    if name == "auto":
        return torch.device("cuda" if torch.cuda.is_available() else "cpu")
    try:
        device = torch.device(name)
    except RuntimeError:
        raise InvalidParameterError("device", f'must be "auto", "cpu", "cuda" or "cuda:N", got {name!r}') from None
    if device.type == "cuda" and not torch.cuda.is_available():
        raise InvalidParameterError(
            "device", f'{name!r} was asked for, but torch sees no CUDA device; use "cpu" or "auto"'
        )
    return device
