"""What comes while a reader is busy waits in one delta, and nothing of it is lost."""

import asyncio
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest

from engine import AsyncEngine, EngineConfig, SamplingParams, delivery, errors
from engine.delivery import FEW_STREAMS, LoopMailbox
from engine.outputs import OutputDelta, TokenLogprob, merged

GREEDY = {"temperature": 0.0, "max_tokens": 30, "ignore_eos": True, "logprobs": 1}


@pytest.fixture(scope="module")
def engine(tiny_folder: Path) -> Iterator[AsyncEngine]:
    engine = AsyncEngine(
        EngineConfig(
            model=tiny_folder, dtype="float32", device="cpu", block_size=4, num_kv_blocks=64, max_num_batched_tokens=8
        )
    )
    engine.start()
    yield engine
    engine.shutdown()


async def read(engine: AsyncEngine, pause_s: float, n: int = 1) -> list[OutputDelta]:
    deltas = []
    params = SamplingParams.from_mapping({**GREEDY, "n": n})
    async for delta in engine.stream([5, 6, 7], params):
        deltas.append(delta)
        await asyncio.sleep(pause_s)
    return deltas


@pytest.mark.parametrize("n", [1, 3])
async def test_a_slow_reader_gets_fewer_deltas_with_the_same_in_them(engine: AsyncEngine, n: int) -> None:
    fast, slow = await read(engine, 0, n), await read(engine, 0.2, n)
    assert len(slow) < len(fast)
    for index in range(n):
        quick, late = ([delta for delta in deltas if delta.index == index] for deltas in (fast, slow))
        assert "".join(delta.text for delta in late) == "".join(delta.text for delta in quick)
        tokens = [token for delta in late for token in delta.token_ids]
        assert tokens == [token for delta in quick for token in delta.token_ids]
        assert len(tokens) == 30
        entries = [entry.token_id for delta in late for entry in delta.logprobs or ()]
        assert entries == tokens
        assert (late[-1].finish_reason, late[-1].num_output_tokens) == ("length", 30)


def delta(text: str, token: int, index: int = 0, **more: object) -> OutputDelta:
    logprobs = (TokenLogprob(token, text, -1.0, text.encode()),)
    plain = OutputDelta("r", index, text, (token,), logprobs, None, None, 3, 0, token)
    return replace(plain, **more)  # type: ignore[arg-type]


def test_deltas_of_each_answer_are_joined_in_order() -> None:
    waiting = [delta("a", 1), delta("x", 1, index=1), delta("b", 2), delta("", 3, finish_reason="stop", stop_reason=7)]
    first, second = merged(waiting)
    assert (first.text, first.token_ids, first.index) == ("ab", (1, 2, 3), 0)
    assert [entry.token_id for entry in first.logprobs or ()] == [1, 2, 3]
    assert (first.finish_reason, first.stop_reason, first.num_output_tokens) == ("stop", 7, 3)
    assert (second.text, second.index, second.finish_reason) == ("x", 1, None)


def test_an_error_stays_a_delta_of_its_own_behind_what_came_before_it() -> None:
    failed = delta("", 0, error=errors.StepFailedError("no"))
    first, second = merged([delta("a", 1), delta("b", 2), failed, delta("c", 3)])
    assert (first.text, first.error) == ("ab", None)
    assert second is failed


async def test_where_many_read_steps_are_told_together_but_not_the_first_and_the_last(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(delivery, "DELTAS_PER_S", 1)
    monkeypatch.setattr(delivery, "MOST_WAIT_S", 1.0)
    loop = asyncio.get_running_loop()
    mailbox = LoopMailbox(loop)
    streams: list[asyncio.Queue[list[OutputDelta]]] = [asyncio.Queue() for _ in range(FEW_STREAMS + 1)]

    async def step(token: int, finish_reason: str | None = None) -> list[int]:
        for stream in streams:
            mailbox.put(stream, [delta("a", token, finish_reason=finish_reason)])
        mailbox.wake()
        await asyncio.sleep(0)
        await asyncio.sleep(0)
        return [stream.qsize() for stream in streams]

    count = len(streams)
    assert await step(1) == [1] * count
    assert await step(2) == await step(3) == [1] * count
    assert await step(4, "stop") == [4] * count
    assert await step(5) == [4] * count
    for stream in streams:
        await asyncio.wait_for(_fifth(stream), 10)


async def _fifth(stream: "asyncio.Queue[list[OutputDelta]]") -> None:
    """Nothing wakes the loop again: what waits is handed out all the same."""
    for _ in range(5):
        await stream.get()
