"""Speculation changes no token: whatever is drafted, at every border, with every sampling field."""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from engine import Engine, SamplingParams
from engine.outputs import Completion
from engine.request import Request
from engine.speculation import LONGEST_MATCH, NgramIndex, Speculator, continuation
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
