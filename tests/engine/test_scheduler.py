"""The scheduler over random loads with a model that hashes its context: any schedule must yield the same tokens.

Then its policies, one by one, on a clock that the tests turn.
"""

import hashlib
import itertools
from collections.abc import Sequence
from dataclasses import dataclass, field
from statistics import median

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from engine.admission_queue import AGEING_S, MAX_TENANTS, AdmissionQueue, TenantShares
from engine.kv_cache import KVCache
from engine.request import PRIORITIES, Request, RequestStatus
from engine.sampling_params import SamplingParams
from engine.scheduler import Scheduler, StepPlan
from engine.step_cost import CALM_STEPS, MAX_MIXED_STEPS, STRETCH, STRETCH_OF_CALM, StepCost
from tests.engine.test_kv_cache import SilentDetokenizer, make_request

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
    priorities=st.lists(st.sampled_from(PRIORITIES), min_size=7, max_size=7),
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
    priorities: list[str],
    caching: bool,
) -> None:
    cache = KVCache(num_blocks, BLOCK, enable_prefix_caching=caching)
    scheduler = Scheduler(cache, max_num_seqs, budget, share)
    pool = FakePool()
    requests = [
        prioritised(prompt, str(index), priority)
        for index, (prompt, priority) in enumerate(zip(prompts, priorities, strict=False))
    ]
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
        scheduler.complete(plan)
        for request, _ in list(plan):
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
    for name, first in (("a", 1), ("b", 11)):
        scheduler.add(make_request(list(range(first, first + 7)), name=name))
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


def prioritised(
    prompt: list[int], name: str, priority: str = "normal", tenant: str = "", max_tokens: int = 100
) -> Request:
    detokenizer = SilentDetokenizer()
    return Request(
        name,
        prompt,
        SamplingParams(),
        max_tokens,
        detokenizer,  # type: ignore[arg-type]
        tenant=tenant,
        priority=priority,
    )


@dataclass
class Simulation:
    """A scheduler whose steps take simulated time: so much for a step, for each prompt token, and for its context."""

    num_blocks: int = 4000
    budget: int = 256
    share: int = 64
    max_num_seqs: int = 16
    block_size: int = 16
    step_s: float = 0.010
    token_s: float = 0.0003
    context_s: float = 0.0
    now: float = 0.0
    token_times: dict[str, list[float]] = field(default_factory=dict)
    wanted: dict[str, int] = field(default_factory=dict)
    num_computed: int = 0

    def __post_init__(self) -> None:
        cache = KVCache(self.num_blocks, self.block_size)
        self.scheduler = Scheduler(cache, self.max_num_seqs, self.budget, self.share, clock=lambda: self.now)

    def add(self, request: Request, num_answer_tokens: int) -> None:
        self.wanted[request.request_id] = num_answer_tokens
        self.scheduler.add(request)

    def step(self) -> StepPlan:
        plan = self.scheduler.schedule()
        prompt_tokens = [(request, n) for request, n in plan if not request.is_decoding]
        self.now += self.step_s + sum(n * (self.token_s + self.context_s * r.num_computed) for r, n in prompt_tokens)
        self.num_computed += plan.total
        for request, num_tokens in plan:
            request.num_computed += num_tokens
            self.scheduler.kv_cache.publish(request)
        self.scheduler.complete(plan)
        for request in list(plan.requests):
            if request.num_missing:
                continue
            request.token_ids.append(5)
            self.token_times.setdefault(request.request_id, []).append(self.now)
            if request.num_output_tokens == self.wanted[request.request_id]:
                self.scheduler.finish(request)
        return plan

    def run(self, max_steps: int = 5000) -> list[str]:
        """Steps until everything is done; returns the ids in the order of their first tokens."""
        for _ in range(max_steps):
            if not self.scheduler.has_work:
                return sorted(self.token_times, key=lambda name: self.token_times[name][0])
            self.step()
        raise AssertionError("requests starve")


def fresh_prompt(number: int, length: int) -> list[int]:
    """A prompt that shares no block with another number's."""
    return [number, *range(1000, 1000 + length - 1)]


def test_classes_are_admitted_by_urgency_and_inside_a_class_by_arrival() -> None:
    simulation = Simulation(max_num_seqs=1)
    for number, priority in enumerate(("background", "batch", "normal", "interactive", "normal")):
        simulation.add(prioritised(fresh_prompt(number, 5), f"{priority}-{number}", priority), 1)
    assert simulation.run() == ["interactive-3", "normal-2", "normal-4", "batch-1", "background-0"]


