"""The conversation chain: history around retrieval and answer, whatever happens in the middle."""

import asyncio
from contextlib import aclosing, nullcontext
from itertools import pairwise

import pytest
from langchain_core.runnables.utils import AddableDict

from app import chains
from app.answerer import Answerer, ModelRoom, turn_writer
from app.chat_model import ChatRagstone
from app.chat_schema import ChatInput, ChatOutput
from app.conversation import ConversationChain
from app.errors import MissingSessionError, RequestError
from app.fixed_texts import ENGLISH
from app.history import RagstoneChatMessageHistory
from app.memory import MemoryRule
from app.sqlite_history import SQLiteConversationStore
from app.turn_lock import TurnLocks
from app.turn_prompt import QUESTION_LEAD, PassageRule
from engine.errors import EngineDeadError, PromptTooLongError, StepFailedError
from tests.app.scripted import ScriptedEngineClient, passage, until

SYSTEM = "You answer {briefly}."


class Setup:
    """A conversation chain over scripted parts; `found` is what every search finds."""

    def __init__(
        self, folder, client=None, *, memory=None, passages=None, max_model_len=1000, max_tokens=100, answering=None
    ):
        self.client = client or ScriptedEngineClient()
        self.store = SQLiteConversationStore(folder / "history.sqlite3")
        self.locks = TurnLocks()
        self.found = [passage("TTFT is the time to the first token.", title="TTFT")]
        self.searches = []
        rule = passages or PassageRule()
        model = ChatRagstone(model="scripted", client=self.client, temperature=0)
        self.chain = ConversationChain(
            answerer=Answerer(
                retrieval=chains.retrieval_chain(
                    chains.condense_by_context(), self.search, turn_writer(rule, self.client.count_tokens, answering)
                ),
                answer=chains.answers_of(model, SYSTEM),
                room=ModelRoom(max_model_len, max_tokens, system_tokens=11),
                count_tokens=self.client.count_tokens,
                answering=answering,
            ),
            store=self.store,
            locks=self.locks,
            memory=memory or MemoryRule("buffer"),
            passages=rule,
        )

    def search(self, queries, k, *, collections, user, where):
        self.searches.append({"queries": queries, "k": k, "collections": collections, "user": user, "where": where})
        return self.found

    def turns(self, session_id="s"):
        return self.store.turns("local", session_id)


@pytest.fixture
def setup(tmp_path):
    return Setup(tmp_path)


def config(session_id="s", **options):
    return {"configurable": {"session_id": session_id, **options}}


async def test_sources_come_once_and_first_then_the_answer_in_pieces(setup):
    chunks = [chunk async for chunk in setup.chain.astream({"input": "What is TTFT?"}, config())]
    last = ["finish_reason", "index", "statistics", "turn_id"]
    assert [sorted(chunk) for chunk in chunks] == [["sources"], ["answer"], ["answer"], last]
    assert all(isinstance(chunk, AddableDict) for chunk in chunks)
    assert [chunk["answer"] for chunk in chunks[1:3]] == ["Hello", " world"]
    assert chunks[0]["sources"][0]["text"] == "TTFT is the time to the first token."


async def test_what_the_engine_did_comes_last_and_is_kept_with_the_turn(setup):
    *_, last = [chunk async for chunk in setup.chain.astream({"input": "What is TTFT?"}, config(temperature=0.5))]
    (turn,) = setup.turns()
    assert dict(last) == {
        "turn_id": turn.turn_id,
        "index": 0,
        "finish_reason": "stop",
        "statistics": turn.statistics,
    }
    counts = {name: value for name, value in turn.statistics.items() if name.startswith("num_")}
    sent = sum(len(message["content"].split()) for message in setup.client.requests[0]["messages"])
    assert counts == {
        "num_prompt_tokens": sent, "num_cached_tokens": 3, "num_output_tokens": 2, "num_draft_tokens": 0,
        "num_accepted_tokens": 0, "num_passages": 1, "num_passages_left_out": 0, "num_turns_left_out": 0,
    }  # fmt: skip
    assert turn.statistics["time_to_first_token_s"] >= 0
    assert (turn.finish_reason, turn.settings["temperature"]) == ("stop", 0.5)


async def test_options_of_a_turn_reach_the_search_and_the_model(setup):
    options = {"temperature": 0.5, "top_p": 0.9, "max_tokens": 7, "num_passages": 2, "where": {"source": "*.md"}}
    await setup.chain.ainvoke({"input": "What is TTFT?"}, config(**options))
    sent = setup.client.requests[0]["params"]
    assert (sent["temperature"], sent["top_p"], sent["max_tokens"]) == (0.5, 0.9, 7)
    assert (setup.searches[0]["k"], setup.searches[0]["where"].source) == (2, "*.md")


