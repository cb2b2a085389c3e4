"""Steps of few rows replayed as CUDA graphs: one graph a bucket of tokens, for decode and for verification.

A step is padded to the next bucket. Its inputs go into buffers that never move: the graph reads them, whatever they
hold by then. Rows behind the step's own are sequences of one token that attend to one key of a block nobody owns, and
store nothing (slot −1), so that they are ordinary rows with ordinary numbers. The step before may still run: what is
brought over takes its place behind it in the stream, and the host's buffers are written anew once they were read.

    token:     0 … n−1 the step's          n … bucket−1 padding
    sequence:  0 … s−1 the step's          one for each token of padding, context 1, in the dummy block

Knows nothing of requests. Recording is a callable, so that all but the recording itself runs without a GPU.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch import Tensor

from engine.step_batch import StepBatch

log = logging.getLogger(__name__)

Run = Callable[[], Tensor]
# Makes of a function over fixed tensors one that repeats its kernels, and returns the same output tensor.
Record = Callable[[Run], Run]


def buckets_up_to(most: int) -> list[int]:
    """1, 2, 4, 8, 16, 24, … and `most`: fine enough that padding costs little."""
    return sorted({size for size in (1, 2, 4, *range(8, most, 8), most) if size <= most})


class CudaRecorder:
    """Records with `torch.cuda.graph`; all graphs share one pool of memory, since only one runs at a time."""

    def __init__(self) -> None:
        self._pool: Any = None
        self._stream = torch.cuda.Stream()  # type: ignore[no-untyped-call]

    def __call__(self, run: Run) -> Run:
        self._stream.wait_stream(torch.cuda.current_stream())
        with torch.cuda.stream(self._stream):
            run()  # what is compiled or allocated on first use must not be recorded
        torch.cuda.current_stream().wait_stream(self._stream)
        graph = torch.cuda.CUDAGraph()
        # Of this thread only: what others do meanwhile (an index, an embedding model) must not end the recording.
        with torch.cuda.graph(graph, pool=self._pool, stream=self._stream, capture_error_mode="thread_local"):
            out = run()
        self._pool = self._pool or graph.pool()

        def replay() -> Tensor:
            graph.replay()
            return out

        return replay


@dataclass(frozen=True)
class GraphInputs:
    """The tensors that a recorded step reads, all int32, at their full size; graphs take the first rows of them.

    Attributes:
        token_ids, positions, slots: [tokens].
        starts: [sequences + 1]; context_lens: [sequences]; tiles: [tiles, 4]; items: [items, 2]; counts: [2]: see
            `kernels.gpu.paged_attention.AttentionPlan`.
        block_tables: [sequences, blocks of the longest context].
    """

    token_ids: Tensor
    positions: Tensor
    slots: Tensor
    starts: Tensor
    context_lens: Tensor
    tiles: Tensor
    items: Tensor
    counts: Tensor
    block_tables: Tensor


class StepGraphs:
    """Graphs of a decoder for steps of up to `max_tokens` tokens and `max_query_len` tokens a sequence.

    Args:
        run_layers: computes the final hidden states [tokens, hidden] from inputs as they lie in the buffers; given the
            inputs (cut to a bucket), and the rows × heads of an attention tile.
        max_items: items (tiles × splits) that a step may have; where there were more, splits get longer.
        groups: query heads of a key/value head.
        dummy_block: a block of the pool that belongs to nobody and holds finite numbers.
    """

    def __init__(
        self,
        run_layers: Callable[[GraphInputs, int], Tensor],
        record: Record,
        device: torch.device,
        *,
        max_tokens: int,
        max_query_len: int,
        max_context_len: int,
        max_items: int,
        block_size: int,
        groups: int,
        dummy_block: int,
    ) -> None:
        from kernels.gpu.paged_attention import block_m

        self.device = device
        self.block_size = block_size
        self.dummy_block = dummy_block
        self.max_items = max(max_items, max_tokens)
        self.num_replays = 0
        self._block_m = {query_len: block_m(query_len, groups, deterministic=False) for query_len in {1, max_query_len}}
        self._groups = groups
        width = -(-max_context_len // block_size)
        self._sizes = {
            "token_ids": max_tokens,
            "positions": max_tokens,
            "slots": max_tokens,
            "starts": max_tokens + 1,
            "context_lens": max_tokens,
            "tiles": 4 * max_tokens,
            "items": 2 * self.max_items,
            "counts": 2,
        }
        total = sum(self._sizes.values())
        pinned = device.type == "cuda"
        # One buffer on either side, so that a step costs one copy; the other for block tables, of which only the width
        # in use is copied.
        self._host = torch.zeros(total, dtype=torch.int32, pin_memory=pinned)
        self._host_tables = torch.zeros(max_tokens * width, dtype=torch.int32, pin_memory=pinned)
        self._copied = torch.cuda.Event() if pinned else None  # type: ignore[no-untyped-call]
        self._width = 0
        self._written: dict[int, list[int]] = {}
        self._on_device = torch.zeros(total, dtype=torch.int32, device=device)
        self._staged_tables = torch.zeros(max_tokens * width, dtype=torch.int32, device=device)
        sizes = list(self._sizes.values())
        parts = dict(zip(self._sizes, torch.split(self._on_device, sizes), strict=True))
        self._views = dict(zip(self._sizes, torch.split(self._host, sizes), strict=True))
        self.inputs = GraphInputs(
            **{**parts, "tiles": parts["tiles"].view(-1, 4), "items": parts["items"].view(-1, 2)},
            block_tables=torch.zeros((max_tokens, width), dtype=torch.int32, device=device),
        )
        self.buckets = buckets_up_to(max_tokens)
        self._replays: dict[tuple[int, int], Run] = {}
        # The largest first: the smaller ones then fit into the memory it has taken.
        for query_len in sorted(self._block_m, reverse=True):
            for bucket in reversed(self.buckets):
                self._fill(StepBatch(block_size), bucket, self._block_m[query_len])
                self._replays[query_len, bucket] = record(self._runner(run_layers, bucket, self._block_m[query_len]))
        log.info("steps recorded: buckets=%s query_lens=%s", self.buckets, sorted(self._block_m))

    def _runner(self, run_layers: Callable[[GraphInputs, int], Tensor], bucket: int, block_m: int) -> Run:
        whole = self.inputs
        inputs = GraphInputs(
            whole.token_ids[:bucket],
            whole.positions[:bucket],
            whole.slots[:bucket],
            whole.starts[: bucket + 1],
            whole.context_lens[:bucket],
            whole.tiles[:bucket],
            whole.items,
            whole.counts,
            whole.block_tables[:bucket],
        )
        return lambda: run_layers(inputs, block_m)

    def replay(self, batch: StepBatch) -> Tensor | None:
        """Final hidden states [tokens, hidden] of a step; None if no graph serves it.

        The tensor is overwritten by the next replay.
        """
        num_tokens = len(batch.token_ids)
        if num_tokens > self.buckets[-1]:
            return None
        query_len = next((most for most in sorted(self._block_m) if max(batch.query_lens) <= most), None)
        if query_len is None:
            return None
        bucket = next(size for size in self.buckets if size >= num_tokens)
        self._fill(batch, bucket, self._block_m[query_len])
        self.num_replays += 1
        return self._replays[query_len, bucket]()[:num_tokens]

    def _fill(self, batch: StepBatch, bucket: int, block_m: int) -> None:
        """Bring a step, padded to `bucket` tokens, into the buffers."""
        from kernels.gpu.attention_tiles import AttentionTiles

        if self._copied is not None:
            # A step that nothing was sampled from may still be on its way: the host's buffers are its source.
            self._copied.synchronize()
        padding = bucket - len(batch.token_ids)
        query_lens, context_lens = [*batch.query_lens, *[1] * padding], [*batch.context_lens, *[1] * padding]
        tiles = AttentionTiles.of(query_lens, context_lens, block_m // self._groups, self.max_items)
        self._write("token_ids", batch.token_ids, 0)
        self._write("positions", batch.positions, 0)
        self._write("slots", batch.slots, -1)
        # Sequences and tiles that the step has not: never looked at, since no item names them.
        self._write("starts", tiles.starts, bucket)
        self._write("context_lens", tiles.context_lens, 1)
        self._write("tiles", tiles.tiles.reshape(-1), 0)
        self._write("items", tiles.items.reshape(-1), 0)
        self._write("counts", [len(tiles.items), tiles.split], 0)
        self._on_device.copy_(self._host, non_blocking=True)
        batch.complete_ids(self.inputs.token_ids)
        self._fill_tables([*batch.block_tables, *[[self.dummy_block]] * padding], context_lens)
        if self._copied is not None:
            self._copied.record()

    def _fill_tables(self, tables: Sequence[list[int]], context_lens: Sequence[int]) -> None:
        """Bring block tables over, as wide as the longest in use; on the host only rows that changed are written."""
        used = [-(-context_len // self.block_size) for context_len in context_lens]
        # In powers of two: where a row begins depends on the width.
        width = min(1 << (max(used) - 1).bit_length(), self.inputs.block_tables.shape[1])
        if width != self._width:
            self._width, self._written = width, {}
        host = self._host_tables[: len(tables) * width].view(-1, width)
        array = host.numpy()
        for row, (table, count) in enumerate(zip(tables, used, strict=True)):
            blocks = table[:count]
            if self._written.get(row) != blocks:
                array[row, :count] = self._written[row] = blocks
        staged = self._staged_tables[: len(tables) * width].view(-1, width)
        staged.copy_(host, non_blocking=True)
        self.inputs.block_tables[: len(tables), :width].copy_(staged)

    def _write(
        self, name: str, values: Sequence[int] | np.ndarray[tuple[int, ...], np.dtype[np.int32]], rest: int
    ) -> None:
        array = self._views[name].numpy()
        array[: len(values)] = values
        array[len(values) :] = rest
