"""Speculation changes no token: whatever is drafted, at every border, with every sampling field."""

from collections.abc import Callable, Sequence
from functools import cache
from pathlib import Path
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from engine import Engine, SamplingParams
from engine.errors import StepFailedError
from engine.outputs import Completion
from engine.request import Request
from engine.scheduler import StepPlan
from engine.speculation import LONGEST_MATCH, History, NgramIndex, Speculator, continuation
from tests.engine.conftest import make_tiny_engine

PROMPT = list(range(20, 30))


class Oracle:
    """Drafts what the answer will be, as far as it is known, with every `wrong_every`-th token spoiled."""

    def __init__(self, answers: dict[tuple[str, int], list[int]], wrong_every: int = 0) -> None:
        self.answers = answers
        self.wrong_every = wrong_every
        self.forgotten: list[tuple[str, int]] = []

    def strength(self, request: Request) -> int:
        return LONGEST_MATCH

    def follow(self, plan: StepPlan) -> None:
        pass

    def draft(self, wanted: Sequence[tuple[Request, int]]) -> list[list[int]]:
        drafts = []
        for request, count in wanted:
            start = request.num_output_tokens
            known = self.answers.get(request.key, [])[start : start + count]
            known += [5] * (count - len(known))
            wrong = self.wrong_every
            drafts.append(
                [
                    (token + 1) % 300 if wrong and (start + i) % wrong == wrong - 1 else token
                    for i, token in enumerate(known)
                ]
            )
        return drafts

    def forget(self, request: Request) -> None:
        self.forgotten.append(request.key)


def speculate(engine: Engine, drafter: Oracle, num_drafts: int) -> None:
    """Let the engine verify that many drafts whenever there is room, at whatever price."""
    engine.speculator = Speculator(drafter, num_drafts, max_rows=1000)
    engine.speculator._choose_length = lambda plan, candidates: num_drafts  # type: ignore[method-assign]


def run(engine: Engine, prompts: list[list[int]], params: SamplingParams) -> list[Completion]:
    """Answers under the ids r0, r1, …, so that an oracle can know them beforehand."""
    requests = [engine.make_requests(p, params, request_id=f"r{i}") for i, p in enumerate(prompts)]
    answers = {r.key: Completion(r.index) for group in requests for r in group}
    for group in requests:
        engine.add(group)
    while engine.has_work:
        for delta in engine.step():
            assert delta.error is None
            if (delta.request_id, delta.index) in answers:
                answers[delta.request_id, delta.index].add(delta)
    return [answers[r.key] for group in requests for r in group]


def assert_speculation_changes_nothing(
    folder: Path, prompts: list[list[int]], params: SamplingParams, num_drafts: int, wrong_every: int, **config: Any
) -> Engine:
    """Run with and without drafts; returns the engine that speculated."""
    plain = run(make_tiny_engine(folder, speculation="off", **config), prompts, params)
    known = {(f"r{i // params.n}", i % params.n): answer.token_ids for i, answer in enumerate(plain)}
    engine = make_tiny_engine(folder, speculation="off", **config)
    oracle = Oracle(known, wrong_every)
    speculate(engine, oracle, num_drafts)
    for answer, expected in zip(run(engine, prompts, params), plain, strict=True):
        assert (answer.token_ids, answer.text) == (expected.token_ids, expected.text)
        assert (answer.finish_reason, answer.stop_reason) == (expected.finish_reason, expected.stop_reason)
        assert [entry.token_id for entry in answer.logprobs or ()] == [
            entry.token_id for entry in expected.logprobs or ()
        ]
    assert sorted(set(oracle.forgotten)) == sorted(known)
    assert engine.kv_cache.pool.num_free == engine.kv_cache.pool.num_blocks
    return engine


