"""Tells a thread that hangs from one that is idle, busy or starved. Knows nothing of requests.

Starved is who is ready to run and gets no processor, as others have them all: Linux tells how long each thread waited
(/proc/PID/task/TID/schedstat; kernel documentation, scheduler/sched-stats). A step is the work of several threads that
wait for each other, so the wait of any of them delays it.
"""

from __future__ import annotations

import logging
import sys
import threading
import traceback
from collections.abc import Callable, Mapping
from pathlib import Path

log = logging.getLogger(__name__)

# The watched thread is looked at so many times in the silence that it is allowed.
POLLS = 16
# It ends at once, unless it is telling of a stall.
STOP_S = 1.0
# However starved a process is, this share of the silence counts: a hang is found late then, but found.
LEAST_COUNTED = 0.1


class Watchdog:
    """Calls `on_stall(silent_s)` once each time the watched thread has not beaten for `limit_s()` with work at hand.

    Silence is counted in looks, not read from a clock: when the whole process was stopped for a while, or its machine
    slept, nobody hangs. Nor does it count while a thread of the process waits for a processor, as `waited_s` tells of
    each: a step that others keep from running is slow, not hanging.
    """

    def __init__(
        self,
        limit_s: Callable[[], float],
        has_work: Callable[[], bool],
        on_stall: Callable[[float], None],
        waited_s: Callable[[], Mapping[int, float]] | None = None,
    ) -> None:
        self._limit_s = limit_s
        self._has_work = has_work
        self._on_stall = on_stall
        self._waited_s = waited_s or threads_waited_s
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
        unheard_s = 0.0  # since the last beat with work at hand, starved or not
        before: Mapping[int, float] = {}
        while thread.is_alive():
            poll_s = self._limit_s() / POLLS
            if self._stop.wait(poll_s):
                return
            beats, seen = seen, self._beats
            if beats != seen:
                if self.stalled:
                    log.warning("the engine thread goes on after %.1f s", self.silent_s)
                self.silent_s, self.stalled, unheard_s = 0.0, False, 0.0
            elif self.stalled or self._has_work():
                before = before if unheard_s else self._waited_s()
                unheard_s += poll_s
                self.silent_s = max(unheard_s - _longest_wait(before, self._waited_s()), LEAST_COUNTED * unheard_s)
            else:
                self.silent_s, unheard_s = 0.0, 0.0
            if self.silent_s >= self._limit_s() and not self.stalled:
                self.stalled = True
                log.critical(
                    "the engine thread hangs for %.1f s (%.1f s more without a processor):\n%s",
                    self.silent_s,
                    unheard_s - self.silent_s,
                    _stack(thread),
                )
                self._on_stall(self.silent_s)


def threads_waited_s() -> dict[int, float]:
    """How long each thread of this process has been ready to run without a processor; empty where that is not told."""
    waited = {}
    for task in Path("/proc/self/task").glob("[0-9]*"):
        try:
            waited[int(task.name)] = int((task / "schedstat").read_text().split()[1]) / 1e9
        except (OSError, IndexError, ValueError):
            continue  # it has ended, or this system does not tell
    return waited


def _longest_wait(before: Mapping[int, float], after: Mapping[int, float]) -> float:
    """How long that thread waited which waited longest between two looks."""
    return max((waited - before.get(thread, 0.0) for thread, waited in after.items()), default=0.0)


def _stack(thread: threading.Thread) -> str:
    frame = sys._current_frames().get(thread.ident or 0)
    return "".join(traceback.format_stack(frame)) if frame is not None else "(no stack)"
