"""Reading GGUF files through the `gguf` library: metadata, and tensors dequantised one at a time."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from engine.errors import ModelLoadError

SUPPORTED_TYPES = ("F32", "F16", "BF16", "Q4_0", "Q4_1", "Q5_0", "Q8_0", "Q4_K", "Q6_K")


class GGUFFile:
    """An open GGUF file (memory-mapped).

    Raises:
        ModelLoadError: the `gguf` package is absent, or the file is missing, truncated, or of a kind not supported.
    """

    def __init__(self, path: Path) -> None:
        try:
            import gguf
        except ImportError:
            raise ModelLoadError(
                f"reading {path.name} needs the `gguf` package, which is not installed: pip install gguf"
            ) from None
        self.path = path
        self._gguf = gguf
        if not path.is_file():
            raise ModelLoadError(f"{path} does not exist")
        try:
            reader = gguf.GGUFReader(path)
        except Exception as error:  # the library raises whatever numpy or struct raised on broken bytes
            raise ModelLoadError(f"{path} is not a readable GGUF file (truncated or corrupt?): {error}") from error
        self._tensors = {tensor.name: tensor for tensor in reader.tensors}
        self.metadata: dict[str, Any] = {name: field.contents() for name, field in reader.fields.items()}
        unsupported = sorted({t.tensor_type.name for t in reader.tensors} - set(SUPPORTED_TYPES))
        if unsupported:
            raise ModelLoadError(
                f"{path} holds tensors of type {', '.join(unsupported)}; supported: {', '.join(SUPPORTED_TYPES)}"
            )

    @property
    def tensor_names(self) -> list[str]:
        return list(self._tensors)

    def tensors(self) -> Iterator[tuple[str, Tensor]]:
        """Each tensor's name and float32 values, in the shape [out, in] that torch uses."""
        for name in self._tensors:
            yield name, self.tensor(name)

    def tensor(self, name: str) -> Tensor:
        """One tensor as float32."""
        tensor = self._tensors[name]
        values = self._gguf.quants.dequantize(tensor.data, tensor.tensor_type)
        # GGUF lists dimensions innermost first; the data already lies in torch's order.
        shape = tuple(int(size) for size in reversed(tensor.shape))
        return torch.from_numpy(np.array(values, dtype=np.float32, copy=True)).reshape(shape)
