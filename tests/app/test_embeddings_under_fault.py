"""An embedding model that fails while the server runs: told as such, nothing half put in, and over when it is over.

The knowledge base is real, over a model behind a URL that fails when it is told to.
"""

import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from app.server import create_app
from app.settings import Settings
from tests.app.scripted import ScriptedBackend, ScriptedEngineClient
from tests.app.serving import RunningServer, question, wait_until
from tests.retrieval.test_embedding_client import Server as EmbeddingServer

DOCUMENTS = "/api/v1/documents"


@pytest.fixture
def embedding() -> Iterator[EmbeddingServer]:
    with EmbeddingServer() as running:
        threading.Thread(target=running.serve_forever, args=(0.01,), daemon=True).start()
        yield running
        running.shutdown()


@pytest.fixture
def server(embedding: EmbeddingServer, tmp_path: Path) -> Iterator[RunningServer]:
    settings = Settings(
        data_dir=tmp_path, model="scripted", embedding_model="e5", embedding_url=embedding.url, grounding="off",
        sample_kb=False,
    )  # fmt: skip
    app = create_app(settings)
    services = app.state.services

    def load() -> None:
        services.pool.put("scripted", ScriptedBackend(ScriptedEngineClient()))
        services._load_knowledge_base()
        services._build_chains()

    services._load = load
    with RunningServer(app) as running:
        yield running.wait_until_ready()


def put_in(server: RunningServer, text: bytes, **query: Any) -> Any:
    return server.client.post(DOCUMENTS, params=query, files=[("files", ("owl.md", text))])


def entries(server: RunningServer) -> list[dict[str, Any]]:
    listed = server.client.get(DOCUMENTS).json()["documents"]
    return [server.client.get(f"{DOCUMENTS}/{entry['document_id']}").json() for entry in listed]


def test_a_failing_embedding_model_is_told_by_every_route_that_needs_it_and_by_no_other(
    server: RunningServer, embedding: EmbeddingServer
) -> None:
    assert put_in(server, b"# Owl\n\nIt sleeps by day.\n").json()["results"][0]["status"] == "added"
    before = entries(server)
    embedding.status = 500
    asked = {
        "/chat/invoke": question("When does it sleep?", "failing"),
        "/chat/stream": question("When does it sleep?", "failing"),
        "/retrieve/invoke": question("When does it sleep?", None),
        "/v1/chat/completions": {"model": "ragstone-rag", "messages": [{"role": "user", "content": "When?"}]},
        "/v1/embeddings": {"model": "e5", "input": "owl"},
    }
    for path, body in asked.items():
        reply = server.post(path, body)
        assert (reply.status_code, reply.json()["error"]["code"]) == (503, "embedder_unavailable"), path
        assert "refused: HTTP 500" in reply.json()["error"]["message"]
        assert int(reply.headers["Retry-After"]) > 0
    refused = put_in(server, b"# Owl\n\nIt sleeps by night.\n")
    assert (refused.status_code, refused.json()["error"]["code"]) == (503, "embedder_unavailable")
    job = f"/api/v1/jobs/{put_in(server, b'Another.', background=True).json()['job_id']}"
    wait_until(lambda: server.client.get(job).json()["status"] == "failed")
    assert "refused: HTTP 500" in server.client.get(job).json()["files"][0]["reason"]
    assert entries(server) == before  # the old version answers
    alone = server.post("/chat/invoke", question("Hello?", "alone", retrieval=False))
    assert (alone.status_code, alone.json()["output"]["answer"]) == (200, "Hello world")

    embedding.status = 200
    assert put_in(server, b"# Owl\n\nIt sleeps by night.\n").json()["results"][0]["status"] == "updated"
    answer = server.post("/chat/invoke", question("When does it sleep?", "failing")).json()["output"]
    assert [source["text"] for source in answer["sources"]] == ["It sleeps by night."]
