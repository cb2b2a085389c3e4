"""Server-sent events: a response that notices at once when its client goes away, and says why when it breaks off.

One writer for LangServe's and OpenAI's streams. Format: https://html.spec.whatwg.org/multipage/server-sent-events.html
"""

import asyncio
import contextlib
import logging
import time
from abc import abstractmethod
from collections.abc import AsyncGenerator, Callable, Coroutine, Mapping
from typing import Any

from fastapi import Request
from fastapi.routing import APIRoute
from starlette.responses import Response
from starlette.types import Receive, Scope, Send

from app.routes.faults import Fault, describe

logger = logging.getLogger(__name__)

HEADERS = {"Cache-Control": "no-cache", "X-Accel-Buffering": "no"}

# An error within this time still gets its own status code; after it, the stream begins and errors are events.
FIRST_EVENT_WAIT_S = 2.0

# Proxies cut connections that say nothing for about a minute.
PING_S = 15.0

# Characters of events that may wait for a client that reads slowly; then their source waits too.
MOST_WAITING = 64 * 1024

# Turns of the event loop that LangChain's tasks within tasks take until one waits for the model.
STEPS_TO_WAIT = 10

# nginx's status for a client that did not wait; only logs ever see it.
CLIENT_CLOSED_REQUEST = 499

Events = AsyncGenerator[str, None]


def event(data: str, name: str | None = None) -> str:
    """One event. `data` must be free of line breaks, as JSON is."""
    return f"data: {data}\r\n\r\n" if name is None else f"event: {name}\r\ndata: {data}\r\n\r\n"


async def open_stream(events: Events, error_event: Callable[[Fault], str]) -> Response:
    """The response for `events`; an error in the first one is raised here, so that it gets its own status.

    `events` is closed in every case: read to the end, broken off by an error, or by the client.
    """
    first = asyncio.create_task(_next(events))
    try:
        await asyncio.wait({first}, timeout=FIRST_EVENT_WAIT_S)
    except asyncio.CancelledError:  # the client has gone already
        await _stop(first)
        await events.aclose()
        raise
    if first.done() and (error := first.exception()) is not None:
        await events.aclose()
        raise error
    return EventStream(events, first, error_event)


class AbandonableStream(Response):
    """A body that is sent as it comes, and whose source is closed at once when the client disconnects."""

    def __init__(self, headers: Mapping[str, str]) -> None:
        self.status_code = 200
        self.background = None
        self.init_headers(headers)

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        sending = asyncio.create_task(self._send_all(send))
        watching = asyncio.create_task(_disconnected(receive))
        try:
            await asyncio.wait({sending, watching}, return_when=asyncio.FIRST_COMPLETED)
        finally:
            # Also when this very task is cancelled: the source must never be left running.
            await _stop(watching)
            await _stop(sending)
            await self._close()
        if not sending.cancelled() and (error := sending.exception()) is not None:
            raise error

    @abstractmethod
    async def _send_all(self, send: Send) -> None:
        """Sends the head and the whole body, an error of the source too."""

    @abstractmethod
    async def _close(self) -> None:
        """Closes the source."""


class EventStream(AbandonableStream):
    """Sends events as they come, and comments while none come."""

    media_type = "text/event-stream"

    def __init__(self, events: Events, first: "asyncio.Task[str | None]", error_event: Callable[[Fault], str]) -> None:
        super().__init__(HEADERS)
        self._first = first
        self._ahead = _ReadAhead(events)
        self._error_event = error_event
        self._last_sent = time.monotonic()

    async def _close(self) -> None:
        await _stop(self._first)
        await self._ahead.close()

    async def _send_all(self, send: Send) -> None:
        await send({"type": "http.response.start", "status": 200, "headers": self.raw_headers})
        ping = asyncio.create_task(self._ping(send))
        try:
            text = await self._first
            while text is not None:
                await self._send(send, text)
                text = await self._ahead.take()
        except OSError:
            return  # the connection is gone
        except Exception as error:
            with contextlib.suppress(OSError):
                await self._send(send, self._error_event(describe(error)))
        finally:
            await _stop(ping)
        with contextlib.suppress(OSError):
            await send({"type": "http.response.body", "body": b"", "more_body": False})

    async def _send(self, send: Send, text: str) -> None:
        self._last_sent = time.monotonic()
        await send({"type": "http.response.body", "body": text.encode(), "more_body": True})

    async def _ping(self, send: Send) -> None:
        while True:
            silent = time.monotonic() - self._last_sent
            if silent >= PING_S:
                with contextlib.suppress(OSError):
                    await self._send(send, ": ping\r\n\r\n")
                silent = 0.0
            await asyncio.sleep(PING_S - silent)


