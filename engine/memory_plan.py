"""What a model takes of a machine's memory: weights, keys and values, activations, overhead; and how much fits.

Everything follows from shapes, the configuration and the memory that is available now, so that a model or a context
that cannot fit is refused before a tensor is read.
"""

from __future__ import annotations

import math
from collections.abc import Iterable
from dataclasses import dataclass, replace

import torch

from engine.config import EngineConfig
from engine.errors import InsufficientMemoryError, InvalidParameterError
from engine.packed_weights import packed_shape
from engine.quantized_linear import INT4
from engine.step_memory import PACKED, StepMemory, StepSize, itemsize_of, step_memory, step_size
from engine.weights import Checkpoint

# Keys and values on a CPU, where nobody says how much: at most this much, and at most a quarter of what fits.
CPU_KV_BYTES = 1 << 30
CPU_KV_LEAST_BYTES = 64 << 20
CPU_KV_SHARE = 0.25
GPU_KV_SHARE = 0.85
# Kept free for what is not counted below: compiled code, buffers of the libraries, the tokenizer, grammars, requests;
# on a GPU the libraries' workspaces and what its allocator cannot use.
CPU_OVERHEAD_BYTES = 256 << 20
GPU_OVERHEAD_BYTES = 1 << 30
# A block's place in the pool's lists and in the prefix index, in Python objects.
BLOCK_OVERHEAD_BYTES = 512

_FUSED = ("q_proj.weight", "k_proj.weight", "v_proj.weight", "gate_proj.weight", "up_proj.weight")


def weight_bytes(checkpoint: Checkpoint, weight_format: str, *, halved: bool = False) -> int:
    """Bytes of all tensors in a format: "packed" (4 and 8 bits), or a torch dtype's name.

    `halved`: with a bfloat16 copy of every matrix, as `engine.linear.Linear` keeps it for steps of few rows.
    """
    if weight_format == PACKED:
        return sum(_packed_bytes(checkpoint, name) for name in checkpoint.shapes)
    if weight_format == INT4 and checkpoint.int4_group is not None:
        return sum(_int4_bytes(checkpoint, name) for name in checkpoint.shapes)
    total = checkpoint.num_parameters * itemsize_of(weight_format)
    if not halved:
        return total
    copied = sum(math.prod(shape) for shape in checkpoint.shapes.values() if len(shape) == 2)
    if not checkpoint.config.tie_embeddings:  # the embedding is looked up in, not multiplied by
        copied -= math.prod(checkpoint.shapes["model.embed_tokens.weight"])
    return total + 2 * copied


def _packed_bytes(checkpoint: Checkpoint, name: str) -> int:
    shape = checkpoint.shapes[name]
    if len(shape) == 1:
        return 4 * shape[0]
    return math.prod(packed_shape(shape, is_int4=name in checkpoint.int4_names))


def _int4_bytes(checkpoint: Checkpoint, name: str) -> int:
    """Of a tensor of a checkpoint whose 4 bits are kept: codes, with a scale and a zero for each group."""
    size = math.prod(checkpoint.shapes[name])
    if name not in checkpoint.int4_stored:
        return itemsize_of(INT4) * size
    assert checkpoint.int4_group is not None, "4 bits are stored in groups"
    return size // 2 + 4 * (size // checkpoint.int4_group)


def _loading_bytes(checkpoint: Checkpoint, weight_format: str) -> int:
    """Bytes beside the weights while they are loaded, given back before the KV pool is made."""
    largest = max(math.prod(shape) for shape in checkpoint.shapes.values())
    if weight_format == PACKED:
        # One matrix as floats, its codes and their order; then all packed bytes once more, to be kept beside the model.
        return 0 if checkpoint.packed_is_kept else max(weight_bytes(checkpoint, PACKED), 12 * largest)
    if weight_format == INT4 and checkpoint.int4_group is not None:
        return weight_bytes(checkpoint, INT4) // 2 + 4 * largest
    # Matrices that one product shares are copied into one; and one tensor is float32 while it is converted.
    fused = sum(math.prod(shape) for name, shape in checkpoint.shapes.items() if name.endswith(_FUSED))
    return fused * itemsize_of(weight_format) + 4 * largest


