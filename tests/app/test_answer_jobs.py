"""The policy `asynchronous`: requests that can wait are taken down under load, and answered when there is time."""

import asyncio
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path
from typing import Any

import httpx
import pytest
from starlette.responses import PlainTextResponse

from app import privacy
from app.answer_jobs import KEPT_S, MAX_WAIT_S, Answer, AnswerJob, AnswerJobs, TooManyJobsError
from app.api_keys import KeyStore
from app.chat_schema import PRIORITIES
from app.principal import LOCAL, Principal
from app.routes.admission import answer_now
from engine import request as engine_request
from engine.outputs import EngineStats
from tests.app.scripted import ScriptedEngineClient, until
from tests.app.serving import RunningServer, events, question, scripted_app, wait_until

CHAT = {"model": "scripted", "messages": [{"role": "user", "content": "hi"}]}


class Loaded:
    """A server with keys, whose load a test sets."""

    def __init__(self, folder: Path) -> None:
        self.engine = ScriptedEngineClient()
        app = scripted_app(
            folder, self.engine, api_keys="on", degradation="asynchronous, shorter-answers", degrade_at=3
        )
        with closing(KeyStore(app.state.services.settings.keys_path)) as keys:
            self.keys = {name: keys.create(name, scopes=["admin"])[0] for name in ("ada", "bob")}
        self.server = RunningServer(app)
        self.num_waiting = 0

    def call(self, method: str, path: str, name: str = "ada", **options: Any) -> httpx.Response:
        headers = {"Authorization": f"Bearer {self.keys[name]}", **options.pop("headers", {})}
        return self.server.client.request(method, path, headers=headers, **options)

    def ended(self, location: str) -> dict[str, Any]:
        wait_until(lambda: self.call("GET", location).json()["state"] in ("done", "failed"))
        return dict(self.call("GET", location).json())


@pytest.fixture(scope="module")
def loaded(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Loaded]:
    loaded = Loaded(tmp_path_factory.mktemp("loaded"))
    with loaded.server as server:
        server.wait_until_ready()
        server.services.metrics.watch("scripted", lambda: EngineStats(0, loaded.num_waiting, 1, 1, 0, 0, 0, 0, 0, 0, 0))
        yield loaded


def test_without_load_every_priority_is_answered_at_once(loaded: Loaded) -> None:
    loaded.num_waiting = 2
    response = loaded.call("POST", "/v1/chat/completions", json={**CHAT, "priority": "background"})
    assert (response.status_code, response.json()["choices"][0]["message"]["content"]) == (200, "Hello world")
    assert "X-Ragstone-Degraded" not in response.headers


def test_under_load_what_can_wait_is_a_job_with_its_answer_later(loaded: Loaded) -> None:
    loaded.num_waiting = 3
    asked = len(loaded.engine.requests)
    accepted = loaded.call("POST", "/v1/chat/completions", json={**CHAT, "priority": "batch"})
    job = accepted.json()
    assert (accepted.status_code, job["state"], job["kept_s"]) == (202, "queued", 86_400)
    assert accepted.headers["Location"] == job["location"] == f"/api/v1/answers/{job['job_id']}"
    assert accepted.headers["X-Ragstone-Degraded"] == "asynchronous"
    assert loaded.call("GET", job["location"]).json()["state"] == "queued"
    assert len(loaded.engine.requests) == asked
    urgent = loaded.call("POST", "/v1/chat/completions", json=CHAT)
    assert (urgent.status_code, urgent.headers["X-Ragstone-Degraded"]) == (200, "shorter-answers")
    page = loaded.call("GET", "/metrics").text
    assert 'ragstone:degraded_requests_total{policy="asynchronous"} 1.0' in page
    loaded.num_waiting = 0
    entry = loaded.ended(job["location"])
    assert (entry["state"], entry["status_code"], entry["priority"]) == ("done", 200, "batch")
    assert entry["result"]["choices"][0]["message"]["content"] == "Hello world"
    assert entry["kept_until"] > entry["ended_at"] > entry["created_at"]


def test_chat_by_header_is_kept_with_its_owner_and_nobody_else_finds_the_job(loaded: Loaded) -> None:
    loaded.num_waiting = 3
    headers = {"X-Priority": "background"}
    accepted = loaded.call("POST", "/chat/stream", json=question("What is TTFT?", "later"), headers=headers)
    location = accepted.json()["location"]
    for method in ("GET", "DELETE"):
        refused = loaded.call(method, location, "bob")
        assert (refused.status_code, refused.json()["error"]["field"]) == (404, "job_id")
    loaded.num_waiting = 0
    entry = loaded.ended(location)
    assert [name for name, _ in events(entry["result"])][-1] == "end"
    (turn,) = loaded.call("GET", "/api/v1/conversations/later").json()["turns"]
    assert turn["answer"] == "Hello world"
    assert loaded.call("GET", "/api/v1/conversations/later", "bob").status_code == 404
    assert loaded.call("DELETE", location).status_code == 204
    assert loaded.call("GET", location).status_code == 404


def test_how_urgent_a_question_is_reaches_the_engine_from_options_or_header(loaded: Loaded) -> None:
    body = question("What is TTFT?", "urgent")
    loaded.call("POST", "/chat/invoke", json=body, headers={"X-Priority": "interactive"})
    assert loaded.engine.requests[-1]["priority"] == "interactive"
    body["config"]["configurable"]["priority"] = "batch"  # the options win
    loaded.call("POST", "/chat/stream", json=body, headers={"X-Priority": "interactive"})
    assert loaded.engine.requests[-1]["priority"] == "batch"
    refused = loaded.call("POST", "/chat/invoke", json=body, headers={"X-Priority": "now"})
    assert (refused.status_code, refused.json()["error"]["field"]) == (422, "X-Priority")
    assert PRIORITIES == engine_request.PRIORITIES


