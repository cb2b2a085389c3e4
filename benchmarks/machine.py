"""What a figure was measured on."""

import os
import platform
from pathlib import Path


def describe_machine() -> dict[str, object]:
    """CPU, its vector instructions, cores, memory, Python, torch, its threads and GPU."""
    import torch

    lines = Path("/proc/cpuinfo").read_text(encoding="utf-8").splitlines() if Path("/proc/cpuinfo").exists() else []
    fields = dict(line.split(":", 1) for line in lines if ":" in line)
    by_name = {name.strip(): value.strip() for name, value in fields.items()}
    flags = by_name.get("flags", "").split()
    return {
        "cpu": by_name.get("model name", platform.processor() or platform.machine()),
        "vectors": [flag for flag in ("avx2", "avx512f", "avx512_vnni", "avx512_bf16", "amx_int8") if flag in flags],
        "cores": os.cpu_count(),
        "memory_gib": round(os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES") / 2**30, 1),
        "python": platform.python_version(),
        "torch": torch.__version__,
        "threads": torch.get_num_threads(),
        "cuda": torch.cuda.get_device_name(0) if torch.cuda.is_available() else None,
    }
