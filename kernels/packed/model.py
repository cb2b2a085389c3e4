"""Packed weights laid out for `kernels.packed.step`, the team that runs it, and the buffers between its phases."""

from __future__ import annotations

import os
import threading
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar

import numpy as np
import torch
from numpy.typing import NDArray

from kernels.packed import layout
from kernels.packed.compiled import compiled
from kernels.packed.formats import INT4, INT4_BLOCK_BYTES, INT8, Bytes
from kernels.packed.layout import SCRATCH_BYTES, SHARED_WORDS, SPLIT

Floats = NDArray[np.float32]
Ids = NDArray[np.int64]

# Multiplications after which a step comes back to Python, to be broken off or to show that it lives: a few tens of
# milliseconds of a small machine.
WORK_IN_ONE_GO = 1 << 30
# More threads than this wait for each other longer than they work.
MAX_THREADS = 32
BLOCK_SIZE = 16


@dataclass(frozen=True)
class PackedLayer:
    """Weights of one layer: packed products (each the parts of one fused product) and float32 vectors."""

    input_norm: Floats
    post_norm: Floats
    qkv: Sequence[Bytes]
    output: Sequence[Bytes]
    gate_up: Sequence[Bytes]
    down: Sequence[Bytes]
    qkv_bias: Floats | None = None
    q_norm: Floats | None = None
    k_norm: Floats | None = None
    window: int | None = None


@dataclass(frozen=True)
class PackedShape:
    """Sizes of a decoder whose every width is a multiple of 32 and whose head_dim is one too."""

    hidden: int
    inner: int
    heads: int
    kv_heads: int
    head_dim: int
    vocab: int
    eps: float
    scale: float


@dataclass
class Sequences:
    """The sequences of a step, side by side: new tokens of each, keys each will have, and their blocks."""

    query_lens: Ids
    context_lens: Ids
    tables: list[Ids]


