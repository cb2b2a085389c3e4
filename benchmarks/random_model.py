"""Models with random weights in real shapes, made on the device: benchmarks on a GPU download nothing."""

from __future__ import annotations

import json
import math
import tempfile
from collections.abc import Container
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from engine import Engine, EngineConfig, model_config, model_runner
from engine.packed_weights import PackedTensors, pack_floats
from engine.tokenizer import Tokenizer, _byte_alphabet
from kernels.int4_matmul import Int4Weight

LLAMA_8B: dict[str, Any] = {
    "architectures": ["LlamaForCausalLM"],
    "vocab_size": 128256,
    "hidden_size": 4096,
    "intermediate_size": 14336,
    "num_hidden_layers": 32,
    "num_attention_heads": 32,
    "num_key_value_heads": 8,
    "max_position_embeddings": 131072,
    "rms_norm_eps": 1e-5,
    "rope_theta": 500000.0,
}
QWEN3_600M: dict[str, Any] = {
    "architectures": ["Qwen3ForCausalLM"],
    "vocab_size": 151936,
    "hidden_size": 1024,
    "intermediate_size": 3072,
    "num_hidden_layers": 28,
    "num_attention_heads": 16,
    "num_key_value_heads": 8,
    "head_dim": 128,
    "max_position_embeddings": 40960,
    "rms_norm_eps": 1e-6,
    "rope_theta": 1000000.0,
    "tie_word_embeddings": True,
}
# Of a size that the interpreter gets through.
SMALL = {
    "vocab_size": 320,
    "hidden_size": 32,
    "intermediate_size": 32,
    "num_hidden_layers": 1,
    "num_attention_heads": 2,
    "num_key_value_heads": 1,
    "head_dim": 16,
    "max_position_embeddings": 512,
}


class RandomCheckpoint:
    """A `Checkpoint` whose tensors are drawn when they are asked for."""

    is_quantized = False
    int4_names: frozenset[str] = frozenset()
    rope_divisors: Tensor | None = None
    stored_types = ("BF16",)
    packed_is_kept = False

    def __init__(self, name: str, fields: dict[str, Any], int4_group: int | None = None) -> None:
        self.name = name
        self.config = model_config.from_dict(fields, name)
        self.tokenizer = _tokenizer(self.config.vocab_size)
        self.shapes = _shapes(self.config)
        self.num_parameters = sum(math.prod(shape) for shape in self.shapes.values())
        self.tensor_bytes = 2 * self.num_parameters
        self.int4_group = int4_group
        self.int4_stored = frozenset(name for name in self.shapes if "_proj" in name and int4_group is not None)

    def tensors(self, dtype: torch.dtype, device: torch.device, *, without: Container[str] = ()) -> dict[str, Tensor]:
        torch.manual_seed(0)
        tensors = {}
        for name, shape in self.shapes.items():
            if name in without:
                continue
            tensor = torch.empty(shape, dtype=dtype, device=device)
            tensors[name] = tensor.fill_(1.0) if len(shape) == 1 else tensor.normal_(0, shape[1] ** -0.5)
        return tensors

    def int4_tensors(self, device: torch.device) -> dict[str, Int4Weight]:
        """Random codes about a zero of 8, scaled as `tensors` are."""
        torch.manual_seed(0)
        weights = {}
        for name in sorted(self.int4_stored):
            (out, inputs), group = self.shapes[name], self.int4_group
            assert group is not None, "what is stored in 4 bits has groups"
            words = torch.randint(-(1 << 31), 1 << 31, (inputs // 8, out), dtype=torch.int32, device=device)
            scales = torch.full((inputs // group, out), inputs**-0.5 / 4.6, dtype=torch.float16, device=device)
            weights[name] = Int4Weight(words, scales, torch.full_like(scales, 8), group)
        return weights

    def packed(self) -> PackedTensors:
        floats = self.tensors(torch.float32, torch.device("cpu"))
        return pack_floats((name, tensor.numpy()) for name, tensor in floats.items())


def _shapes(config: model_config.ModelConfig) -> dict[str, tuple[int, ...]]:
    hidden, inner, q = config.hidden_size, config.intermediate_size, config.num_heads * config.head_dim
    kv = config.num_kv_heads * config.head_dim
    shapes: dict[str, tuple[int, ...]] = {
        "model.embed_tokens.weight": (config.vocab_size, hidden),
        "model.norm.weight": (hidden,),
    }
    if not config.tie_embeddings:
        shapes["lm_head.weight"] = (config.vocab_size, hidden)
    for layer in range(config.num_layers):
        prefix = f"model.layers.{layer}."
        for name, shape in {
            "self_attn.q_proj": (q, hidden),
            "self_attn.k_proj": (kv, hidden),
            "self_attn.v_proj": (kv, hidden),
            "self_attn.o_proj": (hidden, q),
            "mlp.gate_proj": (inner, hidden),
            "mlp.up_proj": (inner, hidden),
            "mlp.down_proj": (hidden, inner),
            "input_layernorm": (hidden,),
            "post_attention_layernorm": (hidden,),
        }.items():
            shapes[f"{prefix}{name}.weight"] = shape
        if config.qk_norm:
            shapes |= {f"{prefix}self_attn.{name}_norm.weight": (config.head_dim,) for name in "qk"}
    return shapes


def _tokenizer(vocab_size: int) -> Tokenizer:
    """Every byte, and then tokens that spell their own number; no merges."""
    tokens = list(_byte_alphabet())
    tokens += [f"{number}t" for number in range(vocab_size - len(tokens) - 1)]
    model = {"type": "BPE", "vocab": {token: i for i, token in enumerate(tokens)}, "merges": []}
    end = {"id": vocab_size - 1, "content": "<end>", "special": True} | dict.fromkeys(
        ("single_word", "lstrip", "rstrip", "normalized"), False
    )
    parts: dict[str, Any] = {
        "version": "1.0",
        "added_tokens": [end],
        "pre_tokenizer": {"type": "ByteLevel", "add_prefix_space": False, "trim_offsets": True, "use_regex": True},
        "decoder": {"type": "ByteLevel", "add_prefix_space": False, "trim_offsets": True, "use_regex": True},
        "model": model,
    }
    with tempfile.TemporaryDirectory() as folder:
        Path(folder, "tokenizer.json").write_text(json.dumps(parts), encoding="utf-8")
        Path(folder, "tokenizer_config.json").write_text('{"eos_token": "<end>"}', encoding="utf-8")
        return Tokenizer.from_folder(Path(folder))


def make_engine(name: str, fields: dict[str, Any], *, int4_group: int | None = None, **settings: Any) -> Engine:
    """An engine over random weights, in 4 bits where there is an `int4_group`; `settings` are EngineConfig's."""
    checkpoint = RandomCheckpoint(name, fields, int4_group)
    opened = model_runner.open_checkpoint
    model_runner.open_checkpoint = lambda path: checkpoint  # type: ignore[assignment]
    try:
        return Engine(EngineConfig(model=name, **settings))
    finally:
        model_runner.open_checkpoint = opened
