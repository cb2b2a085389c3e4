"""Packed 4-bit and 8-bit weights on a CPU: a decoder step compiled by numba, run by a team of threads.

Needs numba; `why_unavailable` says whether it can be used here. What has been compiled is kept on disk: the first use
on a machine compiles (`python -m kernels.packed` does it ahead of time), later ones load.
"""

from __future__ import annotations

import functools
import hashlib
import os
import shutil
import threading
from pathlib import Path

_HERE = Path(__file__).parent
_LOADING = threading.Lock()


@functools.cache
def why_unavailable() -> str | None:
    """Why packed weights can not be computed with on this machine; None if they can. Loads the compiled kernels."""
    with _LOADING:
        try:
            _keep_compiled_code()
            from kernels.packed.check import first_fault
        except ImportError as error:
            return f"the numba package can not be imported ({error}); install it with: pip install numba"
        return first_fault()


def load_ahead() -> None:
    """Begin to load the compiled kernels on a thread; `why_unavailable` then waits for what is left of it."""
    threading.Thread(target=why_unavailable, name="ragstone-kernels", daemon=True).start()


def _keep_compiled_code() -> None:
    """Have numba keep its code in a folder named after all these sources; it would look at the outermost one only."""
    from numba import config

    digest = hashlib.blake2b(digest_size=8)
    for source in sorted(_HERE.glob("*.py")):
        digest.update(source.read_bytes())
    root = _HERE / "__pycache__"
    if not os.access(root if root.exists() else _HERE, os.W_OK):
        root = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "ragstone"
    folder = root / f"compiled-{digest.hexdigest()}"
    for old in root.glob("compiled-*"):
        if old != folder:
            shutil.rmtree(old, ignore_errors=True)
    setattr(config, "CACHE_DIR", str(folder))  # noqa: B010 - numba makes its settings at run time
