"""What the server says of itself and of its models' tokens: versions, metadata, metrics, /tokenize, /detokenize."""

import pytest

from app import __version__

MODEL = "smollm2-135m-instruct"
ITALY = [{"role": "user", "content": "Name the capital of Italy."}]


def test_versions_and_metadata(server):
    assert server.client.get("/version").json() == {"version": __version__}
    assert server.client.get("/v1/version").json() == {"release": __version__, "api": "1"}
    metadata = server.client.get("/v1/metadata").json()
    assert metadata["version"] == __version__
    assert [model["shortName"] for model in metadata["modelInfo"]] == [MODEL, "ragstone-rag", "all-minilm-l6-v2"]


def test_metrics_have_two_addresses(server):
    for path in ("/metrics", "/v1/metrics"):
        reply = server.client.get(path)
        assert reply.headers["content-type"].startswith("text/plain")
        assert "ragstone:num_requests_running" in reply.text


def test_tokens_of_messages_are_those_of_a_chat(server):
    counted = server.post("/tokenize", {"model": MODEL, "messages": ITALY}).json()
    body = {"model": MODEL, "messages": ITALY, "max_tokens": 1}
    assert counted["count"] == len(counted["tokens"])
    assert counted["count"] == server.post("/v1/chat/completions", body).json()["usage"]["prompt_tokens"]
    assert (counted["max_model_len"], counted["token_strs"]) == (8192, None)
    shorter = server.post("/tokenize", {"messages": ITALY, "add_generation_prompt": False}).json()
    assert counted["tokens"][: shorter["count"]] == shorter["tokens"]
    assert shorter["count"] < counted["count"]


@pytest.mark.parametrize("text", ["The capital of Italy", "naïve 日本語 👩‍🚀 {braces}", "<|im_end|>", ""])
def test_a_text_comes_back_from_its_tokens(server, text):
    reply = server.post("/tokenize", {"prompt": text, "return_token_strs": True}).json()
    assert server.post("/detokenize", {"tokens": reply["tokens"]}).json() == {"prompt": text}
    assert len(reply["token_strs"]) == reply["count"]
    if text.isascii():
        assert "".join(reply["token_strs"]) == text


@pytest.mark.parametrize(
    ("path", "body", "status", "param"),
    [
        ("/tokenize", {}, 400, "prompt"),
        ("/tokenize", {"prompt": "a", "messages": ITALY}, 400, "prompt"),
        ("/tokenize", {"prompt": 5}, 400, "prompt"),
        ("/tokenize", {"prompt": "a", "pad": True}, 400, "pad"),
        ("/tokenize", {"messages": [{"role": "user", "content": 5}]}, 400, "messages[0].content"),
        ("/tokenize", {"prompt": "a", "model": "gpt-4"}, 404, "model"),
        ("/tokenize", {"prompt": "a" * 200_000}, 400, "prompt"),
        ("/detokenize", {"tokens": [-1]}, 400, "tokens"),
        ("/detokenize", {"tokens": [10_000_000]}, 400, "tokens"),
        ("/detokenize", {"tokens": "a"}, 400, "tokens"),
        ("/detokenize", {"tokens": [True]}, 400, "tokens[0]"),
        ("/detokenize", {}, 400, "tokens"),
    ],
)
def test_what_is_not_allowed_has_openais_error(server, path, body, status, param):
    response = server.post(path, body)
    assert response.status_code == status, response.text
    assert response.json()["error"]["param"] == param
