"""The engine as a process of its own: the same answers, errors and metrics as in this one, and what a kill -9 does.

The process is real (`ragstone engine` on a Unix socket, the default model); so is the app in front of it.
"""

import json
import os
import re
import signal
import subprocess
import sys
import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, closing, contextmanager
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import httpx
import numpy as np
import pytest
import uvicorn

from app import engine_server
from app.api_keys import KeyStore
from app.engines.backend import NOTHING_COUNTED, with_others
from app.engines.process import EngineProcess, as_environment
from app.engines.remote import RemoteEngineClient
from app.engines.request import EngineRequest
from app.engines.wire import read_error, read_line, write_delta, write_error
from app.errors import StartupError
from app.model_services import ModelServices
from app.preflight import bind_socket
from app.server import create_app
from app.settings import Settings
from engine.errors import (
    DeadlineExceededError,
    EngineDeadError,
    EngineError,
    InsufficientMemoryError,
    InvalidParameterError,
    PromptTooLongError,
    QueueFullError,
)
from engine.outputs import OutputDelta, TokenLogprob, ToolCallDelta
from tests.app.scripted import ScriptedBackend, ScriptedEngineClient
from tests.app.serving import RunningServer, ScriptedKnowledgeBase, events, question, wait_until
from tests.app.test_operations import free_port
from tests.engine.tiny_models import save_tiny_model

REPOSITORY = Path(__file__).resolve().parents[2]

ENGINE = {"max_num_seqs": 2, "max_num_batched_tokens": 256, "max_tokens": 12}


