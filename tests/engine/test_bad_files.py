"""Model files that are broken, cut off or lie are refused by name; damaged packed copies are made anew."""

import contextlib
import json
import shutil
import struct
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from safetensors.numpy import load_file, save_file

from engine import Engine, EngineConfig, packed_weights
from engine.errors import InvalidParameterError, ModelLoadError
from engine.gguf_file import GGUFFile
from engine.packed_weights import PackedTensors
from engine.weights import FolderCheckpoint, open_checkpoint
from tests.engine.test_gguf import write_model
from tests.engine.test_packed import save_wide_model
from tests.engine.tiny_models import save_tiny_model

NAN = float("nan")

# ── model files ──────────────────────────────────────────────────────────────────────────────────────────────────────


def load(path: Path) -> None:
    """Open a model and read all of it, as starting an engine does."""
    checkpoint = open_checkpoint(path)
    checkpoint.tensors(torch.float32, torch.device("cpu"))


def refused_file(path: Path, message: str) -> None:
    with pytest.raises(ModelLoadError, match=message) as caught:
        load(path)
    assert path.name in str(caught.value)
    assert len(str(caught.value)) < 1000


@pytest.fixture(scope="module")
def originals(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder and a GGUF file of the same model."""
    folder = tmp_path_factory.mktemp("originals")
    write_model(folder / "model", "llama", folder / "model.gguf")
    return folder


def damaged(data: bytes, cut: int | None, edits: list[tuple[int, int]]) -> bytes:
    whole = bytearray(data[:cut])
    for position, value in edits:
        if whole:
            whole[position % len(whole)] = value
    return bytes(whole)


# Most places near the beginning, where the structure is.
PLACES = st.one_of(st.integers(0, 400), st.integers(0, 8000), st.integers(0, 1 << 20))
DAMAGE = {
    "cut": st.none() | PLACES,
    "edits": st.lists(st.tuples(PLACES, st.sampled_from([0, 1, 0x7F, 0x80, 0xFF]) | st.integers(0, 255)), max_size=8),
}
FUZZ = settings(max_examples=150, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])


@FUZZ
@given(**DAMAGE)
def test_a_damaged_gguf_file_is_refused_or_harmless(
    originals: Path, tmp_path: Path, cut: int | None, edits: list[tuple[int, int]]
) -> None:
    path = tmp_path / "damaged.gguf"
    path.write_bytes(damaged((originals / "model.gguf").read_bytes(), cut, edits))
    with contextlib.suppress(ModelLoadError):
        load(path)


@pytest.mark.parametrize(
    "name", ["model.safetensors", "config.json", "tokenizer.json", "tokenizer_config.json", "generation_config.json"]
)
def test_a_damaged_file_of_a_folder_is_refused_or_harmless(originals: Path, tmp_path: Path, name: str) -> None:
    folder = tmp_path / "model"
    shutil.copytree(originals / "model", folder)
    whole = (folder / name).read_bytes()

    @settings(FUZZ, max_examples=80)
    @given(**DAMAGE)
    def check(cut: int | None, edits: list[tuple[int, int]]) -> None:
        (folder / name).write_bytes(damaged(whole, cut, edits))
        with contextlib.suppress(ModelLoadError):
            load(folder)

    check()


def header(num_tensors: int, num_keys: int, rest: bytes = b"", version: int = 3) -> bytes:
    return b"GGUF" + struct.pack("<IQQ", version, num_tensors, num_keys) + rest


def text(value: str) -> bytes:
    return struct.pack("<Q", len(value)) + value.encode()


ARRAY, U8, U32, STRING = 9, 0, 4, 8


@pytest.mark.parametrize(
    ("data", "message"),
    [
        (b"", "can not be read"),
        (b"GGUF", "breaks off or is corrupt at byte 4 of 4"),
        (header(0, 0, version=9), "GGUF version 9; supported: 2 and 3"),
        (header(2**63, 0), "9,223,372,036,854,775,808 tensors, at most 1,048,576"),
        (header(0, 2**63), "9,223,372,036,854,775,808 keys, at most 65,536"),
        (header(0, 1, struct.pack("<Q", 2**63)), "a string of 9,223,372,036,854,775,808 bytes"),
        (header(0, 1, text("a") + struct.pack("<I", 99)), "value type 99"),
        (
            header(0, 1, text("a") + struct.pack("<IIQ", ARRAY, U8, 2**62)),
            "4,611,686,018,427,387,904 elements of an array, at most 16,777,216",
        ),
        (header(0, 1, text("a") + struct.pack("<IIQ", ARRAY, U32, 2**20)), "breaks off or is corrupt"),
        (header(0, 1, text("a") + struct.pack("<IIQ", ARRAY, STRING, 2**20)), "breaks off or is corrupt"),
        (header(0, 1, text("a") + struct.pack("<IIQ", ARRAY, ARRAY, 1) * 4000), "an array of arrays"),
        (header(0, 1, text("general.alignment") + struct.pack("<II", U32, 0)), "general.alignment is 0"),
        (header(0, 1, text("general.alignment") + struct.pack("<I", STRING) + text("x")), "general.alignment is x"),
        (header(1, 0, text("a") + struct.pack("<I", 2**32 - 1)), "4,294,967,295 dimensions, at most 4"),
        (
            header(1, 0, text("a") + struct.pack("<IQQIQ", 2, 2**62, 2**62, 0, 0)),
            "is truncated: tensor a ends at byte",
        ),
        (header(1, 0, text("a") + struct.pack("<IQIQ", 1, 32, 2, 2**63)), "is truncated: tensor a ends at byte"),
        (header(1, 0, text("a") + struct.pack("<IQIQ", 1, 33, 2, 0)), r"shape \[33\]; rows of type Q4_0 are multiples"),
        (header(1, 0, text("a") + struct.pack("<IQIQ", 1, 0, 0, 0)), r"shape \[0\]"),
        (header(1, 0, text("a") + struct.pack("<IQIQ", 1, 32, 77, 0)), "tensor a is of type number 77"),
    ],
)
def test_a_gguf_header_that_claims_too_much_is_refused_at_once(tmp_path: Path, data: bytes, message: str) -> None:
    path = tmp_path / "broken.gguf"
    path.write_bytes(data)
    refused_file(path, message)


@pytest.mark.parametrize(
    ("key", "value", "message"),
    [
        ("llama.block_count", 2**32 - 1, "num_hidden_layers must be an integer from 1 to 4,096, got 4294967295"),
        ("llama.block_count", 3, "lacks the tensor model.layers.2"),
        ("llama.block_count", "many", "num_hidden_layers must be an integer"),
        ("llama.embedding_length", 2**32 - 1, "num_hidden|hidden_size must be an integer"),
        ("llama.embedding_length", 0, "hidden_size must be an integer"),
        ("llama.attention.head_count", 0, "num_attention_heads must be an integer"),
        ("llama.attention.head_count", 5, "5 attention heads cannot share 2"),
        ("llama.attention.key_length", 7, "head_dim must be even, got 7"),
        ("llama.attention.layer_norm_rms_epsilon", NAN, "rms_norm_eps must be a positive number, got nan"),
        ("llama.rope.freq_base", -1.0, "rope_theta must be a positive number, got -1"),
        ("llama.rope.freq_base", "x", "llama.rope.freq_base must be a number, got 'x'"),
        ("llama.rope.scaling.type", "longrope", "rope scaling 'longrope' is not supported; supported: none, linear, y"),
        ("llama.context_length", 0, "max_position_embeddings must be|"),
        ("general.architecture", "mamba", "'mamba' is not supported; supported: llama, qwen2, qwen3"),
        ("tokenizer.ggml.model", "wordpiece", "names tokenizer 'wordpiece'"),
        ("tokenizer.ggml.pre", "martian", "names pre-tokenizer 'martian'"),
        ("tokenizer.ggml.tokens", 5, "corrupt|vocab_size"),
        ("tokenizer.ggml.merges", 5, "corrupt"),
        ("llama.vocab_size", 200, "tensor model.embed_tokens.weight has shape"),
    ],
)
def test_gguf_metadata_that_cannot_be_right_is_named(
    originals: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, key: str, value: Any, message: str
) -> None:
    real = GGUFFile.__init__

    def changed(self: GGUFFile, path: Path) -> None:
        real(self, path)
        self.metadata[key] = value

    monkeypatch.setattr(GGUFFile, "__init__", changed)
    shutil.copy(originals / "model.gguf", tmp_path / "model.gguf")
    with pytest.raises(ModelLoadError, match=message):
        load(tmp_path / "model.gguf")


def edit(name: str, **values: Any) -> Callable[[Path], None]:
    def change(folder: Path) -> None:
        raw = json.loads((folder / name).read_text())
        (folder / name).write_text(json.dumps({k: v for k, v in {**raw, **values}.items() if v != "absent"}))

    return change


def write(name: str, content: bytes) -> Callable[[Path], None]:
    return lambda folder: (folder / name).write_bytes(content) and None


def more_tokens(folder: Path) -> None:
    raw = json.loads((folder / "tokenizer.json").read_text())
    raw["model"]["vocab"]["beyond"] = 300
    (folder / "tokenizer.json").write_text(json.dumps(raw))


def token_id(value: Any) -> Callable[[Path], None]:
    def change(folder: Path) -> None:
        raw = json.loads((folder / "tokenizer.json").read_text())
        raw["model"]["vocab"]["beyond"] = value
        (folder / "tokenizer.json").write_text(json.dumps(raw))

    return change


def tensors_of_integers(folder: Path) -> None:
    tensors = load_file(folder / "model.safetensors")
    save_file({name: value.astype("int32") for name, value in tensors.items()}, folder / "model.safetensors")


SAFETENSORS = "model.safetensors is not a readable safetensors file"


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (write("model.safetensors", b""), SAFETENSORS),
        (write("model.safetensors", b"\xff" * 100), SAFETENSORS),
        (write("model.safetensors", struct.pack("<Q", 2**62) + b"{}"), SAFETENSORS),
        (write("model.safetensors", struct.pack("<Q", 100_000) + b"["* 100_000), SAFETENSORS),
        (write("model.safetensors", struct.pack("<Q", 2) + b"{}"), "lacks the tensor model.embed_tokens.weight"),
        (write("model.safetensors.index.json", b"["), "is no index of tensors"),
        (write("model.safetensors.index.json", b'{"weight_map": 5}'), "is no index of tensors"),
        (write("model.safetensors.index.json", b'{"weight_map": {"a": "gone.safetensors"}}'), "lacks gone.safetensors"),
        (write("config.json", b""), "config.json is not valid JSON"),
        (write("config.json", b"[]"), r"config.json must hold an object, not \[\]"),
        (write("config.json", b"[" * 100_000), "corrupt|not valid JSON"),
        (edit("config.json", architectures=["MambaForCausalLM"]), "'MambaForCausalLM' is not supported; supported: Ll"),
        (edit("config.json", architectures=[[]]), r"is not supported; supported: LlamaForCausalLM, Mistral"),
        (edit("config.json", architectures=None), "'none' is not supported"),
        (edit("config.json", hidden_size="absent"), "no field 'hidden_size'"),
        *[
            (edit("config.json", **{field: value}), f"{field} must be an integer from 1 to")
            for field in ("hidden_size", "num_hidden_layers", "num_attention_heads", "vocab_size", "intermediate_size",
                          "num_key_value_heads", "head_dim", "max_position_embeddings")
            for value in (-1, 1.5, True, "4", 10**30, [4])
        ],
        (edit("config.json", num_hidden_layers=3), "lacks the tensor model.layers.2"),
        (edit("config.json", rms_norm_eps=-1), "rms_norm_eps must be a positive number"),
        (edit("config.json", rms_norm_eps="x"), "field of the wrong kind"),
        (edit("config.json", rope_parameters=5), "field of the wrong kind"),
        (edit("config.json", rope_parameters={"rope_type": "dynamic", "factor": 4.0}), "scaling 'dynamic' is not supp"),
        (edit("config.json", rope_parameters={"rope_type": "yarn", "factor": -4}), "factor must be a positive number"),
        (edit("config.json", rope_parameters={"rope_type": "yarn", "beta_fast": "x"}), "field of the wrong kind"),
        (edit("config.json", rope_parameters={"rope_type": "linear"}), "no field 'factor'"),
        (edit("config.json", rope_parameters={"rope_type": "linear", "factor": 0}), "factor must be a positive number"),
        (edit("config.json", attention_bias=True), "lacks the tensor model.layers.0.self_attn.q_proj.bias"),
        (edit("config.json", architectures=["Qwen3ForCausalLM"]), "lacks the tensor model.layers.0.self_attn.q_norm"),
        (tensors_of_integers, "is stored as I32; supported: F64, F32, F16, BF16"),
        (more_tokens, "the tokenizer knows 301 tokens, the model only 300: tokenizer and weights do not belong"),
        (token_id(10**12), "the id 1000000000000; ids are integers from 0 to 16,777,215"),
        (token_id(-1), "the id -1; ids are integers"),
        (token_id("5"), "the id 5; ids are integers"),
        (write("tokenizer.json", b"{}"), "holds a None tokenizer; this engine knows BPE only"),
        (write("tokenizer.json", b"\x00"), "tokenizer.json is not valid JSON"),
        (edit("tokenizer.json", model={"type": "BPE"}), "corrupt"),
        (edit("tokenizer.json", added_tokens=5), "corrupt"),
    ],
)  # fmt: skip
def test_a_broken_folder_is_refused_by_file_and_field(
    originals: Path, tmp_path: Path, change: Callable[[Path], None], message: str
) -> None:
    folder = tmp_path / "model"
    shutil.copytree(originals / "model", folder)
    change(folder)
    refused_file(folder, message)


@pytest.mark.parametrize("path", ["missing", "missing.gguf", "text.txt", "empty"])
def test_what_is_no_model_is_refused_by_its_path(tmp_path: Path, path: str) -> None:
    (tmp_path / "text.txt").write_text("hello")
    (tmp_path / "empty").mkdir()
    refused_file(tmp_path / path, "neither a .gguf file nor a folder|config.json")


def test_a_draft_model_with_another_tokenizer_is_refused_by_field(tiny_folder: Path, tmp_path: Path) -> None:
    save_tiny_model("llama", tmp_path)
    raw = json.loads((tmp_path / "tokenizer.json").read_text())
    vocabulary = raw["model"]["vocab"]
    vocabulary["a"], vocabulary["b"] = vocabulary["b"], vocabulary["a"]
    (tmp_path / "tokenizer.json").write_text(json.dumps(raw))
    with pytest.raises(InvalidParameterError, match="another tokenizer than the model it should draft for: token"):
        Engine(EngineConfig(model=tiny_folder, draft_model=tmp_path, speculation="draft"))


# ── packed weights kept beside a model ───────────────────────────────────────────────────────────────────────────────


def same(left: PackedTensors, right: PackedTensors) -> bool:
    return left.shapes == right.shapes and all(
        part.keys() == other.keys() and all((part[name] == other[name]).all() for name in part)
        for part, other in ((left.packed, right.packed), (left.vectors, right.vectors))
    )


def test_damaged_packed_weights_are_made_anew(tmp_path: Path) -> None:
    folder = tmp_path / "wide"
    save_wide_model("llama", folder)
    expected = FolderCheckpoint(folder).packed()
    kept = tmp_path / "wide.packed.safetensors"
    whole = kept.read_bytes()

    @settings(FUZZ, max_examples=60)
    @given(**DAMAGE)
    def check(cut: int | None, edits: list[tuple[int, int]]) -> None:
        kept.write_bytes(damaged(whole, cut, edits))
        assert same(FolderCheckpoint(folder).packed(), expected)

    check()


def test_kept_weights_of_another_shape_are_made_anew(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    folder = tmp_path / "wide"
    save_wide_model("llama", folder)
    checkpoint = FolderCheckpoint(folder)
    expected = checkpoint.packed()
    broken = checkpoint.packed()
    name = next(iter(broken.packed))
    broken.packed[name] = broken.packed[name][:-1].copy()
    packed_weights._write(packed_weights._place(folder), packed_weights._stamp(folder), broken)
    assert same(FolderCheckpoint(folder).packed(), expected)
    assert "tensors are missing or of another shape" in caplog.text
