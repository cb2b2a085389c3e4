"""Speculation: which proposals a step verifies besides computing the newest tokens, and whether that pays.

The method is *sample and match*: the ordinary sampler runs on every drafted row, and a draft is accepted while it
equals the token sampled (`Engine`). So drafts decide how fast an answer comes and never what it says, and whether to
draft may depend on measured times. N-gram look-up: Saxena, "Prompt Lookup Decoding" (2023).
"""

from __future__ import annotations

import time
from collections import defaultdict, deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Protocol

from engine.request import Request
from engine.scheduler import Scheduler, StepPlan

# Tokens of a match that are told apart when its chance is estimated; a longer one counts as this long.
LONGEST_MATCH = 8
# A draft must promise this much more speed, since the estimate itself is uncertain.
LEAST_GAIN = 1.03
# Steps after which a time or a refusal is too old to be believed without another try.
STALE_STEPS = 96
# What drafts may cost a request, in plain steps: before it has gained any, for each token that it has, and how much of
# what earlier drafts have gained counts.
FIRST_CREDIT = 0.1
CREDIT_PER_TOKEN = 0.04
MOST_GAINED = 8.0
# Assumed cost of one more row relative to a step of one row, until it has been measured.
PRIOR_ROW_COST = 0.02


class Drafter(Protocol):
    """Proposes tokens."""

    def strength(self, request: Request) -> int:
        """How well founded a draft would be now: 0 is none at all, and each value has chances of its own."""

    def follow(self, plan: StepPlan) -> None:
        """Prepare for what the step reads of prompts, so that the first draft need not do it all."""

    def draft(self, wanted: Sequence[tuple[Request, int]]) -> list[list[int]]:
        """At most so many tokens for each request; its block table has room for them."""

    def forget(self, request: Request) -> None:
        """The request has ended."""


class NgramIndex:
    """Where each n-gram of one token sequence last ended, kept up to date token by token without rescans."""

    def __init__(self, min_n: int = 2, max_n: int = 4) -> None:
        self.min_n = min_n
        self.max_n = max_n
        self._ends: list[dict[tuple[int, ...], int]] = [{} for _ in range(min_n, max_n + 1)]
        self._num_indexed = 0

    def find(self, token_ids: Sequence[int]) -> tuple[int, int]:
        """(where the newest earlier occurrence of the longest known suffix ended, length of the match); (0, 0) if none.

        `token_ids` is what was given last time with tokens appended. Suffixes of min_n to max_n tokens are looked up,
        the longest first; the length returned goes on to LONGEST_MATCH.
        """
        self.update(token_ids)
        length = len(token_ids)
        for n in range(min(self.max_n, length - 1), self.min_n - 1, -1):
            found = self._ends[n - self.min_n].get(tuple(token_ids[length - n :]))
            if found is not None:
                while n < min(LONGEST_MATCH, found) and token_ids[found - n - 1] == token_ids[length - n - 1]:
                    n += 1
                return found, n
        return 0, 0

    def update(self, token_ids: Sequence[int]) -> None:
        """Enter the n-grams of the tokens that are new."""
        length = len(token_ids)
        # The suffix itself is entered only when a token stands behind it: it must not be found as its own match.
        for end in range(max(self._num_indexed + 1, self.min_n), length):
            for n, ends in zip(range(self.min_n, self.max_n + 1), self._ends, strict=True):
                if n <= end:
                    ends[tuple(token_ids[end - n : end])] = end
        self._num_indexed = max(self._num_indexed, length - 1)


