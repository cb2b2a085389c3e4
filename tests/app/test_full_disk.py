"""A disk that is full, or a file that another process locks, while conversations are written.

Said as such, nothing acknowledged lost, and over when it is.

The real store on a real file that may not grow: SQLite's own limit says what a full disk makes it say.
"""

import json
import sqlite3
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path

import pytest

from app.sqlite_history import SQLiteConversationStore
from tests.app.scripted import ScriptedEngineClient
from tests.app.serving import RunningServer, events, question, scripted_app

LONG = "x" * 200_000


class FullServer:
    """A server whose conversations' file can be kept from growing."""

    def __init__(self, folder: Path) -> None:
        self.engine = ScriptedEngineClient(["fine."])
        self.server = RunningServer(scripted_app(folder, self.engine))

    def limit(self, num_free_pages: int | None) -> None:
        """The file may grow by so many pages; None: without limit."""
        store = self.server.services.history
        assert isinstance(store, SQLiteConversationStore)
        (count,) = store._rows("PRAGMA page_count")[0]
        store._rows(f"PRAGMA max_page_count = {2**31 if num_free_pages is None else count + num_free_pages}")


@pytest.fixture
def full(tmp_path: Path) -> Iterator[FullServer]:
    full = FullServer(tmp_path)
    with full.server as server:
        server.wait_until_ready()
        assert server.post("/chat/invoke", question("Before?", "kept")).status_code == 200
        yield full


def test_a_question_that_cannot_be_noted_is_507_and_what_was_answered_before_stays(full: FullServer) -> None:
    full.limit(0)
    for run in ("invoke", "stream"):
        response = full.server.post(f"/chat/{run}", question("y" * 15_000, "new"))
        assert (response.status_code, response.json()["error"]["code"]) == (507, "store_full")
        assert "free some and try again" in response.json()["error"]["message"]
    assert full.server.client.get("/api/v1/conversations/new").status_code == 404
    (turn,) = full.server.client.get("/api/v1/conversations/kept").json()["turns"]
    assert (turn["answer"], turn["interrupted"]) == ("fine.", False)
    full.limit(None)
    assert full.server.post("/chat/invoke", question("y" * 15_000, "new")).status_code == 200


def test_an_answer_that_cannot_be_kept_is_not_said_to_be_whole(full: FullServer) -> None:
    full.engine.pieces = [LONG]
    full.limit(4)
    streamed = events(full.server.post("/chat/stream", question("Long?", "long")).text)
    assert [name for name, _ in streamed if name in ("end", "error")] == ["error"]
    assert json.loads(streamed[-1][1])["code"] == "store_full"
    invoked = full.server.post("/chat/invoke", question("Long?", "long"))
    assert (invoked.status_code, invoked.json()["error"]["code"]) == (507, "store_full")
    turns = full.server.client.get("/api/v1/conversations/long").json()["turns"]
    assert {(turn["question"], turn["answer"], turn["interrupted"]) for turn in turns} == {("Long?", "", True)}
    full.limit(None)
    answered = full.server.post("/chat/invoke", question("Again?", "long")).json()["output"]
    turns = full.server.client.get("/api/v1/conversations/long").json()["turns"]
    assert (turns[-1]["answer"], answered["answer"]) == (LONG, LONG)


def test_a_file_that_another_process_keeps_locked_is_503_until_it_is_free(full: FullServer) -> None:
    store = full.server.services.history
    assert isinstance(store, SQLiteConversationStore)
    store._rows("PRAGMA busy_timeout = 200")
    ((_, _, path),) = store._rows("PRAGMA database_list")
    with closing(sqlite3.connect(path, isolation_level=None)) as other:
        other.execute("BEGIN IMMEDIATE")
        for run in ("invoke", "stream"):
            response = full.server.post(f"/chat/{run}", question("Now?", "kept"))
            assert (response.status_code, response.json()["error"]["code"]) == (503, "store_busy")
            assert int(response.headers["Retry-After"]) > 0
        # What was answered before is read all the while.
        (turn,) = full.server.client.get("/api/v1/conversations/kept").json()["turns"]
        assert (turn["question"], turn["answer"]) == ("Before?", "fine.")
        other.execute("ROLLBACK")
    assert full.server.post("/chat/invoke", question("Now?", "kept")).status_code == 200
    turns = full.server.client.get("/api/v1/conversations/kept").json()["turns"]
    assert [(turn["question"], turn["answer"]) for turn in turns] == [("Before?", "fine."), ("Now?", "fine.")]


def test_an_answer_whose_storing_meets_a_lock_is_not_said_to_be_whole(full: FullServer) -> None:
    store = full.server.services.history
    assert isinstance(store, SQLiteConversationStore)
    store._rows("PRAGMA busy_timeout = 200")
    ((_, _, path),) = store._rows("PRAGMA database_list")
    full.engine.pieces, full.engine.delay_s = ["one ", "two ", "three."], 0.3
    with closing(sqlite3.connect(path, isolation_level=None)) as other:
        with full.server.client.stream("POST", "/chat/stream", json=question("Slow?", "slow")) as response:
            text = ""
            for piece in response.iter_text():
                text += piece
                if "one " in text and not other.in_transaction:
                    other.execute("BEGIN IMMEDIATE")
        other.execute("ROLLBACK")
    assert [name for name, _ in events(text) if name in ("end", "error")] == ["error"]
    assert json.loads(events(text)[-1][1])["code"] == "store_busy"
    (turn,) = full.server.client.get("/api/v1/conversations/slow").json()["turns"]
    assert (turn["question"], turn["interrupted"]) == ("Slow?", True)
