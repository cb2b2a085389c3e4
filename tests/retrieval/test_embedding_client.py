"""The client of `/v1/embeddings`, against a real server on this machine."""

import json
import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

import numpy as np
import pytest

from retrieval.embedding_client import EmbeddingClient
from retrieval.errors import EmbedderError, InvalidVectorError


class Server(ThreadingHTTPServer):
    """Answers with vectors [length of text, 1, 0]; `status`, `body` and `shuffled` change how."""

    status = 200
    body: str | None = None
    shuffled = False

    def __init__(self) -> None:
        super().__init__(("127.0.0.1", 0), Handler)
        self.requests: list[tuple[str, dict, str | None]] = []
        self.url = f"http://127.0.0.1:{self.server_port}/v1"


class Handler(BaseHTTPRequestHandler):
    server: Server

    def do_POST(self) -> None:
        request = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
        self.server.requests.append((self.path, request, self.headers["Authorization"]))
        data = [{"index": i, "embedding": [len(text), 1, 0]} for i, text in enumerate(request["input"])]
        answer = self.server.body or json.dumps({"data": data[::-1] if self.server.shuffled else data})
        self.send_response(self.server.status)
        self.end_headers()
        self.wfile.write(answer.encode())

    def log_message(self, *_: object) -> None:
        pass


@pytest.fixture
def server() -> Iterator[Server]:
    with Server() as running:
        threading.Thread(target=running.serve_forever, args=(0.01,), daemon=True).start()
        yield running
        running.shutdown()


def test_texts_go_in_batches_and_vectors_come_back_in_order(server: Server) -> None:
    client = EmbeddingClient("e5", server.url, api_key="secret", batch_size=2)
    server.shuffled = True
    vectors = client.embed_passages(["a", "bb", "ccc"])
    assert vectors == pytest.approx(np.array([[1, 1, 0], [2, 1, 0], [3, 1, 0]]) / np.sqrt([[2], [5], [10]]))
    assert [request["input"] for _, request, _ in server.requests] == [["dimension"], ["a", "bb"], ["ccc"]]
    assert {(path, request["model"], key) for path, request, key in server.requests} == {
        ("/v1/embeddings", "e5", "Bearer secret")
    }
    assert (client.name, client.dimension, client.languages) == ("e5", 3, None)
    assert client.embed_passages([]).shape == (0, 3)


def test_odd_texts_are_sent_as_text(server: Server) -> None:
    client = EmbeddingClient("e5", server.url)
    client.embed_passages(["", "\ud800"])
    assert server.requests[-1][1]["input"] == [" ", "?"]


def test_the_same_model_at_another_address_is_the_same(server: Server) -> None:
    one, other = EmbeddingClient("e5", server.url), EmbeddingClient("e5", server.url + "/")
    assert one.fingerprint == other.fingerprint != EmbeddingClient("bge", server.url).fingerprint


@pytest.mark.parametrize(
    ("status", "body", "message"),
    [
        (404, '{"error": "no model e5"}', r"refused: HTTP 404: .*no model e5"),
        (200, "<html>", "does not answer as /v1/embeddings does"),
        (200, '{"data": []}', "0 vectors"),
        (200, '{"data": [{"index": 0, "embedding": ["x"]}]}', "does not answer as"),
        (200, '{"error": "overloaded"}', "does not answer as"),
    ],
)
def test_what_is_wrong_with_the_server_is_told(server: Server, status: int, body: str, message: str) -> None:
    server.status, server.body = status, body
    with pytest.raises(EmbedderError, match=message):
        EmbeddingClient("e5", server.url)


def test_a_model_that_changes_its_dimension_is_refused(server: Server) -> None:
    client = EmbeddingClient("e5", server.url)
    server.body = '{"data": [{"index": 0, "embedding": [1, 2]}]}'
    with pytest.raises(InvalidVectorError, match=r"\[n, 3\]"):
        client.embed_query("a")


def test_no_server() -> None:
    with pytest.raises(EmbedderError, match=r"no answer from http://127.0.0.1:9/v1/embeddings.*check embedding_url"):
        EmbeddingClient("e5", "http://127.0.0.1:9/v1")