async def test_the_kind_of_memory_can_be_chosen_for_a_turn(tmp_path):
    setup = Setup(tmp_path, memory=MemoryRule("buffer", turns=1))
    for number in range(3):
        await setup.chain.ainvoke({"input": f"question {number}"}, config(memory="window", retrieval=False))
    shown = [message["content"] for message in setup.client.requests[2]["messages"]]
    assert shown[1:] == ["question 1", "Hello world", "question 2"]
    assert setup.turns()[2].statistics["num_turns_left_out"] == 1
    await setup.chain.ainvoke({"input": "all"}, config(retrieval=False))
    assert len(setup.client.requests[3]["messages"]) == 8


async def test_the_place_in_the_queue_is_told_until_the_answer_begins(setup):
    setup.client.delay_s = 0.05

    async def ask(session_id):
        return await setup.chain.ainvoke({"input": "q"}, config(session_id))

    asked = [asyncio.create_task(ask(session_id)) for session_id in ("a", "b", "b")]
    await until(lambda: len(setup.client.requests) == 2)

    def place(session_id, *, is_full):
        return setup.chain.place_in_queue("local", session_id, is_full=is_full)

    assert [place(name, is_full=True) for name in ("a", "b", "c")] == [1, 3, None]
    assert [place(name, is_full=False) for name in ("a", "b")] == [0, 3]  # one question of b waits for another
    assert setup.chain.place_in_queue("ada", "a", is_full=True) is None
    await asyncio.gather(*asked)
    assert place("b", is_full=True) is None


async def test_invoke_equals_the_sum_of_the_stream_and_fits_the_declared_type(setup):
    result = await setup.chain.ainvoke({"input": "What is TTFT?"}, config())
    assert result["answer"] == "Hello world"
    assert ChatOutput.model_validate(result).sources[0].title == "TTFT"
    assert setup.chain.get_input_schema() is ChatInput


async def test_the_model_is_sent_system_prompt_passages_and_question(setup):
    await setup.chain.ainvoke({"input": "What is {TTFT}?"}, config())
    assert setup.client.requests[0]["messages"] == [
        {"role": "system", "content": SYSTEM},
        {
            "role": "user",
            "content": "Passages:\n\n[1] TTFT\nTTFT is the time to the first token.\n\n"
            + QUESTION_LEAD
            + "What is {TTFT}?",
        },
    ]


async def test_a_later_turn_only_appends_so_that_the_prefix_cache_holds_the_rest(setup):
    await setup.chain.ainvoke({"input": "first?"}, config())
    setup.found = [setup.found[0], passage("More about it.", title="More")]
    result = await setup.chain.ainvoke({"input": "second?"}, config())
    first, second = (request["messages"] for request in setup.client.requests)
    assert second[: len(first)] == first
    assert second[len(first) :] == [
        {"role": "assistant", "content": "Hello world"},
        {
            "role": "user",
            "content": f"Passages:\n\n[2] More\nMore about it.\n\nSee also [1] above.\n\n{QUESTION_LEAD}second?",
        },
    ]
    assert [source["n"] for source in result["sources"]] == [1, 2]


async def test_a_follow_up_is_searched_as_it_is_and_after_the_question_before(setup):
    await setup.chain.ainvoke({"input": "What is TTFT?"}, config())
    await setup.chain.ainvoke({"input": "Why does it matter?"}, config(collections=["handbook"]))
    assert [search["queries"] for search in setup.searches] == [
        ["What is TTFT?"],
        ["Why does it matter?", "What is TTFT? Why does it matter?"],
    ]
    assert setup.searches[1] == {**setup.searches[1], "k": 4, "collections": ["handbook"], "user": "local"}


async def test_without_retrieval_nothing_is_searched(setup):
    result = await setup.chain.ainvoke({"input": "hi"}, config(retrieval=False))
    assert (result["sources"], result["answer"], result["statistics"]["num_passages"]) == ([], "Hello world", 0)
    assert setup.searches == []
    assert setup.client.requests[0]["messages"][-1] == {"role": "user", "content": "hi"}


async def test_history_is_kept_over_restarts(setup, tmp_path):
    await setup.chain.ainvoke({"input": "first?"}, config())
    again = Setup(tmp_path)
    await again.chain.ainvoke({"input": "second?"}, config())
    assert [message["role"] for message in again.client.requests[0]["messages"]] == [
        "system",
        "user",
        "assistant",
        "user",
    ]


