"""Every supported architecture against transformers: tiny random weights, logits of every position."""

import json
from pathlib import Path

import pytest
import torch
from transformers import LlamaConfig
from transformers.modeling_rope_utils import ROPE_INIT_FUNCTIONS

from engine import Engine, EngineConfig, SamplingParams, errors
from engine.rope import RopeScaling, rotary_tables
from engine.scheduler import StepPlan
from tests.engine.tiny_models import CONFIGS, VOCAB_SIZE, save_tiny_model


def all_logits(engine: Engine, token_ids: list[int]) -> torch.Tensor:
    """Logits after each prefix of the sequence, computed one token a step through the paged pool: [tokens, vocab]."""
    request = engine.make_requests(token_ids, SamplingParams(max_tokens=1))[0]
    rows = []
    engine.kv_cache.grow(request, len(token_ids))
    for position in range(len(token_ids)):
        request.token_ids = token_ids[: position + 1]
        plan = StepPlan()
        plan.give(request, 1)
        _, logits = engine.runner.run(plan)
        request.num_computed += 1
        rows.append(logits[0])
    engine.kv_cache.release(request)
    return torch.stack(rows)


@pytest.mark.parametrize("name", CONFIGS)
def test_logits_equal_transformers(name: str, tmp_path: Path) -> None:
    reference = save_tiny_model(name, tmp_path)
    engine = Engine(EngineConfig(model=tmp_path, dtype="float32", device="cpu", block_size=4, num_kv_blocks=64))
    token_ids = torch.randint(2, VOCAB_SIZE, (40,), generator=torch.Generator().manual_seed(1)).tolist()
    with torch.no_grad():
        expected = reference(torch.tensor([token_ids])).logits[0]
    torch.testing.assert_close(all_logits(engine, token_ids), expected, atol=1e-4, rtol=0)


@pytest.mark.parametrize("name", CONFIGS)
def test_greedy_answer_of_a_chunked_prompt_equals_transformers(name: str, tmp_path: Path) -> None:
    reference = save_tiny_model(name, tmp_path)
    engine = Engine(
        EngineConfig(
            model=tmp_path, dtype="float32", device="cpu", block_size=4, num_kv_blocks=64, max_num_batched_tokens=13
        )
    )
    prompt = torch.randint(2, VOCAB_SIZE, (50,), generator=torch.Generator().manual_seed(2)).tolist()
    answer = engine.generate(prompt, SamplingParams(max_tokens=20, temperature=0, ignore_eos=True)).token_ids
    with torch.no_grad():
        logits = reference(torch.tensor([prompt + answer])).logits[0]
    # By induction over positions this is greedy decoding: each token is the best one after those before it.
    assert answer == logits[len(prompt) - 1 : -1].argmax(-1).tolist()


def test_unknown_architecture_names_the_supported_ones(tmp_path: Path) -> None:
    (tmp_path / "config.json").write_text('{"architectures": ["GPT2LMHeadModel"]}')
    with pytest.raises(
        errors.ModelLoadError, match=r"'GPT2LMHeadModel' is not supported; supported: LlamaForCausalLM, "
    ):
        Engine(EngineConfig(model=tmp_path))


@pytest.mark.parametrize(
    "rope",
    [
        {"factor": 4.0, "original_max_position_embeddings": 64},
        {"factor": 40.0, "original_max_position_embeddings": 4096, "mscale": 1.0, "mscale_all_dim": 0.7},
        {"factor": 2.5, "original_max_position_embeddings": 100, "attention_factor": 0.8, "truncate": False},
        {"factor": 8.0, "original_max_position_embeddings": 512, "beta_fast": 16, "beta_slow": 2, "truncate": True},
        {"factor": None, "original_max_position_embeddings": 64},
        {"factor": 4.0, "original_max_position_embeddings": 2},
    ],
)
def test_yarns_angles_and_attention_factor_equal_transformers(rope: dict[str, float]) -> None:
    parameters = {"rope_type": "yarn", "rope_theta": 1e6, **rope}
    shape = {"hidden_size": 256, "num_attention_heads": 4, "head_dim": 64, "max_position_embeddings": 256}
    frequencies, factor = ROPE_INIT_FUNCTIONS["yarn"](LlamaConfig(**shape, rope_parameters=parameters))
    scaling = RopeScaling.of(parameters, 256, "test")
    torch.testing.assert_close(scaling.frequencies(1e6, 64), frequencies, rtol=1e-6, atol=0)
    cos, sin = rotary_tables(scaling, 1e6, 64, 50)
    angles = torch.arange(50).float()[:, None] * frequencies
    torch.testing.assert_close(cos, angles.cos() * factor)
    torch.testing.assert_close(sin, angles.sin() * factor)


def test_yarn_stretches_the_context_of_a_model_that_names_only_the_original_one(tmp_path: Path) -> None:
    save_tiny_model("qwen3", tmp_path)
    path = tmp_path / "config.json"
    raw = json.loads(path.read_text())
    raw.pop("rope_parameters", None)
    # As Qwen's model cards tell to write it.
    raw |= {"max_position_embeddings": 64, "rope_theta": 1e6}
    raw["rope_scaling"] = {"type": "yarn", "factor": 4.0, "original_max_position_embeddings": 64}
    path.write_text(json.dumps(raw))
    assert Engine(EngineConfig(model=tmp_path, device="cpu", num_kv_blocks=64)).max_model_len == 256


def test_missing_file_is_named(tmp_path: Path) -> None:
    with pytest.raises(errors.ModelLoadError, match=r"nothing\.gguf is neither a \.gguf file nor a folder"):
        Engine(EngineConfig(model=tmp_path / "nothing.gguf"))
    with pytest.raises(errors.ModelLoadError, match=r"has no config\.json"):
        Engine(EngineConfig(model=tmp_path))


def test_truncated_safetensors_is_named(tmp_path: Path) -> None:
    save_tiny_model("llama", tmp_path)
    file = tmp_path / "model.safetensors"
    file.write_bytes(file.read_bytes()[:1000])
    with pytest.raises(errors.ModelLoadError, match=r"model\.safetensors is not a readable safetensors file"):
        Engine(EngineConfig(model=tmp_path))


def test_weights_of_another_shape_are_refused(tmp_path: Path) -> None:
    save_tiny_model("llama", tmp_path)
    path = tmp_path / "config.json"
    path.write_text(json.dumps({**json.loads(path.read_text()), "intermediate_size": 81}))
    with pytest.raises(
        errors.ModelLoadError, match=r"gate_proj\.weight has shape \[80, 48\], its configuration needs \[81, 48\]"
    ):
        Engine(EngineConfig(model=tmp_path))
