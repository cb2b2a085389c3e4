"""One turn at a time in each conversation: fair locks by name, for tasks of any event loop and for plain threads."""

import asyncio
import threading
from collections import deque
from collections.abc import AsyncIterator, Hashable
from concurrent.futures import Future
from contextlib import asynccontextmanager


class TurnLocks:
    """Locks by key, each served first come, first served, and forgotten when nobody holds or wants it.

    A waiter that is cancelled leaves the queue; one that is cancelled in the moment it is served passes the lock on.
    """

    def __init__(self) -> None:
        self._guard = threading.Lock()
        self._waiters: dict[Hashable, deque[Future[None]]] = {}  # a key is present while its lock is held

    @asynccontextmanager
    async def hold(self, key: Hashable) -> AsyncIterator[None]:
        """Holds the key's lock inside the `async with`."""
        await self.acquire(key)
        try:
            yield
        finally:
            self.release(key)

    def is_held(self, key: Hashable) -> bool:
        """Whether somebody holds the key's lock now."""
        with self._guard:
            return key in self._waiters

    async def acquire(self, key: Hashable) -> None:
        """Waits for the key's lock; `release` must follow."""
        with self._guard:
            if key not in self._waiters:
                self._waiters[key] = deque()
                return
            turn: Future[None] = Future()
            self._waiters[key].append(turn)
        try:
            await asyncio.wrap_future(turn)
        except asyncio.CancelledError:
            if not turn.cancel():
                self.release(key)  # served and cancelled at the same time
            raise

    def release(self, key: Hashable) -> None:
        """Passes the key's lock on to who has waited longest."""
        with self._guard:
            waiters = self._waiters[key]
            while waiters:
                turn = waiters.popleft()
                if turn.set_running_or_notify_cancel():
                    turn.set_result(None)
                    return
            del self._waiters[key]
