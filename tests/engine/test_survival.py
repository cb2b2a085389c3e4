"""What the engine does when things go wrong: floods, deadlines, a step that raises or hangs, shutting down."""

import asyncio
import itertools
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path

import pytest

from engine import AsyncEngine, EngineConfig, OutputDelta, SamplingParams, errors
from engine.scheduler import StepPlan
from engine.watchdog import POLLS, Watchdog, threads_waited_s
from tests.engine.conftest import SCHEDULING, make_tiny_engine

PARAMS = SamplingParams(max_tokens=8, temperature=0, ignore_eos=True)
LONG = SamplingParams(max_tokens=200, temperature=0, ignore_eos=True)
pytestmark = pytest.mark.usefixtures("scheduling")


def make_async_engine(folder: Path, **overrides: object) -> AsyncEngine:
    settings: dict[str, object] = {
        "model": folder,
        "dtype": "float32",
        "device": "cpu",
        "block_size": 4,
        "num_kv_blocks": 128,
        "max_num_batched_tokens": 8,
        "max_num_seqs": 2,
        "check_integrity": True,
    }
    engine = AsyncEngine(EngineConfig(**{**settings, **SCHEDULING, **overrides}))  # type: ignore[arg-type]
    engine.start()
    return engine


@pytest.fixture
def engine(tiny_folder: Path) -> Iterator[AsyncEngine]:
    engine = make_async_engine(tiny_folder)
    yield engine
    engine.shutdown()


def wait_until(condition: Callable[[], bool], what: str, timeout_s: float = 30.0) -> None:
    deadline = time.monotonic() + timeout_s
    while not condition():
        assert time.monotonic() < deadline, f"waited in vain: {what}"
        time.sleep(0.01)


def assert_settled(engine: AsyncEngine) -> None:
    def settled() -> bool:
        stats = engine.stats()
        idle = (stats.num_running, stats.num_waiting, stats.num_free_blocks) == (0, 0, stats.num_kv_blocks)
        return idle and not engine._tickets

    wait_until(settled, "all blocks are free and nobody waits")


class Frozen:
    """Makes the engine's next step hang inside its first layer until it is released."""

    def __init__(self, engine: AsyncEngine, monkeypatch: pytest.MonkeyPatch) -> None:
        self.entered, self._release = threading.Event(), threading.Event()
        decoder = engine.engine.runner.decoder
        first = decoder.layers[0]

        def hang(*args: object) -> object:
            self.entered.set()
            assert self._release.wait(60), "nobody released the step"
            return first(*args)  # type: ignore[arg-type]

        monkeypatch.setattr(decoder, "layers", [hang, *decoder.layers[1:]])

    def release(self) -> None:
        self._release.set()


