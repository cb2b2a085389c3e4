"""One answer whatever goes on around it: batch, chunks, cache, eviction, preemption, streaming, neighbours' seeds."""

import asyncio
from pathlib import Path

import pytest

from engine import AsyncEngine, Engine, EngineConfig, SamplingParams
from tests.engine.conftest import make_tiny_engine
from tests.engine.prompts import PROMPTS

GREEDY = SamplingParams(max_tokens=24, temperature=0, ignore_eos=True)
SEEDED = SamplingParams(max_tokens=24, temperature=1.0, seed=1234, ignore_eos=True)
LONG = PROMPTS[-1]


@pytest.fixture(scope="module")
def alone(real_engine: Engine) -> list[list[int]]:
    """Greedy answers to the last eight prompts, each with the engine to itself."""
    return [real_engine.generate(prompt, GREEDY).token_ids for prompt in PROMPTS[-8:]]


def test_alone_equals_in_a_batch_of_eight(real_engine: Engine, alone: list[list[int]]) -> None:
    batch = real_engine.generate(PROMPTS[-8:], GREEDY)
    assert [output.token_ids for output in batch] == alone


def test_a_seeded_answer_is_unchanged_by_its_neighbours(real_engine: Engine) -> None:
    alone = real_engine.generate(PROMPTS[0], SEEDED).token_ids
    request = real_engine.make_requests(PROMPTS[0], SEEDED)
    noise = [
        real_engine.make_requests(prompt, SamplingParams(max_tokens=20, temperature=1.0)) for prompt in PROMPTS[1:5]
    ]
    for requests in [*noise[:2], request, *noise[2:]]:
        real_engine.add(requests)
    tokens = []
    while real_engine.has_work:
        tokens += [
            token_id
            for delta in real_engine.step()
            if delta.request_id == request[0].request_id
            for token_id in delta.token_ids
        ]
    assert tokens == alone


def test_whole_prompt_equals_chunked(chat_model_path: Path, real_engine: Engine, alone: list[list[int]]) -> None:
    chunked = Engine(
        EngineConfig(
            model=chat_model_path, dtype="float32", num_kv_blocks=100, max_num_batched_tokens=17, check_integrity=True
        )
    )
    assert chunked.generate(LONG, GREEDY).token_ids == alone[-1]


def test_cold_equals_warm_equals_evicted_and_refilled(chat_model_path: Path, alone: list[list[int]]) -> None:
    # 24 blocks of 16 tokens: the long prompt and its answer take most of the pool, so that other prompts evict it.
    engine = Engine(EngineConfig(model=chat_model_path, dtype="float32", num_kv_blocks=24, check_integrity=True))
    cold = engine.generate(LONG, GREEDY)
    warm = engine.generate(LONG, GREEDY)
    assert cold.num_cached_tokens == 0
    assert warm.num_cached_tokens == (len(warm.prompt_token_ids) - 1) // 16 * 16
    for prompt in ("Rivers carry water to the sea. ", "Mountains rise where plates meet. "):
        engine.generate(prompt * 40, GREEDY)
    refilled = engine.generate(LONG, GREEDY)
    assert refilled.num_cached_tokens == 0
    assert cold.token_ids == warm.token_ids == refilled.token_ids == alone[-1]


def test_streamed_equals_not_streamed(chat_model_path: Path, real_engine: Engine) -> None:
    engine = AsyncEngine(EngineConfig(model=chat_model_path, dtype="float32", num_kv_blocks=100, check_integrity=True))
    engine.start()

    async def stream() -> tuple[str, list[int]]:
        deltas = [delta async for delta in engine.stream(PROMPTS[1], SEEDED)]
        return "".join(d.text for d in deltas), [i for d in deltas for i in d.token_ids]

    whole = real_engine.generate(PROMPTS[1], SEEDED)
    try:
        assert asyncio.run(stream()) == (whole.text, whole.token_ids)
        joined = list(engine.stream_sync(PROMPTS[1], SEEDED))
        assert "".join(delta.text for delta in joined) == whole.text
    finally:
        engine.shutdown()


@pytest.mark.usefixtures("scheduling")
def test_preempted_equals_undisturbed(tiny_folder: Path) -> None:
    params = SamplingParams(max_tokens=24, temperature=1.0, seed=5, ignore_eos=True)
    prompts = [list(range(2 + i, 14 + i)) for i in range(8)]
    roomy = make_tiny_engine(tiny_folder, num_kv_blocks=200, max_num_seqs=8)
    expected = [output.token_ids for output in roomy.generate(prompts, params)]
    # Room for one and a half of the eight sequences.
    tight = make_tiny_engine(tiny_folder, num_kv_blocks=14, max_num_seqs=8)
    assert [output.token_ids for output in tight.generate(prompts, params)] == expected
    assert 0 < tight.stats().num_preemptions < 40


@pytest.mark.usefixtures("scheduling")
@pytest.mark.parametrize("length", [3, 4, 5, 8, 9, 16])
def test_full_prefix_hit_still_computes_last_token(tiny_folder: Path, length: int) -> None:
    engine = make_tiny_engine(tiny_folder)
    prompt = list(range(10, 10 + length))
    params = SamplingParams(max_tokens=5, temperature=0, ignore_eos=True)
    cold, warm = engine.generate(prompt, params), engine.generate(prompt, params)
    assert warm.token_ids == cold.token_ids
    assert warm.num_cached_tokens == (length - 1) // 4 * 4


@pytest.mark.usefixtures("scheduling")
def test_temperature_zero_equals_top_k_one_equals_tiny_top_p(tiny_engine: Engine) -> None:
    prompt = list(range(20, 30))
    greedy = tiny_engine.generate(prompt, SamplingParams(max_tokens=10, temperature=0, ignore_eos=True)).token_ids
    for params in (
        SamplingParams(max_tokens=10, top_k=1, ignore_eos=True),
        SamplingParams(max_tokens=10, top_p=1e-6, ignore_eos=True),
        SamplingParams(max_tokens=10, min_p=1.0, ignore_eos=True),
    ):
        assert tiny_engine.generate(prompt, params).token_ids == greedy


@pytest.mark.usefixtures("scheduling")
def test_same_seed_repeats_and_another_differs(tiny_engine: Engine) -> None:
    prompt = list(range(20, 30))

    def answer(seed: int | None) -> list[int]:
        return tiny_engine.generate(prompt, SamplingParams(max_tokens=20, seed=seed, ignore_eos=True)).token_ids

    assert answer(7) == answer(7)
    assert answer(7) != answer(8)
    assert answer(None) != answer(None)


@pytest.mark.usefixtures("scheduling")
def test_n_answers_are_different_draws_and_repeat_under_a_seed(tiny_engine: Engine) -> None:
    params = SamplingParams(max_tokens=12, n=3, seed=11, ignore_eos=True)
    first, second = (tiny_engine.generate(list(range(5, 15)), params) for _ in range(2))
    answers = [completion.token_ids for completion in first.completions]
    assert answers == [completion.token_ids for completion in second.completions]
    assert len({tuple(answer) for answer in answers}) == 3
