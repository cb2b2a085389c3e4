"""Which request gets how many tokens in the next step. Holds queues and no tensors.

There is no prefill phase and no decode phase: each step gives running requests tokens out of one budget so that
*computed* catches up with *tokens*. The method is vLLM's (chunked prefill, recompute preemption), with priority classes
and fair shares (`admission_queue`) and a prompt share that follows what steps cost (`step_cost`).
"""

from __future__ import annotations

import itertools
import time
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field

from engine.admission_queue import AdmissionQueue
from engine.kv_cache import KVCache
from engine.request import Request, RequestStatus
from engine.step_cost import StepCost

# Share of the pool that an admission leaves free, so that running requests can grow before anything is preempted.
WATERMARK = 0.01
# Admissions from whose times it is told how fast the queue moves, and bounds of what is told.
NUM_ADMISSIONS = 32
MIN_RETRY_S, MAX_RETRY_S = 1.0, 60.0


@dataclass
class StepPlan:
    """Tokens to compute for each request, in batch order, and who lost its blocks to make room."""

    started_s: float = 0.0
    num_tokens: dict[tuple[str, int], int] = field(default_factory=dict)
    requests: list[Request] = field(default_factory=list)
    preempted: list[Request] = field(default_factory=list)
    num_decoding: int = 0
    num_prompt_tokens: int = 0

    def give(self, request: Request, num_tokens: int) -> None:
        self.requests.append(request)
        self.num_tokens[request.key] = num_tokens
        if request.is_decoding:
            self.num_decoding += 1
        else:
            self.num_prompt_tokens += num_tokens

    def add_drafts(self, request: Request, draft_token_ids: Sequence[int]) -> None:
        """Verify these proposals in the same step, behind the request's missing tokens."""
        request.draft_token_ids = list(draft_token_ids)
        self.num_tokens[request.key] += len(draft_token_ids)

    def take_back(self, request: Request) -> None:
        """Remove a request that was preempted; harmless if it was not scheduled yet."""
        if self.num_tokens.pop(request.key, 0):
            self.requests.remove(request)
            self.num_decoding -= request.is_decoding

    @property
    def total(self) -> int:
        return sum(self.num_tokens.values())

    def __iter__(self) -> Iterator[tuple[Request, int]]:
        return ((request, self.num_tokens[request.key]) for request in self.requests)

    def __bool__(self) -> bool:
        return bool(self.requests)