class NgramDrafter:
    """Proposes what followed the same n-gram earlier in the prompt or the answer."""

    def __init__(self) -> None:
        self._indexes: dict[tuple[str, int], NgramIndex] = {}
        self._found: dict[tuple[str, int], int] = {}

    def strength(self, request: Request) -> int:
        """Tokens of the match."""
        self._found[request.key], matched = self._index_of(request).find(request.token_ids)
        return matched

    def follow(self, plan: StepPlan) -> None:
        for request, num_tokens in plan:
            if not request.is_decoding:
                self._index_of(request).update(request.token_ids[: request.num_computed + num_tokens])

    def _index_of(self, request: Request) -> NgramIndex:
        return self._indexes.setdefault(request.key, NgramIndex())

    def draft(self, wanted: Sequence[tuple[Request, int]]) -> list[list[int]]:
        return [continuation(request.token_ids, self._found[request.key], count) for request, count in wanted]

    def forget(self, request: Request) -> None:
        self._indexes.pop(request.key, None)
        self._found.pop(request.key, None)


def continuation(token_ids: Sequence[int], start: int, count: int) -> list[int]:
    """`count` tokens from `start` on; where they reach the end they go on with themselves, as a repetition does."""
    tokens = list(token_ids[start : start + count])
    period = len(token_ids) - start
    while len(tokens) < count:
        tokens.append(tokens[-period])
    return tokens


@dataclass
class _Rate:
    """A share of successes that forgets: `weight` trials of the past count, `successes` of them good."""

    successes: float
    weight: float

    @property
    def value(self) -> float:
        return self.successes / self.weight

    def add(self, trials: float, successes: float, *, memory: float) -> None:
        """Count more trials; about `memory` of the newest decide."""
        keep = max(0.0, 1.0 - trials / memory)
        self.successes = self.successes * keep + successes
        self.weight = self.weight * keep + trials


class Chances:
    """How likely drafts are accepted: the first one by strength of match, each further one given the one before."""

    def __init__(self) -> None:
        # Before anything was seen: longer matches are better founded, and a copy once begun mostly goes on.
        self._first = {s: _Rate(4 * min(0.9, 0.2 + 0.1 * s), 4.0) for s in range(1, LONGEST_MATCH + 1)}
        self._next = {s: _Rate(4 * min(0.9, 0.5 + 0.08 * s), 4.0) for s in range(1, LONGEST_MATCH + 1)}

    def expected(self, strength: int, history: History, num_drafts: int) -> float:
        """Tokens that `num_drafts` drafts are likely to add."""
        first = history.scaled(self._first[strength].value)
        step, total, reached = self._next[strength].value, 0.0, first
        for _ in range(num_drafts):
            total += reached
            reached *= step
        return total

    def learn(self, strength: int, num_drafts: int, num_accepted: int) -> None:
        self._first[strength].add(1, num_accepted > 0, memory=60)
        reached = min(num_accepted, num_drafts - 1)
        if reached:
            self._next[strength].add(reached, max(0, num_accepted - 1), memory=120)


@dataclass
class History:
    """What drafts of one request have come to. `strength`, `price`: of the draft now being verified.

    Prices and gains count in plain steps. A request may lose no more to refused drafts than `FIRST_CREDIT`, a share of
    `CREDIT_PER_TOKEN` of its own length, and what its drafts have gained: so that an answer which repeats nothing is
    not slowed by more, however short it is and whatever other requests have made drafts look like.
    """

    strength: int = 0
    price: float = 0.0
    rate: _Rate = field(default_factory=lambda: _Rate(2.0, 4.0))
    num_tries: int = 0
    paused_until: int = 0
    gained: float = 0.0

    def credit(self, num_output_tokens: int) -> float:
        """What the next draft may cost."""
        return FIRST_CREDIT + CREDIT_PER_TOKEN * num_output_tokens + self.gained

    def scaled(self, chance: float) -> float:
        """The chance that strength gives, moved towards what this request has shown."""
        share = min(1.0, self.num_tries / 16)
        return (1 - share / 2) * chance + share / 2 * self.rate.value

    def learn(self, num_drafts: int, num_accepted: int, num_output_tokens: int) -> None:
        self.num_tries += 1
        self.gained = min(MOST_GAINED, self.gained + num_accepted - self.price)
        self.rate.add(1, num_accepted > 0, memory=12)
        if self.num_tries >= 6 and self.rate.value < 0.2:
            self.paused_until = num_output_tokens + STALE_STEPS


