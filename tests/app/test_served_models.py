"""Several models in one server: two tiny ones here (one on demand), a second engine behind its URL, and one that fails.

Engines and HTTP are real; only what a server of somebody else's does when it fails is scripted.
"""

import json
import logging
import re
import threading
import weakref
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
from fastapi import FastAPI
from typer.testing import CliRunner

from app import engine_server
from app.cli import cli
from app.engines.backend import InProcessBackend
from app.server import create_app
from app.settings import Settings
from tests.app.openai_server import OpenAIServer
from tests.app.scripted import passage
from tests.app.serving import RunningServer, ScriptedKnowledgeBase, events, question, wait_until
from tests.engine.tiny_models import save_tiny_model

TEMPLATE = "{% for message in messages %}{{ message['content'] }}\\n{% endfor %}"
SMALL = {"system_prompt": "", "num_kv_blocks": 64, "max_num_seqs": 2, "max_tokens": 4, "sample_kb": False}


@dataclass
class Setting:
    server: RunningServer
    knowledge_base: ScriptedKnowledgeBase
    theirs: OpenAIServer
    folder: Path


@pytest.fixture(scope="module")
def tiny_model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("tiny")
    save_tiny_model("llama", folder)
    config = {"bos_token": "<s>", "eos_token": "</s>", "chat_template": TEMPLATE}
    (folder / "tokenizer_config.json").write_text(json.dumps(config), encoding="utf-8")
    return folder