class Scheduler:
    """Waiting and running requests of one engine. `prefill_share` bounds the prompt tokens of a step with answers."""

    def __init__(
        self,
        kv_cache: KVCache,
        max_num_seqs: int,
        max_num_batched_tokens: int,
        prefill_share: int,
        *,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self.kv_cache = kv_cache
        self.max_num_seqs = max_num_seqs
        self.max_num_batched_tokens = max_num_batched_tokens
        self.clock = clock
        self.cost = StepCost(1, prefill_share)
        self.waiting = AdmissionQueue(clock)
        self.running: list[Request] = []
        self.num_preemptions = 0
        self._completed_s = float("-inf")
        self._with_deadline: dict[tuple[str, int], Request] = {}
        self._arrivals = itertools.count()
        self._admissions: deque[float] = deque(maxlen=NUM_ADMISSIONS)

    @property
    def has_work(self) -> bool:
        return bool(self.waiting or self.running)

    @property
    def can_advance_all(self) -> bool:
        """Whether all running answers can have one more token without anybody being preempted."""
        cache = self.kv_cache
        missing = (cache.blocks_for(r.num_tokens) - len(r.block_table) for r in self.running if r.is_decoding)
        return sum(max(0, blocks) for blocks in missing) <= cache.pool.num_free

    @property
    def retry_after_s(self) -> float:
        """Seconds until a place in the queue should be free, from how fast requests left it of late."""
        times = list(self._admissions)
        if not times:
            return MIN_RETRY_S
        # Up to now, not up to the last admission: a queue that stands still must say so.
        return min(max((self.clock() - times[0]) / len(times), MIN_RETRY_S), MAX_RETRY_S)

    def add(self, request: Request) -> None:
        """Queue a request. The engine has refused those that can never fit."""
        request.arrived_s = self.clock()
        request.arrival = next(self._arrivals)
        if request.deadline_s is not None:
            self._with_deadline[request.key] = request
        self.waiting.add(request)

    def finish(self, request: Request, *, releases: bool = True) -> None:
        """Take a request out, whatever its state, and free its blocks, if `releases`. Twice is harmless."""
        if request.status is RequestStatus.FINISHED:
            return
        if request in self.running:
            self.running.remove(request)
        else:
            self.waiting.remove(request)
        self._with_deadline.pop(request.key, None)
        if releases:
            self.kv_cache.release(request)
        request.status = RequestStatus.FINISHED

    def expired(self) -> list[Request]:
        """Requests, waiting or running, whose deadline has passed."""
        if not self._with_deadline:
            return []
        now = self.clock()
        return [
            r for r in self._with_deadline.values() if r.deadline_s is not None and now >= r.arrived_s + r.deadline_s
        ]

    def schedule(self) -> StepPlan:
        """Plan one step: answers advance first, then newcomers are let in, then prompts share what is left."""
        plan = StepPlan(self.clock())
        for request in [request for request in self.running if request.is_decoding]:
            num_tokens = min(request.num_missing, self.max_num_batched_tokens - plan.total)
            # One of those before may have taken this one's blocks.
            if num_tokens == 0 or request.status is not RequestStatus.RUNNING:
                continue
            self._make_room(request, request.num_computed + num_tokens, plan)
            if request.status is RequestStatus.RUNNING:
                plan.give(request, num_tokens)
        if not plan.preempted:
            self._admit()
        self._share_prefill(plan)
        return plan

    def reserve_drafts(self, plan: StepPlan, request: Request, wanted: int) -> int:
        """Make room for up to `wanted` drafts of a planned request that decodes; returns for how many there is room.

        Drafts take what everything else in the step has left, of the token budget and of the free blocks, so nobody is
        preempted or kept waiting for them. One token of the answer stays to be chosen behind the last draft, which
        keeps the drafts inside max_tokens and so inside the context.
        """
        if not request.is_decoding:
            return 0
        room = max(
            0, min(wanted, self.max_num_batched_tokens - plan.total, request.max_tokens - request.num_output_tokens - 1)
        )
        while room and not self.kv_cache.grow(request, request.num_tokens + room):
            room -= 1
        return room

    def complete(self, plan: StepPlan) -> None:
        """Count a step that was computed, for tenants' shares and for the prompt share of later steps."""
        for request in plan.requests:
            self.waiting.charge(request, 0, int(request.num_missing <= 0))
        # A step that was launched behind another began when that one ended.
        started_s, self._completed_s = max(plan.started_s, self._completed_s), self.clock()
        self.cost.observe(plan.num_prompt_tokens, plan.num_decoding, self._completed_s - started_s)

    def _share_prefill(self, plan: StepPlan) -> None:
        """Divide the prompt share: half for who came first, the rest to those with the least left to read.

        So a short prompt does not wait for a long one to end, and a long one is not put off by short ones for ever.
        """
        left = self.max_num_batched_tokens - plan.total
        prefilling = [request for request in self.running if not request.is_decoding and request.num_missing]
        if plan.num_decoding:
            left = min(left, self.cost.prefill_tokens(len(prefilling), plan.num_decoding))
        if not prefilling or left <= 0:
            return
        first = min(prefilling, key=lambda request: request.arrival)
        tokens = {first.key: min(first.num_missing, -(-left // 2))}
        left -= tokens[first.key]
        others = sorted(prefilling, key=lambda request: (request is first, request.rank, request.num_missing))
        for request in others:
            before = tokens.get(request.key, 0)
            more = min(request.num_missing - before, left)
            tokens[request.key] = before + more
            left -= more
        for request in prefilling:
            if tokens[request.key]:
                plan.give(request, tokens[request.key])

    def _admit(self) -> None:
        """Let waiting requests in, in their order, until one does not fit.

        A request is given room for its whole prompt at once: one admitted in part could wait for blocks that never
        come. One whose next block a running request is computing waits for it, and others may pass.
        """
        if not self.waiting or len(self.running) >= self.max_num_seqs:
            return
        coming: dict[bytes, int] = {}
        for request in self.running:
            self._note_coming(request, coming)
        held: set[tuple[str, int]] = set()
        while len(self.running) < self.max_num_seqs:
            for request in self.waiting:
                if request.key in held:
                    continue
                prefix = self.kv_cache.find_prefix(request)
                if not self._waits_for_prefix(request, len(prefix), coming):
                    break
                held.add(request.key)
            else:
                return
            if not self._fits(request, prefix):
                return
            self._start(request, prefix)
            self._note_coming(request, coming)

    def _start(self, request: Request, prefix: list[int]) -> None:
        self.waiting.admit(request)
        self.kv_cache.admit(request, prefix)
        grown = self.kv_cache.grow(request, request.num_tokens)
        assert grown, "admission checked that the request fits"
        request.status = RequestStatus.RUNNING
        self.running.append(request)
        self._admissions.append(self.clock())
        if request.num_preemptions == 0:
            # Now and not as it is computed: else a tenant could take all seats in one step.
            self.waiting.charge(request, request.num_missing, 0)

    def _fits(self, request: Request, prefix: list[int]) -> bool:
        if not self.running:
            return self.kv_cache.can_admit(request, prefix, 0)
        kept = int(WATERMARK * self.kv_cache.pool.num_blocks)
        if request.num_preemptions:
            # Once is enough: it comes back when it and all that run can be computed to their ends.
            kept = sum(self._blocks_to_grow(other) for other in (*self.running, request))
        return self.kv_cache.can_admit(request, prefix, kept)

    def _blocks_to_grow(self, request: Request) -> int:
        held = max(len(request.block_table), self.kv_cache.blocks_for(request.num_tokens))
        return max(0, self.kv_cache.blocks_for(request.num_prompt_tokens + request.max_tokens) - held)

    def _note_coming(self, request: Request, coming: dict[bytes, int]) -> None:
        """Note the hashes of the blocks that a running request is about to publish, with the class it runs in.

        Of one that decodes there are none, unless the step that computed its prompt is still on the device.
        """
        if not self.kv_cache.enable_prefix_caching:
            return
        for block_hash in request.block_hashes[request.num_published :]:
            coming[block_hash] = min(request.rank, coming.get(block_hash, request.rank))

    def _waits_for_prefix(self, request: Request, num_found: int, coming: dict[bytes, int]) -> bool:
        """Whether a running request of the same or a higher class is computing this one's first missing block.

        Who computes it advances in every step or stops running, so the wait ends.
        """
        most = (request.num_tokens - 1) // self.kv_cache.block_size
        if num_found >= most or not coming:
            return False
        rank = coming.get(request.block_hashes[num_found])
        return rank is not None and rank <= request.rank

    def _make_room(self, request: Request, num_tokens: int, plan: StepPlan) -> None:
        """Grow the request's table, preempting the newest of the lowest class while blocks are missing.

        The request itself may be that one, and then loses its blocks too.
        """
        while not self.kv_cache.grow(request, num_tokens):
            victim = max(self.running, key=lambda running: (running.rank, running.arrival))
            plan.take_back(victim)
            self.running.remove(victim)
            self.kv_cache.release(victim)
            victim.status = RequestStatus.WAITING
            victim.num_preemptions += 1
            self.num_preemptions += 1
            self.waiting.add(victim)
            plan.preempted.append(victim)
            if victim is request:
                return
