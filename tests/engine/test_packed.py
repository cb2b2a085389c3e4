"""Models over packed weights: logits near the unpacked model's, the same bits whatever goes on around a request."""

from collections.abc import Iterator
from pathlib import Path

import gguf
import numpy as np
import pytest
import torch
from transformers import PreTrainedModel

from engine import Engine, EngineConfig, SamplingParams, errors
from engine.decoder import Decoder
from engine.gguf_file import GGUFFile
from engine.packed_decoder import PackedDecoder
from engine.packed_weights import PackedTensors, pack_gguf
from engine.step_batch import StepBatch
from engine.weights import FolderCheckpoint
from kernels.packed.formats import unpack
from kernels.packed.model import Team
from tests.engine.test_exactness import Answer, exact
from tests.engine.test_gguf import write_tensors
from tests.engine.test_speculation import Oracle, run, speculate
from tests.engine.tiny_models import CONFIGS, save_tiny_model

# Widths that the packed kernels take.
WIDTHS = {
    "hidden_size": 96,
    "intermediate_size": 160,
    "num_attention_heads": 6,
    "num_key_value_heads": 2,
    "head_dim": 32,
}
CPU = torch.device("cpu")
BLOCK = 16


@pytest.fixture(scope="module", autouse=True)
def team_of_two() -> Iterator[None]:
    """Two threads share each step, however many torch was given: what they share must not change a bit."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(Team, "_shared_team", Team(2))
        yield


@pytest.fixture(scope="module", params=["llama", "llama-tied", "llama3-rope", "qwen2", "qwen3", "mistral-window"])
def folder(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp(request.param)
    save_wide_model(request.param, path)
    return path


def save_wide_model(name: str, folder: Path) -> PreTrainedModel:
    narrow = CONFIGS[name]
    CONFIGS[name] = type(narrow)(**{**narrow.to_dict(), **WIDTHS, "max_position_embeddings": 1024})
    try:
        return save_tiny_model(name, folder)
    finally:
        CONFIGS[name] = narrow


def decoders(folder: Path) -> tuple[PackedDecoder, Decoder]:
    """The packed decoder, and torch's over exactly the weights that the packed one stands for."""
    checkpoint = FolderCheckpoint(folder)
    tensors = checkpoint.packed()
    plain: dict[str, torch.Tensor] = {name: torch.from_numpy(value) for name, value in tensors.vectors.items()}
    for name, value in tensors.packed.items():
        plain[name] = torch.from_numpy(unpack(value, tensors.shapes[name][0]).copy())
    packed = PackedDecoder(checkpoint.config, tensors, max_position=1024)
    reference = Decoder(checkpoint.config, plain, max_position=1024)
    for decoder in (packed, reference):
        decoder.allocate(80, BLOCK)
    return packed, reference


def batch_of(sequences: list[tuple[list[int], int, list[int]]]) -> StepBatch:
    """A step of (token ids, position of the first, block table), with logits of every token."""
    batch = StepBatch(BLOCK)
    for token_ids, start, table in sequences:
        batch.add(token_ids, start, table)
    batch.rows = list(range(len(batch.token_ids)))
    return batch


