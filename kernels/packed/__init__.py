"""Packed 4-bit and 8-bit weights on a CPU: a decoder step compiled by numba, run by a team of threads.

Needs numba; `why_unavailable` says whether it can be used here. What has been compiled is kept on disk: the first use
on a machine compiles (`python -m kernels.packed` does it ahead of time), later ones load (`kernels.packed.compiled`).
"""

from __future__ import annotations

import functools
import threading

_LOADING = threading.Lock()


@functools.cache
def why_unavailable() -> str | None:
    """Why packed weights can not be computed with on this machine; None if they can. Loads the compiled kernels."""
    with _LOADING:
        try:
            from kernels.packed.check import first_fault

            return first_fault()
        except ImportError as error:
            return f"the numba package can not be imported ({error}); install it with: pip install numba"


def load_ahead() -> None:
    """Begin to load the compiled kernels on a thread; `why_unavailable` then waits for what is left of it."""
    threading.Thread(target=why_unavailable, name="ragstone-kernels", daemon=True).start()
