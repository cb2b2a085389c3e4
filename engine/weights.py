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
from engine.errors import EngineError, ModelLoadError
from engine.gguf_file import GGUFFile
from engine.model_config import ModelConfig
from engine.packed_weights import INT4_TYPES, PackedTensors, Reorder, cached, is_kept, pack_floats, pack_gguf
from engine.parameter_check import shown
from engine.tokenizer import Tokenizer

# Of floating-point numbers: what packs several integers into one is another tool's format.
STORED_TYPES = ("F64", "F32", "F16", "BF16")
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
    try:
        if path.is_file() and path.suffix.lower() == ".gguf":
            return GGUFCheckpoint(path)
        if path.is_dir():
            return FolderCheckpoint(path)
    except EngineError:
        raise
    except Exception as error:  # a file may be wrong in more ways than its readers check for
        raise ModelLoadError(
            f"{path} is corrupt or not supported: reading it ended with {type(error).__name__}: {shown(str(error))}"
        ) from error
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
        self.tensor_bytes = sum(file.stat().st_size for file in self._files)
        self.tokenizer = Tokenizer.from_folder(folder)
        self.shapes = _checked_shapes(self.shapes, self.config, self.tokenizer, folder)
        for name in self.shapes:
            if types[name] not in STORED_TYPES:
                raise ModelLoadError(
                    f"{folder}: tensor {name} is stored as {types[name]}; supported: {', '.join(STORED_TYPES)}"
                )
        self.stored_types = _by_share(self.shapes, types)

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
            if name in self.shapes
        }

    def packed(self) -> PackedTensors:
        return cached(self.path, self.shapes, self.int4_names, lambda: pack_floats(self._floats()))

    def _floats(self) -> Iterator[tuple[str, NDArray[np.float32]]]:
        for opened in self._opened("pt"):
            for name in self.shapes.keys() & set(opened.keys()):
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
        try:
            names = sorted(set(json.loads(index.read_text(encoding="utf-8"))["weight_map"].values()))
        except (ValueError, LookupError, TypeError, AttributeError) as error:
            raise ModelLoadError(f"{index} is no index of tensors ({shown(str(error))}): download it again") from None
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
        if self.rope_divisors is not None and self.rope_divisors.shape != (self.config.head_dim // 2,):
            raise ModelLoadError(
                f"{path}: tensor rope_freqs.weight has shape {list(self.rope_divisors.shape)}, its configuration needs "
                f"[{self.config.head_dim // 2}]"
            )
        self.tokenizer = Tokenizer.from_gguf(metadata)
        shapes = {name: self._file.shape(source) for source, name in self._names}
        self.shapes = _checked_shapes(shapes, self.config, self.tokenizer, path)
        self._names = [(source, name) for source, name in self._names if name in self.shapes]
        types = {name: self._file.type_name(source) for source, name in self._names}
        self.stored_types = _by_share(self.shapes, types)
        self.int4_names = frozenset(name for name, kind in types.items() if kind in INT4_TYPES)

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
        return cached(self.path, self.shapes, self.int4_names, lambda: pack_gguf(self._file, names))

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


def _checked_shapes(
    shapes: dict[str, tuple[int, ...]], config: ModelConfig, tokenizer: Tokenizer, path: Path
) -> dict[str, tuple[int, ...]]:
    """The shapes of the tensors that the decoder uses, in the order in which it uses them.

    Refuses a checkpoint whose tensors do not fit its configuration or tokenizer, naming the first that does not.
    """
    used = {}
    for name, shape, is_needed in _expected_shapes(shapes, config):
        given = shapes.get(name)
        if given is None and not is_needed:
            continue
        if given is None:
            raise ModelLoadError(f"{path} lacks the tensor {name}")
        if given != shape:
            raise ModelLoadError(
                f"{path}: tensor {name} has shape {list(given)}, its configuration needs {list(shape)}"
            )
        used[name] = given
    if tokenizer.vocab_size > config.vocab_size:
        raise ModelLoadError(
            f"{path}: the tokenizer knows {tokenizer.vocab_size:,} tokens, the model only "
            f"{config.vocab_size:,}: tokenizer and weights do not belong together"
        )
    return used


def _expected_shapes(
    given: dict[str, tuple[int, ...]], config: ModelConfig
) -> Iterator[tuple[str, tuple[int, ...], bool]]:
    """(name, shape, whether it has to be there) of every tensor the decoder uses."""
    hidden, inner, q = config.hidden_size, config.intermediate_size, config.num_heads * config.head_dim
    kv = config.num_kv_heads * config.head_dim
    yield "model.embed_tokens.weight", (config.vocab_size, hidden), True
    yield "model.norm.weight", (hidden,), True
    if not config.tie_embeddings:
        yield "lm_head.weight", (config.vocab_size, hidden), True
    rows = {"q_proj": q, "k_proj": kv, "v_proj": kv}
    for layer in range(config.num_layers):
        prefix = f"model.layers.{layer}."
        biased = config.attention_bias or any(f"{prefix}self_attn.{name}.bias" in given for name in rows)
        for name, out in rows.items():
            yield f"{prefix}self_attn.{name}.weight", (out, hidden), True
            yield f"{prefix}self_attn.{name}.bias", (out,), biased
        yield prefix + "self_attn.o_proj.weight", (hidden, q), True
        yield prefix + "self_attn.o_proj.bias", (hidden,), config.output_bias
        mlp_biased = config.mlp_bias or any(f"{prefix}mlp.{name}_proj.bias" in given for name in ("gate", "up"))
        for name in ("gate_proj", "up_proj"):
            yield f"{prefix}mlp.{name}.weight", (inner, hidden), True
            yield f"{prefix}mlp.{name}.bias", (inner,), mlp_biased
        yield prefix + "mlp.down_proj.weight", (hidden, inner), True
        yield prefix + "mlp.down_proj.bias", (hidden,), config.mlp_bias
        yield prefix + "input_layernorm.weight", (hidden,), True
        yield prefix + "post_attention_layernorm.weight", (hidden,), True
        normed = config.qk_norm or any(f"{prefix}self_attn.{name}_norm.weight" in given for name in "qk")
        for name in "qk":
            yield f"{prefix}self_attn.{name}_norm.weight", (config.head_dim,), normed
