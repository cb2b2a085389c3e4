"""What the HTTP stack costs over the engine, its own ceiling, and waiting times by the number of clients.

    python -m benchmarks.serve [ceiling] [overhead] [clients] [ramp] [--json FILE] [--engine-mode process]

Without names, all parts are run. `ceiling` puts a fake model behind the routes, which is never slower than they are;
the others load the model of the settings. Clients are another process, and read bytes without parsing what is in them.
"""

import argparse
import asyncio
import contextlib
import json
import os
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import AsyncIterator, Iterator, Sequence
from pathlib import Path
from typing import Any

from benchmarks.machine import describe_machine

ROOT = Path(__file__).resolve().parents[1]
QUESTION = "Explain in detail how a cache of keys and values makes the decoding of a language model faster."
NUM_PIECES = 400  # chunks of a fake answer
STREAMS = 32
FIRST_TOKEN_BAR_S, V1_SHARE_BAR, CHAT_SHARE_BAR = 0.015, 0.9, 0.75
V1_CEILING_BAR, CHAT_CEILING_BAR = 15_000, 4_000
START_S = 600.0


# ── clients ──────────────────────────────────────────────────────────────────────────────────────────────────────────


def chat_body(session: str, max_tokens: int) -> tuple[str, dict[str, Any]]:
    """A question to the chain, without a search."""
    options = {"session_id": session, "retrieval": False, "max_tokens": max_tokens}
    return "/chat/stream", {"input": {"input": QUESTION}, "config": {"configurable": options}}


def v1_body(model: str, max_tokens: int) -> tuple[str, dict[str, Any]]:
    """The same question to the model alone."""
    messages = [{"role": "user", "content": QUESTION}]
    return "/v1/chat/completions", {
        "model": model, "messages": messages, "stream": True, "temperature": 0, "max_tokens": max_tokens,
        "ignore_eos": True,
    }  # fmt: skip


class Times:
    """When the pieces of one answer came, in seconds since the request; `status` is HTTP's."""

    def __init__(self) -> None:
        self.status = 0
        self.pieces: list[float] = []
        self.num_events = 0
        self.total = 0.0


async def read_stream(port: int, path: str, body: dict[str, Any]) -> Times:
    """Sends one request and reads its stream; an event is a line that begins with `data:`."""
    times = Times()
    content = json.dumps(body).encode()
    reader, writer = await asyncio.open_connection("127.0.0.1", port, limit=1 << 20)
    try:
        head = f"POST {path} HTTP/1.1\r\nHost: 127.0.0.1\r\nContent-Type: application/json\r\nConnection: close\r\n"
        started = time.perf_counter()
        writer.write(f"{head}Content-Length: {len(content)}\r\n\r\n".encode() + content)
        times.status = int((await reader.readline()).split()[1])
        while await reader.readline() not in (b"\r\n", b""):
            pass
        while piece := await reader.read(1 << 16):
            events = piece.count(b"data:")
            if events:
                times.pieces.append(time.perf_counter() - started)
                times.num_events += events
        times.total = time.perf_counter() - started
    finally:
        writer.close()
        with contextlib.suppress(OSError):
            await writer.wait_closed()
    return times


def first_content(times: Times, events_before: int) -> float:
    """When the first piece of text came, where so many events come before it and each by itself."""
    return times.pieces[min(events_before, len(times.pieces) - 1)]


async def all_at_once(port: int, requests: Sequence[tuple[str, dict[str, Any]]]) -> tuple[list[Times], float]:
    """Every answer, and the seconds that they took together."""
    started = time.perf_counter()
    found = await asyncio.gather(*(read_stream(port, path, body) for path, body in requests))
    return list(found), time.perf_counter() - started


# ── servers ──────────────────────────────────────────────────────────────────────────────────────────────────────────


class FakeEngine:
    """Answers everything at once with the same pieces, a few at a time, as an engine's steps bring them."""

    model_name, max_model_len, num_parameters = "fake", 100_000, 2_000_000_000

    async def stream(self, request: Any) -> AsyncIterator[Any]:
        from engine.outputs import OutputDelta

        for number in range(NUM_PIECES):
            yield OutputDelta("r", 0, "token ", (number,), None, None, None, 30, 0, number + 1)
            if number % 8 == 7:
                await asyncio.sleep(0)
        yield OutputDelta("r", 0, "", (), None, "length", None, 30, 0, NUM_PIECES)

    def count_tokens(self, text: str) -> int:
        return len(text) // 4 + 1

    def check_health(self) -> str:
        return "ready"

    def abort(self, request_id: str) -> None:
        pass


