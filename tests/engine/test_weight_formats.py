"""In which format each kind of file is served on a CPU: quantised ones stay packed, others keep their floats."""

from pathlib import Path

import gguf
import numpy as np
import pytest

from engine import Engine, EngineConfig, SamplingParams
from engine.gguf_file import GGUFFile
from engine.packed_weights import pack_gguf
from kernels.packed.formats import INT8_BLOCK_BYTES, unpack
from tests.engine.test_gguf import write_model, write_tensors
from tests.engine.test_packed import save_wide_model


@pytest.mark.parametrize(
    ("kind", "dtype", "expected"),
    [
        *[(kind, "auto", "packed") for kind in ("Q4_0", "Q4_1", "Q5_0", "Q8_0")],
        *[(kind, "auto", "float") for kind in ("F32", "F16", "BF16")],
        *[(kind, "int8", "packed") for kind in ("Q4_0", "F32", "F16", "BF16")],
        *[(kind, "float32", "float32") for kind in ("Q4_0", "F16")],
    ],
)
def test_quantised_files_stay_packed_and_others_keep_their_floats(
    kind: str, dtype: str, expected: str, tmp_path: Path
) -> None:
    path = tmp_path / "model.gguf"
    write_model(tmp_path, "llama", path, kind=kind, save=save_wide_model)
    engine = Engine(EngineConfig(model=path, dtype=dtype, device="cpu", num_kv_blocks=4))
    assert engine.runner.weight_format in ({"float": ("bfloat16", "float32")}.get(expected, (expected,)))
    assert len(engine.generate([5, 6], SamplingParams(max_tokens=3, ignore_eos=True)).token_ids) == 3


@pytest.mark.parametrize("kind", ["Q4_K", "Q6_K"])
def test_k_quants_are_packed_to_eight_bits(kind: str, tmp_path: Path) -> None:
    _, size = gguf.GGML_QUANT_SIZES[gguf.GGMLQuantizationType[kind]]
    raw = np.random.default_rng(1).integers(0, 256, (32, 2 * size), dtype=np.uint8)
    raw[:, 1::2] &= 0x3F  # keeps the float16 scales inside the blocks finite and small
    write_tensors(tmp_path / "k.gguf", {"token_embd.weight": (raw, kind)})
    file = GGUFFile(tmp_path / "k.gguf")
    packed = pack_gguf(file, [("token_embd.weight", "weight", None)]).packed["weight"]
    assert packed.shape == (2, 16, INT8_BLOCK_BYTES)
    values = file.tensor("token_embd.weight").numpy()
    largest = np.abs(values.reshape(32, -1, 32)).max(-1).repeat(32, axis=-1)
    # Half a step of an eight-bit code, and the rounding of its float16 scale.
    assert (np.abs(unpack(packed, 32) - values) <= largest * (0.5 / 127 + 1e-3) + 1e-6).all()
