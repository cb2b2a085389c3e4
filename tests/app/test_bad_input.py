"""Fields of /v1/chat/completions that are wrong: 400 naming the field, whole or streamed, and the server goes on."""

import json
import re
from typing import Any

import pytest

from tests.app.serving import RunningServer

MODEL = "smollm2-135m-instruct"
BODY = {"model": MODEL, "messages": [{"role": "user", "content": "Name the capital of Italy."}], "max_tokens": 2}
NUMBERS = ("temperature", "top_p", "min_p", "repetition_penalty", "presence_penalty", "frequency_penalty")
INTEGERS = ("n", "max_tokens", "max_completion_tokens", "min_tokens", "top_k", "seed", "top_logprobs")
# As JSON texts: some have no other spelling.
NO_NUMBERS = ("NaN", "Infinity", "-Infinity", "1e999", "true", '"0.5"', '"x"', "[1]", "{}")
NO_INTEGERS = (*NO_NUMBERS, "0.5", "1" + "0" * 400)

OUT_OF_RANGE = [
    ("temperature", "-1"),
    ("temperature", "101"),
    ("top_p", "0"),
    ("top_p", "2"),
    ("min_p", "-0.1"),
    ("repetition_penalty", "0"),
    ("presence_penalty", "3"),
    ("frequency_penalty", "-3"),
    ("n", "0"),
    ("n", "129"),
    ("max_tokens", "0"),
    ("max_tokens", "100000"),
    ("max_completion_tokens", "100000"),
    ("min_tokens", "-1"),
    ("top_k", "-2"),
    ("stop", '""'),
    ("stop", '["a", ""]'),
    ("stop", "5"),
    ("stop", json.dumps(["x"] * 10_000)),
    ("stop_token_ids", "[1000000]"),
    ("stop_token_ids", "[true]"),
    ("stop_token_ids", "5"),
    ("ignore_eos", "1"),
    ("ignore_eos", '"yes"'),
    ("logprobs", "5"),
    ("logit_bias", "[5]"),
    ("logit_bias", '{"x": 1}'),
    ("logit_bias", '{"-1": 1}'),
    ("logit_bias", '{"49152": 1}'),
    *[("logit_bias", f'{{"5": {value}}}') for value in ("NaN", "Infinity", "true", '"1"', "101", "-101", "[1]")],
]
EVERY_KIND = [(field, value) for field in NUMBERS for value in NO_NUMBERS]
EVERY_KIND += [(field, value) for field in INTEGERS for value in NO_INTEGERS]


def post(server: RunningServer, field: str, value: str, **fields: Any) -> Any:
    """The body with a field whose value is given as JSON text."""
    known = {name: given for name, given in {**BODY, **fields}.items() if name != field}
    if field == "max_completion_tokens":
        known.pop("max_tokens")
    content = f"{json.dumps(known)[:-1]}, {json.dumps(field)}: {value}}}"
    return server.client.post(
        "/v1/chat/completions", content=content.encode(), headers={"content-type": "application/json"}
    )


@pytest.mark.parametrize(
    ("field", "value"),
    [pytest.param(field, value, id=f"{field}={value[:20]}") for field, value in [*OUT_OF_RANGE, *EVERY_KIND]],
)
def test_a_bad_value_is_400_and_names_its_field(server: RunningServer, field: str, value: str) -> None:
    more = {"logprobs": True} if field == "top_logprobs" else {}
    for stream in (False, True):
        response = post(server, field, value, stream=stream, **more)
        error = response.json()["error"]
        assert response.status_code == 400, error
        assert re.split(r"[.\[]", error["param"])[0] == field, error
        assert error["type"] == "invalid_request_error"
        assert len(error["message"]) < 500


def test_a_prompt_over_the_context_names_the_messages_and_an_answer_over_it_max_tokens(server: RunningServer) -> None:
    long = [{"role": "user", "content": "7 " * 8_000}]
    error = server.post("/v1/chat/completions", {**BODY, "messages": long}).json()["error"]
    assert (error["param"], error["code"]) == ("messages", "context_length_exceeded")
    error = server.post("/v1/chat/completions", {**BODY, "max_tokens": 8_192}).json()["error"]
    assert (error["param"], error["code"]) == ("max_tokens", "context_length_exceeded")
    assert "8,192 in all" in error["message"]


@pytest.mark.parametrize("content", [b"[" * 100_000, b'{"seed": ' + b"1" * 10_000 + b"}", b'{"model": NaN}'])
def test_json_that_no_reader_should_follow_is_400(server: RunningServer, content: bytes) -> None:
    response = server.client.post("/v1/chat/completions", content=content, headers={"content-type": "application/json"})
    assert response.status_code == 400
    assert response.json()["error"]["message"]


def test_the_server_still_answers(server: RunningServer) -> None:
    reply = server.post("/v1/chat/completions", {**BODY, "temperature": 0, "logit_bias": {"5": -1}, "seed": 2**63})
    assert (reply.status_code, reply.json()["usage"]["completion_tokens"]) == (200, 2)


def test_a_body_that_is_not_said_to_be_json_is_refused_by_every_route(server):
    document = server.client.get("/openapi.json").json()
    taking_json = [
        (method, path.replace("{session_id}", "nobody").replace("{document_id}", "none"))
        for path, methods in document["paths"].items()
        for method, route in methods.items()
        if "application/json" in route.get("requestBody", {}).get("content", {}) and "{config_hash}" not in path
    ]
    assert len(taking_json) > 15
    for method, path in taking_json:
        for kind in ("text/plain", "application/x-www-form-urlencoded"):
            response = server.client.request(method, path, content=b'{"title": "x"}', headers={"Content-Type": kind})
            assert response.status_code in (400, 404, 409, 415, 422), (method, path, kind, response.text)
    response = server.client.post("/v1/chat/completions", content=b"{}", headers={"Content-Type": "text/plain"})
    assert (response.status_code, response.json()["error"]["code"]) == (415, "unsupported_media_type")
