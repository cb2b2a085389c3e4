"""What clients and operators do to a running server: SIGTERM in mid-stream, readers that do not read, idle crowds."""

import json
import os
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path

import httpx
import pytest

from tests.app.scripted import ScriptedEngineClient
from tests.app.serving import RunningServer, events, question, scripted_app, wait_until
from tests.app.test_operations import free_port

REPOSITORY = Path(__file__).resolve().parents[2]

# The whole of `ragstone serve` but for the model: 30 words, one each 0.1 s.
PROGRAM = """
import sys
from pathlib import Path
from types import SimpleNamespace
from tests.app.scripted import ScriptedEngineClient
from tests.app.serving import scripted_app
from app import serve
from app.settings import Settings

port, folder = sys.argv[1:]
model = Path(folder) / "tiny.gguf"
model.write_bytes(b"resolved by path and never read")
engine = ScriptedEngineClient([f"word{number} " for number in range(30)], delay_s=0.1)
app = scripted_app(Path(folder), engine)
sys.modules["app.server"] = SimpleNamespace(create_app=lambda settings: app)
settings = Settings(port=int(port), data_dir=folder, model=str(model), embedding_model=str(model), ui=False)
sys.exit(serve.serve(settings))
"""


@contextmanager
def serving(folder: Path) -> Iterator[tuple[subprocess.Popen[bytes], str]]:
    """The process and its address, once it is ready."""
    port = free_port()
    environment = {**os.environ, "PYTHONPATH": str(REPOSITORY)}
    child = subprocess.Popen([sys.executable, "-c", PROGRAM, str(port), str(folder)], env=environment)
    address = f"http://127.0.0.1:{port}"

    def is_ready() -> bool:
        assert child.poll() is None
        try:
            return httpx.get(f"{address}/v1/health/ready").status_code == 200
        except httpx.TransportError:
            return False

    try:
        wait_until(is_ready, 120)
        yield child, address
    finally:
        child.kill()
        child.wait()


@pytest.fixture(scope="module")
def process(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[subprocess.Popen[bytes], str]]:
    """A server on the data of one that was killed in the middle of an answer, after 21 words had been read."""
    folder, read = tmp_path_factory.mktemp("killed"), ""
    with serving(folder) as (child, address), suppress(httpx.TransportError), ExitStack() as stack:
        body = question("hi", "broken")
        response = stack.enter_context(httpx.stream("POST", f"{address}/chat/stream", json=body, timeout=60))
        for piece in response.iter_text():
            read += piece
            if "word20" in read:
                child.kill()
    assert "word20" in read
    with serving(folder) as started:
        yield started


def test_words_that_were_read_before_the_server_was_killed_are_kept_and_can_be_continued(
    process: tuple[subprocess.Popen[bytes], str],
) -> None:
    _, address = process
    (turn,) = httpx.get(f"{address}/api/v1/conversations/broken").json()["turns"]
    assert (turn["question"], turn["interrupted"], turn["finish_reason"]) == ("hi", True, None)
    assert turn["answer"].startswith("word0 word1 word2 word3 ")
    body = question("", "broken", continue_turn=True)
    more = httpx.post(f"{address}/chat/invoke", json=body, timeout=60).json()["output"]
    assert (more["index"], more["finish_reason"]) == (0, "stop")
    (continued,) = httpx.get(f"{address}/api/v1/conversations/broken").json()["turns"]
    assert continued["answer"].startswith(turn["answer"])
    assert continued["answer"].endswith("word29 ")
    assert continued["interrupted"] is False


def test_sigterm_lets_streams_finish_and_refuses_new_ones(process: tuple[subprocess.Popen[bytes], str]) -> None:
    child, address = process
    with httpx.stream("POST", f"{address}/chat/stream", json=question("hi"), timeout=60) as response:
        text = ""
        refused: list[httpx.Response] = []
        for piece in response.iter_text():
            text += piece
            if "word2" in text and not refused:
                child.send_signal(signal.SIGTERM)
                wait_until(lambda: httpx.get(f"{address}/v1/health/ready").status_code == 503)
                refused.append(httpx.get(f"{address}/v1/health/ready"))
                refused.append(httpx.post(f"{address}/llm/invoke", json=question("no more", None)))
    assert [name for name, _ in events(text)][-1] == "end"
    assert "word29" in text
    assert refused[0].json()["status"] == "draining"
    assert (refused[1].status_code, refused[1].json()["error"]["code"]) == (503, "not_ready")
    assert int(refused[1].headers["Retry-After"]) > 0
    assert child.wait(60) == 0


@pytest.fixture(scope="module")
def crowd(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RunningServer]:
    engine = ScriptedEngineClient(["x" * 20_000] * 400)
    with RunningServer(scripted_app(tmp_path_factory.mktemp("crowd"), engine)) as server:
        server.engine = engine  # type: ignore[attr-defined]
        yield server.wait_until_ready()


def test_thousand_idle_connections_do_not_keep_others_from_being_served(crowd: RunningServer) -> None:
    with ExitStack() as stack:
        for _ in range(1000):
            stack.enter_context(socket.create_connection(("127.0.0.1", crowd.port)))
        assert crowd.client.get("/api/v1/conversations").status_code == 200


def test_reader_that_does_not_read_stops_its_source_and_nobody_else(crowd: RunningServer) -> None:
    engine: ScriptedEngineClient = crowd.engine  # type: ignore[attr-defined]
    body = json.dumps(question("hi", "slow")).encode()
    head = f"POST /chat/stream HTTP/1.1\r\nHost: localhost\r\nContent-Length: {len(body)}\r\n"
    with socket.socket() as slow:
        slow.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
        slow.connect(("127.0.0.1", crowd.port))
        slow.sendall(head.encode() + b"Content-Type: application/json\r\n\r\n" + body)
        wait_until(lambda: engine.open == 1)
        produced = -1
        while produced != engine.produced:  # until the source stands still
            produced = engine.produced
            assert crowd.client.get("/api/v1/conversations").status_code == 200  # nobody else waits
            time.sleep(0.3)
        assert engine.open == 1
        assert produced < 400  # what is not read is not made: memory is bounded
    wait_until(lambda: engine.open == 0)  # gone: freed
