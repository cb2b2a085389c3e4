"""`python -m kernels.aot`: compile every Triton kernel for sm_80 and sm_90 without a GPU, and tabulate what comes out.

Triton carries its own ptxas, which reports registers, spilled bytes and shared memory. Exits with 1 if a kernel spills
more than its case allows or needs more shared memory than the card gives a block. Not for a process with
TRITON_INTERPRET=1, in which kernels cannot be compiled.
"""

from __future__ import annotations

import argparse
import json
import os
import re
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from dataclasses import asdict, dataclass
from importlib import import_module
from pathlib import Path

from kernels.gpu.compile_case import CompileCase

MODULES = (
    "rms_norm", "silu_and_mul", "rotary", "paged_attention", "sampling", "int4_matmul", "rowwise_matmul",
    "vector_search",
)  # fmt: skip
# Bytes of shared memory a block may have (CUDA C++ Programming Guide, "Compute Capabilities").
SHARED_LIMIT = {80: 163 * 1024, 90: 227 * 1024}
# What is worth knowing of the PTX: tensor cores, asynchronous copies, wide loads.
INSTRUCTIONS = ("wgmma.mma_async", "mma.sync", "cp.async.cg", "cp.async.ca", "ldmatrix", "ld.global.v4", "st.global.v4")
RESULTS = Path(__file__).resolve().parent.parent / "benchmarks" / "results" / "aot.json"


@dataclass(frozen=True)
class Compiled:
    """One kernel on one target: registers and spilled bytes (stores) a thread, shared bytes a block."""

    name: str
    target: str
    registers: int
    spill_bytes: int
    spill_limit: int
    shared_bytes: int
    instructions: dict[str, int]

    @property
    def failure(self) -> str | None:
        """What is wrong with it, in words."""
        if self.spill_bytes > self.spill_limit:
            return f"{self.name} on {self.target} spills {self.spill_bytes} bytes a thread; allowed: {self.spill_limit}"
        limit = SHARED_LIMIT[int(self.target.removeprefix("sm_"))]
        if self.shared_bytes > limit:
            return (
                f"{self.name} on {self.target} needs {self.shared_bytes:,} bytes of shared memory; there are {limit:,}"
            )
        return None


def cases(pattern: str = "") -> Iterator[CompileCase]:
    """Every module's cases whose name matches `pattern`, a regular expression."""
    for module in MODULES:
        for case in import_module(f"kernels.gpu.{module}").compile_cases():
            if re.search(pattern, case.name):
                yield case


def compile_case(case: CompileCase, capability: int) -> Compiled:
    """Compile for sm_`capability`."""
    import triton
    from triton.backends.compiler import GPUTarget
    from triton.compiler import ASTSource

    names = case.kernel.arg_names
    signature = {name: case.types.get(name, "constexpr") for name in names}
    unknown = {*case.kernel.do_not_specialize, *case.kernel.do_not_specialize_on_alignment}
    aligned = [
        name for name in names if (signature[name].startswith("*") or name in case.aligned) and name not in unknown
    ]
    source = ASTSource(
        fn=case.kernel,
        signature=signature,
        constexprs=dict(case.constants),
        attrs={(names.index(name),): [["tt.divisibility", 16]] for name in aligned},
    )
    options = {"num_warps": case.num_warps, "num_stages": case.num_stages}
    compiled = triton.compile(source, target=GPUTarget("cuda", capability, 32), options=options)
    ptx = compiled.asm["ptx"]
    registers, spilled = _assemble(ptx)
    counts = {name: len(re.findall(re.escape(name), ptx)) for name in INSTRUCTIONS}
    return Compiled(
        case.name, f"sm_{capability}", registers, spilled, case.spill_bytes, compiled.metadata.shared,
        {name: count for name, count in counts.items() if count},
    )  # fmt: skip


def _assemble(ptx: str) -> tuple[int, int]:
    """(registers, spilled bytes) by ptxas' own report."""
    from triton import knobs

    match = re.search(r"\.target\s+(sm_\w+)", ptx)
    assert match is not None, "PTX names its target"
    with tempfile.TemporaryDirectory() as folder:
        source = Path(folder, "kernel.ptx")
        source.write_text(ptx, encoding="utf-8")
        report = subprocess.run(
            [
                knobs.nvidia.ptxas.path,
                "-v",
                f"--gpu-name={match[1]}",
                str(source),
                "-o",
                str(Path(folder, "kernel.cubin")),
            ],
            check=True,
            capture_output=True,
            text=True,
        ).stderr
    registers, spilled = re.search(r"Used (\d+) registers", report), re.search(r"(\d+) bytes spill stores", report)
    assert registers is not None, f"ptxas reports registers, but wrote: {report}"
    return int(registers[1]), int(spilled[1]) if spilled else 0


HEADER = f"{'kernel':58} {'target':6} {'regs':>4} {'spill':>5} {'shared':>7}  instructions"


def line(row: Compiled) -> str:
    """A row of the table under HEADER."""
    used = ", ".join(f"{count} {name}" for name, count in row.instructions.items())
    return f"{row.name:58} {row.target:6} {row.registers:4} {row.spill_bytes:5} {row.shared_bytes:7}  {used}"


def main() -> int:
    parser = argparse.ArgumentParser(
        prog="python -m kernels.aot", description=__doc__.splitlines()[0] if __doc__ else ""
    )
    parser.add_argument("--only", default="", metavar="PATTERN", help="kernels whose name matches this")
    parser.add_argument("--output", type=Path, help=f"JSON file (default for all kernels: {RESULTS.name})")
    arguments = parser.parse_args()
    if os.environ.get("TRITON_INTERPRET") == "1":
        print("TRITON_INTERPRET=1 is set, with which kernels can not be compiled: unset it", file=sys.stderr)
        return 2
    import triton

    rows = []
    print(HEADER)
    for case in cases(arguments.only):
        for target in case.targets:
            rows.append(compile_case(case, target))
            print(line(rows[-1]), flush=True)
    output = arguments.output or (None if arguments.only else RESULTS)
    if output is not None:
        record = {"triton": triton.__version__, "kernels": [asdict(row) for row in rows]}
        output.write_text(json.dumps(record, indent=1) + "\n", encoding="utf-8")
    failures = [row.failure for row in rows if row.failure is not None]
    print("\n".join(failures) if failures else f"{len(rows)} compiled; none spills or shares more than allowed")
    return 1 if failures else 0


if __name__ == "__main__":
    sys.exit(main())
