"""Who may call what: keys, scopes, and that nobody finds what is another's. Every published route is walked."""

import json
import sqlite3
import stat
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path
from typing import Any

import httpx
import pytest
from typer.testing import CliRunner

from app import cli, preflight
from app.api_keys import InvalidKeyError, KeyStore
from app.errors import SettingsError, StartupError
from app.server import create_app
from app.settings import Settings
from retrieval import KnowledgeBase
from tests.app.scripted import ScriptedBackend, ScriptedEngineClient
from tests.app.serving import RunningServer, events, question
from tests.retrieval.word_embedder import WordEmbedder

PUBLIC = {"/v1/health/live", "/v1/health/ready"}
SECRET_WORD = "zirconium"


class Guarded:
    """A server with keys: ada and bob, and ada's conversation and document in it. Only the engine is scripted."""

    def __init__(self, folder: Path) -> None:
        settings = Settings(data_dir=folder, model="scripted", api_keys="on", grounding="off", sample_kb=False)
        self.keys = KeyStore(settings.keys_path)
        self.ada, _ = self.keys.create("ada")
        self.bob, _ = self.keys.create("bob")
        app = create_app(settings)
        services = app.state.services

        def load() -> None:
            services.pool.put(services.model_name, ScriptedBackend(ScriptedEngineClient()))
            services._knowledge_base = KnowledgeBase.open(settings.knowledge_dir, WordEmbedder())
            services._build_chains()

        services._load = load
        self.server = RunningServer(app)

    def call(self, method: str, path: str, key: str | None, **options: Any) -> httpx.Response:
        headers = {} if key is None else {"Authorization": f"Bearer {key}"}
        return self.server.client.request(method, path, headers=headers, **options)


@pytest.fixture(scope="module")
def guarded(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Guarded]:
    guarded = Guarded(tmp_path_factory.mktemp("guarded"))
    with guarded.server as server:
        server.wait_until_ready()
        files = [("files", ("minerals.md", f"# Minerals\n\n{SECRET_WORD} is a metal.\n".encode()))]
        (result,) = guarded.call("POST", "/api/v1/documents", guarded.ada, files=files).json()["results"]
        assert result["status"] == "added"
        guarded.document_id = result["document_id"]
        reply = guarded.call("POST", "/chat/invoke", guarded.ada, json=question(f"What is {SECRET_WORD}?", "secrets"))
        assert SECRET_WORD in reply.text
        yield guarded
    guarded.keys.close()


def published(guarded: Guarded) -> list[tuple[str, str]]:
    paths = guarded.server.client.get("/openapi.json").json()["paths"]
    filled = []
    for path, methods in paths.items():
        for name, value in (
            ("{session_id}", "secrets"),
            ("{document_id}", guarded.document_id),
            ("{index}", "0"),
            ("{n}", "1"),
            ("{number}", "1"),
            ("{name}", "default"),
            ("{config_hash}", "N4XyA"),
        ):
            path = path.replace(name, value)
        filled += [(method.upper(), path) for method in methods]
    return filled


def body_of(method: str, path: str) -> dict[str, Any]:
    """Something that a route may take for a request, so that more than its checks of the body is walked."""
    if method not in ("POST", "PUT", "PATCH"):
        return {}
    named = {"session_id": "secrets", "index": 0, "rating": "up", "title": "mine", "name": "mine"}
    model = {"model": "scripted", "messages": [{"role": "user", "content": "hi"}], "prompt": "hi", "input": "hi"}
    return {"json": {**model, **named, **question("hi", "secrets"), "inputs": [{"input": "hi"}]}}


@pytest.mark.parametrize("key", [None, "none", "rag-", "rag-000000000000-" + "A" * 43, "ada with another secret"])
def test_every_route_but_health_is_closed_without_a_valid_key(guarded: Guarded, key: str | None) -> None:
    if key == "ada with another secret":
        key = guarded.ada[:-4] + ("AAAA" if guarded.ada[-4:] != "AAAA" else "BBBB")
    routes = published(guarded)
    assert ("GET", "/metrics") in routes
    assert ("POST", "/chat/invoke") in routes
    for method, path in [*routes, ("GET", "/chat/playground/"), ("GET", "/v1/metrics"), ("POST", "/no/such")]:
        response = guarded.call(method, path, key, **body_of(method, path))
        if path in PUBLIC:
            assert response.status_code == 200, path
            continue
        assert response.status_code == 401, (method, path, response.text)
        code = "missing_api_key" if key is None else "invalid_api_key"
        assert response.json()["error"]["code"] == code
        assert response.headers["WWW-Authenticate"] == "Bearer"
        assert SECRET_WORD not in response.text


