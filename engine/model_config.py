"""The shape of a Llama-family decoder, read from Hugging Face's `config.json` or from GGUF metadata."""

from __future__ import annotations

import json
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any

from torch import Tensor

from engine.errors import ModelLoadError
from engine.parameter_check import shown
from engine.rope import RopeScaling, rotary_tables

# Hugging Face architecture → (qkv bias, q/k norm) where config.json does not say.
ARCHITECTURES: dict[str, tuple[bool, bool]] = {
    "LlamaForCausalLM": (False, False),
    "MistralForCausalLM": (False, False),
    "Qwen2ForCausalLM": (True, False),
    "Qwen3ForCausalLM": (False, True),
}
# Far more than any model has; a larger number is a broken file, and must not be counted up to.
MAX_LAYERS = 4096
MAX_SIZE = 1 << 31
GGUF_ARCHITECTURES = {"llama": "LlamaForCausalLM", "qwen2": "Qwen2ForCausalLM", "qwen3": "Qwen3ForCausalLM"}


@dataclass(frozen=True)
class ModelConfig:
    """One decoder class serves all of these; configuration, not code, tells the models apart.

    `sliding_windows` holds one entry a layer: the window in tokens, or None for full attention.
    """

    architecture: str
    vocab_size: int
    hidden_size: int
    intermediate_size: int
    num_layers: int
    num_heads: int
    num_kv_heads: int
    head_dim: int
    max_position: int
    rms_norm_eps: float
    rope_theta: float
    rope_scaling: RopeScaling
    sliding_windows: tuple[int | None, ...]
    attention_bias: bool
    output_bias: bool
    mlp_bias: bool
    qk_norm: bool
    tie_embeddings: bool

    @property
    def scale(self) -> float:
        """Attention scores are multiplied by this."""
        return 1.0 / math.sqrt(self.head_dim)

    def kv_bytes_per_token(self, itemsize: int) -> int:
        """Bytes of keys and values of one token in all layers."""
        return 2 * self.num_layers * self.num_kv_heads * self.head_dim * itemsize

    def rotary_tables(self, max_position: int, divisors: Tensor | None = None) -> tuple[Tensor, Tensor]:
        """`engine.rope.rotary_tables` of this model."""
        return rotary_tables(self.rope_scaling, self.rope_theta, self.head_dim, max_position, divisors)


def from_folder(folder: Path) -> ModelConfig:
    """Read `config.json` of a Hugging Face checkpoint.

    Raises:
        ModelLoadError: the file is missing or broken, or the architecture or a feature of it is not supported.
    """
    path = folder / "config.json"
    try:
        raw = json.loads(path.read_text(encoding="utf-8"))
    except FileNotFoundError:
        raise ModelLoadError(
            f"{folder} has no config.json; a model folder needs config.json, tokenizer.json and *.safetensors"
        ) from None
    except ValueError as error:
        raise ModelLoadError(f"{path} is not valid JSON: {error}") from None
    return from_dict(raw, str(path))


