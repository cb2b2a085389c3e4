"""The decoder over packed weights, for CPUs: `kernels.packed` behind the interface of `engine.decoder.Decoder`."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import torch
from torch import Tensor

from engine.errors import StepAbandonedError
from engine.model_config import ModelConfig
from engine.packed_weights import PackedTensors
from engine.step_batch import StepBatch
from kernels.packed.formats import Bytes
from kernels.packed.model import BLOCK_SIZE, PackedLayer, PackedModel, PackedShape, Sequences, Team


class PackedDecoder:
    """All layers with embeddings and head over packed weights, and its pools of 16-bit keys and values.

    Integer products are exact and every sum is taken in a fixed order, so a token's logits are the same, bit for bit,
    whatever is computed beside it.
    """

    def __init__(
        self, config: ModelConfig, tensors: PackedTensors, *, max_position: int, rope_divisors: Tensor | None = None
    ) -> None:
        self.config = config
        self.num_parameters = tensors.num_parameters
        cos, sin = config.rotary_tables(max_position, rope_divisors)
        embedding = tensors.packed["model.embed_tokens.weight"]
        self._model = PackedModel(
            PackedShape(
                config.hidden_size,
                config.intermediate_size,
                config.num_heads,
                config.num_kv_heads,
                config.head_dim,
                config.vocab_size,
                config.rms_norm_eps,
                config.scale,
            ),
            embedding,
            [_layer(config, tensors, index) for index in range(config.num_layers)],
            tensors.vectors["model.norm.weight"],
            embedding if config.tie_embeddings else tensors.packed["lm_head.weight"],
            cos.numpy(),
            sin.numpy(),
            Team.shared(),
        )

    @property
    def kv_bytes_per_token(self) -> int:
        """Bytes that one token's keys and values take in all layers."""
        return self.config.kv_bytes_per_token(np.dtype(np.float16).itemsize)

    def allocate(self, num_blocks: int, block_size: int) -> None:
        """Make the pools of keys and values."""
        assert block_size == BLOCK_SIZE, "why_not_packed was asked"
        self._model.allocate(num_blocks)

    def forward(self, batch: StepBatch, is_abandoned: Callable[[], bool] | None = None) -> Tensor:
        """As `Decoder.forward`, but a small step runs as one piece, without asking `is_abandoned` in between."""

        def check() -> None:
            if is_abandoned is not None and is_abandoned():
                raise StepAbandonedError("every request of this step has been aborted")

        logits = self._model.forward(
            batch.complete_ids(torch.tensor(batch.token_ids, dtype=torch.int64)).numpy(),
            np.array(batch.positions, dtype=np.int64),
            np.array(batch.slots, dtype=np.int64),
            Sequences(
                np.array(batch.query_lens, dtype=np.int64),
                np.array(batch.context_lens, dtype=np.int64),
                [np.array(table, dtype=np.int64) for table in batch.block_tables],
            ),
            np.array(batch.rows, dtype=np.int64),
            check,
        )
        return torch.from_numpy(logits)


def _layer(config: ModelConfig, tensors: PackedTensors, index: int) -> PackedLayer:
    prefix = f"model.layers.{index}."
    packed, vectors = tensors.packed, tensors.vectors

    def parts(*names: str) -> list[Bytes]:
        return [packed[f"{prefix}{name}.weight"] for name in names]

    biases = [vectors.get(f"{prefix}self_attn.{name}.bias") for name in ("q_proj", "k_proj", "v_proj")]
    return PackedLayer(
        input_norm=vectors[prefix + "input_layernorm.weight"],
        post_norm=vectors[prefix + "post_attention_layernorm.weight"],
        qkv=parts("self_attn.q_proj", "self_attn.k_proj", "self_attn.v_proj"),
        output=parts("self_attn.o_proj"),
        gate_up=parts("mlp.gate_proj", "mlp.up_proj"),
        down=parts("mlp.down_proj"),
        qkv_bias=np.concatenate([bias for bias in biases if bias is not None]) if biases[0] is not None else None,
        q_norm=vectors.get(prefix + "self_attn.q_norm.weight"),
        k_norm=vectors.get(prefix + "self_attn.k_norm.weight"),
        window=config.sliding_windows[index],
    )