@pytest.mark.parametrize("wrong_every", [0, 1, 2, 3, 5])
@pytest.mark.parametrize("num_drafts", [1, 3, 7])
def test_right_and_wrong_drafts_give_the_plain_answer(tiny_folder: Path, num_drafts: int, wrong_every: int) -> None:
    params = SamplingParams(max_tokens=20, temperature=0, ignore_eos=True)
    engine = assert_speculation_changes_nothing(tiny_folder, [PROMPT], params, num_drafts, wrong_every)
    stats = engine.stats()
    assert stats.num_accepted_tokens == sum(stats.num_accepted_by_position)
    if wrong_every == 0:
        assert stats.num_accepted_tokens == stats.num_draft_tokens
        # The first token comes with the prompt; then each step yields its drafts and one more.
        assert stats.num_steps == 2 + -(-19 // (1 + num_drafts))
    if wrong_every == 1:
        assert stats.num_accepted_tokens == 0
        assert stats.num_draft_tokens > 0


@pytest.mark.parametrize("prompt_length", [3, 4, 5, 7, 8, 9])
def test_drafts_cross_block_borders(tiny_folder: Path, prompt_length: int) -> None:
    params = SamplingParams(max_tokens=14, temperature=1, seed=3, ignore_eos=True, logprobs=2)
    prompt = list(range(30, 30 + prompt_length))
    assert_speculation_changes_nothing(tiny_folder, [prompt], params, 5, 4)


@pytest.mark.parametrize("max_tokens", range(1, 9))
def test_max_tokens_inside_a_draft(tiny_folder: Path, max_tokens: int) -> None:
    params = SamplingParams(max_tokens=max_tokens, temperature=0, ignore_eos=True)
    assert_speculation_changes_nothing(tiny_folder, [PROMPT], params, 5, 0)


@pytest.mark.parametrize("position", range(1, 9))
def test_an_end_token_inside_a_draft_ends_the_answer(tiny_folder: Path, position: int) -> None:
    free = SamplingParams(max_tokens=12, temperature=0, ignore_eos=True)
    (answer,) = run(make_tiny_engine(tiny_folder, speculation="off"), [PROMPT], free)
    params = SamplingParams(max_tokens=12, temperature=0, ignore_eos=True, stop_token_ids=[answer.token_ids[position]])
    engine = make_tiny_engine(tiny_folder, speculation="off")
    speculate(engine, Oracle({("r0", 0): answer.token_ids}), 7)
    (drafted,) = run(engine, [PROMPT], params)
    end = answer.token_ids.index(answer.token_ids[position]) + 1
    assert drafted.token_ids == answer.token_ids[:end]
    assert (drafted.finish_reason, drafted.stop_reason) == ("stop", answer.token_ids[position])


def test_accepted_blocks_of_an_answer_are_found_by_the_next_turn(tiny_folder: Path) -> None:
    params = SamplingParams(max_tokens=15, temperature=0, ignore_eos=True)
    (answer,) = run(make_tiny_engine(tiny_folder, speculation="off"), [PROMPT], params)
    engine = make_tiny_engine(tiny_folder, speculation="off")
    speculate(engine, Oracle({("r0", 0): answer.token_ids}, wrong_every=4), 6)
    run(engine, [PROMPT], params)
    follow_up = engine.generate([*PROMPT, *answer.token_ids, 9], params)
    # All but the answer's last token have been computed: 24 of 25, in whole blocks of 4.
    assert follow_up.num_cached_tokens == 24
    cold = make_tiny_engine(tiny_folder, speculation="off", enable_prefix_caching=False)
    assert follow_up.token_ids == cold.generate([*PROMPT, *answer.token_ids, 9], params).token_ids


@pytest.mark.parametrize("steps", range(1, 8))
def test_abort_while_drafting_gives_all_blocks_back(tiny_folder: Path, steps: int) -> None:
    engine = make_tiny_engine(tiny_folder, speculation="off")
    oracle = Oracle({})
    speculate(engine, oracle, 3)
    for i in range(3):
        engine.add(engine.make_requests(PROMPT[i:], SamplingParams(max_tokens=20, ignore_eos=True), request_id=f"r{i}"))
    for _ in range(steps):
        engine.step()
    for i in range(3):
        engine.abort(f"r{i}")
    assert engine.kv_cache.pool.num_free == engine.kv_cache.pool.num_blocks
    assert len(oracle.forgotten) == 3


def test_a_choice_that_raises_fails_its_request_only(tiny_folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    engine = make_tiny_engine(tiny_folder, speculation="off")
    speculate(engine, Oracle({}), 3)
    for name, params in (
        ("plain", SamplingParams(max_tokens=9, temperature=0, ignore_eos=True)),
        ("broken", SamplingParams(max_tokens=9, temperature=0, ignore_eos=True, logprobs=1)),
    ):
        engine.add(engine.make_requests(PROMPT, params, request_id=name))

    def fail(*_: object) -> None:
        raise RuntimeError("no log-probability today")

    monkeypatch.setattr(engine.sampler, "_logprob", fail)
    tokens, errors = [], {}
    while engine.has_work:
        for delta in engine.step():
            tokens += delta.token_ids
            if delta.error is not None:
                errors[delta.request_id] = delta.error
    assert len(tokens) == 9
    assert list(errors) == ["broken"]
    assert isinstance(errors["broken"], StepFailedError)
    assert "no log-probability today" in str(errors["broken"])
    assert engine.kv_cache.pool.num_free == engine.kv_cache.pool.num_blocks


def test_an_abandoned_step_leaves_no_drafts(tiny_folder: Path) -> None:
    engine = make_tiny_engine(tiny_folder, speculation="off")
    speculate(engine, Oracle({}), 3)
    (request,) = engine.make_requests(PROMPT, SamplingParams(max_tokens=20, ignore_eos=True), request_id="r0")
    engine.add([request])
    for _ in range(3):
        engine.step()
    tokens = list(request.token_ids)
    engine.abandon("r0")
    assert engine.step() == []
    assert (request.token_ids, request.draft_token_ids) == (tokens, [])
    engine.abort("r0")
    assert engine.kv_cache.pool.num_free == engine.kv_cache.pool.num_blocks


def test_drafts_are_dropped_before_anybody_is_preempted(tiny_folder: Path) -> None:
    prompts = [list(range(20 + i, 29 + i)) for i in range(4)]
    params = SamplingParams(max_tokens=7, temperature=0, ignore_eos=True)
    # Four sequences of 16 tokens fill the pool of 16 blocks of 4 exactly.
    engine = assert_speculation_changes_nothing(tiny_folder, prompts, params, 6, 2)
    assert engine.stats().num_preemptions == 0
    assert engine.stats().num_draft_tokens > 0


class Machine:
    """A clock that only computing moves: a step of r rows takes `seconds(r)`."""

    def __init__(self, engine: Engine, seconds: Callable[[int], float]) -> None:
        self.now = 0.0
        run_step = engine.runner.run

        def run(plan: StepPlan, *more: object) -> tuple[list[Request], torch.Tensor]:
            self.now += seconds(sum(num_tokens for _, num_tokens in plan))
            return run_step(plan, *more)  # type: ignore[arg-type]

        engine.runner.run = run  # type: ignore[method-assign]

    def clock(self) -> float:
        return self.now


def time_answers(folder: Path, seconds: Callable[[int], float], wrong_every: int | None) -> tuple[float, Engine]:
    """Seconds that a machine takes for two answers of 150 tokens, one after the other; None drafts nothing."""
    answers = plain_answers(folder)
    engine = make_tiny_engine(folder, speculation="off", num_kv_blocks=80)
    machine = Machine(engine, seconds)
    if wrong_every is not None:
        engine.speculator = Speculator(Oracle(answers, wrong_every), 8, max_rows=32, clock=machine.clock)
    for index in range(2):
        request = engine.make_requests(PROMPT[index:], LONG_GREEDY, request_id=f"r{index}")
        engine.add(request)
        while engine.has_work:
            engine.step()
    return machine.now, engine


LONG_GREEDY = SamplingParams(max_tokens=150, temperature=0, ignore_eos=True)


@cache
def plain_answers(folder: Path) -> dict[tuple[str, int], list[int]]:
    engine = make_tiny_engine(folder, speculation="off", num_kv_blocks=80)
    return {(f"r{i}", 0): engine.generate(PROMPT[i:], LONG_GREEDY).token_ids for i in range(2)}


def test_good_drafts_are_long_where_rows_are_free(tiny_folder: Path) -> None:
    plain, _ = time_answers(tiny_folder, lambda rows: 1.0, None)
    drafted, engine = time_answers(tiny_folder, lambda rows: 1.0, 0)
    assert drafted < plain / 4
    assert engine.speculator is not None
    assert engine.speculator.num_draft_tokens / engine.speculator.num_drafts > 6


@pytest.mark.parametrize("wrong_every", [0, 1, 3])
@pytest.mark.parametrize("row_cost", [0.0, 0.1, 1.0])
def test_drafting_never_costs_more_than_a_few_per_cent(tiny_folder: Path, row_cost: float, wrong_every: int) -> None:
    def seconds(rows: int) -> float:
        return 1.0 + row_cost * (rows - 1)

    plain, _ = time_answers(tiny_folder, seconds, None)
    drafted, _ = time_answers(tiny_folder, seconds, wrong_every)
    assert drafted < plain * 1.06


def test_a_request_whose_drafts_fail_stops_drafting_and_tries_again_rarely(tiny_folder: Path) -> None:
    _, engine = time_answers(tiny_folder, lambda rows: 1.0, 1)
    # Each of two answers of 150 tokens may find out for itself, and try once more.
    assert 0 < engine.stats().num_drafts < 24


def test_nothing_is_drafted_in_steps_of_many_rows(tiny_folder: Path) -> None:
    engine = make_tiny_engine(tiny_folder, speculation="off", num_kv_blocks=80)
    speculate(engine, Oracle({}), 4)
    assert engine.speculator is not None
    engine.speculator.max_rows = 3
    run_step, sizes = engine.runner.run, []

    def checked(plan: StepPlan, *more: object) -> tuple[list[Request], torch.Tensor]:
        if any(request.draft_token_ids for request in plan.requests):
            sizes.append(sum(num_tokens for _, num_tokens in plan))
        return run_step(plan, *more)  # type: ignore[arg-type]

    engine.runner.run = checked  # type: ignore[method-assign]
    run(engine, [PROMPT, PROMPT[1:], PROMPT[2:]], SamplingParams(max_tokens=8, temperature=0, ignore_eos=True))
    assert max(sizes) == 3


@given(
    length=st.integers(3, 60),
    alphabet=st.integers(1, 6),
    data=st.data(),
)
@settings(max_examples=200, deadline=None)
def test_ngram_index_equals_a_search_of_the_whole_text(length: int, alphabet: int, data: st.DataObject) -> None:
    tokens = data.draw(st.lists(st.integers(0, alphabet), min_size=length, max_size=length))
    index, position = NgramIndex(), data.draw(st.integers(1, length))
    while position <= length:
        assert index.find(tokens[:position]) == longest_match(tokens[:position])
        position += data.draw(st.integers(1, 7))


def longest_match(tokens: list[int]) -> tuple[int, int]:
    """By definition: of the suffixes of 4, 3, 2 tokens the longest that ended before, and where it did so last."""
    for n in (4, 3, 2):
        for end in range(len(tokens) - 1, n - 1, -1):
            if tokens[end - n : end] == tokens[len(tokens) - n :]:
                while n < LONGEST_MATCH and n < end and tokens[end - n - 1] == tokens[len(tokens) - n - 1]:
                    n += 1
                return end, n
    return 0, 0


def test_a_draft_that_reaches_the_end_goes_on_with_the_repetition() -> None:
    assert continuation([1, 2, 3, 1, 2], 2, 7) == [3, 1, 2, 3, 1, 2, 3]
    assert continuation([1, 2, 3, 4, 5], 1, 3) == [2, 3, 4]


def test_refused_drafts_cost_a_request_no_more_than_a_small_share_of_its_answer():
    history, spent = History(), 0.0
    for num_output_tokens in range(200):
        history.price = 0.3
        if history.credit(num_output_tokens) >= history.price:
            history.learn(4, 0, num_output_tokens)
            spent += history.price
        assert spent <= 0.4 + 0.06 * num_output_tokens
    before = history.credit(200)
    history.learn(4, 4, 200)
    assert history.credit(200) == pytest.approx(before + 4 - 0.3)
