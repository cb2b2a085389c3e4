"""GGUF files written by the `gguf` library load to the same tensors and the same answers; broken files are named."""

import contextlib
import json
import sys
from collections.abc import Callable
from pathlib import Path

import gguf
import numpy as np
import pytest
import torch
from transformers import PreTrainedModel

from engine import Engine, EngineConfig, SamplingParams, errors, gguf_file
from engine.gguf_file import SUPPORTED_TYPES, GGUFFile
from tests.engine.tiny_models import save_tiny_model

ENCODABLE = ("F32", "F16", "BF16", "Q4_0", "Q4_1", "Q5_0", "Q8_0")
GGUF_NAMES = {
    "self_attn.q_proj": "attn_q",
    "self_attn.k_proj": "attn_k",
    "self_attn.v_proj": "attn_v",
    "self_attn.o_proj": "attn_output",
    "self_attn.q_norm": "attn_q_norm",
    "self_attn.k_norm": "attn_k_norm",
    "input_layernorm": "attn_norm",
    "post_attention_layernorm": "ffn_norm",
    "mlp.gate_proj": "ffn_gate",
    "mlp.up_proj": "ffn_up",
    "mlp.down_proj": "ffn_down",
}


def write_tensors(path: Path, tensors: dict[str, tuple[np.ndarray, str]]) -> None:
    writer = gguf.GGUFWriter(path, "llama")
    for name, (values, kind) in tensors.items():
        writer.add_tensor(name, values, raw_dtype=gguf.GGMLQuantizationType[kind])
    finish(writer)


def finish(writer: gguf.GGUFWriter) -> None:
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()


@pytest.mark.parametrize("kind", ENCODABLE)
def test_each_type_dequantises_to_what_was_encoded(kind: str, tmp_path: Path) -> None:
    values = np.random.default_rng(0).standard_normal((33, 256), dtype=np.float32)
    encoded = gguf.quants.quantize(values, gguf.GGMLQuantizationType[kind])
    path = tmp_path / "one.gguf"
    write_tensors(path, {"token_embd.weight": (encoded, kind)})
    tensor = GGUFFile(path).tensor("token_embd.weight")
    expected = gguf.quants.dequantize(encoded, gguf.GGMLQuantizationType[kind])
    assert torch.equal(tensor, torch.from_numpy(np.array(expected, dtype=np.float32)))
    assert float((tensor - torch.from_numpy(values)).abs().mean()) < 0.15


@pytest.mark.parametrize("kind", ["Q4_K", "Q6_K"])
def test_k_quants_dequantise_as_the_library_does(kind: str, tmp_path: Path) -> None:
    block, size = gguf.GGML_QUANT_SIZES[gguf.GGMLQuantizationType[kind]]
    raw = np.random.default_rng(1).integers(0, 256, (32, 2 * size), dtype=np.uint8)
    # Scales are float16 inside the block: clear their exponents' top bit, so that none is infinite.
    raw[:, 1::2] &= 0xBF
    path = tmp_path / "k.gguf"
    write_tensors(path, {"token_embd.weight": (raw, kind)})
    tensor = GGUFFile(path).tensor("token_embd.weight")
    expected = np.array(gguf.quants.dequantize(raw, gguf.GGMLQuantizationType[kind]), dtype=np.float32)
    assert tensor.shape == (32, 2 * block)
    np.testing.assert_array_equal(tensor.numpy(), expected)


def test_all_promised_types_are_covered() -> None:
    assert {*ENCODABLE, "Q4_K", "Q6_K"} == set(SUPPORTED_TYPES)


def test_types_have_the_numbers_and_sizes_that_the_library_gives_them() -> None:
    for number, (name, *size) in gguf_file._TYPES.items():
        kind = gguf.GGMLQuantizationType[name]
        assert (number, tuple(size)) == (kind.value, gguf.GGML_QUANT_SIZES[kind])


