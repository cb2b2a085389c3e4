"""What computes a step, and the choice between the decoders there are: packed weights on CPUs, torch elsewhere."""

from __future__ import annotations

import logging
from collections.abc import Callable
from typing import Protocol

import torch
from torch import Tensor

from engine.decoder import Decoder
from engine.errors import InvalidParameterError
from engine.model_config import ModelConfig
from engine.packed_weights import why_not_packed
from engine.quantized_linear import FORMATS, INT4
from engine.step_batch import StepBatch
from engine.step_memory import PACKED
from engine.weights import Checkpoint
from kernels import packed, runs_triton

log = logging.getLogger(__name__)


class StepDecoder(Protocol):
    """A model on its device with its pools of keys and values: `engine.decoder` or `engine.packed_decoder`."""

    config: ModelConfig
    num_parameters: int

    @property
    def kv_bytes_per_token(self) -> int:
        """Bytes that one token's keys and values take in all layers."""

    def allocate(self, num_blocks: int, block_size: int) -> None:
        """Make the pools of keys and values."""

    def forward(self, batch: StepBatch, is_abandoned: Callable[[], bool] | None = None) -> Tensor:
        """Compute all tokens of a step, writing their keys and values; logits [rows, vocab] float32 of `batch.rows`.

        Raises StepAbandonedError if `is_abandoned`, asked between layers, says that nobody waits any more.
        """


def pick_format(checkpoint: Checkpoint, dtype: str, device: torch.device, block_size: int) -> str:
    """PACKED, "fp8", "int4", or the name of a torch dtype, for `EngineConfig.dtype`.

    Raises InvalidParameterError if what was asked for is nothing that this model, device or machine can have.
    """
    if dtype in FORMATS and not runs_triton(device):
        raise InvalidParameterError(
            "dtype",
            f'"{dtype}" needs an NVIDIA GPU with Triton kernels; this model is computed by torch on {device.type}',
        )
    if dtype == "int8" or (dtype == "auto" and device.type == "cpu" and checkpoint.is_quantized):
        reason = why_not_packed(checkpoint.config, block_size, device) or packed.why_unavailable()
        if reason is None:
            return PACKED
        if dtype == "int8":
            raise InvalidParameterError("dtype", f'"int8" is not possible here: {reason}')
        log.warning("weights are unpacked, which is slower: model=%s reason=%s", checkpoint.name, reason)
    if dtype != "auto":
        return dtype
    if checkpoint.int4_group is not None and runs_triton(device):
        return INT4
    if device.type == "cuda":
        # Older cards compute bfloat16 by detours.
        return "bfloat16" if torch.cuda.get_device_capability(device) >= (8, 0) else "float16"
    # Without AVX-512 torch emulates bfloat16 products, several times slower than float32 at many rows.
    return "bfloat16" if torch.ops.mkldnn._is_mkldnn_bf16_supported() else "float32"


def load_decoder(
    checkpoint: Checkpoint, weight_format: str, device: torch.device, *, max_position: int, halved: bool, exact: bool
) -> StepDecoder:
    """Read a checkpoint's tensors in the format that `pick_format` named.

    `halved` allows bfloat16 copies for steps of few rows where the weights are float32 on a CPU; `exact` is
    `EngineConfig.deterministic`, which packed weights need no special mode for.
    """
    if weight_format == PACKED:
        from engine.packed_decoder import PackedDecoder

        return PackedDecoder(
            checkpoint.config,
            checkpoint.packed(),
            max_position=max_position,
            rope_divisors=checkpoint.rope_divisors,
        )
    rounded_to = weight_format if weight_format in FORMATS else None
    # Triton's interpreter on a CPU knows no bfloat16.
    rounded_from = torch.bfloat16 if device.type == "cuda" else torch.float32
    dtype: torch.dtype = rounded_from if rounded_to else getattr(torch, weight_format)
    int4 = checkpoint.int4_tensors(device) if weight_format == INT4 else {}
    int4.pop("lm_head.weight", None)  # the head is computed as floats, however it is stored
    return Decoder(
        checkpoint.config,
        checkpoint.tensors(dtype, device, without=int4),
        max_position=max_position,
        rope_divisors=checkpoint.rope_divisors,
        halved=halved and device.type == "cpu" and dtype == torch.float32,
        deterministic=exact,
        rounded_to=rounded_to,
        int4=int4,
    )