class FakeBackend:
    """Keeps the fake engine, which is always well."""

    def __init__(self, client: FakeEngine) -> None:
        self.client = client

    def health(self) -> tuple[str, str]:
        return ("ready", "")

    def stats(self) -> Any:
        from app.engines.backend import NOTHING_COUNTED

        return NOTHING_COUNTED

    def drain(self, timeout_s: float) -> None:
        pass


def serve_fake(port: int, folder: str) -> None:
    """The application with a fake model; runs until it is killed."""
    import uvicorn

    from app.server import create_app
    from app.settings import Settings

    app = create_app(Settings(data_dir=folder, model="fake", grounding="off", sample_kb=False))
    services = app.state.services

    def load() -> None:
        services.pool.put("fake", FakeBackend(FakeEngine()))
        services._knowledge_base = _NoDocuments()
        services._build_chains()

    services._load = load
    uvicorn.run(app, port=port, log_level="warning")


class _NoDocuments:
    def search(self, *arguments: Any, **options: Any) -> list[Any]:
        return []

    def close(self) -> None:
        pass


def serve_bare(port: int) -> None:
    """An SSE route that does nothing else: what the web server itself can do."""
    import uvicorn
    from starlette.applications import Starlette
    from starlette.responses import StreamingResponse
    from starlette.routing import Route

    async def stream(request: Any) -> Any:
        async def pieces() -> AsyncIterator[bytes]:
            for number in range(NUM_PIECES):
                yield b'data: {"choices":[{"delta":{"content":"token "}}]}\r\n\r\n'
                if number % 8 == 7:
                    await asyncio.sleep(0)

        return StreamingResponse(pieces(), media_type="text/event-stream")

    uvicorn.run(Starlette(routes=[Route("/stream", stream, methods=["POST"])]), port=port, log_level="warning")


def free_port() -> int:
    """A port that nobody listens on."""
    import socket

    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


@contextlib.contextmanager
def running(command: Sequence[str], port: int, **environment: str) -> Iterator[None]:
    """A server as a child, until it answers, to the end of the block."""
    import urllib.error
    import urllib.request

    child = subprocess.Popen(
        [sys.executable, *command], cwd=ROOT, env={**os.environ, "PYTHONPATH": str(ROOT), **environment}
    )
    try:
        deadline = time.monotonic() + START_S
        while time.monotonic() < deadline and child.poll() is None:
            try:
                with urllib.request.urlopen(f"http://127.0.0.1:{port}/v1/health/ready", timeout=5):
                    break
            except urllib.error.HTTPError as error:
                if error.code == 404:
                    break
            except OSError:
                pass
            time.sleep(0.2)
        if child.poll() is not None:
            raise SystemExit("the server did not start")
        yield
    finally:
        child.terminate()
        child.wait()


# ── parts ────────────────────────────────────────────────────────────────────────────────────────────────────────────


def ceiling() -> dict[str, Any]:
    """Chunks a second that the routes send of a model that is never slower."""
    figures: dict[str, Any] = {}
    port = free_port()
    with running(["-m", "benchmarks.serve", "--server", "bare", "--port", str(port)], port):
        figures["bare route (chunks/s)"] = _chunks_per_s(port, [("/stream", {})] * STREAMS)
    port = free_port()
    with (
        tempfile.TemporaryDirectory() as folder,
        running(["-m", "benchmarks.serve", "--server", "fake", "--port", str(port), "--folder", folder], port),
    ):
        figures["/v1 (chunks/s)"] = _chunks_per_s(port, [v1_body("fake", 1000)] * STREAMS)
        turns = [chat_body(f"s{number}", 1000) for number in range(STREAMS)]
        figures["/chat/stream (chunks/s)"] = _chunks_per_s(port, turns)
    return figures


def _chunks_per_s(port: int, requests: Sequence[tuple[str, dict[str, Any]]]) -> float:
    """The best of three, after one for warming up."""
    rates = []
    for _ in range(4):
        found, seconds = asyncio.run(all_at_once(port, requests))
        rates.append(sum(times.num_events for times in found) / seconds)
    return max(rates[1:])


