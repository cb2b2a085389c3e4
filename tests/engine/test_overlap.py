"""Overlapped scheduling changes no token, gives every block back, and really launches a step before the last is known.

What the tests of other modules ask with the fixture `scheduling` is not asked here again.
"""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from engine import Engine, SamplingParams, errors
from engine.choices import Choices
from engine.outputs import Completion, OutputDelta
from engine.request import Request
from engine.scheduler import StepPlan
from tests.engine.conftest import make_tiny_engine
from tests.engine.test_exactness import FIELDS, TINY_PROMPTS, exact, make_exact
from tests.engine.test_packed import make as make_packed
from tests.engine.test_packed import save_wide_model
from tests.engine.test_speculation import Oracle, speculate
from tests.engine.tiny_models import save_tiny_model

GREEDY = SamplingParams(max_tokens=12, temperature=0, ignore_eos=True)
SEEDED = SamplingParams(max_tokens=12, temperature=1.0, seed=99, ignore_eos=True)
PENALISED = SamplingParams(
    max_tokens=12, temperature=0.7, seed=3, repetition_penalty=1.4, frequency_penalty=0.8, ignore_eos=True
)


def make_overlapped(folder: Path, **overrides: object) -> Engine:
    settings: dict[str, object] = {"num_kv_blocks": 200, "max_num_seqs": 8, "speculation": "off"}
    return make_tiny_engine(folder, **{**settings, **overrides}, overlap_scheduling=True)


def run(engine: Engine, prompts: list[list[int]], params: list[SamplingParams]) -> list[Completion]:
    """Answers of all prompts together, each with its own parameters."""
    pairs = enumerate(zip(prompts, params, strict=True))
    groups = [engine.make_requests(prompt, own, request_id=f"r{i}") for i, (prompt, own) in pairs]
    answers = {r.key: Completion(r.index) for group in groups for r in group}
    for group in groups:
        engine.add(group)
    while engine.has_work:
        for delta in engine.step():
            assert delta.error is None
            answers[delta.request_id, delta.index].add(delta)
    return list(answers.values())


def assert_all_free(engine: Engine) -> None:
    engine.check_integrity()
    assert engine.kv_cache.pool.num_free == engine.kv_cache.pool.num_blocks


