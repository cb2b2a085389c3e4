"""`benchmarks/gpu.py` runs, every part of it, on a machine without a GPU."""

import os
import subprocess
import sys
from importlib.util import find_spec
from pathlib import Path

import pytest

from benchmarks import gpu
from benchmarks.gpu_targets import targets

REPOSITORY = Path(__file__).resolve().parents[2]


# What is not on a bare machine with a card.
ABSENT = ("gguf", "llguidance", "faiss", "numba", "llvmlite", "fastapi", "langchain_core", "pydantic", "httpx")


def run(*arguments: str, absent: tuple[str, ...] = ()) -> subprocess.CompletedProcess[str]:
    environment = {name: value for name, value in os.environ.items() if name != "TRITON_INTERPRET"}
    program = (
        f"import runpy, sys\nsys.modules.update(dict.fromkeys({absent!r}))\n"
        "runpy.run_path('benchmarks/gpu.py', run_name='__main__')"
    )
    command = [sys.executable, "-c", program, *arguments]
    return subprocess.run(command, cwd=REPOSITORY, env=environment, capture_output=True, text=True)


@pytest.mark.slow
@pytest.mark.skipif(find_spec("triton") is None, reason="Triton is made for Linux on x86-64")
def test_every_part_runs_in_the_interpreter_without_what_bare_machines_lack_and_keeps_no_figures() -> None:
    dry_run = run("--dry-run", absent=ABSENT)
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


def test_targets_are_set_beside_what_the_parts_that_ran_have_reached() -> None:
    results = {
        "ceilings": {"copy_gb_s": 4000.0, "product_tflop_s": 700.0},
        "kernels": [{"kernel": "paged_attention decode", "gb_s": 3000.0}, {"kernel": "rms_norm", "gb_s": 9.0}],
        "decode": [
            {"weights": "bfloat16", "batch": 1, "share_of_copy": 0.9},
            {"weights": "bfloat16", "batch": 8, "share_of_copy": 0.1},
            {"weights": "bfloat16", "prompt": 8192, "ttft_s": 1.0, "share_of_product": 0.7},
        ],
        "overlap": [{"batch": 1, "overlapped": {"tokens_per_s": 1.0, "gap_s": 0.00012}}],
        "offline": {"tokens_per_s": 6000.0},
    }  # fmt: skip
    assert [(row["target"], row["met"]) for row in targets(results)] == [
        ("decode bfloat16, batch 1: share of copy", True),
        ("paged attention, decode: share of copy", False),
        ("prefill bfloat16: share of product", True),
        ("seconds between replays, overlapped", False),
    ]
    results["peer"] = {"tokens_per_s": 1000.0}
    assert {"target": "256 sequences: times transformers", "reached": 6.0, "wanted": 5.0, "met": True} in targets(
        results
    )


def test_an_unknown_part_is_named_with_those_there_are() -> None:
    done = run("--skip", "kernel")
    assert done.returncode == 2
    assert "no part is called kernel; there are ceilings, kernels, equivalences" in done.stderr
