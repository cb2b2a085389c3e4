"""Clients of a server's streams, for measuring: they read bytes and note when they came, without parsing the events."""

import asyncio
import contextlib
import itertools
import json
import math
import re
import time
from collections.abc import Sequence
from typing import Any

QUESTION = "Explain in detail how a cache of keys and values makes the decoding of a language model faster."
Request = tuple[str, dict[str, Any]]
"""Path and body."""
# Tokens of an answer, as the last events tell: /chat's statistics, /v1's usage.
_NUM_TOKENS = re.compile(rb'"(?:num_output_tokens|completion_tokens)":\s*(\d+)')
_TAIL_BYTES = 4096


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
    """When the pieces of one answer came, in seconds since the request; `status` is HTTP's, `num_tokens` as it says."""

    def __init__(self) -> None:
        self.status = 0
        self.pieces: list[float] = []
        self.num_events = 0
        self.num_tokens = 0
        self.total = 0.0

    def first_content(self, events_before: int) -> float:
        """When the first piece of text came, where so many events come before it and each by itself."""
        return self.pieces[min(events_before, len(self.pieces) - 1)]

    def gaps(self, events_before: int) -> list[float]:
        """Seconds between pieces of text."""
        pieces = self.pieces[events_before:]
        return [later - earlier for earlier, later in itertools.pairwise(pieces)]


async def read_stream(port: int, path: str, body: dict[str, Any]) -> Times:
    """Sends one request and reads its stream; an event is a line that begins with `data:`."""
    times, tail = Times(), b""
    content = json.dumps(body).encode()
    started = time.perf_counter()
    reader, writer = await asyncio.open_connection("127.0.0.1", port, limit=1 << 20)
    try:
        head = f"POST {path} HTTP/1.1\r\nHost: 127.0.0.1\r\nContent-Type: application/json\r\nConnection: close\r\n"
        writer.write(f"{head}Content-Length: {len(content)}\r\n\r\n".encode() + content)
        times.status = int((await reader.readline()).split()[1])
        while await reader.readline() not in (b"\r\n", b""):
            pass
        while piece := await reader.read(1 << 16):
            tail = (tail + piece)[-_TAIL_BYTES:]
            if events := piece.count(b"data:"):
                times.pieces.append(time.perf_counter() - started)
                times.num_events += events
        times.total = time.perf_counter() - started
    finally:
        writer.close()
        with contextlib.suppress(OSError):
            await writer.wait_closed()
    told = _NUM_TOKENS.findall(tail)
    times.num_tokens = int(told[-1]) if told else 0
    return times


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
