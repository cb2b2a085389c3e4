"""A team of threads inside compiled code: barriers, shared work, and sleeping while there is none.

A decoder step is some hundred phases of tens of microseconds, far too short to start threads for. So helper threads
stay in compiled code (without the GIL): they wait for a job, run it together with the caller, and sleep in a pipe's
`read` when none has come for a while.
"""

from __future__ import annotations

from numba import njit, types

from kernels.packed.layout import ARRIVED, CLAIMED, GENERATION, PARKED, PHASE
from kernels.packed.simd import atomic_add, atomic_load, atomic_store, cpu_pause

# About a tenth of a millisecond: longer than the gap between two phases, shorter than anybody would notice the heat of.
SPINS_BEFORE_SLEEP = 3000
# A thread that waits for one the system has taken off its core gives up its own.
SPINS_BEFORE_YIELD = 2000

_read = types.ExternalFunction("read", types.intp(types.int32, types.intp, types.intp))
_sched_yield = types.ExternalFunction("sched_yield", types.int32())


@njit
def barrier(shared, num_threads):
    """Wait until all threads have come; the last one resets the work counter for the next phase."""
    phase = atomic_load(shared + PHASE)
    if atomic_add(shared + ARRIVED, 1) == num_threads - 1:
        atomic_store(shared + ARRIVED, 0)
        atomic_store(shared + CLAIMED, 0)
        atomic_add(shared + PHASE, 1)
        return
    spins = 0
    while atomic_load(shared + PHASE) == phase:
        cpu_pause()
        spins += 1
        if spins >= SPINS_BEFORE_YIELD:
            _sched_yield()


@njit
def claim(shared, chunk):
    """The first unit of a run of `chunk` that now belongs to the caller; past the end there is nothing left."""
    return atomic_add(shared + CLAIMED, chunk)


@njit
def await_job(shared, seen, pipe, scratch):
    """Block until the generation differs from `seen`; returns it. `scratch` is the address of a byte to read into."""
    spins = 0
    while True:
        generation = atomic_load(shared + GENERATION)
        if generation != seen:
            return generation
        cpu_pause()
        spins += 1
        if spins >= SPINS_BEFORE_SLEEP:
            spins = 0
            atomic_add(shared + PARKED, 1)
            # Asked again after saying so: the caller looks at PARKED after it has started a job.
            if atomic_add(shared + GENERATION, 0) == seen:
                _read(types.int32(pipe), scratch, 1)
            atomic_add(shared + PARKED, -1)
