"""Random models in each supported architecture, small enough to compare with transformers in every run."""

from pathlib import Path

import torch
from tokenizers import Tokenizer, decoders, models, pre_tokenizers, trainers
from transformers import LlamaConfig, MistralConfig, PretrainedConfig, PreTrainedModel, Qwen2Config, Qwen3Config
from transformers.models.auto.modeling_auto import AutoModelForCausalLM

VOCAB_SIZE = 300
_SHAPE = {
    "vocab_size": VOCAB_SIZE,
    "hidden_size": 48,
    "intermediate_size": 80,
    "num_hidden_layers": 2,
    "num_attention_heads": 6,
    "num_key_value_heads": 2,
    "max_position_embeddings": 256,
    "bos_token_id": 0,
    "eos_token_id": 1,
    "pad_token_id": None,
}
_LLAMA3_ROPE = {
    "rope_type": "llama3",
    "rope_theta": 500000.0,
    "factor": 8.0,
    "low_freq_factor": 1.0,
    "high_freq_factor": 4.0,
    "original_max_position_embeddings": 64,
}
_YARN_ROPE = {"rope_type": "yarn", "rope_theta": 10000.0, "factor": 4.0, "original_max_position_embeddings": 64}

CONFIGS: dict[str, PretrainedConfig] = {
    "llama": LlamaConfig(**_SHAPE, tie_word_embeddings=False),
    "llama-tied": LlamaConfig(**_SHAPE, tie_word_embeddings=True),
    "llama3-rope": LlamaConfig(**_SHAPE, rope_parameters=_LLAMA3_ROPE),
    "llama-linear-rope": LlamaConfig(
        **_SHAPE, rope_parameters={"rope_type": "linear", "factor": 4.0, "rope_theta": 10000.0}
    ),
    "qwen3-yarn-rope": Qwen3Config(**_SHAPE, head_dim=16, rope_parameters=_YARN_ROPE),
    "llama-bias": LlamaConfig(**_SHAPE, attention_bias=True, mlp_bias=True),
    "llama-head-dim": LlamaConfig(**_SHAPE, head_dim=16),
    "mistral-window": MistralConfig(**_SHAPE, sliding_window=7),
    "mistral-full": MistralConfig(**_SHAPE, sliding_window=None),
    "qwen2": Qwen2Config(**_SHAPE, tie_word_embeddings=True),
    "qwen2-untied": Qwen2Config(**_SHAPE, tie_word_embeddings=False),
    "qwen2-window": Qwen2Config(**_SHAPE, use_sliding_window=True, sliding_window=7, max_window_layers=1),
    "qwen3": Qwen3Config(**_SHAPE, head_dim=8, tie_word_embeddings=True),
    "qwen3-untied": Qwen3Config(**_SHAPE, head_dim=8, tie_word_embeddings=False),
}


def save_tiny_model(name: str, folder: Path) -> PreTrainedModel:
    """Save one of CONFIGS with random weights and a byte-level tokenizer; returns transformers' model in float32."""
    torch.manual_seed(0)
    model = AutoModelForCausalLM.from_config(CONFIGS[name], attn_implementation="eager").float().eval()
    with torch.no_grad():
        for parameter_name, parameter in model.named_parameters():
            # Wider than the usual start, so that every part matters in the logits; norms and biases too.
            noise = torch.randn_like(parameter) * 0.1
            parameter.copy_(1 + noise if "norm" in parameter_name else noise)
    model.save_pretrained(folder)
    save_tiny_tokenizer(folder)
    return model


def save_tiny_tokenizer(folder: Path) -> None:
    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=VOCAB_SIZE,
        special_tokens=["<s>", "</s>"],
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
        show_progress=False,
    )
    tokenizer.train_from_iterator(["the quick brown fox jumps over the lazy dog", "tokens in, tokens out"] * 4, trainer)
    tokenizer.save(str(folder / "tokenizer.json"))
    (folder / "tokenizer_config.json").write_text('{"bos_token": "<s>", "eos_token": "</s>"}', encoding="utf-8")
