"""What clients are told when something goes wrong: the right status before the first byte, an event after it."""

import errno
import json
import logging
import re
import sqlite3
import threading

import httpx
import pytest

from app.routes.faults import Fault, describe, respond
from engine.errors import (
    DeadlineExceededError,
    EngineDeadError,
    EngineDrainingError,
    EngineError,
    EngineStalledError,
    EngineStoppedError,
    InvalidParameterError,
    PromptTooLongError,
    QueueFullError,
    StepFailedError,
)
from retrieval.errors import EmbedderError, RerankerError, StoreBusyError, StoreFullError
from tests.app.scripted import ScriptedEngineClient
from tests.app.serving import RunningServer, events, question, scripted_app, wait_until

STREAMS = ("stream", "stream_log", "stream_events")


@pytest.mark.parametrize(
    ("error", "status", "code", "field"),
    [
        (PromptTooLongError(10, 5, 1), 413, "context_length_exceeded", "prompt"),
        (InvalidParameterError("top_p", "no"), 422, "invalid_parameter", "top_p"),
        (EngineDeadError("gone"), 503, "engine_dead", None),
        (StepFailedError("no memory"), 500, "step_failed", None),
        (EngineError("odd"), 500, "engine_error", None),
        (EngineStalledError(4.2), 503, "engine_stalled", None),
        (EngineDrainingError(), 503, "engine_draining", None),
        (EngineStoppedError(), 503, "engine_stopped", None),
        (DeadlineExceededError(2.5, 0, was_running=False), 504, "deadline_exceeded", None),
        (StoreBusyError("busy"), 503, "store_busy", None),
        (StoreFullError("full"), 507, "store_full", None),
        (EmbedderError("no answer"), 503, "embedder_unavailable", None),
        (RerankerError("no answer"), 503, "reranker_unavailable", None),
        (TimeoutError("too slow"), 504, "timeout", None),
    ],
)
def test_every_foreseen_error_has_its_status_and_says_its_message(error, status, code, field):
    assert describe(error) == Fault(status, code, str(error), field)


def test_a_full_queue_says_its_limit_and_when_to_come_back():
    for path, kind in (("/chat/invoke", None), ("/v1/chat/completions", "rate_limit_error")):
        response = respond(QueueFullError(256, 256, 7.2), path)
        assert (response.status_code, response.headers["retry-after"]) == (429, "8")
        error = json.loads(response.body)["error"]
        assert (error["code"], error.get("type")) == ("queue_full", kind)
        assert "at most 256 may (max_queue_size)" in error["message"]


@pytest.mark.parametrize(
    ("error", "status", "code"),
    [
        (OSError(errno.ENOSPC, "No space left on device"), 507, "store_full"),
        (sqlite3.OperationalError("database or disk is full"), 507, "store_full"),
        (sqlite3.OperationalError("database is locked"), 503, "store_busy"),
        (OSError(errno.EIO, "broken"), 500, "internal_error"),
    ],
)
def test_a_full_disk_and_a_locked_store_are_told_as_such(error, status, code):
    assert (describe(error).status, describe(error).code) == (status, code)


def test_an_unforeseen_error_is_told_by_an_id_that_the_log_has(caplog):
    with caplog.at_level(logging.ERROR):
        fault = describe(ValueError("secret detail"))
    assert (fault.status, fault.code) == (500, "internal_error")
    assert "secret" not in fault.message
    assert fault.message.rsplit(" ", 1)[-1] in caplog.text
    assert "secret detail" in caplog.text


@pytest.fixture
def broken(tmp_path):
    """A server whose engine fails after one token."""
    engine = ScriptedEngineClient(["one", " two"], error=StepFailedError("out of memory"), error_after=1)
    with RunningServer(scripted_app(tmp_path, engine)) as server:
        server.wait_until_ready()
        server.engine = engine
        yield server


@pytest.mark.parametrize("run", STREAMS)
def test_an_error_in_mid_stream_is_a_last_event_with_the_reason(broken, run):
    response = broken.post(f"/chat/{run}", question("hi"))
    assert response.status_code == 200
    found = events(response.text)
    assert json.loads(found[-1][1]) == {"status_code": 500, "code": "step_failed", "message": "out of memory"}
    assert [name for name, _ in found].count("error") == 1
    assert found[-1][0] == "error"
    assert "Traceback" not in response.text
    turn = broken.client.get("/api/v1/conversations/s").json()["turns"][0]
    assert (turn["answer"], turn["interrupted"]) == ("one", True)


def test_an_error_before_the_first_byte_has_its_own_status(broken):
    broken.engine.error_after = 0
    for run in ("invoke", "batch"):
        body = {**question("hi"), "inputs": [{"input": "hi"}]}
        response = broken.post(f"/chat/{run}", body)
        assert (response.status_code, response.json()["error"]["message"]) == (500, "out of memory")
    response = broken.post("/llm/stream", question("hi"))
    assert (response.status_code, response.json()["error"]["code"]) == (500, "step_failed")


