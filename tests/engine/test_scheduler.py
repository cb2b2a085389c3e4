"""The scheduler over random loads with a model that hashes its context: any schedule must yield the same tokens."""

import hashlib
from collections.abc import Sequence

from hypothesis import given, settings
from hypothesis import strategies as st

from engine.kv_cache import KVCache
from engine.request import Request, RequestStatus
from engine.scheduler import Scheduler, StepPlan
from tests.engine.test_kv_cache import make_request

BLOCK = 4


def next_token(context: Sequence[int]) -> int:
    """The fake model: its token depends on every token before it."""
    return hashlib.blake2b(repr(list(context)).encode(), digest_size=2).digest()[0] % 3


def sequential_answer(prompt: list[int], length: int) -> list[int]:
    tokens = list(prompt)
    for _ in range(length):
        tokens.append(next_token(tokens))
    return tokens[len(prompt) :]


class FakePool:
    """Stands for the KV pool: remembers which token was written in which slot, as the runner would."""

    def __init__(self) -> None:
        self.slots: dict[int, int] = {}

    def run(self, plan: StepPlan) -> None:
        for request, num_tokens in plan:
            for position in range(request.num_computed, request.num_computed + num_tokens):
                self.slots[self._slot(request, position)] = request.token_ids[position]
            # What attention would read must be this request's own tokens, cached or just written.
            for position in range(request.num_computed + num_tokens):
                assert self.slots[self._slot(request, position)] == request.token_ids[position]

    def _slot(self, request: Request, position: int) -> int:
        return request.block_table[position // BLOCK] * BLOCK + position % BLOCK


@given(
    prompts=st.lists(st.lists(st.integers(0, 2), min_size=1, max_size=20), min_size=1, max_size=7),
    lengths=st.lists(st.integers(1, 9), min_size=7, max_size=7),
    num_blocks=st.integers(8, 16),
    budget=st.integers(1, 16),
    share=st.integers(1, 16),
    max_num_seqs=st.integers(1, 5),
    abort_at=st.lists(st.integers(0, 40), min_size=7, max_size=7),
    caching=st.booleans(),
)
@settings(max_examples=300, deadline=None)
def test_every_schedule_yields_the_sequential_answer(
    prompts: list[list[int]],
    lengths: list[int],
    num_blocks: int,
    budget: int,
    share: int,
    max_num_seqs: int,
    abort_at: list[int],
    caching: bool,
) -> None:
    cache = KVCache(num_blocks, BLOCK, enable_prefix_caching=caching)
    scheduler = Scheduler(cache, max_num_seqs, budget, share)
    pool = FakePool()
    requests = [make_request(prompt, name=str(index)) for index, prompt in enumerate(prompts)]
    wanted = dict(zip((r.request_id for r in requests), lengths, strict=False))
    aborts = dict(zip((r.request_id for r in requests), abort_at, strict=False))
    for request in requests:
        scheduler.add(request)
    step = 0
    while scheduler.has_work:
        step += 1
        assert step < 3000, "requests starve"
        for request in requests:
            if aborts[request.request_id] == step:
                scheduler.finish(request)
        plan = scheduler.schedule()
        check_plan(plan, scheduler, budget, share)
        pool.run(plan)
        for request, num_tokens in list(plan):
            request.num_computed += num_tokens
            request.check()
            cache.publish(request)
            if request.num_missing == 0:
                request.token_ids.append(next_token(request.token_ids))
                if request.num_output_tokens == wanted[request.request_id]:
                    scheduler.finish(request)
        cache.check_integrity(requests)
    assert cache.pool.num_free == num_blocks
    for request, prompt in zip(requests, prompts, strict=True):
        expected = sequential_answer(prompt, request.num_output_tokens)
        assert request.output_token_ids == expected
        if aborts[request.request_id] > step:
            assert request.num_output_tokens == wanted[request.request_id]


def check_plan(plan: StepPlan, scheduler: Scheduler, budget: int, share: int) -> None:
    assert sum(num_tokens for _, num_tokens in plan) <= budget
    assert len(scheduler.running) <= scheduler.max_num_seqs
    assert all(request.status is RequestStatus.RUNNING for request, _ in plan)
    assert all(num_tokens > 0 for _, num_tokens in plan)
    if any(request.is_decoding for request, _ in plan):
        assert sum(num_tokens for request, num_tokens in plan if not request.is_decoding) <= share
    if plan.preempted:
        # A step that preempted admits nothing: everyone in it was running before.
        assert all(request.num_computed > 0 or request.num_preemptions == 0 for request, _ in plan)


def make_scheduler(num_blocks: int = 16, budget: int = 8, share: int = 2) -> Scheduler:
    return Scheduler(KVCache(num_blocks, BLOCK), 4, budget, share)


def advance(scheduler: Scheduler) -> dict[str, int]:
    plan = scheduler.schedule()
    for request, num_tokens in plan:
        request.num_computed += num_tokens
        if request.num_missing == 0:
            request.token_ids.append(7)
    return {request.request_id: num_tokens for request, num_tokens in plan}


def test_a_long_prompt_is_chunked_by_the_budget() -> None:
    scheduler = make_scheduler()
    scheduler.add(make_request(list(range(20)), name="long"))
    assert [advance(scheduler) for _ in range(4)] == [{"long": 8}, {"long": 8}, {"long": 4}, {"long": 1}]


def test_a_prompt_gets_only_its_share_while_another_decodes() -> None:
    scheduler = make_scheduler(num_blocks=32)
    scheduler.add(make_request([1, 2, 3], name="first"))
    advance(scheduler)
    scheduler.add(make_request(list(range(20)), name="long"))
    assert [advance(scheduler) for _ in range(3)] == [{"first": 1, "long": 2}] * 3


def test_a_step_that_preempted_admits_nothing() -> None:
    scheduler = make_scheduler(num_blocks=4, budget=32, share=32)
    for name in ("a", "b"):
        scheduler.add(make_request([1, 2, 3, 4, 5, 6, 7], name=name))
    scheduler.add(make_request([1], name="small"))
    assert advance(scheduler) == {"a": 7, "b": 7}
    assert advance(scheduler) == {"a": 1, "b": 1}
    # Both need a third block now and none is free: the later one gives way, and "small" still has to wait.
    assert advance(scheduler) == {"a": 1}
    assert [request.request_id for request in scheduler.waiting] == ["b", "small"]
    assert scheduler.num_preemptions == 1


def test_requests_are_served_in_order_of_arrival() -> None:
    scheduler = make_scheduler(num_blocks=4, budget=32)
    scheduler.add(make_request(list(range(12)), name="big"))
    advance(scheduler)
    scheduler.add(make_request(list(range(50, 62)), name="second"))
    scheduler.add(make_request([1], name="third"))
    # "third" would fit, but must not overtake "second", which does not yet.
    assert advance(scheduler) == {"big": 1}
    assert [request.request_id for request in scheduler.waiting] == ["second", "third"]
