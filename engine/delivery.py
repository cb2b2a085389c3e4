"""How deltas get from the engine's thread to who waits for them: a sink for each request, and event loops woken once.

Which deltas those are, and when a request is over, is `async_engine`'s business.
"""

from __future__ import annotations

import asyncio
import collections
import threading
import time
import weakref
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass

from engine.outputs import OutputDelta
from engine.request import Request

Sink = Callable[[list[OutputDelta]], None]

# What a loop does with each delta, above all one of a chain, is done on a core that the steps need too. It is woken so
# often that it hands out about so many a second, but no stream waits longer than MOST_WAIT_S.
DELTAS_PER_S = 400
MOST_WAIT_S = 0.05
# So many streams are told of every step.
FEW_STREAMS = 4


class LoopMailbox:
    """Deltas on their way to the streams that one event loop reads; it is woken once for all of a step.

    Each waking is a write to a socket, for which the engine's thread lets go of the interpreter: one for each request
    would have it wait for its turn that often. Where many read, what several steps bring a stream is handed out
    together; the first and the last of an answer never wait.
    """

    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        self._loop = weakref.ref(loop)
        self._letters: collections.deque[tuple[asyncio.Queue[list[OutputDelta]], list[OutputDelta]]] = (
            collections.deque()
        )
        self._num_new = 0
        self._is_urgent = False
        self._is_woken = False
        self._is_timed = False
        self._handed_out_s = 0.0

    def put(self, stream: asyncio.Queue[list[OutputDelta]], deltas: list[OutputDelta]) -> None:
        """For the stream, when the loop is woken."""
        self._letters.append((stream, deltas))
        self._num_new += 1
        self._is_urgent = self._is_urgent or any(_must_not_wait(delta) for delta in deltas)

    def wake(self) -> None:
        """Has the loop hand out what is here, now or soon."""
        loop = self._loop()
        num_new, self._num_new = self._num_new, 0
        if loop is None or self._is_woken:
            return
        wait_s = 0.0
        if not self._is_urgent and num_new > FEW_STREAMS:
            wait_s = self._handed_out_s + min(num_new / DELTAS_PER_S, MOST_WAIT_S) - time.monotonic()
        # The loop may have been closed when its server was stopped; then nobody waits for these.
        with suppress(RuntimeError):
            if wait_s <= 0:
                self._is_woken = True
                loop.call_soon_threadsafe(self._hand_out)
            elif not self._is_timed:
                self._is_timed = True
                loop.call_soon_threadsafe(loop.call_later, wait_s, self._hand_out)

    def _hand_out(self) -> None:
        # First: what is put from now on wakes again.
        self._is_woken = self._is_timed = self._is_urgent = False
        self._handed_out_s = time.monotonic()
        while self._letters:
            stream, deltas = self._letters.popleft()
            stream.put_nowait(deltas)


def _must_not_wait(delta: OutputDelta) -> bool:
    is_first = delta.num_output_tokens == len(delta.token_ids)
    return is_first or delta.finish_reason is not None or delta.error is not None


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
