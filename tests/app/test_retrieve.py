"""Passages without an answer: /retrieve, filters everywhere, support by turn, and /v1/ranking with NVIDIA's client."""

import json

import numpy as np
import pytest
from langchain_core.documents import Document
from langchain_nvidia_ai_endpoints import NVIDIARerank

from tests.app.serving import RunningServer, events, question, scripted_app

TTFT = "What does TTFT measure?"
LATER = "2200-01-01T00:00:00Z"


def found(server, **configurable):
    body = {"input": {"input": TTFT}, "config": {"configurable": configurable}}
    return server.post("/retrieve/invoke", body).json()["output"]


def test_a_question_gives_passages_as_documents(server):
    documents = server.remote("retrieve").invoke({"input": TTFT})
    assert all(isinstance(document, Document) for document in documents)
    assert len(documents) == 2
    assert (documents[0].metadata["title"], documents[0].metadata["source"]) == ("Latency", "ttft.md")
    assert "time to first token" in documents[0].page_content
    assert list(server.remote("retrieve").stream({"input": TTFT})) == [documents]


@pytest.mark.parametrize(
    ("options", "sources"),
    [
        ({"num_passages": 1}, ["ttft.md"]),
        ({"num_passages": 0}, []),
        ({"where": {"source": "bicy*"}}, ["bicycle.md"]),
        ({"where": {"added_after": LATER}}, []),
        ({"where": {"added_before": LATER}, "num_passages": 1}, ["ttft.md"]),
        ({"where": {"metadata": {"author": "nobody"}}}, []),
        ({"collections": ["default"], "num_passages": 1}, ["ttft.md"]),
    ],
)
def test_a_search_is_narrowed(server, options, sources):
    assert [document["metadata"]["source"] for document in found(server, **options)] == sources


def test_chat_and_the_rag_model_are_narrowed_in_the_same_way(server):
    where = {"source": "bicycle.md"}
    reply = server.post("/chat/invoke", question(TTFT, "narrowed", where=where)).json()["output"]
    assert {source["title"] for source in reply["sources"]} == {"Bicycles"}
    body = {"model": "ragstone-rag", "messages": [{"role": "user", "content": TTFT}], "where": where}
    message = server.post("/v1/chat/completions", body).json()["choices"][0]["message"]
    assert {source["title"] for source in message["sources"]} == {"Bicycles"}
    assert message["statistics"]["num_passages"] == 1
    refused = server.post("/v1/chat/completions", {**body, "model": server.services.model_name})
    assert (refused.status_code, refused.json()["error"]["param"]) == (400, "where")
    broken = server.post("/v1/chat/completions", {**body, "where": {"added_after": "soon"}})
    assert (broken.status_code, broken.json()["error"]["param"]) == (400, "where.added_after")


def test_a_collection_that_does_not_exist_is_named_by_every_way_to_ask(server):
    for path, body in (
        ("/retrieve/invoke", {"input": {"input": TTFT}, "config": {"configurable": {"collections": ["hand-book"]}}}),
        ("/chat/stream", question(TTFT, "nowhere", collections=["hand-book"])),
    ):
        response = server.post(path, body)
        assert (response.status_code, response.json()["error"]["code"]) == (404, "collection_not_found")
        assert response.json()["error"]["field"] == "config.configurable.collections[0]"
        assert "no collection 'hand-book'" in response.json()["error"]["message"]
    body = {"model": "ragstone-rag", "messages": [{"role": "user", "content": TTFT}], "collections": ["hand-book"]}
    error = server.post("/v1/chat/completions", body).json()["error"]
    assert (error["code"], error["param"]) == ("collection_not_found", "collections[0]")


@pytest.mark.parametrize("options", [{"where": {"author": "x"}}, {"num_passages": 99}, {"collections": "x"}])
def test_options_of_a_search_that_are_wrong_are_422(server, options):
    response = server.post("/retrieve/invoke", {"input": {"input": TTFT}, "config": {"configurable": options}})
    assert response.status_code == 422
    assert next(iter(options)) in response.json()["error"]["field"]
    assert server.post("/retrieve/invoke", {"input": {"input": " "}}).status_code == 422


