"""Aborting in every phase gives all blocks back, and refusals name their numbers."""

import asyncio
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from engine import AsyncEngine, Engine, EngineConfig, OutputDelta, SamplingParams, errors
from tests.engine.conftest import make_tiny_engine

PARAMS = SamplingParams(max_tokens=8, temperature=0, ignore_eos=True)
pytestmark = pytest.mark.usefixtures("scheduling")


def submit(engine: Engine, name: str, num_tokens: int, start: int = 2) -> None:
    engine.add(engine.make_requests(list(range(start, start + num_tokens)), PARAMS, request_id=name))


def assert_baseline(engine: Engine) -> None:
    while engine.has_work:  # a step may be in flight, and holds the blocks that it writes to
        engine.check_integrity()
        assert engine.step() == []
    engine.check_integrity()
    stats = engine.stats()
    assert (stats.num_running, stats.num_waiting, stats.num_free_blocks) == (0, 0, stats.num_kv_blocks)


def test_abort_while_waiting(tiny_folder: Path) -> None:
    engine = make_tiny_engine(tiny_folder, max_num_seqs=1)
    submit(engine, "first", 6)
    submit(engine, "second", 6, start=50)
    engine.step()
    assert engine.stats().num_waiting == 1
    assert [delta.finish_reason for delta in engine.abort("second")] == ["abort"]
    engine.abort("first")
    assert_baseline(engine)


def test_abort_in_the_middle_of_a_chunked_prefill(tiny_engine: Engine) -> None:
    submit(tiny_engine, "long", 30)
    assert tiny_engine.step() == []
    assert tiny_engine.stats().num_running == 1
    tiny_engine.abort("long")
    assert_baseline(tiny_engine)


def test_abort_while_decoding_twice_and_after_the_end(tiny_engine: Engine) -> None:
    submit(tiny_engine, "short", 5)
    for _ in range(3):
        tiny_engine.step()
    assert tiny_engine.abort("short")[0].num_output_tokens == 3
    assert tiny_engine.abort("short") == []
    assert tiny_engine.abort("never seen") == []
    assert_baseline(tiny_engine)
    submit(tiny_engine, "whole", 5)
    while tiny_engine.has_work:
        tiny_engine.step()
    assert tiny_engine.abort("whole") == []
    assert_baseline(tiny_engine)


def test_abort_ends_all_n_answers(tiny_engine: Engine) -> None:
    params = SamplingParams(max_tokens=8, n=3, seed=1, ignore_eos=True)
    tiny_engine.add(tiny_engine.make_requests([5, 6, 7], params, request_id="many"))
    tiny_engine.step()
    assert sorted(delta.index for delta in tiny_engine.abort("many")) == [0, 1, 2]
    assert_baseline(tiny_engine)


def test_a_step_that_raises_fails_its_requests_and_the_engine_goes_on(
    tiny_engine: Engine, monkeypatch: pytest.MonkeyPatch
) -> None:
    expected = tiny_engine.generate([2, 3, 4, 5], PARAMS).token_ids
    submit(tiny_engine, "doomed", 5)
    with monkeypatch.context() as patch:

        def explode(*_: object) -> None:
            raise RuntimeError("out of memory")

        patch.setattr(tiny_engine.runner.decoder, "forward", explode)
        (delta,) = tiny_engine.step()
    assert delta.finish_reason == "error"
    assert isinstance(delta.error, errors.StepFailedError)
    assert "out of memory" in str(delta.error)
    assert_baseline(tiny_engine)
    assert tiny_engine.generate([2, 3, 4, 5], PARAMS).token_ids == expected


def test_a_prompt_beyond_the_context_is_refused_with_the_numbers(tiny_folder: Path) -> None:
    engine = make_tiny_engine(tiny_folder, num_kv_blocks=200, max_model_len=100)
    with pytest.raises(errors.PromptTooLongError) as caught:
        engine.generate([5] * 97, PARAMS)
    error = caught.value
    assert (error.num_prompt_tokens, error.max_model_len, error.max_tokens) == (97, 100, 8)
    assert str(error) == (
        "prompt is 97 tokens; this model takes 100 in all, 8 of them reserved for the answer (max_tokens): "
        "shorten the prompt or lower max_tokens"
    )
    assert error.code == "context_length_exceeded"
    assert len(engine.generate([5] * 92, PARAMS).token_ids) == 8


