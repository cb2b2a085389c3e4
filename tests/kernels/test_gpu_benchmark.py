"""`benchmarks/gpu.py` runs, every part of it, on a machine without a GPU."""

import os
import subprocess
import sys
from importlib.util import find_spec
from pathlib import Path

import pytest

from benchmarks import gpu

REPOSITORY = Path(__file__).resolve().parents[2]


def run(*arguments: str) -> subprocess.CompletedProcess[str]:
    environment = {name: value for name, value in os.environ.items() if name != "TRITON_INTERPRET"}
    command = [sys.executable, "benchmarks/gpu.py", *arguments]
    return subprocess.run(command, cwd=REPOSITORY, env=environment, capture_output=True, text=True)


@pytest.mark.skipif(find_spec("triton") is None, reason="Triton is made for Linux on x86-64")
def test_every_part_runs_in_the_interpreter_and_keeps_no_figures() -> None:
    dry_run = run("--dry-run")
    assert dry_run.returncode == 0, dry_run.stdout[-6000:] + dry_run.stderr[-4000:]
    parts = ("ceilings", "kernels", "equivalences", "decode", "overlap", "offline", "prefix", "peer")
    assert [line for line in dry_run.stdout.splitlines() if line.endswith(": ran")] == [
        f"{part}: ran" for part in parts
    ]
    assert "written to" not in dry_run.stdout


def test_a_part_without_time_left_measures_no_more_and_says_so(monkeypatch: pytest.MonkeyPatch) -> None:
    bench = gpu.Bench(dry_run=True)
    assert bench.has_time("first")
    bench.dry_run = False
    assert not bench.has_time("second")
    bench.deadline += 60
    assert bench.has_time("third")
    assert bench.left_out == ["second"]
    assert sum(gpu.PARTS.values()) <= gpu.LIMIT_S < 9 * 60


def test_it_needs_nothing_that_a_bare_machine_with_a_card_lacks() -> None:
    program = (
        "import sys\n"
        "for name in ('gguf', 'llguidance', 'faiss', 'numba', 'llvmlite', 'fastapi', 'langchain_core', 'pydantic'):\n"
        "    sys.modules[name] = None\n"
        "import engine, kernels, benchmarks.gpu, benchmarks.gpu_kernels, benchmarks.machine\n"
        "from benchmarks.random_model import QWEN3_600M, SMALL, make_engine\n"
        "made = make_engine('random', {**QWEN3_600M, **SMALL}, dtype='float32', device='cpu', num_kv_blocks=8)\n"
        "params = engine.SamplingParams(max_tokens=3, ignore_eos=True)\n"
        "assert len(made.generate([256, 257], params).token_ids) == 3\n"
    )
    done = subprocess.run([sys.executable, "-c", program], cwd=REPOSITORY, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr[-3000:]


def test_an_unknown_part_is_named_with_those_there_are() -> None:
    done = run("--skip", "kernel")
    assert done.returncode == 2
    assert "no part is called kernel; there are ceilings, kernels, equivalences" in done.stderr
