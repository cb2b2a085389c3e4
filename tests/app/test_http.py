"""What holds for every response: request ids, security headers, no calls from other pages, a page of routes offline."""

import logging
import re

import pytest

from app import serve
from app.request_id import add_request_id
from tests.app.scripted import ScriptedEngineClient
from tests.app.serving import RunningServer, question, scripted_app

PAGES = ("/", "/v1/models", "/v1/nothing", "/docs", "/metrics", "/chat/input_schema")


@pytest.fixture
def scripted(tmp_path):
    def start(**settings):
        return RunningServer(scripted_app(tmp_path, **settings))

    return start


# ── request ids ──────────────────────────────────────────────────────────────────────────────────────────────────────


@pytest.mark.parametrize("path", PAGES)
def test_every_response_has_an_id_of_its_own(server, path):
    first, second = (server.client.get(path).headers["x-request-id"] for _ in range(2))
    assert re.fullmatch(r"[0-9a-f]{32}", first)
    assert first != second


def test_streams_and_errors_have_one_too_and_a_clients_own_is_kept(server):
    mine = {"X-Request-Id": "job-7/3"}
    for path, body in (("/llm/stream", question("hi")), ("/chat/invoke", {}), ("/v1/completions", {})):
        assert server.post(path, body, headers=mine).headers["x-request-id"] == "job-7/3"
    assert server.client.post("/chat/invoke", content=b" " * (9 << 20), headers=mine).headers["x-request-id"]


@pytest.mark.parametrize("given", ["", "a b", "x" * 129, "ü".encode().decode("latin-1"), "<b>"])
def test_an_id_that_could_spoil_a_log_is_replaced(server, given):
    headers = {"X-Request-Id": given.encode("latin-1")}
    assert re.fullmatch(r"[0-9a-f]{32}", server.client.get("/version", headers=headers).headers["x-request-id"])


def test_log_lines_of_a_request_carry_its_id(scripted, caplog):
    caplog.handler.addFilter(add_request_id)
    try:
        with scripted(client=ScriptedEngineClient(error=RuntimeError("broken"))) as server:
            server.wait_until_ready()
            reply = server.post("/llm/invoke", question("hi"), headers={"X-Request-Id": "mine-1"})
            logging.getLogger("app.test").warning("outside")
    finally:
        caplog.handler.removeFilter(add_request_id)
    assert reply.status_code == 500
    assert "broken" not in reply.text
    marks = {record.message.split()[0]: record.request for record in caplog.records if record.name.startswith("app.")}
    assert marks["internal"] == " [mine-1]"
    assert marks["outside"] == ""


def test_the_servers_log_shows_ids(server, capfd):
    before = logging.getLogger().handlers[:], logging.getLogger().level
    try:
        serve.configure_logging(server.services.settings)
        logging.getLogger("app.test").warning("a line")
        assert re.search(r"WARNING app\.test: a line\n", capfd.readouterr().err)
    finally:
        logging.getLogger().handlers[:], logging.getLogger().level = before


# ── browsers ─────────────────────────────────────────────────────────────────────────────────────────────────────────


@pytest.mark.parametrize("path", PAGES)
def test_every_response_has_the_security_headers_and_opens_itself_to_no_page(server, path):
    headers = server.client.get(path, headers={"Origin": "https://evil.example"}).headers
    assert headers["x-content-type-options"] == "nosniff"
    assert headers["x-frame-options"] == "DENY"
    assert headers["content-security-policy"] == "frame-ancestors 'none'"
    assert headers["referrer-policy"] == "no-referrer"
    assert not [name for name in headers if name.startswith("access-control-")]


@pytest.mark.parametrize(
    ("headers", "status"),
    [
        ({"Origin": "https://evil.example"}, 403),
        ({"Origin": "null"}, 403),
        ({"Origin": "https://evil.example", "Sec-Fetch-Site": "cross-site"}, 403),
        ({"Origin": "http://localhost:3000", "Sec-Fetch-Site": "same-site"}, 403),
        ({"Origin": "https://behind.proxy", "Sec-Fetch-Site": "same-origin"}, 200),
        ({"Sec-Fetch-Site": "none"}, 200),
        ({"Origin": "HERE"}, 200),
        ({}, 200),
    ],
)
def test_what_another_pages_browser_sends_is_refused(server, headers, status):
    given = {name: value.replace("HERE", server.url) for name, value in headers.items()}
    response = server.post("/tokenize", {"prompt": "a"}, headers=given)
    assert response.status_code == status
    if status == 403:
        assert response.json()["error"]["code"] == "cross_origin"
        assert "cors_origins" in response.json()["error"]["message"]
    preflight = {"Origin": "https://evil.example", "Access-Control-Request-Method": "POST"}
    assert server.client.options("/tokenize", headers=preflight).status_code == 405


def test_a_page_that_the_settings_name_may_call(scripted):
    with scripted(cors_origins="https://a.example/, https://b.example") as server:
        server.wait_until_ready()
        for origin in ("https://a.example", "https://b.example"):
            headers = {"Origin": origin, "Sec-Fetch-Site": "cross-site"}
            reply = server.post("/llm/invoke", question("hi"), headers=headers)
            assert (reply.status_code, reply.headers["access-control-allow-origin"]) == (200, origin)
            preflight = {**headers, "Access-Control-Request-Method": "POST"}
            assert server.client.options("/llm/invoke", headers=preflight).status_code == 200
        other = {"Origin": "https://c.example", "Sec-Fetch-Site": "cross-site"}
        assert server.post("/llm/invoke", question("hi"), headers=other).status_code == 403


# ── the page of routes ───────────────────────────────────────────────────────────────────────────────────────────────


def test_the_page_of_routes_loads_nothing_from_elsewhere(server):
    page = server.client.get("/docs").text
    addresses = re.findall(r"""(?:src|href)=["']([^"']+)["']""", page)
    assert len(addresses) >= 2
    for address in addresses:
        assert address.startswith("/"), address
        assert server.client.get(address).status_code == 200
    assert re.findall(r"https?://[^\s\"']+", page) == []
    assert server.client.get("/openapi.json").status_code == 200