def test_a_prompt_that_can_never_fit_the_pool_is_refused_at_once(tiny_engine: Engine) -> None:
    with pytest.raises(errors.PromptTooLongError, match="the KV cache of this engine holds 64 in all"):
        tiny_engine.generate([5] * 60, PARAMS)
    assert len(tiny_engine.generate([5] * 56, PARAMS).token_ids) == 8


def test_without_max_tokens_the_engines_default_holds_as_far_as_there_is_room(tiny_folder: Path) -> None:
    engine = make_tiny_engine(tiny_folder, default_max_tokens=6)
    params = SamplingParams(temperature=0, ignore_eos=True)
    assert [len(engine.generate([5] * length, params).token_ids) for length in (10, 60)] == [6, 4]
    assert len(engine.generate([5] * 10, SamplingParams(max_tokens=9, ignore_eos=True)).token_ids) == 9


def test_without_max_tokens_the_answer_may_fill_the_context(tiny_engine: Engine) -> None:
    output = tiny_engine.generate([5] * 60, SamplingParams(temperature=0, ignore_eos=True))
    assert (len(output.token_ids), output.finish_reason) == (4, "length")


@pytest.mark.parametrize(
    ("prompt", "params", "field"),
    [
        ([], {}, "prompt"),
        ("", {}, "prompt"),
        ([300], {}, "prompt"),
        ([-1], {}, "prompt"),
        ([5], {"logit_bias": {300: 1.0}}, "logit_bias"),
        ([5], {"stop_token_ids": [999]}, "stop_token_ids"),
    ],
)
def test_ids_outside_the_vocabulary_and_empty_prompts_are_refused(
    tiny_engine: Engine, prompt: str | list[int], params: dict[str, object], field: str
) -> None:
    with pytest.raises(errors.InvalidParameterError) as caught:
        tiny_engine.make_requests(prompt, SamplingParams(**params))  # type: ignore[arg-type]
    assert caught.value.field == field


