"""What `ragstone models show` says of a model: its shape, its weights by format, and what of it fits this machine.

The arithmetic is the engine's (`engine.memory_plan`), the same by which it sizes its KV pool and refuses to load.
"""

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from app.engines.in_process import engine_config
from app.errors import ModelError
from app.settings import Settings
from engine.available_memory import available_bytes
from engine.errors import EngineError
from engine.memory_plan import MemoryPlan, weight_bytes
from engine.model_runner import pick_device
from engine.packed_weights import why_not_packed
from engine.step_decoder import pick_format
from engine.step_memory import PACKED
from engine.weights import Checkpoint, open_checkpoint

# Sequences are counted at the whole context and at these lengths.
SEQUENCE_LENGTHS = (1024, 4096)


@dataclass(frozen=True)
class ModelSheet:
    """A model's shape and sizes, and its plan on this machine."""

    name: str
    path: Path
    checkpoint: Checkpoint
    plan: MemoryPlan
    formats: dict[str, int]
    why_not_packed: str | None

    @property
    def sequence_lengths(self) -> list[int]:
        """Lengths, in tokens, for which the sheet says how many sequences fit."""
        longest = self.plan.max_model_len
        return [length for length in SEQUENCE_LENGTHS if length < longest] + [longest]

    def as_json(self) -> dict[str, Any]:
        """All figures; sizes in bytes."""
        config, plan = self.checkpoint.config, self.plan
        return {
            "name": self.name,
            "path": str(self.path),
            "architecture": config.architecture,
            "num_parameters": self.checkpoint.num_parameters,
            "num_layers": config.num_layers,
            "num_heads": config.num_heads,
            "num_kv_heads": config.num_kv_heads,
            "head_dim": config.head_dim,
            "vocab_size": config.vocab_size,
            "context": config.max_position,
            "kv_bytes_per_token": plan.kv_bytes_per_token,
            "stored_types": list(self.checkpoint.stored_types),
            "weight_bytes": self.formats,
            "served": {
                "device": plan.device,
                "weight_format": plan.weight_format,
                "max_model_len": plan.max_model_len,
                "max_num_seqs": plan.size.max_num_seqs,
                "max_num_batched_tokens": plan.size.max_num_batched_tokens,
                "num_kv_blocks": plan.num_blocks,
                "kv_tokens": plan.num_blocks * plan.block_size,
                "needed_bytes": plan.needed_bytes(plan.num_blocks),
                "fits": plan.needed_bytes(plan.num_blocks) <= plan.available_bytes,
            },
            "largest": {
                "available_bytes": plan.available_bytes,
                "parts": [{"what": what, "bytes": size} for what, size in plan.parts(plan.fitting_blocks)],
                "needed_bytes": plan.needed_bytes(plan.fitting_blocks),
                "tokens": plan.fitting_tokens,
                "sequences": {str(length): plan.fitting_sequences(length) for length in self.sequence_lengths},
            },
        }

    def lines(self) -> Iterator[str]:
        """The sheet for a person."""
        config, plan = self.checkpoint.config, self.plan
        yield f"{self.name}  {self.path}"
        yield ""
        yield f"{'architecture':<14}{config.architecture}, {self.checkpoint.num_parameters:,} parameters"
        yield (
            f"{'layers':<14}{config.num_layers}, each {config.num_heads} heads over {config.num_kv_heads} of keys and "
            f"values, {config.head_dim} wide"
        )
        yield f"{'context':<14}{config.max_position:,} tokens"
        itemsize = plan.kv_bytes_per_token // config.kv_bytes_per_token(1)
        yield (
            f"{'KV per token':<14}{plan.kv_bytes_per_token:,} bytes = 2 × {config.num_layers} layers × "
            f"{config.num_kv_heads} heads × {config.head_dim} × {itemsize} bytes"
        )
        yield from ("", "Weights by format")
        for what, size in self.formats.items():
            stored = f" ({', '.join(self.checkpoint.stored_types)})" if what == "file" else ""
            yield _sized(f"{what}{stored}{'  ← served here' if what == plan.weight_format else ''}", size)
        if self.why_not_packed is not None:
            yield f"  packed weights are not possible: {self.why_not_packed}"
        yield from ("", *self._machine())

    def _machine(self) -> Iterator[str]:
        plan = self.plan
        yield f"Most that fits this machine ({plan.device})"
        for what, size in plan.parts(plan.fitting_blocks):
            yield _sized(what, size)
        yield _sized("needed", plan.needed_bytes(plan.fitting_blocks))
        yield _sized("available now", plan.available_bytes)
        for length in self.sequence_lengths:
            yield f"  {plan.fitting_sequences(length):,} sequences of {length:,} tokens"
        needed = plan.needed_bytes(plan.num_blocks)
        yield from ("", "With these settings")
        yield (
            f"  up to {plan.size.max_num_seqs:,} sequences at once, {plan.num_blocks:,} blocks of {plan.block_size} "
            f"tokens: {plan.num_blocks * plan.block_size:,} tokens"
        )
        yield _sized(
            "needed" if needed <= plan.available_bytes else "needed: DOES NOT FIT, it would be refused", needed
        )


def _sized(what: str, size: int) -> str:
    return f"  {size:>18,} bytes {size / 2**30:>9.2f} GiB  {what}"


def model_sheet(name: str, path: Path, settings: Settings) -> ModelSheet:
    """The sheet of the model at `path`, served with these settings. Reads headers, no tensors.

    Raises:
        ModelError: it is broken or not supported; says what is wrong.
    """
    try:
        checkpoint, engine = open_checkpoint(path), engine_config(settings, path)
        device = pick_device(engine.device)
        weight_format = pick_format(checkpoint, engine.dtype, device, engine.block_size)
        plan = MemoryPlan.of(engine, device, available_bytes(device), checkpoint, weight_format)
    except EngineError as error:
        raise ModelError(f"model {name!r}: {error}", name=name) from error
    reason = why_not_packed(checkpoint.config, engine.block_size, device)
    formats = {"file": checkpoint.tensor_bytes}
    for kind in ([] if reason else [PACKED]) + ["bfloat16", "float32"]:
        formats[kind] = weight_bytes(checkpoint, kind)
    # What is served may be more: float32 with bfloat16 copies for steps of few rows.
    formats[weight_format] = plan.weight_bytes
    return ModelSheet(name, path, checkpoint, plan, formats, reason)