def test_a_class_that_was_passed_over_gets_one_admission_at_a_time() -> None:
    simulation = Simulation(max_num_seqs=1, step_s=1.0, token_s=0.0)
    for number in range(20):
        simulation.add(prioritised(fresh_prompt(number, 5), f"background-{number}", "background"), 1)
    for number in range(1000, 1400):
        # There is always an interactive request, so that only ageing lets anybody else in.
        simulation.add(prioritised(fresh_prompt(number, 5), f"interactive-{number}", "interactive"), 1)
        simulation.step()
    aged = sorted(times[0] for name, times in simulation.token_times.items() if name.startswith("background"))
    gaps = [later - earlier for earlier, later in itertools.pairwise(aged)]
    assert len(aged) > 5
    assert min(gaps) > AGEING_S, "a flood of background work does not age past everybody at once"
    assert max([aged[0], *gaps]) <= (len(PRIORITIES) + 1) * AGEING_S


def test_a_tenant_with_many_requests_does_not_starve_one_with_few() -> None:
    simulation = Simulation(max_num_seqs=1)
    for number in range(50):
        simulation.add(prioritised(fresh_prompt(number, 20), f"many-{number}", tenant="many"), 5)
    for _ in range(20):
        simulation.step()
    for number in range(50, 53):
        simulation.add(prioritised(fresh_prompt(number, 20), f"few-{number}", tenant="few"), 5)
    order = simulation.run()
    ranks = [order.index(f"few-{number}") for number in range(50, 53)]
    assert ranks[0] <= 6
    assert ranks[2] - ranks[0] <= 4, "they alternate from the moment at which the second tenant arrives"


def test_equal_bursts_of_two_tenants_share_the_seats_of_one_step() -> None:
    simulation = Simulation(max_num_seqs=4)
    for number in range(16):
        tenant = "a" if number < 8 else "b"
        simulation.add(prioritised(fresh_prompt(number, 20), f"{tenant}-{number}", tenant=tenant), 5)
    simulation.step()
    running = sorted(request.request_id for request in simulation.scheduler.running)
    assert running == ["a-0", "a-1", "b-8", "b-9"]


def test_shares_of_tenants_that_come_once_are_not_remembered_for_ever() -> None:
    shares = TenantShares()
    for number in range(3 * MAX_TENANTS):
        request = prioritised([1], str(number), tenant=str(number))
        shares.add(request)
        shares.remove(request)
        shares.note_admission(request.tenant, float(number))
        shares.charge(request.tenant, 10)
    assert len(shares.served) <= MAX_TENANTS


def test_a_request_leaves_the_queue_whatever_its_class() -> None:
    queue = AdmissionQueue()
    requests = [prioritised([1], priority, priority, tenant=priority) for priority in PRIORITIES]
    requests[2].num_preemptions = 1
    for request in requests:
        queue.add(request)
    assert queue.num_waiting() == dict.fromkeys(PRIORITIES, 1)
    assert [queue.remove(request) for request in requests] == [True] * 4
    assert [queue.remove(request) for request in requests] == [False] * 4
    assert len(queue) == 0


def test_the_newest_request_of_the_lowest_class_gives_way() -> None:
    scheduler = Scheduler(KVCache(6, BLOCK), 4, 64, 64)
    names = [("batch-old", "batch"), ("urgent", "interactive"), ("batch-new", "batch")]
    for number, (name, priority) in enumerate(names):
        scheduler.add(prioritised(fresh_prompt(number, 7), name, priority))
    assert set(advance(scheduler)) == {"batch-old", "urgent", "batch-new"}
    advance(scheduler)
    plan = scheduler.schedule()
    assert [request.request_id for request in plan.preempted] == ["batch-new"]
    assert {request.request_id for request, _ in plan} == {"batch-old", "urgent"}


def test_eight_requests_on_memory_for_one_and_a_half_are_preempted_at_most_once_each() -> None:
    simulation = Simulation(num_blocks=12, block_size=4, max_num_seqs=8)
    for number in range(8):
        simulation.add(prioritised(fresh_prompt(number, 8), str(number), max_tokens=24), 24)
    assert len(simulation.run()) == 8
    assert 0 < simulation.scheduler.num_preemptions <= 8
    assert simulation.scheduler.kv_cache.pool.num_free == 12