@pytest.fixture(scope="module")
def split(chat_model_path: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[RunningServer]:
    """An app whose engine is a child process."""
    settings = Settings(data_dir=tmp_path_factory.mktemp("split"), engine_mode="process", grounding="off", **ENGINE)
    app = create_app(settings)
    services = app.state.services

    def load_knowledge_base() -> None:
        services._knowledge_base = knowledge_base = ScriptedKnowledgeBase([])
        knowledge_base.embedder = SimpleNamespace(  # type: ignore[assignment]
            max_tokens=256,
            dimension=2,
            count_tokens=len,
            embed_passages=lambda texts: [np.array([0.0, 1.0])] * len(texts),
        )

    services._load_knowledge_base = load_knowledge_base
    with RunningServer(app) as server:
        yield server.wait_until_ready()


async def test_an_engine_alone_starts_without_what_only_the_whole_server_has(
    chat_model_path: Path, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level("INFO")
    services = ModelServices(Settings(data_dir=tmp_path, **ENGINE))
    await services.load()
    assert services.status()[0] == "ready"
    assert caplog.messages[-1].startswith("ready after")
    await services.close()


def test_a_socket_that_was_left_gives_way_and_one_that_is_taken_is_told(tmp_path: Path) -> None:
    path = tmp_path / "engine.sock"
    bind_socket(path).close()  # a socket's file outlives its process
    assert path.exists()
    with closing(bind_socket(path)) as listener:
        listener.listen()
        assert path.stat().st_mode & 0o777 == 0o600
        with pytest.raises(StartupError, match=r"another program listens at .*engine\.sock"):
            bind_socket(path)
    for taken in (tmp_path, tmp_path / "none" / "engine.sock", tmp_path / ("long" * 40)):
        with pytest.raises(StartupError, match=re.escape(f"no socket can be made at {taken}")):
            bind_socket(taken)


def test_an_engine_alone_waits_for_no_import_of_what_documents_need() -> None:
    needless = ("faiss", "bm25s", "numba", "langserve", "app.answering", "app.chains", "app.conversation")
    code = f"import sys, app.engine_server; print(*sorted(set(sys.modules) & set({needless!r})))"
    assert subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout == "\n"


def engine_of(server: RunningServer) -> EngineProcess:
    backend = server.services.pool.backend(server.services.model_name)
    assert isinstance(backend, EngineProcess)
    return backend


@contextmanager
def serving(app: Any) -> Iterator[str]:
    """The address of an ASGI application under uvicorn."""
    server = uvicorn.Server(uvicorn.Config(app, host="127.0.0.1", port=0, log_level="critical", lifespan="off"))
    thread = threading.Thread(target=server.run, daemon=True)
    thread.start()
    wait_until(lambda: server.started)
    yield f"http://127.0.0.1:{server.servers[0].sockets[0].getsockname()[1]}"
    server.should_exit = True
    thread.join(60)


def completion(**more: Any) -> dict[str, Any]:
    body = {"model": "smollm2-135m-instruct", "messages": [{"role": "user", "content": "What is a KV cache?"}]}
    return {**body, "temperature": 0, "max_tokens": 12, **more}


def test_answers_are_those_of_an_engine_in_process(server: RunningServer, split: RunningServer) -> None:
    for body in (
        completion(),
        completion(logprobs=True, top_logprobs=2),
        completion(temperature=0.9, seed=5, n=2),
        completion(response_format={"type": "json_object"}),
    ):
        here, there = (
            one.post("/v1/chat/completions", body).json() | {"id": "", "created": 0} for one in (server, split)
        )
        assert _shape(there) == _shape(here)
    stream = [
        [json.loads(data)["choices"] for _, data in events(text) if data != "[DONE]"]
        for text in (one.post("/v1/chat/completions", completion(stream=True)).text for one in (server, split))
    ]
    assert _text(stream[0]) == _text(stream[1]) != ""
    tokens = {"prompt": "Grüße, <|im_end|> 東京"}
    assert split.post("/tokenize", tokens).json() == server.post("/tokenize", tokens).json()


def _shape(reply: dict[str, Any]) -> dict[str, Any]:
    """What must be equal: not how much of the prompt happened to be cached, nor the last bits of probabilities."""
    choices = [
        {**choice, "logprobs": [entry["token"] for entry in (choice["logprobs"] or {}).get("content", [])]}
        for choice in reply["choices"]
    ]
    return {"choices": choices, "output": reply["usage"]["completion_tokens"]}


def _text(choices: list[list[dict[str, Any]]]) -> str:
    return "".join(choice["delta"].get("content", "") for entry in choices for choice in entry)


@pytest.mark.parametrize("wrong", [{"temperature": -1}, {"messages": [{"role": "user", "content": "long " * 9000}]}])
def test_refusals_are_those_of_an_engine_in_process(
    server: RunningServer, split: RunningServer, wrong: dict[str, Any]
) -> None:
    here, there = (one.post("/v1/chat/completions", completion(**wrong)) for one in (server, split))
    assert (there.status_code, there.json()) == (here.status_code, here.json())
    assert there.status_code == 400


def test_metrics_are_those_of_the_process(split: RunningServer) -> None:
    split.post("/v1/chat/completions", completion())

    def num_generated() -> float:
        page = split.client.get("/metrics").text
        counted = next(line for line in page.splitlines() if line.startswith("ragstone:generation_tokens_total"))
        return float(counted.rsplit(" ", 1)[1])

    wait_until(lambda: num_generated() >= 12)


@pytest.mark.parametrize("path", ["/v1/chat/completions", "/chat/stream"])
def test_client_that_goes_away_frees_its_blocks_in_the_process(split: RunningServer, path: str) -> None:
    body = completion(stream=True, max_tokens=1500, ignore_eos=True) if path.startswith("/v1") else question("Hi?", "g")
    with split.client.stream("POST", path, json=body) as response:
        next(response.iter_raw())
    backend = engine_of(split)
    wait_until(lambda: backend.client.stats().num_running == 0)
    stats = backend.client.stats()
    wait_until(lambda: backend.client.stats().num_free_blocks == stats.num_kv_blocks - stats.num_pinned_blocks)


def test_killed_process_is_told_of_and_started_again_and_nothing_is_lost(split: RunningServer) -> None:
    backend = engine_of(split)
    pid = backend.pid
    assert pid is not None
    services = split.services
    answer = ""
    names: list[str] = []
    with split.client.stream(
        "POST", "/chat/stream", json=question("Tell me a long story about the sea.", "killed", max_tokens=1500)
    ) as response:
        text = ""
        for piece in response.iter_text():
            text += piece
            if pid is not None and text.count('"answer"') > 3:
                os.kill(pid, signal.SIGKILL)
                pid = None
        # The one that asked was told while nobody answered yet; who watches the engine does not wait for the next one.
        assert backend.client.check_health() != "ready"
        with pytest.raises(EngineDeadError, match=r"^the engine's process does not answer"):
            backend.client.stats()
    for name, data in events(text):
        names.append(name)
        if name == "data":
            answer += json.loads(data).get("answer", "")
    assert names[-1] == "error"
    fault = json.loads(events(text)[-1][1])
    assert (fault["status_code"], fault["code"]) == (503, "engine_dead")
    assert fault["message"] == "the engine's process ended and is being started again; try again"
    (turn,) = split.client.get("/api/v1/conversations/killed").json()["turns"]
    assert turn["answer"] == answer != ""
    assert turn["interrupted"] is True

    # The next request waits for the engine that is being started, and is served by it.
    reply = split.post("/v1/chat/completions", completion())
    assert reply.status_code == 200, reply.text
    assert reply.json()["usage"]["completion_tokens"] > 0
    following = split.post("/chat/invoke", question("And then?", "killed", max_tokens=4))
    assert following.status_code == 200, following.text
    wait_until(lambda: services.status() == ("ready", ""))
    assert backend.pid != pid


def test_what_keeps_the_process_from_starting_is_told_by_who_started_it(tmp_path: Path) -> None:
    damaged = "could not start again, and tries it once more: {}/model.safetensors is not a readable safetensors file"
    model = tmp_path / "tiny"
    save_tiny_model("llama", model)
    weights = model / "model.safetensors"
    settings = Settings(data_dir=tmp_path / "data", model=str(model), max_num_seqs=2, max_model_len=128)
    backend = EngineProcess(settings)
    backend.start()
    try:
        assert backend.health() == ("ready", "")
        weights.write_bytes(weights.read_bytes()[:1000])
        assert backend.pid is not None
        os.kill(backend.pid, signal.SIGKILL)
        wait_until(lambda: damaged.format(model) in backend.health()[1], 120)
    finally:
        backend.drain(0.0)
    save_tiny_model("llama", model)
    with pytest.raises(InsufficientMemoryError) as caught:  # as from an engine in this process
        EngineProcess(settings.model_copy(update={"num_kv_blocks": 2**40})).start()
    assert caught.value.needed_bytes > 2**40


LONG = {"max_tokens": 1500, "ignore_eos": True}


def begin_streams(split: RunningServer, stack: ExitStack, number: int) -> None:
    """So many answers that do not end by themselves, read to their first words; they end with the stack."""
    for _ in range(number):
        body = completion(stream=True, **LONG)
        response = stack.enter_context(split.client.stream("POST", "/v1/chat/completions", json=body))
        pieces = response.iter_raw()
        next(pieces)
        stack.callback(pieces.close)  # what nobody refers to any more closes the connection


def test_requests_that_come_right_after_a_kill_and_those_that_waited_are_served_by_the_next_engine(
    split: RunningServer,
) -> None:
    backend = engine_of(split)
    wait_until(lambda: split.services.status() == ("ready", "") and backend.client.num_sequences == 0)
    split.post("/v1/chat/completions", completion())  # connections that the kill will break
    pid = backend.pid
    assert pid is not None
    prompt = {"model": "smollm2-135m-instruct", "prompt": "A cache is", "max_tokens": 2}
    asked = [
        ("/v1/chat/completions", completion()),
        ("/v1/chat/completions", completion(stream=True)),
        ("/v1/chat/completions", completion(model="ragstone-rag")),
        ("/v1/completions", prompt),
        ("/v1/embeddings", {"model": "all-minilm-l6-v2", "input": "cache"}),
        ("/tokenize", {"prompt": "cache"}),
        ("/detokenize", {"tokens": [28120]}),
        ("/llm/invoke", question("Hi?", None, max_tokens=2)),
        ("/chat/invoke", question("Hi?", "right-after", max_tokens=2)),
    ]
    with ExitStack() as stack:
        pool = stack.enter_context(ThreadPoolExecutor(len(asked) + 1))
        begin_streams(split, stack, ENGINE["max_num_seqs"])
        waiting = pool.submit(split.post, "/v1/completions", prompt)
        wait_until(lambda: backend.client.stats().num_waiting == 1)
        os.kill(pid, signal.SIGKILL)
        replies = [pool.submit(split.post, path, body) for path, body in asked]
        said = [(path, reply.result()) for (path, _), reply in zip(asked, replies, strict=True)]
        said.append(("waited", waiting.result()))
    assert [(path, reply.status_code) for path, reply in said if reply.status_code != 200] == []
    assert '"error"' not in said[1][1].text
    assert backend.pid != pid


def test_an_answer_that_has_come_ends_without_waiting_for_an_engine_that_has_gone(
    split: RunningServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    backend = engine_of(split)
    wait_until(lambda: split.services.status() == ("ready", ""))
    pid, chat = backend.pid, split.services.chat
    assert pid is not None
    store = chat._store_result

    def store_when_the_engine_has_gone(turn: Any) -> None:
        os.kill(pid, signal.SIGKILL)
        wait_until(lambda: backend.client.check_health() != "ready")
        store(turn)

    monkeypatch.setattr(chat, "_store_result", store_when_the_engine_has_gone)
    text = split.post("/chat/stream", question("Hi?", "ended", max_tokens=4)).text
    assert backend.client.check_health() != "ready"  # it came to its end before the next engine did
    monkeypatch.undo()
    assert events(text)[-1][0] == "end"
    (turn,) = split.client.get("/api/v1/conversations/ended").json()["turns"]
    assert (turn["answer"] != "", turn["interrupted"]) == (True, False)
    assert split.post("/chat/invoke", question("And?", "ended", max_tokens=4)).status_code == 200


async def test_an_answer_that_breaks_behind_its_last_word_is_whole() -> None:
    deltas = [OutputDelta("r", 0, "word", (7,), None, None, None, 3, 0, 1)]
    deltas.append(OutputDelta("r", 0, "", (), None, "stop", None, 3, 0, 1))

    async def broken_body(scope: Any, receive: Any, send: Any) -> None:
        await send({"type": "http.response.start", "status": 200, "headers": [(b"content-length", b"9999")]})
        for delta in deltas:
            await send({"type": "http.response.body", "body": write_delta(delta), "more_body": True})

    with serving(broken_body) as url:
        client = RemoteEngineClient(url, model_name="m")
        assert [delta async for delta in client.stream(EngineRequest(prompt="a", request_id="r"))] == deltas
        deltas.pop()
        with pytest.raises(EngineDeadError):
            [delta async for delta in client.stream(EngineRequest(prompt="a", request_id="r"))]
        client.close()


def test_load_is_told_as_it_is_and_not_as_it_was_when_the_engine_was_last_asked(
    split: RunningServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    backend = engine_of(split)
    wait_until(lambda: split.services.status() == ("ready", "") and backend.client.num_sequences == 0)
    for _ in range(2):  # the first look may have begun before the last answer's end came
        seen = backend._last_stats
        wait_until(lambda seen=seen: backend._last_stats is not seen)
    monkeypatch.setattr("app.engines.process.POLL_S", 3600.0)

    def load() -> tuple[int, int]:
        told = split.client.get("/api/v1/queue").json()
        return told["num_running"], told["num_waiting"]

    with ExitStack() as stack:
        begin_streams(split, stack, 1)
        assert load() == (1, 0)
        begin_streams(split, stack, 1)
        assert load() == (2, 0)
        pool = stack.enter_context(ThreadPoolExecutor(1))
        waiting = pool.submit(split.post, "/v1/chat/completions", completion(max_tokens=1))
        wait_until(lambda: backend.client.num_sequences == 3)
        assert load() == (2, 1)
        stack.pop_all().close()
        assert waiting.result().status_code == 200
    wait_until(lambda: load() == (0, 0))


@pytest.mark.parametrize(
    ("before", "num_more", "after"),
    [((0, 0), 3, (2, 1)), ((2, 1), 2, (2, 3)), ((2, 1), -1, (2, 0)), ((1, 4), 1, (1, 5)), ((2, 0), -3, (0, 0))],
)
def test_what_came_since_runs_while_there_is_room_and_then_waits(
    before: tuple[int, int], num_more: int, after: tuple[int, int]
) -> None:
    stats = replace(NOTHING_COUNTED, num_running=before[0], num_waiting=before[1], max_num_seqs=2)
    counted = with_others(stats, num_more)
    assert (counted.num_running, counted.num_waiting) == after


def test_sigterm_lets_an_answer_of_the_engines_process_finish_and_ends_with_0(
    chat_model_path: Path, tmp_path: Path
) -> None:
    port = free_port()
    environment = {**os.environ, "PYTHONPATH": str(REPOSITORY), "RAGSTONE_ENGINE_MODE": "process"}
    command = [sys.executable, "-m", "app", "serve", "--no-ui", "--no-sample-kb", "--port", str(port)]
    process = subprocess.Popen([*command, "--data", str(tmp_path)], env=environment)
    address = f"http://127.0.0.1:{port}"

    def readiness() -> int:
        assert process.poll() is None
        try:
            return httpx.get(f"{address}/v1/health/ready").status_code
        except httpx.TransportError:
            return 0

    try:
        wait_until(lambda: readiness() == 200, 200)
        body = completion(stream=True, max_tokens=100, ignore_eos=True)
        with httpx.stream("POST", f"{address}/v1/chat/completions", json=body, timeout=60) as response:
            text = ""
            for piece in response.iter_text():
                if not text:
                    process.send_signal(signal.SIGTERM)
                    wait_until(lambda: readiness() == 503)
                text += piece
        assert '"finish_reason":"length"' in text
        assert events(text)[-1][1] == "[DONE]"
        assert process.wait(60) == 0
    finally:
        process.kill()
        process.wait()


def test_degraded_server_says_why_and_takes_requests(split: RunningServer) -> None:
    backend = engine_of(split)
    before = backend._health
    backend._health = ("degraded", "the engine's process is being started again")
    try:
        response = split.client.get("/v1/health/ready")
        assert response.status_code == 200
        seen = response.json()
    finally:
        backend._health = before
    # The watch may have found it well again in between; then it says so.
    assert seen in (
        {"status": "degraded", "reason": "the engine's process is being started again"},
        {"status": "ready"},
    )


# ── the border ───────────────────────────────────────────────────────────────────────────────────────────────────────


@pytest.mark.parametrize(
    "error",
    [
        PromptTooLongError(9000, 8192, 256),
        InvalidParameterError("top_p", "must be above 0"),
        QueueFullError(3, 2, 1.5),
        DeadlineExceededError(2.0, 5, was_running=True),
        EngineDeadError("gone"),
    ],
)
def test_errors_keep_class_message_and_numbers_over_the_border(error: EngineError) -> None:
    with pytest.raises(type(error)) as raised:
        read_line(write_error(error))
    assert str(raised.value) == str(error)
    assert vars(raised.value) == vars(error)


def test_error_of_an_unknown_code_is_still_an_engine_error() -> None:
    assert type(read_error({"code": "new", "message": "m"})) is EngineError


def test_deltas_are_equal_after_the_border() -> None:
    top = TokenLogprob(7, "é", -0.5, "é".encode())
    full = OutputDelta(
        "r", 1, "é", (7,), (TokenLogprob(7, "é", -0.5, b"\xc3\xa9", (top,)),), "tool_calls", 7, 3, 2, 1,
        tool_calls=(ToolCallDelta(0, "call-1", "f", "{}"),),
    )  # fmt: skip
    for delta in (full, OutputDelta("r", 0, "", (), None, None, None, 0, 0, 0)):
        assert read_line(write_delta(delta).rstrip(b"\n")) == delta


def test_settings_reach_a_child_through_its_environment(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    settings = Settings(data_dir=tmp_path, max_model_len=512, sample_kb=False, temperature=0.5)
    for name, value in as_environment(settings).items():
        monkeypatch.setenv(name, value)
    assert Settings() == settings


def test_engine_alone_asks_for_keys_where_others_reach_it_and_serves_its_model_only(tmp_path: Path) -> None:
    settings = Settings(data_dir=tmp_path, model="scripted", api_keys="on")
    with closing(KeyStore(settings.keys_path)) as keys:
        key, _ = keys.create("app")
    app = engine_server.create_app(settings)
    services = app.state.services

    def load() -> None:
        services.pool.put("scripted", ScriptedBackend(ScriptedEngineClient()))

    services._load = load
    with RunningServer(app) as server:
        server.wait_until_ready()
        assert server.client.get("/engine/info").status_code == 401
        server.client.headers["Authorization"] = f"Bearer {key}"
        assert [entry["id"] for entry in server.client.get("/v1/models").json()["data"]] == ["scripted"]
        messages = [{"role": "user", "content": "hi"}]
        said = server.post("/v1/chat/completions", {"model": "scripted", "messages": messages})
        assert said.json()["choices"][0]["message"]["content"] == "Hello world"
        rag = server.post("/v1/chat/completions", {"model": "ragstone-rag", "messages": messages})
        assert rag.status_code == 404
        facts = httpx.get(f"{server.url}/engine/info", headers={"Authorization": f"Bearer {key}"}).json()
        assert facts == {"model_name": "scripted", "max_model_len": 1000, "num_parameters": 1000}
