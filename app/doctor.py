"""`ragstone doctor`: what of this machine could keep the server from running well, each with what to do about it.

Looks only; nothing is changed, loaded or fetched.
"""

import importlib.metadata
import os
import platform
import shutil
import subprocess
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from app import __version__, models, preflight
from app.engines.entries import ModelEntry
from app.engines.model_table import ModelTable, settings_of
from app.errors import RagstoneError, SettingsError
from app.settings import Settings, unknown_variables

State = Literal["ok", "warning", "problem"]
DISTRIBUTIONS = ("torch", "fastapi", "langchain-core", "langserve", "gradio", "sentence-transformers")
LITTLE_MEMORY_BYTES = 2 << 30


@dataclass(frozen=True)
class Finding:
    """One thing that was looked at. `advice` is what to do where it is not ok."""

    state: State
    what: str
    found: str
    advice: str = ""


def examine(settings: Settings) -> list[Finding]:
    """All findings, in the order in which they matter to a start."""
    looks: tuple[Callable[[Settings], list[Finding]], ...] = (
        _versions, _variables, _ports, _data_folder, _keys, _devices, _memory, _models,
    )  # fmt: skip
    return [finding for look in looks for finding in look(settings)]


def _versions(settings: Settings) -> list[Finding]:
    python = f"Ragstone {__version__}, Python {platform.python_version()}"
    findings = [Finding("ok", "version", python)]
    missing = []
    for name in DISTRIBUTIONS:
        try:
            findings.append(Finding("ok", name, importlib.metadata.version(name)))
        except importlib.metadata.PackageNotFoundError:
            missing.append(name)
    if missing:
        findings.append(Finding("problem", "packages", f"{', '.join(missing)} not installed", "run `make install`"))
    if warning := preflight.shadowing_distribution():
        findings.append(Finding("problem", "packages", "`kernels` hides ours", warning))
    return findings


def _variables(settings: Settings) -> list[Finding]:
    return [Finding("warning", "environment", sentence, "correct or unset it") for sentence in unknown_variables()]


def _ports(settings: Settings) -> list[Finding]:
    running = preflight.running_address(settings.data_dir)
    if running:
        return [Finding("ok", "ports", f"a server of this data folder runs at port {running.get('port')}")]
    try:
        preflight.reserve_ports(settings).close()
    except RagstoneError as error:
        return [Finding("problem", "ports", "not free", error.message)]
    shown = f"{settings.port}" + (f" and {settings.ui_port}" if settings.ui else "")
    return [Finding("ok", "ports", f"{shown} on {settings.host} free")]


def _data_folder(settings: Settings) -> list[Finding]:
    try:
        preflight.check_data_folder(settings)
    except RagstoneError as error:
        return [Finding("problem", "data folder", str(settings.data_dir), error.message)]
    data = settings.data_dir
    free = shutil.disk_usage(data).free
    if data.stat().st_mode & 0o077 and (readable := _readable_by_others(data)):
        advice = f"chmod -R go-rwx {data}"
        return [Finding("warning", "data folder", f"{data}: others may read {readable} in it", advice)]
    return [Finding("ok", "data folder", f"{data}, {free / 2**30:,.1f} GiB free")]


def _readable_by_others(data: Path) -> str:
    """A file of the data folder that is not its owner's alone; "" where there is none."""
    found = (path.name for path in sorted(data.glob("*.sqlite3")) if path.stat().st_mode & 0o077)
    return next(found, "")


def _keys(settings: Settings) -> list[Finding]:
    try:
        warning = preflight.check_keys(settings)
    except RagstoneError as error:
        return [Finding("problem", "API keys", "asked for, and there is none", error.message)]
    if warning:
        return [Finding("warning", "API keys", "off", warning)]
    return [Finding("ok", "API keys", "asked for" if preflight.keys_required(settings) else "not asked for")]


def _devices(settings: Settings) -> list[Finding]:
    import torch

    if torch.cuda.is_available():
        names = {torch.cuda.get_device_name(number) for number in range(torch.cuda.device_count())}
        return [Finding("ok", "GPU", f"{', '.join(sorted(names))}, CUDA {torch.version.cuda}{_driver()}")]
    if settings.device.startswith("cuda"):
        built = "torch is a CPU build" if torch.version.cuda is None else "the driver does not answer"
        advice = "install the CUDA build (`make install RAGSTONE_EXTRA=gpu`) or the driver, or use --device cpu"
        return [Finding("problem", "GPU", f"none, and device is {settings.device}: {built}", advice)]
    if (driver := _driver()) and torch.version.cuda is None:
        advice = "install the CUDA build: `make install RAGSTONE_EXTRA=gpu`"
        return [Finding("warning", "GPU", f"there is one{driver}, and torch is a CPU build", advice)]
    if driver:
        advice = f"install a driver for CUDA {torch.version.cuda}, or let this process see the card"
        return [Finding("warning", "GPU", f"there is one{driver}, and torch cannot use it", advice)]
    return [Finding("ok", "GPU", f"none; {preflight.usable_cpus()} CPUs are used")]


def _driver() -> str:
    """The NVIDIA driver's version as the end of a sentence; empty where none answers."""
    command = ["nvidia-smi", "--query-gpu=driver_version", "--format=csv,noheader"]
    try:
        told = subprocess.run(command, capture_output=True, text=True, timeout=20, check=True).stdout.split()
    except (OSError, subprocess.SubprocessError):
        return ""
    return f", driver {told[0]}" if told else ""


def _memory(settings: Settings) -> list[Finding]:
    import torch

    from engine.available_memory import available_bytes

    free = available_bytes(torch.device("cpu"))
    if free < LITTLE_MEMORY_BYTES:
        return [
            Finding("warning", "memory", f"{free / 2**30:,.1f} GiB free", "end other programs, or take a smaller model")
        ]
    return [Finding("ok", "memory", f"{free / 2**30:,.1f} GiB free")]


def _models(settings: Settings) -> list[Finding]:
    try:
        entries = ModelTable.of(settings).entries.values()
    except SettingsError as error:
        return [Finding("problem", "chat models", "they do not go together", str(error))]
    return [_remote_model(entry) if entry.url is not None else _local_model(entry, settings) for entry in entries]


def _remote_model(entry: ModelEntry) -> Finding:
    if entry.key_env is not None and not os.environ.get(entry.key_env):
        return Finding("problem", "chat model", f"{entry.name}, without its key", f"set the variable {entry.key_env}")
    return Finding("ok", "chat model", f"{entry.name} of the server at {entry.url}")


def _local_model(entry: ModelEntry, settings: Settings) -> Finding:
    fetched = {model.name: model.path for model in models.list_models(settings)}
    name, source = entry.source.lower(), entry.source
    if name in fetched and fetched[name] is None:
        return Finding("ok", "chat model", f"{source}, which is fetched at the first start")
    from app.model_sheet import model_sheet
    from engine.errors import EngineError

    try:
        alone = settings_of(entry, settings)
        served = model_sheet(source, models.resolve(source, settings), alone).as_json()["served"]
    except (RagstoneError, EngineError) as error:
        return Finding("problem", "chat model", source, str(error))
    shown = f"{source}: {served['needed_bytes'] / 2**30:,.2f} GiB in {served['weight_format']}"
    if not served["fits"]:
        advice = "take a smaller model, or lower max_model_len; `ragstone models show` has the arithmetic"
        return Finding("problem", "chat model", f"{shown}, which does not fit", advice)
    return Finding("ok", "chat model", f"{shown}, fits")
