"""Clients of a server's streams, for measuring: they read bytes and note when they came, without parsing the events."""

import asyncio
import contextlib
import itertools
import json
import math
import os
import re
import time
from collections.abc import Coroutine, Sequence
from typing import Any, TypeVar

QUESTION = "Explain in detail how a cache of keys and values makes the decoding of a language model faster."
Result = TypeVar("Result")
Request = tuple[str, dict[str, Any]]
"""Path and body."""
# Tokens of an answer, as the last events tell: /chat's statistics, /v1's usage.
_NUM_TOKENS = re.compile(rb'"(?:num_output_tokens|completion_tokens)":\s*(\d+)')
_TAIL_BYTES = 4096
CLIENT_NICENESS = 10
# Text of an answer, in an event of either route.
_TEXT = re.compile(rb'"(?:answer|content)":\s*"[^"]')


def chat_request(session: str, max_tokens: int) -> Request:
    """A question to the chain, without a search."""
    options = {"session_id": session, "retrieval": False, "max_tokens": max_tokens}
    return "/chat/stream", {"input": {"input": QUESTION}, "config": {"configurable": options}}


def v1_request(model: str, max_tokens: int) -> Request:
    """The same question to the model alone; the answer has just so many tokens."""
    body = {"model": model, "messages": [{"role": "user", "content": QUESTION}], "stream": True}
    options = {"temperature": 0, "max_tokens": max_tokens, "ignore_eos": True}
    return "/v1/chat/completions", {**body, **options, "stream_options": {"include_usage": True}}


class Times:
    """When the pieces of one answer's text came, in seconds since the request; `status` is HTTP's.

    `num_tokens` is what the reply says of itself.
    """

    def __init__(self, started: float, pieces: Sequence[tuple[float, bytes]]) -> None:
        whole = b"".join(data for _, data in pieces)
        told = _NUM_TOKENS.findall(whole[-_TAIL_BYTES:])
        self.status = int(whole.split(b" ", 2)[1]) if whole else 0
        self.texts = [moment - started for moment, data in pieces if _TEXT.search(data)]
        self.num_events = whole.count(b"data:")
        self.num_tokens = int(told[-1]) if told else 0
        self.total = pieces[-1][0] - started if pieces else 0.0

    @property
    def first_text(self) -> float:
        """When the first text came."""
        return self.texts[0]

    @property
    def gaps(self) -> list[float]:
        """Seconds between pieces of text."""
        return [later - earlier for earlier, later in itertools.pairwise(self.texts)]


class _Client(asyncio.Protocol):
    """Sends one request and keeps what comes, with the moments: clients share the processor with what is measured."""

    def __init__(self, request: bytes, ended: asyncio.Future[None]) -> None:
        self.pieces: list[tuple[float, bytes]] = []
        self._request = request
        self._ended = ended

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        assert isinstance(transport, asyncio.WriteTransport)
        transport.write(self._request)

    def data_received(self, data: bytes) -> None:
        self.pieces.append((time.perf_counter(), data))

    def connection_lost(self, error: Exception | None) -> None:
        if not self._ended.done():
            self._ended.set_result(None)


async def read_stream(port: int, path: str, body: dict[str, Any]) -> Times:
    """Sends one request and reads its stream to the end."""
    content = json.dumps(body).encode()
    head = f"POST {path} HTTP/1.1\r\nHost: 127.0.0.1\r\nContent-Type: application/json\r\nConnection: close\r\n"
    request = f"{head}Content-Length: {len(content)}\r\n\r\n".encode() + content
    loop = asyncio.get_running_loop()
    ended: asyncio.Future[None] = loop.create_future()
    started = time.perf_counter()
    _, client = await loop.create_connection(lambda: _Client(request, ended), "127.0.0.1", port)
    await ended
    return Times(started, client.pieces)


async def all_at_once(port: int, requests: Sequence[Request]) -> tuple[list[Times], float]:
    """Every answer, and the seconds that they took together."""
    started = time.perf_counter()
    found = await asyncio.gather(*(read_stream(port, path, body) for path, body in requests))
    return list(found), time.perf_counter() - started


async def one_after_another(port: int, requests: Sequence[Sequence[Request]]) -> tuple[list[Times], float]:
    """The same of clients that each ask their next question when they have the answer to the one before."""

    async def client(mine: Sequence[Request]) -> list[Times]:
        return [await read_stream(port, path, body) for path, body in mine]

    started = time.perf_counter()
    found = await asyncio.gather(*(client(mine) for mine in requests))
    return [times for each in found for times in each], time.perf_counter() - started


def percentiles(seconds: Sequence[float]) -> dict[str, float]:
    """p50, p95 and p99 in milliseconds, by nearest rank."""
    ordered = sorted(seconds) or [0.0]
    return {f"p{p}": 1000 * ordered[max(0, math.ceil(p / 100 * len(ordered)) - 1)] for p in (50, 95, 99)}


def run_clients(work: Coroutine[Any, Any, Result]) -> Result:
    """Run clients, with less of a claim to the processor than the server has: in use they are other machines'."""
    own = os.getpriority(os.PRIO_PROCESS, 0)
    os.setpriority(os.PRIO_PROCESS, 0, own + CLIENT_NICENESS)
    try:
        return asyncio.run(work)
    finally:
        with contextlib.suppress(PermissionError):  # to take it back is a privilege
            os.setpriority(os.PRIO_PROCESS, 0, own)
