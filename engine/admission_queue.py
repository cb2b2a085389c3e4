"""Which waiting request may run next: priority classes with ageing, and fair shares between tenants inside a class.

Holds waiting requests only; whether one fits is the scheduler's question. Fair shares are virtual token counters (Sheng
et al., "Fairness in Serving Large Language Models", OSDI 2024): the tenant that was served least goes first, and one
that comes back starts where the others are, so that idleness is not saved up.
"""

from __future__ import annotations

import time
from bisect import insort
from collections import deque
from collections.abc import Callable, Iterator

from engine.request import PRIORITIES, Request

# A class that had to wait for this long since its last admission moves up by one, for its next admission only: a flood
# of batch work cannot age past everybody at once, and none of it waits for ever.
AGEING_S = 10.0

# Tenants whose shares one class remembers; beyond that the half that was served least starts over, as newcomers do.
MAX_TENANTS = 1024

# A generated token costs a step for itself; prompt tokens are computed many at once.
ANSWER_TOKEN_WEIGHT = 2


class TenantShares:
    """The waiting requests of one class, by tenant, and how much each tenant has been served."""

    def __init__(self) -> None:
        # Preempted requests by arrival. Their answers are being read, so they come before what has not begun.
        self.resumed: list[Request] = []
        self.queues: dict[str, deque[Request]] = {}
        self.served: dict[str, int] = {}
        self.last_admission_s = float("-inf")
        # What the tenant admitted last had been served: nobody who (re)joins starts below it.
        self._floor = 0

    def __len__(self) -> int:
        return len(self.resumed) + sum(len(queue) for queue in list(self.queues.values()))

    def __iter__(self) -> Iterator[Request]:
        yield from self.resumed
        for tenant in sorted(self.queues, key=lambda tenant: self.served[tenant]):
            yield from self.queues[tenant]

    def oldest_wait_s(self, now: float) -> float:
        """Seconds for which this class has waited without an admission; it is not empty."""
        heads = [queue[0].arrived_s for queue in self.queues.values()] + [r.arrived_s for r in self.resumed[:1]]
        return now - max(min(heads), self.last_admission_s)

    def add(self, request: Request) -> None:
        if request.num_preemptions:
            insort(self.resumed, request, key=lambda waiting: waiting.arrival)
            return
        if request.tenant not in self.queues:
            self._join(request.tenant)
        self.queues[request.tenant].append(request)

    def remove(self, request: Request) -> bool:
        """Take a request out; False if it does not wait here."""
        if request in self.resumed:
            self.resumed.remove(request)
            return True
        queue = self.queues.get(request.tenant, ())
        if request not in queue:
            return False
        assert isinstance(queue, deque)
        queue.remove(request)
        if not queue:
            del self.queues[request.tenant]
        return True

    def charge(self, tenant: str, cost: int) -> None:
        self.served[tenant] = max(self.served.get(tenant, 0), self._floor) + cost

    def note_admission(self, tenant: str, now: float) -> None:
        self.last_admission_s = now
        self._floor = max(self._floor, self.served.get(tenant, 0))

    def _join(self, tenant: str) -> None:
        # Who waits for nothing and is not ahead of the others need not be remembered: joining again gives the same.
        for idle in [name for name, served in self.served.items() if served <= self._floor and name not in self.queues]:
            del self.served[idle]
        if len(self.served) >= MAX_TENANTS:
            self._floor = sorted(self.served.values())[len(self.served) // 2]
            self.served = {name: n for name, n in self.served.items() if n > self._floor or name in self.queues}
        self.served[tenant] = max(self.served.get(tenant, 0), self._floor)
        self.queues[tenant] = deque()


class AdmissionQueue:
    """All waiting requests. Iteration is in the order in which they should be admitted now."""

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._classes = {priority: TenantShares() for priority in PRIORITIES}

    def __len__(self) -> int:
        return sum(len(shares) for shares in self._classes.values())

    def __iter__(self) -> Iterator[Request]:
        now = self._clock()
        ranked = []
        for rank, shares in enumerate(self._classes.values()):
            if shares:
                waited = max(0.0, shares.oldest_wait_s(now))
                ranked.append((rank - int(waited / AGEING_S), -waited, rank, shares))
        for _, _, _, shares in sorted(ranked, key=lambda entry: entry[:3]):
            yield from shares

    def num_waiting(self) -> dict[str, int]:
        """Waiting requests by class."""
        return {priority: len(shares) for priority, shares in self._classes.items()}

    def add(self, request: Request) -> None:
        """Queue a request: behind its tenant's others, or before them if it was preempted."""
        self._classes[request.priority].add(request)

    def remove(self, request: Request) -> bool:
        """Take a request out; False if it does not wait here."""
        return self._classes[request.priority].remove(request)

    def admit(self, request: Request) -> None:
        """Take a request out because it begins to run now."""
        shares = self._classes[request.priority]
        assert shares.remove(request), f"request {request.request_id} does not wait"
        shares.note_admission(request.tenant, self._clock())

    def charge(self, request: Request, num_prompt_tokens: int, num_answer_tokens: int) -> None:
        """Count what was computed for a request towards its tenant's share of its class."""
        cost = num_prompt_tokens + ANSWER_TOKEN_WEIGHT * num_answer_tokens
        self._classes[request.priority].charge(request.tenant, cost)
