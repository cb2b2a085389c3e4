"""Getting a model's tensors off the disk, under Hugging Face names, whatever file they come from."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import torch
from safetensors import SafetensorError, safe_open
from torch import Tensor

from engine import model_config
from engine.errors import ModelLoadError
from engine.gguf_file import GGUFFile
from engine.model_config import ModelConfig
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


@dataclass
class LoadedModel:
    """A model's shape, its tensors by Hugging Face name, its tokenizer, and rotary divisors (some GGUF files)."""

    name: str
    config: ModelConfig
    tensors: dict[str, Tensor]
    tokenizer: Tokenizer
    rope_divisors: Tensor | None = None


def load(path: Path, dtype: torch.dtype, device: torch.device) -> LoadedModel:
    """Load a `.gguf` file or a Hugging Face folder; tensors come in `dtype` on `device`.

    Raises:
        ModelLoadError: something is missing, broken, or not supported; the message names the file.
    """
    if path.is_file() and path.suffix == ".gguf":
        loaded = _load_gguf(path, dtype, device)
    elif path.is_dir():
        loaded = _load_folder(path, dtype, device)
    else:
        raise ModelLoadError(f"{path} is neither a .gguf file nor a folder with config.json and *.safetensors")
    _check_shapes(loaded, path)
    return loaded


def _load_folder(folder: Path, dtype: torch.dtype, device: torch.device) -> LoadedModel:
    config = model_config.from_folder(folder)
    tensors: dict[str, Tensor] = {}
    for file in _safetensors_files(folder):
        try:
            with safe_open(file, framework="pt", device="cpu") as opened:
                for name in opened.keys():  # noqa: SIM118 - not a mapping
                    tensors[name] = opened.get_tensor(name).to(device=device, dtype=dtype)
        except (SafetensorError, OSError) as error:
            raise ModelLoadError(
                f"{file} is not a readable safetensors file (truncated or corrupt?): {error}"
            ) from error
    return LoadedModel(folder.name, config, tensors, Tokenizer.from_folder(folder))


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


def _load_gguf(path: Path, dtype: torch.dtype, device: torch.device) -> LoadedModel:
    file = GGUFFile(path)
    config = model_config.from_gguf(file.metadata, file.tensor_names, str(path))
    # Files of the `llama` architecture store rotated pairs side by side; this engine (like Hugging Face) halves apart.
    interleaved = file.metadata["general.architecture"] == "llama"
    tensors = {}
    for name, tensor in _renamed(file):
        if interleaved and (".q_proj." in name or ".k_proj." in name):
            tensor = _deinterleave(tensor, config.num_heads if ".q_proj." in name else config.num_kv_heads)
        tensors[name] = tensor.to(device=device, dtype=dtype)
    divisors = file.tensor("rope_freqs.weight") if "rope_freqs.weight" in file.tensor_names else None
    return LoadedModel(path.stem, config, tensors, Tokenizer.from_gguf(file.metadata), divisors)


def _renamed(file: GGUFFile) -> Iterator[tuple[str, Tensor]]:
    for name in file.tensor_names:
        if name == "rope_freqs.weight":
            continue
        match = re.fullmatch(r"blk\.(\d+)\.(\w+)\.(weight|bias)", name)
        if match and match[2] in _GGUF_LAYER_NAMES:
            yield f"model.layers.{match[1]}.{_GGUF_LAYER_NAMES[match[2]]}.{match[3]}", file.tensor(name)
        elif name in _GGUF_NAMES:
            yield _GGUF_NAMES[name], file.tensor(name)
        else:
            raise ModelLoadError(f"{file.path} holds a tensor {name!r} that no supported architecture has")


def _deinterleave(tensor: Tensor, num_heads: int) -> Tensor:
    shape = tensor.shape
    pairs = shape[0] // num_heads // 2
    return tensor.reshape(num_heads, pairs, 2, *shape[1:]).transpose(1, 2).reshape(shape).contiguous()


def _check_shapes(loaded: LoadedModel, path: Path) -> None:
    """Refuse a checkpoint whose tensors do not fit its configuration or tokenizer, naming the first that does not."""
    config = loaded.config
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
        tensor = loaded.tensors.get(name)
        if tensor is None:
            raise ModelLoadError(f"{path} lacks the tensor {name}")
        if tuple(tensor.shape) != shape:
            raise ModelLoadError(
                f"{path}: tensor {name} has shape {list(tensor.shape)}, its configuration needs {list(shape)}"
            )
    if loaded.tokenizer.vocab_size > config.vocab_size:
        raise ModelLoadError(
            f"{path}: the tokenizer knows {loaded.tokenizer.vocab_size:,} tokens, the model only "
            f"{config.vocab_size:,}: tokenizer and weights do not belong together"
        )
