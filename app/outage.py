"""What is known of a server in another process that does not answer: who asks it next is not made to wait as well.

The pattern is the circuit breaker (Nygard, Release It!, 2007).
"""

import threading
import time

from app.errors import StoreUnavailableError

ANSWER_S = 5.0
"""So long a server may take for one answer."""
# So long nobody asks a server again that has let somebody wait in vain.
_PAUSE_S = 3.0
# A failure is told of until the next success, and no longer than this where nobody asks.
_TOLD_S = 60.0


class Outage:
    """Failures of the server `name` in a row. Thread-safe."""

    def __init__(self, name: str) -> None:
        self._name = name
        self._lock = threading.Lock()
        self._last: tuple[float, str, bool] | None = None

    @property
    def reason(self) -> str:
        """That it failed at the last time; "" if it did not. Anybody may read it: no address, nor what was asked."""
        with self._lock:
            recent = self._last is not None and time.monotonic() - self._last[0] < _TOLD_S
            return f"{self._name} does not answer" if recent else ""

    def check(self) -> None:
        """Raises StoreUnavailableError where somebody has just waited in vain."""
        with self._lock:
            if self._last is not None and self._last[2] and time.monotonic() - self._last[0] < _PAUSE_S:
                raise StoreUnavailableError(self._last[1])

    def succeeded(self) -> None:
        """It has answered."""
        with self._lock:
            self._last = None

    def failed(self, error: object, *, waited: bool = False) -> StoreUnavailableError:
        """The error to raise for what went wrong; `waited`: no answer came in time."""
        reason = f"{self._name}: no answer within {ANSWER_S:g} s" if waited else f"{self._name}: {error}"
        with self._lock:
            self._last = (time.monotonic(), reason, waited)
        return StoreUnavailableError(reason)
