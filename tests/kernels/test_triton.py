"""Triton's kernels without a GPU: in its interpreter and compiled ahead of time, each in a process of its own.

With TRITON_INTERPRET=1 nothing can be compiled, and what was imported without it can not be interpreted.
"""

import os
import subprocess
import sys
from importlib.util import find_spec
from pathlib import Path

import pytest

REPOSITORY = Path(__file__).resolve().parents[2]

pytestmark = pytest.mark.skipif(find_spec("triton") is None, reason="Triton is made for Linux on x86-64")


def run(arguments: list[str], **variables: str) -> None:
    environment = {name: value for name, value in os.environ.items() if name != "TRITON_INTERPRET"}
    done = subprocess.run(
        [sys.executable, *arguments], cwd=REPOSITORY, env=environment | variables, capture_output=True, text=True
    )
    assert done.returncode == 0, done.stdout[-8000:] + done.stderr[-4000:]


def run_interpreted(num_examples: int) -> None:
    arguments = ["-m", "pytest", "-q", "tests/kernels/interpreter", "-p", "no:cacheprovider"]
    run(arguments, TRITON_INTERPRET="1", RAGSTONE_KERNELS="triton", RAGSTONE_EXAMPLES=str(num_examples))


def test_kernels_in_the_interpreter_equal_their_formulas() -> None:
    run_interpreted(2)


@pytest.mark.slow
def test_kernels_in_the_interpreter_equal_their_formulas_over_many_shapes() -> None:
    run_interpreted(10)


def test_decode_attention_compiles_for_both_cards_without_spills() -> None:
    run(["-m", "kernels.aot", "--only", r"paged_attention bf16 head_dim=128 decode$|^add_rms_norm bf16 hidden=4096"])


@pytest.mark.slow
def test_every_kernel_compiles_without_more_spills_than_it_may_have(tmp_path: Path) -> None:
    run(["-m", "kernels.aot", "--output", str(tmp_path / "aot.json")])