class StepTimes:
    """Measured time of steps by their number of rows: the price of a draft on this machine."""

    def __init__(self) -> None:
        self._times: dict[int, deque[float]] = {}
        self._last: dict[int, int] = {}
        self._num_steps = 0

    def observe(self, num_rows: int, seconds: float) -> None:
        self._num_steps += 1
        if self.is_stale(num_rows):
            # Contexts have grown and neighbours have changed: an old time would be compared with new ones.
            self._times.pop(num_rows, None)
        self._times.setdefault(num_rows, deque(maxlen=5)).append(seconds)
        self._last[num_rows] = self._num_steps

    def seconds(self, num_rows: int) -> float | None:
        """Shortest of the newest times with this many rows; None if there are not two (one may be a fluke)."""
        times = self._times.get(num_rows, ())
        return min(times) if len(times) >= 2 else None

    def is_stale(self, num_rows: int) -> bool:
        """Whether no step of this many rows was timed of late."""
        return self._num_steps - self._last.get(num_rows, -STALE_STEPS) > STALE_STEPS

    def estimate(self, num_rows: int, base_rows: int) -> float | None:
        """Seconds of a step of `num_rows`, between or beyond the ones timed; None while `base_rows` is not."""
        below, time_below = base_rows, self.seconds(base_rows)
        if time_below is None:
            return None
        slope = PRIOR_ROW_COST * time_below
        for rows in sorted(self._times):
            known = self.seconds(rows)
            if rows <= base_rows or known is None:
                continue
            slope = (known - time_below) / (rows - below)
            if rows >= num_rows:
                break
            below, time_below = rows, known
        return time_below + max(0.0, slope) * (num_rows - below)

    def most_rows(self, base_rows: int) -> int:
        """Rows worth trying: twice as many more than `base_rows` as have been timed, so that a first try is cheap."""
        timed = max((rows for rows in self._times if self.seconds(rows) is not None), default=base_rows)
        return base_rows + max(1, 2 * (timed - base_rows))


