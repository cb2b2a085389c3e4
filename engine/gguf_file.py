"""Reading GGUF files: the header, and tensors dequantised one at a time through the `gguf` library.

The header is read here and not by the library's reader, which makes an array object for each string of a vocabulary
(seconds, for fifty thousand tokens and as many merges) and does not say what is wrong with a broken file.
Format: the GGUF specification in the ggml project, versions 2 and 3, little-endian.
"""

from __future__ import annotations

import math
import mmap
import struct
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from engine.errors import ModelLoadError

# Number of a type in the file → its name, values of a block, bytes of a block. The `gguf` library, which knows more of
# them, is imported only to dequantise: models that stay packed start without it.
_TYPES = {
    0: ("F32", 1, 4),
    1: ("F16", 1, 2),
    2: ("Q4_0", 32, 18),
    3: ("Q4_1", 32, 20),
    6: ("Q5_0", 32, 22),
    8: ("Q8_0", 32, 34),
    12: ("Q4_K", 256, 144),
    14: ("Q6_K", 256, 210),
    30: ("BF16", 1, 2),
}
SUPPORTED_TYPES = tuple(name for name, _, _ in _TYPES.values())

_SCALARS = {0: "<B", 1: "<b", 2: "<H", 3: "<h", 4: "<I", 5: "<i", 6: "<f", 7: "<?", 10: "<Q", 11: "<q", 12: "<d"}
_STRING, _ARRAY = 8, 9
_DEFAULT_ALIGNMENT = 32
# Far more than any model has: a larger count is a broken header, and must not be believed for as long as the file is.
MAX_KEYS = 1 << 16
MAX_TENSORS = 1 << 20
MAX_ELEMENTS = 1 << 24
MAX_DIMS = 4


@dataclass(frozen=True)
class _TensorInfo:
    """`shape` in torch's order ([out, in]); `offset` from the start of the data section."""

    shape: tuple[int, ...]
    type_id: int
    offset: int


class GGUFFile:
    """An open GGUF file (memory-mapped).

    Attributes:
        metadata: key → number, bool, string, or list of them.

    Raises:
        ModelLoadError: the file is missing, truncated, or of a kind not supported, or a tensor is of a type that the
            absent `gguf` package would have to dequantise.
    """

    def __init__(self, path: Path) -> None:
        self.path = path
        try:
            with path.open("rb") as file:
                self._bytes = mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ)
        except (OSError, ValueError) as error:
            raise ModelLoadError(f"{path} can not be read: {error}") from None
        header = _HeaderReader(self._bytes, path)
        try:
            self.metadata, self._infos, self._data_start = header.read()
        except (struct.error, IndexError, UnicodeDecodeError, OverflowError) as error:
            raise ModelLoadError(
                f"{path} is not a whole GGUF file: its header breaks off or is corrupt at byte {header.position:,} "
                f"of {len(self._bytes):,} ({error})"
            ) from None
        self._check_tensors()

    @property
    def tensor_names(self) -> list[str]:
        return list(self._infos)

    def shape(self, name: str) -> tuple[int, ...]:
        """In torch's order, [out, in]."""
        return self._infos[name].shape

    def type_name(self, name: str) -> str:
        """One of SUPPORTED_TYPES."""
        return _TYPES[self._infos[name].type_id][0]

    def raw(self, name: str) -> NDArray[np.uint8]:
        """A tensor's bytes as they lie in the file."""
        info = self._infos[name]
        start = self._data_start + info.offset
        return np.frombuffer(self._bytes, dtype=np.uint8, count=self._num_bytes(info), offset=start)

    def tensor(self, name: str) -> Tensor:
        """One tensor as float32."""
        info = self._infos[name]
        kind, raw = self.type_name(name), self.raw(name)
        if kind in ("F32", "F16"):
            values = raw.view(np.float32 if kind == "F32" else np.float16).astype(np.float32)
        else:
            gguf = _gguf_library(self.path)
            # One long row: blocks are independent, and the library would go through short rows sixteen at a time.
            values = gguf.quants.dequantize(raw.reshape(1, -1), gguf.GGMLQuantizationType(info.type_id))
        return torch.from_numpy(np.array(values, dtype=np.float32, copy=True)).reshape(info.shape)

    def _num_bytes(self, info: _TensorInfo) -> int:
        _, block_size, block_bytes = _TYPES[info.type_id]
        return math.prod(info.shape) // block_size * block_bytes

    def _check_tensors(self) -> None:
        for name, info in self._infos.items():
            if info.type_id not in _TYPES:
                raise ModelLoadError(
                    f"{self.path}: tensor {name} is of type {_library_name(info.type_id)}; "
                    f"supported: {', '.join(SUPPORTED_TYPES)}"
                )
            kind, block_size, _ = _TYPES[info.type_id]
            if not info.shape or 0 in info.shape or info.shape[-1] % block_size:
                raise ModelLoadError(
                    f"{self.path}: tensor {name} has shape {list(info.shape)}; rows of type {kind} are multiples of "
                    f"{block_size} numbers: the file is corrupt"
                )
            end = self._data_start + info.offset + self._num_bytes(info)
            if end > len(self._bytes):
                raise ModelLoadError(
                    f"{self.path} is truncated: tensor {name} ends at byte {end:,}, the file has {len(self._bytes):,}"
                )


