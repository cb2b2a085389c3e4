"""Behind Debian's nginx under a path prefix, whether the proxy takes it off or not: API, streams, playground, docs."""

import json
import os
import shutil
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import httpx
import pytest

from tests.app.scripted import ScriptedEngineClient
from tests.app.serving import RunningServer, events, question, scripted_app, wait_until
from tests.app.test_operations import free_port

pytestmark = pytest.mark.skipif(shutil.which("nginx") is None, reason="nginx is not installed (apt: nginx-light)")

CONFIGURATION = """
daemon off;
{user}
pid {folder}/nginx.pid;
error_log {folder}/error.log;
events {{}}
http {{
  access_log off;
  client_body_temp_path {folder}/body;
  proxy_temp_path {folder}/proxy;
  fastcgi_temp_path {folder}/fastcgi;
  uwsgi_temp_path {folder}/uwsgi;
  scgi_temp_path {folder}/scgi;
  server {{
    listen 127.0.0.1:{port};
    location /rag/ {{ proxy_pass http://127.0.0.1:{upstream}{path}; proxy_http_version 1.1; }}
  }}
}}
"""


@contextmanager
def nginx(folder: Path, upstream: int, path: str) -> Iterator[str]:
    """nginx in front of a server; `path` is what `/rag/` becomes there (nothing: it stays). Its address."""
    port = free_port()
    (folder / "nginx.conf").write_text(
        CONFIGURATION.format(
            user="user root;" if os.getuid() == 0 else "", folder=folder, port=port, upstream=upstream, path=path
        )
    )
    process = subprocess.Popen(
        ["nginx", "-c", str(folder / "nginx.conf"), "-p", str(folder)], stderr=subprocess.DEVNULL
    )
    address = f"http://127.0.0.1:{port}/rag"
    try:
        wait_until(lambda: process.poll() is not None or answers(address))
        assert process.poll() is None, (folder / "error.log").read_text()
        yield address
    finally:
        process.terminate()
        process.wait()


def answers(address: str) -> bool:
    try:
        return httpx.get(f"{address}/v1/health/live").status_code == 200
    except httpx.TransportError:
        return False


@pytest.fixture(scope="module")
def engine() -> ScriptedEngineClient:
    return ScriptedEngineClient([f"word{number} " for number in range(6)], delay_s=0.05)


@pytest.fixture(scope="module")
def prefixed(engine: ScriptedEngineClient, tmp_path_factory: pytest.TempPathFactory) -> Iterator[RunningServer]:
    with RunningServer(scripted_app(tmp_path_factory.mktemp("prefixed"), engine, root_path="/rag")) as server:
        yield server.wait_until_ready()


@pytest.fixture(params=["/", ""], ids=["taken off", "kept"], scope="module")
def address(
    request: pytest.FixtureRequest, prefixed: RunningServer, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[str]:
    with nginx(tmp_path_factory.mktemp("nginx"), prefixed.port, request.param) as address:
        yield address


def test_streams_arrive_while_they_are_made(address: str, engine: ScriptedEngineClient) -> None:
    body = {"model": "scripted", "messages": [{"role": "user", "content": "hi"}], "stream": True}
    for path, given in (("/v1/chat/completions", body), ("/chat/stream", question("hi", address[-9:]))):
        made = engine.produced
        with httpx.stream("POST", f"{address}{path}", json=given, timeout=60) as response:
            assert response.headers["content-type"].startswith("text/event-stream")
            text = ""
            first = 0
            for piece in response.iter_text():
                text += piece
                if not first and "word0" in text:
                    first = engine.produced - made
        assert 0 < first < 6  # nginx passed the first words on before the last were made
        assert "word5" in text


def test_chain_errors_and_docs_are_where_the_prefix_is(address: str) -> None:
    with httpx.Client(base_url=address, timeout=60) as client:
        answer = client.post("/chat/invoke", json=question("hi", "proxied")).json()["output"]["answer"]
        assert answer == "word0 word1 word2 word3 word4 word5 "
        wrong = client.post(
            "/v1/chat/completions", json={"model": "none", "messages": [{"role": "user", "content": "x"}]}
        )
        assert wrong.json()["error"]["type"] == "not_found_error"  # OpenAI's shape
        assert client.get("/openapi.json").json()["servers"] == [{"url": "/rag"}]
        assert "/rag/openapi.json" in client.get("/docs").text
        assert events(client.post("/llm/stream", json=question("hi", None)).text)[-1][0] == "end"


def test_playground_loads_what_it_needs_through_the_prefix(address: str) -> None:
    with httpx.Client(base_url=address, timeout=60) as client:
        page = client.get("/chat/playground/")
        assert page.status_code == 200
        sources = [part.split('"')[0] for part in page.text.split('src="')[1:]]
        assert sources
        for source in sources:
            assert source.startswith("/rag/"), source
            found = httpx.get(address.removesuffix("/rag") + source)
            assert found.status_code == 200, source


def test_large_bodies_and_json_survive(address: str) -> None:
    reply = httpx.post(f"{address}/llm/invoke", content=json.dumps(question("é" * 5000, None)).encode(), timeout=60)
    assert reply.json()["output"].startswith("word0")
