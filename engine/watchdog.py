"""Tells a thread that hangs from one that is idle or busy, from a thread of its own. Knows nothing of requests."""

from __future__ import annotations

import logging
import sys
import threading
import traceback
from collections.abc import Callable

log = logging.getLogger(__name__)

# The watched thread is looked at so many times in the silence that it is allowed.
POLLS = 16
# It ends at once, unless it is telling of a stall.
STOP_S = 1.0


class Watchdog:
    """Calls `on_stall(silent_s)` once each time the watched thread has not beaten for `limit_s()` with work at hand.

    Silence is counted in looks, not read from a clock: when the whole process was stopped for a while, or its machine
    slept, nobody hangs.
    """

    def __init__(
        self, limit_s: Callable[[], float], has_work: Callable[[], bool], on_stall: Callable[[float], None]
    ) -> None:
        self._limit_s = limit_s
        self._has_work = has_work
        self._on_stall = on_stall
        self._beats = 0
        self._stop = threading.Event()
        self._thread: threading.Thread | None = None
        self.silent_s = 0.0
        self.stalled = False

    def beat(self) -> None:
        """The watched thread is alive; costs nothing worth counting."""
        self._beats += 1

    def watch(self, thread: threading.Thread) -> None:
        """Start to watch this thread, until it ends or `stop` is called."""
        self._thread = threading.Thread(target=self._run, args=(thread,), name="ragstone-watchdog", daemon=True)
        self._thread.start()

    def stop(self) -> None:
        """Stop watching, and wait for the end of it, as it holds on to what it watched; harmless if nothing is."""
        self._stop.set()
        if self._thread is not None and self._thread is not threading.current_thread():
            self._thread.join(STOP_S)

    def _run(self, thread: threading.Thread) -> None:
        seen = self._beats
        while thread.is_alive():
            poll_s = self._limit_s() / POLLS
            if self._stop.wait(poll_s):
                return
            beats, seen = seen, self._beats
            if beats != seen:
                if self.stalled:
                    log.warning("the engine thread goes on after %.1f s", self.silent_s)
                self.silent_s, self.stalled = 0.0, False
            elif self.stalled or self._has_work():
                self.silent_s += poll_s
            else:
                self.silent_s = 0.0
            if self.silent_s >= self._limit_s() and not self.stalled:
                self.stalled = True
                log.critical("the engine thread hangs for %.1f s:\n%s", self.silent_s, _stack(thread))
                self._on_stall(self.silent_s)


def _stack(thread: threading.Thread) -> str:
    frame = sys._current_frames().get(thread.ident or 0)
    return "".join(traceback.format_stack(frame)) if frame is not None else "(no stack)"
