"""Reranking with a tiny cross-encoder made here, and over HTTP with a server on this machine."""

import json
import threading
from collections.abc import Iterator, Sequence
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import numpy as np
import numpy.typing as npt
import pytest

from retrieval import KnowledgeBase
from retrieval.errors import RerankerError
from retrieval.reranker import CrossEncoderReranker, RankingClient, rerank
from tests.retrieval.word_embedder import WordEmbedder


@pytest.fixture(scope="module")
def cross_encoder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A BERT of one layer with random weights, saved as sentence-transformers saves a CrossEncoder."""
    import torch
    from transformers import BertConfig, BertForSequenceClassification, BertTokenizerFast

    folder = tmp_path_factory.mktemp("cross-encoder")
    words = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]", "leave", "laptop", "annual", "back", "two", "weeks"]
    (folder / "vocab.txt").write_text("\n".join(words))
    BertTokenizerFast(str(folder / "vocab.txt")).save_pretrained(folder)
    torch.manual_seed(0)
    config = BertConfig(
        vocab_size=len(words), hidden_size=16, num_hidden_layers=1, num_attention_heads=2, intermediate_size=32,
        num_labels=1, initializer_range=0.5,
    )  # fmt: skip
    BertForSequenceClassification(config).save_pretrained(folder)
    return folder


def test_scores_are_those_of_the_library(cross_encoder: Path) -> None:
    from sentence_transformers import CrossEncoder

    passages = ["annual leave", "laptop back", "two weeks leave \ud800"]
    expected = CrossEncoder(str(cross_encoder), num_labels=1, device="cpu").predict(
        [("leave", passage.replace("\ud800", "?")) for passage in passages]
    )
    ours = CrossEncoderReranker(cross_encoder, device="cpu").scores("leave", passages)
    np.testing.assert_allclose(ours, expected, atol=1e-5)
    assert len(set(ours.tolist())) == 3


def test_a_folder_that_is_no_cross_encoder_is_named(tmp_path: Path) -> None:
    with pytest.raises(RerankerError, match=rf"cannot load the reranker in {tmp_path}.*CrossEncoder"):
        CrossEncoderReranker(tmp_path)


class Server(ThreadingHTTPServer):
    """Ranks passages by their length, longest first."""

    status = 200
    body: str | None = None

    def __init__(self) -> None:
        super().__init__(("127.0.0.1", 0), Handler)
        self.requests: list[tuple[str, dict, str | None]] = []
        self.url = f"http://127.0.0.1:{self.server_port}/v1"


class Handler(BaseHTTPRequestHandler):
    server: Server

    def do_POST(self) -> None:
        request = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
        self.server.requests.append((self.path, request, self.headers["Authorization"]))
        rankings = [{"index": i, "logit": len(entry["text"]) / 10} for i, entry in enumerate(request["passages"])]
        rankings.sort(key=lambda entry: -entry["logit"])
        self.send_response(self.server.status)
        self.end_headers()
        self.wfile.write((self.server.body or json.dumps({"rankings": rankings})).encode())

    def log_message(self, *_: object) -> None:
        pass


@pytest.fixture
def server() -> Iterator[Server]:
    with Server() as running:
        threading.Thread(target=running.serve_forever, args=(0.01,), daemon=True).start()
        yield running
        running.shutdown()


def test_a_ranking_server_is_asked_and_its_order_taken(server: Server) -> None:
    client = RankingClient("nv-rerank", server.url, api_key="secret")
    assert rerank(client, "which", ["a", "aaa", "aa"]) == [
        (1, pytest.approx(1 / (1 + np.exp(-0.3)))),
        (2, pytest.approx(1 / (1 + np.exp(-0.2)))),
        (0, pytest.approx(1 / (1 + np.exp(-0.1)))),
    ]
    ((path, request, key),) = server.requests
    assert (path, key, request["model"]) == ("/v1/ranking", "Bearer secret", "nv-rerank")
    assert request["query"] == {"text": "which"}
    assert request["passages"] == [{"text": "a"}, {"text": "aaa"}, {"text": "aa"}]


@pytest.mark.parametrize(
    ("status", "body", "message"),
    [
        (500, "out of memory", "refused: HTTP 500: out of memory"),
        (200, "<html>", "does not answer as /v1/ranking does"),
        (200, '{"rankings": [{"index": 0, "logit": 1}]}', "does not answer as"),
        (200, '{"rankings": [{"index": 0, "logit": 1}, {"index": 1, "logit": NaN}]}', "NaN"),
    ],
)
def test_what_is_wrong_with_the_server_is_told(server: Server, status: int, body: str, message: str) -> None:
    server.status, server.body = status, body
    client = RankingClient("nv-rerank", server.url)
    with pytest.raises(RerankerError, match=message):
        client.scores("which", ["a", "b"])
    # A search goes on with the order that it had.
    assert [index for index, _ in rerank(client, "which", ["a", "b"])] == [0, 1]


class ByLength:
    """Prefers long passages."""

    name = "length"

    def scores(self, query: str, passages: Sequence[str]) -> npt.NDArray[np.float64]:
        return np.array([len(passage) / 100 for passage in passages])


def test_a_search_ends_with_the_reranker(tmp_path: Path) -> None:
    pages = {
        "short.md": "annual leave",
        "long.md": "leave, and much else that is said of it here",
        "mid.md": "a leave, and more of it",
    }
    for name, text in pages.items():
        (tmp_path / name).write_text(text)
    with KnowledgeBase.open(tmp_path / "store", WordEmbedder()) as plain:
        plain.ingest_paths([tmp_path / name for name in pages], relative_to=tmp_path)
        assert plain.search("annual leave", 1)[0].source == "short.md"
    with KnowledgeBase.open(tmp_path / "store", WordEmbedder(), reranker=ByLength()) as reranked:
        found = reranked.search("annual leave", 2)
    assert [passage.source for passage in found] == ["long.md", "mid.md"]
    assert found[0].score > found[1].score > 0.5
