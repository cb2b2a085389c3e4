"""What tenants may use, what a server under load does without, and what is accounted: each visible to who asks."""

import threading
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path
from typing import Any

import httpx
import pytest
from typer.testing import CliRunner

from app import cli
from app.api_keys import KeyStore
from app.engines.client import RequestTimes
from app.limits import LimitError, Limits, TenantLimits, TooManyQuestionsError
from app.usage import Counts, UsageStore
from engine.outputs import EngineStats
from tests.app.scripted import ScriptedEngineClient
from tests.app.serving import RunningServer, question, scripted_app, wait_until

CHAT = {"model": "scripted", "messages": [{"role": "user", "content": "hi"}]}


class Clock:
    def __init__(self) -> None:
        self.now = 1000.0

    def __call__(self) -> float:
        return self.now


def refused(limits: TenantLimits, tenant: str = "t") -> LimitError:
    with pytest.raises(LimitError) as raised:
        limits.begin(tenant)
    return raised.value


# ── counting ─────────────────────────────────────────────────────────────────────────────────────────────────────────


def test_minutes_worth_of_requests_may_come_at_once_and_then_as_time_brings() -> None:
    clock = Clock()
    limits = TenantLimits(lambda tenant: Limits(requests_per_minute=3), clock)
    for _ in range(3):
        limits.begin("t")
    error = refused(limits)
    assert (error.field, error.retry_after_s) == ("requests_per_minute", 20.0)
    limits.begin("another")  # its own bucket
    clock.now += 20
    limits.begin("t")
    refused(limits)


def test_tokens_are_paid_when_they_are_known_and_debt_is_waited_for() -> None:
    clock = Clock()
    limits = TenantLimits(lambda tenant: Limits(tokens_per_minute=60), clock)
    limits.begin("t")
    limits.spend("t", 100)
    error = refused(limits)
    assert (error.field, error.retry_after_s) == ("tokens_per_minute", 41.0)
    clock.now += 41
    limits.begin("t")


def test_places_come_back_when_requests_end() -> None:
    limits = TenantLimits(lambda tenant: Limits(concurrency=1))
    limits.begin("t")
    assert refused(limits).field == "concurrency"
    limits.end("t")
    limits.begin("t")
    assert limits.num_running == 1


def test_list_of_questions_counts_as_so_many_and_is_counted_whole_or_not_at_all() -> None:
    clock = Clock()
    limits = TenantLimits(lambda tenant: Limits(requests_per_minute=6), clock)
    assert limits.begin("t", 4) == 4
    with pytest.raises(LimitError) as raised:
        limits.begin("t", 3)
    assert raised.value.retry_after_s == 10.0
    limits.begin("t", 2)
    refused(limits)
    with pytest.raises(TooManyQuestionsError, match="asks 7 questions, and the tenant 't' may ask 6 a minute"):
        limits.begin("t", 7)


def test_list_of_questions_gets_the_places_that_are_free() -> None:
    limits = TenantLimits(lambda tenant: Limits(concurrency=3))
    assert limits.begin("t") == 1
    assert limits.begin("t", 5) == 2
    assert refused(limits).field == "concurrency"
    limits.end("t", 2)
    assert limits.begin("t", 2) == 2


def test_clock_that_jumps_back_gives_nothing_and_takes_nothing() -> None:
    clock = Clock()
    limits = TenantLimits(lambda tenant: Limits(requests_per_minute=2), clock)
    limits.begin("t")
    clock.now -= 500
    limits.begin("t")
    refused(limits)


