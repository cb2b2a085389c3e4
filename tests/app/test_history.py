"""Conversations on disk, and LangChain's message history over them."""

import sqlite3

import pytest
from langchain_core.messages import AIMessage, AIMessageChunk, HumanMessage, SystemMessage, ToolMessage

from app.errors import DataFolderError, NotFoundError
from app.history import (
    RagstoneChatMessageHistory,
    SQLiteConversationStore,
    TurnResult,
    require_conversation,
    title_of,
)


@pytest.fixture
def path(tmp_path):
    return tmp_path / "history.sqlite3"


@pytest.fixture
def store(path):
    store = SQLiteConversationStore(path)
    yield store
    store.close()


def add(store, question, answer="answer", user="local", session_id="s", **result):
    index = store.begin_turn(user, session_id, question)
    store.finish_turn(user, session_id, index, TurnResult(answer=answer, **result))
    return index


def test_a_turn_comes_back_as_it_was_stored_also_by_another_process(store, path):
    source = {"n": 1, "title": "Ä", "text": "\u2028 {x}", "score": 0.5}
    add(store, "q\x00é", "a", prompt="p + q", sources=[source], placed=[1], num_tokens=7)
    store.close()
    (turn,) = SQLiteConversationStore(path).turns("local", "s")
    assert (turn.index, turn.question, turn.prompt, turn.answer) == (0, "q\x00é", "p + q", "a")
    assert (turn.sources, turn.placed, turn.num_tokens, turn.interrupted) == ((source,), (1,), 7, False)


def test_a_turn_that_has_only_begun_is_interrupted_so_that_a_crash_keeps_the_question(store, path):
    store.begin_turn("local", "s", "what?")
    (turn,) = SQLiteConversationStore(path).turns("local", "s")
    assert (turn.question, turn.answer, turn.interrupted) == ("what?", "", True)


def test_turns_are_numbered_from_zero(store):
    assert [add(store, f"q{number}") for number in range(3)] == [0, 1, 2]
    assert [turn.question for turn in store.turns("local", "s")] == ["q0", "q1", "q2"]


def test_conversations_are_listed_with_the_last_used_first(store):
    add(store, "first question", session_id="a")
    add(store, "second question", session_id="b")
    add(store, "more", session_id="a")
    listed = store.conversations("local")
    assert [(entry.session_id, entry.title, entry.num_turns) for entry in listed] == [
        ("a", "first question", 2),
        ("b", "second question", 1),
    ]
    assert listed[0].updated_at >= listed[1].updated_at


def test_users_do_not_see_each_other(store):
    add(store, "mine", user="ada")
    assert store.turns("bob", "s") == []
    assert store.conversations("bob") == []
    assert store.delete("bob", "s") is False
    assert [turn.question for turn in store.turns("ada", "s")] == ["mine"]


def test_truncating_drops_a_turn_and_all_later_ones(store):
    for number in range(4):
        add(store, f"q{number}")
    store.set_window_start("local", "s", 3)
    assert store.truncate("local", "s", 2) is True
    assert [turn.question for turn in store.turns("local", "s")] == ["q0", "q1"]
    assert store.conversation("local", "s").window_start == 2
    assert add(store, "again") == 2


def test_truncating_at_a_turn_that_is_not_there_changes_nothing(store):
    add(store, "q")
    assert store.truncate("local", "s", 1) is False
    assert len(store.turns("local", "s")) == 1


def test_truncating_at_the_first_turn_drops_the_conversation(store):
    add(store, "q")
    assert store.truncate("local", "s", 0) is True
    assert store.conversations("local") == []


def test_deleting_a_conversation_takes_its_turns_along(store, path):
    add(store, "q")
    assert store.delete("local", "s") is True
    assert store.delete("local", "s") is False
    assert sqlite3.connect(path).execute("SELECT count(*) FROM turns").fetchone() == (0,)


def test_an_unknown_conversation_is_named_in_the_error(store):
    with pytest.raises(NotFoundError, match="no conversation 'nope'"):
        require_conversation(store, "local", "nope")


def test_a_store_of_a_newer_version_is_refused(path):
    with sqlite3.connect(path) as connection:
        connection.execute("PRAGMA user_version=99")
    with pytest.raises(DataFolderError, match="newer version"):
        SQLiteConversationStore(path)


def test_a_store_of_the_version_before_is_brought_up_to_date(store, path):
    add(store, "q")
    store.close()
    with sqlite3.connect(path) as connection:
        connection.execute("ALTER TABLE turns DROP COLUMN grounding")
        connection.execute("PRAGMA user_version=1")
    upgraded = SQLiteConversationStore(path)
    assert [(turn.question, turn.grounding) for turn in upgraded.turns("local", "s")] == [("q", None)]
    upgraded.finish_turn("local", "s", 0, TurnResult(answer="a", grounding={"state": "answered"}))
    assert upgraded.turns("local", "s")[0].grounding == {"state": "answered"}


def test_a_file_that_is_no_database_is_refused_by_name(path):
    path.write_bytes(b"not a database, but long enough to be looked at" * 20)
    with pytest.raises(DataFolderError, match=r"history\.sqlite3: conversations cannot be stored there"):
        SQLiteConversationStore(path)


def test_titles_are_one_line_cut_at_a_word():
    assert title_of(" What\n is   this? ") == "What is this?"
    title = title_of("word " * 40)
    assert title.endswith("word…")
    assert len(title) <= 80


# ── LangChain's interface ────────────────────────────────────────────────────────────────────────────────────────────


def test_messages_written_by_langchain_show_as_turns(store):
    history = RagstoneChatMessageHistory(store, "s")
    history.add_messages([HumanMessage("q1"), AIMessage("a1"), HumanMessage("q2")])
    history.add_message(AIMessage("a2"))
    assert [(turn.question, turn.answer, turn.interrupted) for turn in store.turns("local", "s")] == [
        ("q1", "a1", False),
        ("q2", "a2", False),
    ]
    assert history.messages == [HumanMessage("q1"), AIMessage("a1"), HumanMessage("q2"), AIMessage("a2")]


def test_chunks_are_stored_as_plain_messages(store):
    history = RagstoneChatMessageHistory(store, "s")
    history.add_messages([HumanMessage("q"), AIMessageChunk(content="a", chunk_position="last")])
    assert [type(message) for message in history.messages] == [HumanMessage, AIMessage]


def test_tool_calls_and_system_messages_are_kept(store, path):
    call = {"name": "add", "args": {"a": 1}, "id": "c", "type": "tool_call"}
    given = [
        SystemMessage("rules"),
        HumanMessage("q"),
        AIMessage("", tool_calls=[call]),
        ToolMessage("3", tool_call_id="c"),
        AIMessage("3."),
    ]
    RagstoneChatMessageHistory(store, "s").add_messages(given)
    assert RagstoneChatMessageHistory(SQLiteConversationStore(path), "s").messages == given


def test_turns_of_the_server_show_as_messages_without_passages(store):
    add(store, "q", "a", prompt="Passages: … Question: q")
    assert RagstoneChatMessageHistory(store, "s").messages == [HumanMessage("q"), AIMessage("a")]


def test_clearing_drops_the_conversation(store):
    history = RagstoneChatMessageHistory(store, "s")
    history.add_user_message("q")
    history.clear()
    assert history.messages == []
    assert store.conversations("local") == []


def test_a_history_without_a_name_is_refused(store):
    with pytest.raises(ValueError, match="session_id is empty"):
        RagstoneChatMessageHistory(store, "")
