"""A step plan turned into tensors, run through the decoder. Owns the models and their KV pools; holds no queues."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path

import torch
from torch import Tensor

from engine.config import EngineConfig
from engine.decoder import Decoder
from engine.draft_model import load_draft
from engine.errors import InvalidParameterError
from engine.request import Request
from engine.scheduler import StepPlan
from engine.step_batch import StepBatch
from engine.weights import LoadedModel, load

# Keys and values on a CPU: at most this much, and at most a quarter of the memory that is free.
CPU_KV_BYTES = 1 << 30
GPU_KV_SHARE = 0.85


class ModelRunner:
    """The model on its device, with one pool of keys and values for each layer."""

    def __init__(self, config: EngineConfig) -> None:
        self.device = _pick_device(config.device)
        self.dtype = _pick_dtype(config.dtype, self.device)
        loaded: LoadedModel = load(Path(config.model), self.dtype, self.device)
        self.model_name = loaded.name
        self.tokenizer = loaded.tokenizer
        self.model_config = loaded.config
        self.max_model_len = min(config.max_model_len or loaded.config.max_position, loaded.config.max_position)
        self.decoder = Decoder(
            loaded.config,
            loaded.tensors,
            max_position=self.max_model_len,
            rope_divisors=loaded.rope_divisors,
            # Exactness was not asked for, and this CPU has no bfloat16 arithmetic: read half the bytes where that
            # decides.
            halved=config.dtype == "auto" and not config.deterministic and self._is_float_cpu(self.dtype),
            deterministic=config.deterministic,
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

    def _load_draft(self, config: EngineConfig) -> Decoder | None:
        if config.draft_model is None:
            return None
        # Nothing depends on the draft model's last bits, so it computes in what is fastest here.
        dtype = _pick_dtype("auto", self.device)
        return load_draft(
            Path(config.draft_model),
            self.tokenizer,
            dtype=dtype,
            device=self.device,
            max_position=self.max_model_len,
            halved=self._is_float_cpu(dtype),
        )

    def _is_float_cpu(self, dtype: torch.dtype) -> bool:
        return self.device.type == "cpu" and dtype == torch.float32

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


def _pick_dtype(name: str, device: torch.device) -> torch.dtype:
    if name != "auto":
        dtype: torch.dtype = getattr(torch, name)
        return dtype
    if device.type == "cuda":
        return torch.bfloat16
    # Without AVX-512 torch emulates bfloat16 products, several times slower than float32 at many rows.
    return torch.bfloat16 if torch.ops.mkldnn._is_mkldnn_bf16_supported() else torch.float32