async def test_conversations_do_not_see_each_other(setup):
    await setup.chain.ainvoke({"input": "secret?"}, config("a"))
    await setup.chain.ainvoke({"input": "hello?"}, config("b"))
    assert len(setup.client.requests[1]["messages"]) == 2
    assert setup.chain.name == "chat"


async def test_users_with_one_session_name_do_not_share_it(setup):
    await setup.chain.ainvoke({"input": "mine"}, config(user="ada"))
    assert setup.turns() == []
    assert [turn.question for turn in setup.store.turns("ada", "s")] == ["mine"]


async def test_turns_of_one_conversation_are_serialised_and_none_is_lost(tmp_path):
    setup = Setup(tmp_path, ScriptedEngineClient(["a", "b"], delay_s=0.01))
    await asyncio.gather(*(setup.chain.ainvoke({"input": f"q{number}"}, config()) for number in range(3)))
    assert [(turn.question, turn.answer, turn.interrupted) for turn in setup.turns()] == [
        (f"q{number}", "ab", False) for number in range(3)
    ]
    assert [len(request["messages"]) for request in setup.client.requests] == [2, 4, 6]


async def test_different_conversations_run_at_the_same_time(tmp_path):
    setup = Setup(tmp_path, ScriptedEngineClient(["a"] * 5, delay_s=0.02))
    together = asyncio.gather(*(setup.chain.ainvoke({"input": "q"}, config(f"s{number}")) for number in range(3)))
    most = 0
    while not together.done():
        most = max(most, setup.client.open)
        await asyncio.sleep(0.005)
    assert most == 3


# ── answers that do not end well ─────────────────────────────────────────────────────────────────────────────────────


async def test_a_stopped_answer_is_kept_with_what_was_produced_and_marked(tmp_path):
    setup = Setup(tmp_path, ScriptedEngineClient(["one", " two", " three"], delay_s=0.01))
    async with aclosing(setup.chain.astream({"input": "q"}, config())) as chunks:
        async for chunk in chunks:
            if chunk.get("answer") == " two":
                break
    (turn,) = setup.turns()
    assert (turn.answer, turn.interrupted, turn.sources[0]["n"]) == ("one two", True, 1)
    await until(lambda: setup.client.open == 0)
    assert not setup.locks.is_held(("local", "s"))


async def test_a_cancelled_task_stores_its_turn_and_frees_engine_and_conversation(tmp_path):
    setup = Setup(tmp_path, ScriptedEngineClient(["one", " two"], delay_s=1.0))
    task = asyncio.create_task(setup.chain.ainvoke({"input": "q"}, config()))
    await until(lambda: setup.client.produced == 1)
    await asyncio.sleep(0.2)
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    await setup.chain.drain()
    assert [(turn.answer, turn.interrupted) for turn in setup.turns()] == [("one", True)]
    await until(lambda: setup.client.open == 0)
    assert not setup.locks.is_held(("local", "s"))


async def test_a_turn_cancelled_while_it_waits_for_its_conversation_leaves_no_trace(tmp_path):
    setup = Setup(tmp_path, ScriptedEngineClient(["one"], delay_s=0.1))
    first = asyncio.create_task(setup.chain.ainvoke({"input": "first"}, config()))
    await asyncio.sleep(0.02)
    second = asyncio.create_task(setup.chain.ainvoke({"input": "second"}, config()))
    await asyncio.sleep(0.02)
    second.cancel()
    await asyncio.gather(first, second, return_exceptions=True)
    assert [turn.question for turn in setup.turns()] == ["first"]
    assert not setup.locks.is_held(("local", "s"))


async def test_a_broken_answer_is_kept_and_the_next_turn_goes_on(tmp_path):
    client = ScriptedEngineClient(["one", " two"], error=StepFailedError("out of memory"), error_after=1)
    setup = Setup(tmp_path, client)
    with pytest.raises(StepFailedError, match="out of memory"):
        await setup.chain.ainvoke({"input": "q"}, config())
    assert [(turn.answer, turn.interrupted) for turn in setup.turns()] == [("one", True)]
    client.error = None
    await setup.chain.ainvoke({"input": "again"}, config())
    assert [message["role"] for message in client.requests[1]["messages"]] == ["system", "user"]


class EngineThatEnds(ScriptedEngineClient):
    """Nobody is there to count tokens once it has answered."""

    def count_tokens(self, text):
        if self.produced and not self.open:
            raise EngineDeadError("gone")
        return super().count_tokens(text)


