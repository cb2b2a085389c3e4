"""Streams of events: those that wait for a slow client leave in one write, and none is lost, whatever happens."""

import asyncio
from typing import Any

import pytest

from app.routes import sse


class SlowClient:
    """Takes one message at a time, when it is told to; everything at once after `hurry`."""

    def __init__(self) -> None:
        self.bodies: list[str] = []
        self.ready = asyncio.Semaphore(0)
        self.is_hurried = False
        self.gone = asyncio.Event()

    async def send(self, message: Any) -> None:
        if not self.is_hurried:
            await self.ready.acquire()
        if message.get("body"):
            self.bodies.append(message["body"].decode())

    async def receive(self) -> Any:
        await self.gone.wait()
        return {"type": "http.disconnect"}

    def hurry(self) -> None:
        self.is_hurried = True
        for _ in range(1000):
            self.ready.release()


class Source:
    """Events "0;", "1;", …; `made` says how many were asked for, `is_closed` whether it was closed."""

    def __init__(self, count: int, error: Exception | None = None, size: int = 0) -> None:
        self._count, self._error, self._size = count, error, size
        self.made = 0
        self.is_closed = False

    async def events(self) -> sse.Events:
        try:
            for number in range(self._count):
                self.made += 1
                yield f"{number};".ljust(self._size)
                await asyncio.sleep(0)
            if self._error is not None:
                raise self._error
        finally:
            self.is_closed = True


async def started(source: Source, client: SlowClient) -> "asyncio.Task[None]":
    response = await sse.open_stream(source.events(), lambda fault: f"error {fault.code}")
    task = asyncio.create_task(response({"type": "http"}, client.receive, client.send))
    for _ in range(500):
        await asyncio.sleep(0)
    return task


async def test_events_that_wait_leave_in_one_write_and_in_order() -> None:
    source, client = Source(100), SlowClient()
    serving = await started(source, client)
    assert source.made == 1  # before the client has taken the head and the first event, nothing is read ahead
    client.ready.release()
    client.ready.release()
    for _ in range(500):
        await asyncio.sleep(0)
    client.hurry()
    await serving
    assert "".join(client.bodies) == "".join(f"{number};" for number in range(100))
    assert len(client.bodies) < 5
    assert source.is_closed


async def test_an_error_comes_after_all_that_came_before_it() -> None:
    client = SlowClient()
    client.hurry()
    serving = await started(Source(10, RuntimeError("no")), client)
    await serving
    text = "".join(client.bodies)
    assert text == "".join(f"{number};" for number in range(10)) + "error internal_error"


async def test_a_client_that_does_not_read_stops_the_source_and_one_that_goes_closes_it() -> None:
    source, client = Source(1000, size=sse.MOST_WAITING // 10), SlowClient()
    serving = await started(source, client)
    client.ready.release()
    client.ready.release()
    for _ in range(500):
        await asyncio.sleep(0)
    assert 10 <= source.made < 15
    client.gone.set()
    await serving
    assert source.is_closed


@pytest.mark.parametrize("count", [0, 1])
async def test_short_streams_end(count: int) -> None:
    source, client = Source(count), SlowClient()
    client.hurry()
    await (await started(source, client))
    assert "".join(client.bodies) == "0;" * count
    assert source.is_closed
