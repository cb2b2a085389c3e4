"""Getting a model's tensors off the disk, under Hugging Face names, whatever file they come from."""

from __future__ import annotations

import json
import math
import re
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Protocol

import numpy as np
import torch
from numpy.typing import NDArray
from safetensors import SafetensorError, safe_open
from torch import Tensor

from engine import model_config
from engine.errors import ModelLoadError
from engine.gguf_file import GGUFFile
from engine.model_config import ModelConfig
from engine.packed_weights import INT4_TYPES, PackedTensors, Reorder, cached, is_kept, pack_floats, pack_gguf
from engine.tokenizer import Tokenizer

_GGUF_LAYER_NAMES = {
    "attn_q": "self_attn.q_proj",
    "attn_k": "self_attn.k_proj",
    "attn_v": "self_attn.v_proj",
    "attn_output": "self_attn.o_proj",
    "attn_q_norm": "self_attn.q_norm",
    "attn_k_norm": "self_attn.k_norm",
    "attn_norm": "input_layernorm",
    "ffn_norm": "post_attention_layernorm",
    "ffn_gate": "mlp.gate_proj",
    "ffn_up": "mlp.up_proj",
    "ffn_down": "mlp.down_proj",
}
_GGUF_NAMES = {
    "token_embd.weight": "model.embed_tokens.weight",
    "output_norm.weight": "model.norm.weight",
    "output.weight": "lm_head.weight",
}


class Checkpoint(Protocol):
    """An opened model: its shape and tokenizer are read and checked, its tensors are not read yet.

    Attributes:
        is_quantized: whether its matrices are stored in 4 to 8 bits.
        stored_types: how its tensors are stored ("BF16", "Q4_1", ...), the type of most parameters first.
        shapes: of every tensor, by Hugging Face name.
        int4_names: the tensors that are packed to 4 bits; other matrices are packed to 8.
        rope_divisors: divisors of the rotary frequencies that some GGUF files carry.
        tensor_bytes: bytes of all tensors as stored.
    """

    name: str
    config: ModelConfig
    tokenizer: Tokenizer
    is_quantized: bool
    stored_types: tuple[str, ...]
    shapes: dict[str, tuple[int, ...]]
    int4_names: frozenset[str]
    rope_divisors: Tensor | None
    tensor_bytes: int

    @property
    def num_parameters(self) -> int:
        """Numbers in all tensors."""

    @property
    def packed_is_kept(self) -> bool:
        """Whether `packed` finds its work done."""

    def tensors(self, dtype: torch.dtype, device: torch.device) -> dict[str, Tensor]:
        """All tensors by Hugging Face name."""

    def packed(self) -> PackedTensors:
        """All tensors in the packed formats of `kernels.packed`; kept beside the model for the next start."""


def open_checkpoint(path: Path) -> Checkpoint:
    """Open a `.gguf` file or a Hugging Face folder.

    Raises:
        ModelLoadError: something is missing, broken, or not supported; the message names the file.
    """
    if path.is_file() and path.suffix == ".gguf":
        return GGUFCheckpoint(path)
    if path.is_dir():
        return FolderCheckpoint(path)
    raise ModelLoadError(f"{path} is neither a .gguf file nor a folder with config.json and *.safetensors")


