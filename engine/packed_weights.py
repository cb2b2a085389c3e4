"""Weights in the packed formats of `kernels.packed`, and the file beside the model that keeps them for the next start.

Q4_0 and Q4_1 keep their codes, Q8_0 too; every other type is dequantised and rounded to 8 bits in blocks of 32.
"""

from __future__ import annotations

import json
import logging
import os
import zlib
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from safetensors import SafetensorError, safe_open
from safetensors.numpy import save_file

from engine.errors import ModelLoadError
from engine.gguf_file import GGUFFile
from engine.model_config import ModelConfig
from kernels.packed.formats import (
    GROUP,
    INT4_BLOCK_BYTES,
    INT8_BLOCK_BYTES,
    ROWS,
    Bytes,
    pack_int4,
    pack_int8,
    quantize_int8,
)

log = logging.getLogger(__name__)

# Goes up with every change of a packed layout: files of another version are made anew.
VERSION = 2
# GGUF types whose codes are kept as they are.
INT4_TYPES = ("Q4_0", "Q4_1")
INT8_TYPES = ("Q8_0",)

Reorder = Callable[[NDArray], NDArray]  # type: ignore[type-arg]


@dataclass
class PackedTensors:
    """Matrices packed, vectors as float32, both by Hugging Face name."""

    packed: dict[str, Bytes] = field(default_factory=dict)
    vectors: dict[str, NDArray[np.float32]] = field(default_factory=dict)
    shapes: dict[str, tuple[int, ...]] = field(default_factory=dict)

    @property
    def num_parameters(self) -> int:
        return sum(int(np.prod(shape)) for shape in self.shapes.values())


def why_not_packed(config: ModelConfig, block_size: int, device: torch.device) -> str | None:
    """Why the packed kernels can not run this model; None if they can."""
    if device.type != "cpu":
        return f"packed weights are for CPUs, the device is {device}"
    if block_size != ROWS:
        return f"the KV cache has blocks of {block_size} tokens, packed weights need {ROWS}"
    if config.output_bias or config.mlp_bias:
        return "the model has biases outside q, k and v"
    for name in ("hidden_size", "intermediate_size", "head_dim"):
        if getattr(config, name) % GROUP:
            return f"the model has a {name} of {getattr(config, name)}, packed weights need multiples of {GROUP}"
    return None


def pack_gguf(file: GGUFFile, names: Iterable[tuple[str, str, Reorder | None]]) -> PackedTensors:
    """Pack the tensors of a file. `names` gives (name in the file, Hugging Face name, reordering of its rows)."""
    tensors = PackedTensors()
    for source, name, reorder in names:
        shape = tensors.shapes[name] = file.shape(source)
        if len(shape) == 1:
            vector = file.tensor(source).numpy()
            tensors.vectors[name] = np.ascontiguousarray(reorder(vector) if reorder else vector)
        else:
            tensors.packed[name] = _pack(file, source, reorder or (lambda rows: rows))
    return tensors


def pack_floats(values: Iterable[tuple[str, NDArray[np.float32]]]) -> PackedTensors:
    """Round float matrices (Hugging Face checkpoints) to 8 bits."""
    tensors = PackedTensors()
    for name, value in values:
        tensors.shapes[name] = value.shape
        if value.ndim == 1:
            tensors.vectors[name] = value
        else:
            tensors.packed[name] = pack_int8(*quantize_int8(value))
    return tensors


