"""How much a tenant may ask for: requests a minute, tokens a minute, and requests at the same time.

Requests and tokens are counted in buckets that fill evenly: a full minute's worth may come at once, then as much as the
minute brings. An answer's tokens are known when it has ended, so a bucket of tokens may run into debt, and the tenant
waits until it is paid. A request with a list of questions counts as so many, and they are answered as many at a time as
the tenant has places for. Limits of this process only; two servers with one set of keys grant twice as much.
"""

import contextvars
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from typing import Literal

from app.errors import RequestError

LimitName = Literal["requests_per_minute", "tokens_per_minute", "concurrency"]
# How many questions of the request at hand its tenant may have under way at a time; None: any number.
_places: contextvars.ContextVar[int | None] = contextvars.ContextVar("places", default=None)
# A place may come free at any moment; this is what a client that was refused for want of one is told to wait.
PLACE_S = 1.0
_WHAT = {
    "requests_per_minute": "requests a minute",
    "tokens_per_minute": "tokens a minute",
    "concurrency": "requests at the same time",
}


@dataclass(frozen=True)
class Limits:
    """None: no limit."""

    requests_per_minute: int | None = None
    tokens_per_minute: int | None = None
    concurrency: int | None = None

    def over(self, defaults: "Limits") -> "Limits":
        """These limits, with those of `defaults` where these say nothing."""
        given = {name: value for name, value in vars(self).items() if value is not None}
        return replace(defaults, **given)


def places_for(num_questions: int) -> int:
    """So many of the questions of the request at hand may be answered at a time."""
    places = _places.get()
    return num_questions if places is None else min(num_questions, places)


def set_places(num_places: int | None) -> None:
    """What `places_for` goes by in this task and those it starts."""
    _places.set(num_places)


class TooManyQuestionsError(RequestError):
    """One request asks more than its tenant may in a minute: waiting would not help."""

    def __init__(self, tenant: str, given: int, allowed: int) -> None:
        who = f"the tenant {tenant!r}" if tenant else "a client of this server"
        super().__init__(
            f"the request asks {given:,} questions, and {who} may ask {allowed:,} a minute (requests_per_minute): "
            "send fewer at once",
            field="requests_per_minute",
        )


class LimitError(RequestError):
    """A tenant asks for more than it may. `field` is the limit's name."""

    code = "rate_limit_exceeded"
    status_code = 429

    def __init__(self, tenant: str, limit: LimitName, allowed: int, retry_after_s: float) -> None:
        who = f"the tenant {tenant!r}" if tenant else "this server"
        wait_s = max(1, round(retry_after_s))
        super().__init__(
            f"{who} is at its limit of {allowed:,} {_WHAT[limit]} ({limit}): try again in {wait_s} s",
            field=limit,
        )
        self.retry_after_s = max(1.0, retry_after_s)


@dataclass
class _Bucket:
    """Fills with `per_minute` a minute up to as much."""

    per_minute: int
    level: float
    at: float

    def fill(self, now: float) -> None:
        self.level = min(self.per_minute, self.level + max(0.0, now - self.at) * self.per_minute / 60)
        self.at = now

    def wait_s(self, wanted: float) -> float:
        """Seconds until it holds so much."""
        return max(0.0, wanted - self.level) * 60 / self.per_minute


@dataclass
class _Account:
    running: int = 0
    buckets: dict[str, _Bucket] = field(default_factory=dict)


class TenantLimits:
    """Keeps tenants to their limits. `limits_of` tells a tenant's; methods may be called from any thread."""

    def __init__(self, limits_of: Callable[[str], Limits], clock: Callable[[], float] = time.monotonic) -> None:
        self._limits_of = limits_of
        self._clock = clock
        self._lock = threading.Lock()
        self._accounts: dict[str, _Account] = {}

    def begin(self, tenant: str, num_questions: int = 1) -> int:
        """Counts a request that begins, and tells how many places it has got; `end` with as many must follow.

        Raises LimitError and TooManyQuestionsError, and then nothing is counted.
        """
        limits, now = self._limits_of(tenant), self._clock()
        with self._lock:
            account = self._accounts.setdefault(tenant, _Account())
            if limits.concurrency is not None and account.running >= limits.concurrency:
                raise LimitError(tenant, "concurrency", limits.concurrency, PLACE_S)
            tokens = self._bucket(account, "tokens_per_minute", limits.tokens_per_minute, now)
            if tokens is not None and tokens.level < 1:
                raise LimitError(tenant, "tokens_per_minute", tokens.per_minute, tokens.wait_s(1))
            requests = self._bucket(account, "requests_per_minute", limits.requests_per_minute, now)
            if requests is not None:
                if num_questions > requests.per_minute:
                    raise TooManyQuestionsError(tenant, num_questions, requests.per_minute)
                if requests.level < num_questions:
                    wait_s = requests.wait_s(num_questions)
                    raise LimitError(tenant, "requests_per_minute", requests.per_minute, wait_s)
                requests.level -= num_questions
            free = num_questions if limits.concurrency is None else limits.concurrency - account.running
            places = min(num_questions, free)
            account.running += places
            return places

    def end(self, tenant: str, num_places: int = 1) -> None:
        """Gives places back: the request has ended."""
        with self._lock:
            self._accounts[tenant].running -= num_places

    def spend(self, tenant: str, num_tokens: int) -> None:
        """Counts tokens that the engine has worked on for a tenant."""
        limit = self._limits_of(tenant).tokens_per_minute
        with self._lock:
            account = self._accounts.setdefault(tenant, _Account())
            bucket = self._bucket(account, "tokens_per_minute", limit, self._clock())
            if bucket is not None:
                bucket.level -= num_tokens

    @property
    def num_running(self) -> int:
        """Questions that may be under way: the places of the requests that have begun and not ended."""
        with self._lock:
            return sum(account.running for account in self._accounts.values())

    @staticmethod
    def _bucket(account: _Account, name: LimitName, limit: int | None, now: float) -> _Bucket | None:
        if limit is None:
            account.buckets.pop(name, None)
            return None
        bucket = account.buckets.get(name)
        if bucket is None or bucket.per_minute != limit:
            bucket = account.buckets[name] = _Bucket(limit, limit, now)
        bucket.fill(now)
        return bucket
