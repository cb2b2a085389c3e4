"""Requests that do not arrive whole: a connection that stays silent, or stops in a header or a body, is ended.

Each would else keep a file descriptor for ever, and a few thousand of them all that the process may have. Idle
connections between requests are uvicorn's to end, and how long an answer takes is limited elsewhere.
"""

import asyncio

import h11
import orjson
from uvicorn.protocols.http.h11_impl import H11Protocol


def protocol_within(seconds: float) -> type[H11Protocol]:
    """uvicorn's protocol, with a limit on the time that a request takes to arrive.

    Its head has so long in all; of a body so long may nothing arrive: bytes that come now and then are enough there, as
    a large file may take its time. What has no answer yet gets a 408.
    """

    class ArrivalProtocol(H11Protocol):
        _waiting: asyncio.TimerHandle | None = None
        _of_head = False

        def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
            super().connection_made(transport)
            self._wait()

        def data_received(self, data: bytes) -> None:
            super().data_received(data)
            self._wait()

        def connection_lost(self, exc: Exception | None) -> None:
            self._stop_waiting()
            super().connection_lost(exc)

        def _wait(self) -> None:
            is_head = self.conn.their_state is h11.IDLE
            if is_head and self._of_head and self._waiting is not None:
                return  # a byte more buys no time
            self._stop_waiting()
            if is_head or self.conn.their_state is h11.SEND_BODY:
                self._waiting, self._of_head = self.loop.call_later(seconds, self._give_up), is_head

        def _stop_waiting(self) -> None:
            if self._waiting is not None:
                self._waiting.cancel()
                self._waiting = None

        def _give_up(self) -> None:
            if self.transport.is_closing() or self.timeout_keep_alive_task is not None:
                return
            if self.flow.read_paused:  # it is we who do not read
                self._wait()
                return
            if self.cycle is None or self.cycle.response_complete or not self.cycle.response_started:
                self.transport.write(_refusal(seconds))
            self.transport.close()

    return ArrivalProtocol


def _refusal(seconds: float) -> bytes:
    said = (
        f"the head of the request did not arrive within {seconds:g} s, or no more of its body for as long: send it "
        "faster, or raise arrival_timeout_s"
    )
    body = orjson.dumps({"error": {"message": said, "type": "invalid_request_error", "code": "request_timeout"}})
    head = "HTTP/1.1 408 Request Timeout\r\nContent-Type: application/json\r\nConnection: close\r\n"
    return f"{head}Content-Length: {len(body)}\r\n\r\n".encode() + body
