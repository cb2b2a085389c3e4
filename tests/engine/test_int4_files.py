"""AWQ and GPTQ checkpoints: quantised and written here by the formats' descriptions, read and served by the engine."""

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file, save_file
from torch import Tensor
from transformers import LlamaConfig, PreTrainedModel
from transformers.models.auto.modeling_auto import AutoModelForCausalLM

from engine import Engine, EngineConfig, errors
from engine.memory_plan import weight_bytes
from engine.step_batch import StepBatch
from engine.step_decoder import load_decoder
from engine.weights import FolderCheckpoint, open_checkpoint
from kernels.packed.formats import unpack
from tests.engine.test_architectures import all_logits
from tests.engine.tiny_models import VOCAB_SIZE, save_tiny_tokenizer

CPU = torch.device("cpu")
CONFIG = LlamaConfig(
    vocab_size=VOCAB_SIZE, hidden_size=128, intermediate_size=256, num_hidden_layers=2, num_attention_heads=4,
    num_key_value_heads=2, head_dim=32, max_position_embeddings=256, bos_token_id=0, eos_token_id=1,
    tie_word_embeddings=False,
)  # fmt: skip
AWQ_G32: dict[str, Any] = {"quant_method": "awq", "bits": 4, "group_size": 32, "zero_point": True, "version": "gemm"}
GPTQ_G64: dict[str, Any] = {
    "quant_method": "gptq", "bits": 4, "group_size": 64, "desc_act": False, "sym": False, "checkpoint_format": "gptq",
}  # fmt: skip
FORMATS: dict[str, dict[str, Any]] = {
    "awq-32": AWQ_G32,
    "awq-64": {**AWQ_G32, "group_size": 64},
    "awq-128": {**AWQ_G32, "group_size": 128},
    "awq-whole": {**AWQ_G32, "group_size": -1},
    "gptq-64": GPTQ_G64,
    "gptq-128-symmetric": {**GPTQ_G64, "group_size": 128, "sym": True},
    "gptq-whole": {**GPTQ_G64, "group_size": -1},
    "gptq-v2-32": {**GPTQ_G64, "group_size": 32, "checkpoint_format": "gptq_v2"},
    "gptq-v2-symmetric": {**GPTQ_G64, "sym": True, "checkpoint_format": "gptq_v2"},
    "gptq-moved": {**GPTQ_G64, "group_size": 32, "desc_act": True},
    "gptq-moved-whole": {**GPTQ_G64, "group_size": -1, "desc_act": True},
}


