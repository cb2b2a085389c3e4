"""Conversations over HTTP: searched, renamed, deleted and restored, exported. One server with scripted parts."""

import json
from urllib.parse import quote

import pytest

from tests.app.scripted import ScriptedEngineClient
from tests.app.serving import RunningServer, question, scripted_app, wait_until

BASE = "/api/v1/conversations"


@pytest.fixture
def chat(scripted_server):
    return scripted_server


def ask(chat, text, session_id, **options):
    response = chat.post("/chat/invoke", question(text, session_id, **options))
    assert response.status_code == 200, response.text
    return response.json()["output"]


def listed(chat, **query):
    return chat.client.get(BASE, params=query).json()["conversations"]


def test_a_search_finds_by_question_answer_and_title(chat):
    ask(chat, "Where is the flugelhorn?", "search-1")
    ask(chat, "Where is the tuba?", "search-2")
    assert [(entry["session_id"], entry["snippet"]) for entry in listed(chat, query="FLUGEL")] == [
        ("search-1", "Where is the flugelhorn?")
    ]
    assert {"search-1", "search-2"} <= {entry["session_id"] for entry in listed(chat, query="gurney rolls")}
    assert chat.client.patch(f"{BASE}/search-2", json={"title": " Brass \n band "}).json()["title"] == "Brass band"
    assert [(entry["session_id"], entry["snippet"]) for entry in listed(chat, query="brass")] == [("search-2", None)]
    assert listed(chat, query="no such words") == []


def test_pages_of_the_list_follow_each_other(chat):
    for number in range(3):
        ask(chat, f"pagination {number}", f"page-{number}")
    pages = [listed(chat, query="pagination", limit=2, offset=offset) for offset in (0, 2)]
    assert [[entry["session_id"] for entry in page] for page in pages] == [["page-2", "page-1"], ["page-0"]]


def test_a_title_of_ones_own_outlives_asking_the_first_question_again(chat):
    ask(chat, "first", "titled")
    chat.client.patch(f"{BASE}/titled", json={"title": "Mine"})
    assert chat.client.delete(f"{BASE}/titled/turns/0").status_code == 204
    ask(chat, "first, edited", "titled")
    body = chat.client.get(f"{BASE}/titled").json()
    assert (body["title"], [turn["question"] for turn in body["turns"]]) == ("Mine", ["first, edited"])


def test_a_deleted_conversation_can_be_restored_once(chat):
    ask(chat, "keep me", "undo")
    path = f"{BASE}/undo"
    assert chat.client.post(f"{path}/restore").status_code == 404
    assert chat.client.delete(path).status_code == 204
    assert (chat.client.get(path).status_code, listed(chat, query="keep me")) == (404, [])
    assert chat.client.post(f"{path}/restore").json()["num_turns"] == 1
    assert chat.client.get(path).json()["turns"][0]["question"] == "keep me"
    chat.client.delete(path)
    ask(chat, "another", "undo")
    assert chat.client.post(f"{path}/restore").status_code == 404
    assert [turn["question"] for turn in chat.client.get(path).json()["turns"]] == ["another"]


def test_an_export_is_a_file_that_no_browser_runs(chat):
    ask(chat, "What <b>is</b>\n# TTFT?", "export é/1")
    path = f"{BASE}/{quote('export é/1', safe='')}/export"
    response = chat.client.get(path)
    assert response.headers["content-type"].startswith("text/markdown")
    assert response.headers["content-disposition"].startswith('attachment; filename="What b is b TTFT.md"')
    assert response.headers["x-content-type-options"] == "nosniff"
    assert response.text == (
        "# What <b>is</b> # TTFT?\n\n## What <b>is</b> # TTFT?\n\nThe gurney rolls.\n\n- [1] TTFT\n"
    )
    exported = chat.client.get(path, params={"format": "json"})
    assert exported.headers["content-disposition"].endswith(".json")
    assert exported.json() == chat.client.get(f"{BASE}/{quote('export é/1', safe='')}").json()


def test_an_export_says_that_an_answer_is_still_being_written(tmp_path):
    engine = ScriptedEngineClient(["word "] * 2000, delay_s=0.05)
    with RunningServer(scripted_app(tmp_path, engine)) as server:
        client = server.wait_until_ready().client
        export = f"{BASE}/open/export"
        with client.stream("POST", "/chat/stream", json=question("Under way?", "open")) as response:
            pieces = response.iter_text()  # the stream is closed once this is gone
            assert any("word" in piece for piece in pieces)
            assert client.get(export).text == (
                "# Under way?\n\n## Under way?\n\n"
                "*(the answer is still being written: export again when it is complete)*\n"
            )
        wait_until(lambda: "*(stopped)*" in client.get(export).text)


@pytest.mark.parametrize(
    ("method", "path", "options", "status", "field"),
    [
        ("PATCH", "/nobody", {"json": {"title": "t"}}, 404, "session_id"),
        ("PATCH", "/bad", {"json": {"title": " \n"}}, 422, "title"),
        ("PATCH", "/bad", {"json": {"title": "x" * 201}}, 422, "title"),
        ("PATCH", "/bad", {"json": {"title": 7}}, 422, "title"),
        ("PATCH", "/bad", {"json": {}}, 422, "title"),
        ("PATCH", "/bad", {"json": {"title": "t", "user": "ada"}}, 422, "user"),
        ("PATCH", "/bad", {"content": b'{"title": "\\ud83d"}'}, 422, None),
        ("GET", "/nobody/export", {}, 404, "session_id"),
        ("GET", "/bad/export", {"params": {"format": "pdf"}}, 422, "format"),
        ("GET", "", {"params": {"limit": 0}}, 422, "limit"),
        ("GET", "", {"params": {"offset": -1}}, 422, "offset"),
        ("GET", "", {"params": {"offset": 10**30}}, 422, "offset"),
        ("GET", "", {"params": {"query": "x" * 501}}, 422, "query"),
        ("DELETE", "/nobody", {}, 404, "session_id"),
        ("DELETE", f"/bad/turns/{10**30}", {}, 422, "index"),
        ("POST", "/nobody/restore", {}, 404, "session_id"),
    ],
)
def test_what_is_wrong_is_named(chat, method, path, options, status, field):
    ask(chat, "hi", "bad")
    headers = {"content-type": "application/json"} if "content" in options else {}
    response = chat.client.request(method, BASE + path, headers=headers, **options)
    assert response.status_code == status, response.text
    assert response.json()["error"].get("field") == field or field is None


def test_another_users_conversation_is_not_found_by_any_route(chat):
    chat.services.history.begin_turn("ada", "her chat", "secret")
    assert listed(chat, query="secret") == []
    for method, path, body in (
        ("GET", "", None), ("GET", "/export", None), ("PATCH", "", {"title": "t"}), ("DELETE", "", None),
        ("DELETE", "/turns/0", None), ("POST", "/restore", None),
    ):  # fmt: skip
        content = None if body is None else json.dumps(body)
        response = chat.client.request(
            method, f"{BASE}/her chat{path}", content=content, headers={"content-type": "application/json"}
        )
        assert response.status_code == 404, (method, path)
    assert [turn.question for turn in chat.services.history.turns("ada", "her chat")] == ["secret"]
