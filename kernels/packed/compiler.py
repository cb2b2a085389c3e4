"""Compiles this package's functions with numba into one object file. `kernels.packed.compiled` keeps and loads it."""

from __future__ import annotations

from typing import cast

import llvmlite.binding as llvm
from numba import njit, types

from kernels.packed import planning, step
from kernels.packed.compiled import FUNCTIONS, exported


def object_code(machine: llvm.TargetMachine) -> bytes:
    """An ELF object with all functions, under the names that `exported` gives them."""
    sources = {"work": step.work, "start_job": planning.start_job, "plan_units": planning.plan_units}
    modules = [_module(name, source.py_func) for name, source in sources.items()]
    for module in modules[1:]:
        modules[0].link_in(module)
    return cast(bytes, machine.emit_object(modules[0]))


def _module(name: str, function: object) -> llvm.ModuleRef:
    # Without wrappers for Python, which would need numba's run time.
    arguments = (types.int64,) * FUNCTIONS[name]
    dispatcher = njit(types.int64(*arguments), no_cpython_wrapper=True, no_cfunc_wrapper=True)(function)
    module = llvm.parse_assembly(dispatcher.inspect_llvm(arguments))
    module.get_function(dispatcher.overloads[arguments].fndesc.llvm_func_name).name = exported(name)
    return module
