"""/v1/embeddings: the knowledge base's embedding model, through the openai package and as raw JSON."""

import base64
import math

import numpy as np
import openai
import pytest

MODEL = "all-minilm-l6-v2"
TEXTS = ["A derailleur moves the chain of a bicycle.", "Fahrräder haben Gangschaltungen.", "Rome is in Italy."]


@pytest.fixture(scope="module")
def client(server):
    with openai.OpenAI(base_url=f"{server.url}/v1", api_key="none", max_retries=0, timeout=300) as client:
        yield client


def ask(server, given=TEXTS, **fields):
    return server.post("/v1/embeddings", {"model": MODEL, "input": given, **fields})


def test_vectors_are_those_that_documents_are_searched_with(client, server):
    reply = client.embeddings.create(model=MODEL, input=TEXTS)
    vectors = np.array([entry.embedding for entry in reply.data], dtype=np.float32)
    expected = server.services.knowledge_base.embedder.embed_passages(TEXTS)
    assert np.allclose(vectors, expected, atol=1e-6)
    assert [entry.index for entry in reply.data] == [0, 1, 2]
    assert (reply.object, reply.model, reply.data[0].object) == ("list", MODEL, "embedding")
    assert reply.usage.prompt_tokens == reply.usage.total_tokens
    assert client.embeddings.create(model=MODEL, input=TEXTS[2]).usage.prompt_tokens == 5


def test_base64_holds_the_same_numbers(server):
    by_format = {name: ask(server, encoding_format=name).json()["data"] for name in ("float", "base64")}
    for plain, packed in zip(by_format["float"], by_format["base64"], strict=True):
        numbers = np.frombuffer(base64.b64decode(packed["embedding"]), dtype="<f4")
        assert np.array_equal(numbers, np.array(plain["embedding"], dtype=np.float32))
        assert math.isclose(float(np.linalg.norm(numbers)), 1, abs_tol=1e-5)


def test_a_text_alone_is_one_vector_and_as_a_question_it_is_embedded_as_one(server):
    (entry,) = ask(server, TEXTS[0], input_type="query").json()["data"]
    expected = server.services.knowledge_base.embedder.embed_query(TEXTS[0])
    assert np.allclose(entry["embedding"], expected, atol=1e-6)


def test_many_texts_come_in_order(server):
    texts = [f"number {number}" for number in range(70)]
    entries = ask(server, texts).json()["data"]
    assert [entry["index"] for entry in entries] == list(range(70))
    (alone,) = ask(server, texts[40]).json()["data"]
    assert np.allclose(entries[40]["embedding"], alone["embedding"], atol=1e-5)


def test_a_text_that_is_too_long_is_refused_with_the_numbers_unless_it_may_be_cut(server):
    long = "word " * 300
    error = ask(server, ["short", long]).json()["error"]
    assert (error["param"], error["code"]) == ("input[1]", "context_length_exceeded")
    assert "300 tokens; this model reads 254" in error["message"]
    cut = ask(server, long, truncate="END")
    assert (cut.status_code, cut.json()["usage"]["prompt_tokens"]) == (200, 254)


@pytest.mark.parametrize(
    ("field", "value", "param"),
    [
        ("input", [], "input"),
        ("input", "", "input"),
        ("input", ["a", " "], "input[1]"),
        ("input", ["a"] * 2049, "input"),
        ("input", [1, 2, 3], "input"),
        ("input", [[1, 2], [3]], "input"),
        ("input", {"text": "a"}, "input"),
        ("input", None, "input"),
        ("dimensions", 64, "dimensions"),
        ("encoding_format", "int8", "encoding_format"),
        ("input_type", "question", "input_type"),
        ("truncate", "START", "truncate"),
        ("modality", "text", "modality"),
    ],
)
def test_what_is_not_allowed_is_400_and_named(server, field, value, param):
    response = ask(server, **{field: value})
    error = response.json()["error"]
    assert (response.status_code, error["type"]) == (400, "invalid_request_error"), error
    assert error["param"] == param, error


def test_token_ids_are_refused_with_what_to_do(server):
    assert "check_embedding_ctx_length=False" in ask(server, [[1, 2]]).json()["error"]["message"]


def test_the_models_own_dimension_and_fields_that_change_nothing_are_taken(server):
    assert ask(server, "a", dimensions=384, user="ada", encoding_format=None, truncate=None).status_code == 200


def test_the_chat_model_embeds_nothing(client):
    with pytest.raises(openai.NotFoundError, match=MODEL):
        client.embeddings.create(model="smollm2-135m-instruct", input="a")
