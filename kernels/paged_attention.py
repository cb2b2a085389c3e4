"""Causal attention of ragged query rows over keys and values that lie in blocks of a shared pool.

Row r of sequence b stands at position p = context_len[b] − query_len[b] + r and sees the keys 0 … p (with a sliding
window w, only the last w of them):

    out[r] = softmax(scale · q[r] · K[0..p]ᵀ) · V[0..p]

Prefill chunks, decode steps and verification rows are the same operation with different query lengths. Query heads are
grouped over key/value heads (GQA). Source: Kwon et al., "Efficient Memory Management for Large Language Model Serving
with PagedAttention" (2023).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING

import torch
from torch import Tensor
from torch.nn.functional import scaled_dot_product_attention

from kernels.dispatch import uses_triton
from kernels.kv_pool import KVPool
from kernels.transfer import to_device

if TYPE_CHECKING:
    from kernels.gpu.paged_attention import AttentionPlan


@dataclass(frozen=True)
class AttentionBatch:
    """The shape of one step, shared by all layers.

    Attributes:
        query_lens: new tokens of each sequence, in row order; every entry at least 1.
        context_lens: keys of each sequence after this step (cached and new).
        block_tables: pool blocks of each sequence, at least ceil(context_len / block_size) entries.
        block_size: keys in a block.
        device: where the pool lies.
    """

    query_lens: Sequence[int]
    context_lens: Sequence[int]
    block_tables: Sequence[Sequence[int]]
    block_size: int
    device: torch.device

    @cached_property
    def chunks(self) -> list[_Chunk]:
        """Sequences with more than one query row, each attended to on its own."""
        chunks, start = [], 0
        for query_len, context_len, table in zip(self.query_lens, self.context_lens, self.block_tables, strict=True):
            if query_len > 1:
                blocks = torch.tensor(table[: -(-context_len // self.block_size)], device=self.device)
                chunks.append(_Chunk(start, query_len, context_len, blocks))
            start += query_len
        return chunks

    @cached_property
    def decode(self) -> _DecodeRows | None:
        """Sequences with exactly one query row, attended to together over padded block tables."""
        rows, lens, tables, start = [], [], [], 0
        for query_len, context_len, table in zip(self.query_lens, self.context_lens, self.block_tables, strict=True):
            if query_len == 1:
                rows.append(start)
                lens.append(context_len)
                tables.append(table[: -(-context_len // self.block_size)])
            start += query_len
        if not rows:
            return None
        width = max(len(table) for table in tables)
        # Padding repeats the sequence's own first block: always valid memory, and masked out.
        padded = [[*table, *([table[0]] * (width - len(table)))] for table in tables]
        all_rows = len(rows) == len(self.query_lens)
        return _DecodeRows(
            rows=None if all_rows else torch.tensor(rows, device=self.device),
            context_lens=torch.tensor(lens, device=self.device),
            blocks=torch.tensor(padded, device=self.device),
            same_length=len(set(lens)) == 1,
            width=max(lens),
        )


@dataclass(frozen=True)
class _Chunk:
    start: int
    query_len: int
    context_len: int
    blocks: Tensor

    def mask(self, groups: int, window: int | None) -> Tensor:
        """[groups · query_len, context_len] bool: which keys each (grouped) query row sees."""
        positions = torch.arange(self.context_len - self.query_len, self.context_len, device=self.blocks.device)
        return _visible(positions, self.context_len, window).repeat(groups, 1)


@dataclass(frozen=True)
class _DecodeRows:
    rows: Tensor | None
    context_lens: Tensor
    blocks: Tensor
    same_length: bool
    width: int

    def mask(self, window: int | None) -> Tensor | None:
        """[sequences, 1, 1, width] bool, or None where every key is seen."""
        if self.same_length and (window is None or self.width <= window):
            return None
        return _visible(self.context_lens - 1, self.width, window)[:, None, None, :]


def _visible(positions: Tensor, num_keys: int, window: int | None) -> Tensor:
    keys = torch.arange(num_keys, device=positions.device)
    seen = keys[None, :] <= positions[:, None]
    if window is not None:
        seen &= keys[None, :] > positions[:, None] - window
    return seen


def reference(q: Tensor, pool: KVPool, batch: AttentionBatch, scale: float, window: int | None = None) -> Tensor:
    """The formula above, one sequence at a time in float32. Shapes as `PagedAttention.__call__`."""
    k_pool, v_pool = (
        values if scales is None else values.float() * scales[:, None, None]
        for values, scales in ((pool.k, pool.k_scales), (pool.v, pool.v_scales))
    )
    heads, kv_heads = q.shape[1], k_pool.shape[1]
    out, start = torch.empty_like(q), 0
    for query_len, context_len, table in zip(batch.query_lens, batch.context_lens, batch.block_tables, strict=True):
        slots = torch.arange(context_len, device=q.device)
        blocks = torch.tensor(list(table), device=q.device)[slots // batch.block_size]
        k = k_pool[blocks, :, slots % batch.block_size].float().repeat_interleave(heads // kv_heads, dim=1)
        v = v_pool[blocks, :, slots % batch.block_size].float().repeat_interleave(heads // kv_heads, dim=1)
        rows = q[start : start + query_len].float()
        scores = torch.einsum("qhd,khd->hqk", rows, k) * scale
        positions = torch.arange(context_len - query_len, context_len, device=q.device)
        scores = scores.masked_fill(~_visible(positions, context_len, window), float("-inf"))
        out[start : start + query_len] = torch.einsum("hqk,khd->qhd", scores.softmax(-1), v).to(q.dtype)
        start += query_len
    return out


class PagedAttention:
    """Attention for one step: masks are built once and used by every layer.

    With `deterministic`, a row's result depends on its own query and keys only, to the bit: each row is computed alone.
    """

    def __init__(
        self, batch: AttentionBatch, num_heads: int, num_kv_heads: int, scale: float, *, deterministic: bool = False
    ) -> None:
        self.batch = batch
        self.groups = num_heads // num_kv_heads
        self.scale = scale
        self.deterministic = deterministic
        self._chunk_masks: dict[tuple[int, int | None], Tensor] = {}
        self._decode_masks: dict[int | None, Tensor | None] = {}
        self._plan: AttentionPlan | None = None

    @classmethod
    def of_plan(cls, plan: AttentionPlan, num_heads: int, num_kv_heads: int, scale: float) -> PagedAttention:
        """For Triton only: attention over tensors that are on the device already, and may be filled anew (graphs)."""
        attention = cls(AttentionBatch((), (), (), 0, plan.starts.device), num_heads, num_kv_heads, scale)
        attention._plan = plan
        return attention

    def __call__(self, q: Tensor, pool: KVPool, window: int | None = None) -> Tensor:
        """q: [tokens, heads, head_dim]; pool: of one layer. Returns [tokens, heads, head_dim].

        `window` is the layer's sliding window in tokens, None for full attention.
        """
        if uses_triton(q):
            from kernels.gpu.paged_attention import paged_attention

            plan = self._plan = self._plan or self._make_plan(q, pool.k.shape[1])
            return paged_attention(q, pool, plan, self.scale, window)
        if self.deterministic:
            return self._attend_each_row(q, pool, window)
        decode = self.batch.decode
        if decode is not None and decode.rows is None:
            return self._attend_decode(q, pool, decode, window)
        out = torch.empty_like(q)
        if decode is not None:
            out[decode.rows] = self._attend_decode(q[decode.rows], pool, decode, window)
        for index, chunk in enumerate(self.batch.chunks):
            mask = self._chunk_masks.get((index, window))
            if mask is None:
                mask = self._chunk_masks[index, window] = chunk.mask(self.groups, window)
            rows = slice(chunk.start, chunk.start + chunk.query_len)
            out[rows] = self._attend_chunk(q[rows], pool, chunk, mask)
        return out

    def _make_plan(self, q: Tensor, kv_heads: int) -> AttentionPlan:
        """The same for all layers, so it is made by the first."""
        from kernels.gpu.attention_tiles import AttentionTiles, max_items
        from kernels.gpu.paged_attention import block_m, make_plan

        batch = self.batch
        rows = block_m(max(batch.query_lens), self.groups, deterministic=self.deterministic)
        width = max(len(table) for table in batch.block_tables)
        padded = [[*table, *([0] * (width - len(table)))] for table in batch.block_tables]
        tables = to_device(torch.tensor(padded, dtype=torch.int32), q.device)
        most = None if self.deterministic else max_items(kv_heads, rows, q.shape[2])
        tiles = AttentionTiles.of(batch.query_lens, batch.context_lens, rows // self.groups, most)
        return make_plan(tiles, tables, rows, kv_heads, q.shape[2])

    def _attend_chunk(self, q: Tensor, pool: KVPool, chunk: _Chunk, mask: Tensor) -> Tensor:
        k, v = _gather(pool, chunk.blocks, chunk.context_len, q.dtype)
        kv_heads, head_dim = k.shape[0], k.shape[2]
        # Grouped query heads become extra query rows, so keys are neither repeated nor read twice.
        grouped = q.view(chunk.query_len, kv_heads, self.groups, head_dim).permute(1, 2, 0, 3)
        grouped = grouped.reshape(1, kv_heads, self.groups * chunk.query_len, head_dim)
        out = scaled_dot_product_attention(grouped, k[None], v[None], attn_mask=mask, scale=self.scale)
        out = out.view(kv_heads, self.groups, chunk.query_len, head_dim).permute(2, 0, 1, 3)
        return out.reshape(q.shape)

    def _attend_each_row(self, q: Tensor, pool: KVPool, window: int | None) -> Tensor:
        batch, rows, row = self.batch, [], 0
        kv_heads, head_dim = pool.k.shape[1], pool.k.shape[3]
        for query_len, context_len, table in zip(batch.query_lens, batch.context_lens, batch.block_tables, strict=True):
            blocks = torch.tensor(table[: -(-context_len // batch.block_size)], device=q.device)
            keys, values = _gather(pool, blocks, context_len, q.dtype)
            for end in range(context_len - query_len + 1, context_len + 1):
                start = 0 if window is None else max(0, end - window)
                # Copies: the layout of the operands must not depend on how long the sequence is by now either.
                k, v = keys[:, start:end].contiguous(), values[:, start:end].contiguous()
                grouped = q[row].reshape(kv_heads, self.groups, head_dim).clone()
                weights = (torch.matmul(grouped, k.transpose(-1, -2)).float() * self.scale).softmax(-1)
                rows.append(torch.matmul(weights.to(v.dtype), v).view(1, *q.shape[1:]))
                row += 1
        return torch.cat(rows)

    def _attend_decode(self, q: Tensor, pool: KVPool, rows: _DecodeRows, window: int | None) -> Tensor:
        sequences, width = rows.blocks.shape
        kv_heads, block_size, head_dim = pool.k.shape[1:]
        if window not in self._decode_masks:
            self._decode_masks[window] = rows.mask(window)
        mask = self._decode_masks[window]

        def in_order(picked: Tensor) -> Tensor:
            picked = picked.view(sequences, width, kv_heads, block_size, head_dim).permute(0, 2, 1, 3, 4)
            return picked.reshape(sequences, kv_heads, width * block_size, head_dim)[:, :, : rows.width]

        blocks = rows.blocks.view(-1)
        k, v = in_order(pool.gather_k(blocks, q.dtype)), in_order(pool.gather_v(blocks, q.dtype))
        grouped = q.view(sequences, kv_heads, self.groups, head_dim)
        # Two batched products with a float32 softmax beat SDPA at one query row.
        scores = torch.matmul(grouped, k.transpose(-1, -2)).float() * self.scale
        if mask is not None:
            # Slots past a sequence's end may hold anything, NaN included: filled, since 0 · NaN would still be NaN.
            scores = scores.masked_fill_(~mask, float("-inf"))
            v = v.masked_fill(~mask.transpose(-1, -2), 0.0)
        weights = scores.softmax(-1).to(v.dtype)
        return torch.matmul(weights, v).view(q.shape)


def _gather(pool: KVPool, blocks: Tensor, context_len: int, dtype: torch.dtype) -> tuple[Tensor, Tensor]:
    """Keys and values of the given blocks, each [kv_heads, context_len, head_dim]."""
    num_blocks, (kv_heads, block_size, head_dim) = len(blocks), pool.k.shape[1:]

    def in_order(picked: Tensor) -> Tensor:
        return picked.permute(1, 0, 2, 3).reshape(kv_heads, num_blocks * block_size, head_dim)[:, :context_len]

    return in_order(pool.gather_k(blocks, dtype)), in_order(pool.gather_v(blocks, dtype))
