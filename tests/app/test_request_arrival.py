"""What a real server does with connections that send nothing, or half a request."""

import asyncio
import contextlib
import json
import socket
import threading
import time
from collections.abc import Iterator

import pytest
import uvicorn

from app.request_arrival import protocol_within
from tests.app.serving import wait_until

LIMIT_S = 0.5
HEAD = b"POST / HTTP/1.1\r\nHost: here\r\nContent-Length: 10\r\n"


async def length_of_body(scope, receive, send):
    """Answers, when the body is whole and a while has passed, with its length."""
    body = b""
    while True:
        message = await receive()
        if message["type"] == "http.disconnect":
            return
        body += message.get("body", b"")
        if not message.get("more_body"):
            break
    await send({"type": "http.response.start", "status": 200, "headers": [(b"content-length", b"2")]})
    await asyncio.sleep(2 * LIMIT_S)  # an answer takes its time
    await send({"type": "http.response.body", "body": b"%2d" % len(body)})


@pytest.fixture(scope="module")
def port() -> Iterator[int]:
    protocol = protocol_within(LIMIT_S)
    config = uvicorn.Config(
        length_of_body, host="127.0.0.1", port=0, log_level="critical", lifespan="off", http=protocol
    )
    server = uvicorn.Server(config)
    thread = threading.Thread(target=server.run, daemon=True)
    thread.start()
    wait_until(lambda: server.started)
    yield server.servers[0].sockets[0].getsockname()[1]
    server.should_exit = True
    thread.join(60)


def all_of(connection: socket.socket) -> bytes:
    """What comes until the server closes the connection."""
    return b"".join(iter(lambda: connection.recv(4096), b""))


@pytest.mark.parametrize(
    "sent", [b"", b"POST / HT", HEAD[:-10], HEAD + b"\r\n", HEAD + b"\r\n12345"],
    ids=["silence", "half a line", "half a head", "no body", "half a body"],
)  # fmt: skip
def test_a_request_that_does_not_arrive_whole_is_told_so_and_its_connection_ends(port: int, sent: bytes) -> None:
    with socket.create_connection(("127.0.0.1", port), timeout=60) as connection:
        connection.sendall(sent)
        head, _, body = all_of(connection).partition(b"\r\n\r\n")
    assert head.startswith(b"HTTP/1.1 408 ")
    assert json.loads(body)["error"]["code"] == "request_timeout"


def test_a_head_that_comes_byte_by_byte_has_no_more_time_than_any(port: int) -> None:
    with socket.create_connection(("127.0.0.1", port), timeout=60) as connection:
        connection.sendall(b"POST / HTTP/1.1\r\n")
        began = time.monotonic()
        received = b""
        connection.settimeout(LIMIT_S / 5)
        while not received and time.monotonic() < began + 60:
            with contextlib.suppress(TimeoutError):
                received = connection.recv(4096)
            if not received:
                connection.sendall(b"X: y\r\n")
        assert received.startswith(b"HTTP/1.1 408 ")


def test_half_a_request_behind_a_whole_one_ends_too(port: int) -> None:
    with socket.create_connection(("127.0.0.1", port), timeout=60) as connection:
        connection.sendall(HEAD + b"\r\n1234567890")
        answer = connection.recv(4096)
        while not answer.endswith(b"10"):
            answer += connection.recv(4096)
        connection.sendall(HEAD)
        assert all_of(connection).startswith(b"HTTP/1.1 408 ")


def test_a_slow_body_that_goes_on_coming_is_waited_for_and_so_is_the_answer(port: int) -> None:
    with socket.create_connection(("127.0.0.1", port), timeout=60) as connection:
        connection.sendall(HEAD + b"Connection: close\r\n\r\n")
        for byte in b"1234567890":
            time.sleep(LIMIT_S / 4)
            connection.sendall(bytes([byte]))
        answer = all_of(connection)
    assert answer.startswith(b"HTTP/1.1 200 ")
    assert answer.endswith(b"10")