def test_only_what_must_be_dequantised_needs_the_library(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    values = np.random.default_rng(0).standard_normal((32, 64), dtype=np.float32)
    encoded = gguf.quants.quantize(values, gguf.GGMLQuantizationType.Q4_1)
    path = tmp_path / "one.gguf"
    write_tensors(path, {"output.weight": (encoded, "Q4_1"), "output_norm.weight": (values[0], "F32")})
    monkeypatch.setitem(sys.modules, "gguf", None)
    file = GGUFFile(path)
    assert torch.equal(file.tensor("output_norm.weight"), torch.from_numpy(values[0]))
    assert file.raw("output.weight").tobytes() == encoded.tobytes()
    with pytest.raises(errors.ModelLoadError, match="needs the `gguf` package, which is not installed"):
        file.tensor("output.weight")


def write_model(
    folder: Path,
    name: str,
    path: Path,
    *,
    kind: str = "F32",
    save: Callable[[str, Path], PreTrainedModel] = save_tiny_model,
) -> None:
    """The tiny model as GGUF, as llama.cpp's converter lays it out (q and k interleaved for `llama`).

    kind: the type of its matrices; vectors are F32.
    """
    reference = save(name, folder)

    def add(name: str, values: np.ndarray) -> None:
        type_ = gguf.GGMLQuantizationType["F32" if values.ndim == 1 else kind]
        writer.add_tensor(name, gguf.quants.quantize(values, type_), raw_dtype=type_)

    architecture = "llama" if name.startswith("llama") else name.split("-")[0]
    config = reference.config
    writer = gguf.GGUFWriter(path, architecture)
    writer.add_block_count(config.num_hidden_layers)
    writer.add_context_length(config.max_position_embeddings)
    writer.add_embedding_length(config.hidden_size)
    writer.add_feed_forward_length(config.intermediate_size)
    writer.add_head_count(config.num_attention_heads)
    writer.add_head_count_kv(config.num_key_value_heads)
    writer.add_layer_norm_rms_eps(config.rms_norm_eps)
    writer.add_rope_freq_base(10000.0)
    writer.add_key_length(getattr(config, "head_dim", None) or config.hidden_size // config.num_attention_heads)
    add_vocabulary(writer, folder)
    heads = {"q_proj": config.num_attention_heads, "k_proj": config.num_key_value_heads}
    for full_name, tensor in reference.state_dict().items():
        values = tensor.numpy()
        layer = full_name.removeprefix("model.layers.").split(".", 1)
        if full_name.startswith("model.layers."):
            stem, suffix = layer[1].rsplit(".", 1)
            projection = stem.split(".")[-1]
            if architecture == "llama" and projection in heads:
                count = heads[projection]
                halves = values.reshape(count, 2, values.shape[0] // count // 2, *values.shape[1:])
                values = halves.swapaxes(1, 2).reshape(values.shape)
            add(f"blk.{layer[0]}.{GGUF_NAMES[stem]}.{suffix}", np.ascontiguousarray(values))
        elif full_name == "lm_head.weight":
            if not config.tie_word_embeddings:
                add("output.weight", values)
        else:
            add("token_embd.weight" if "embed" in full_name else "output_norm.weight", values)
    finish(writer)


def add_vocabulary(writer: gguf.GGUFWriter, folder: Path) -> None:
    raw = json.loads((folder / "tokenizer.json").read_text(encoding="utf-8"))["model"]
    tokens = sorted(raw["vocab"], key=raw["vocab"].get)
    writer.add_tokenizer_model("gpt2")
    writer.add_tokenizer_pre("gpt-2")
    writer.add_token_list(tokens)
    writer.add_token_types([3 if token in ("<s>", "</s>") else 1 for token in tokens])
    writer.add_token_merges([" ".join(merge) for merge in raw["merges"]])
    writer.add_bos_token_id(0)
    writer.add_eos_token_id(1)
    writer.add_add_bos_token(False)


@pytest.mark.parametrize("name", ["llama", "llama-tied", "qwen2", "qwen3-untied"])
def test_a_gguf_model_answers_as_its_safetensors_folder(name: str, tmp_path: Path) -> None:
    path = tmp_path / "model.gguf"
    write_model(tmp_path, name, path)
    params = SamplingParams(max_tokens=20, temperature=0, ignore_eos=True)
    answers = []
    for model in (tmp_path, path):
        engine = Engine(EngineConfig(model=model, dtype="float32", device="cpu", num_kv_blocks=16))
        answers.append(engine.generate("the quick brown fox", params).token_ids)
    assert answers[0] == answers[1]


def test_a_truncated_file_is_named_with_what_is_wrong(tmp_path: Path) -> None:
    path = tmp_path / "model.gguf"
    write_model(tmp_path, "llama", path)
    whole = path.read_bytes()
    path.write_bytes(whole[: len(whole) - 1000])
    with pytest.raises(
        errors.ModelLoadError, match=r"model\.gguf is truncated: tensor .* ends at byte [\d,]+, the file has"
    ):
        Engine(EngineConfig(model=path))
    path.write_bytes(whole[:500])
    with pytest.raises(errors.ModelLoadError, match=r"its header breaks off or is corrupt at byte [\d,]+ of 500"):
        Engine(EngineConfig(model=path))
    path.write_bytes(b"")
    with pytest.raises(errors.ModelLoadError, match=r"model\.gguf can not be read"):
        Engine(EngineConfig(model=path))
    path.write_bytes(b"PK\x03\x04" + bytes(100))
    with pytest.raises(errors.ModelLoadError, match=r"not a GGUF file: it begins with b'PK"):
        Engine(EngineConfig(model=path))


def test_corrupt_lengths_never_allocate_or_crash(tmp_path: Path) -> None:
    path = tmp_path / "model.gguf"
    write_model(tmp_path, "llama", path)
    whole = bytearray(path.read_bytes())
    generator = np.random.default_rng(7)
    for _ in range(60):
        broken = bytearray(whole)
        for position in generator.integers(8, 2000, 4):
            broken[position] = int(generator.integers(0, 256))
        path.write_bytes(broken)
        # Anything but a typed refusal (or a change that did no harm) fails the test.
        with contextlib.suppress(errors.EngineError):
            Engine(EngineConfig(model=path, dtype="float32", num_kv_blocks=4))


def test_an_unknown_architecture_names_the_supported_ones(tmp_path: Path) -> None:
    path = tmp_path / "other.gguf"
    writer = gguf.GGUFWriter(path, "mamba")
    finish(writer)
    with pytest.raises(errors.ModelLoadError, match=r"'mamba' is not supported; supported: llama, qwen2, qwen3"):
        Engine(EngineConfig(model=path))