class FolderCheckpoint:
    """A Hugging Face folder: config.json, tokenizer.json and one or more *.safetensors."""

    is_quantized = False
    int4_names: frozenset[str] = frozenset()
    rope_divisors: Tensor | None = None

    def __init__(self, folder: Path) -> None:
        self.path = folder
        self.name = folder.name
        self.config = model_config.from_folder(folder)
        self._files = _safetensors_files(folder)
        self.shapes: dict[str, tuple[int, ...]] = {}
        types: dict[str, str] = {}
        for opened in self._opened("pt"):
            for name in opened.keys():  # noqa: SIM118 - not a mapping
                entry = opened.get_slice(name)
                self.shapes[name], types[name] = tuple(entry.get_shape()), str(entry.get_dtype())
        self.stored_types = _by_share(self.shapes, types)
        self.tensor_bytes = sum(file.stat().st_size for file in self._files)
        self.tokenizer = Tokenizer.from_folder(folder)
        _check_shapes(self.shapes, self.config, self.tokenizer, folder)

    @property
    def num_parameters(self) -> int:
        return _count(self.shapes)

    @property
    def packed_is_kept(self) -> bool:
        return is_kept(self.path)

    def tensors(self, dtype: torch.dtype, device: torch.device) -> dict[str, Tensor]:
        return {
            name: opened.get_tensor(name).to(device=device, dtype=dtype)
            for opened in self._opened("pt")
            for name in opened.keys()  # noqa: SIM118 - not a mapping
        }

    def packed(self) -> PackedTensors:
        return cached(self.path, lambda: pack_floats(self._floats()))

    def _floats(self) -> Iterator[tuple[str, NDArray[np.float32]]]:
        for opened in self._opened("pt"):
            for name in opened.keys():  # noqa: SIM118 - not a mapping
                yield name, opened.get_tensor(name).float().numpy()

    def _opened(self, framework: str) -> Iterator[Any]:
        for file in self._files:
            try:
                with safe_open(file, framework=framework, device="cpu") as opened:
                    yield opened
            except (SafetensorError, OSError) as error:
                raise ModelLoadError(
                    f"{file} is not a readable safetensors file (truncated or corrupt?): {error}"
                ) from error


def _safetensors_files(folder: Path) -> list[Path]:
    index = folder / "model.safetensors.index.json"
    if index.is_file():
        names = sorted(set(json.loads(index.read_text(encoding="utf-8"))["weight_map"].values()))
        files = [folder / Path(name).name for name in names]
    else:
        files = sorted(folder.glob("*.safetensors"))
    missing = [file.name for file in files if not file.is_file()]
    if missing or not files:
        raise ModelLoadError(f"{folder} lacks {', '.join(missing) if missing else 'any *.safetensors file'}")
    return files


class GGUFCheckpoint:
    """A GGUF file."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.name = path.stem
        self._file = GGUFFile(path)
        metadata = self._file.metadata
        self.config = model_config.from_gguf(metadata, self._file.tensor_names, str(path))
        # Files of the `llama` architecture store rotated pairs side by side; this engine (like Hugging Face) halves
        # apart.
        self._interleaved = metadata["general.architecture"] == "llama"
        self._names = list(_renamed(self._file))
        self.is_quantized = any(self._file.type_name(source).startswith("Q") for source, _ in self._names)
        self.tensor_bytes = path.stat().st_size
        has_divisors = "rope_freqs.weight" in self._file.tensor_names
        self.rope_divisors = self._file.tensor("rope_freqs.weight") if has_divisors else None
        self.tokenizer = Tokenizer.from_gguf(metadata)
        self.shapes = {name: self._file.shape(source) for source, name in self._names}
        types = {name: self._file.type_name(source) for source, name in self._names}
        self.stored_types = _by_share(self.shapes, types)
        self.int4_names = frozenset(name for name, kind in types.items() if kind in INT4_TYPES)
        _check_shapes(self.shapes, self.config, self.tokenizer, path)

    @property
    def num_parameters(self) -> int:
        return _count(self.shapes)

    @property
    def packed_is_kept(self) -> bool:
        return is_kept(self.path)

    def tensors(self, dtype: torch.dtype, device: torch.device) -> dict[str, Tensor]:
        tensors = {}
        for source, name in self._names:
            tensor, reorder = self._file.tensor(source), self._reorder(name)
            if reorder is not None:
                tensor = torch.from_numpy(reorder(tensor.numpy()))
            tensors[name] = tensor.to(device=device, dtype=dtype)
        return tensors

    def packed(self) -> PackedTensors:
        names = [(source, name, self._reorder(name)) for source, name in self._names]
        return cached(self.path, lambda: pack_gguf(self._file, names))

    def _reorder(self, name: str) -> Reorder | None:
        """How to bring the rows of a tensor into Hugging Face's order; None where they are."""
        if not self._interleaved or not (".q_proj." in name or ".k_proj." in name):
            return None
        heads = self.config.num_heads if ".q_proj." in name else self.config.num_kv_heads
        return lambda rows: _deinterleave(rows, heads)


