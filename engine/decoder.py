"""The Llama-family decoder: hidden states of a step's tokens, and logits of the rows asked for.

One class for Llama, Mistral, SmolLM2, Qwen2 and Qwen3; `ModelConfig` tells them apart. Knows nothing of requests.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping

import numpy as np
import torch
from torch import Tensor
from torch.nn.functional import embedding

from engine.errors import StepAbandonedError
from engine.linear import Linear
from engine.model_config import ModelConfig
from engine.quantized_linear import FLOAT8, Float8Linear, Int4Linear, int4_linear
from engine.step_batch import StepBatch
from engine.step_graphs import CudaRecorder, GraphInputs, Record, StepGraphs
from kernels import (
    AttentionBatch,
    KVPool,
    PagedAttention,
    add_rms_norm,
    rms_norm,
    rope_and_write_kv,
    silu_and_mul,
    uses_triton,
)
from kernels.int4_matmul import Int4Weight
from kernels.kv_pool import FLOAT8_MAX
from kernels.transfer import to_device


class DecoderLayer:
    """Attention and feed-forward of one layer, with q/k/v and gate/up fused into one product each."""

    def __init__(
        self,
        config: ModelConfig,
        tensors: Mapping[str, Tensor],
        index: int,
        *,
        halved: bool,
        deterministic: bool,
        rounded_to: str | None,
        int4: Mapping[str, Int4Weight],
    ) -> None:
        prefix = f"model.layers.{index}."
        dtype = tensors["model.embed_tokens.weight"].dtype

        def get(name: str) -> Tensor | None:
            return tensors.get(prefix + name)

        def fused(*names: str) -> Callable[[Tensor], Tensor]:
            weights = [f"{prefix}{name}.weight" for name in names]
            given = [tensors.get(f"{prefix}{name}.bias") for name in names]
            biases = [bias for bias in given if bias is not None] or None
            if all(name in int4 for name in weights):
                return int4_linear([int4[name] for name in weights], biases)
            # Stored in 4 bits in part only: computed as what is not.
            weight = torch.cat([int4[w].dense(dtype) if w in int4 else tensors[w] for w in weights])
            bias = None if biases is None else torch.cat(biases)
            if rounded_to is None or int4:
                return Linear(weight, bias, halved=halved, deterministic=deterministic)
            return Float8Linear(weight, bias) if rounded_to == FLOAT8 else Int4Linear.rounded(weight, bias)

        self.config = config
        self.deterministic = deterministic
        self.window = config.sliding_windows[index]
        self.qkv = fused("self_attn.q_proj", "self_attn.k_proj", "self_attn.v_proj")
        self.output = fused("self_attn.o_proj")
        self.gate_up = fused("mlp.gate_proj", "mlp.up_proj")
        self.down = fused("mlp.down_proj")
        self.input_norm = tensors[prefix + "input_layernorm.weight"]
        self.post_norm = tensors[prefix + "post_attention_layernorm.weight"]
        self.q_norm = get("self_attn.q_norm.weight")
        self.k_norm = get("self_attn.k_norm.weight")

    def __call__(
        self, hidden: Tensor, residual: Tensor | None, step: StepTensors, pool: KVPool
    ) -> tuple[Tensor, Tensor]:
        """hidden: [tokens, hidden], the last layer's output; returns this layer's and the residual it adds to."""
        config, eps = self.config, self.config.rms_norm_eps
        if residual is None:
            normed, residual = rms_norm(hidden, self.input_norm, eps), hidden
        else:
            normed, residual = add_rms_norm(hidden, residual, self.input_norm, eps)
        heads, kv_heads, head_dim = config.num_heads, config.num_kv_heads, config.head_dim
        qkv = self.qkv(normed).view(-1, heads + 2 * kv_heads, head_dim)
        q, k, v = torch.split(qkv, [heads, kv_heads, kv_heads], dim=1)
        q = rope_and_write_kv(q, k, v, step.cos, step.sin, pool, step.slots, self.q_norm, self.k_norm, eps)
        attended = step.attention(q, pool, self.window)
        hidden = self.output(attended.reshape(-1, heads * head_dim))
        normed, residual = add_rms_norm(hidden, residual, self.post_norm, eps)
        return self.down(self._activate(self.gate_up(normed))), residual

    def _activate(self, gate_up: Tensor) -> Tensor:
        if not self.deterministic or uses_triton(gate_up):
            return silu_and_mul(gate_up)
        # Vector and scalar exp differ in the last bit, and which of them an element gets depends on its place among all
        # elements of the call: one call a row, and every row is treated alike.
        return torch.cat([silu_and_mul(row) for row in torch.split(gate_up, 1)])


class StepTensors:
    """What all layers of one step share: positions' angles, where keys and values go, and the attention's shape."""

    def __init__(self, cos: Tensor, sin: Tensor, slots: Tensor, attention: PagedAttention) -> None:
        self.cos = cos
        self.sin = sin
        self.slots = slots
        self.attention = attention


class Decoder:
    """All layers with embeddings and head, in torch, and one pool of keys and values for each layer.

    `halved` and `deterministic` are `Linear`'s; `rounded_to` is one of `engine.quantized_linear.FORMATS`, for GPUs;
    `int4` are matrices that are stored in 4 bits and not among `tensors`: then no other is rounded.
    """

    def __init__(
        self,
        config: ModelConfig,
        tensors: Mapping[str, Tensor],
        *,
        max_position: int,
        rope_divisors: Tensor | None = None,
        halved: bool = False,
        deterministic: bool = False,
        rounded_to: str | None = None,
        int4: Mapping[str, Int4Weight] | None = None,
    ) -> None:
        self.config = config
        self.deterministic = deterministic
        self.embeddings = tensors["model.embed_tokens.weight"]
        self.layers = [
            DecoderLayer(
                config,
                tensors,
                index,
                halved=halved,
                deterministic=deterministic,
                rounded_to=rounded_to,
                int4=int4 or {},
            )
            for index in range(config.num_layers)
        ]
        self.norm = tensors["model.norm.weight"]
        head = self.embeddings if config.tie_embeddings else tensors["lm_head.weight"]
        self.head = Linear(head, halved=halved, deterministic=deterministic)
        cos, sin = config.rotary_tables(max_position, rope_divisors)
        self.cos, self.sin = (table.unsqueeze(1).to(self.embeddings.device) for table in (cos, sin))
        seen: dict[int, int] = {tensor.data_ptr(): tensor.numel() for tensor in tensors.values()}
        self.num_parameters = sum(seen.values()) + sum(8 * weight.words.numel() for weight in (int4 or {}).values())
        self.pools: list[KVPool] = []
        self._kv_scales: list[tuple[Tensor, Tensor]] = []
        self.graphs: StepGraphs | None = None

    @property
    def kv_dtype(self) -> torch.dtype:
        """Of the pools: the model's, or float8 once it has been calibrated."""
        return torch.float8_e4m3fn if self._kv_scales else self.embeddings.dtype

    @property
    def kv_bytes_per_token(self) -> int:
        """Bytes that one token's keys and values take in all layers."""
        return self.config.kv_bytes_per_token(self.kv_dtype.itemsize)

    def allocate(self, num_blocks: int, block_size: int) -> None:
        """Make the pools: each layer's (keys, values), [num_blocks, kv_heads, block_size, head_dim], zeroed."""
        shape = (num_blocks, self.config.num_kv_heads, block_size, self.config.head_dim)
        dtype, device = self.kv_dtype, self.embeddings.device
        unscaled: list[tuple[Tensor | None, Tensor | None]] = [(None, None)] * self.config.num_layers
        self.pools = [
            KVPool(_zeros(shape, dtype, device), _zeros(shape, dtype, device), *scales)
            for scales in [*self._kv_scales] or unscaled
        ]

    def calibrate_float8(self, token_ids: list[int]) -> None:
        """Keep keys and values in float8 from now on, each head scaled by the largest number it has in these tokens.

        float8 e4m3 has 3 bits of precision over 15 powers of two, so that what matters of a scale is that nothing is
        cut off above: twice the largest number seen here still fits.
        """
        batch = StepBatch(16)
        batch.add(token_ids, 0, list(range(-(-len(token_ids) // 16))))
        batch.rows.append(len(token_ids) - 1)
        self.allocate(len(batch.block_tables[0]), 16)
        self.forward(batch)

        def scale(values: Tensor) -> Tensor:
            return (values.float().abs().amax((0, 2, 3)) * (2 / FLOAT8_MAX)).clamp(min=1e-8)

        self._kv_scales = [(scale(pool.k), scale(pool.v)) for pool in self.pools]
        self.pools = []

    def record_graphs(
        self,
        num_blocks: int,
        block_size: int,
        *,
        max_tokens: int,
        max_query_len: int,
        max_context_len: int,
        record: Record | None = None,
    ) -> None:
        """Make the pools with one block more, which belongs to nobody, and graphs of steps up to `max_tokens` tokens.

        For Triton kernels only. `record` is for tests: what records in place of `CudaRecorder`.
        """
        from kernels.gpu.attention_tiles import SPLIT, max_items
        from kernels.gpu.paged_attention import block_m, make_parts

        self.graphs = None
        self.allocate(num_blocks + 1, block_size)
        config, device = self.config, self.embeddings.device
        groups = config.num_heads // config.num_kv_heads
        widest = block_m(max_query_len, groups, deterministic=False)
        most = min(max_tokens * -(-max_context_len // SPLIT), max_items(config.num_kv_heads, widest, config.head_dim))
        most = max(max_tokens, most)
        parts = {
            rows: make_parts(most, config.num_kv_heads, rows, config.head_dim, device)
            for rows in {block_m(length, groups, deterministic=False) for length in (1, max_query_len)}
        }
        with torch.inference_mode():
            self.graphs = StepGraphs(
                lambda inputs, rows: self._run_inputs(inputs, rows, parts[rows]),
                record or CudaRecorder(),
                device,
                max_tokens=max_tokens,
                max_query_len=max_query_len,
                max_context_len=max_context_len,
                max_items=most,
                block_size=block_size,
                groups=groups,
                dummy_block=num_blocks,
            )

    def _run_inputs(self, inputs: GraphInputs, block_m: int, parts: tuple[Tensor, Tensor, Tensor]) -> Tensor:
        """Final hidden states [tokens, hidden] of what lies in a graph's buffers."""
        from kernels.gpu.paged_attention import AttentionPlan

        config = self.config
        plan = AttentionPlan(
            inputs.starts,
            inputs.context_lens,
            inputs.block_tables,
            inputs.tiles,
            inputs.items,
            inputs.counts,
            block_m,
            True,
            *parts,
        )
        attention = PagedAttention.of_plan(plan, config.num_heads, config.num_kv_heads, config.scale)
        step = StepTensors(self.cos[inputs.positions], self.sin[inputs.positions], inputs.slots, attention)
        hidden, residual = embedding(inputs.token_ids, self.embeddings), None
        for layer, pool in zip(self.layers, self.pools, strict=True):
            hidden, residual = layer(hidden, residual, step, pool)
        assert residual is not None, "a decoder has at least one layer"
        return add_rms_norm(hidden, residual, self.norm, config.rms_norm_eps)[0]

    @torch.inference_mode()
    def forward(self, batch: StepBatch, is_abandoned: Callable[[], bool] | None = None) -> Tensor:
        """Compute all tokens of the step, writing their keys and values; logits [rows, vocab] float32 of `batch.rows`.

        Raises StepAbandonedError as soon as `is_abandoned`, asked before each layer, says that nobody waits any more.
        """
        if self.graphs is not None:
            if is_abandoned is not None and is_abandoned():
                raise StepAbandonedError("every request of this step has been aborted")
            rows = self._ids(batch.rows) if len(batch.rows) != len(batch.token_ids) else None
            states = self.graphs.replay(batch)
            if states is not None:
                asked = states if rows is None else states[rows]
                replayed: Tensor = self.head(asked).float()
                return replayed
        config, device = self.config, self.embeddings.device
        attention = PagedAttention(
            AttentionBatch(batch.query_lens, batch.context_lens, batch.block_tables, batch.block_size, device),
            config.num_heads,
            config.num_kv_heads,
            config.scale,
            deterministic=self.deterministic,
        )
        positions, rows = self._ids(batch.positions), self._ids(batch.rows)
        step = StepTensors(self.cos[positions], self.sin[positions], self._ids(batch.slots), attention)
        hidden, residual = embedding(batch.complete_ids(self._ids(batch.token_ids)), self.embeddings), None
        for layer, pool in zip(self.layers, self.pools, strict=True):
            if is_abandoned is not None and is_abandoned():
                raise StepAbandonedError("every request of this step has been aborted")
            hidden, residual = layer(hidden, residual, step, pool)
        assert residual is not None, "a decoder has at least one layer"
        final, _ = add_rms_norm(hidden[rows], residual[rows], self.norm, config.rms_norm_eps)
        logits: Tensor = self.head(final).float()
        return logits

    def _ids(self, values: list[int]) -> Tensor:
        return to_device(torch.tensor(values, dtype=torch.int64), self.embeddings.device)


def _zeros(shape: tuple[int, ...], dtype: torch.dtype, device: torch.device) -> Tensor:
    """A zeroed tensor; on a CPU its pages are mapped when first written, so a large pool costs nothing to make."""
    if device.type != "cpu":
        return torch.zeros(shape, dtype=dtype, device=device)
    return torch.from_numpy(np.zeros((*shape[:-1], shape[-1] * dtype.itemsize), dtype=np.uint8)).view(dtype)
