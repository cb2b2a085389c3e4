"""Whether who asks an engine has the time to wait for one that is being started, or for a model that must be loaded."""

import contextvars
from collections.abc import Iterator
from contextlib import contextmanager

_may_wait: contextvars.ContextVar[bool] = contextvars.ContextVar("may_wait", default=True)


def may_wait() -> bool:
    """Whether the task at hand may wait."""
    return _may_wait.get()


@contextmanager
def at_once() -> Iterator[None]:
    """Within it, what an engine cannot tell now is an EngineError: what ends an answer must not wait."""
    token = _may_wait.set(False)
    try:
        yield
    finally:
        _may_wait.reset(token)
