"""Getting a model's tensors off the disk, under Hugging Face names, whatever file they come from."""

from __future__ import annotations

import json
import math
import re
from collections import Counter
from collections.abc import Container, Iterator
from contextlib import ExitStack, contextmanager
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
from engine.int4_files import Int4Format, Read
from engine.model_config import ModelConfig
from engine.packed_weights import INT4_TYPES, PackedTensors, Reorder, cached, is_kept, pack_floats, pack_gguf
from engine.parameter_check import shown
from engine.tokenizer import Tokenizer
from kernels.int4_matmul import Int4Weight

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
        int4_stored: the tensors that `int4_tensors` gives, as they are stored; int4_group: inputs that share a scale in
            them, None where nothing is stored so.
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
    int4_stored: frozenset[str]
    int4_group: int | None
    rope_divisors: Tensor | None
    tensor_bytes: int

    @property
    def num_parameters(self) -> int:
        """Numbers in all tensors."""

    @property
    def packed_is_kept(self) -> bool:
        """Whether `packed` finds its work done."""

    def tensors(self, dtype: torch.dtype, device: torch.device, *, without: Container[str] = ()) -> dict[str, Tensor]:
        """All tensors by Hugging Face name, but for those named."""

    def int4_tensors(self, device: torch.device) -> dict[str, Int4Weight]:
        """The matrices that are stored in the 4 bits of `kernels.int4_matmul` (AWQ, GPTQ)."""

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
    """A Hugging Face folder: config.json, tokenizer.json and one or more *.safetensors; plain, AWQ or GPTQ."""

    rope_divisors: Tensor | None = None

    def __init__(self, folder: Path) -> None:
        self.path = folder
        self.name = folder.name
        self.config = model_config.from_folder(folder)
        self._int4 = Int4Format.of(folder)
        self.is_quantized = self._int4 is not None
        self._files = _safetensors_files(folder)
        self._places: dict[str, Path] = {}
        shapes: dict[str, tuple[int, ...]] = {}
        types: dict[str, str] = {}
        for file in self._files:
            with _opened(file) as opened:
                for name in opened.keys():  # noqa: SIM118 - not a mapping
                    entry = opened.get_slice(name)
                    shapes[name], types[name] = tuple(entry.get_shape()), str(entry.get_dtype())
                    self._places[name] = file
        self.tensor_bytes = sum(file.stat().st_size for file in self._files)
        self.tokenizer = Tokenizer.from_folder(folder)
        matrices = self._int4.matrices(shapes, types) if self._int4 is not None else {}
        types |= dict.fromkeys(matrices, str(self._int4))
        self.shapes = _checked_shapes({**shapes, **matrices}, self.config, self.tokenizer, folder)
        for name in self.shapes.keys() - matrices.keys():
            if types[name] not in STORED_TYPES:
                raise ModelLoadError(
                    f"{folder}: tensor {name} is stored as {types[name]}; supported: {', '.join(STORED_TYPES)}"
                )
        self.stored_types = _by_share(self.shapes, {name: types[name] for name in self.shapes})
        self.int4_stored = frozenset(matrices.keys() & self.shapes.keys())
        self.int4_group: int | None = None
        self.int4_names: frozenset[str] = frozenset()
        if self._int4 is not None:
            self.int4_group = self._int4.group_size or self.config.hidden_size
            self.int4_names = self.int4_stored if self._int4.is_packed_to_int4 else frozenset()

    @property
    def num_parameters(self) -> int:
        return _count(self.shapes)

    @property
    def packed_is_kept(self) -> bool:
        return is_kept(self.path)

    def tensors(self, dtype: torch.dtype, device: torch.device, *, without: Container[str] = ()) -> dict[str, Tensor]:
        with self._reader() as read:
            return {
                name: self._dense(name, read, dtype).to(device=device, dtype=dtype)
                for name in self.shapes
                if name not in without
            }

    def int4_tensors(self, device: torch.device) -> dict[str, Int4Weight]:
        if self._int4 is None:
            return {}
        with self._reader() as read:
            return {name: self._int4.weight(name, self._places, read).to(device) for name in self.int4_stored}

    def packed(self) -> PackedTensors:
        return cached(self.path, self.shapes, self.int4_names, self._pack)

    def _pack(self) -> PackedTensors:
        with self._reader() as read:
            plain = [name for name in self.shapes if name not in self.int4_stored]
            tensors = pack_floats((name, self._dense(name, read, torch.float32).float().numpy()) for name in plain)
            for name in self.int4_stored:
                assert self._int4 is not None, "nothing else is stored in 4 bits"
                tensors.shapes[name] = self.shapes[name]
                tensors.packed[name] = self._int4.packed(self._int4.weight(name, self._places, read))
        return tensors

    def _dense(self, name: str, read: Read, dtype: torch.dtype) -> Tensor:
        if self._int4 is not None and name in self.int4_stored:
            return self._int4.weight(name, self._places, read).dense(dtype)
        return read(name)

    @contextmanager
    def _reader(self) -> Iterator[Read]:
        """What reads a tensor by its name, while all files are open."""
        with ExitStack() as stack:
            opened = {file: stack.enter_context(_opened(file)) for file in self._files}
            yield lambda name: opened[self._places[name]].get_tensor(name)


@contextmanager
def _opened(file: Path) -> Iterator[Any]:
    try:
        opened = safe_open(file, framework="pt", device="cpu")
    except (SafetensorError, OSError) as error:
        raise ModelLoadError(f"{file} is not a readable safetensors file (truncated or corrupt?): {error}") from error
    with opened as entries:
        yield entries


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

    int4_stored: frozenset[str] = frozenset()
    int4_group: int | None = None

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

    def int4_tensors(self, device: torch.device) -> dict[str, Int4Weight]:
        return {}

    def tensors(self, dtype: torch.dtype, device: torch.device, *, without: Container[str] = ()) -> dict[str, Tensor]:
        tensors = {}
        for source, name in self._names:
            if name in without:
                continue
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