def test_a_request_that_turns_out_wrong_is_a_failed_job_with_the_reason(loaded: Loaded) -> None:
    loaded.num_waiting = 3
    body = {**CHAT, "model": "another", "priority": "batch"}
    location = loaded.call("POST", "/v1/chat/completions", json=body).json()["location"]
    loaded.num_waiting = 0
    entry = loaded.ended(location)
    assert (entry["state"], entry["status_code"]) == ("failed", 404)
    assert entry["result"]["error"]["param"] == "model"


def test_what_has_not_begun_can_be_called_off(loaded: Loaded) -> None:
    loaded.num_waiting = 3
    asked = len(loaded.engine.requests)
    location = loaded.call("POST", "/v1/chat/completions", json={**CHAT, "priority": "batch"}).json()["location"]
    assert loaded.call("DELETE", location).status_code == 204
    loaded.num_waiting = 0
    assert loaded.call("POST", "/v1/chat/completions", json=CHAT).status_code == 200
    assert len(loaded.engine.requests) == asked + 1


def test_a_body_that_no_priority_can_be_read_from_is_told_what_is_wrong_with_it(loaded: Loaded) -> None:
    loaded.num_waiting = 3
    for content, status in ((b"{", 400), (b"[1]", 400), (b" " * (9 << 20), 413)):
        headers = {"Content-Type": "application/json"}
        response = loaded.call("POST", "/v1/chat/completions", content=content, headers=headers)
        assert response.status_code in (status, 400), response.text
    loaded.num_waiting = 0


# ── the jobs themselves ──────────────────────────────────────────────────────────────────────────────────────────────


class Clock:
    def __init__(self) -> None:
        self.now = 1_000_000.0

    def __call__(self) -> float:
        return self.now


class Server:
    """Answers jobs when it has time, and remembers them."""

    def __init__(self, path: Path, clock: Clock | None = None) -> None:
        self.has_time = True
        self.answered: list[str] = []
        self.hold = asyncio.Event()
        self.hold.set()
        self.jobs = AnswerJobs(path, may_work=lambda is_old: self.has_time or is_old, clock=clock or Clock())
        self.jobs.answer_with(self.answer)

    async def answer(self, job: AnswerJob) -> Answer:
        self.answered.append(job.body.decode())
        await self.hold.wait()
        return Answer(200, "text/plain", job.body)

    async def add(self, text: str, priority: str = "batch", principal: Principal = LOCAL) -> str:
        return await self.jobs.add(principal, "/x", priority, text.encode())


async def test_what_was_accepted_is_answered_after_a_restart_and_what_was_begun_is_asked_again(tmp_path: Path) -> None:
    path = tmp_path / "answers.sqlite3"
    first = Server(path)
    first.hold.clear()
    ids = [await first.add("a"), await first.add("b")]
    first.jobs.start()
    await until(lambda: first.answered == ["a"])
    await first.jobs.close()
    second = Server(path)
    second.jobs.start()
    await until(lambda: all((second.jobs.get("local", id_) or AnswerJob).state == "done" for id_ in ids))  # type: ignore[union-attr]
    assert second.answered == ["a", "b"]
    assert path.stat().st_mode & 0o777 == 0o600
    await second.jobs.close()


async def test_batch_goes_before_background_and_old_ones_are_answered_under_load_too(tmp_path: Path) -> None:
    clock = Clock()
    server = Server(tmp_path / "answers.sqlite3", clock)
    server.has_time = False
    await server.add("later", "background")
    clock.now += MAX_WAIT_S
    await server.add("sooner", "batch")
    server.jobs.start()
    await asyncio.sleep(0.1)
    assert server.answered == []
    clock.now += MAX_WAIT_S + 1
    await until(lambda: server.answered == ["sooner", "later"])
    await server.jobs.close()


async def test_answers_are_kept_for_a_day_whatever_the_clock_does(tmp_path: Path) -> None:
    clock = Clock()
    server = Server(tmp_path / "answers.sqlite3", clock)
    server.jobs.start()
    job_id = await server.add("a")
    await until(lambda: getattr(server.jobs.get("local", job_id), "state", "") == "done")
    clock.now -= KEPT_S  # the machine's time is set back
    assert server.jobs.get("local", job_id) is not None
    clock.now += 2 * KEPT_S
    assert server.jobs.get("local", job_id) is not None
    clock.now += 1
    assert server.jobs.get("local", job_id) is None
    await server.jobs.close()


async def test_more_than_may_wait_are_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("app.answer_jobs.MAX_WAITING", 1)
    server = Server(tmp_path / "answers.sqlite3")
    await server.add("a")
    with pytest.raises(TooManyJobsError):
        await server.add("b")
    await server.jobs.close()


@pytest.mark.parametrize("is_private", [False, True])
async def test_a_private_request_is_private_when_it_is_answered(tmp_path: Path, is_private: bool) -> None:
    seen: list[bool] = []

    async def routes(scope: Any, receive: Any, send: Any) -> None:
        seen.append(privacy.is_private())
        await PlainTextResponse("fine")(scope, receive, send)

    server = Server(tmp_path / "answers.sqlite3")
    server.jobs.answer_with(lambda job: answer_now(routes, job))
    job_id = await server.jobs.add(LOCAL, "/chat/invoke", "batch", b"{}", is_private=is_private)
    server.jobs.start()
    await until(lambda: getattr(server.jobs.get("local", job_id), "state", "") == "done")
    assert seen == [is_private]
    await server.jobs.close()
