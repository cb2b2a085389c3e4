"""Which path an operation takes: Triton kernels for tensors on a GPU, torch everywhere else.

`RAGSTONE_KERNELS=torch` keeps to torch on a GPU too; `RAGSTONE_KERNELS=triton` insists on Triton, also for tensors on a
CPU where `TRITON_INTERPRET=1` lets its interpreter run them. Triton is imported when the first kernel is launched.
"""

from __future__ import annotations

import functools
import importlib.util
import logging
import os
import re

import torch
from torch import Tensor

log = logging.getLogger(__name__)

# Tensor cores for bfloat16 and asynchronous copies came with it (Ampere).
LEAST_CAPABILITY = (8, 0)
LEAST_TRITON = (3, 6)
CHOICES = ("torch", "triton")


class KernelsUnavailableError(RuntimeError):
    """Triton kernels were insisted on where they can not run."""


def uses_triton(tensor: Tensor) -> bool:
    """Whether operations on this tensor run as Triton kernels.

    Raises KernelsUnavailableError if RAGSTONE_KERNELS asks for Triton where it cannot run, or names no path.
    """
    return runs_triton(tensor.device)


def runs_triton(device: torch.device) -> bool:
    """`uses_triton` for all tensors on a device."""
    choice = forced()
    if choice == "torch" or (choice is None and device.type != "cuda"):
        return False
    return _is_usable(device, choice == "triton")


@functools.cache
def forced() -> str | None:
    """What RAGSTONE_KERNELS says; None where it says nothing."""
    choice = os.environ.get("RAGSTONE_KERNELS", "").strip().lower()
    if choice and choice not in CHOICES:
        raise KernelsUnavailableError(f"RAGSTONE_KERNELS must be torch or triton, got {choice!r}")
    return choice or None


@functools.cache
def why_no_triton(device: torch.device) -> str | None:
    """In one sentence, what was found and what Triton kernels need; None if they run on `device`."""
    if importlib.util.find_spec("triton") is None:
        return "the package triton is not installed; Triton kernels need version 3.6 or newer"
    if device.type == "cpu":
        if os.environ.get("TRITON_INTERPRET") == "1":
            return None
        return "Triton kernels run on a CPU in its interpreter only, which TRITON_INTERPRET=1 turns on"
    if device.type != "cuda":
        return f"Triton kernels need an NVIDIA GPU; the tensors are on {device.type}"
    found = torch.cuda.get_device_capability(device)
    if found < LEAST_CAPABILITY:
        return (
            f"{torch.cuda.get_device_name(device)} has compute capability {found[0]}.{found[1]}; Triton kernels need "
            f"{LEAST_CAPABILITY[0]}.{LEAST_CAPABILITY[1]} or newer (Ampere)"
        )
    return _why_not_launched(device)


def _why_not_launched(device: torch.device) -> str | None:
    """Launch the smallest kernel: a driver older than Triton's assembler, or no C compiler, shows only then."""
    import triton

    if tuple(int(part) for part in re.findall(r"\d+", triton.__version__)[:2]) < LEAST_TRITON:
        return f"Triton {triton.__version__} is installed; Triton kernels need version 3.6 or newer"
    from kernels.gpu.silu_and_mul import silu_and_mul

    try:
        with torch.cuda.device(device):
            silu_and_mul(torch.zeros(1, 16, device=device))
            torch.cuda.synchronize(device)
    except Exception as error:  # whatever it is, it is no reason not to serve
        reason = (str(error).strip().splitlines() or ["no message"])[0]
        return (
            f"Triton {triton.__version__} with CUDA {torch.version.cuda} could not launch a kernel on "
            f"{torch.cuda.get_device_name(device)} ({type(error).__name__}: {reason}); it needs a driver for this CUDA "
            f"version and a C compiler"
        )
    return None


@functools.cache
def _is_usable(device: torch.device, insisted: bool) -> bool:
    reason = why_no_triton(device)
    if reason is None:
        return True
    if insisted:
        raise KernelsUnavailableError(f"RAGSTONE_KERNELS=triton is not possible here: {reason}")
    log.warning("torch computes in place of Triton kernels: %s", reason)
    return False
