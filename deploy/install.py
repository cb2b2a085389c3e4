"""Make `.venv` and install Ragstone into it: `make install`. Runs on Python 3.11 or newer with nothing installed.

Decides between the CPU and the GPU build of torch and faiss, and does nothing when what is there is up to date. It
installs no system packages.

    python3.11 deploy/install.py          what the server needs
    python3.11 deploy/install.py --dev    that, and what `make test` and `make check` need

Environment:
    RAGSTONE_EXTRA        cpu, gpu or gpu-cuvs (default: gpu where `nvidia-smi` finds a GPU, else cpu)
    RAGSTONE_TORCH_INDEX  address of another index for torch alone (default: the indexes that pip is configured with)
"""

import argparse
import hashlib
import json
import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

REPOSITORY = Path(__file__).resolve().parent.parent
VENV = REPOSITORY / ".venv"
PYTHON = VENV / "bin" / "python"
STAMP = VENV / "ragstone-install.json"
EXTRAS = ("cpu", "gpu", "gpu-cuvs")
FAISS = {"cpu": "faiss-cpu", "gpu": "faiss-gpu", "gpu-cuvs": "faiss-gpu-cuvs"}


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--dev", action="store_true", help="install what tests and checks need, too")
    dev = parser.parse_args().dev
    extra = chosen_extra()
    if extra not in EXTRAS:
        return fail(f"RAGSTONE_EXTRA is {extra!r}; it must be one of: {', '.join(EXTRAS)}")

    wanted = {"digest": digest(extra), "extra": extra, "dev": dev}
    present = read_stamp()
    if all(present.get(key) == wanted[key] for key in ("digest", "extra")) and present.get("dev", False) >= dev:
        return 0
    # What was installed for development stays when only the server is asked for.
    dev = wanted["dev"] = bool(dev or (present and present["dev"]))
    STAMP.unlink(missing_ok=True)  # an install that is broken off half-way must not look done
    try:
        install(extra, dev=dev)
    except subprocess.CalledProcessError as error:
        return fail(f"this step failed (exit code {error.returncode}): {' '.join(map(str, error.cmd))}")
    STAMP.write_text(json.dumps(wanted), encoding="utf-8")
    print(f"installed for {extra}{' with the tools for development' if dev else ''} in {VENV}", flush=True)
    return 0


def fail(message: str) -> int:
    print(f"error: {message}", file=sys.stderr)
    return 1


def chosen_extra() -> str:
    return os.environ.get("RAGSTONE_EXTRA") or ("gpu" if has_nvidia_gpu() else "cpu")


def has_nvidia_gpu() -> bool:
    if shutil.which("nvidia-smi") is None:
        return False
    listing = subprocess.run(["nvidia-smi", "-L"], capture_output=True, text=True, check=False)
    return listing.returncode == 0 and "GPU 0" in listing.stdout


def constraints_file(extra: str) -> Path:
    return REPOSITORY / ("constraints-cpu.txt" if extra == "cpu" else "constraints-gpu.txt")


def digest(extra: str) -> str:
    """Changes with everything that an install depends on."""
    content = b"\0".join(path.read_bytes() for path in (REPOSITORY / "pyproject.toml", constraints_file(extra)))
    return hashlib.sha256(content + (os.environ.get("RAGSTONE_TORCH_INDEX") or "").encode()).hexdigest()


def read_stamp() -> dict[str, object]:
    """What the last complete install was; empty where there is none, or its Python no longer runs."""
    try:
        stamp = json.loads(STAMP.read_text(encoding="utf-8"))
        subprocess.run([PYTHON, "-c", ""], check=True, capture_output=True)
    except (OSError, ValueError, subprocess.CalledProcessError):
        return {}
    return stamp if isinstance(stamp, dict) else {}


def install(extra: str, *, dev: bool) -> None:
    make_venv()
    remove_other_faiss(extra)
    constraints = VENV / "constraints.txt"
    torch = torch_requirement(extra)
    lines = constraints_file(extra).read_text(encoding="utf-8").splitlines()
    # The build of torch that was chosen is held exactly, or a later step could replace it by another build.
    kept = [line for line in lines if requirement_name(line) != "torch"]
    if torch.split("=")[-1] not in (pinned_version(extra), f"{pinned_version(extra)}+cpu"):
        # A build for another CUDA says itself which libraries of it are right.
        kept = [line for line in kept if not requirement_name(line).startswith(("nvidia-", "cuda-", "triton"))]
    constraints.write_text("\n".join([*kept, torch, ""]), encoding="utf-8")
    say(f"installing torch ({torch})")
    index = os.environ.get("RAGSTONE_TORCH_INDEX")
    # Without its requirements: they come from the configured indexes in the next step, as they do for everything else.
    pip("install", *(["--index-url", index, "--no-deps"] if index else ["--constraint", str(constraints)]), torch)
    say("installing the other packages")
    extras = f"{extra},dev" if dev else extra
    pip("install", "--constraint", str(constraints), "--editable", f"{REPOSITORY}[{extras}]")
    say("compiling the CPU kernels")
    subprocess.run([PYTHON, "-m", "kernels.packed"], cwd=REPOSITORY, check=True)