class _ReadAhead:
    """Reads events while earlier ones are on their way to the client, so that those that wait leave in one write.

    Reading begins with the first `take`, and stops while MOST_WAITING characters wait.
    """

    def __init__(self, events: Events) -> None:
        self._events = events
        self._waiting: list[str] = []
        self._size = 0
        self._is_closing = False
        self._arrived = asyncio.Event()
        self._taken = asyncio.Event()
        self._reading: asyncio.Task[None] | None = None

    async def take(self) -> str | None:
        """All that waits, as one text, once there is something; None at the end.

        Raises what the source has raised, when everything before it has been taken.
        """
        if self._reading is None:
            self._reading = asyncio.create_task(self._read())
        await self._arrived.wait()
        self._arrived.clear()
        if not self._waiting:
            await self._reading
            return None
        text = "".join(self._waiting)
        self._waiting.clear()
        self._size = 0
        self._taken.set()
        if self._reading.done():
            self._arrived.set()  # the end is still to be told
        return text

    async def close(self) -> None:
        """Closes the source, whether or not it has been read to its end.

        It is cancelled where it waits, which unwinds all that it is made of: one that is closed between two events
        leaves LangChain's inner generators, and the request to the engine with them, to the garbage collector.
        """
        self._is_closing = True
        self._taken.set()
        if self._reading is None:
            self._reading = asyncio.create_task(self._read())
        for _ in range(STEPS_TO_WAIT):  # it goes on to where it waits
            await asyncio.sleep(0)
        await _stop(self._reading)
        await self._events.aclose()

    async def _read(self) -> None:
        try:
            async for text in self._events:
                self._waiting.append(text)
                self._size += len(text)
                self._arrived.set()
                while self._size >= MOST_WAITING and not self._is_closing:
                    self._taken.clear()
                    await self._taken.wait()
        finally:
            self._arrived.set()


async def unless_disconnected(receive: Receive, work: "asyncio.Future[Response]") -> Response:
    """The response that `work` makes; when the client goes away first, `work` is cancelled.

    The request's body must have been read.
    """
    watching = asyncio.create_task(_disconnected(receive))
    try:
        both: set[asyncio.Future[Any]] = {work, watching}
        await asyncio.wait(both, return_when=asyncio.FIRST_COMPLETED)
    finally:
        await _stop(watching)
        if not work.done():
            await _stop(work)
    return Response(status_code=CLIENT_CLOSED_REQUEST) if work.cancelled() else work.result()


async def _next(events: Events) -> str | None:
    return await anext(events, None)


async def _disconnected(receive: Receive) -> None:
    while (await receive())["type"] != "http.disconnect":
        pass


async def _stop(task: "asyncio.Future[Any]") -> None:
    """Cancels a task and waits until it has ended, however it ends."""
    if not task.done():
        task.cancel()
        await asyncio.wait({task})
    if not task.cancelled():
        task.exception()  # looked at, so that nobody complains that it was not


class AbandonableRoute(APIRoute):
    """A route whose work is cancelled when its client goes away before the response begins."""

    def get_route_handler(self) -> Callable[[Request], Coroutine[Any, Any, Response]]:
        handle = super().get_route_handler()

        async def handle_while_connected(request: Request) -> Response:
            await request.body()  # read here and kept by the request: from now on only a disconnect can arrive
            return await unless_disconnected(request.receive, asyncio.ensure_future(handle(request)))

        return handle_while_connected
