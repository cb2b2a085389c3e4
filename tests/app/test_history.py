"""Conversations on disk, and LangChain's message history over them."""

import sqlite3
from datetime import UTC, datetime, timedelta

import pytest
from langchain_core.messages import AIMessage, AIMessageChunk, HumanMessage, SystemMessage, ToolMessage

from app.errors import DataFolderError, NotFoundError
from app.history import (
    DELETED_KEPT,
    Feedback,
    RagstoneChatMessageHistory,
    TurnResult,
    require_conversation,
    title_of,
)
from app.sqlite_history import MIGRATIONS, SQLiteConversationStore


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


def test_what_has_come_of_an_answer_is_stored_and_has_no_end_until_it_is_finished(store):
    store.rename("local", "s", "Mine") if store.begin_turn("local", "s", "what?") == 0 else None
    so_far = TurnResult(answer="so f", sources=[{"n": 1}], settings={"model": "m"}, finish_reason="abort")
    store.note_progress("local", "s", 0, so_far)
    (turn,) = store.turns("local", "s")
    assert (turn.answer, turn.interrupted, turn.finish_reason) == ("so f", True, None)
    assert (turn.sources, turn.settings) == (({"n": 1},), {"model": "m"})
    store.finish_turn("local", "s", 0, TurnResult(answer="so far", finish_reason="stop"))
    (turn,) = store.turns("local", "s")
    assert (turn.answer, turn.interrupted, turn.finish_reason) == ("so far", False, "stop")
    store.note_progress("local", "s", 1, so_far)
    store.note_progress("local", "nowhere", 0, so_far)
    assert [(entry.session_id, entry.title, entry.num_turns) for entry in store.conversations("local")] == [
        ("s", "Mine", 1)
    ]


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


def test_a_truncated_conversation_with_a_title_of_its_own_stays(store):
    add(store, "q")
    store.rename("local", "s", "Mine")
    store.truncate("local", "s", 0)
    add(store, "another question")
    assert [(entry.title, entry.num_turns) for entry in store.conversations("local")] == [("Mine", 1)]


def test_a_deleted_conversation_is_nowhere_and_comes_back_whole(store):
    add(store, "q", "unlikely")
    (turn,) = store.turns("local", "s")
    store.set_feedback("local", "s", 0, Feedback("up"))
    assert store.delete("local", "s") is True
    assert store.delete("local", "s") is False
    assert store.conversations("local") == store.conversations("local", query="unlikely") == []
    assert store.conversation("local", "s") is None
    assert store.turns("local", "s") == store.rated_turns("local") == []
    assert store.turn("local", turn.turn_id) is None
    assert not any(
        (
            store.rename("local", "s", "t"),
            store.truncate("local", "s", 0),
            store.set_feedback("local", "s", 0, None),
            store.restore("ada", "s"),
        )
    )
    assert store.restore("local", "s") is True
    assert store.restore("local", "s") is False
    assert [turn.answer for turn in store.turns("local", "s")] == ["unlikely"]


def test_a_deleted_conversation_whose_name_is_used_again_is_gone(store):
    add(store, "old")
    store.delete("local", "s")
    assert add(store, "new") == 0
    assert store.restore("local", "s") is False
    assert [turn.question for turn in store.turns("local", "s")] == ["new"]


def test_after_a_day_a_deleted_conversation_is_gone_from_the_disk(store, path, monkeypatch):
    add(store, "q")
    store.delete("local", "s")
    monkeypatch.setattr("app.history.DELETED_KEPT", -DELETED_KEPT)
    assert store.restore("local", "s") is False
    assert sqlite3.connect(path).execute("SELECT count(*) FROM turns").fetchone() == (0,)


def test_order_pages_search_and_the_day_to_restore_stay_right_when_the_clock_is_set_back(store, monkeypatch):
    noon = datetime(2026, 11, 30, 12, tzinfo=UTC)
    clock = {"now": noon}
    monkeypatch.setattr("app.history.utc_now", lambda: clock["now"])
    for name in "ab":
        add(store, f"question {name}", session_id=name)
        clock["now"] += timedelta(seconds=1)
    clock["now"] = noon - timedelta(days=1)
    for name in "cda":
        add(store, f"later question {name}", session_id=name)
        clock["now"] += timedelta(seconds=1)
    assert [entry.session_id for entry in store.conversations("local")] == list("adcb")
    pages = [store.conversations("local", limit=2, offset=start) for start in (0, 2)]
    assert [[entry.session_id for entry in page] for page in pages] == [["a", "d"], ["c", "b"]]
    assert [entry.session_id for entry in store.conversations("local", query="later")] == list("adc")
    turns = store.turns("local", "a")
    assert [turn.question for turn in turns] == ["question a", "later question a"]
    assert turns[0].created_at < turns[1].created_at
    for name, index in (("a", 1), ("b", 0), ("d", 0)):
        store.set_feedback("local", name, index, Feedback("up"))
    assert [name for name, _ in store.rated_turns("local")] == ["b", "d", "a"]
    # Deleted while the clock is behind: set right again, its day has only begun.
    store.delete("local", "c")
    clock["now"] = noon + timedelta(hours=23)
    assert store.restore("local", "c") is True
    store.delete("local", "c")
    clock["now"] += timedelta(days=1, seconds=1)
    assert store.restore("local", "c") is False


# ── lists and searches ───────────────────────────────────────────────────────────────────────────────────────────────


def test_a_list_is_read_in_pages(store):
    for name in "abcde":
        add(store, f"question {name}", session_id=name)
    names = [entry.session_id for entry in store.conversations("local")]
    pages = [store.conversations("local", limit=2, offset=start) for start in (0, 2, 4, 6)]
    assert [[entry.session_id for entry in page] for page in pages] == [names[:2], names[2:4], names[4:], []]


