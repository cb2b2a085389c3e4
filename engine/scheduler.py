"""Which request gets how many tokens in the next step. Holds queues and no tensors.

There is no prefill phase and no decode phase: each step gives running requests, then waiting ones, tokens out of one
budget so that *computed* catches up with *tokens*. The method is vLLM's (chunked prefill, recompute preemption).
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field

from engine.kv_cache import KVCache
from engine.request import Request, RequestStatus

# Share of the pool that an admission leaves free, so that running requests can grow before anything is preempted.
WATERMARK = 0.01


@dataclass
class StepPlan:
    """Tokens to compute for each request, in batch order, and who lost its blocks to make room."""

    num_tokens: dict[tuple[str, int], int] = field(default_factory=dict)
    requests: list[Request] = field(default_factory=list)
    preempted: list[Request] = field(default_factory=list)

    def give(self, request: Request, num_tokens: int) -> None:
        self.requests.append(request)
        self.num_tokens[request.key] = num_tokens

    def add_drafts(self, request: Request, draft_token_ids: Sequence[int]) -> None:
        """Verify these proposals in the same step, behind the request's missing tokens."""
        request.draft_token_ids = list(draft_token_ids)
        self.num_tokens[request.key] += len(draft_token_ids)

    def take_back(self, request: Request) -> int:
        """Remove a request that was scheduled and then preempted; returns its tokens (0 if it had none)."""
        if request.key not in self.num_tokens:
            return 0
        self.requests.remove(request)
        return self.num_tokens.pop(request.key)

    def __iter__(self) -> Iterator[tuple[Request, int]]:
        return ((request, self.num_tokens[request.key]) for request in self.requests)

    def __bool__(self) -> bool:
        return bool(self.requests)


class Scheduler:
    """Waiting and running requests of one engine."""

    def __init__(self, kv_cache: KVCache, max_num_seqs: int, max_num_batched_tokens: int, prefill_share: int) -> None:
        self.kv_cache = kv_cache
        self.max_num_seqs = max_num_seqs
        self.max_num_batched_tokens = max_num_batched_tokens
        self.prefill_share = prefill_share
        self.waiting: deque[Request] = deque()
        self.running: list[Request] = []
        self.num_preemptions = 0

    @property
    def has_work(self) -> bool:
        return bool(self.waiting or self.running)

    def add(self, request: Request) -> None:
        """Queue a request. The engine has refused those that can never fit."""
        self.waiting.append(request)

    def finish(self, request: Request) -> None:
        """Take a request out, whatever its state, and free its blocks. Twice is harmless."""
        if request.status is RequestStatus.FINISHED:
            return
        if request in self.running:
            self.running.remove(request)
        elif request in self.waiting:
            self.waiting.remove(request)
        self.kv_cache.release(request)
        request.status = RequestStatus.FINISHED

    def schedule(self) -> StepPlan:
        """Plan one step. Running requests come first, the decoding ones before those still reading their prompt."""
        plan = StepPlan()
        budget = self.max_num_batched_tokens
        decoding = [request for request in self.running if request.is_decoding]
        prefilling = [request for request in self.running if not request.is_decoding]
        # While something decodes, prompts get a share only: a long prompt must not stall the answers being read.
        share = min(self.prefill_share, budget) if decoding else budget
        for request in decoding + prefilling:
            limit = budget if request.is_decoding else min(budget, share)
            num_tokens = min(request.num_missing, limit)
            if num_tokens == 0 or request.status is not RequestStatus.RUNNING:
                continue
            refund = self._make_room(request, request.num_computed + num_tokens, plan)
            budget += refund
            if request.status is RequestStatus.RUNNING:
                plan.give(request, num_tokens)
                budget -= num_tokens
                share -= 0 if request.is_decoding else num_tokens
        if not plan.preempted:
            self._admit(plan, budget, share)
        return plan

    def reserve_drafts(self, plan: StepPlan, request: Request, wanted: int) -> int:
        """Make room for up to `wanted` drafts of a planned request that decodes; returns for how many there is room.

        Drafts take what everything else in the step has left, of the token budget and of the free blocks, so nobody is
        preempted or kept waiting for them. One token of the answer stays to be chosen behind the last draft, which
        keeps the drafts inside max_tokens and so inside the context.
        """
        if not request.is_decoding:
            return 0
        budget = self.max_num_batched_tokens - sum(plan.num_tokens.values())
        room = max(0, min(wanted, budget, request.max_tokens - request.num_output_tokens - 1))
        while room and not self.kv_cache.grow(request, request.num_tokens + room):
            room -= 1
        return room

    def _admit(self, plan: StepPlan, budget: int, share: int) -> None:
        while self.waiting and len(self.running) < self.max_num_seqs and min(budget, share) > 0:
            request = self.waiting[0]
            prefix = self.kv_cache.find_prefix(request)
            watermark = int(WATERMARK * self.kv_cache.pool.num_blocks) if self.running else 0
            if not self.kv_cache.can_admit(request, prefix, watermark):
                return
            self.waiting.popleft()
            self.kv_cache.admit(request, prefix)
            # The whole of it is reserved now: a prompt admitted in part could wait for blocks that never come.
            grown = self.kv_cache.grow(request, request.num_tokens)
            assert grown, "admission checked that the request fits"
            request.status = RequestStatus.RUNNING
            self.running.append(request)
            num_tokens = min(request.num_missing, budget, share)
            plan.give(request, num_tokens)
            budget -= num_tokens
            share -= num_tokens

    def _make_room(self, request: Request, num_tokens: int, plan: StepPlan) -> int:
        """Grow the request's table, preempting from the end of the running list while blocks are missing.

        Returns the tokens taken back from requests that were scheduled in this step and then preempted. The request
        itself may be the last one, and then loses its blocks too.
        """
        refund = 0
        while not self.kv_cache.grow(request, num_tokens):
            victim = self.running.pop()
            refund += plan.take_back(victim)
            self.kv_cache.release(victim)
            victim.status = RequestStatus.WAITING
            victim.num_preemptions += 1
            self.num_preemptions += 1
            self.waiting.appendleft(victim)
            plan.preempted.append(victim)
            if victim is request:
                break
        return refund
