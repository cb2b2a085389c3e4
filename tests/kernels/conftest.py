"""Two processes that take one core each for most of a minute, started together when the first of them is asked for."""

import os
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

REPOSITORY = Path(__file__).resolve().parents[2]
COMMANDS = {
    "interpreted": (
        ["-m", "pytest", "-q", "tests/kernels/interpreter", "-p", "no:cacheprovider"],
        {"TRITON_INTERPRET": "1", "RAGSTONE_KERNELS": "triton", "RAGSTONE_EXAMPLES": "2"},
    ),
    "dry_run": (["benchmarks/gpu.py", "--dry-run"], {}),
}

Finish = Callable[[], subprocess.CompletedProcess[str]]


@pytest.fixture(scope="session")
def long_runs(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[dict[str, Finish]]:
    """By name, what waits for one of COMMANDS and returns it with its output; those that some chosen test asks for."""
    wanted = {name for item in request.session.items for name in getattr(item, "fixturenames", ())}
    folder = tmp_path_factory.mktemp("runs")
    processes: dict[str, subprocess.Popen[bytes]] = {}
    environment = {name: value for name, value in os.environ.items() if name != "TRITON_INTERPRET"}
    for name, (arguments, variables) in COMMANDS.items():
        if name in wanted:
            with (folder / name).open("wb") as output:
                processes[name] = subprocess.Popen(
                    [sys.executable, *arguments],
                    cwd=REPOSITORY,
                    env=environment | variables,
                    stdout=output,
                    stderr=subprocess.STDOUT,
                )

    def finish(name: str) -> subprocess.CompletedProcess[str]:
        status = processes[name].wait()
        text = (folder / name).read_text(encoding="utf-8", errors="replace")
        return subprocess.CompletedProcess(COMMANDS[name][0], status, text, "")

    yield {name: lambda name=name: finish(name) for name in processes}  # type: ignore[misc]
    for process in processes.values():
        if process.poll() is None:
            process.kill()
            process.wait()


@pytest.fixture
def interpreted(long_runs: dict[str, Finish]) -> subprocess.CompletedProcess[str]:
    """The tests of Triton's kernels, over few shapes, in a process in which Triton interprets."""
    return long_runs["interpreted"]()


@pytest.fixture
def dry_run(long_runs: dict[str, Finish]) -> subprocess.CompletedProcess[str]:
    """`benchmarks/gpu.py --dry-run`."""
    return long_runs["dry_run"]()
