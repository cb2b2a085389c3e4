"""The benchmarks keep up with the product: each can be imported, and says how it is called."""

import importlib
from pathlib import Path

import pytest

MODULES = sorted(path.stem for path in (Path(__file__).parents[1] / "benchmarks").glob("*.py"))


@pytest.mark.parametrize("name", MODULES)
def test_a_benchmark_can_be_imported(name: str) -> None:
    assert importlib.import_module(f"benchmarks.{name}").__doc__