def overhead(mode: str) -> dict[str, Any]:
    """First token at one client, and tokens a second of 32 streams: the engine alone, through /v1 and through /chat."""
    from app.engines.in_process import InProcessEngineClient, engine_config
    from app.engines.request import EngineRequest
    from app.models import resolve
    from app.settings import Settings
    from engine import AsyncEngine

    settings = Settings()
    model, num_tokens = settings.model, 48

    async def direct(client: InProcessEngineClient) -> tuple[float, float]:
        messages = [{"role": "user", "content": QUESTION}]
        params = {"temperature": 0.0, "max_tokens": num_tokens, "ignore_eos": True}

        async def one() -> float:
            started = time.perf_counter()
            first = 0.0
            async for delta in client.stream(EngineRequest(messages=messages, params=params)):
                if delta.token_ids and not first:
                    first = time.perf_counter() - started
            return first

        await one()
        first = statistics.median([await one() for _ in range(7)])
        started = time.perf_counter()
        await asyncio.gather(*(one() for _ in range(STREAMS)))
        return first, STREAMS * num_tokens / (time.perf_counter() - started)

    engine = AsyncEngine(engine_config(settings, resolve(model, settings)))
    engine.start()
    first, rate = asyncio.run(direct(InProcessEngineClient(engine, model_name=model)))
    engine.shutdown()
    figures: dict[str, Any] = {"engine: first token (ms)": 1000 * first, "engine: tokens/s of 32": rate}
    with server(mode) as port:
        for name, request, before in (
            ("/v1", lambda number: v1_body(model, num_tokens), 1),
            ("/chat/stream", lambda number: chat_body(f"{number}-{time.time_ns()}", num_tokens), 2),
        ):
            path_body = request(0)
            asyncio.run(read_stream(port, *path_body))
            found = [asyncio.run(read_stream(port, *request(number))) for number in range(7)]
            its_first = statistics.median(first_content(times, before) for times in found)
            _, seconds = asyncio.run(all_at_once(port, [request(number) for number in range(STREAMS)]))
            its_rate = STREAMS * num_tokens / seconds
            figures[f"{name}: first token over the engine's (ms)"] = 1000 * (its_first - first)
            figures[f"{name}: share of the engine's tokens/s"] = its_rate / rate
    return figures


@contextlib.contextmanager
def server(mode: str) -> Iterator[int]:
    """`ragstone serve` with the model of the settings, no documents and answers that are not checked; its port."""
    port = free_port()
    with tempfile.TemporaryDirectory() as folder:
        settings = {"DATA": folder, "SAMPLE_KB": "false", "GROUNDING": "off", "UI": "false", "ENGINE_MODE": mode}
        cache = os.environ.get("RAGSTONE_MODEL_CACHE", str(ROOT / "ragstone-data" / "models"))
        environment = {f"RAGSTONE_{name}": value for name, value in {**settings, "MODEL_CACHE": cache}.items()}
        with running(["-m", "app", "serve", "--port", str(port)], port, **environment):
            yield port


def percentiles(values: Sequence[float]) -> dict[str, float]:
    """p50, p95 and p99 in milliseconds."""
    ordered = sorted(values) or [0.0]
    return {f"p{p}": 1000 * ordered[min(len(ordered) - 1, round(p / 100 * len(ordered)))] for p in (50, 95, 99)}


def clients(port: int, model: str) -> dict[str, Any]:
    """First token, gap between tokens and whole answer at 1, 4, 16 and 64 clients."""
    table = {}
    for count in (1, 4, 16, 64):
        found, seconds = asyncio.run(all_at_once(port, [v1_body(model, 24)] * count))
        done = [times for times in found if times.status == 200]
        gaps = [b - a for times in done for a, b in zip(times.pieces[1:], times.pieces[2:], strict=False)]
        table[str(count)] = {
            "first token (ms)": percentiles([first_content(times, 1) for times in done]),
            "gap (ms)": percentiles(gaps),
            "total (ms)": percentiles([times.total for times in done]),
            "tokens/s": 24 * len(done) / seconds,
        }
    return table


