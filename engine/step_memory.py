"""How much one step computes at most, and the activations that takes."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch

from engine.config import EngineConfig
from engine.model_config import ModelConfig
from engine.quantized_linear import FORMATS, INT4
from kernels import runs_triton
from kernels.gpu.attention_tiles import PARTS_BYTES

# "packed": the format of `kernels.packed`, for CPUs.
PACKED = "packed"
# (sequences, tokens) where nobody says how many. A step can not be interrupted, so that CPUs do little at a time.
CPU_SIZE, GPU_SIZE = (16, 256), (256, 8192)
# On a GPU both are halved until activations take at most this part of its memory; less than this many tokens would
# leave its cores idle.
GPU_STEP_SHARE, GPU_LEAST_TOKENS = 1 / 16, 512


@dataclass(frozen=True)
class StepSize:
    """The most that one step computes.

    Attributes:
        logit_rows: tokens whose logits are computed.
        prefill_share: prompt tokens in a step in which another sequence decodes.
    """

    max_num_seqs: int
    max_num_batched_tokens: int
    logit_rows: int
    prefill_share: int

    @classmethod
    def of(cls, engine: EngineConfig, default: tuple[int, int]) -> StepSize:
        """What is asked for, and `default` (sequences, tokens) where nothing is."""
        seqs, tokens = engine.max_num_seqs or default[0], engine.max_num_batched_tokens or default[1]
        return cls(
            seqs,
            tokens,
            min(tokens, max(seqs, engine.max_speculative_rows)),
            engine.max_prefill_tokens_while_decoding or max(1, tokens // 4),
        )


@dataclass(frozen=True)
class StepMemory:
    """Activations of the largest step: `fixed_bytes`, and `bytes_per_context_token` for the longest context in it."""

    fixed_bytes: int
    bytes_per_context_token: int

    def at(self, context_len: int) -> int:
        return self.fixed_bytes + context_len * self.bytes_per_context_token

    def __add__(self, other: StepMemory) -> StepMemory:
        return StepMemory(
            self.fixed_bytes + other.fixed_bytes, self.bytes_per_context_token + other.bytes_per_context_token
        )


def step_size(
    engine: EngineConfig,
    device: torch.device,
    available: int,
    models: Sequence[tuple[ModelConfig, str]],
    max_model_len: int,
) -> StepSize:
    """The size of an engine's steps; `models`: (configuration, weight format) of the model and its draft model."""
    if device.type != "cuda":
        return StepSize.of(engine, CPU_SIZE)
    seqs, tokens = GPU_SIZE
    while tokens > GPU_LEAST_TOKENS:
        size = StepSize.of(engine, (seqs, tokens))
        memory = sum(step_memory(*model, size, device).at(max_model_len) for model in models)
        if memory <= available * GPU_STEP_SHARE:
            return size
        seqs, tokens = seqs // 2, tokens // 2
    return StepSize.of(engine, (seqs, tokens))


def step_memory(config: ModelConfig, weight_format: str, size: StepSize, device: torch.device) -> StepMemory:
    """Peak activations of a step of that size."""
    tokens, hidden, inner = size.max_num_batched_tokens, config.hidden_size, config.intermediate_size
    q_width = config.num_heads * config.head_dim
    qkv_width = q_width + 2 * config.num_kv_heads * config.head_dim
    # As computed, as float32 or a copy of it, and as the sampler edits and sorts it.
    logits = 3 * 4 * size.logit_rows * config.vocab_size
    if weight_format == PACKED:
        from kernels.packed.layout import SPLIT

        # `PackedModel._reserve`: float32 buffers, codes of the widest product with their sums, attention's partials.
        widest = max(hidden, inner, q_width)
        row_bytes = 4 * (2 * hidden + qkv_width + 2 * inner) + widest + widest // 4
        split_bytes = 4 * tokens * config.num_heads * (config.head_dim + 16)
        return StepMemory(tokens * row_bytes + logits + split_bytes, -(-split_bytes // SPLIT))
    itemsize = itemsize_of(weight_format)
    # Residual, normed, attention's output and the layer's; q, k and v before and after rotation; the gated layer.
    row_bytes = itemsize * (4 * hidden + 2 * qkv_width + 3 * inner)
    # The widest matrix of 4 bits, unpacked for many rows.
    unpacked = itemsize * 2 * inner * hidden if weight_format == INT4 else 0
    fixed = tokens * row_bytes + logits + unpacked
    if runs_triton(device):
        # Sums of splits, of a step as it comes and of both kinds of recorded ones; scores are never written.
        return StepMemory(fixed + 3 * PARTS_BYTES, 0)
    # A prompt's mask, as bool and as numbers; the blocks of every sequence, gathered and put in order.
    groups = config.num_heads // config.num_kv_heads
    mask_bytes = groups * tokens * (1 + itemsize)
    gathered_bytes = 4 * size.max_num_seqs * config.num_kv_heads * config.head_dim * itemsize
    return StepMemory(fixed, mask_bytes + gathered_bytes)


def itemsize_of(weight_format: str) -> int:
    """Of the numbers that are computed with; weights that are rounded when they are loaded come as bfloat16."""
    dtype: torch.dtype = torch.bfloat16 if weight_format in FORMATS else getattr(torch, weight_format)
    return dtype.itemsize