def test_browser_is_asked_for_the_key_as_a_password_and_sends_it_with_what_the_playground_fetches(
    guarded: Guarded,
) -> None:
    client, of_browser = guarded.server.client, {"Sec-Fetch-Mode": "navigate", "Sec-Fetch-Site": "same-origin"}
    page = client.get("/chat/playground/", headers=of_browser)
    assert page.status_code == 401
    assert page.headers["WWW-Authenticate"].startswith('Basic realm="Ragstone: any name, and the API key as')
    for name in ("", "ada", "x"):
        answered = client.get("/chat/playground/", headers=of_browser, auth=(name, guarded.ada))
        assert (answered.status_code, answered.headers["content-type"]) == (200, "text/html; charset=utf-8")
    scripts = [f"/{part.split(chr(34))[0].lstrip('/')}" for part in answered.text.split('src="')[1:]]
    assert scripts
    for script in scripts:
        assert client.get(script, headers=of_browser, auth=("x", guarded.ada)).status_code == 200
    asked = client.post("/llm/stream_log", json=question("hi"), headers=of_browser, auth=("x", guarded.ada))
    assert events(asked.text)[-1][0] == "end"
    for auth in (("ada", "wrong"), ("ada", ""), (guarded.ada, "x")):
        assert client.get("/chat/playground/", auth=auth).status_code == 401
    for header in ("Basic", "Basic =", "Basic /w==", f"Digest {guarded.ada}"):
        refused = client.get("/v1/models", headers={"Authorization": header})
        assert (refused.status_code, refused.headers["WWW-Authenticate"]) == (401, "Bearer")


def test_another_users_key_finds_nothing_of_ada_s_on_any_route(guarded: Guarded) -> None:
    for method, path in published(guarded):
        response = guarded.call(method, path, guarded.bob, **body_of(method, path))
        assert SECRET_WORD not in response.text, (method, path)
        assert response.status_code != 401, (method, path)
        if guarded.document_id in path:
            assert response.status_code in (404, 422), (method, path, response.text)
    # Whatever bob did to names of ada's, hers is as it was.
    detail = guarded.call("GET", "/api/v1/conversations/secrets", guarded.ada).json()
    assert [turn["question"] for turn in detail["turns"]] == [f"What is {SECRET_WORD}?"]
    documents = guarded.call("GET", "/api/v1/documents", guarded.ada).json()["documents"]
    assert guarded.document_id in [entry["document_id"] for entry in documents]


def test_user_in_the_body_changes_nothing(guarded: Guarded) -> None:
    body = question("Hello?", "mine", user="ada")
    response = guarded.call("POST", "/chat/stream", guarded.bob, json=body)
    assert SECRET_WORD not in response.text
    assert events(response.text)[-1][0] == "end"
    listed = guarded.call("GET", "/api/v1/conversations", guarded.ada).json()["conversations"]
    assert [entry["session_id"] for entry in listed] == ["secrets"]


def test_scopes_say_what_a_key_may_do(guarded: Guarded) -> None:
    reader, _ = guarded.keys.create("reader", scopes=["chat"])
    scraper, _ = guarded.keys.create("scraper", scopes=["metrics"])
    admin, _ = guarded.keys.create("root", scopes=["admin"])
    files = [("files", ("a.md", b"# A\n\ntext\n"))]
    refused = guarded.call("POST", "/api/v1/documents", reader, files=files)
    assert (refused.status_code, refused.json()["error"]["code"]) == (403, "missing_scope")
    assert "`documents`" in refused.json()["error"]["message"]
    assert guarded.call("GET", "/api/v1/documents", reader).status_code == 200
    assert guarded.call("GET", "/metrics", scraper).status_code == 200
    assert guarded.call("GET", "/v1/models", scraper).json()["error"]["type"] == "permission_error"
    assert guarded.call("GET", "/metrics", reader).status_code == 403
    assert guarded.call("GET", "/metrics", admin).status_code == 200


def test_revoked_key_is_refused_from_the_next_request_on(guarded: Guarded) -> None:
    key, record = guarded.keys.create("leaver")
    assert guarded.call("GET", "/v1/models", key).status_code == 200
    with closing(KeyStore(guarded.server.services.settings.keys_path)) as elsewhere:
        assert [found.key_id for found in elsewhere.revoke("leaver")] == [record.key_id]
        assert elsewhere.revoke("leaver") == []
    assert guarded.call("GET", "/v1/models", key).status_code == 401


def test_metrics_and_logs_hold_no_key(guarded: Guarded, caplog: pytest.LogCaptureFixture) -> None:
    guarded.call("GET", "/v1/models", "rag-000000000000-guess")
    page = guarded.call("GET", "/metrics", guarded.keys.create("m", scopes=["metrics"])[0]).text
    for secret in (guarded.ada.rsplit("-", 1)[1], "guess"):
        assert secret not in page
        assert secret not in caplog.text