class Speculator:
    """Gives a step's decoding requests drafts where that is likely to pay, and learns from what came of them.

    Args:
        num_draft_tokens: most drafts of one request in a step.
        max_rows: tokens of a step, drafts included, up to which any are drafted.
        clock: seconds; only the choice whether to draft depends on it.

    Attributes:
        num_drafts, num_draft_tokens, num_accepted_tokens: counters since the start.
        num_accepted_by_position: how often the first, second, … draft was accepted.
    """

    def __init__(
        self,
        drafter: Drafter,
        num_draft_tokens: int,
        max_rows: int,
        clock: Callable[[], float] = time.perf_counter,
    ) -> None:
        self.drafter = drafter
        self.max_drafts = num_draft_tokens
        self.max_rows = max_rows
        self.num_drafts = 0
        self.num_draft_tokens = 0
        self.num_accepted_tokens = 0
        self.num_accepted_by_position = [0] * num_draft_tokens
        self._clock = clock
        self._histories: dict[tuple[str, int], History] = {}
        self._chances = Chances()
        # By number of sequences: a step of four rows is not the same for four sequences as for one.
        self._times: defaultdict[int, StepTimes] = defaultdict(StepTimes)
        self._draft_seconds: deque[float] = deque(maxlen=5)
        self._num_refusals = 0
        self._started = 0.0

    def draft(self, plan: StepPlan, scheduler: Scheduler) -> None:
        """Add drafts to a plan, within what its step has left."""
        self.drafter.follow(plan)
        candidates = self._candidates(plan)
        num_drafts = self._choose_length(plan, candidates) if candidates else 0
        if num_drafts:
            wanted: list[tuple[Request, int]] = []
            for request in candidates:
                left = self.max_rows - sum(plan.num_tokens.values()) - sum(count for _, count in wanted)
                room = scheduler.reserve_drafts(plan, request, min(num_drafts, left))
                if room:
                    wanted.append((request, room))
            self._fill(plan, wanted)
        self._started = self._clock()

    def learn(self, plan: StepPlan) -> None:
        """Take the time of the step that `draft` began into account."""
        if len(plan.requests) >= self.max_rows:
            return  # nothing is drafted beside so many, and one such step may begin before another has ended
        if all(request.is_decoding for request, _ in plan):
            self._times[len(plan.requests)].observe(sum(plan.num_tokens.values()), self._clock() - self._started)

    def count(self, request: Request, num_drafts: int, num_accepted: int) -> None:
        """Take the verification of one request's drafts into account."""
        self.num_drafts += 1
        self.num_draft_tokens += num_drafts
        self.num_accepted_tokens += num_accepted
        for position in range(num_accepted):
            self.num_accepted_by_position[position] += 1
        history = self._histories[request.key]
        history.learn(num_drafts, num_accepted, request.num_output_tokens)
        self._chances.learn(history.strength, num_drafts, num_accepted)

    def forget(self, request: Request) -> None:
        """The request has ended."""
        self._histories.pop(request.key, None)
        self.drafter.forget(request)

    def _candidates(self, plan: StepPlan) -> list[Request]:
        """Decoding requests of the plan that have something to propose."""
        if sum(plan.num_tokens.values()) >= self.max_rows:
            return []
        found = []
        for request, _ in plan:
            if not request.is_decoding:
                continue
            history = self._histories.setdefault(request.key, History())
            if request.num_output_tokens < history.paused_until:
                continue
            history.strength = self.drafter.strength(request)
            if history.strength:
                found.append(request)
        return found

    def _choose_length(self, plan: StepPlan, candidates: Sequence[Request]) -> int:
        """Drafts for each candidate: the number that promises most tokens a second; 0 if none beats a plain step."""
        num_rows = sum(plan.num_tokens.values())
        times = self._times[len(plan.requests)]
        plain = times.seconds(num_rows)
        if plain is None or times.is_stale(num_rows):
            return 0  # a plain step first, to compare with
        most_rows = min(self.max_rows, num_rows + max(len(candidates), times.most_rows(num_rows) - num_rows))
        per_draft = min(self._draft_seconds, default=0.0)
        histories = [self._histories[request.key] for request in candidates]
        credit = min(
            history.credit(request.num_output_tokens) for request, history in zip(candidates, histories, strict=True)
        )
        best, best_gain, price = 0, LEAST_GAIN, 0.0
        for count in range(1, self.max_drafts + 1):
            rows = num_rows + count * len(candidates)
            seconds = times.estimate(rows, num_rows)
            if rows > most_rows or seconds is None or seconds / plain - 1 > credit:
                break
            more = sum(self._chances.expected(history.strength, history, count) for history in histories)
            gain = (1 + more / len(plan.requests)) * plain / (seconds + count * per_draft)
            if gain > best_gain:
                best, best_gain, price = count, gain, seconds / plain - 1
        for history in histories:
            history.price = price
        if best == 0:
            self._num_refusals += 1
            # What was refused is tried again rarely: chances and prices change.
            return int(self._num_refusals % STALE_STEPS == 0)
        return best

    def _fill(self, plan: StepPlan, wanted: Sequence[tuple[Request, int]]) -> None:
        if not wanted:
            return
        started = self._clock()
        drafts = self.drafter.draft(wanted)
        self._draft_seconds.append((self._clock() - started) / max(count for _, count in wanted))
        for (request, _), draft_token_ids in zip(wanted, drafts, strict=True):
            if request.grammar is not None:
                draft_token_ids = request.grammar.valid_drafts(draft_token_ids)
            plan.add_drafts(request, draft_token_ids)
