"""Servers to measure: a bare route, the application before a fake model, and `ragstone serve`, each as a child.

python -m benchmarks.http_servers bare|chain|fake PORT [FOLDER]
"""

import argparse
import asyncio
import contextlib
import os
import socket
import subprocess
import sys
import tempfile
import time
import urllib.error
import urllib.request
from collections.abc import AsyncIterator, Iterator, Sequence
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[1]
NUM_PIECES = 400  # chunks of a fake answer
START_S = 600.0


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


class _NoDocuments:
    def search(self, *arguments: Any, **options: Any) -> list[Any]:
        return []

    def close(self) -> None:
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


async def _pieces() -> AsyncIterator[str]:
    for number in range(NUM_PIECES):
        yield "token "
        if number % 8 == 7:
            await asyncio.sleep(0)


def serve_bare(port: int) -> None:
    """An SSE route that does nothing else: what the web server itself can do."""
    import uvicorn
    from starlette.applications import Starlette
    from starlette.responses import StreamingResponse
    from starlette.routing import Route

    async def stream(request: Any) -> Any:
        async def events() -> AsyncIterator[bytes]:
            async for _ in _pieces():
                yield b'data: {"choices":[{"delta":{"content":"token "}}]}\r\n\r\n'

        return StreamingResponse(events(), media_type="text/event-stream")

    uvicorn.run(Starlette(routes=[Route("/stream", stream, methods=["POST"])]), port=port, log_level="warning")


def serve_chain(port: int) -> None:
    """A chain that yields the pieces, behind LangServe as it comes: what its routes can do."""
    import uvicorn
    from fastapi import FastAPI
    from langchain_core.runnables import RunnableGenerator
    from langserve import add_routes

    async def answer(inputs: AsyncIterator[Any]) -> AsyncIterator[str]:
        async for _ in inputs:
            pass
        async for piece in _pieces():
            yield piece

    app = FastAPI()
    add_routes(app, RunnableGenerator(answer).with_types(input_type=dict, output_type=str), path="/chain")
    uvicorn.run(app, port=port, log_level="warning")


def free_port() -> int:
    """A port that nobody listens on."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


@contextlib.contextmanager
def running(command: Sequence[str], port: int, **environment: str) -> Iterator[None]:
    """A server as a child, until it answers, to the end of the block."""
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


@contextlib.contextmanager
def stand_in(kind: str) -> Iterator[int]:
    """One of the servers of this file; its port."""
    port = free_port()
    with (
        tempfile.TemporaryDirectory() as folder,
        running(["-m", "benchmarks.http_servers", kind, str(port), folder], port),
    ):
        yield port


@contextlib.contextmanager
def ragstone(mode: str, **settings: str) -> Iterator[int]:
    """`ragstone serve` with the model of the settings, no documents and answers that are not checked; its port."""
    port = free_port()
    with tempfile.TemporaryDirectory() as folder:
        fixed = {"DATA": folder, "SAMPLE_KB": "false", "GROUNDING": "off", "UI": "false", "ENGINE_MODE": mode}
        cache = os.environ.get("RAGSTONE_MODEL_CACHE", str(ROOT / "ragstone-data" / "models"))
        given = {**fixed, "MODEL_CACHE": cache, **settings}
        environment = {f"RAGSTONE_{name}": value for name, value in given.items()}
        with running(["-m", "app", "serve", "--port", str(port)], port, **environment):
            yield port


def main() -> None:
    """Serve until killed."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("kind", choices=("bare", "chain", "fake"))
    parser.add_argument("port", type=int)
    parser.add_argument("folder", nargs="?", default="")
    arguments = parser.parse_args()
    if arguments.kind == "fake":
        serve_fake(arguments.port, arguments.folder)
    elif arguments.kind == "chain":
        serve_chain(arguments.port)
    else:
        serve_bare(arguments.port)


if __name__ == "__main__":
    main()
