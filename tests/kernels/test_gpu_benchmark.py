"""`benchmarks/gpu.py` runs, every part of it, on a machine without a GPU."""

import os
import subprocess
import sys
from importlib.util import find_spec
from pathlib import Path

import pytest

REPOSITORY = Path(__file__).resolve().parents[2]


def run(*arguments: str) -> subprocess.CompletedProcess[str]:
    environment = {name: value for name, value in os.environ.items() if name != "TRITON_INTERPRET"}
    command = [sys.executable, "benchmarks/gpu.py", *arguments]
    return subprocess.run(command, cwd=REPOSITORY, env=environment, capture_output=True, text=True)


@pytest.mark.skipif(find_spec("triton") is None, reason="Triton is made for Linux on x86-64")
def test_every_part_runs_in_the_interpreter_and_keeps_no_figures() -> None:
    dry_run = run("--dry-run")
    assert dry_run.returncode == 0, dry_run.stdout[-6000:] + dry_run.stderr[-4000:]
    parts = ("ceilings", "kernels", "equivalences", "decode", "offline", "peer", "prefix")
    assert [line for line in dry_run.stdout.splitlines() if line.endswith(": ran")] == [
        f"{part}: ran" for part in parts
    ]
    assert "written to" not in dry_run.stdout


def test_an_unknown_part_is_named_with_those_there_are() -> None:
    done = run("--skip", "kernel")
    assert done.returncode == 2
    assert "no part is called kernel; there are ceilings, kernels, equivalences" in done.stderr
