"""Python's garbage collector, out of the way while a model is loaded."""

from __future__ import annotations

import gc
from collections.abc import Iterator
from contextlib import contextmanager


@contextmanager
def paused_collector() -> Iterator[None]:
    """No collections inside: imports and vocabularies make hundreds of thousands of objects that all stay, and the
    collector would walk them again and again, for a fifth of the time from a cold process to a ready engine."""
    was_enabled = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if was_enabled:
            gc.enable()
