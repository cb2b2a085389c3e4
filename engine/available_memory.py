"""How much memory a process may still take: of a GPU, or of a machine and the control groups it runs in."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path

import torch

_ROOT = Path("/")


def available_bytes(device: torch.device, root: Path = _ROOT) -> int:
    """Bytes that can be allocated on `device` without swapping or being killed.

    On a CPU the least of what the machine has (`MemAvailable`) and of what is left under the limit of each control
    group above this process (versions 1 and 2), which is how containers are bounded. `root` is where /proc and /sys
    are.
    """
    if device.type == "cuda":
        free, _ = torch.cuda.mem_get_info(device)
        return int(free)
    return max(0, min([_machine_bytes(root), *_group_bytes(root)]))


def _machine_bytes(root: Path) -> int:
    for line in _text(root / "proc/meminfo").splitlines():
        name, _, rest = line.partition(":")
        if name == "MemAvailable":
            return int(rest.split()[0]) * 1024
    pages = "SC_AVPHYS_PAGES" if "SC_AVPHYS_PAGES" in os.sysconf_names else "SC_PHYS_PAGES"
    return os.sysconf("SC_PAGE_SIZE") * os.sysconf(pages)


def _group_bytes(root: Path) -> Iterator[int]:
    """What is left under each limit that holds for this process."""
    for line in _text(root / "proc/self/cgroup").splitlines():
        _, controllers, path = line.split(":", 2)
        if controllers and "memory" not in controllers.split(","):
            continue
        base = root / ("sys/fs/cgroup/memory" if controllers else "sys/fs/cgroup")
        limit, usage = (
            ("memory.limit_in_bytes", "memory.usage_in_bytes") if controllers else ("memory.max", "memory.current")
        )
        # Inside a container the path may be the host's: then only the base is there, and it is the container's own.
        parts = [part for part in path.split("/") if part]
        for depth in range(len(parts), -1, -1):
            group = base.joinpath(*parts[:depth])
            most, used = _number(group / limit), _number(group / usage)
            if most is not None and used is not None:
                yield most - used + _reclaimable_bytes(group)


def _reclaimable_bytes(group: Path) -> int:
    """Pages of files, which count as used but are given back on demand."""
    entries = (line.split() for line in _text(group / "memory.stat").splitlines())
    values = {entry[0]: int(entry[1]) for entry in entries if len(entry) == 2}
    # Version 1 counts a group's own pages without the prefix, and those of the groups below with it.
    return sum(values.get(f"total_{name}", values.get(name, 0)) for name in ("inactive_file", "active_file"))


def _number(path: Path) -> int | None:
    text = _text(path).strip()
    return int(text) if text.isdecimal() else None  # "max" is no limit


def _text(path: Path) -> str:
    try:
        return path.read_text(encoding="utf-8")
    except OSError:
        return ""