def trace(engine: Engine, monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """Record when steps are launched and when their tokens are waited for."""
    events: list[str] = []
    run_step, arrive = engine.runner.run, Choices.arrive
    numbers: dict[int, int] = {}

    def launching(*args: Any) -> tuple[list[Request], torch.Tensor]:
        events.append(f"launch {1 + sum(event.startswith('launch') for event in events)}")
        return run_step(*args)

    def arriving(choices: Choices) -> Any:
        numbers.setdefault(id(choices), 1 + len(numbers))
        events.append(f"collect {numbers[id(choices)]}")
        return arrive(choices)

    monkeypatch.setattr(engine.runner, "run", launching)
    monkeypatch.setattr(Choices, "arrive", arriving)
    return events


def test_the_next_step_is_launched_before_the_last_ones_tokens_are_collected(
    tiny_folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    engine = make_overlapped(tiny_folder)
    events = trace(engine, monkeypatch)
    output = engine.generate([5, 6, 7], SamplingParams(max_tokens=4, temperature=0, ignore_eos=True))
    assert len(output.token_ids) == 4
    assert events == [
        "launch 1", "launch 2", "collect 1", "launch 3", "collect 2", "launch 4", "collect 3", "collect 4",
    ]  # fmt: skip
    assert (engine.num_steps, engine.num_overlapped_steps) == (4, 3)


def test_without_the_setting_every_step_is_collected_first(tiny_folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    engine = make_tiny_engine(tiny_folder)
    events = trace(engine, monkeypatch)
    engine.generate([5, 6, 7], SamplingParams(max_tokens=2, temperature=0, ignore_eos=True))
    assert events == ["launch 1", "collect 1", "launch 2", "collect 2"]
    assert engine.num_overlapped_steps == 0


@pytest.mark.parametrize(
    ("name", "params"), [("llama", GREEDY), ("qwen3", GREEDY), ("mistral-window", SEEDED), ("llama", PENALISED)]
)
def test_overlapped_equals_one_by_one_whatever_goes_on_around_it(
    tmp_path: Path, name: str, params: SamplingParams
) -> None:
    """In a batch, in chunks, cold, warm and evicted, preempted: the tokens of each prompt alone, without overlap."""
    save_tiny_model(name, tmp_path)
    alone = make_exact(tmp_path, enable_prefix_caching=False, max_num_batched_tokens=64)
    expected = [run(alone, [prompt], [params])[0].token_ids for prompt in TINY_PROMPTS]
    everybody = [params] * len(TINY_PROMPTS)
    for limits in (
        {"max_num_batched_tokens": 64},
        {"max_num_batched_tokens": 3},
        {"num_kv_blocks": 13, "max_num_batched_tokens": 17},
    ):
        engine = make_overlapped(tmp_path, deterministic=True, **limits)
        for _ in range(2):
            assert [answer.token_ids for answer in run(engine, TINY_PROMPTS, everybody)] == expected
        assert engine.num_overlapped_steps > 0
        assert (engine.stats().num_preemptions > 0) == ("num_kv_blocks" in limits)
        assert engine.stats().num_prefix_hits > 0
        assert_all_free(engine)


@given(
    fields=st.lists(FIELDS, min_size=4, max_size=4),
    num_blocks=st.integers(11, 40),
    budget=st.integers(4, 30),
    speculation=st.sampled_from(["off", "ngram"]),
)
@settings(max_examples=30, deadline=None)
def test_every_sampling_field_is_the_same_with_overlap(
    tiny_folder: Path, fields: list[dict[str, Any]], num_blocks: int, budget: int, speculation: str
) -> None:
    params = [SamplingParams(**given_fields) for given_fields in fields]
    prompts = TINY_PROMPTS[:4]
    plain = run(make_exact(tiny_folder), prompts, params)
    engine = make_overlapped(
        tiny_folder, deterministic=True, num_kv_blocks=num_blocks, max_num_batched_tokens=budget,
        speculation=speculation, max_speculative_rows=2,
    )  # fmt: skip
    overlapped = run(engine, prompts, params)
    assert exact(overlapped) == exact(plain)
    assert [(a.text, a.finish_reason, a.stop_reason) for a in overlapped] == [
        (a.text, a.finish_reason, a.stop_reason) for a in plain
    ]
    assert_all_free(engine)


@pytest.mark.parametrize(
    ("fields", "overlaps"),
    [
        ({"temperature": 0}, True),
        ({"seed": 4, "top_p": 0.8}, True),
        ({"temperature": 0, "frequency_penalty": 0.5}, True),
        ({"temperature": 0, "stop": ("zzz",)}, True),
        ({"temperature": 0, "logprobs": 1}, True),
        ({"seed": 4, "presence_penalty": 0.5, "logprobs": 0}, True),
        ({"temperature": 0, "logit_bias": {7: 3.0}}, True),
        ({"seed": 4, "min_tokens": 6, "stop_token_ids": (5, 6, 7)}, True),
        ({"temperature": 0, "regex": "[ab]{6}"}, False),
    ],
)
def test_steps_wait_where_the_host_must_know_the_newest_token(
    tiny_folder: Path, fields: dict[str, Any], overlaps: bool
) -> None:
    if "regex" in fields:
        pytest.importorskip("llguidance")
    params = SamplingParams(max_tokens=6, ignore_eos=True, **fields)
    engine = make_overlapped(tiny_folder, deterministic=True)
    overlapped = run(engine, [TINY_PROMPTS[0]], [params])
    # A step that only reads a part of the prompt chooses nothing, and is followed in any case.
    assert (engine.num_overlapped_steps > 1) == overlaps
    assert exact(overlapped) == exact(run(make_exact(tiny_folder), [TINY_PROMPTS[0]], [params]))


@pytest.mark.parametrize("temperature", [0, 1.0])
@pytest.mark.parametrize("penalties", [{}, {"repetition_penalty": 1.3, "frequency_penalty": 0.8}])
def test_bias_and_tokens_that_may_not_come_yet_are_the_same_on_the_device(
    tiny_folder: Path, temperature: float, penalties: dict[str, float]
) -> None:
    """In turn and overlapped, without drafts and with right and wrong ones, with log-probabilities and without."""
    ends = tuple(range(0, 300, 2))  # half of the vocabulary, so that the first free row mostly ends the answer
    for logprobs in (None, 2):
        given_fields = {"temperature": temperature, "seed": 8, "max_tokens": 14, "logprobs": logprobs, **penalties}
        params = SamplingParams(min_tokens=9, stop_token_ids=ends, logit_bias={4: 9.0, 7: 6.5, 9: -40}, **given_fields)
        everybody = [params] * len(TINY_PROMPTS)
        plain = run(make_exact(tiny_folder), TINY_PROMPTS, everybody)
        assert all(set(answer.token_ids[:9]).isdisjoint(ends) for answer in plain)
        assert any(answer.finish_reason == "stop" for answer in plain)
        assert sum(answer.token_ids.count(7) for answer in plain) > 9  # it is what the bias makes of them
        overlapped = make_overlapped(tiny_folder, deterministic=True)
        assert exact(run(overlapped, TINY_PROMPTS, everybody)) == exact(plain)
        assert overlapped.num_overlapped_steps > 0
        for wrong_every in (0, 3):
            drafting = make_overlapped(tiny_folder, deterministic=True, max_num_batched_tokens=64)
            known = {(f"r{i}", 0): answer.token_ids for i, answer in enumerate(plain)}
            speculate(drafting, Oracle(known, wrong_every), 4)
            assert exact(run(drafting, TINY_PROMPTS, everybody)) == exact(plain)
            assert drafting.stats().num_accepted_tokens > 0


@pytest.mark.parametrize(("max_rows", "overlaps"), [(3, True), (4, False)])
def test_steps_overlap_beside_speculation_where_there_are_too_many_rows_for_drafts(
    tiny_folder: Path, max_rows: int, overlaps: bool
) -> None:
    engine = make_overlapped(tiny_folder, speculation="ngram", max_speculative_rows=max_rows)
    run(engine, TINY_PROMPTS[:3], [GREEDY] * 3)
    assert (engine.num_overlapped_steps > 0) == overlaps


def test_an_answers_end_is_seen_one_step_late_and_its_blocks_are_nobodys_until_then(tiny_folder: Path) -> None:
    plain = make_tiny_engine(tiny_folder).generate([5, 6, 7], GREEDY).token_ids
    end = next(i for i in range(2, 11) if plain[i] not in plain[:i])
    params = SamplingParams(max_tokens=12, temperature=0, ignore_eos=True, stop_token_ids=[plain[end]])
    engine = make_overlapped(tiny_folder)
    (request,) = engine.make_requests([5, 6, 7], params, request_id="ends")
    engine.add([request])
    deltas: list[OutputDelta] = []
    while not deltas or deltas[-1].finish_reason is None:
        deltas += engine.step()
    assert [token for delta in deltas for token in delta.token_ids] == plain[: end + 1]
    assert deltas[-1].num_output_tokens == end + 1
    held = list(request.block_table)
    assert engine.has_work
    assert engine.kv_cache.pool.num_free == engine.kv_cache.pool.num_blocks - len(held)
    # Somebody arrives in between, and takes others.
    (newcomer,) = engine.make_requests([50, 51, 52], GREEDY)
    engine.add([newcomer])
    engine.check_integrity()
    assert engine.step() == []
    engine.step()
    assert newcomer.block_table
    assert not set(newcomer.block_table) & set(held)
    engine.abort(newcomer.request_id)
    while engine.has_work:
        engine.step()
    assert_all_free(engine)


@pytest.mark.parametrize("num_steps", range(1, 7))
def test_an_abort_in_flight_and_the_same_id_again(tiny_folder: Path, num_steps: int) -> None:
    expected = make_tiny_engine(tiny_folder).generate(TINY_PROMPTS[4], GREEDY).token_ids
    engine = make_overlapped(tiny_folder)
    for prompt, name in ((TINY_PROMPTS[4], "stays"), (TINY_PROMPTS[0], "again")):
        engine.add(engine.make_requests(prompt, GREEDY, request_id=name))
    tokens: dict[str, list[int]] = {"stays": [], "again": []}
    for _ in range(num_steps):
        for delta in engine.step():
            tokens[delta.request_id] += delta.token_ids
    (aborted,) = engine.abort("again")
    assert aborted.num_output_tokens == len(tokens["again"])
    tokens["again"] = []
    engine.add(engine.make_requests(TINY_PROMPTS[4], GREEDY, request_id="again"))
    while engine.has_work:
        for delta in engine.step():
            tokens[delta.request_id] += delta.token_ids
    assert tokens == {"stays": expected, "again": expected}
    assert_all_free(engine)


def test_a_step_that_fails_behind_another_fails_only_its_own_and_after_the_others_tokens(
    tiny_folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    engine = make_overlapped(tiny_folder)
    run_step, num_calls = engine.runner.run, 0

    def third_fails(*args: Any) -> Any:
        nonlocal num_calls
        num_calls += 1
        if num_calls == 3:
            raise RuntimeError("no kernel today")
        return run_step(*args)

    monkeypatch.setattr(engine.runner, "run", third_fails)
    engine.add(engine.make_requests([5, 6, 7], GREEDY, request_id="doomed"))
    first = engine.step()
    second = engine.step()
    assert [len(delta.token_ids) for delta in first + second] == [1, 1]
    engine.add(engine.make_requests([8, 9], GREEDY, request_id="later"))
    deltas: list[OutputDelta] = []
    while engine.has_work:
        deltas += engine.step()
    ends = {delta.request_id: delta for delta in deltas if delta.finish_reason}
    assert isinstance(ends["doomed"].error, errors.StepFailedError)
    assert ends["doomed"].num_output_tokens == 2
    assert (ends["later"].finish_reason, ends["later"].num_output_tokens) == ("length", 12)
    assert_all_free(engine)


def test_a_device_that_fails_takes_the_step_behind_with_it(tiny_folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    engine = make_overlapped(tiny_folder)
    arrive: Callable[[Choices], Any] = Choices.arrive
    num_calls = 0

    def second_fails(choices: Choices) -> Any:
        nonlocal num_calls
        num_calls += 1
        if num_calls == 2:
            raise RuntimeError("an illegal memory access was encountered")
        return arrive(choices)

    monkeypatch.setattr(Choices, "arrive", second_fails)
    engine.add(engine.make_requests([5, 6, 7], GREEDY, request_id="first"))
    assert [delta.error for delta in engine.step()] == [None]
    engine.add(engine.make_requests([8, 9], GREEDY, request_id="second"))  # in the step behind only
    deltas = engine.step()
    assert {delta.request_id for delta in deltas} == {"first", "second"}
    assert all("illegal memory access" in str(delta.error) for delta in deltas)
    assert not engine.has_work
    assert_all_free(engine)
    assert len(engine.generate([5, 6, 7], GREEDY).token_ids) == 12


def test_what_fails_while_the_step_behind_is_planned_leaves_nothing_behind(
    tiny_folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    engine = make_overlapped(tiny_folder)
    engine.add(engine.make_requests([5, 6, 7], GREEDY, request_id="first"))
    engine.step()
    with monkeypatch.context() as patch:

        def explode() -> StepPlan:
            raise KeyError("books")

        patch.setattr(engine.scheduler, "schedule", explode)
        with pytest.raises(KeyError):
            engine.step()
        (delta,) = engine.fail_all(errors.EngineStoppedError())
    assert delta.num_output_tokens == 1
    while engine.has_work:
        assert engine.step() == []
    assert_all_free(engine)


def test_logits_that_are_not_finite_end_their_request_with_a_reason(
    tiny_folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for params in (GREEDY, SEEDED, PENALISED):
        engine = make_overlapped(tiny_folder)
        forward, num_calls = engine.runner.decoder.forward, 0

        def spoiled(*args: Any) -> torch.Tensor:
            nonlocal num_calls
            num_calls += 1
            logits: torch.Tensor = forward(*args)  # noqa: B023 - called in this round only
            if num_calls == 2:
                logits[0] = float("nan")
            return logits

        monkeypatch.setattr(engine.runner.decoder, "forward", spoiled)
        engine.add(engine.make_requests([5, 6, 7], params, request_id="spoiled"))
        engine.add(engine.make_requests([8, 9], params, request_id="whole"))
        deltas: list[OutputDelta] = []
        while engine.has_work:
            deltas += engine.step()
        ends = {delta.request_id: delta for delta in deltas if delta.finish_reason}
        assert "not finite" in str(ends["spoiled"].error)
        assert ends["spoiled"].num_output_tokens == 1
        assert (ends["whole"].error, ends["whole"].num_output_tokens) == (None, 12)
        assert_all_free(engine)


def test_a_prefix_that_the_step_in_flight_computes_is_waited_for(tiny_folder: Path) -> None:
    engine = make_overlapped(tiny_folder, max_num_batched_tokens=64)
    shared = list(range(20, 60))
    first, second = (engine.make_requests([*shared, tail], GREEDY, request_id=f"r{tail}")[0] for tail in (5, 6))
    engine.add([first])
    engine.add([second])
    while engine.has_work:
        engine.step()
    assert (first.num_prefix_tokens, second.num_prefix_tokens) == (0, 40)


def test_packed_weights_give_the_same_tokens(tmp_path: Path) -> None:
    save_wide_model("llama", tmp_path)
    prompts = [[5, 6, 7], [40, 41]]
    expected = run(make_packed(tmp_path), prompts, [GREEDY, PENALISED])
    engine = make_packed(tmp_path, overlap_scheduling=True, speculation="off")
    assert [a.token_ids for a in run(engine, prompts, [GREEDY, PENALISED])] == [a.token_ids for a in expected]
    assert engine.num_overlapped_steps > 0


def test_a_setting_that_is_no_bool_is_refused(tiny_folder: Path) -> None:
    with pytest.raises(errors.InvalidParameterError, match="overlap_scheduling"):
        make_tiny_engine(tiny_folder, overlap_scheduling="yes")