def test_a_step_whose_requests_are_all_abandoned_is_broken_off_between_layers(
    tiny_folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    engine = make_tiny_engine(tiny_folder, num_kv_blocks=64)
    first, second = engine.runner.decoder.layers
    computed: list[str] = []

    def abandoning(*args: object) -> object:
        computed.append("first")
        engine.abandon("long")
        return first(*args)  # type: ignore[arg-type]

    monkeypatch.setattr(
        engine.runner.decoder, "layers", [abandoning, lambda *a: computed.append("second") or second(*a)]
    )
    submit(engine, "long", 30)
    assert engine.step() == []
    assert computed == ["first"]
    engine.abort("long")
    assert_baseline(engine)
    # With another request in the step it runs to its end, and an id that is not live is not remembered.
    submit(engine, "long", 3)
    submit(engine, "other", 3, start=50)
    assert [delta.request_id for delta in engine.step()] == ["long", "other"]
    assert computed[:3] == ["first", "first", "second"]
    engine.abort("long")
    engine.abandon("long")
    while engine.has_work:
        engine.step()
    assert_baseline(engine)


class TestAsyncEngine:
    @pytest.fixture
    def engine(self, tiny_folder: Path, scheduling: dict[str, Any]) -> Iterator[AsyncEngine]:
        engine = AsyncEngine(
            EngineConfig(
                model=tiny_folder,
                dtype="float32",
                device="cpu",
                block_size=4,
                num_kv_blocks=64,
                max_num_batched_tokens=8,
                check_integrity=True,
                **scheduling,
            )
        )
        engine.start()
        yield engine
        engine.shutdown()

    async def settled(self, engine: AsyncEngine) -> None:
        for _ in range(500):
            stats = engine.stats()
            if (stats.num_running, stats.num_waiting, stats.num_free_blocks) == (0, 0, stats.num_kv_blocks):
                return
            await asyncio.sleep(0.01)
        raise AssertionError(f"blocks did not come back: {engine.stats()}")

    async def test_closing_a_stream_frees_its_blocks(self, engine: AsyncEngine) -> None:
        params = SamplingParams(max_tokens=200, ignore_eos=True)
        stream = engine.stream([5, 6, 7], params)
        await anext(stream)
        await stream.aclose()
        await self.settled(engine)

    async def test_cancelling_a_task_frees_its_blocks(self, engine: AsyncEngine) -> None:
        task = asyncio.create_task(engine.generate([5, 6, 7], SamplingParams(max_tokens=240, ignore_eos=True)))
        while engine.stats().num_running == 0:  # noqa: ASYNC110 - the engine's thread has no event to wait for
            await asyncio.sleep(0.001)
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task
        await self.settled(engine)

    async def test_closing_a_blocking_stream_frees_its_blocks(self, engine: AsyncEngine) -> None:
        stream = engine.stream_sync([5, 6, 7], SamplingParams(max_tokens=200, ignore_eos=True))
        next(stream)
        stream.close()  # type: ignore[attr-defined]
        await self.settled(engine)

    async def test_many_streams_at_once_equal_the_same_requests_alone(self, engine: AsyncEngine) -> None:
        prompts = [[10 + i, 20 + i, 30 + i] for i in range(6)]
        alone = [(await engine.generate(prompt, PARAMS)).token_ids for prompt in prompts]
        together = await asyncio.gather(*(engine.generate(prompt, PARAMS) for prompt in prompts))
        assert [output.token_ids for output in together] == alone

    async def test_a_doubled_id_is_refused_and_its_first_user_goes_on(self, engine: AsyncEngine) -> None:
        first = engine.stream([5, 6, 7], SamplingParams(max_tokens=100, ignore_eos=True), request_id="same")
        received = [await anext(first)]
        with pytest.raises(errors.InvalidParameterError, match="'same' is in use"):
            await engine.generate([1, 2], PARAMS, request_id="same")
        received += [delta async for delta in first]
        assert received[-1].num_output_tokens == 100

    async def test_shutdown_ends_running_streams_and_refuses_new_ones(self, tiny_folder: Path) -> None:
        engine = AsyncEngine(EngineConfig(model=tiny_folder, dtype="float32", device="cpu", num_kv_blocks=16))
        with pytest.raises(errors.EngineDeadError, match="has not been started"):
            await engine.generate([5], PARAMS)
        engine.start()
        stream = engine.stream([5, 6, 7], SamplingParams(max_tokens=200, ignore_eos=True))
        await anext(stream)
        await asyncio.to_thread(engine.shutdown)
        deltas: list[OutputDelta] = [delta async for delta in stream]
        assert deltas[-1].finish_reason == "abort"
        with pytest.raises(errors.EngineDeadError, match="the engine thread has stopped"):
            await engine.generate([5], PARAMS)

    async def test_a_pinned_prefix_is_served_from_the_cache_to_every_tenant(self, engine: AsyncEngine) -> None:
        prefix = list(range(20, 31))
        assert await asyncio.to_thread(engine.pin, prefix) == 8
        for tenant in ("alice", "bob"):
            output = await engine.generate([*prefix, 40, 41], PARAMS, tenant=tenant)
            assert output.num_cached_tokens == 8
        assert engine.stats().num_pinned_blocks == 2
        assert await asyncio.to_thread(engine.pin, prefix) == 8
        assert engine.stats().num_pinned_blocks == 2

    async def test_health_tells_a_stopped_engine_from_an_idle_one(self, engine: AsyncEngine) -> None:
        assert engine.check_health() == "ready"
        await asyncio.to_thread(engine.shutdown)
        assert engine.check_health() == "the engine thread has stopped"

    def test_only_the_engine_thread_runs_steps(self, engine: AsyncEngine, monkeypatch: pytest.MonkeyPatch) -> None:
        seen = set()
        step = engine.engine.step

        def recorded() -> list[OutputDelta]:
            seen.add(threading.current_thread().name)
            return step()

        monkeypatch.setattr(engine.engine, "step", recorded)
        threads = [
            threading.Thread(target=lambda: list(engine.stream_sync([5, 6, 7], PARAMS)), name=f"user-{i}")
            for i in range(4)
        ]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        assert seen == {"ragstone-engine"}


def test_a_model_without_a_chat_template_ends_its_answers_at_the_next_role(tiny_folder: Path) -> None:
    engine = AsyncEngine(EngineConfig(model=tiny_folder, dtype="float32", device="cpu", num_kv_blocks=16))
    assert engine.chat_stop == ("\nuser:",)