class TestRefusals:
    def test_an_unknown_priority_is_refused_with_the_allowed_ones(self, engine: AsyncEngine) -> None:
        with pytest.raises(errors.InvalidParameterError) as caught:
            engine.engine.make_requests([5], PARAMS, priority="urgent")
        assert caught.value.field == "priority"
        assert str(caught.value) == (
            'priority: must be one of "interactive", "normal", "batch", "background", got \'urgent\''
        )

    @pytest.mark.parametrize("deadline_s", [0.0, -1.0, float("inf"), float("nan")])
    def test_a_deadline_that_is_no_time_is_refused(self, engine: AsyncEngine, deadline_s: float) -> None:
        with pytest.raises(errors.InvalidParameterError, match="deadline_s: must be a number in"):
            engine.engine.make_requests([5], PARAMS, deadline_s=deadline_s)

    def test_a_full_queue_refuses_with_its_numbers_and_a_time(
        self, tiny_folder: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        engine = make_async_engine(tiny_folder, max_queue_size=3)
        frozen = Frozen(engine, monkeypatch)
        try:
            # Two have seats and three may wait.
            streams = [engine.stream_sync([5, 6, 7 + number], PARAMS) for number in range(5)]
            threads = [threading.Thread(target=list, args=(stream,)) for stream in streams]
            for thread in threads:
                thread.start()
            wait_until(lambda: len(engine._tickets) == 5, "all are submitted")
            with pytest.raises(errors.QueueFullError) as caught:
                next(engine.stream_sync([5], PARAMS))
            assert caught.value.max_queue_size == 3
            assert 1 <= caught.value.retry_after_s <= 60
            assert "at most 3 may (max_queue_size)" in str(caught.value)
            frozen.release()
            for thread in threads:
                thread.join()
            assert len(list(engine.stream_sync([5], PARAMS))) > 0
            assert_settled(engine)
        finally:
            frozen.release()
            engine.shutdown()


class TestDeadlines:
    async def test_a_running_and_a_waiting_request_end_at_their_deadlines(self, tiny_folder: Path) -> None:
        engine = make_async_engine(tiny_folder, max_num_seqs=1)
        step = engine.engine.step

        def slow() -> list[OutputDelta]:
            time.sleep(0.02)
            return step()

        engine.engine.step = slow  # type: ignore[method-assign]
        running = asyncio.create_task(engine.generate([5, 6], LONG, deadline_s=0.5))
        waiting = asyncio.create_task(engine.generate([7, 8], LONG, deadline_s=0.2))
        patient = asyncio.create_task(engine.generate([9, 10], PARAMS, deadline_s=60))
        with pytest.raises(errors.DeadlineExceededError, match=r"deadline of 0\.2 s; it was still waiting"):
            await waiting
        with pytest.raises(errors.DeadlineExceededError, match=r"deadline of 0\.5 s; \d+ tokens of its answer") as late:
            await running
        assert late.value.num_output_tokens > 0
        assert len((await patient).token_ids) == 8
        await asyncio.to_thread(assert_settled, engine)
        engine.shutdown()

    def test_the_core_ends_late_requests_without_a_thread(self, tiny_folder: Path) -> None:
        engine = make_tiny_engine(tiny_folder)
        now = 100.0
        engine.scheduler.clock = lambda: now
        engine.add(engine.make_requests([5, 6], SamplingParams(max_tokens=20, ignore_eos=True), deadline_s=5))
        engine.step()
        now = 105.0
        (delta,) = [delta for delta in engine.step() if delta.finish_reason]
        assert isinstance(delta.error, errors.DeadlineExceededError)
        assert not engine.has_work
        assert engine.stats().num_free_blocks == engine.stats().num_kv_blocks


class TestFailingSteps:
    @pytest.mark.parametrize(
        ("cause", "advised"),
        [
            (
                RuntimeError("[enforce fail] DefaultCPUAllocator: not enough memory: you tried to allocate 9 bytes"),
                True,
            ),
            (RuntimeError("CUDA out of memory. Tried to allocate 2.00 GiB"), True),
            (MemoryError(), True),
            (ValueError("shapes differ"), False),
        ],
    )
    async def test_a_step_that_raises_fails_its_requests_only(
        self, engine: AsyncEngine, monkeypatch: pytest.MonkeyPatch, cause: Exception, advised: bool
    ) -> None:
        expected = (await engine.generate([2, 3, 4], PARAMS)).token_ids
        run = engine.engine.runner.run
        failed = False

        def fail_once(plan: StepPlan, *args: object) -> object:
            nonlocal failed
            if len(plan.requests) == 2 and not failed:
                failed = True
                raise cause
            return run(plan, *args)  # type: ignore[arg-type]

        monkeypatch.setattr(engine.engine.runner, "run", fail_once)
        # Two have seats, for long enough to meet in one step; the others wait, and are in no step that fails.
        outcomes = await asyncio.gather(
            *(engine.generate([5 + number, 6, 7], LONG) for number in range(2)),
            *(engine.generate([2, 3, 4], PARAMS) for number in range(2)),
            return_exceptions=True,
        )
        for outcome in outcomes[:2]:
            assert isinstance(outcome, errors.StepFailedError)
            assert ("lower max_num_batched_tokens" in str(outcome)) == advised
        assert [outcome.token_ids for outcome in outcomes[2:]] == [expected, expected]  # type: ignore[union-attr]
        await asyncio.to_thread(assert_settled, engine)
        assert engine.check_health() == "ready"

    async def test_what_fails_outside_of_the_model_does_not_end_the_engine(
        self, engine: AsyncEngine, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        with monkeypatch.context() as patch:

            def explode() -> None:
                raise KeyError("books")

            patch.setattr(engine.engine.scheduler, "schedule", explode)
            with pytest.raises(errors.StepFailedError, match="books"):
                await engine.generate([5, 6], PARAMS)
        assert len((await engine.generate([5, 6], PARAMS)).token_ids) == 8
        await asyncio.to_thread(assert_settled, engine)


class TestWatchdog:
    def test_a_frozen_step_ends_readiness_and_fails_whoever_waits_once(
        self, engine: AsyncEngine, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        frozen = Frozen(engine, monkeypatch)
        received: dict[str, list[OutputDelta]] = {name: [] for name in ("running", "waiting", "third")}
        outcomes: dict[str, Exception] = {}

        def read(name: str) -> None:
            try:
                for delta in engine.stream_sync([5, 6, 7], PARAMS, request_id=name):
                    received[name].append(delta)
            except errors.EngineError as error:
                outcomes[name] = error

        threads = [threading.Thread(target=read, args=(name,)) for name in received]
        for thread in threads:
            thread.start()
        assert frozen.entered.wait(10)
        # On a machine with other work it takes longer than the limit, as time without a processor counts little.
        wait_until(lambda: engine.check_health() != "ready", "readiness ends", timeout_s=60)
        assert "its step hangs" in engine.check_health()
        for thread in threads:
            thread.join(10)
        assert {type(error) for error in outcomes.values()} == {errors.EngineStalledError}
        assert len(outcomes) == 3
        with pytest.raises(errors.EngineStalledError):
            next(engine.stream_sync([5], PARAMS))
        frozen.release()
        wait_until(lambda: engine.check_health() == "ready", "readiness comes back")
        assert_settled(engine)
        assert received == {"running": [], "waiting": [], "third": []}
        assert sum(len(delta.token_ids) for delta in engine.stream_sync([5, 6], PARAMS)) == 8

    def test_the_default_limit_keeps_the_promise_of_five_seconds(self) -> None:
        assert EngineConfig(model="m").stall_timeout_s * (1 + 2 / 16) < 5

    def test_what_others_keep_from_running_is_slow_and_does_not_hang(self) -> None:
        waited = itertools.count(step=0.01)  # all the time between two looks
        states = self.states_of_a_silent_thread(lambda: {1: 5.0, 2: next(waited)}, looks=32)
        assert states == [False] * 32

    def test_a_hang_on_a_busy_machine_is_found_though_later(self) -> None:
        waited = itertools.count()
        states = self.states_of_a_silent_thread(lambda: {1: next(waited)}, looks=200)
        assert states.index(True) == pytest.approx(10 * POLLS, abs=2)

    def test_a_thread_that_nothing_keeps_from_running_hangs_after_its_limit(self) -> None:
        assert self.states_of_a_silent_thread(lambda: {1: 5.0}, looks=32).index(True) == pytest.approx(POLLS, abs=1)
        assert self.states_of_a_silent_thread(dict, looks=32).index(True) == pytest.approx(POLLS, abs=1)

    @staticmethod
    def states_of_a_silent_thread(waited_s: Callable[[], Mapping[int, float]], looks: int) -> list[bool]:
        """Whether it is taken to hang, after each look; a look follows 0.01 s after the one before."""
        watchdog = Watchdog(lambda: POLLS * 0.01, lambda: True, lambda _: None, waited_s)
        states: list[bool] = []

        class Looks:
            def wait(self, poll_s: float) -> bool:
                assert poll_s == pytest.approx(0.01)
                states.append(watchdog.stalled)
                return len(states) > looks

        watchdog._stop = Looks()  # type: ignore[assignment]
        watchdog._run(threading.current_thread())
        return states[1:]

    @pytest.mark.skipif(not Path("/proc/self/schedstat").exists(), reason="this system does not tell")
    def test_the_wait_of_every_thread_for_a_processor_is_told(self) -> None:
        before = threads_waited_s()
        assert threading.get_native_id() in before
        assert all(waited >= before.get(thread, 0.0) >= 0.0 for thread, waited in threads_waited_s().items())

    def test_an_idle_engine_and_a_long_prefill_stay_ready(
        self, tiny_folder: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        engine = make_async_engine(tiny_folder, stall_timeout_s=0.9, max_num_batched_tokens=64)
        decoder = engine.engine.runner.decoder
        layers = decoder.layers

        def slow(layer: Callable[..., object]) -> Callable[..., object]:
            def run(*args: object) -> object:
                time.sleep(0.55)
                return layer(*args)

            return run

        # A step takes longer than the limit, each of its layers a part of it.
        monkeypatch.setattr(decoder, "layers", [slow(layer) for layer in layers])
        states: set[str] = set()
        thread = threading.Thread(
            target=lambda: list(engine.stream_sync([5] * 40, SamplingParams(max_tokens=1, temperature=0)))
        )
        time.sleep(1.0)
        states.add(engine.check_health())
        thread.start()
        while thread.is_alive():
            states.add(engine.check_health())
            time.sleep(0.02)
        assert states == {"ready"}
        engine.shutdown()

    def test_shutting_down_does_not_wait_for_a_frozen_step(
        self, tiny_folder: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        engine = make_async_engine(tiny_folder, stall_timeout_s=0.5)
        frozen = Frozen(engine, monkeypatch)
        thread = threading.Thread(target=lambda: list(_ignoring_errors(engine.stream_sync([5, 6], PARAMS))))
        thread.start()
        assert frozen.entered.wait(10)
        engine.shutdown()
        thread.join(10)
        assert not thread.is_alive()
        frozen.release()

    def test_a_frozen_pin_is_told(self, tiny_folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        engine = make_async_engine(tiny_folder, stall_timeout_s=0.5)
        frozen = Frozen(engine, monkeypatch)
        with pytest.raises(errors.EngineStalledError):
            engine.pin(list(range(20, 31)))
        frozen.release()
        engine.shutdown()


class TestDraining:
    async def test_work_at_hand_finishes_and_new_work_is_refused(self, engine: AsyncEngine) -> None:
        tasks = [asyncio.create_task(engine.generate([5 + number, 6], LONG)) for number in range(4)]
        while len(engine._tickets) < 4:  # noqa: ASYNC110 - the engine's thread has no event to wait for
            await asyncio.sleep(0.001)
        draining = asyncio.create_task(asyncio.to_thread(engine.drain, 60.0))
        while engine.check_health() == "ready":  # noqa: ASYNC110
            await asyncio.sleep(0.001)
        assert engine.check_health() == "the engine is draining: it finishes its requests and takes no new ones"
        with pytest.raises(errors.EngineDrainingError):
            await engine.generate([5], PARAMS)
        assert [len(output.token_ids) for output in await asyncio.gather(*tasks)] == [200] * 4
        assert await draining
        assert engine.check_health() == "the engine thread has stopped"

    async def test_what_takes_too_long_is_ended(self, engine: AsyncEngine) -> None:
        stream = engine.stream([5, 6], SamplingParams(max_tokens=250, ignore_eos=True))
        await anext(stream)
        assert not await asyncio.to_thread(engine.drain, 0.01)
        with pytest.raises(errors.EngineStoppedError, match="stopped before the answer was complete"):
            _ = [delta async for delta in stream]

    def test_an_idle_engine_drains_at_once(self, engine: AsyncEngine) -> None:
        assert engine.drain(60.0)
        with pytest.raises(errors.EngineDeadError):
            next(engine.stream_sync([5], PARAMS))


def _ignoring_errors(stream: Iterator[OutputDelta]) -> Iterator[OutputDelta]:
    try:
        yield from stream
    except errors.EngineError:
        return