def words(codes: Tensor) -> Tensor:
    """[rows, 8 n] nibbles to [rows, n] int32, the first nibble lowest."""
    packed = torch.zeros(codes.shape[0], codes.shape[1] // 8, dtype=torch.int64)
    for nibble in range(8):
        packed |= (codes[:, nibble::8].long() & 15) << 4 * nibble
    return torch.where(packed >= 1 << 31, packed - (1 << 32), packed).int()


def quantise(weight: Tensor, form: dict[str, Any], seed: int) -> tuple[dict[str, Tensor], Tensor]:
    """The stored tensors of a matrix [out, in], and the float32 matrix that they stand for: (code − zero) · scale."""
    out, inputs = weight.shape
    group = inputs if form["group_size"] == -1 else form["group_size"]
    group_of = torch.arange(inputs) // group
    if form.get("desc_act"):
        group_of = group_of[torch.randperm(inputs, generator=torch.Generator().manual_seed(seed))]
    columns = weight.t()
    scales, zeros = torch.empty(inputs // group, out, dtype=torch.float16), torch.empty(inputs // group, out)
    for number in range(inputs // group):
        part = columns[group_of == number]
        low, high = part.amin(0).clamp(max=0), part.amax(0).clamp(min=0)
        if form.get("sym"):
            scales[number], zeros[number] = (torch.maximum(-low, high) / 7.5).half(), 8
        else:
            scales[number] = ((high - low) / 15).half()
            zeros[number] = (-low / scales[number].float()).round().clamp(0, 15)
    wide = scales.float()[group_of]
    codes = (columns / wide + zeros[group_of]).round().clamp(0, 15)
    stands_for = ((codes - zeros[group_of]) * wide).t().contiguous()
    if form["quant_method"] == "awq":
        # AutoAWQ packs column ORDER[i] of eight into nibble i.
        order = (torch.arange(out) // 8 * 8).view(-1, 8) + torch.tensor([0, 2, 4, 6, 1, 3, 5, 7])
        stored = {"qweight": words(codes[:, order.flatten()]), "qzeros": words(zeros[:, order.flatten()])}
    else:
        less = 1 if form["checkpoint_format"] == "gptq" else 0
        stored = {
            "qweight": words(codes.t().contiguous()).t().contiguous(),
            "qzeros": words(zeros - less),
            "g_idx": group_of.int(),
        }
    return {**stored, "scales": scales}, stands_for


def save_int4_model(folder: Path, form: dict[str, Any]) -> PreTrainedModel:
    """Save a tiny quantised Llama; returns transformers' model over the weights that it stands for."""
    torch.manual_seed(0)
    model = AutoModelForCausalLM.from_config(CONFIG, attn_implementation="eager").float().eval()
    stored: dict[str, Tensor] = {}
    with torch.no_grad():
        for index, (name, parameter) in enumerate(model.named_parameters()):
            noise = torch.randn_like(parameter) * 0.1
            parameter.copy_(1 + noise if "norm" in name else noise)
            if "_proj" not in name:
                stored[name] = parameter.half()
                parameter.copy_(stored[name].float())
                continue
            # Layers of one input are quantised in one order, as GPTQ does; one is not, as it may be.
            seed = index if "up_proj" in name else 0
            parts, stands_for = quantise(parameter, form, seed)
            parameter.copy_(stands_for)
            stored |= {f"{name.removesuffix('.weight')}.{part}": tensor for part, tensor in parts.items()}
    config = {**CONFIG.to_dict(), "architectures": ["LlamaForCausalLM"], "quantization_config": form}
    (folder / "config.json").write_text(json.dumps(config))
    save_file(stored, folder / "model.safetensors")
    save_tiny_tokenizer(folder)
    return model


@pytest.fixture(scope="module")
def gptq_folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("gptq")
    save_int4_model(folder, GPTQ_G64)
    return folder


@pytest.mark.parametrize("name", FORMATS)
def test_weights_are_the_formulas_to_the_bit_and_logits_those_of_the_plain_model(name: str, tmp_path: Path) -> None:
    model = save_int4_model(tmp_path, FORMATS[name])
    checkpoint = open_checkpoint(tmp_path)
    tensors = checkpoint.tensors(torch.float32, CPU)
    for parameter_name, parameter in model.named_parameters():
        assert torch.equal(tensors[parameter_name], parameter), parameter_name
    token_ids = torch.randint(2, VOCAB_SIZE, (12,), generator=torch.Generator().manual_seed(1)).tolist()
    with torch.no_grad():
        expected = model(torch.tensor([token_ids])).logits[0]
    engine = Engine(EngineConfig(model=tmp_path, dtype="float32", device="cpu", num_kv_blocks=4))
    torch.testing.assert_close(all_logits(engine, token_ids), expected, atol=1e-3, rtol=0)
    # As on a GPU: the matrices stay in 4 bits.
    decoder = load_decoder(checkpoint, "int4", CPU, max_position=64, halved=False, exact=False)
    assert decoder.num_parameters == checkpoint.num_parameters
    decoder.allocate(2, 16)
    batch = StepBatch(16)
    batch.add(token_ids, 0, [1])
    batch.rows += range(len(token_ids))
    torch.testing.assert_close(decoder.forward(batch), expected, atol=1e-3, rtol=0)


@pytest.mark.parametrize(("name", "bits"), [("awq-32", 4), ("gptq-whole", 4), ("gptq-moved", 8)])
def test_on_a_cpu_codes_stay_packed_where_inputs_are_in_order(name: str, bits: int, tmp_path: Path) -> None:
    model = save_int4_model(tmp_path, FORMATS[name])
    engine = Engine(EngineConfig(model=tmp_path, device="cpu", num_kv_blocks=4))
    assert engine.runner.weight_format == "packed"
    checkpoint = FolderCheckpoint(tmp_path)
    assert checkpoint.packed_is_kept
    packed = checkpoint.packed()
    assert weight_bytes(checkpoint, "packed") == sum(
        value.nbytes for part in (packed.packed, packed.vectors) for value in part.values()
    )
    weight = dict(model.named_parameters())["model.layers.1.mlp.down_proj.weight"].detach()
    kept = torch.from_numpy(unpack(packed.packed["model.layers.1.mlp.down_proj.weight"], 128).copy())
    step = float(weight.abs().max()) / (7 if bits == 4 else 127)
    # In 4 bits only zero · scale is rounded, to 16 bits; in 8 bits every number to half a step.
    assert float((kept - weight).abs().max()) < step * (0.01 if bits == 4 else 0.6)
    token_ids = [5, 77, 130, 9, 41, 200]
    with torch.no_grad():
        expected = model(torch.tensor([token_ids])).logits[0]
    difference = (all_logits(engine, token_ids) - expected).norm() / expected.norm()
    assert float(difference) < 0.05


def test_a_symmetric_file_with_the_wrong_version_is_read_by_its_zeros(tmp_path: Path) -> None:
    model = save_int4_model(tmp_path, FORMATS["gptq-v2-symmetric"])
    config = json.loads((tmp_path / "config.json").read_text())
    config["quantization_config"]["checkpoint_format"] = "gptq"
    (tmp_path / "config.json").write_text(json.dumps(config))
    tensors = open_checkpoint(tmp_path).tensors(torch.float32, CPU)
    name = "model.layers.0.self_attn.q_proj.weight"
    assert torch.equal(tensors[name], dict(model.named_parameters())[name])


def test_four_bits_are_counted_as_they_are_kept_on_a_gpu(gptq_folder: Path) -> None:
    checkpoint = FolderCheckpoint(gptq_folder)
    matrices = checkpoint.int4_tensors(CPU)
    kept = sum(part.nbytes for weight in matrices.values() for part in (weight.words, weight.scales, weight.zeros))
    rest = checkpoint.tensors(torch.bfloat16, CPU, without=matrices)
    assert weight_bytes(checkpoint, "int4") == kept + sum(tensor.nbytes for tensor in rest.values())
    assert checkpoint.stored_types == ("GPTQ, 4 bits, groups of 64", "F16")
    assert checkpoint.num_parameters == sum(p.numel() for p in AutoModelForCausalLM.from_config(CONFIG).parameters())


# ── what is wrong ────────────────────────────────────────────────────────────────────────────────────────────────────

Q = "model.layers.1.self_attn.q_proj"


def config_with(**changes: Any) -> Callable[[Path], None]:
    def change(folder: Path) -> None:
        raw = json.loads((folder / "config.json").read_text())
        raw["quantization_config"] |= changes
        (folder / "config.json").write_text(json.dumps(raw))

    return change


def tensor_with(name: str, make: Callable[[Tensor], Tensor] | None) -> Callable[[Path], None]:
    def change(folder: Path) -> None:
        tensors = load_file(folder / "model.safetensors")
        given = tensors.pop(name)
        if make is not None:
            tensors[name] = make(given).contiguous()
        save_file(tensors, folder / "model.safetensors")

    return change


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (config_with(bits=3), "3 bits are not supported; supported: 4"),
        (config_with(bits=None), "None bits are not supported"),
        (
            config_with(quant_method="bitsandbytes"),
            "quant_method 'bitsandbytes' is not supported; supported: awq, gptq",
        ),
        (config_with(quant_method="awq", version="gemv"), "version 'gemv' is not supported; supported: gemm"),
        (
            config_with(checkpoint_format="marlin"),
            "checkpoint_format 'marlin' is not supported; supported: gptq, gptq_v",
        ),
        (config_with(group_size=0), "group_size must be -1 or a multiple of 8, got 0"),
        (config_with(group_size="64"), "group_size must be -1 or a multiple of 8, got '64'"),
        (config_with(group_size=96), r"_proj\.qweight has \d+ inputs and \d+ outputs; inputs must come in whole gro"),
        (config_with(group_size=32), r"_proj\.qzeros has shape .* a group_size of 32 need \["),
        (tensor_with(f"{Q}.scales", None), rf"lack the tensor {Q}\.scales"),
        (tensor_with(f"{Q}.qzeros", None), rf"lack the tensor {Q}\.qzeros"),
        (tensor_with(f"{Q}.qweight", None), rf"lacks the tensor {Q}\.weight"),
        (tensor_with(f"{Q}.scales", lambda t: t[:, :8]), rf"tensor {Q}\.scales has shape \[2, 8\]"),
        (tensor_with(f"{Q}.qweight", lambda t: t[:8]), rf"{Q}\.qzeros has shape \[2, 16\]"),
        (tensor_with(f"{Q}.qweight", lambda t: t[0]), rf"{Q}\.qweight has shape \[128\], it must have two axes"),
        (tensor_with(f"{Q}.qweight", lambda t: t.float()), rf"{Q}\.qweight is stored as F32; supported: I32"),
        (tensor_with(f"{Q}.scales", lambda t: t * float("inf")), rf"{Q}\.scales holds numbers that are not finite"),
        (tensor_with(f"{Q}.g_idx", lambda t: t.flip(0)), rf"desc_act is false, yet tensor {Q}\.g_idx moves inputs"),
        (tensor_with(f"{Q}.g_idx", lambda t: t * 0), rf"{Q}\.g_idx: g_idx gives groups of \[128, 0\] inputs"),
        (tensor_with(f"{Q}.g_idx", lambda t: t - 1), rf"{Q}\.g_idx: g_idx names groups from -1 to 0; there are 2"),
    ],
)
def test_what_is_wrong_is_named(
    gptq_folder: Path, tmp_path: Path, change: Callable[[Path], None], message: str
) -> None:
    for file in gptq_folder.iterdir():
        (tmp_path / file.name).write_bytes(file.read_bytes())
    change(tmp_path)
    with pytest.raises(errors.ModelLoadError, match=message) as caught:
        open_checkpoint(tmp_path).tensors(torch.float32, CPU)
    assert tmp_path.name in str(caught.value)


def test_a_moved_order_that_is_missing_is_named(gptq_folder: Path, tmp_path: Path) -> None:
    for file in gptq_folder.iterdir():
        (tmp_path / file.name).write_bytes(file.read_bytes())
    config_with(desc_act=True)(tmp_path)
    tensor_with(f"{Q}.g_idx", None)(tmp_path)
    with pytest.raises(errors.ModelLoadError, match=rf"lack the tensor {Q}\.g_idx"):
        open_checkpoint(tmp_path)
