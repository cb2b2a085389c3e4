"""This package's compiled functions: from the object file that is kept of them, or compiled by numba and then kept.

Only compiling takes numba, whose import and registries cost every start a second; loading takes llvmlite and
milliseconds. An object file is named after the sources, the CPU and the compiler, and begins with its own checksum:
what is not whole is made anew. Where nothing can be written, each start compiles.
"""

from __future__ import annotations

import ctypes
import functools
import hashlib
import logging
import os
import shutil
from collections.abc import Callable
from pathlib import Path

import llvmlite
import llvmlite.binding as llvm

log = logging.getLogger(__name__)

# Name -> number of arguments; all are int64, and so is the result.
FUNCTIONS = {"work": 5, "start_job": 1, "plan_units": 8}
_HERE = Path(__file__).parent
_CHECKSUM_BYTES = 16


class Compiled:
    """The functions of FUNCTIONS, to be called with ints. They run without the GIL.

    Attributes:
        work, start_job: `kernels.packed.step.work`, `kernels.packed.planning.start_job`.
        plan_units: `kernels.packed.planning.plan_units`.
    """

    def __init__(self, code: bytes) -> None:
        self._engine = llvm.create_mcjit_compiler(llvm.parse_assembly(""), _target_machine())
        self._engine.add_object_file(llvm.ObjectFileRef.from_data(code))
        self._engine.finalize_object()
        self.work = self._function("work")
        self.start_job = self._function("start_job")
        self.plan_units = self._function("plan_units")

    def _function(self, name: str) -> Callable[..., int]:
        # numba's own convention: where to put the result and an exception, then the arguments; 0 if there was none.
        kinds = [ctypes.c_void_p, ctypes.c_void_p] + [ctypes.c_int64] * FUNCTIONS[name]
        native = ctypes.CFUNCTYPE(ctypes.c_int32, *kinds)(self._engine.get_function_address(exported(name)))

        def call(*arguments: int) -> int:
            result, exception = ctypes.c_int64(), ctypes.c_void_p()
            status = native(ctypes.addressof(result), ctypes.addressof(exception), *arguments)
            if status != 0:
                raise RuntimeError(f"compiled {name} ended with status {status}: its job held a divisor of zero")
            return result.value

        return call


def exported(name: str) -> str:
    """The symbol of a function in the object file."""
    return f"ragstone_packed_{name}"


@functools.cache
def compiled() -> Compiled:
    """The functions for this CPU. Raises ImportError where they must be compiled and numba is absent."""
    llvm.initialize_native_target()
    llvm.initialize_native_asmprinter()
    path = _place()
    code = _read(path)
    if code is None:
        from kernels.packed.compiler import object_code

        code = object_code(_target_machine())
        _keep(path, code)
    return Compiled(code)


def _target_machine() -> llvm.TargetMachine:
    return llvm.Target.from_default_triple().create_target_machine(
        cpu=llvm.get_host_cpu_name(),
        features=llvm.get_host_cpu_features().flatten(),
        opt=3,
        reloc="default",
        codemodel="jitdefault",
        jit=True,
    )


def _place() -> Path:
    """Beside the sources, or in the user's cache where that folder can not be written to."""
    root = _HERE / "__pycache__"
    if not os.access(root if root.exists() else _HERE, os.W_OK):
        root = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "ragstone"
    sources = b"".join(source.read_bytes() for source in sorted(_HERE.glob("*.py")))
    machine = f"{llvm.get_host_cpu_name()} {llvm.get_host_cpu_features().flatten()} {llvmlite.__version__}"
    return root / f"compiled-{_digest(sources, 8).hex()}" / f"{_digest(machine.encode(), 8).hex()}.o"


def _digest(value: bytes, size: int) -> bytes:
    return hashlib.blake2b(value, digest_size=size).digest()


def _read(path: Path) -> bytes | None:
    try:
        content = path.read_bytes()
    except OSError:
        return None
    checksum, code = content[:_CHECKSUM_BYTES], content[_CHECKSUM_BYTES:]
    return code if code and checksum == _digest(code, _CHECKSUM_BYTES) else None


def _keep(path: Path, code: bytes) -> None:
    partial = path.with_suffix(f".{os.getpid()}.partial")
    try:
        for old in path.parent.parent.glob("compiled-*"):
            if old != path.parent:
                shutil.rmtree(old, ignore_errors=True)
        path.parent.mkdir(parents=True, exist_ok=True)
        partial.write_bytes(_digest(code, _CHECKSUM_BYTES) + code)
        partial.replace(path)
    except OSError as error:
        log.warning("compiled kernels are not kept, the next start compiles them again: path=%s reason=%s", path, error)
