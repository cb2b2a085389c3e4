"""What a server under load does rather than refuse: fewer passages, shorter answers, answers that come later.

Said in every reply it touches.

The settings say which of them (`degradation`) and from how many waiting requests on (`degrade_at`). What holds for the
request at hand is noted when it arrives (`app/routes/admission.py`), and read where a search or an answer begins.
"""

import contextvars
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

FEWER_PASSAGES = "fewer-passages"
SHORTER_ANSWERS = "shorter-answers"
# Requests of these priorities are taken down and answered when there is time (`app/answer_jobs.py`).
ASYNCHRONOUS = "asynchronous"
LATER_PRIORITIES = ("batch", "background")
POLICIES = (FEWER_PASSAGES, SHORTER_ANSWERS, ASYNCHRONOUS)
# Said in the reply's head: which policies the request met.
HEADER = "X-Ragstone-Degraded"


@dataclass(frozen=True)
class Degradation:
    """The policies in force for a request, and how far they go."""

    policies: tuple[str, ...] = ()
    num_passages: int = 1
    max_tokens: int = 128

    def passages(self, k: int) -> int:
        """How many passages to look for where `k` are wanted."""
        return min(k, self.num_passages) if FEWER_PASSAGES in self.policies else k

    def sampling(self, params: Mapping[str, Any]) -> Mapping[str, Any]:
        """Sampling fields, with an answer no longer than it may be."""
        if SHORTER_ANSWERS not in self.policies:
            return params
        given = params.get("max_tokens")
        return {**params, "max_tokens": self.max_tokens if given is None else min(given, self.max_tokens)}


NONE = Degradation()
_current: contextvars.ContextVar[Degradation] = contextvars.ContextVar("degradation", default=NONE)


def current_degradation() -> Degradation:
    """What holds for the request at hand; nothing outside of requests."""
    return _current.get()


def set_degradation(degradation: Degradation) -> None:
    """From now on, in this task and those it starts."""
    _current.set(degradation)
