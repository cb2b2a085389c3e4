"""Which model answers a request: by its name, by the first rule that fits, else the default; and who steps in for it.

A model that fails or is overloaded is replaced by those that it falls back to, as long as nothing of its answer has
been passed on. A private request reaches models of this machine only, however it gets there.
"""

import logging
import re
from collections.abc import AsyncGenerator, Callable, Generator, Sequence
from contextlib import aclosing, closing
from dataclasses import dataclass, field
from typing import Any, Literal

from app.engines.backend import EngineBackend
from app.engines.client import EngineClient
from app.engines.entries import ModelEntry, RouteRule, Use
from app.engines.model_table import ModelTable
from app.engines.request import EngineRequest
from app.errors import ModelError, StartupError, UnknownModelError
from app.privacy import PrivateRequestError
from engine.errors import DeadlineExceededError, EngineError
from engine.outputs import OutputDelta

logger = logging.getLogger(__name__)

Reason = Literal["name", "rule", "default", "error", "overload"]

# So many words, clauses and further sentences make a text as complex as can be.
MOST_COMPLEX = 100
_SENTENCE_END = re.compile(r"[.!?。！？](?:\s|$)|\n+")
_CLAUSE = re.compile(r"[,;:()，；：]|\d+")


def complexity(text: str) -> float:
    """How much a question asks for, from 0 to 1: words, +10 for each further sentence or line, +5 for each clause.

    A clause is a comma, semicolon, colon, bracket or number. Nothing is understood; long and many-parted questions are
    what small models get wrong. Words of scripts without spaces count by three characters.
    """
    words = sum(max(1, len(word.encode()) // 9) for word in text.split())
    sentences = len([part for part in _SENTENCE_END.split(text) if part.strip()])
    return min(1.0, (words + 10 * max(0, sentences - 1) + 5 * len(_CLAUSE.findall(text))) / MOST_COMPLEX)


def estimated_tokens(text: str) -> int:
    """About how many tokens a text has, for rules: no model is asked, and none need be loaded."""
    return len(text.encode("utf-8", "replace")) // 4


@dataclass(frozen=True, kw_only=True)
class Asked:
    """What of a request decides where it goes. `name`: the model that it asks for; None: whichever."""

    use: Use
    name: str | None = None
    question: str = ""
    num_prompt_tokens: int = 0
    collections: Sequence[str] | None = None
    private: bool = False


@dataclass(frozen=True)
class Route:
    """The models to ask, in order, and why the first of them is the first."""

    names: tuple[str, ...]
    reason: Reason

    @property
    def name(self) -> str:
        """The model that is asked first."""
        return self.names[0]


class Router:
    """Chooses by a table."""

    def __init__(self, table: ModelTable) -> None:
        self._table = table

    def route(self, asked: Asked) -> Route:
        """The way of a request.

        Raises UnknownModelError for a name that is not served so, PrivateRequestError where nobody here could answer.
        """
        names = self._table.names(asked.use)
        if asked.name is not None:
            if asked.name not in names:
                raise UnknownModelError(asked.name, *names)
            return self._way(asked.name, "name", asked)
        for rule in self._table.rules:
            entry = self._table.entries[rule.model]
            may_go = entry.name in names and (entry.takes_private or not asked.private)
            if may_go and _fits(rule, asked):
                return self._way(rule.model, "rule", asked)
        return self.default(asked)

    def default(self, asked: Asked) -> Route:
        """The way of a request for which nothing is to be decided. Raises as `route`."""
        names = self._table.names(asked.use)
        if not names:
            raise UnknownModelError(self._table.default)
        name = self._table.default if self._table.default in names else names[0]
        return self._way(name, "default", asked)

    def _way(self, name: str, reason: Reason, asked: Asked) -> Route:
        entries = [self._table.entries[one] for one in (name, *self._table.entries[name].fallback)]
        ways = [entry.name for entry in entries if _may_be_asked(entry, asked)]
        if asked.private and (not ways or (reason == "name" and ways[0] != name)):
            here = [one for one, entry in self._table.entries.items() if _may_be_asked(entry, asked)]
            if reason == "name" or not here:
                raise PrivateRequestError(name)
            ways = here[:1]
        return Route(tuple(ways), reason)


def _may_be_asked(entry: ModelEntry, asked: Asked) -> bool:
    return asked.use in entry.uses and (entry.takes_private or not asked.private)


def _fits(rule: RouteRule, asked: Asked) -> bool:
    """Whether all conditions of a rule hold. Where nothing narrows the search, it goes through all collections."""
    if rule.min_prompt_tokens is not None and asked.num_prompt_tokens < rule.min_prompt_tokens:
        return False
    if rule.max_prompt_tokens is not None and asked.num_prompt_tokens > rule.max_prompt_tokens:
        return False
    if rule.min_complexity is not None and complexity(asked.question) < rule.min_complexity:
        return False
    if rule.max_complexity is not None and complexity(asked.question) > rule.max_complexity:
        return False
    if rule.collections is not None and not set(rule.collections) & set(asked.collections or ()):
        return False
    return rule.private is None or rule.private == asked.private


# ── asking ───────────────────────────────────────────────────────────────────────────────────────────────────────────


@dataclass
class Candidate:
    """A model of a route. It counts as overloaded from so many waiting requests on; None: when it refuses."""

    name: str
    backend: EngineBackend
    overloaded_at: int | None = None

    @property
    def is_overloaded(self) -> bool:
        """Whether more wait for it than may."""
        return self.overloaded_at is not None and self.backend.stats().num_waiting >= self.overloaded_at


@dataclass
class RoutedClient:
    """The models of a route as one EngineClient; for all but streams it is the first of them.

    Where that can not be had, its size, its context and its tokens are those of the first that can: it will answer.
    `count` is told of every model that is asked for an answer, and why. `answered_by` and `because` are of the newest
    request: use one client for each (`begin`) to know who answered it.
    """

    route: Route
    candidates: Sequence[Candidate]
    count: Callable[[str, Reason], None]
    answered_by: str = field(default="", init=False)
    because: str | None = field(default=None, init=False)
    _num_absent: int = field(default=0, init=False)

    def __post_init__(self) -> None:
        self.answered_by = self.route.name

    def __getattr__(self, name: str) -> Any:
        return getattr(self.candidates[0].backend.client, name)

    @property
    def max_model_len(self) -> int:
        return self._of_present(lambda client: client.max_model_len)

    @property
    def num_parameters(self) -> int:
        return self._of_present(lambda client: client.num_parameters)

    def count_tokens(self, text: str) -> int:
        return self._of_present(lambda client: client.count_tokens(text))

    @property
    def is_whole(self) -> bool:
        """Whether the first model could be had whenever it was needed."""
        return self._num_absent == 0

    def _of_present(self, ask: Callable[[EngineClient], int]) -> int:
        failure: Exception | None = None
        for number, candidate in enumerate(self.candidates[self._num_absent :], self._num_absent):
            try:
                return ask(candidate.backend.client)
            except (EngineError, ModelError, StartupError) as error:
                failure = failure or error
                if number + 1 < len(self.candidates):
                    self._num_absent = number + 1
        assert failure is not None, "a route has a model"
        raise failure

    def begin(self) -> "RoutedClient":
        """The same, for one request."""
        return RoutedClient(self.route, self.candidates, self.count)

    def told(self) -> dict[str, Any]:
        """`routing` of a reply: why another model answered than was asked for by name; nothing where none did."""
        if self.route.reason == "name" and self.because is None:
            return {}
        return {"routing": {"reason": self.route.reason, "fallback_because": self.because}}

    def abort(self, request_id: str) -> None:
        for candidate in self.candidates:
            candidate.backend.client.abort(request_id)

    async def stream(self, request: EngineRequest) -> AsyncGenerator[OutputDelta, None]:
        attempts = _Attempts(self)
        while (client := attempts.next()) is not None:
            try:
                async with aclosing(client.stream(request)) as deltas:
                    async for delta in deltas:
                        attempts.has_begun = True
                        yield delta
                return
            except (EngineError, ModelError, StartupError) as error:
                attempts.failed(error)

    def stream_sync(self, request: EngineRequest) -> Generator[OutputDelta, None, None]:
        attempts = _Attempts(self)
        while (client := attempts.next()) is not None:
            try:
                with closing(client.stream_sync(request)) as deltas:
                    for delta in deltas:
                        attempts.has_begun = True
                        yield delta
                return
            except (EngineError, ModelError, StartupError) as error:
                attempts.failed(error)


class _Attempts:
    """The models that are tried for one request."""

    def __init__(self, routed: RoutedClient) -> None:
        self._routed = routed
        self._left = list(routed.candidates)
        self._first_error: Exception | None = None
        self._reason: Reason = routed.route.reason
        self.has_begun = False

    def next(self) -> EngineClient | None:
        """The client to ask now: of the models that are left, the first that is not overloaded, else the last."""
        while len(self._left) > 1 and self._left[0].is_overloaded:
            self._step_back(self._left.pop(0), "overload", "overloaded")
        candidate = self._left.pop(0)
        self._routed.answered_by = candidate.name
        self._routed.count(candidate.name, self._reason)
        return candidate.backend.client

    def failed(self, error: Exception) -> None:
        """Raises, where nobody steps in: what is wrong with the request, or the failure that came first."""
        if self.has_begun or isinstance(error, ValueError | DeadlineExceededError) or not self._left:
            # A model that steps in may not take what the first one would have: then the first one's failure counts.
            raise (self._first_error or error) if not self.has_begun else error
        self._first_error = self._first_error or error
        code = str(getattr(error, "code", "internal_error"))
        self._step_back(None, "overload" if code in ("queue_full", "backend_busy") else "error", code)

    def _step_back(self, candidate: Candidate | None, reason: Reason, code: str) -> None:
        name = candidate.name if candidate else self._routed.answered_by
        logger.warning("model %s is passed over: %s", name, code)
        self._reason, self._routed.because = reason, self._routed.because or code