def _gguf_library(path: Path) -> Any:
    try:
        import gguf
    except ImportError:
        raise ModelLoadError(
            f"reading {path.name} needs the `gguf` package, which is not installed: pip install gguf"
        ) from None
    return gguf


def _library_name(type_id: int) -> str:
    """What the library calls a type that is not supported here, or its number."""
    try:
        from gguf import GGMLQuantizationType

        return str(GGMLQuantizationType(type_id).name)
    except (ImportError, ValueError):
        return f"number {type_id}"


class _HeaderReader:
    """Walks the header once; `position` tells where it is when something is wrong."""

    def __init__(self, data: mmap.mmap, path: Path) -> None:
        self.data = data
        self.path = path
        self.position = 0

    def read(self) -> tuple[dict[str, Any], dict[str, _TensorInfo], int]:
        """(metadata, tensors by name, where the data section begins)."""
        if self.data[:4] != b"GGUF":
            raise ModelLoadError(f"{self.path} is not a GGUF file: it begins with {self.data[:4]!r}, not b'GGUF'")
        self.position = 4
        version = self._scalar("<I")
        if version not in (2, 3):
            raise ModelLoadError(f"{self.path} is GGUF version {version}; supported: 2 and 3, little-endian")
        num_tensors, num_keys = self._count("<Q", MAX_TENSORS, "tensors"), self._count("<Q", MAX_KEYS, "keys")
        metadata = {self._string(): self._value(self._scalar("<I")) for _ in range(num_keys)}
        infos = {}
        for _ in range(num_tensors):
            name, num_dims = self._string(), self._count("<I", MAX_DIMS, "dimensions")
            # Dimensions stand innermost first.
            shape = tuple(reversed([self._scalar("<Q") for _ in range(num_dims)]))
            infos[name] = _TensorInfo(shape, self._scalar("<I"), self._scalar("<Q"))
        alignment = metadata.get("general.alignment", _DEFAULT_ALIGNMENT)
        if not isinstance(alignment, int) or alignment < 1:
            raise IndexError(f"general.alignment is {str(alignment)[:40]}, a positive integer is needed")
        return metadata, infos, -(-self.position // alignment) * alignment

    def _scalar(self, format_: str) -> Any:
        (value,) = struct.unpack_from(format_, self.data, self.position)
        self.position += struct.calcsize(format_)
        return value

    def _count(self, format_: str, most: int, what: str) -> int:
        value = int(self._scalar(format_))
        if value > most:
            raise IndexError(f"{value:,} {what}, at most {most:,} are possible")
        return value

    def _string(self) -> str:
        length = self._scalar("<Q")
        start, end = self.position, self.position + length
        if end > len(self.data):
            raise IndexError(f"a string of {length:,} bytes")
        self.position = end
        return self.data[start:end].decode("utf-8")

    def _value(self, kind: int) -> Any:
        if kind == _STRING:
            return self._string()
        if kind != _ARRAY:
            if kind not in _SCALARS:
                raise IndexError(f"value type {kind}")
            return self._scalar(_SCALARS[kind])
        element, length = self._scalar("<I"), self._count("<Q", MAX_ELEMENTS, "elements of an array")
        if element == _ARRAY:
            raise IndexError("an array of arrays, which no model has")
        if element in _SCALARS:
            format_ = f"<{length}{_SCALARS[element][1]}"
            values = struct.unpack_from(format_, self.data, self.position)
            self.position += struct.calcsize(format_)
            return list(values)
        return self._strings(length)

    def _strings(self, length: int) -> list[str]:
        """Texts in a row; there are a hundred thousand in a vocabulary, so each costs as little as it can."""
        data, position, size = self.data, self.position, len(self.data)
        length_at = struct.Struct("<Q").unpack_from
        strings = []
        for _ in range(length):
            start = position + 8
            position = start + length_at(data, position)[0]
            if position > size:
                self.position = start
                raise IndexError(f"a string of {position - start:,} bytes")
            strings.append(data[start:position].decode("utf-8"))
        self.position = position
        return strings