def test_a_runs_name_and_tags_reach_its_events(server):
    body = {"input": {"input": TTFT}, "config": {"run_name": "mine", "tags": ["nightly"]}}
    started = json.loads(events(server.post("/retrieve/stream_events", body).text)[0][1])
    assert (started["event"], started["name"], "nightly" in started["tags"]) == ("on_chain_start", "mine", True)
    body["config"]["run_name"] = 7
    response = server.post("/retrieve/invoke", body)
    assert (response.status_code, response.json()["error"]["field"]) == (422, "config.run_name")


def test_the_support_of_each_sentence_is_told_by_the_turns_id(server):
    output = server.post("/chat/invoke", question(TTFT, "support")).json()["output"]
    path = f"/api/v1/turns/{output['turn_id']}"
    assert server.client.get(f"{path}/support").json() == output["grounding"]
    turn = server.client.get(path).json()
    assert (turn["session_id"], turn["answer"], turn["index"]) == ("support", output["answer"], 0)
    server.services.history.begin_turn("ada", "hers", "q", turn_id="f" * 32)
    for turn_id in ("nobody", "f" * 32):
        for below in ("", "/support"):
            response = server.client.get(f"/api/v1/turns/{turn_id}{below}")
            assert (response.status_code, response.json()["error"]["field"]) == (404, "turn_id")
    server.services.history.begin_turn("local", "running", "q", turn_id="e" * 32)
    response = server.client.get(f"/api/v1/turns/{'e' * 32}/support")
    assert (response.status_code, response.json()["error"]["code"]) == (404, "not_checked")
    server.services.history.delete("local", "running")


# ── ranking ──────────────────────────────────────────────────────────────────────────────────────────────────────────

RANKING = {"model": "ranker", "query": {"text": "b"}, "passages": [{"text": "a"}, {"text": "bb"}, {"text": "b"}]}


class CountingReranker:
    name = "ranker"

    def scores(self, query, passages):
        return np.array([float(passage.count(query)) for passage in passages])


@pytest.fixture(scope="module")
def ranking_server(tmp_path_factory):
    with RunningServer(scripted_app(tmp_path_factory.mktemp("ranking"), reranker="ranker")) as running:
        running.wait_until_ready()
        running.services.knowledge_base.reranker = CountingReranker()
        yield running


def test_passages_are_ranked_by_their_places(ranking_server):
    rankings = ranking_server.post("/v1/ranking", RANKING).json()["rankings"]
    assert rankings == [{"index": 1, "logit": 2.0}, {"index": 2, "logit": 1.0}, {"index": 0, "logit": 0.0}]
    assert "ranker" in ranking_server.services.served_models


def test_nvidias_client_ranks_with_it(ranking_server):
    client = NVIDIARerank(base_url=f"{ranking_server.url}/v1", model="ranker", top_n=2)
    documents = [Document(page_content=text) for text in ("a", "bb", "b")]
    ranked = client.compress_documents(documents, query="b")
    assert [(document.page_content, document.metadata["relevance_score"]) for document in ranked] == [
        ("bb", 2.0),
        ("b", 1.0),
    ]


@pytest.mark.parametrize(
    ("change", "status", "param"),
    [
        ({"model": "another"}, 404, "model"),
        ({"passages": []}, 400, "passages"),
        ({"passages": [{"text": 7}]}, 400, "passages[0].text"),
        ({"query": "b"}, 400, "query"),
        ({"truncate": "START"}, 400, "truncate"),
        ({"top_n": 2}, 400, "top_n"),
    ],
)
def test_a_ranking_that_is_wrong_names_its_field(ranking_server, change, status, param):
    response = ranking_server.post("/v1/ranking", RANKING | change)
    assert (response.status_code, response.json()["error"]["param"]) == (status, param)


def test_without_a_reranker_the_refusal_says_what_to_set(server):
    response = server.post("/v1/ranking", RANKING)
    assert (response.status_code, response.json()["error"]["code"]) == (404, "no_reranker")
    assert "RAGSTONE_RERANKER" in response.json()["error"]["message"]
