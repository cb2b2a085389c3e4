"""A step plan turned into tensors, run through the decoder. Owns the model and the KV pool; holds no queues."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path

import numpy as np
import torch
from torch import Tensor

from engine.config import EngineConfig
from engine.decoder import Decoder
from engine.errors import InvalidParameterError
from engine.request import Request
from engine.scheduler import StepPlan
from engine.weights import LoadedModel, load
from kernels import AttentionBatch, PagedAttention

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
            halved=config.dtype == "auto"
            and self.device.type == "cpu"
            and self.dtype == torch.float32
            and not config.deterministic,
            deterministic=config.deterministic,
        )
        self.deterministic = config.deterministic
        self.block_size = config.block_size
        self.num_blocks = self._pool_size(config)
        shape = (self.num_blocks, loaded.config.num_kv_heads, self.block_size, loaded.config.head_dim)
        self.pools: list[tuple[Tensor, Tensor]] = [
            (_zeros(shape, self.dtype, self.device), _zeros(shape, self.dtype, self.device))
            for _ in range(loaded.config.num_layers)
        ]

    @property
    def kv_bytes_per_token(self) -> int:
        return self.model_config.kv_bytes_per_token(self.dtype.itemsize)

    @torch.inference_mode()
    def run(self, plan: StepPlan, is_abandoned: Callable[[], bool] | None = None) -> tuple[list[Request], Tensor]:
        """Compute every token of the plan; `is_abandoned` is `Decoder.forward`'s.

        Returns the requests whose newest token has now been computed, in plan order, and logits [rows, vocab] float32.
        Each of them has 1 + len(draft_token_ids) consecutive rows: the distribution of its next token, then of the one
        behind each draft.
        """
        token_ids: list[int] = []
        positions: list[int] = []
        slots: list[int] = []
        rows: list[int] = []
        complete: list[Request] = []
        for request, num_tokens in plan:
            start, end = request.num_computed, request.num_computed + num_tokens
            token_ids += request.ids_between(start, end)
            positions += range(start, end)
            size, table = self.block_size, request.block_table
            slots += [table[position // size] * size + position % size for position in range(start, end)]
            if end >= request.num_tokens:
                complete.append(request)
                rows += range(len(token_ids) - (end - request.num_tokens) - 1, len(token_ids))
        batch = AttentionBatch(
            query_lens=[num_tokens for _, num_tokens in plan],
            context_lens=[request.num_computed + num_tokens for request, num_tokens in plan],
            block_tables=[request.block_table for request, _ in plan],
            block_size=self.block_size,
            device=self.device,
        )
        config = self.model_config
        attention = PagedAttention(
            batch, config.num_heads, config.num_kv_heads, config.scale, deterministic=self.deterministic
        )
        logits = self.decoder.forward(
            self._tensor(token_ids),
            self._tensor(positions),
            self._tensor(slots),
            attention,
            self.pools,
            self._tensor(rows),
            is_abandoned,
        )
        return complete, logits

    def _tensor(self, values: list[int]) -> Tensor:
        return torch.tensor(values, dtype=torch.int64, device=self.device)

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


def _zeros(shape: tuple[int, ...], dtype: torch.dtype, device: torch.device) -> Tensor:
    """A zeroed tensor; on a CPU its pages are mapped when first written, so a large pool costs nothing to make."""
    if device.type != "cpu":
        return torch.zeros(shape, dtype=dtype, device=device)
    return torch.from_numpy(np.zeros((*shape[:-1], shape[-1] * dtype.itemsize), dtype=np.uint8)).view(dtype)


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
