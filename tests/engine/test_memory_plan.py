"""The memory a model takes is what is counted, and what cannot fit is refused before a tensor is read."""

import json
from pathlib import Path

import pytest
import torch

from engine import Engine, EngineConfig, errors
from engine.available_memory import available_bytes
from engine.memory_plan import CPU_KV_BYTES, CPU_OVERHEAD_BYTES, MemoryPlan, weight_bytes
from engine.step_memory import PACKED
from engine.weights import FolderCheckpoint, GGUFCheckpoint, open_checkpoint
from tests.engine.test_gguf import write_model
from tests.engine.test_packed import save_wide_model
from tests.engine.tiny_models import save_tiny_model

CPU = torch.device("cpu")
MiB, GiB = 1 << 20, 1 << 30


def plan(folder: Path, available: int, weight_format: str = "float32", **settings: object) -> MemoryPlan:
    config = EngineConfig(model=folder, device="cpu", dtype=weight_format.replace(PACKED, "int8"), **settings)  # type: ignore[arg-type]
    return MemoryPlan.of(config, CPU, available, open_checkpoint(folder), weight_format)


@pytest.fixture(scope="module")
def wide(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("wide")
    save_wide_model("llama", folder)
    return folder


# ── what is counted ──────────────────────────────────────────────────────────────────────────────────────────────────


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_weights_are_counted_as_they_are_loaded(tiny_folder: Path, dtype: torch.dtype) -> None:
    checkpoint = FolderCheckpoint(tiny_folder)
    loaded = sum(tensor.nbytes for tensor in checkpoint.tensors(dtype, CPU).values())
    assert weight_bytes(checkpoint, str(dtype).removeprefix("torch.")) == loaded
    assert checkpoint.num_parameters == loaded // dtype.itemsize
    assert checkpoint.stored_types == ("F32",)


def test_packed_weights_are_counted_as_they_are_packed(wide: Path) -> None:
    checkpoint = FolderCheckpoint(wide)
    assert not checkpoint.packed_is_kept
    tensors = checkpoint.packed()
    assert weight_bytes(checkpoint, PACKED) == sum(
        value.nbytes for part in (tensors.packed, tensors.vectors) for value in part.values()
    )
    assert checkpoint.packed_is_kept


@pytest.mark.parametrize(("kind", "stored"), [("Q4_1", ("Q4_1", "F32")), ("Q8_0", ("Q8_0", "F32"))])
def test_a_quantised_files_types_decide_its_packed_size(kind: str, stored: tuple[str, ...], tmp_path: Path) -> None:
    path = tmp_path / "model.gguf"
    write_model(tmp_path, "llama", path, kind=kind, save=save_wide_model)
    checkpoint = GGUFCheckpoint(path)
    assert checkpoint.stored_types == stored
    tensors = checkpoint.packed()
    assert weight_bytes(checkpoint, PACKED) == sum(
        value.nbytes for part in (tensors.packed, tensors.vectors) for value in part.values()
    )


def test_copies_for_few_rows_are_counted(tiny_folder: Path) -> None:
    checkpoint = FolderCheckpoint(tiny_folder)
    engine = Engine(EngineConfig(model=tiny_folder, dtype="auto", device="cpu"))
    matrices = sum(a * b for a, b in (shape for shape in checkpoint.shapes.values() if len(shape) == 2))
    embedding = 300 * 48
    assert weight_bytes(checkpoint, "float32", halved=True) == 4 * checkpoint.num_parameters + 2 * (
        matrices - embedding
    )
    # A CPU that computes in bfloat16 keeps nothing twice.
    served = engine.runner.weight_format
    assert engine.runner.memory_plan.weight_bytes == weight_bytes(checkpoint, served, halved=served == "float32")


def test_the_plans_figures_are_those_of_the_engine(tiny_folder: Path, wide: Path) -> None:
    for folder, dtype in ((tiny_folder, "float32"), (tiny_folder, "bfloat16"), (wide, "int8")):
        runner = Engine(EngineConfig(model=folder, dtype=dtype, device="cpu", max_num_seqs=2)).runner
        assert runner.memory_plan.kv_bytes_per_token == runner.kv_bytes_per_token
        assert runner.memory_plan.num_blocks == runner.num_blocks
        assert runner.memory_plan.max_model_len == runner.max_model_len
        assert runner.decoder.num_parameters == open_checkpoint(folder).num_parameters


def test_the_parts_add_up(tiny_folder: Path) -> None:
    small = plan(tiny_folder, GiB)
    assert sum(size for _, size in small.parts(16)) == small.needed_bytes(16)
    loading = plan(tiny_folder, GiB, max_num_batched_tokens=1, max_num_seqs=1, max_model_len=16)
    assert "copies while loading" in loading.parts(1)[-1][0]
    assert sum(size for _, size in loading.parts(1)) == loading.needed_bytes(1)


def test_activations_grow_with_the_step_and_the_context(tiny_folder: Path, wide: Path) -> None:
    for folder, weight_format in ((tiny_folder, "float32"), (wide, PACKED)):
        base = plan(folder, GiB, weight_format)
        longer = plan(folder, GiB, weight_format, max_model_len=64)
        wider = plan(folder, GiB, weight_format, max_num_batched_tokens=512)
        assert longer.activation_bytes(100) < base.activation_bytes(100) < wider.activation_bytes(100)
        assert base.activation_bytes(4) < base.activation_bytes(8)


# ── what fits ────────────────────────────────────────────────────────────────────────────────────────────────────────


@pytest.mark.parametrize("available", [0, 200 * MiB, 258 * MiB, 300 * MiB, GiB, 64 * GiB])
def test_the_largest_pool_fits_and_one_block_more_does_not(tiny_folder: Path, available: int) -> None:
    drawn = plan(tiny_folder, available)
    blocks = drawn.fitting_blocks
    assert drawn.needed_bytes(blocks + 1) > available
    assert blocks == 0 or drawn.needed_bytes(blocks) <= available
    assert drawn.fitting_tokens == 16 * blocks
    assert drawn.fitting_sequences(100) == blocks // 7


def test_the_pool_is_a_quarter_of_what_fits_and_at_most_what_can_be_used(tiny_folder: Path) -> None:
    # 16 sequences of 256 tokens in blocks of 16.
    assert plan(tiny_folder, 64 * GiB).num_blocks == 256
    many = plan(tiny_folder, 2 * GiB, max_num_seqs=1024, max_num_batched_tokens=16)
    assert many.num_blocks == min(int(many.fitting_blocks * 0.25), 1024 * 16)
    most = plan(tiny_folder, 64 * GiB, max_num_seqs=100_000, max_num_batched_tokens=16)
    assert most.num_blocks == CPU_KV_BYTES // most.block_bytes
    assert plan(tiny_folder, 64 * GiB, num_kv_blocks=3).num_blocks == 3


def test_a_context_that_was_asked_for_is_given_more_than_the_usual_share(tiny_folder: Path) -> None:
    folder = tiny_folder.parent / "long-context"
    save_tiny_model("llama", folder)
    shape = json.loads((folder / "config.json").read_text())
    (folder / "config.json").write_text(json.dumps({**shape, "max_position_embeddings": 1 << 20}))
    usual = plan(folder, GiB, max_num_seqs=1, max_num_batched_tokens=1)
    asked = plan(folder, GiB, max_num_seqs=1, max_num_batched_tokens=1, max_model_len=1 << 20)
    assert usual.num_blocks < asked.num_blocks == (1 << 20) // 16
    asked.check()
    with pytest.raises(errors.InsufficientMemoryError, match=r"keys and values: 1,048,576 tokens × 256 bytes"):
        plan(folder, 768 * MiB, max_num_seqs=1, max_num_batched_tokens=1, max_model_len=1 << 20).check()


# ── what does not fit ────────────────────────────────────────────────────────────────────────────────────────────────


@pytest.mark.parametrize(
    ("available", "settings", "says"),
    [
        (200 * MiB, {}, "weights, float32"),
        (CPU_OVERHEAD_BYTES + MiB, {"max_num_seqs": 16}, "activations: 256 tokens a step, 16 sequences"),
        (2 * GiB, {"num_kv_blocks": 1 << 20}, "keys and values: 16,777,216 tokens × 256 bytes"),
        (GiB, {"kv_memory_bytes": 2 * GiB, "max_num_seqs": 1 << 20}, "keys and values"),
        (GiB, {"max_num_batched_tokens": 1 << 20}, "activations: 1,048,576 tokens a step"),
    ],
)
def test_what_cannot_fit_is_refused_before_tensors_are_read(
    tiny_folder: Path,
    monkeypatch: pytest.MonkeyPatch,
    available: int,
    settings: dict[str, int],
    says: str,
) -> None:
    def unread(*arguments: object) -> None:
        raise AssertionError("tensors were read")

    monkeypatch.setattr(FolderCheckpoint, "tensors", unread)
    monkeypatch.setattr("engine.model_runner.available_bytes", lambda device: available)
    with pytest.raises(errors.InsufficientMemoryError) as caught:
        Engine(EngineConfig(model=tiny_folder, dtype="float32", device="cpu", **settings))  # type: ignore[arg-type]
    error, message = caught.value, str(caught.value)
    assert says in message
    assert "Lower max_model_len" in message
    assert (error.code, error.available_bytes) == ("insufficient_memory", available)
    assert f"{available:,} bytes" in message
    assert f"{error.needed_bytes:,} bytes" in message
    assert error.needed_bytes > available


def test_a_pool_of_less_than_two_blocks_is_refused_with_the_sizes(tiny_folder: Path) -> None:
    with pytest.raises(errors.InvalidParameterError, match=r"kv_memory_bytes: 5,000 bytes hold 1 blocks; .* 4,096"):
        plan(tiny_folder, GiB, kv_memory_bytes=5_000)


def test_a_draft_model_is_counted(tiny_folder: Path) -> None:
    runner = Engine(
        EngineConfig(
            model=tiny_folder,
            draft_model=tiny_folder,
            speculation="draft",
            dtype="float32",
            device="cpu",
            num_kv_blocks=8,
        )
    ).runner
    assert runner.memory_plan.draft_weight_bytes > 0
    assert runner.memory_plan.kv_bytes_per_token == runner.kv_bytes_per_token
    assert "weights of the draft model" in dict(runner.memory_plan.parts(8))


# ── what is available ────────────────────────────────────────────────────────────────────────────────────────────────


def files(root: Path, contents: dict[str, str]) -> Path:
    for name, text in contents.items():
        (root / name).parent.mkdir(parents=True, exist_ok=True)
        (root / name).write_text(text)
    return root


MACHINE = {"proc/meminfo": "MemTotal: 9000 kB\nMemAvailable:    4000 kB\n"}
V1, V2 = "sys/fs/cgroup/memory/", "sys/fs/cgroup/"


@pytest.mark.parametrize(
    ("contents", "expected"),
    [
        ({}, 4_096_000),
        (
            {"proc/self/cgroup": "0::/a/b\n", V2 + "a/b/memory.max": "max\n", V2 + "a/b/memory.current": "5\n"},
            4_096_000,
        ),
        # The tightest group above the process holds; pages of files are given back.
        (
            {
                "proc/self/cgroup": "0::/a/b\n",
                V2 + "a/memory.max": "2000000\n",
                V2 + "a/memory.current": "1500000\n",
                V2 + "a/memory.stat": "anon 1\ninactive_file 100000\nactive_file 20000\n",
            },
            620_000,
        ),
        (
            {
                "proc/self/cgroup": "5:cpu,cpuacct:/x\n4:memory:/x\n",
                V1 + "x/memory.limit_in_bytes": "3000000\n",
                V1 + "x/memory.usage_in_bytes": "1000000\n",
                V1 + "x/memory.stat": "inactive_file 1\ntotal_inactive_file 7\n",
                "sys/fs/cgroup/memory/memory.limit_in_bytes": "9223372036854771712\n",
                "sys/fs/cgroup/memory/memory.usage_in_bytes": "5\n",
            },
            2_000_007,
        ),
        # In a container: the path is the host's and not there.
        (
            {
                "proc/self/cgroup": "0::/docker/abc\n",
                V2 + "memory.max": "1000000\n",
                V2 + "memory.current": "1000001\n",
            },
            0,
        ),
    ],
)
def test_available_memory_is_the_machines_within_the_groups_limits(
    tmp_path: Path, contents: dict[str, str], expected: int
) -> None:
    assert available_bytes(CPU, files(tmp_path, {**MACHINE, **contents})) == expected


def test_available_memory_of_this_machine() -> None:
    assert MiB < available_bytes(CPU) < 1 << 50