def from_dict(raw: Mapping[str, Any], where: str) -> ModelConfig:
    """Read the fields of a `config.json`; `where` names it in errors."""
    if not isinstance(raw, Mapping):
        raise ModelLoadError(f"{where} must hold an object, not {shown(raw)}")
    named = raw.get("architectures") or ["none"]
    architecture = named[0] if isinstance(named, list) else named
    if not isinstance(architecture, str) or architecture not in ARCHITECTURES:
        raise ModelLoadError(
            f"{where}: architecture {shown(architecture)} is not supported; supported: {', '.join(ARCHITECTURES)}"
        )
    bias, qk_norm = ARCHITECTURES[architecture]
    size = partial(_size, raw, where)
    num_heads, hidden = size("num_attention_heads"), size("hidden_size")
    num_layers = size("num_hidden_layers", most=MAX_LAYERS)
    try:
        rope = {**(raw.get("rope_scaling") or {}), **(raw.get("rope_parameters") or {})}
        max_position = size("max_position_embeddings", 2048)
        scaling = RopeScaling.of(rope, max_position, where)
        config = ModelConfig(
            architecture=architecture,
            vocab_size=size("vocab_size"),
            hidden_size=hidden,
            intermediate_size=size("intermediate_size"),
            num_layers=num_layers,
            num_heads=num_heads,
            num_kv_heads=size("num_key_value_heads", num_heads),
            head_dim=size("head_dim", hidden // num_heads),
            max_position=max(max_position, scaling.stretched_position),
            rms_norm_eps=float(raw.get("rms_norm_eps", 1e-6)),
            rope_theta=float(rope.get("rope_theta") or raw.get("rope_theta") or 10000.0),
            rope_scaling=scaling,
            sliding_windows=_sliding_windows(raw, architecture, num_layers),
            attention_bias=bool(raw.get("attention_bias", bias)),
            output_bias=bool(raw.get("attention_bias", False)),
            mlp_bias=bool(raw.get("mlp_bias", False)),
            qk_norm=qk_norm,
            tie_embeddings=bool(raw.get("tie_word_embeddings", False)),
        )
    except KeyError as error:
        raise ModelLoadError(f"{where} has no field {error}") from None
    except (TypeError, ValueError, AttributeError, OverflowError) as error:
        raise ModelLoadError(f"{where} has a field of the wrong kind: {error}") from None
    _check(config, where)
    return config


def _size(raw: Mapping[str, Any], where: str, name: str, default: int | None = None, *, most: int = MAX_SIZE) -> int:
    """A field that counts something; where it is absent or null, the default if there is one."""
    value = raw.get(name)
    value = default if value is None else value
    if value is None:
        raise ModelLoadError(f"{where} has no field {name!r}")
    if not isinstance(value, int) or isinstance(value, bool) or not 1 <= value <= most:
        raise ModelLoadError(f"{where}: {name} must be an integer from 1 to {most:,}, got {shown(value)}")
    return value


def _check(config: ModelConfig, where: str) -> None:
    """Refuse what no decoder can be built from."""
    if config.num_heads % config.num_kv_heads:
        raise ModelLoadError(
            f"{where}: {config.num_heads} attention heads cannot share {config.num_kv_heads} heads of keys and values"
        )
    if config.head_dim % 2:
        raise ModelLoadError(f"{where}: head_dim must be even, got {config.head_dim}")
    positive = {
        "rms_norm_eps": config.rms_norm_eps,
        "rope_theta": config.rope_theta,
        **{f"rope scaling's {name}": value for name, value in config.rope_scaling.numbers.items()},
    }
    for name, value in positive.items():
        if not 0 < value < math.inf:
            raise ModelLoadError(f"{where}: {name} must be a positive number, got {value}")
    if len(config.sliding_windows) != config.num_layers or any(w is not None and w < 1 for w in config.sliding_windows):
        raise ModelLoadError(f"{where}: sliding windows must be one for each layer, each of at least 1 token")


def _sliding_windows(raw: Mapping[str, Any], architecture: str, num_layers: int) -> tuple[int | None, ...]:
    window = raw.get("sliding_window")
    if window is None or (architecture.startswith("Qwen") and not raw.get("use_sliding_window", False)):
        return (None,) * num_layers
    kinds: Sequence[str] | None = raw.get("layer_types")
    if kinds is not None:
        return tuple(int(window) if kind == "sliding_attention" else None for kind in kinds)
    first = int(raw.get("max_window_layers", 0)) if architecture.startswith("Qwen") else 0
    return tuple(int(window) if layer >= first else None for layer in range(num_layers))


def from_gguf(metadata: Mapping[str, Any], tensor_names: Sequence[str], where: str) -> ModelConfig:
    """Read the shape from a GGUF file's metadata; `tensor_names` tells what metadata leaves out."""
    kind = str(metadata.get("general.architecture"))[:80]
    if kind not in GGUF_ARCHITECTURES:
        raise ModelLoadError(
            f"{where}: GGUF architecture {kind!r} is not supported; supported: {', '.join(GGUF_ARCHITECTURES)}"
        )
    names = set(tensor_names)

    def field(name: str, default: Any = None) -> Any:
        value = metadata.get(f"{kind}.{name}", default)
        if value is None:
            raise ModelLoadError(f"{where}: the GGUF metadata has no {kind}.{name}")
        return value

    def number(name: str, default: Any = None) -> float:
        value = field(name, default)
        if not isinstance(value, int | float):
            raise ModelLoadError(f"{where}: {kind}.{name} must be a number, got {shown(value)}")
        return float(value)

    tokens = metadata.get("tokenizer.ggml.tokens")
    raw = {
        "architectures": [GGUF_ARCHITECTURES[kind]],
        "vocab_size": metadata.get(f"{kind}.vocab_size") or (len(tokens) if isinstance(tokens, list) else None),
        "hidden_size": field("embedding_length"),
        "intermediate_size": field("feed_forward_length"),
        "num_hidden_layers": field("block_count"),
        "num_attention_heads": field("attention.head_count"),
        "num_key_value_heads": metadata.get(f"{kind}.attention.head_count_kv"),
        "head_dim": metadata.get(f"{kind}.attention.key_length"),
        "max_position_embeddings": field("context_length"),
        "rms_norm_eps": number("attention.layer_norm_rms_epsilon"),
        "rope_theta": number("rope.freq_base", 10000.0),
        "tie_word_embeddings": "output.weight" not in names,
    }
    if kind == "llama" and metadata.get("llama.attention.sliding_window"):
        raw["sliding_window"] = number("attention.sliding_window")
    scaling = metadata.get(f"{kind}.rope.scaling.type", "none")
    if scaling in ("linear", "yarn"):
        raw["rope_scaling"] = {
            "rope_type": scaling,
            "factor": number("rope.scaling.factor"),
            "original_max_position_embeddings": metadata.get(f"{kind}.rope.scaling.original_context_length"),
        }
    elif scaling not in ("none", ""):
        raise ModelLoadError(f"{where}: rope scaling {shown(scaling)} is not supported; supported: none, linear, yarn")
    config = from_dict(raw, where)
    has_bias = "blk.0.attn_q.bias" in names
    return replace(config, attention_bias=has_bias, output_bias="blk.0.attn_output.bias" in names)