# ── keys at rest ─────────────────────────────────────────────────────────────────────────────────────────────────────


def test_file_of_keys_holds_hashes_only_and_is_its_owners(tmp_path: Path) -> None:
    path = tmp_path / "keys.sqlite3"
    with closing(KeyStore(path)) as keys:
        key, _ = keys.create("ada")
        assert keys.recognise(key).user == "ada"
    secret = key.split("-", 2)[2]
    assert all(secret.encode() not in file.read_bytes() for file in tmp_path.iterdir())
    assert stat.S_IMODE(path.stat().st_mode) == 0o600
    (stored,) = sqlite3.connect(path).execute("SELECT length(hash) FROM api_keys").fetchone()
    assert stored == 32


def test_expired_keys_are_refused(tmp_path: Path) -> None:
    with closing(KeyStore(tmp_path / "keys.sqlite3")) as keys:
        key, _ = keys.create("ada", lifetime_s=0)
        with pytest.raises(InvalidKeyError):
            keys.recognise(key)
        assert not keys.has_active()


@pytest.mark.parametrize("wrong", [{"name": ""}, {"name": "a\nb"}, {"tenant": " "}, {"scopes": ["chat", "fly"]}])
def test_names_and_scopes_that_cannot_be_are_refused(tmp_path: Path, wrong: dict[str, Any]) -> None:
    with closing(KeyStore(tmp_path / "keys.sqlite3")) as keys, pytest.raises(SettingsError):
        keys.create(**{"name": "ada", **wrong})


def test_command_makes_lists_and_revokes(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    run = CliRunner().invoke
    data = ["--data", str(tmp_path / "data")]
    created = run(cli.cli, ["keys", "create", "ada", "--tenant", "sales", "--scope", "chat", "--days", "30", *data])
    key = created.stdout.strip()
    assert created.exit_code == 0
    listed = run(cli.cli, ["keys", "list", *data]).output
    assert "sales" in listed
    assert "active" in listed
    assert key not in listed
    assert run(cli.cli, ["keys", "revoke", "ada", *data]).exit_code == 0
    assert "revoked" in run(cli.cli, ["keys", "list", *data]).output
    assert run(cli.cli, ["keys", "revoke", "ada", *data]).exit_code == 1


# ── when keys are asked for ──────────────────────────────────────────────────────────────────────────────────────────


@pytest.mark.parametrize(
    ("settings", "required"),
    [
        ({}, False),
        ({"host": "::1"}, False),
        ({"host": "localhost"}, False),
        ({"host": "0.0.0.0"}, True),
        ({"host": "192.0.2.7"}, True),
        ({"host": "0.0.0.0", "publish": "127.0.0.1"}, False),
        ({"publish": "0.0.0.0"}, True),
        ({"api_keys": "on"}, True),
        ({"host": "0.0.0.0", "api_keys": "off"}, False),
    ],
)
def test_keys_are_asked_for_wherever_others_can_reach_the_server(settings: dict[str, Any], required: bool) -> None:
    assert preflight.keys_required(Settings(**settings)) is required


def test_server_that_others_can_reach_starts_only_with_a_key(tmp_path: Path) -> None:
    settings = Settings(host="0.0.0.0", data_dir=tmp_path)
    with pytest.raises(StartupError, match="ragstone keys create NAME") as refused:
        preflight.check_keys(settings)
    assert "RAGSTONE_HOST" in refused.value.message
    with closing(KeyStore(settings.keys_path)) as keys:
        keys.create("ada")
    assert preflight.check_keys(settings) is None
    warning = preflight.check_keys(Settings(host="0.0.0.0", data_dir=tmp_path, api_keys="off"))
    assert warning is not None
    assert "whoever can reach 0.0.0.0" in warning


# ── names ────────────────────────────────────────────────────────────────────────────────────────────────────────────


@pytest.mark.parametrize(
    ("host", "status"),
    [
        ("evil.example", 403),
        ("evil.example:8080", 403),
        ("localhost.evil.example", 403),
        ("127.0.0.1.evil.example", 403),
        ("localhost:1", 200),
        ("LOCALHOST.", 200),
        ("192.0.2.9:8080", 200),
        ("[::1]:8080", 200),
        ("box.lan", 200),
    ],
)
def test_server_without_keys_answers_only_to_names_that_are_its_own(
    named_server: RunningServer, host: str, status: int
) -> None:
    response = named_server.client.get("/v1/health/live", headers={"Host": host})
    assert response.status_code == status
    if status == 403:
        assert json.loads(response.text)["error"]["code"] == "unknown_host"


@pytest.fixture(scope="module")
def named_server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RunningServer]:
    from tests.app.serving import scripted_app

    app = scripted_app(tmp_path_factory.mktemp("named"), allowed_hosts="box.lan, other.lan")
    with RunningServer(app) as server:
        yield server
