"""How deltas get from the engine's thread to who waits for them: a sink for each request, and event loops woken once.

Which deltas those are, and when a request is over, is `async_engine`'s business.
"""

from __future__ import annotations

import asyncio
import collections
import threading
import weakref
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass

from engine.outputs import OutputDelta
from engine.request import Request

Sink = Callable[[list[OutputDelta]], None]


class LoopMailbox:
    """Deltas on their way to the streams that one event loop reads; it is woken once for all of a step.

    Each waking is a write to a socket, for which the engine's thread lets go of the interpreter: one for each request
    would have it wait for its turn that often.
    """

    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        self._loop = weakref.ref(loop)
        self._letters: collections.deque[tuple[asyncio.Queue[list[OutputDelta]], list[OutputDelta]]] = (
            collections.deque()
        )
        self._is_woken = False

    def put(self, stream: asyncio.Queue[list[OutputDelta]], deltas: list[OutputDelta]) -> None:
        """For the stream, when the loop is woken."""
        self._letters.append((stream, deltas))

    def wake(self) -> None:
        """Has the loop hand out what is here."""
        loop = self._loop()
        if loop is None or self._is_woken:
            return
        self._is_woken = True
        # The loop may have been closed when its server was stopped; then nobody waits for these.
        with suppress(RuntimeError):
            loop.call_soon_threadsafe(self._hand_out)

    def _hand_out(self) -> None:
        self._is_woken = False  # first: what is put from now on wakes again
        while self._letters:
            stream, deltas = self._letters.popleft()
            stream.put_nowait(deltas)


class LoopMailboxes:
    """A mailbox for each event loop, as long as that lives. Thread-safe."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._of_loop: weakref.WeakKeyDictionary[asyncio.AbstractEventLoop, LoopMailbox] = weakref.WeakKeyDictionary()

    def of(self, loop: asyncio.AbstractEventLoop) -> LoopMailbox:
        """The loop's own."""
        with self._lock:
            return self._of_loop.setdefault(loop, LoopMailbox(loop))


@dataclass(frozen=True)
class Ticket:
    """Who waits for a request's deltas, and its sequences; `wake` is called when sinks have got theirs."""

    sink: Sink
    requests: list[Request]
    wake: Callable[[], None] | None = None