@pytest.mark.parametrize(
    ("query", "found"),
    [
        ("ttft", {"a": "What is TTFT?"}),
        ("CAFÉ strasse", {"b": "the cafe in the Straße"}),
        ("cafe xyz", {}),
        ("東京", {"c": "東京は?"}),
        ("%", {}),
        ("  ", {"a": None, "b": None, "c": None, "d": None}),
        ("named", {"d": None}),
    ],
)
def test_a_search_looks_in_titles_questions_and_answers(store, query, found):
    add(store, "What is TTFT?", session_id="a")
    add(store, "where?", "the cafe in the Straße", session_id="b")
    add(store, "東京は?", session_id="c")
    add(store, "q", session_id="d")
    add(store, query, user="ada", session_id="e")
    store.rename("local", "d", "Named by hand")
    assert {entry.session_id: entry.snippet for entry in store.conversations("local", query=query)} == found


def test_a_snippet_is_cut_around_the_hit(store):
    add(store, "q", "word " * 100 + "NEEDLE" + " word" * 100)
    (entry,) = store.conversations("local", query="needle")
    assert entry.snippet.startswith("…word")
    assert entry.snippet.endswith("word…")
    assert "NEEDLE" in entry.snippet
    assert len(entry.snippet) <= 122


# ── what is known of a turn ──────────────────────────────────────────────────────────────────────────────────────────


def test_a_turn_is_found_by_its_id_by_its_user_alone(store):
    add(store, "q0")
    add(store, "q1", finish_reason="length", statistics={"num_output_tokens": 3}, settings={"model": "m"})
    turn = store.turns("local", "s")[1]
    assert (turn.finish_reason, turn.statistics, turn.settings) == ("length", {"num_output_tokens": 3}, {"model": "m"})
    assert store.turn("local", turn.turn_id) == ("s", turn)
    assert store.turn("ada", turn.turn_id) is None
    assert len({turn.turn_id for turn in store.turns("local", "s")}) == 2


def test_feedback_is_kept_with_the_turn_and_can_be_taken_back(store):
    add(store, "q")
    add(store, "q", user="ada")
    assert store.set_feedback("local", "s", 0, Feedback("down", "wrong")) is True
    assert store.set_feedback("local", "s", 1, Feedback("up")) is False
    store.finish_turn("local", "s", 0, TurnResult(answer="again"))
    ((session_id, turn),) = store.rated_turns("local")
    assert (session_id, turn.answer, turn.feedback) == ("s", "again", Feedback("down", "wrong"))
    assert store.rated_turns("ada") == []
    store.set_feedback("local", "s", 0, None)
    assert store.rated_turns("local") == []


def test_an_unknown_conversation_is_named_in_the_error(store):
    with pytest.raises(NotFoundError, match="no conversation 'nope'"):
        require_conversation(store, "local", "nope")


def test_a_store_of_a_newer_version_is_refused(path):
    with sqlite3.connect(path) as connection:
        connection.execute("PRAGMA user_version=99")
    with pytest.raises(DataFolderError, match="newer version"):
        SQLiteConversationStore(path)


def test_a_turn_costs_no_more_where_the_user_has_many_conversations(store, path):
    def steps_of_a_turn():
        counted = [0]

        def count():
            counted[0] += 1

        store._connection.set_progress_handler(count, 1)  # at each of the database's own instructions
        add(store, "q", session_id="mine")
        store._connection.set_progress_handler(None, 0)
        return counted[0]

    add(store, "q", session_id="mine")
    few = steps_of_a_turn()
    for number in range(300):
        add(store, "q", session_id=f"s{number}")
        store.delete("local", f"s{number}") if number % 2 else None
    assert steps_of_a_turn() < few + 50


@pytest.mark.parametrize("version", range(1, len(MIGRATIONS)))
def test_a_file_of_every_earlier_version_is_brought_up_to_date(path, version):
    with sqlite3.connect(path) as connection:
        connection.executescript("".join(MIGRATIONS[:version]))
        connection.execute(f"PRAGMA user_version={version}")
        then = "2026-01-31T12:00:00.000+00:00"
        connection.execute(
            "INSERT INTO conversations (user, session_id, title, created_at, updated_at) "
            "VALUES ('local', 's', 'title', ?1, ?1)",
            (then,),
        )
        for number in range(2):
            connection.execute(
                "INSERT INTO turns (user, session_id, number, question, prompt, answer, sources, placed, num_tokens, "
                "interrupted, created_at) VALUES ('local', 's', ?, 'q', 'p', 'a', '[]', '[]', 3, 0, ?)",
                (number, then),
            )
            if version > 2:
                connection.execute("UPDATE turns SET turn_id = lower(hex(randomblob(16))) WHERE turn_id = ''")
    upgraded = SQLiteConversationStore(path)
    turns = upgraded.turns("local", "s")
    assert [(turn.answer, turn.statistics, turn.finish_reason, turn.feedback) for turn in turns] == [
        ("a", None, None, None)
    ] * 2
    assert len({turn.turn_id for turn in turns if len(turn.turn_id) == 32}) == 2
    add(upgraded, "q", grounding={"state": "answered"})
    assert upgraded.turns("local", "s")[2].grounding == {"state": "answered"}
    assert (upgraded.delete("local", "s"), upgraded.restore("local", "s")) == (True, True)


def test_a_file_that_is_no_database_is_refused_by_name(path):
    path.write_bytes(b"not a database, but long enough to be looked at" * 20)
    with pytest.raises(DataFolderError, match=r"history\.sqlite3: conversations cannot be read"):
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
