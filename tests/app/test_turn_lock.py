"""One turn at a time in each conversation."""

import asyncio
import threading

import pytest

from app.turn_lock import TurnLocks


async def test_turns_of_one_conversation_run_one_after_another_in_order():
    locks, events = TurnLocks(), []

    async def turn(number: int) -> None:
        async with locks.hold("a"):
            events.append(("begins", number))
            await asyncio.sleep(0.001)
            events.append(("ends", number))

    await asyncio.gather(*(turn(number) for number in range(4)))
    assert events == [(what, number) for number in range(4) for what in ("begins", "ends")]


async def test_conversations_do_not_wait_for_each_other():
    locks = TurnLocks()
    async with locks.hold("a"), locks.hold("b"):
        assert locks.is_held("a")
        assert locks.is_held("b")
    assert not locks.is_held("a")


async def test_a_waiter_that_is_cancelled_leaves_the_queue():
    locks, served = TurnLocks(), []

    async def turn(number: int) -> None:
        async with locks.hold("a"):
            served.append(number)

    async with locks.hold("a"):
        tasks = [asyncio.create_task(turn(number)) for number in range(3)]
        await asyncio.sleep(0)
        tasks[1].cancel()
        await asyncio.sleep(0)
    await asyncio.gather(*tasks, return_exceptions=True)
    assert served == [0, 2]
    assert not locks.is_held("a")


async def test_a_waiter_cancelled_in_the_moment_it_is_served_passes_the_lock_on():
    locks = TurnLocks()
    await locks.acquire("a")
    first = asyncio.create_task(locks.acquire("a"))
    second = asyncio.create_task(locks.acquire("a"))
    await asyncio.sleep(0)
    locks.release("a")  # first is served, but has not run yet
    first.cancel()
    with pytest.raises(asyncio.CancelledError):
        await first
    await asyncio.wait_for(second, 5)
    locks.release("a")
    assert not locks.is_held("a")


async def test_an_error_inside_releases_the_lock():
    locks = TurnLocks()
    with pytest.raises(ValueError, match="broken"):
        async with locks.hold("a"):
            raise ValueError("broken")
    assert not locks.is_held("a")


def test_event_loops_of_two_threads_share_the_locks():
    locks, inside, most = TurnLocks(), [0], [0]

    async def turn() -> None:
        async with locks.hold("a"):
            inside[0] += 1
            most[0] = max(most[0], inside[0])
            await asyncio.sleep(0.001)
            inside[0] -= 1

    async def turns() -> None:
        await asyncio.gather(*(turn() for _ in range(10)))

    threads = [threading.Thread(target=asyncio.run, args=(turns(),)) for _ in range(3)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(30)
    assert most[0] == 1
    assert not locks.is_held("a")