@pytest.mark.parametrize("tail", [1, 40])
def test_a_shared_prefix_is_computed_once_and_unrelated_requests_pass(tail: int) -> None:
    simulation = Simulation(budget=64)
    shared = list(range(200))
    first = prioritised([*shared, *range(300, 300 + tail)], "first")
    second = prioritised([*shared, *range(400, 400 + tail)], "second")
    unrelated = prioritised(list(range(500, 520)), "unrelated")
    for request in (first, second, unrelated):
        simulation.add(request, 2)
    plan = simulation.step()
    assert "unrelated" in {request.request_id for request, _ in plan}
    assert second.status is RequestStatus.WAITING
    simulation.run()
    assert second.num_prefix_tokens == 192
    assert simulation.num_computed == (200 + tail) + (200 + tail - 192) + 20 + 3


def test_who_computes_a_shared_prefix_may_be_aborted() -> None:
    simulation = Simulation(budget=64)
    first, second = prioritised(list(range(200)), "first"), prioritised(list(range(201)), "second")
    for request in (first, second):
        simulation.add(request, 2)
    simulation.step()
    simulation.scheduler.finish(first)
    assert simulation.run() == ["second"]


def test_nobody_waits_for_a_prefix_that_a_lower_class_computes() -> None:
    simulation = Simulation(budget=64)
    simulation.add(prioritised(list(range(2000)), "slow", "background"), 2)
    simulation.step()
    simulation.add(prioritised(list(range(201)), "urgent", "interactive"), 2)
    assert "urgent" in {request.request_id for request, _ in simulation.step()}


def test_a_short_prompt_does_not_wait_for_a_long_one() -> None:
    alone = Simulation()
    alone.add(prioritised(fresh_prompt(2, 100), "short"), 5)
    alone.run()
    simulation = Simulation()
    simulation.add(prioritised(fresh_prompt(1, 6000), "long"), 5)
    simulation.step()
    arrived = simulation.now
    simulation.add(prioritised(fresh_prompt(2, 100), "short"), 5)
    assert simulation.run()[0] == "short"
    assert simulation.token_times["short"][0] - arrived < 3 * alone.token_times["short"][0]


def test_short_prompts_do_not_put_off_a_long_one_for_ever() -> None:
    simulation = Simulation(budget=64)
    simulation.add(prioritised(fresh_prompt(0, 2000), "long"), 1)
    number = 0
    while "long" not in simulation.token_times:
        number += 1
        simulation.add(prioritised(fresh_prompt(number, 64), str(number)), 1)
        simulation.step()
    assert number <= 2000 / 32 + 2, "half of each step is the long one's"


@pytest.mark.parametrize("token_s", [0.0001, 0.0006, 0.003])
def test_a_long_prompt_does_not_stretch_the_gaps_of_running_streams(token_s: float) -> None:
    # Attention to 6,000 tokens doubles the price of a prompt token.
    simulation = Simulation(token_s=token_s, context_s=token_s / 6000)
    for number in range(3):
        simulation.add(prioritised(fresh_prompt(number, 30), f"stream-{number}"), 3000)
    for _ in range(60):
        simulation.step()
    before = len(simulation.token_times["stream-0"])
    simulation.add(prioritised(fresh_prompt(9, 6000), "long"), 1)
    while "long" not in simulation.token_times:
        simulation.step()
    times = simulation.token_times["stream-0"]
    gaps = [later - earlier for earlier, later in itertools.pairwise(times)]
    calm, disturbed = gaps[5 : before - 1], sorted(gaps[before - 1 :])
    assert disturbed[int(0.95 * len(disturbed))] <= 2.5 * median(calm)
    # The whole prompt takes 6,000 tokens of one and a half times the price, a few of them in each step.
    affordable = 6000 * 1.5 * token_s / ((STRETCH - 1) * simulation.step_s)
    assert len(disturbed) <= max(170, 1.3 * affordable), "what the bound allows is used"