def ramp(port: int, model: str, seconds: float = 12.0) -> list[dict[str, float]]:
    """Answers a second that are completed while requests come at half, once and twice what the server can do."""
    found, took = asyncio.run(all_at_once(port, [v1_body(model, 16)] * 24))
    capacity = len(found) / took

    async def offer(rate: float) -> tuple[int, int, float]:
        tasks = []
        started = time.perf_counter()
        while (now := time.perf_counter() - started) < seconds:
            if len(tasks) <= now * rate:
                tasks.append(asyncio.create_task(read_stream(port, *v1_body(model, 16))))
            await asyncio.sleep(0.005)
        answers = await asyncio.gather(*tasks)
        took = time.perf_counter() - started
        return len(answers), sum(times.status == 200 for times in answers), took

    rows = []
    for share in (0.5, 1.0, 2.0):
        offered, completed, took = asyncio.run(offer(share * capacity))
        rows.append(
            {
                "offered (1/s)": share * capacity,
                "offered": offered,
                "completed": completed,
                "refused": offered - completed,
                "goodput (1/s)": completed / took,
            }
        )
    return rows


# ── report ───────────────────────────────────────────────────────────────────────────────────────────────────────────

BARS = {
    "/v1 (chunks/s)": (V1_CEILING_BAR, 1),
    "/chat/stream (chunks/s)": (CHAT_CEILING_BAR, 1),
    "/v1: first token over the engine's (ms)": (1000 * FIRST_TOKEN_BAR_S, -1),
    "/chat/stream: first token over the engine's (ms)": (1000 * FIRST_TOKEN_BAR_S, -1),
    "/v1: share of the engine's tokens/s": (V1_SHARE_BAR, 1),
    "/chat/stream: share of the engine's tokens/s": (CHAT_SHARE_BAR, 1),
}


def show(figures: dict[str, Any]) -> None:
    """Prints one part's figures, with what each should reach."""
    for name, value in figures.items():
        bar = BARS.get(name)
        said = "" if bar is None else f"   {'at least' if bar[1] > 0 else 'at most'} {bar[0]:,g}"
        print(f"{name:<52}{value:>12,.2f}{said}")
    print(flush=True)


def main() -> None:
    """Run the parts that are named."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("parts", nargs="*", metavar="PART", help="ceiling, overhead, clients, ramp")
    parser.add_argument("--json", type=Path, help="write all figures there")
    parser.add_argument("--engine-mode", default="in-process", choices=("in-process", "process"))
    parser.add_argument("--server", help=argparse.SUPPRESS)
    parser.add_argument("--port", type=int, help=argparse.SUPPRESS)
    parser.add_argument("--folder", help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    if arguments.server == "bare":
        return serve_bare(arguments.port)
    if arguments.server == "fake":
        return serve_fake(arguments.port, arguments.folder)
    from app.settings import Settings

    model = Settings().model
    parts = arguments.parts or ["ceiling", "overhead", "clients", "ramp"]
    figures: dict[str, Any] = {"machine": describe_machine(), "engine_mode": arguments.engine_mode}
    if "ceiling" in parts:
        figures["ceiling"] = ceiling()
        show(figures["ceiling"])
    if "overhead" in parts:
        figures["overhead"] = overhead(arguments.engine_mode)
        show(figures["overhead"])
    if {"clients", "ramp"} & set(parts):
        with server(arguments.engine_mode) as port:
            asyncio.run(read_stream(port, *v1_body(model, 8)))
            if "clients" in parts:
                figures["clients"] = clients(port, model)
                for count, row in figures["clients"].items():
                    print(f"{count} clients: {row['tokens/s']:,.1f} tokens/s")
                    for name in ("first token (ms)", "gap (ms)", "total (ms)"):
                        shares = "   ".join(f"{share} {value:,.1f}" for share, value in row[name].items())
                        print(f"    {name:<18} {shares}", flush=True)
            if "ramp" in parts:
                figures["ramp"] = ramp(port, model)
                for row in figures["ramp"]:
                    print("   ".join(f"{name} {value:,.2f}" for name, value in row.items()), flush=True)
    if arguments.json is not None:
        arguments.json.write_text(json.dumps(figures, indent=2) + "\n", encoding="utf-8")
    return None


if __name__ == "__main__":
    main()
