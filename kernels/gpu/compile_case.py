"""What a kernel is compiled for ahead of time: types of its arguments, constants, and how it is launched."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

BOTH = (80, 90)


@dataclass(frozen=True)
class CompileCase:
    """One specialisation of a kernel.

    Attributes:
        kernel: the jitted function.
        types: of each run-time argument in Triton's spelling ("*bf16", "i32", "fp32"); those starting with "*" are
            aligned to 16 bytes, as torch's tensors are, unless the kernel is told not to look at it.
        constants: compile-time arguments.
        spill_bytes: bytes of spilled registers a thread may have.
        targets: compute capabilities, times ten.
        aligned: names of integer arguments that are multiples of 16.
    """

    name: str
    kernel: Any
    types: Mapping[str, str]
    constants: Mapping[str, Any]
    num_warps: int = 4
    num_stages: int = 2
    spill_bytes: int = 0
    targets: tuple[int, ...] = BOTH
    aligned: frozenset[str] = field(default_factory=frozenset)