def test_the_prompt_share_never_falls_to_nothing_and_never_rises_above_its_bound() -> None:
    cost = StepCost(16, 64)
    assert cost.prefill_tokens() == 64
    cost.observe(0, 2, 0.010)
    assert cost.prefill_tokens() == 16
    for _ in range(20):
        cost.observe(16, 2, 5.0)
    assert cost.prefill_tokens() == 16
    cost = StepCost(16, 64)
    for _ in range(CALM_STEPS):
        cost.observe(0, 2, 0.010)
    for _ in range(MAX_MIXED_STEPS - 1):
        cost.observe(cost.prefill_tokens(), 2, 0.010)
    assert cost.prefill_tokens() == 64
    cost.observe(64, 2, 0.010)
    for seconds in (0.016, 0.015):
        assert cost.prefill_tokens() == 0, "what is compared with is old by now: plain steps are due"
        cost.observe(0, 2, seconds)
    assert cost.decode_s == 0.015
    assert cost.prefill_tokens() == 64


def test_answers_that_grow_slower_by_themselves_leave_less_to_prompts() -> None:
    cost = StepCost(1, 64)
    for _ in range(CALM_STEPS):
        cost.observe(0, 2, 0.010)
    for decode_s, most in ((0.010, 6), (0.015, 6), (0.020, 1), (0.030, 1)):
        for _ in range(3 * MAX_MIXED_STEPS):
            chunk = cost.prefill_tokens()
            cost.observe(chunk, 2, decode_s + 0.001 * chunk)
        assert chunk <= most
        assert decode_s + 0.001 * chunk <= max(0.022, decode_s + 0.002)


def test_answers_that_have_come_or_gone_since_it_was_calm_are_measured_anew() -> None:
    cost = StepCost(1, 64)
    for _ in range(CALM_STEPS):
        cost.observe(0, 4, 0.010)
    # A plain step of 16 answers alone takes more than a mixed one of the 4 may.
    for num_answers, decode_s in ((4, 0.010), (16, 0.025), (2, 0.008)):
        for _ in range(3 * MAX_MIXED_STEPS):
            chunk = cost.prefill_tokens(num_answers, num_answers)
            cost.observe(chunk, num_answers, decode_s + 0.001 * chunk)
        share = (STRETCH - 1) * decode_s / 0.001
        assert share - 2 <= max(cost.prefill_tokens(num_answers, num_answers), chunk) <= share + 1
    for _ in range(4):
        cost.observe(0, 2, 0.015)
    assert cost.prefill_tokens(2, 2) <= (STRETCH_OF_CALM * 0.008 - 0.015) / 0.001 + 1, "the calm of two answers counts"


def test_a_crowd_of_prompts_may_cost_one_reader_more_than_one_prompt_may() -> None:
    cost = StepCost(1, 256)
    for _ in range(CALM_STEPS):
        cost.observe(0, 1, 0.010)
    for _ in range(20):
        cost.observe(cost.prefill_tokens(), 1, 0.010 + 0.001 * cost.prefill_tokens())
    alone = cost.prefill_tokens(1, 1)
    assert alone == cost.prefill_tokens(1, 16) == cost.prefill_tokens(16, 16)
    assert cost.prefill_tokens(2, 1) == 2 * alone
    for _ in range(20):
        chunk = cost.prefill_tokens(15, 1)
        cost.observe(chunk, 1, 0.010 + 0.001 * chunk)
    assert 12 * alone <= chunk <= 18 * alone


def test_requests_past_their_deadline_are_found_whether_they_wait_or_run() -> None:
    simulation = Simulation(max_num_seqs=1, step_s=1.0, token_s=0.0)
    for name, deadline_s in (("running", 5.0), ("waiting", 3.0), ("patient", None)):
        request = prioritised(fresh_prompt(1, 5), name)
        request.deadline_s = deadline_s
        simulation.add(request, 100)
    found = []
    for _ in range(7):
        found.append([request.request_id for request in simulation.scheduler.expired()])
        for request in simulation.scheduler.expired():
            simulation.scheduler.finish(request)
        simulation.step()
    assert found == [[], [], [], ["waiting"], [], ["running"], []]


def test_the_retry_time_follows_how_fast_the_queue_moves() -> None:
    simulation = Simulation(max_num_seqs=1, step_s=4.0, token_s=0.0)
    assert simulation.scheduler.retry_after_s == 1.0
    for number in range(20):
        simulation.add(prioritised(fresh_prompt(number, 5), str(number)), 1)
    for _ in range(10):
        simulation.step()
    assert simulation.scheduler.retry_after_s == pytest.approx(4.0)
    simulation.now += 1000
    assert simulation.scheduler.retry_after_s == 60.0
