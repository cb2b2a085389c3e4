"""Python's garbage collector, out of the way while a model is loaded."""

from __future__ import annotations

import gc
from collections.abc import Iterator
from contextlib import contextmanager


@contextmanager
def paused_collector(*, modules: bool = False) -> Iterator[None]:
    """No collections inside: imports and vocabularies make hundreds of thousands of objects that all stay, and the
    collector would walk them again and again, for a fifth of the time from a cold process to a ready engine.

    With `modules`, what is there at the end stays for good and is never walked; an engine may be put away again.
    """
    was_enabled = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if modules:
            gc.freeze()
        if was_enabled:
            gc.enable()