def _count(shapes: dict[str, tuple[int, ...]]) -> int:
    return sum(math.prod(shape) for shape in shapes.values())


def _by_share(shapes: dict[str, tuple[int, ...]], types: dict[str, str]) -> tuple[str, ...]:
    """The types there are, that of most parameters first."""
    share: Counter[str] = Counter()
    for name, kind in types.items():
        share[kind] += math.prod(shapes[name])
    return tuple(kind for kind, _ in share.most_common())


def _renamed(file: GGUFFile) -> Iterator[tuple[str, str]]:
    """(name in the file, Hugging Face name) of every weight."""
    for name in file.tensor_names:
        if name == "rope_freqs.weight":
            continue
        match = re.fullmatch(r"blk\.(\d+)\.(\w+)\.(weight|bias)", name)
        if match and match[2] in _GGUF_LAYER_NAMES:
            yield name, f"model.layers.{match[1]}.{_GGUF_LAYER_NAMES[match[2]]}.{match[3]}"
        elif name in _GGUF_NAMES:
            yield name, _GGUF_NAMES[name]
        else:
            raise ModelLoadError(f"{file.path} holds a tensor {name!r} that no supported architecture has")


def _deinterleave(rows: NDArray[Any], num_heads: int) -> NDArray[Any]:
    shape = rows.shape
    pairs = shape[0] // num_heads // 2
    return np.ascontiguousarray(rows.reshape(num_heads, pairs, 2, *shape[1:]).swapaxes(1, 2)).reshape(shape)


def _check_shapes(shapes: dict[str, tuple[int, ...]], config: ModelConfig, tokenizer: Tokenizer, path: Path) -> None:
    """Refuse a checkpoint whose tensors do not fit its configuration or tokenizer, naming the first that does not."""
    hidden, inner, q = config.hidden_size, config.intermediate_size, config.num_heads * config.head_dim
    kv = config.num_kv_heads * config.head_dim
    expected: dict[str, tuple[int, ...]] = {
        "model.embed_tokens.weight": (config.vocab_size, hidden),
        "model.norm.weight": (hidden,),
    }
    if not config.tie_embeddings:
        expected["lm_head.weight"] = (config.vocab_size, hidden)
    for layer in range(config.num_layers):
        prefix = f"model.layers.{layer}."
        expected |= {
            prefix + "self_attn.q_proj.weight": (q, hidden),
            prefix + "self_attn.k_proj.weight": (kv, hidden),
            prefix + "self_attn.v_proj.weight": (kv, hidden),
            prefix + "self_attn.o_proj.weight": (hidden, q),
            prefix + "mlp.gate_proj.weight": (inner, hidden),
            prefix + "mlp.up_proj.weight": (inner, hidden),
            prefix + "mlp.down_proj.weight": (hidden, inner),
            prefix + "input_layernorm.weight": (hidden,),
            prefix + "post_attention_layernorm.weight": (hidden,),
        }
    for name, shape in expected.items():
        given = shapes.get(name)
        if given is None:
            raise ModelLoadError(f"{path} lacks the tensor {name}")
        if given != shape:
            raise ModelLoadError(
                f"{path}: tensor {name} has shape {list(given)}, its configuration needs {list(shape)}"
            )
    if tokenizer.vocab_size > config.vocab_size:
        raise ModelLoadError(
            f"{path}: the tokenizer knows {tokenizer.vocab_size:,} tokens, the model only "
            f"{config.vocab_size:,}: tokenizer and weights do not belong together"
        )