def test_remote_runnable_raises_with_the_reason_in_mid_stream(broken):
    stream = broken.remote().stream({"input": "hi"}, question("")["config"])
    chunks = [next(stream), next(stream)]
    with pytest.raises(httpx.HTTPStatusError, match="out of memory") as caught:
        next(stream)
    assert caught.value.response.status_code == 500
    assert chunks[-1] == {"answer": "one"}


def test_the_next_turn_after_a_fault_is_served(broken):
    broken.post("/chat/invoke", question("hi"))
    broken.engine.error = None
    assert broken.post("/chat/invoke", question("again")).json()["output"]["answer"] == "one two"


def test_an_unforeseen_error_shows_neither_text_nor_trace_but_an_id_that_the_log_has(broken, caplog):
    broken.engine.error = ValueError("secret detail")
    for run, status in (("invoke", 500), ("stream", 200)):
        response = broken.post(f"/chat/{run}", question("hi"))
        assert response.status_code == status
        assert "secret" not in response.text
        assert "Traceback" not in response.text
        assert "internal_error" in response.text
        (incident,) = re.findall(r"under (\w{12})", response.text)
        assert f"internal error {incident}" in caplog.text
    assert "secret detail" in caplog.text


def test_a_time_limit_ends_an_answer_with_the_reason(tmp_path):
    engine = ScriptedEngineClient(["a"] * 1000, delay_s=0.01)
    with RunningServer(scripted_app(tmp_path, engine, request_timeout_s=0.2)) as server:
        server.wait_until_ready()
        response = server.post("/chat/invoke", question("hi"))
        assert (response.status_code, response.json()["error"]["code"]) == (504, "timeout")
        assert "no complete answer within 0.2 s" in response.json()["error"]["message"]


# ── starting and failing to start ────────────────────────────────────────────────────────────────────────────────────


def test_health_answers_while_the_server_loads_and_requests_are_told_to_come_back(tmp_path):
    app, go_on = scripted_app(tmp_path), threading.Event()
    services = app.state.services
    load = services._load

    def slow_load():
        services._step("loading the chat model scripted")
        assert go_on.wait(60)
        load()

    services._load = slow_load
    with RunningServer(app) as server:
        try:
            wait_until(lambda: "loading" in services.status()[1])
            assert server.client.get("/v1/health/live").status_code == 200
            response = server.client.get("/v1/health/ready")
            assert response.status_code == 503
            assert response.json() == {"status": "starting", "reason": "loading the chat model scripted"}
            requests = [
                server.post("/chat/invoke", question("hi")),
                server.post("/chat/stream", question("hi")),
                server.post("/llm/batch", {"inputs": [{"input": "hi"}]}),
                server.post(
                    "/v1/chat/completions", {"model": "scripted", "messages": [{"role": "user", "content": "hi"}]}
                ),
                server.client.get("/api/v1/documents"),
                server.client.post("/api/v1/documents", files={"files": ("a.md", b"x")}),
            ]
            for response in requests:
                assert (response.status_code, response.headers["retry-after"]) == (503, "2")
                assert response.json()["error"]["code"] == "not_ready"
                assert "loading the chat model scripted" in response.json()["error"]["message"]
            assert server.client.get("/api/v1/conversations").json() == {"conversations": []}
            assert server.client.get("/v1/models").json()["data"][0]["id"] == "scripted"
        finally:
            go_on.set()
        server.wait_until_ready()
        assert server.post("/chat/invoke", question("hi")).status_code == 200


def test_a_server_that_could_not_load_says_why(tmp_path, caplog):
    from app.errors import ModelNotFoundError

    app = scripted_app(tmp_path)
    error = ModelNotFoundError("scripted", ["the cache"], "Pull it.")

    def fail():
        raise error

    app.state.services._load = fail
    with caplog.at_level(logging.ERROR), RunningServer(app) as server:
        wait_until(lambda: server.services.status()[0] == "unhealthy")
        response = server.client.get("/v1/health/ready")
        assert (response.status_code, response.json()) == (503, {"status": "unhealthy", "reason": error.message})
        assert server.post("/chat/invoke", question("hi")).status_code == 503
        assert server.services.load_error is error
    assert "Traceback" not in caplog.text


def test_an_engine_that_died_is_unhealthy(tmp_path):
    engine = ScriptedEngineClient()
    with RunningServer(scripted_app(tmp_path, engine)) as server:
        server.wait_until_ready()
        engine.check_health = lambda: "the engine thread has stopped"
        response = server.client.get("/v1/health/ready")
        assert response.json() == {"status": "unhealthy", "reason": "the engine thread has stopped"}
        assert server.post("/chat/invoke", question("hi")).status_code == 503