def test_logits_are_near_the_unpacked_models_and_equal_in_any_order(folder: Path) -> None:
    packed, reference = decoders(folder)
    rng = np.random.default_rng(0)
    # Beyond two splits of the attention; tables out of order, with foreign blocks between.
    prompts = [rng.integers(2, 300, length).tolist() for length in (590, 1, 17, 40)]
    free = rng.permutation(80).tolist()
    tables = [[free.pop() for _ in range(-(-len(prompt) // BLOCK))] for prompt in prompts]
    whole = batch_of([(prompt, 0, table) for prompt, table in zip(prompts, tables, strict=True)])
    logits = packed.forward(whole)
    expected = reference.forward(whole)
    error = (logits - expected).abs()
    assert float(error.mean() / expected.std()) < 0.03
    assert float(error.max() / expected.std()) < 0.5

    # Every key that no row may see is poisoned; a result must not depend on it. As float16 this is not a number; as
    # bfloat16 it is the largest, since nothing that is not finite is ever stored.
    for keys, values in packed._model._pools:
        keys.view(np.uint16)[:], values.view(np.uint16)[:] = 0x7F7F, 0x7F7F
    rows: list[list[torch.Tensor]] = [[] for _ in prompts]
    done = [0] * len(prompts)
    while any(position < len(prompt) for position, prompt in zip(done, prompts, strict=True)):
        step = []
        for index, prompt in enumerate(prompts):
            length = min(int(rng.choice([0, 1, 1, 5, 37, 130])), len(prompt) - done[index])
            if length:
                step.append((index, prompt[done[index] : done[index] + length], done[index], tables[index]))
                done[index] += length
        if step:
            chunks = packed.forward(batch_of([entry[1:] for entry in step]))
            for entry, part in zip(step, chunks.split([len(entry[1]) for entry in step]), strict=True):
                rows[entry[0]].append(part)
    in_pieces = torch.cat([part for parts in rows for part in parts])
    assert torch.equal(in_pieces, logits)


def test_a_row_has_the_same_logits_whichever_others_are_asked_for(folder: Path) -> None:
    packed, _ = decoders(folder)
    rng = np.random.default_rng(1)
    prompts = [rng.integers(2, 300, length).tolist() for length in (290, 33)]
    whole = batch_of([(prompts[0], 0, list(range(20))), (prompts[1], 0, list(range(20, 24)))])
    everything = packed.forward(whole)
    following = batch_of([([7], 290, list(range(20)))])
    expected = packed.forward(following)
    for rows in ([289, 322], [0, 31, 32, 255, 256, 300], [5], []):
        for keys, values in packed._model._pools:
            keys[:], values[:] = 0, 0
        whole.rows = rows
        assert torch.equal(packed.forward(whole), everything[rows])
        # Keys and values are there of all rows.
        assert torch.equal(packed.forward(following), expected)


PROMPTS = [list(range(20, 60)), [*range(20, 53), 5, 6, 7], [7, 8, 9, 10] * 5, list(range(100, 123)), [40, 41]]
SEEDED = SamplingParams(max_tokens=40, temperature=1.0, seed=99, ignore_eos=True, logprobs=5)
GREEDY = SamplingParams(max_tokens=40, temperature=0, ignore_eos=True, logprobs=5)


def make(folder: Path, **overrides: object) -> Engine:
    settings: dict[str, object] = {
        "model": folder,
        "dtype": "int8",
        "device": "cpu",
        "num_kv_blocks": 60,
        "max_num_batched_tokens": 64,
        "check_integrity": True,
        "speculation": "off",
    }
    return Engine(EngineConfig(**{**settings, **overrides}))  # type: ignore[arg-type]


@pytest.mark.parametrize("params", [GREEDY, SEEDED], ids=["greedy", "seeded"])
def test_answers_are_bit_equal_whatever_goes_on_around_them(folder: Path, params: SamplingParams) -> None:
    plain: list[Answer] = []
    for prompt in PROMPTS:
        plain += exact(run(make(folder, enable_prefix_caching=False), [prompt], params))
    for overrides in ({}, {"max_num_batched_tokens": 7}, {"num_kv_blocks": 14}, {"max_num_seqs": 2}):
        engine = make(folder, **overrides)
        assert exact(run(engine, PROMPTS, params)) == plain, overrides
        if "num_kv_blocks" in overrides:
            assert engine.stats().num_preemptions > 0
    warm = make(folder)
    assert [exact(run(warm, PROMPTS, params)) for _ in range(2)] == [plain, plain]
    assert warm.stats().num_prefix_hits > 0
    drafting = make(folder)
    speculate(drafting, Oracle({(f"r{i}", 0): tokens for i, (tokens, _) in enumerate(plain)}, 3), 4)
    assert exact(run(drafting, PROMPTS, params)) == plain
    assert drafting.stats().num_accepted_tokens > 0


@pytest.mark.parametrize("kind", ["Q4_0", "Q4_1", "Q8_0", "Q5_0", "F16"])
def test_gguf_types_keep_their_values(kind: str, tmp_path: Path) -> None:
    values = np.random.default_rng(0).standard_normal((40, 96)).astype(np.float32)
    encoded = gguf.quants.quantize(values, gguf.GGMLQuantizationType[kind])
    write_tensors(tmp_path / "one.gguf", {"token_embd.weight": (encoded, kind)})
    file = GGUFFile(tmp_path / "one.gguf")
    swap = lambda rows: np.ascontiguousarray(rows[::-1])  # noqa: E731
    for reorder in (None, swap):
        tensors = pack_gguf(file, [("token_embd.weight", "weight", reorder)])
        expected = file.tensor("token_embd.weight").numpy()
        expected = expected if reorder is None else swap(expected)
        kept = kind in ("Q4_0", "Q4_1", "Q8_0")
        np.testing.assert_allclose(unpack(tensors.packed["weight"], 40), expected, atol=1e-6 if kept else 0.02)


def test_packed_weights_are_kept_beside_the_model(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    save_wide_model("llama", tmp_path)
    kept = tmp_path.with_name(f"{tmp_path.name}.packed.safetensors")

    def load() -> PackedTensors:
        return FolderCheckpoint(tmp_path).packed()

    def same(left: PackedTensors, right: PackedTensors) -> bool:
        return left.shapes == right.shapes and all(
            np.array_equal(value, right.packed[name]) for name, value in left.packed.items()
        )

    first = load()
    written = kept.stat().st_mtime_ns
    assert same(load(), first)
    assert kept.stat().st_mtime_ns == written
    kept.write_bytes(kept.read_bytes()[:1000])
    assert same(load(), first)
    assert "made anew" in caplog.text
    # Another model under the same name.
    save_wide_model("qwen3", tmp_path)
    assert not same(load(), first)


def test_where_packing_is_not_possible(tmp_path: Path) -> None:
    save_tiny_model("llama", tmp_path)
    with pytest.raises(errors.InvalidParameterError, match="hidden_size of 48, packed weights need multiples of 32"):
        make(tmp_path)
    with pytest.raises(errors.InvalidParameterError, match="blocks of 4 tokens"):
        make(tmp_path, block_size=4)


def test_a_damaged_scale_is_refused_when_packed(tmp_path: Path) -> None:
    values = np.random.default_rng(0).standard_normal((16, 64)).astype(np.float32)
    for kind in ("Q4_0", "Q4_1", "Q8_0"):
        encoded = gguf.quants.quantize(values, gguf.GGMLQuantizationType[kind]).copy()
        encoded[3, :2] = 0xFF
        write_tensors(tmp_path / f"{kind}.gguf", {"token_embd.weight": (encoded, kind)})
        with pytest.raises(errors.ModelLoadError, match=r"token_embd.weight holds numbers that are not finite"):
            pack_gguf(GGUFFile(tmp_path / f"{kind}.gguf"), [("token_embd.weight", "weight", None)])


def test_logits_that_are_not_finite_end_the_answer_with_a_reason(tmp_path: Path) -> None:
    save_wide_model("llama", tmp_path)
    engine = make(tmp_path)
    forward = engine.runner.decoder.forward
    engine.runner.decoder.forward = lambda *arguments: forward(*arguments).fill_(float("nan"))  # type: ignore[method-assign]
    for params in (GREEDY, SEEDED, SamplingParams(max_tokens=4, temperature=0)):
        with pytest.raises(errors.StepFailedError, match="not finite"):
            engine.generate(PROMPTS[0], params)
    engine.runner.decoder.forward = forward  # type: ignore[method-assign]
    assert len(engine.generate(PROMPTS[0], GREEDY).token_ids) == 40