class Team:
    """Threads that run compiled steps together with whoever calls `run`."""

    _shared_team: ClassVar[Team | None] = None

    @classmethod
    def shared(cls) -> Team:
        """The process's team, of as many threads as torch uses: models take turns, since two teams would fight for the
        same cores."""
        if cls._shared_team is None:
            cls._shared_team = cls(min(torch.get_num_threads(), MAX_THREADS))
        return cls._shared_team

    def __init__(self, num_threads: int) -> None:
        self._turn = threading.Lock()
        self._kernels = compiled()
        self.num_threads = num_threads
        self._shared = np.zeros(SHARED_WORDS + 8, dtype=np.int64)
        self._address = -(-self._shared.ctypes.data // 64) * 64
        self._words = self._shared[(self._address - self._shared.ctypes.data) // 8 :]
        self._job = np.zeros(1, dtype=np.int64)
        self._scratch = np.zeros(64 * num_threads, dtype=np.uint8)
        self._read_end, self._write_end = os.pipe()
        self._helpers = [
            threading.Thread(target=self._help, args=(thread,), name=f"ragstone-kernel-{thread}", daemon=True)
            for thread in range(1, num_threads)
        ]
        for helper in self._helpers:
            helper.start()

    def run(self, job: NDArray[np.int64]) -> None:
        """Run one job on all threads; returns when it is done."""
        with self._turn:
            self._job[0] = job.ctypes.data
            self._wake()
            self._kernels.work(self._address, self._job.ctypes.data, 0, 0, 0)

    def _wake(self) -> None:
        if self._helpers and (parked := self._kernels.start_job(self._address)):
            os.write(self._write_end, b"\0" * parked)

    def _help(self, thread: int) -> None:
        scratch = self._scratch.ctypes.data + 64 * thread
        self._kernels.work(self._address, self._job.ctypes.data, thread, self._read_end, scratch)


class PackedModel:
    """A decoder over packed weights: token ids in, logits out, keys and values in pools of blocks of 16."""

    def __init__(
        self,
        shape: PackedShape,
        embedding: Bytes,
        layers: Sequence[PackedLayer],
        final_norm: Floats,
        head: Bytes,
        cos: Floats,
        sin: Floats,
        team: Team,
    ) -> None:
        """cos, sin: [positions, head_dim / 2]; embedding, head: packed [vocab, hidden], the same array where tied."""
        self.shape = shape
        self.team = team
        attention = (2 * shape.heads + 2 * shape.kv_heads) * shape.head_dim
        self._layer_weights = shape.hidden * (attention + 3 * shape.inner)
        self._keep: list[Any] = [embedding, final_norm, head, cos, sin]
        self._layers = np.zeros((len(layers), layout.LAYER_WORDS_COUNT), dtype=np.int64)
        windows = [layer.window or 0 for layer in layers]
        # Splits that no layer looks at are not computed.
        self._window = max(windows) if min(windows) > 0 else 0
        for words, layer in zip(self._layers, layers, strict=True):
            self._fill_layer(words, layer)
        self._job = np.zeros(layout.JOB_WORDS, dtype=np.int64)
        for word, value in (
            (layout.NUM_THREADS, team.num_threads),
            (layout.NUM_LAYERS, len(layers)),
            (layout.QUADS, 4),
            (layout.LAYERS, self._layers.ctypes.data),
            (layout.HIDDEN, shape.hidden),
            (layout.HEADS, shape.heads),
            (layout.KV_HEADS, shape.kv_heads),
            (layout.HEAD_DIM, shape.head_dim),
            (layout.INNER, shape.inner),
            (layout.EMBEDDING, embedding.ctypes.data),
            (layout.EMBEDDING_KIND, _kind(embedding)),
            (layout.FINAL_NORM, final_norm.ctypes.data),
            (layout.HEAD, self._product([head])),
            (layout.COS, cos.ctypes.data),
            (layout.SIN, sin.ctypes.data),
        ):
            self._job[word] = value
        floats = self._job.view(np.float32)
        floats[layout.EPS * 2], floats[layout.SCALE * 2] = shape.eps, shape.scale
        self._head_rows = head.shape[0] * 16
        self._logits = np.empty(0, dtype=np.float32)
        self._capacity = self._partials_capacity = self._logits_capacity = 0
        self._units = np.zeros((64, layout.UNIT_WORDS), dtype=np.int64)
        scratch = np.zeros(team.num_threads * SCRATCH_BYTES, dtype=np.uint8)
        merged = np.zeros(team.num_threads * shape.heads * shape.head_dim, dtype=np.float32)
        gate_up = np.zeros(team.num_threads * layout.GATE_UP_ROWS * 64, dtype=np.float32)
        for word, buffer in (
            (layout.ATTENTION_SCRATCH, scratch),
            (layout.MERGED, merged),
            (layout.GATE_UP, gate_up),
        ):
            self._keep.append(buffer)
            self._job[word] = buffer.ctypes.data

    def allocate(self, num_blocks: int) -> None:
        """Make each layer's pools of keys and values; their pages are mapped when first written.

        Keys: [num_blocks, kv_heads, head_dim, 16]; values: [num_blocks, kv_heads, 16, head_dim]; where the CPU has
        dot products of bfloat16, numbers are of that type and pairs of dimensions (of keys) or of slots (of values)
        lie together: [.., head_dim / 2, 16, 2] and [.., 8, head_dim, 2].
        """
        shape = self.shape
        pools = [
            (
                np.zeros((num_blocks, shape.kv_heads, shape.head_dim, BLOCK_SIZE), dtype=np.float16),
                np.zeros((num_blocks, shape.kv_heads, BLOCK_SIZE, shape.head_dim), dtype=np.float16),
            )
            for _ in range(len(self._layers))
        ]
        for words, (keys, values) in zip(self._layers, pools, strict=True):
            words[layout.K_POOL], words[layout.V_POOL] = keys.ctypes.data, values.ctypes.data
        self._pools = pools

    def forward(
        self,
        token_ids: Ids,
        positions: Ids,
        slots: Ids,
        sequences: Sequences,
        rows: Ids,
        check: Callable[[], None] | None = None,
    ) -> Floats:
        """Logits [rows, vocab] float32 of the given rows after computing all tokens of the step.

        token_ids, positions, slots: [tokens]; rows: [rows] indices into the tokens, each once. `check` is called
        every WORK_IN_ONE_GO multiplications and may raise to break the step off.
        """
        num_rows, num_logits = len(token_ids), len(rows)
        self._reserve(num_rows, num_logits, int(sequences.context_lens.max()))
        job, num_layers = self._job, len(self._layers)
        for word, value in (
            (layout.NUM_ROWS, num_rows),
            (layout.NUM_UNITS, self._plan(sequences)),
            (layout.UNITS, self._units.ctypes.data),
            (layout.TOKENS, token_ids.ctypes.data),
            (layout.POSITIONS, positions.ctypes.data),
            (layout.SLOTS, slots.ctypes.data),
            (layout.LOGIT_ROWS, rows.ctypes.data),
        ):
            job[word] = value
        stride = min(num_layers, max(1, WORK_IN_ONE_GO // (num_rows * self._layer_weights)))
        for first in range(0, num_layers, stride):
            if check is not None:
                check()
            last = min(num_layers, first + stride)
            job[layout.FIRST_LAYER], job[layout.LAST_LAYER] = first, last
            job[layout.NUM_LOGITS] = num_logits if last == num_layers else 0
            self.team.run(job)
        return (
            self._logits[: num_logits * self._head_rows]
            .reshape(num_logits, self._head_rows)[:, : self.shape.vocab]
            .copy()
        )

    def _plan(self, sequences: Sequences) -> int:
        addresses = np.array([table.ctypes.data for table in sequences.tables], dtype=np.int64)
        while True:
            count = compiled().plan_units(
                sequences.query_lens.ctypes.data,
                sequences.context_lens.ctypes.data,
                addresses.ctypes.data,
                len(addresses),
                self.shape.kv_heads,
                self._window,
                self._units.ctypes.data,
                len(self._units),
            )
            if count <= len(self._units):
                return count
            self._units = np.zeros((2 * count, layout.UNIT_WORDS), dtype=np.int64)

    def _reserve(self, num_rows: int, num_logits: int, context_len: int) -> None:
        """Grow the buffers to what this step needs."""
        shape = self.shape
        splits = -(-context_len // SPLIT)
        self._job[layout.NUM_SPLITS] = splits
        if num_rows > self._capacity:
            self._capacity = num_rows
            widest = max(shape.hidden, shape.heads * shape.head_dim)
            buffers: dict[int, NDArray[Any]] = {
                layout.RESIDUAL: np.empty(num_rows * shape.hidden, dtype=np.float32),
                layout.DELTA: np.empty(num_rows * shape.hidden, dtype=np.float32),
                layout.QKV: np.empty(num_rows * (shape.heads + 2 * shape.kv_heads) * shape.head_dim, dtype=np.float32),
                layout.CODES: np.empty(num_rows * widest, dtype=np.int8),
                layout.SUMS: np.empty(num_rows * widest // 16, dtype=np.float32),
                layout.INNER_CODES: np.empty(num_rows * shape.inner, dtype=np.int8),
                layout.INNER_SUMS: np.empty(num_rows * shape.inner // 16, dtype=np.float32),
            }
            self._buffers = buffers
            for word, buffer in buffers.items():
                self._job[word] = buffer.ctypes.data
        partials = num_rows * shape.heads * splits * (shape.head_dim + 16)
        if partials > self._partials_capacity:
            self._partials_capacity = partials
            self._partials = np.empty(partials, dtype=np.float32)
            self._job[layout.PARTIALS] = self._partials.ctypes.data
        if num_logits > self._logits_capacity:
            self._logits_capacity = num_logits
            self._logits = np.empty(num_logits * self._head_rows, dtype=np.float32)
            self._job[layout.LOGITS] = self._logits.ctypes.data

    def _fill_layer(self, words: Ids, layer: PackedLayer) -> None:
        vectors: tuple[tuple[int, Floats | None], ...] = (
            (layout.INPUT_NORM, layer.input_norm),
            (layout.POST_NORM, layer.post_norm),
            (layout.Q_NORM, layer.q_norm),
            (layout.K_NORM, layer.k_norm),
            (layout.QKV_BIAS, layer.qkv_bias),
        )
        for word, vector in vectors:
            if vector is not None:
                self._keep.append(vector)
                words[word] = vector.ctypes.data
        words[layout.WINDOW] = layer.window or 0
        products: tuple[tuple[int, Sequence[Bytes]], ...] = (
            (layout.QKV_PRODUCT, layer.qkv),
            (layout.OUTPUT_PRODUCT, layer.output),
            (layout.GATE_UP_PRODUCT, layer.gate_up),
            (layout.DOWN_PRODUCT, layer.down),
        )
        for word, parts in products:
            words[word] = self._product(parts)

    def _product(self, parts: Sequence[Bytes]) -> int:
        words = np.zeros(layout.PRODUCT_WORDS, dtype=np.int64)
        for index, part in enumerate(parts):
            words[index * 3 : index * 3 + 3] = part.ctypes.data, _kind(part), part.shape[0]
        self._keep += [words, *parts]
        return words.ctypes.data


def _kind(packed: Bytes) -> int:
    return INT4 if packed.shape[2] == INT4_BLOCK_BYTES else INT8