def test_tenants_own_limits_go_before_those_for_all(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    with closing(KeyStore(tmp_path / "data" / "keys.sqlite3")) as keys:
        assert keys.limits("sales") == Limits()
        told = CliRunner().invoke(cli.cli, ["keys", "limit", "sales", "--concurrency", "4", "--data", "data"])
        assert told.output == "limits of the tenant sales: concurrency 4\n"
        assert keys.limits("sales").over(Limits(9, None, 2)) == Limits(9, None, 4)


# ── served ───────────────────────────────────────────────────────────────────────────────────────────────────────────


class Limited:
    def __init__(self, folder: Path) -> None:
        self.engine = ScriptedEngineClient(delay_s=0.05)
        app = scripted_app(
            folder, self.engine, api_keys="on", degradation="fewer-passages, shorter-answers", degrade_at=3,
            degraded_num_passages=0, degraded_max_tokens=7,
        )  # fmt: skip
        with closing(KeyStore(app.state.services.settings.keys_path)) as keys:
            self.keys = {name: keys.create(name, tenant=name)[0] for name in ("slow", "busy", "free")}
            self.keys["root"] = keys.create("root", scopes=["admin"])[0]
            keys.set_limits("slow", Limits(requests_per_minute=1))
            keys.set_limits("busy", Limits(concurrency=1))
        self.server = RunningServer(app)

    def post(self, name: str, path: str = "/v1/chat/completions", body: Any = CHAT) -> httpx.Response:
        headers = {"Authorization": f"Bearer {self.keys[name]}"}
        return self.server.client.post(path, json=body, headers=headers)


@pytest.fixture(scope="module")
def limited(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Limited]:
    limited = Limited(tmp_path_factory.mktemp("limited"))
    with limited.server as server:
        server.wait_until_ready()
        yield limited


def test_refusal_names_the_limit_and_when_to_try_again(limited: Limited) -> None:
    assert limited.post("slow").status_code == 200
    response = limited.post("slow")
    assert response.status_code == 429
    assert 1 <= int(response.headers["Retry-After"]) <= 60
    error = response.json()["error"]
    assert (error["code"], error["param"], error["type"]) == (
        "rate_limit_exceeded",
        "requests_per_minute",
        "rate_limit_error",
    )
    assert "the tenant 'slow' is at its limit of 1 requests a minute" in error["message"]
    native = limited.post("slow", "/chat/invoke", question("hi")).json()["error"]
    assert (native["code"], native["field"]) == ("rate_limit_exceeded", "requests_per_minute")
    assert limited.post("free").status_code == 200
    page = limited.server.client.get("/metrics", headers={"Authorization": f"Bearer {limited.keys['root']}"}).text
    assert 'ragstone:tenant_requests_refused_total{limit="requests_per_minute",tenant="slow"} 2.0' in page


def test_requests_of_a_tenant_at_its_concurrency_are_refused_until_one_ends(limited: Limited) -> None:
    codes: list[int] = []
    limited.engine.pieces = ["word "] * 40
    first = threading.Thread(target=lambda: codes.append(limited.post("busy").status_code))
    first.start()
    wait_until(lambda: limited.engine.open == 1)
    response = limited.post("busy")
    assert (response.status_code, response.json()["error"]["param"]) == (429, "concurrency")
    first.join()
    limited.engine.pieces = ["Hello", " world"]
    assert codes == [200]
    assert limited.post("busy").status_code == 200


LISTS = [
    ("/v1/completions", {"model": "scripted", "prompt": ["one", "two", "three", "four"]}),
    ("/llm/batch", {"inputs": [{"input": text} for text in ("one", "two", "three", "four")]}),
]


@pytest.mark.parametrize(("path", "body"), LISTS)
def test_questions_of_one_request_keep_to_the_tenants_places_and_limit(limited: Limited, path: str, body: Any) -> None:
    limited.engine.most_open, before = 0, len(limited.engine.requests)
    assert limited.post("busy", path, body).status_code == 200
    assert (limited.engine.most_open, len(limited.engine.requests) - before) == (1, 4)
    error = limited.post("slow", path, body)
    assert error.status_code == (400 if path.startswith("/v1") else 422)
    assert "the request asks 4 questions, and the tenant 'slow' may ask 1 a minute" in error.text
    assert limited.post("free", path, body).status_code == 200
    assert limited.engine.most_open == 4


def test_token_ids_are_one_prompt_and_searches_count_as_requests(limited: Limited) -> None:
    with closing(KeyStore(limited.server.services.settings.keys_path)) as keys:
        limited.keys["searcher"] = keys.create("searcher", tenant="searcher")[0]
        keys.set_limits("searcher", Limits(requests_per_minute=2))
    body = {"model": "scripted", "prompt": [1, 2, 3, 4], "max_tokens": 1}
    assert limited.post("searcher", "/v1/completions", body).status_code == 200
    assert limited.post("searcher", "/retrieve/invoke", {"input": {"input": "What is TTFT?"}}).status_code == 200
    assert limited.post("searcher", "/retrieve/invoke", {"input": {"input": "What is TTFT?"}}).status_code == 429


def test_policies_under_load_are_said_in_the_reply_and_counted(limited: Limited) -> None:
    services = limited.server.services
    stats = {"num_waiting": 0}
    services.metrics.watch("scripted", lambda: EngineStats(0, stats["num_waiting"], 1, 1, 0, 0, 0, 0, 0, 0, 0))
    assert "X-Ragstone-Degraded" not in limited.post("free").headers
    stats["num_waiting"] = 3
    response = limited.post("free", "/chat/invoke", question("What is TTFT?", "degraded"))
    assert response.headers["X-Ragstone-Degraded"] == "fewer-passages, shorter-answers"
    assert response.json()["output"]["sources"] == []
    page = limited.server.client.get("/metrics", headers={"Authorization": f"Bearer {limited.keys['root']}"}).text
    assert 'ragstone:degraded_requests_total{policy="fewer-passages"} 1.0' in page
    stats["num_waiting"] = 0


def test_usage_is_the_tenants_own_and_all_of_it_for_an_admin(limited: Limited) -> None:
    services = limited.server.services
    object.__setattr__(services.settings, "price_per_million_output_tokens", 2.0)
    for tenant, num_output in (("free", 10), ("free", 5), ("busy", 1)):
        times = RequestTimes(tenant=tenant, num_prompt_tokens=100, num_cached_tokens=64, num_output_tokens=num_output)
        services.observe("scripted", times)

    def usage(name: str) -> list[dict[str, Any]]:
        headers = {"Authorization": f"Bearer {limited.keys[name]}"}
        return list(limited.server.client.get("/api/v1/usage", headers=headers).json()["usage"])

    (free,) = usage("free")
    assert (free["tenant"], free["num_requests"], free["num_prompt_tokens"]) == ("free", 2, 200)
    assert (free["num_cached_tokens"], free["num_output_tokens"], free["cost"]) == (128, 15, 30 / 1_000_000)
    assert [entry["tenant"] for entry in usage("root")] == ["busy", "free"]


def test_a_models_own_price_goes_before_the_one_for_all(tmp_path: Path) -> None:
    models = [{"name": "scripted", "price_per_million_output_tokens": 8.0}]
    prices = {"price_per_million_prompt_tokens": 1.0, "price_per_million_output_tokens": 2.0}
    with RunningServer(scripted_app(tmp_path, models=models, **prices)) as server:
        server.wait_until_ready()
        for model in ("scripted", "other"):
            server.services.observe(model, RequestTimes(tenant="t", num_prompt_tokens=100, num_output_tokens=10))
        usage = server.client.get("/api/v1/usage").json()["usage"]
    costs = {entry["model"]: entry["cost"] for entry in usage}
    assert costs == {"scripted": 180 / 1_000_000, "other": 120 / 1_000_000}


# ── accounts ─────────────────────────────────────────────────────────────────────────────────────────────────────────


def test_accounts_add_up_by_day_and_survive_a_restart(tmp_path: Path) -> None:
    clock = Clock()
    for _ in range(2):
        with closing(UsageStore(tmp_path / "usage.sqlite3", clock)) as store:
            store.observe("m", RequestTimes(tenant="t", num_prompt_tokens=3, num_output_tokens=1))
    clock.now += 86_400
    with closing(UsageStore(tmp_path / "usage.sqlite3", clock)) as store:
        store.observe("m", RequestTimes(tenant="u", num_prompt_tokens=1))
        assert store.read() == [
            ("1970-01-01", "t", "m", Counts(2, 6, 0, 2)),
            ("1970-01-02", "u", "m", Counts(1, 1, 0, 0)),
        ]
        assert store.read(since="1970-01-02", tenant="t") == []