@dataclass(frozen=True)
class MemoryPlan:
    """One model (and its draft model) on one machine; all in bytes.

    `num_blocks` is the KV pool that an engine makes; `fitting_blocks` the largest one that the machine could hold.

    Attributes:
        loading_bytes: what loading takes beside the weights and gives back before the pool is made.
        fixed_context: whether `max_model_len` was asked for, so that the pool has to hold a sequence of that length;
            otherwise it is the model's own limit, which a small pool lowers.
    """

    model: str
    device: str
    weight_format: str
    available_bytes: int
    weight_bytes: int
    draft_weight_bytes: int
    loading_bytes: int
    overhead_bytes: int
    step: StepMemory
    kv_bytes_per_token: int
    block_size: int
    max_model_len: int
    size: StepSize
    fixed_context: bool
    num_blocks: int = 0

    @classmethod
    def of(
        cls,
        engine: EngineConfig,
        device: torch.device,
        available: int,
        checkpoint: Checkpoint,
        weight_format: str,
        draft: tuple[Checkpoint, str] | None = None,
    ) -> MemoryPlan:
        """The plan for a checkpoint in the format it will be served in, with `available` bytes of memory.

        Raises:
            InvalidParameterError: `kv_memory_bytes` holds fewer than the two blocks that are needed, or the format of
                weights does not go with `kv_cache_dtype`.
        """
        models = [(checkpoint, weight_format, engine.dtype == "auto" and not engine.deterministic)]
        models += [(*draft, True)] if draft is not None else []
        weights = [weight_bytes(*model[:2], halved=_is_halved(device, *model[1:])) for model in models]
        if engine.kv_cache_dtype == "fp8" and weight_format == PACKED:
            raise InvalidParameterError(
                "kv_cache_dtype",
                '"fp8" does not go with weights packed for CPUs, whose keys and values are float16: leave it "auto", '
                'or choose dtype "float32" or "bfloat16"',
            )
        limit = checkpoint.config.max_position
        max_model_len = min(engine.max_model_len or limit, limit)
        shapes = [(model.config, kind) for model, kind, _ in models]
        size = step_size(engine, device, available, shapes, max_model_len)
        rope_bytes = sum(4 * max_model_len * model.config.head_dim for model, *_ in models)
        plan = cls(
            model=checkpoint.name,
            device=str(device),
            weight_format=weight_format,
            available_bytes=available,
            weight_bytes=weights[0],
            draft_weight_bytes=sum(weights[1:]),
            # One after the other, so the second's comes on top of the first's weights only.
            loading_bytes=max(_loading_bytes(*model[:2]) for model in models),
            overhead_bytes=(GPU_OVERHEAD_BYTES if device.type == "cuda" else CPU_OVERHEAD_BYTES) + rope_bytes,
            step=_sum(step_memory(*shape, size, device) for shape in shapes),
            kv_bytes_per_token=sum(
                config.kv_bytes_per_token(_kv_itemsize(kind, engine.kv_cache_dtype if index == 0 else "auto"))
                for index, (config, kind) in enumerate(shapes)
            ),
            block_size=engine.block_size,
            max_model_len=max_model_len,
            size=size,
            fixed_context=engine.max_model_len is not None,
        )
        return replace(plan, num_blocks=plan._pool_size(engine))

    @property
    def block_bytes(self) -> int:
        return self.kv_bytes_per_token * self.block_size

    @property
    def blocks_of_context(self) -> int:
        """Blocks of one sequence of `max_model_len` tokens."""
        return -(-self.max_model_len // self.block_size)

    @property
    def fitting_blocks(self) -> int:
        """Blocks of the largest pool with which everything fits; 0 if nothing does."""
        low, high = 0, max(0, self.available_bytes // (self.block_bytes + BLOCK_OVERHEAD_BYTES))
        while low < high:
            middle = (low + high + 1) // 2
            low, high = (middle, high) if self.needed_bytes(middle) <= self.available_bytes else (low, middle - 1)
        return low

    @property
    def fitting_tokens(self) -> int:
        return self.fitting_blocks * self.block_size

    def fitting_sequences(self, num_tokens: int) -> int:
        """How many sequences of so many tokens the largest pool holds."""
        return self.fitting_blocks // -(-num_tokens // self.block_size)

    def activation_bytes(self, num_blocks: int) -> int:
        """Of the largest step that a pool of so many blocks allows."""
        return self.step.at(min(self.max_model_len, num_blocks * self.block_size))

    def needed_bytes(self, num_blocks: int) -> int:
        """Memory with a pool of so many blocks: while it is loaded or while it runs, whichever is more."""
        weights = self.weight_bytes + self.draft_weight_bytes + self.overhead_bytes
        running = self.activation_bytes(num_blocks) + num_blocks * (self.block_bytes + BLOCK_OVERHEAD_BYTES)
        return weights + max(self.loading_bytes, running)

    def parts(self, num_blocks: int) -> list[tuple[str, int]]:
        """What `needed_bytes` adds up, each in words and bytes."""
        tokens = num_blocks * self.block_size
        context = min(self.max_model_len, tokens)
        parts = [(f"weights, {self.weight_format}", self.weight_bytes)]
        if self.draft_weight_bytes:
            parts.append(("weights of the draft model", self.draft_weight_bytes))
        parts.append(("overhead: code, buffers of libraries, tables of positions", self.overhead_bytes))
        running = self.activation_bytes(num_blocks) + num_blocks * (self.block_bytes + BLOCK_OVERHEAD_BYTES)
        if self.loading_bytes > running:
            return [*parts, ("copies while loading (more than a step and the keys and values)", self.loading_bytes)]
        return [
            *parts,
            (
                f"activations: {self.size.max_num_batched_tokens:,} tokens a step, {self.size.max_num_seqs:,} "
                f"sequences, the longest of {context:,} tokens",
                self.activation_bytes(num_blocks),
            ),
            (
                f"keys and values: {tokens:,} tokens × {self.kv_bytes_per_token:,} bytes",
                num_blocks * self.block_bytes,
            ),
            (f"lists of {num_blocks:,} blocks × {BLOCK_OVERHEAD_BYTES:,} bytes", num_blocks * BLOCK_OVERHEAD_BYTES),
        ]

    def check(self) -> None:
        """Raises InsufficientMemoryError, with the arithmetic, if the engine's pool does not fit beside the rest."""
        needed = self.needed_bytes(self.num_blocks)
        if needed > self.available_bytes:
            raise InsufficientMemoryError(self.model, self.parts(self.num_blocks), needed, self.available_bytes)

    def _pool_size(self, engine: EngineConfig) -> int:
        if engine.num_kv_blocks is not None:
            return engine.num_kv_blocks
        # More than every sequence at full length can never be used; two are needed for anything to run.
        useful = max(2, self.size.max_num_seqs * self.blocks_of_context)
        if engine.kv_memory_bytes is not None:
            num_blocks = min(engine.kv_memory_bytes // self.block_bytes, useful)
            if num_blocks < 2:
                raise InvalidParameterError(
                    "kv_memory_bytes",
                    f"{engine.kv_memory_bytes:,} bytes hold {num_blocks} blocks; one block of {self.block_size} tokens "
                    f"takes {self.block_bytes:,} bytes, and at least 2 are needed",
                )
            return num_blocks
        fitting = self.fitting_blocks * self.block_bytes
        if self.device.startswith("cuda"):
            memory = int(fitting * GPU_KV_SHARE)
        else:
            memory = min(CPU_KV_BYTES, max(int(fitting * CPU_KV_SHARE), CPU_KV_LEAST_BYTES), fitting)
        least = self.blocks_of_context if self.fixed_context else 2
        return min(max(memory // self.block_bytes, least), useful)


def _kv_itemsize(weight_format: str, kv_cache_dtype: str) -> int:
    if kv_cache_dtype == "fp8":
        return 1
    return 2 if weight_format == PACKED else itemsize_of(weight_format)


def _is_halved(device: torch.device, weight_format: str, wanted: bool) -> bool:
    return wanted and device.type == "cpu" and weight_format == "float32"


def _sum(steps: Iterable[StepMemory]) -> StepMemory:
    total = StepMemory(0, 0)
    for step in steps:
        total += step
    return total