def _pack(file: GGUFFile, name: str, reorder: Reorder) -> Bytes:
    rows, width = file.shape(name)
    kind = file.type_name(name)
    if kind in INT4_TYPES + INT8_TYPES:
        blocks = file.raw(name).reshape(rows, width // GROUP, -1)
        scales = reorder(_halves(blocks, 0))
        _check_finite(scales, file, name)
        if kind == "Q8_0":
            return pack_int8(reorder(np.ascontiguousarray(blocks[:, :, 2:]).view(np.int8).reshape(rows, width)), scales)
        start = 4 if kind == "Q4_1" else 2
        nibbles = blocks[:, :, start:]
        codes = reorder(np.concatenate((nibbles & 15, nibbles >> 4), axis=-1).reshape(rows, width))
        # Q4_0 counts from −8.
        least = reorder(_halves(blocks, 2)) if kind == "Q4_1" else (scales * np.float16(-8)).astype(np.float16)
        _check_finite(least, file, name)
        return pack_int4(codes, scales, least)
    values = file.tensor(name).numpy()
    _check_finite(values, file, name)
    return pack_int8(*quantize_int8(reorder(values)))


def _check_finite(values: NDArray[Any], file: GGUFFile, name: str) -> None:
    if not np.isfinite(values).all():
        raise ModelLoadError(f"{file.path}: tensor {name} holds numbers that are not finite: the file is damaged")


def _halves(blocks: NDArray[np.uint8], start: int) -> NDArray[np.float16]:
    return np.ascontiguousarray(blocks[:, :, start : start + 2]).view(np.float16)[:, :, 0]


def cached(
    model: Path, shapes: dict[str, tuple[int, ...]], int4_names: frozenset[str], make: Callable[[], PackedTensors]
) -> PackedTensors:
    """The packed tensors kept beside `model`, or made, and kept where the folder can be written to.

    What is kept has to be whole: the tensors of these shapes, packed as they would be now, with their checksum.
    """
    path, stamp = _place(model), _stamp(model)
    tensors = _read(path, stamp)
    if tensors is not None:
        if tensors.shapes == shapes and _is_whole(tensors, int4_names):
            return tensors
        log.warning("packed weights are made anew: path=%s reason=tensors are missing or of another shape", path)
    tensors = make()
    _write(path, stamp, tensors)
    return tensors


def packed_shape(shape: tuple[int, ...], *, is_int4: bool) -> tuple[int, int, int]:
    """Of a matrix: [panels of rows, blocks of inputs, bytes of a block]."""
    return -(-shape[0] // ROWS), -(-shape[1] // GROUP), INT4_BLOCK_BYTES if is_int4 else INT8_BLOCK_BYTES


def _is_whole(tensors: PackedTensors, int4_names: frozenset[str]) -> bool:
    # Compiled code reads these arrays by address and would not notice that one is short.
    for name, shape in tensors.shapes.items():
        if len(shape) == 1:
            vector = tensors.vectors.get(name)
            if vector is None or vector.shape != shape or vector.dtype != np.float32:
                return False
        else:
            packed = tensors.packed.get(name)
            wanted = packed_shape(shape, is_int4=name in int4_names)
            if packed is None or packed.shape != wanted or packed.dtype != np.uint8:
                return False
    return True


def _checksum(tensors: PackedTensors) -> str:
    total = 0
    for name in sorted(tensors.shapes):
        values: NDArray[Any] = tensors.packed[name] if name in tensors.packed else tensors.vectors[name]
        total = zlib.crc32(np.ascontiguousarray(values).data, total)
    return f"{total:08x}"


def is_kept(model: Path) -> bool:
    """Whether the packed tensors of `model` as it is now lie beside it."""
    try:
        with safe_open(_place(model), framework="np") as file:
            return bool((file.metadata() or {}).get("stamp") == _stamp(model))
    except (SafetensorError, OSError):
        return False


def _place(model: Path) -> Path:
    return model.with_name(f"{model.name}.packed.safetensors")


def _stamp(model: Path) -> str:
    """What must be equal for a kept file to be this model's: its size, the time of its last change, our version."""
    files = sorted(model.glob("*.safetensors")) if model.is_dir() else [model]
    status = [(file.name, file.stat().st_size, file.stat().st_mtime_ns) for file in files]
    return json.dumps([VERSION, status])


def _read(path: Path, stamp: str) -> PackedTensors | None:
    try:
        with safe_open(path, framework="np") as file:
            metadata = file.metadata() or {}
            if metadata.get("stamp") != stamp:
                return None
            shapes = {name: tuple(shape) for name, shape in json.loads(metadata["shapes"]).items()}
            tensors = PackedTensors(shapes=shapes)
            for name in file.keys():  # noqa: SIM118 - not a mapping
                (tensors.vectors if len(shapes[name]) == 1 else tensors.packed)[name] = file.get_tensor(name)
            if metadata["checksum"] != _checksum(tensors):
                raise ValueError("the checksum is another")
            return tensors
    except FileNotFoundError:
        return None
    except (SafetensorError, OSError, LookupError, ValueError, TypeError, AttributeError) as error:
        log.warning("packed weights are made anew: path=%s reason=%s", path, error)
        return None


def _write(path: Path, stamp: str, tensors: PackedTensors) -> None:
    partial = path.with_name(f"{path.name}.{os.getpid()}.partial")
    metadata = {"stamp": stamp, "shapes": json.dumps(tensors.shapes), "checksum": _checksum(tensors)}
    try:
        save_file({**tensors.packed, **tensors.vectors}, partial, metadata=metadata)
        partial.replace(path)
    except (OSError, SafetensorError) as error:
        log.warning("packed weights are not kept, the next start packs them again: path=%s reason=%s", path, error)
        partial.unlink(missing_ok=True)
