"""`deploy/install.py`: which build of torch is taken, and when an install is repeated. `.ci/run` does a whole one."""

import importlib.util
import json
import subprocess
import sys
from pathlib import Path
from types import ModuleType

import pytest

REPOSITORY = Path(__file__).resolve().parents[2]
OFFERED = ["2.15.0", "2.14.1", "2.13.0+cpu", "2.13.0", "2.12.1", "2.11.0", "2.10.0"]


@pytest.fixture
def install(monkeypatch: pytest.MonkeyPatch) -> ModuleType:
    spec = importlib.util.spec_from_file_location("ragstone_install", REPOSITORY / "deploy" / "install.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    for name in ("RAGSTONE_EXTRA", "RAGSTONE_TORCH_INDEX"):
        monkeypatch.delenv(name, raising=False)
    return module


@pytest.mark.parametrize(
    ("extra", "offered", "chosen"),
    [
        ("cpu", OFFERED, "torch===2.13.0+cpu"),
        ("cpu", ["2.13.1", "2.13.0", "2.12.1"], "torch===2.13.0"),  # no CPU build: the pinned version
        ("cpu", ["2.13.0", "2.12.1+cpu"], "torch===2.12.1+cpu"),  # a CPU build goes before the pin
        ("cpu", ["2.14.0+cpu", "2.13.0", "2.10.0+cpu"], "torch===2.13.0"),  # CPU builds outside the range do not count
        ("cpu", ["2.13.1rc1", "2.12.0"], "torch===2.12.0"),
        ("cpu", [], "torch==2.13.0"),  # the index cannot tell
        ("gpu", OFFERED, "torch===2.13.0"),  # never a CPU build
        ("gpu", ["2.13.0+cpu", "2.13.0+cu126"], "torch===2.13.0+cu126"),
        ("gpu-cuvs", OFFERED, "torch===2.13.0"),
    ],
)
def test_build_of_torch_follows_the_machine_and_the_index(
    install: ModuleType, monkeypatch: pytest.MonkeyPatch, extra: str, offered: list[str], chosen: str
) -> None:
    monkeypatch.setattr(install, "offered_versions", lambda: offered)
    assert install.torch_requirement(extra) == chosen


def test_extra_follows_the_gpu_unless_it_is_named(
    install: ModuleType, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    assert install.chosen_extra() == "cpu"
    tool = tmp_path / "nvidia-smi"
    tool.write_text("#!/bin/sh\necho 'GPU 0: NVIDIA H200 (UUID: GPU-0)'\n")
    tool.chmod(0o755)
    assert install.chosen_extra() == "gpu"
    tool.write_text("#!/bin/sh\necho 'NVIDIA-SMI has failed'; exit 9\n")
    assert install.chosen_extra() == "cpu"
    monkeypatch.setenv("RAGSTONE_EXTRA", "gpu-cuvs")
    assert install.chosen_extra() == "gpu-cuvs"


def test_wrong_extra_is_refused_with_those_that_exist() -> None:
    result = subprocess.run(
        [sys.executable, REPOSITORY / "deploy" / "install.py"],
        env={"RAGSTONE_EXTRA": "tpu"},
        capture_output=True,
        text=True,
        check=False,
    )
    assert (result.returncode, result.stderr) == (
        1,
        "error: RAGSTONE_EXTRA is 'tpu'; it must be one of: cpu, gpu, gpu-cuvs\n",
    )


@pytest.fixture
def done(install: ModuleType, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> list[tuple[str, bool]]:
    """Installs that were carried out, as (extra, dev), with pip left out."""
    carried_out: list[tuple[str, bool]] = []
    monkeypatch.setattr(install, "STAMP", tmp_path / "stamp.json")
    monkeypatch.setattr(install, "PYTHON", Path(sys.executable))
    monkeypatch.setattr(install, "install", lambda extra, *, dev: carried_out.append((extra, dev)))
    return carried_out


def run(install: ModuleType, monkeypatch: pytest.MonkeyPatch, extra: str, *arguments: str) -> None:
    monkeypatch.setenv("RAGSTONE_EXTRA", extra)
    monkeypatch.setattr(sys, "argv", ["install.py", *arguments])
    assert install.main() == 0


def test_second_install_does_nothing(
    install: ModuleType, monkeypatch: pytest.MonkeyPatch, done: list[tuple[str, bool]]
) -> None:
    run(install, monkeypatch, "cpu")
    run(install, monkeypatch, "cpu")
    assert done == [("cpu", False)]


def test_development_tools_are_added_once_and_then_kept(
    install: ModuleType, monkeypatch: pytest.MonkeyPatch, done: list[tuple[str, bool]]
) -> None:
    run(install, monkeypatch, "cpu")
    run(install, monkeypatch, "cpu", "--dev")
    run(install, monkeypatch, "cpu", "--dev")
    run(install, monkeypatch, "cpu")
    run(install, monkeypatch, "gpu")
    assert done == [("cpu", False), ("cpu", True), ("gpu", True)]


def test_change_of_build_index_or_pins_installs_again(
    install: ModuleType, monkeypatch: pytest.MonkeyPatch, done: list[tuple[str, bool]], tmp_path: Path
) -> None:
    run(install, monkeypatch, "cpu")
    run(install, monkeypatch, "gpu")
    run(install, monkeypatch, "cpu")
    monkeypatch.setenv("RAGSTONE_TORCH_INDEX", "file:///mirror")
    run(install, monkeypatch, "cpu")
    for name in ("pyproject.toml", "constraints-cpu.txt"):
        (tmp_path / name).write_text((REPOSITORY / name).read_text() + "\n# changed\n")
    monkeypatch.setattr(install, "REPOSITORY", tmp_path)
    run(install, monkeypatch, "cpu")
    assert done == [("cpu", False), ("gpu", False), ("cpu", False), ("cpu", False), ("cpu", False)]


def test_install_that_failed_half_way_is_not_taken_for_done(
    install: ModuleType,
    monkeypatch: pytest.MonkeyPatch,
    done: list[tuple[str, bool]],
    capsys: pytest.CaptureFixture[str],
) -> None:
    run(install, monkeypatch, "cpu")

    def fail(extra: str, *, dev: bool) -> None:
        raise subprocess.CalledProcessError(1, ["pip", "install"])

    monkeypatch.setattr(install, "install", fail)
    monkeypatch.setenv("RAGSTONE_EXTRA", "gpu")
    assert install.main() == 1
    assert capsys.readouterr().err == "error: this step failed (exit code 1): pip install\n"
    assert not install.STAMP.exists()


def test_stamp_of_a_python_that_is_gone_does_not_count(
    install: ModuleType, monkeypatch: pytest.MonkeyPatch, done: list[tuple[str, bool]], tmp_path: Path
) -> None:
    run(install, monkeypatch, "cpu")
    assert json.loads(install.STAMP.read_text())["extra"] == "cpu"
    monkeypatch.setattr(install, "PYTHON", tmp_path / "gone" / "python")
    run(install, monkeypatch, "cpu")
    assert done == [("cpu", False), ("cpu", False)]


@pytest.mark.parametrize(
    ("chosen", "installed", "removed"),
    [
        ("cpu", ["faiss-gpu", "torch"], ["faiss-gpu"]),
        ("gpu", ["faiss_cpu"], ["faiss-cpu"]),
        ("cpu", ["faiss-cpu", "faiss-gpu"], ["faiss-cpu", "faiss-gpu"]),  # they have overwritten each other
        ("gpu-cuvs", ["faiss-gpu-cuvs"], []),
        ("cpu", [], []),
    ],
)
def test_only_one_faiss_ever_stays(
    install: ModuleType, monkeypatch: pytest.MonkeyPatch, chosen: str, installed: list[str], removed: list[str]
) -> None:
    listing = json.dumps([{"name": name, "version": "1"} for name in installed])
    monkeypatch.setattr(
        install.subprocess, "run", lambda *a, **k: subprocess.CompletedProcess(a, 0, stdout=listing, stderr="")
    )
    called: list[str] = []
    monkeypatch.setattr(install, "pip", lambda *arguments: called.extend(arguments))
    install.remove_other_faiss(chosen)
    assert called == (["uninstall", "--yes", *removed] if removed else [])


def test_pins_cover_every_dependency_and_differ_only_by_the_gpu() -> None:
    import tomllib

    def pins(kind: str) -> dict[str, str]:
        lines = (REPOSITORY / f"constraints-{kind}.txt").read_text(encoding="utf-8").splitlines()
        pairs = [line.split("==") for line in lines if line and not line.startswith("#")]
        return {name.lower().replace("_", "-"): version for name, version in pairs}

    def names(requirements: list[str]) -> set[str]:
        import re

        return {re.split(r"[\[<>=!; ]", text)[0].lower().replace("_", "-") for text in requirements}

    project = tomllib.loads((REPOSITORY / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    extras = project["optional-dependencies"]
    cpu, gpu = pins("cpu"), pins("gpu")
    assert names([*project["dependencies"], *extras["cpu"], *extras["dev"]]) <= set(cpu)
    assert names([*project["dependencies"], *extras["gpu"], *extras["dev"]]) <= set(gpu)
    assert set(cpu) - set(gpu) == {"faiss-cpu"}
    assert all(name.startswith(("nvidia-", "cuda-", "faiss-gpu")) for name in set(gpu) - set(cpu))
    assert all(cpu[name] == gpu[name] for name in set(cpu) & set(gpu))
    assert "+" not in cpu["torch"]
