"""A step plan turned into tensors, run through the decoder. Owns the models and their KV pools; holds no queues."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path

import torch
from torch import Tensor

from engine.config import EngineConfig
from engine.draft_model import load_draft
from engine.errors import InvalidParameterError
from engine.request import Request
from engine.scheduler import StepPlan
from engine.step_batch import StepBatch
from engine.step_decoder import StepDecoder, load_decoder, pick_format
from engine.weights import open_checkpoint

# Keys and values on a CPU: at most this much, and at most a quarter of the memory that is free.
CPU_KV_BYTES = 1 << 30
GPU_KV_SHARE = 0.85


class ModelRunner:
    """The model on its device, with its pools of keys and values, and its draft model where there is one.

    Attributes:
        weight_format: "packed" (4 and 8 bits), or the torch dtype's name.
    """

    def __init__(self, config: EngineConfig) -> None:
        self.device = _pick_device(config.device)
        checkpoint = open_checkpoint(Path(config.model))
        self.model_name = checkpoint.name
        self.tokenizer = checkpoint.tokenizer
        self.model_config = checkpoint.config
        self.max_model_len = min(config.max_model_len or checkpoint.config.max_position, checkpoint.config.max_position)
        self.weight_format = pick_format(checkpoint, config.dtype, self.device, config.block_size)
        self.decoder = load_decoder(
            checkpoint,
            self.weight_format,
            self.device,
            max_position=self.max_model_len,
            halved=config.dtype == "auto" and not config.deterministic,
            exact=config.deterministic,
        )
        self.draft_decoder = self._load_draft(config)
        self.block_size = config.block_size
        self.num_blocks = self._pool_size(config)
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

    def _load_draft(self, config: EngineConfig) -> StepDecoder | None:
        if config.draft_model is None:
            return None
        return load_draft(
            open_checkpoint(Path(config.draft_model)),
            self.tokenizer,
            device=self.device,
            block_size=config.block_size,
            max_position=self.max_model_len,
        )

    def _pool_size(self, config: EngineConfig) -> int:
        if config.num_kv_blocks is not None:
            return config.num_kv_blocks
        block_bytes = self.kv_bytes_per_token * config.block_size
        memory = config.kv_memory_bytes or _default_kv_bytes(self.device)
        # More than every sequence at full length can never be used.
        useful = config.max_num_seqs * -(-self.max_model_len // config.block_size)
        num_blocks = min(memory // block_bytes, useful)
        if num_blocks < 2:
            raise InvalidParameterError(
                "kv_memory_bytes",
                f"{memory:,} bytes hold {num_blocks} blocks; one block of {config.block_size} tokens takes "
                f"{block_bytes:,} bytes, and at least 2 are needed",
            )
        return num_blocks


def _default_kv_bytes(device: torch.device) -> int:
    if device.type == "cuda":
        free, _ = torch.cuda.mem_get_info(device)
        return int(free * GPU_KV_SHARE)
    available = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_AVPHYS_PAGES")
    return min(CPU_KV_BYTES, max(available // 4, 64 << 20))


def _pick_device(name: str) -> torch.device:
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