@pytest.fixture(scope="module")
def second(tiny_model: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[RunningServer]:
    """`ragstone engine`, as the server of somebody else."""
    settings = Settings(
        data_dir=tmp_path_factory.mktemp("second"), model=str(tiny_model), served_model_name="theirs", **SMALL
    )
    with RunningServer(engine_server.create_app(settings)) as running:
        yield running.wait_until_ready()


def app_over(knowledge_base: ScriptedKnowledgeBase, settings: Settings) -> FastAPI:
    """The application with real models and a scripted search."""
    app = create_app(settings)
    services = app.state.services

    def load_knowledge_base() -> None:
        services._knowledge_base = knowledge_base

    services._load_knowledge_base = load_knowledge_base
    return app


@pytest.fixture(scope="module")
def setting(tiny_model: Path, second: RunningServer, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Setting]:
    folder = tmp_path_factory.mktemp("several")
    with OpenAIServer() as theirs:
        remote = {"url": theirs.url, "private": False}
        models: list[dict[str, Any]] = [
            {"name": "main", "model": str(tiny_model)},
            {"name": "spare", "model": str(tiny_model), "load": "on_demand", "idle_s": 0.5},
            {"name": "huge", "model": str(tiny_model), "load": "on_demand", "num_kv_blocks": 10**9},
            {"name": "gone", "model": str(folder / "gone.gguf"), "load": "on_demand", "fallback": ["main"]},
            {"name": "second", "url": f"{second.url}/v1", "model": "theirs"},
            {"name": "cloud", "model": "says", **remote},
            {"name": "busy", **remote, "fallback": ["fails", "cloud"]},
            {"name": "fails", **remote, "fallback": ["main"]},
            {"name": "breaks", **remote, "fallback": ["cloud"]},
            {"name": "answers-only", "model": "says", **remote, "uses": ["answer"]},
        ]
        routes = [{"model": "cloud", "min_complexity": 0.2}]
        settings = Settings(
            data_dir=folder, model="main", models=models, routes=routes, grounding="off", port=9, **SMALL
        )
        knowledge_base = ScriptedKnowledgeBase([passage("TTFT is a time.")])
        with RunningServer(app_over(knowledge_base, settings)) as server:
            yield Setting(server.wait_until_ready(), knowledge_base, theirs, folder)


def ask(setting: Setting, model: str, text: str = "Hi", **more: Any) -> Any:
    body = {"model": model, "messages": [{"role": "user", "content": text}], "max_tokens": 4, "temperature": 0, **more}
    return setting.server.post("/v1/chat/completions", body)


def said(reply: Any) -> str:
    assert reply.status_code == 200, reply.text
    return str(reply.json()["choices"][0]["message"]["content"])


def state_of(setting: Setting, name: str) -> str:
    return str(setting.server.client.get(f"/v1/models/{name}").json()["state"])


def routed(setting: Setting, model: str, reason: str) -> float:
    page = setting.server.client.get("/metrics").text
    name = f'ragstone:routed_requests_total{{model="{model}",reason="{reason}"}} '
    return next((float(line.removeprefix(name)) for line in page.splitlines() if line.startswith(name)), 0.0)


# ── by name ──────────────────────────────────────────────────────────────────────────────────────────────────────────


def test_list_tells_what_each_model_is_for_and_whether_it_is_loaded(setting: Setting) -> None:
    listed = {entry["id"]: entry for entry in setting.server.client.get("/v1/models").json()["data"]}
    assert list(listed)[:2] == ["main", "spare"]
    assert {"ragstone-auto", "ragstone-rag", "all-minilm-l6-v2"} < set(listed)
    main, cloud = listed["main"], listed["cloud"]
    assert (main["task"], main["uses"], main["state"]) == ("generate", ["generate", "answer"], "loaded")
    assert main["max_model_len"] == 256
    assert (cloud["state"], cloud["max_model_len"]) == ("remote", 4096)
    assert (listed["answers-only"]["task"], listed["huge"]["state"]) == ("answer", "not_loaded")
    assert listed["second"]["num_parameters"] == main["num_parameters"]


def test_unknown_model_is_told_with_the_names_there_are(setting: Setting) -> None:
    for path, body in (
        ("/v1/chat/completions", {"model": "absent", "messages": [{"role": "user", "content": "hi"}]}),
        ("/v1/completions", {"model": "absent", "prompt": "hi"}),
        ("/v1/completions", {"model": "answers-only", "prompt": "hi"}),
    ):
        reply = setting.server.post(path, body)
        error = reply.json()["error"]
        assert (reply.status_code, error["type"], error["code"], error["param"]) == (
            404, "not_found_error", "model_not_found", "model",
        )  # fmt: skip
        assert "'main' and 'spare'" in error["message"]
    reply = setting.server.post("/chat/invoke", question("hi", model="absent"))
    assert (reply.status_code, reply.json()["error"]["field"]) == (404, "config.configurable.model")
    assert "'answers-only'" in reply.json()["error"]["message"]


def test_models_answer_by_their_names_wherever_they_run(setting: Setting, second: RunningServer) -> None:
    here = said(ask(setting, "main"))
    assert said(ask(setting, "second")) == here
    assert said(ask(setting, "cloud")) == "Paris is the capital."
    text = {"prompt": "Hi", "max_tokens": 4, "temperature": 0}
    there = setting.server.post("/v1/completions", {"model": "second", **text}).json()
    assert (
        there["choices"][0]["text"]
        == setting.server.post("/v1/completions", {"model": "main", **text}).json()["choices"][0]["text"]
    )
    assert there["usage"]["completion_tokens"] == 4
    assert setting.server.post("/tokenize", {"model": "cloud", "prompt": "x"}).status_code == 400


def test_chat_takes_the_models_name_and_says_who_answered(setting: Setting) -> None:
    reply = setting.server.post("/chat/invoke", question("Hi?", "named", model="cloud")).json()["output"]
    assert reply["answer"] == "Paris is the capital."
    statistics = reply["statistics"]
    assert (statistics["model"], statistics["routed_by"], statistics["num_output_tokens"]) == ("cloud", "name", 5)
    (turn,) = setting.server.client.get("/api/v1/conversations/named").json()["turns"]
    assert turn["statistics"]["model"] == "cloud"
    assert setting.server.services.history.turns("local", "named")[0].settings["model"] == "cloud"
    reply = setting.server.post("/chat/invoke", question("Hi?", "unnamed")).json()["output"]
    assert (reply["statistics"]["model"], reply["statistics"]["routed_by"]) == ("main", "default")


def all_routed(setting: Setting) -> dict[tuple[str, str], str]:
    """How often each model was asked, by its name and why."""
    page = setting.server.client.get("/metrics").text
    found = re.findall(r'^ragstone:routed_requests_total\{model="(.*)",reason="(.*)"\} (.*)$', page, re.MULTILINE)
    return {(model, reason): count for model, reason, count in found}


def alone(setting: Setting, text: str = "Hi?", headers: dict[str, str] | None = None, **options: Any) -> Any:
    """What /llm answers, and which models were asked for it and why."""
    before = all_routed(setting)
    reply = setting.server.post("/llm/invoke", question(text, None, max_tokens=4, **options), headers=headers or {})
    return reply, {key for key, count in all_routed(setting).items() if before.get(key) != count}


def test_the_model_alone_is_asked_by_name_by_the_rules_and_for_one_that_fails(setting: Setting) -> None:
    assert alone(setting)[1] == {("main", "default")}
    assert alone(setting, COMPLEX)[1] == {("cloud", "rule")}
    assert alone(setting, COMPLEX, model="ragstone-auto")[1] == {("cloud", "rule")}
    assert alone(setting, COMPLEX, model="main")[1] == {("main", "name")}
    reply, asked = alone(setting, model="fails")
    assert (reply.status_code, asked) == (200, {("fails", "name"), ("main", "error")})
    num_sent = len(setting.theirs.requests)
    assert alone(setting, COMPLEX, private=True)[1] == {("main", "default")}
    assert alone(setting, COMPLEX, headers={"X-Ragstone-Private": "yes"})[1] == {("main", "default")}
    reply, asked = alone(setting, model="cloud", private=True)
    assert (reply.status_code, reply.json()["error"]["code"], asked) == (403, "private_request", set())
    assert len(setting.theirs.requests) == num_sent
    streamed = setting.server.post("/llm/stream", question(COMPLEX, None)).text
    assert events(streamed)[-1][0] == "end"
    assert len(setting.theirs.requests) == num_sent + 1


def test_the_model_alone_knows_no_model_that_answers_from_documents_only(setting: Setting) -> None:
    for name in ("absent", "answers-only", "ragstone-rag"):
        reply = setting.server.post("/llm/invoke", question("Hi?", None, model=name))
        assert (reply.status_code, reply.json()["error"]["field"]) == (404, "config.configurable.model")
        assert "'main' and 'spare'" in reply.json()["error"]["message"]


def test_a_full_queue_refuses_before_a_body_is_read(tiny_model: Path, tmp_path: Path) -> None:
    """What is refused must cost next to nothing, or the answers that are under way pay for it."""
    limits = {**SMALL, "max_num_seqs": 1, "max_queue_size": 1}
    settings = Settings(data_dir=tmp_path, model=str(tiny_model), served_model_name="main", grounding="off", **limits)
    app = app_over(ScriptedKnowledgeBase([]), settings)
    with RunningServer(app) as server, ThreadPoolExecutor(2) as pool:
        server.wait_until_ready()
        backend = server.services.pool.backend("main")
        assert isinstance(backend, InProcessBackend)
        step, go_on = backend._engine.engine.step, threading.Event()
        backend._engine.engine.step = lambda: (go_on.wait(30), step())[1]  # type: ignore[method-assign]
        body = {"model": "main", "messages": [{"role": "user", "content": "Hi"}], "max_tokens": 4}
        first = pool.submit(server.post, "/v1/chat/completions", body)
        wait_until(lambda: backend._engine._num_arriving == 1 or backend.stats().num_waiting == 1)
        second = pool.submit(server.post, "/v1/chat/completions", body)
        wait_until(lambda: backend.full() is not None)
        for path in ("/v1/chat/completions", "/v1/completions", "/chat/stream", "/chat/invoke", "/llm/batch"):
            reply = server.client.post(path, content=b"{ never read")
            assert (reply.status_code, reply.json()["error"]["code"]) == (429, "queue_full"), path
            assert "at most 1 may (max_queue_size)" in reply.json()["error"]["message"]
            assert int(reply.headers["Retry-After"]) > 0
        assert server.post("/tokenize", {"prompt": "Hi"}).status_code == 200
        go_on.set()
        assert [first.result().status_code, second.result().status_code] == [200, 200]
        assert server.client.post("/chat/stream", content=b"{ read").status_code == 422


def test_engine_url_may_be_of_any_server_of_openais_kind(tmp_path: Path) -> None:
    with OpenAIServer(key="k") as theirs:
        settings = Settings(data_dir=tmp_path, model="says", engine_url=theirs.url, engine_api_key="k", **SMALL)
        app = app_over(ScriptedKnowledgeBase([]), settings.model_copy(update={"grounding": "off"}))
        with RunningServer(app) as server:
            server.wait_until_ready()
            reply = server.post("/chat/invoke", question("Hi?", "s")).json()["output"]
            assert (reply["answer"], reply["statistics"]["model"]) == ("Paris is the capital.", "says")
            server.post("/chat/invoke", question("And?", "s", temperature=0.5))
            assert theirs.requests[-1]["temperature"] == 0.5


# ── on demand ────────────────────────────────────────────────────────────────────────────────────────────────────────


def test_model_on_demand_loads_once_for_two_and_is_put_away_and_comes_back(
    setting: Setting, caplog: pytest.LogCaptureFixture
) -> None:
    wait_until(lambda: state_of(setting, "spare") == "not_loaded")
    with caplog.at_level(logging.INFO, logger="app.engines.on_demand"):
        replies: list[Any] = []
        threads = [threading.Thread(target=lambda: replies.append(ask(setting, "spare"))) for _ in range(2)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        assert {said(reply) for reply in replies} == {said(ask(setting, "main"))}
        assert sum("loaded the model spare on demand" in line for line in caplog.messages) == 1
    backend: Any = setting.server.services.pool.backend("spare")
    with backend.using() as loaded:
        engine = weakref.ref(loaded.client.engine.engine)
    del loaded
    wait_until(lambda: state_of(setting, "spare") == "not_loaded")
    wait_until(lambda: engine() is None)
    assert said(ask(setting, "spare")) == said(replies[0])


def test_model_that_does_not_fit_is_refused_with_the_arithmetic_and_may_be_asked_for_again(setting: Setting) -> None:
    for _ in range(2):
        reply = ask(setting, "huge")
        assert (reply.status_code, reply.json()["error"]["code"]) == (503, "insufficient_memory")
        assert "bytes" in reply.json()["error"]["message"]
    assert state_of(setting, "huge") == "not_loaded"


def test_status_says_which_models_are_loaded(setting: Setting) -> None:
    result = CliRunner().invoke(cli, ["status", "--port", str(setting.server.port), "--data", str(setting.folder)])
    row = next(line for line in result.output.splitlines() if line.startswith("Models"))
    assert "main loaded" in row
    assert "cloud remote" in row


# ── stepping in ──────────────────────────────────────────────────────────────────────────────────────────────────────


def test_model_that_is_busy_or_fails_is_replaced_and_the_reply_says_so(setting: Setting) -> None:
    before = routed(setting, "fails", "overload"), routed(setting, "cloud", "error")
    reply = ask(setting, "busy")
    assert (said(reply), reply.json()["model"]) == ("Paris is the capital.", "cloud")
    assert reply.json()["routing"] == {"reason": "name", "fallback_because": "backend_busy"}
    after = routed(setting, "fails", "overload"), routed(setting, "cloud", "error")
    assert (after[0] - before[0], after[1] - before[1]) == (1, 1)
    stream = ask(setting, "busy", stream=True, stream_options={"include_usage": True})
    chunks = [json.loads(data) for _, data in events(stream.text) if data != "[DONE]"]
    assert {chunk["model"] for chunk in chunks} == {"cloud"}
    reply = setting.server.post("/chat/invoke", question("Hi?", "stepped-in", model="fails")).json()["output"]
    assert (reply["statistics"]["model"], reply["statistics"]["fallback_because"]) == ("main", "backend_failed")


def test_model_that_can_not_be_loaded_is_replaced_wherever_it_is_asked(setting: Setting) -> None:
    assert ask(setting, "gone").json()["routing"]["fallback_because"] == "model_not_found"
    for _ in range(2):
        reply = setting.server.post("/chat/invoke", question("Hi?", "gone", model="gone"))
        statistics = reply.json()["output"]["statistics"]
        assert (statistics["model"], statistics["fallback_because"]) == ("main", "model_not_found")
    stream = setting.server.post("/chat/stream", question("And now?", "gone", model="gone"))
    assert [name for name, _ in events(stream.text)][-1] == "end"


def test_failure_behind_the_first_word_is_told_and_nobody_steps_in(setting: Setting) -> None:
    stream = ask(setting, "breaks", stream=True)
    chunks = [json.loads(data) for _, data in events(stream.text)]
    assert "".join(chunk["choices"][0]["delta"].get("content", "") for chunk in chunks[:-1]) == "Paris is "
    assert chunks[-1]["error"]["code"] == "backend_unreachable"


def test_what_is_wrong_with_the_request_is_no_reason_to_ask_another(setting: Setting) -> None:
    reply = ask(setting, "busy", top_k=5)
    assert (reply.status_code, reply.json()["error"]["param"]) == (400, "top_k")


# ── rules, and what is private ───────────────────────────────────────────────────────────────────────────────────────

COMPLEX = "Compare a, b and c; say which is best, and why, and what each costs, in 3 sentences."


def test_rules_choose_where_nobody_is_named(setting: Setting) -> None:
    assert ask(setting, "ragstone-auto").json()["model"] == "main"
    reply = ask(setting, "ragstone-auto", COMPLEX).json()
    assert (reply["model"], reply["routing"]) == ("cloud", {"reason": "rule", "fallback_because": None})
    chat = setting.server.post("/chat/invoke", question(COMPLEX, "complex")).json()["output"]
    assert (chat["statistics"]["model"], chat["statistics"]["routed_by"]) == ("cloud", "rule")
    rag = ask(setting, "ragstone-rag", COMPLEX).json()
    assert rag["choices"][0]["message"]["statistics"]["model"] == "cloud"
    assert rag["routing"] == {"reason": "rule", "fallback_because": None}
    chunks = events(ask(setting, "ragstone-rag", COMPLEX, stream=True).text)
    assert [json.loads(data)["routing"]["reason"] for _, data in chunks[:-1]] == ["rule"] * (len(chunks) - 1)


def test_private_requests_never_reach_a_model_elsewhere(setting: Setting) -> None:
    num_sent = len(setting.theirs.requests)
    assert ask(setting, "ragstone-auto", COMPLEX, private=True).json()["model"] == "main"
    body = {"model": "cloud", "messages": [{"role": "user", "content": "secret"}]}
    for said in ("true", "1", "On", "yes", "maybe"):  # what does not say no says yes
        reply = setting.server.post("/v1/chat/completions", body, headers={"X-Ragstone-Private": said})
        assert (reply.status_code, reply.json()["error"]["code"]) == (403, "private_request")
    reply = ask(setting, "busy", private=True)
    assert reply.status_code == 403
    chat = setting.server.post("/chat/invoke", question(COMPLEX, "private", private=True)).json()["output"]
    assert chat["statistics"]["model"] == "main"
    # What was said in private is part of the conversation from then on.
    chat = setting.server.post("/chat/invoke", question(COMPLEX, "private")).json()["output"]
    assert chat["statistics"]["model"] == "main"
    assert len(setting.theirs.requests) == num_sent


def test_question_that_may_find_private_documents_is_private(setting: Setting) -> None:
    setting.knowledge_base.private = True
    try:
        num_sent = len(setting.theirs.requests)
        chat = setting.server.post("/chat/invoke", question(COMPLEX, "documents")).json()["output"]
        assert chat["statistics"]["model"] == "main"
        assert ask(setting, "ragstone-rag", COMPLEX).json()["choices"][0]["message"]["statistics"]["model"] == "main"
        assert len(setting.theirs.requests) == num_sent
        free = setting.server.post("/chat/invoke", question(COMPLEX, "alone", retrieval=False)).json()["output"]
        assert free["statistics"]["model"] == "cloud"
    finally:
        setting.knowledge_base.private = False