@pytest.mark.parametrize("error", [EngineDeadError("broken off"), None])
async def test_an_answer_is_kept_where_its_engine_is_gone_by_then_and_the_next_turn_goes_on(tmp_path, error):
    client = EngineThatEnds(["one", " two"], error=error, error_after=1)
    setup = Setup(tmp_path, client)
    with pytest.raises(EngineDeadError, match="broken off") if error else nullcontext():
        await setup.chain.ainvoke({"input": "q"}, config())
    assert [(turn.answer, turn.interrupted) for turn in setup.turns()] == [("one" if error else "one two", bool(error))]
    client.error, client.produced = None, 0  # it is back
    await setup.chain.ainvoke({"input": "again"}, config())
    shown = [message["role"] for message in client.requests[1]["messages"]]
    assert shown == (["system", "user"] if error else ["system", "user", "assistant", "user"])


async def test_a_turn_that_broke_before_its_first_token_is_not_shown_to_the_model(tmp_path):
    client = ScriptedEngineClient(error=StepFailedError("no"), error_after=0)
    setup = Setup(tmp_path, client)
    with pytest.raises(StepFailedError):
        await setup.chain.ainvoke({"input": "q"}, config())
    client.error = None
    await setup.chain.ainvoke({"input": "again"}, config())
    assert len(client.requests[1]["messages"]) == 2
    assert [(turn.question, turn.interrupted) for turn in setup.turns()] == [("q", True), ("again", False)]


async def test_a_failing_search_is_reported_and_frees_the_conversation(setup):
    setup.found = None  # what the search returns breaks the next step
    with pytest.raises(TypeError):
        await setup.chain.ainvoke({"input": "q"}, config())
    assert not setup.locks.is_held(("local", "s"))
    assert [(turn.answer, turn.interrupted) for turn in setup.turns()] == [("", True)]


async def test_an_answer_without_tokens_is_said_to_be_none(tmp_path):
    setup = Setup(tmp_path, ScriptedEngineClient([]))
    assert (await setup.chain.ainvoke({"input": "q"}, config()))["answer"] == ENGLISH.no_answer
    assert [turn.interrupted for turn in setup.turns()] == [False]


# ── what is refused ──────────────────────────────────────────────────────────────────────────────────────────────────


@pytest.mark.parametrize(
    "configurable", [{}, {"session_id": ""}, {"session_id": "  "}, {"session_id": None}, {"session_id": 7}]
)
async def test_without_a_session_nothing_runs(setup, configurable):
    kind = RequestError if configurable.get("session_id") == 7 else MissingSessionError
    with pytest.raises(kind, match=r"config\.configurable\.session_id"):
        await setup.chain.ainvoke({"input": "q"}, {"configurable": configurable})
    assert setup.client.requests == []


@pytest.mark.parametrize("given", [{}, {"input": 7}, {"input": "  "}, "text"])
async def test_an_input_without_a_question_is_refused(setup, given):
    with pytest.raises(RequestError, match=r"input"):
        await setup.chain.ainvoke(given, config())


async def test_a_question_that_can_never_fit_is_refused_with_the_numbers_and_leaves_no_trace(setup):
    with pytest.raises(PromptTooLongError) as caught:
        await setup.chain.ainvoke({"input": "word " * 2000}, config())
    assert (caught.value.num_prompt_tokens, caught.value.max_model_len, caught.value.max_tokens) == (2019, 1000, 100)
    assert setup.turns() == []
    assert setup.store.conversations("local") == []


async def test_a_long_question_gets_fewer_passage_tokens_instead_of_failing(setup):
    setup.found = [passage("long " * 700)]
    result = await setup.chain.ainvoke({"input": "word " * 600}, config())
    sent = setup.client.requests[0]["messages"][-1]["content"]
    assert setup.client.count_tokens(sent) <= 900
    assert result["sources"][0]["n"] == 1


# ── memory ───────────────────────────────────────────────────────────────────────────────────────────────────────────


async def test_window_memory_shows_the_last_turns(tmp_path):
    setup = Setup(tmp_path, memory=MemoryRule("window", turns=2))
    for number in range(5):
        await setup.chain.ainvoke({"input": f"q{number}"}, config(retrieval=False))
    sent = [message["content"] for message in setup.client.requests[-1]["messages"]]
    assert sent == [SYSTEM, "q2", "Hello world", "q3", "Hello world", "q4"]


