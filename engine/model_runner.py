"""A step plan turned into tensors, run through the decoder. Owns the models and their KV pools; holds no queues."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import torch
from torch import Tensor

from engine.available_memory import available_bytes
from engine.config import EngineConfig
from engine.draft_model import open_draft
from engine.errors import InvalidParameterError
from engine.memory_plan import MemoryPlan
from engine.request import Request
from engine.scheduler import StepPlan
from engine.step_batch import StepBatch
from engine.step_decoder import StepDecoder, load_decoder, pick_format
from engine.weights import Checkpoint, open_checkpoint
from kernels import packed


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
        if self.device.type == "cpu" and (
            config.dtype == "int8" or (config.dtype == "auto" and Path(config.model).suffix == ".gguf")
        ):
            packed.load_ahead()  # while the tokenizer is built
        checkpoint = open_checkpoint(Path(config.model))
        self.model_name = checkpoint.name
        self.tokenizer = checkpoint.tokenizer
        self.model_config = checkpoint.config
        self.weight_format = pick_format(checkpoint, config.dtype, self.device, config.block_size)
        draft = self._open_draft(config)
        self.memory_plan = MemoryPlan.of(
            config, self.device, available_bytes(self.device), checkpoint, self.weight_format, draft
        )
        self.memory_plan.check()
        self.max_model_len = self.memory_plan.max_model_len
        self.num_blocks = self.memory_plan.num_blocks
        self.block_size = config.block_size
        self.decoder = load_decoder(
            checkpoint,
            self.weight_format,
            self.device,
            max_position=self.max_model_len,
            halved=config.dtype == "auto" and not config.deterministic,
            exact=config.deterministic,
        )
        self.draft_decoder: StepDecoder | None = None
        if draft is not None:
            # Nothing depends on the draft model's last bits, so it computes in what is fastest here.
            self.draft_decoder = load_decoder(
                *draft, self.device, max_position=self.max_model_len, halved=True, exact=False
            )
        for decoder in (self.decoder, self.draft_decoder):
            if decoder is not None:
                decoder.allocate(self.num_blocks, self.block_size)

    @property
    def kv_bytes_per_token(self) -> int:
        """Bytes of one token's keys and values, the draft model's included."""
        draft = self.draft_decoder.kv_bytes_per_token if self.draft_decoder is not None else 0
        return self.decoder.kv_bytes_per_token + draft

    def run(self, plan: StepPlan, is_abandoned: Callable[[], bool] | None = None) -> tuple[list[Request], Tensor]:
        """Compute every token of the plan; `is_abandoned` is `Decoder.forward`'s.

        Returns the requests whose newest token has now been computed, in plan order, and logits [rows, vocab] float32.
        Each of them has 1 + len(draft_token_ids) consecutive rows: the distribution of its next token, then of the one
        behind each draft.
        """
        batch, complete = StepBatch.of(plan, self.block_size)
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
