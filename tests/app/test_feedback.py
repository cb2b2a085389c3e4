"""Feedback on answers over HTTP, and its way into an evaluation."""

import json

import pytest

from app.evaluation.cases import read_cases
from tests.app.serving import question

PATH = "/api/v1/feedback"


@pytest.fixture
def rated(scripted_server):
    """A conversation with two answers, rated up and down."""
    chat = scripted_server
    for text in ("What rolls?", "What stands?"):
        chat.post("/chat/invoke", question(text, "rated"))
    for index, rating, comment in ((0, "up", None), (1, "down", "  It rolls as well. ")):
        body = {"session_id": "rated", "index": index, "rating": rating, "comment": comment}
        assert chat.client.put(PATH, json=body).status_code == 200
    yield chat
    chat.services.history.delete("local", "rated")


def test_feedback_shows_on_the_turn_and_is_replaced_and_taken_back(rated):
    def shown():
        turns = rated.client.get("/api/v1/conversations/rated").json()["turns"]
        return [turn["feedback"] for turn in turns]

    assert shown() == [{"rating": "up", "comment": None}, {"rating": "down", "comment": "It rolls as well."}]
    reply = rated.client.put(PATH, json={"session_id": "rated", "index": 0, "rating": "down"})
    assert reply.json() == shown()[0] == {"rating": "down", "comment": None}
    for _ in range(2):
        assert rated.client.delete(PATH, params={"session_id": "rated", "index": 0}).status_code == 204
    assert shown()[0] is None


def test_the_export_is_read_by_ragstone_eval(rated, tmp_path):
    response = rated.client.get(PATH, params={"format": "jsonl"})
    assert response.headers["content-disposition"].startswith('attachment; filename="feedback.jsonl"')
    first, second = (json.loads(line) for line in response.text.splitlines())
    assert (first["question"], first["answer"], first["source"]) == ("What rolls?", "The gurney rolls.", ["TTFT"])
    assert (second["rating"], second["comment"]) == ("down", "It rolls as well.")
    assert second["settings"]["model"] == "scripted"
    assert [passage["title"] for passage in first["passages"]] == ["TTFT"]
    assert {"document_id", "page", "heading", "text"} <= first["passages"][0].keys()
    path = tmp_path / "feedback.jsonl"
    path.write_bytes(response.content)
    cases = read_cases(path)
    assert [(case.id, case.question, case.answers, case.sources) for case in cases.cases] == [
        (first["id"], "What rolls?", ("The gurney rolls.",), ("TTFT",))
    ]
    assert cases.warnings == (
        "1 answers that are rated down are passed over: write what is right into their lines as `expected`",
    )
    path.write_text(json.dumps({**second, "expected": "a house"}))
    (case,) = read_cases(path).cases
    assert (case.facts, case.answers, case.sources) == (("a house",), (), ())


def test_the_same_as_json(rated):
    lines = [json.loads(line) for line in rated.client.get(PATH, params={"format": "jsonl"}).text.splitlines()]
    entries = rated.client.get(PATH).json()["feedback"]
    assert [entry["id"] for entry in entries] == [line["id"] for line in lines]


@pytest.mark.parametrize(
    ("change", "status", "field"),
    [
        ({"session_id": "nobody"}, 404, "session_id"),
        ({"index": 7}, 404, "index"),
        ({"index": -1}, 422, "index"),
        ({"index": True}, 422, "index"),
        ({"index": 10**30}, 422, "index"),
        ({"rating": "sideways"}, 422, "rating"),
        ({"rating": None}, 422, "rating"),
        ({"comment": "x" * 4001}, 422, "comment"),
        ({"comment": "\ud83d"}, 422, None),
        ({"user": "ada"}, 422, "user"),
    ],
)
def test_what_is_wrong_is_named(rated, change, status, field):
    content = json.dumps({"session_id": "rated", "index": 0, "rating": "up"} | change)
    response = rated.client.put(PATH, content=content, headers={"content-type": "application/json"})
    assert response.status_code == status, response.text
    assert field is None or response.json()["error"]["field"] == field
    assert rated.client.get(PATH, params={"format": "csv"}).status_code == 422


def test_feedback_of_others_is_not_seen_nor_changed(rated):
    history = rated.services.history
    history.begin_turn("ada", "hers", "q")
    body = {"session_id": "hers", "index": 0, "rating": "up"}
    assert rated.client.put(PATH, json=body).status_code == 404
    assert rated.client.delete(PATH, params={"session_id": "hers", "index": 0}).status_code == 404
    assert [entry["session_id"] for entry in rated.client.get(PATH).json()["feedback"]] == ["rated", "rated"]
