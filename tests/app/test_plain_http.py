"""HEAD where there is GET, redirects under any address, parameters that do nothing, and bodies that cannot be read."""

import json
import re

import httpx
import pytest

from tests.app.serving import RunningServer, question

GETS = ("/v1/models", "/v1/health/live", "/metrics", "/docs", "/openapi.json", "/api/v1/documents", "/nothing")


@pytest.mark.parametrize("path", GETS)
def test_head_is_get_without_the_body(server: RunningServer, path: str) -> None:
    got, head = server.client.get(path), server.client.head(path)
    assert (head.status_code, head.content) == (got.status_code, b"")
    assert head.headers["content-type"] == got.headers["content-type"]


def test_head_of_what_only_takes_post_is_refused_as_get_is(server: RunningServer) -> None:
    assert server.client.head("/v1/chat/completions").status_code == 405


@pytest.mark.parametrize(
    ("path", "location"),
    [
        ("/chat/playground", "playground/"),
        ("/v1/version/", "../version"),
        ("/api/v1/documents/?limit=3", "../documents?limit=3"),
    ],
)
def test_a_slash_too_many_or_too_few_is_redirected_relative_to_the_path(
    server: RunningServer, path: str, location: str
) -> None:
    response = httpx.get(f"{server.url}{path}")
    assert (response.status_code, response.headers["location"]) == (307, location)


def test_every_address_of_our_own_refuses_a_parameter_that_it_does_not_have(server: RunningServer) -> None:
    refused = set()
    for path, methods in server.client.get("/openapi.json").json()["paths"].items():
        for method in methods if path.startswith("/api/v1/") else ():
            address = re.sub(r"\{[^}]*\}", "1", path)
            response = server.client.request(method, address, params={"limitt": "5"})
            assert response.status_code == 422, (method, path, response.text)
            if response.json()["error"]["field"] == "limitt":
                refused.add((method, path))
    assert ("get", "/api/v1/usage") in refused
    assert ("get", "/api/v1/conversations") in refused
    assert len(refused) >= 25


def test_the_refusal_names_what_there_is(server: RunningServer) -> None:
    error = server.client.get("/api/v1/usage", params={"day": "3"}).json()["error"]
    assert error["field"] == "day"
    assert error["message"].startswith("'day' is no parameter of this address: it has ")


@pytest.mark.parametrize(
    ("body", "told"),
    [
        (b'{"a": ' + b"[" * 100_000, "nested too deeply"),
        (b'{"a": ' + b"9" * 5_000 + b"}", "more digits than"),
        (b'{"a": "\xff\xfe"}', "not UTF-8"),
        (b'{"a": ', "not valid JSON"),
    ],
)
@pytest.mark.parametrize("path", ["/chat/invoke", "/v1/chat/completions", "/v1/embeddings", "/api/v1/collections"])
def test_a_body_that_cannot_be_read_is_told_why(server: RunningServer, path: str, body: bytes, told: str) -> None:
    response = server.client.post(path, content=body, headers={"Content-Type": "application/json"})
    assert response.status_code == (400 if path.startswith("/v1") else 422)
    assert told in json.dumps(response.json())


def test_options_are_true_or_false_and_no_words_for_it(server: RunningServer) -> None:
    error = server.post("/chat/invoke", question("hi", retrieval="no")).json()["error"]
    assert (error["field"], error["message"]) == (
        "config.configurable.retrieval",
        'retrieval must be true or false, not "no"',
    )