async def test_a_conversation_of_any_length_never_fails_and_trims_rarely(tmp_path):
    setup = Setup(tmp_path, ScriptedEngineClient(["word "] * 20), max_model_len=600, passages=PassageRule(count=0))
    for number in range(40):
        await setup.chain.ainvoke({"input": f"question number {number}"}, config())
    sent = [request["messages"] for request in setup.client.requests]
    sizes = [sum(setup.client.count_tokens(message["content"]) + 8 for message in messages) for messages in sent]
    assert max(sizes) <= 500
    appended = sum(later[: len(earlier)] == earlier for earlier, later in pairwise(sent))
    assert appended >= 30
    assert all(messages[0]["content"] == SYSTEM for messages in sent)


async def test_a_passage_that_was_trimmed_away_is_sent_again_under_a_new_number(tmp_path):
    setup = Setup(tmp_path, memory=MemoryRule("token_budget", tokens=40))
    for number in range(3):
        result = await setup.chain.ainvoke({"input": f"q{number}"}, config())
    assert "TTFT is the time" in setup.client.requests[-1]["messages"][-1]["content"]
    assert result["sources"][0]["n"] == 2


async def test_turns_that_a_langchain_user_added_are_part_of_the_conversation(setup):
    history = RagstoneChatMessageHistory(setup.store, "s")
    history.add_user_message("from outside")
    history.add_ai_message("noted")
    await setup.chain.ainvoke({"input": "q"}, config(retrieval=False))
    assert [message["content"] for message in setup.client.requests[0]["messages"]] == [
        SYSTEM,
        "from outside",
        "noted",
        "q",
    ]


# ── without an event loop ────────────────────────────────────────────────────────────────────────────────────────────


def test_the_chain_also_runs_without_an_event_loop(setup):
    assert setup.chain.invoke({"input": "q"}, config())["answer"] == "Hello world"
    chunks = list(setup.chain.stream({"input": "q"}, config()))
    assert [chunk["answer"] for chunk in chunks[1:3]] == ["Hello", " world"]
    assert [turn.interrupted for turn in setup.turns()] == [False, False]


def test_leaving_a_synchronous_stream_stops_the_engine(tmp_path):
    setup = Setup(tmp_path, ScriptedEngineClient(["a", "b", "c"] * 50, delay_s=0.01))
    stream = setup.chain.stream({"input": "q"}, config())
    next(stream)
    next(stream)
    stream.close()
    assert setup.client.open == 0  # its event loop has ended, with all that ran in it
    assert [turn.interrupted for turn in setup.turns()] == [True]


def test_errors_reach_the_caller_of_a_synchronous_run(setup):
    with pytest.raises(MissingSessionError):
        setup.chain.invoke({"input": "q"}, {})


def test_a_follow_up_of_a_follow_up_is_worded_with_the_question_that_both_are_about():
    cost, why, when = "How much do tickets cost?", "Any reason for it?", "Since when?"
    assert chains.wordings(cost, []) == [cost]
    assert chains.wordings(why, [cost]) == [why, f"{cost} {why}"]
    assert chains.wordings(when, [cost, why]) == [when, f"{cost} {why} {when}"]
    assert chains.wordings(why, ["When does the museum open?", cost]) == [why, f"{cost} {why}"]
    assert chains.wordings(when, [cost, why, "And how?"]) == [when, f"{why} And how? {when}"]  # never more than two


# ── condensing by a large model ──────────────────────────────────────────────────────────────────────────────────────


async def test_a_large_model_rewrites_a_follow_up_after_the_conversation_it_has_cached():
    client = ScriptedEngineClient(["What does TTFT measure?"])
    condense = chains.condense_by_model(ChatRagstone(model="scripted", client=client), SYSTEM)
    state = {
        "input": "And {that}?",
        "questions": ["What is TTFT?"],
        "history": [("human", "What is TTFT?"), ("ai", "A time.")],
    }
    assert await condense.ainvoke(state) == ["And {that}?", "What does TTFT measure?"]
    sent = client.requests[0]
    assert [message["role"] for message in sent["messages"]] == ["system", "user", "assistant", "user"]
    assert sent["messages"][-1]["content"].endswith("Question: And {that}?")
    assert sent["params"] == {"temperature": 0, "max_tokens": 96}


async def test_a_first_question_needs_no_rewriting():
    client = ScriptedEngineClient(["never"])
    condense = chains.condense_by_model(ChatRagstone(model="scripted", client=client))
    assert await condense.ainvoke({"input": "What?", "questions": [], "history": []}) == ["What?"]
    assert client.requests == []