def make_venv() -> None:
    if PYTHON.exists() and subprocess.run([PYTHON, "-m", "pip", "--version"], capture_output=True).returncode == 0:
        return
    say(f"making {VENV} with Python {sys.version.split()[0]}")
    result = subprocess.run(
        [sys.executable, "-m", "venv", "--clear", VENV], capture_output=True, text=True, check=False
    )
    if result.returncode == 0:
        return
    print(result.stdout + result.stderr, file=sys.stderr)
    version = f"{sys.version_info.major}.{sys.version_info.minor}"
    raise SystemExit(fail(f"no virtual environment could be made; on Debian and Ubuntu install python{version}-venv"))


def remove_other_faiss(extra: str) -> None:
    """Uninstall every faiss that must not stand beside the chosen one: these distributions share one module."""
    listing = subprocess.run(
        [PYTHON, "-m", "pip", "list", "--format", "json"], capture_output=True, text=True, check=True
    ).stdout
    installed = {package["name"].lower().replace("_", "-") for package in json.loads(listing)}
    others = {name for kind, name in FAISS.items() if kind != extra and name in installed}
    # Two that stood side by side have overwritten each other's files, so the chosen one goes too and comes back whole.
    unwanted = {name for name in FAISS.values() if name in installed} if others else set()
    if unwanted:
        say(f"removing {', '.join(sorted(unwanted))}")
        pip("uninstall", "--yes", *sorted(unwanted))


def torch_requirement(extra: str) -> str:
    """The exact torch to install, out of what the indexes offer within the range of pyproject.toml.

    On a CPU: the pinned version as a CPU build, else any CPU build in the range, else the pinned version as it comes.
    On a GPU never a CPU build. `===` compares the whole version with its `+cpu`, which `==` would ignore.
    """
    pin = pinned_version(extra)
    offered = [version for version in offered_versions() if in_range(version)]
    cpu_builds = [version for version in offered if version.endswith("+cpu")]
    others = [version for version in offered if version not in cpu_builds]
    ordered = [*cpu_builds, *others] if extra == "cpu" else others
    pinned = [version for version in ordered if version.split("+")[0] == pin]
    if extra == "cpu" and cpu_builds:
        pinned = [version for version in pinned if version in cpu_builds]
    best = next(iter([*pinned, *ordered]), None)
    return f"torch==={best}" if best else f"torch=={pin}"


def pinned_version(extra: str) -> str:
    lines = constraints_file(extra).read_text(encoding="utf-8").splitlines()
    return next(line.split("==")[1].strip() for line in lines if requirement_name(line) == "torch")


def offered_versions() -> list[str]:
    """Versions of torch for this Python and platform, newest first; empty where the index cannot tell."""
    index = os.environ.get("RAGSTONE_TORCH_INDEX")
    command = [str(PYTHON), "-m", "pip", "index", "versions", "torch", *(["--index-url", index] if index else [])]
    answer = subprocess.run(command, capture_output=True, text=True, check=False).stdout
    found = re.search(r"^Available versions: (.*)$", answer, flags=re.MULTILINE)
    return [version.strip() for version in found[1].split(",")] if found else []


def in_range(version: str) -> bool:
    """Whether a version is within `torch>=A.B,<C.D` of pyproject.toml."""
    text = (REPOSITORY / "pyproject.toml").read_text(encoding="utf-8")
    found = re.search(r'"torch>=([\d.]+),<([\d.]+)"', text)
    if found is None:
        raise SystemExit(fail('pyproject.toml has no requirement of the form "torch>=A,<B"'))
    release = version.split("+")[0]
    if not re.fullmatch(r"[\d.]+", release):
        return False  # a preview
    least, most = (as_numbers(bound) for bound in found.groups())
    return least <= as_numbers(release) < most


def as_numbers(version: str) -> tuple[int, ...]:
    return tuple(int(part) for part in version.split("."))


def requirement_name(line: str) -> str:
    return re.split(r"[=<>!~; \[]", line.strip(), maxsplit=1)[0].lower()


def pip(*arguments: str) -> None:
    """Run pip; on a terminal show what it is at in one line, and everything it said only where it failed."""
    command = [str(PYTHON), "-m", "pip", *arguments, "--disable-pip-version-check"]
    if arguments[0] == "install":
        # Compiling every module of every package takes longer than all the rest of an install; those that are imported
        # are compiled when they are imported first.
        command += ["--progress-bar", "off", "--no-compile"]
    lines = []
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True) as process:
        assert process.stdout is not None
        for line in process.stdout:
            lines.append(line)
            if sys.stdout.isatty():
                print(f"\r\033[K  {line.strip()[:76]}", end="", flush=True)
    if sys.stdout.isatty():
        print("\r\033[K", end="", flush=True)
    if process.returncode != 0:
        sys.stderr.writelines(lines)
        raise subprocess.CalledProcessError(process.returncode, command)


def say(message: str) -> None:
    print(f"{message} ...", flush=True)


if __name__ == "__main__":
    sys.exit(main())
