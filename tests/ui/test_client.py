"""The API client: what it makes of answers, refusals and broken connections."""

import socket

import pytest

from tests.ui.fake_api import SOURCES, FakeApi, Script
from ui.client import AnswerPart, ApiClient
from ui.conversation import Source, TurnState
from ui.errors import (
    AnswerBrokenOffError,
    ApiFaultError,
    ApiNotReadyError,
    ApiUnreachableError,
    LoginNeededError,
    RequestRefusedError,
)
from ui.records import Collection, Health


async def parts_of(client: ApiClient, question: str = "What does TTFT measure?") -> list[AnswerPart]:
    return [part async for part in client.stream_answer(question, "session")]


def closed_port() -> int:
    with socket.create_server(("127.0.0.1", 0)) as listener:
        return int(listener.getsockname()[1])


async def test_answer_is_sources_then_pieces_of_text(client: ApiClient, api: FakeApi) -> None:
    api.script = Script(pieces=["é \u2028", " 😀 \u0085 end"])
    parts = await parts_of(client)
    assert parts == [
        AnswerPart(sources=[Source.from_json(source) for source in SOURCES]),
        AnswerPart("é \u2028"),
        AnswerPart(" 😀 \u0085 end"),
    ]
    assert api.asked == [("session", "What does TTFT measure?")]


async def test_question_arrives_as_typed(client: ApiClient, api: FakeApi) -> None:
    question = '<test> $x$ {braces} "quotes" 日本語 😀\nnext line'
    await parts_of(client, question)
    assert api.asked == [("session", question)]


async def test_error_event_carries_the_reason(client: ApiClient, api: FakeApi) -> None:
    api.script = Script(pieces=["part"], error_event="the engine ran out of memory")
    with pytest.raises(ApiFaultError, match=r"^the engine ran out of memory$"):
        await parts_of(client)


async def test_stream_without_end_is_an_answer_broken_off(client: ApiClient, api: FakeApi) -> None:
    api.script = Script(pieces=["part"], breaks_off=True)
    with pytest.raises(AnswerBrokenOffError, match="broke off before the answer was complete"):
        await parts_of(client)


async def test_too_long_question_is_refused_in_the_servers_words(client: ApiClient, api: FakeApi) -> None:
    body = {"error": {"code": "input_too_long", "message": "50000 characters; at most 20000", "field": "input"}}
    api.script = Script(refuse=(413, body))
    with pytest.raises(RequestRefusedError, match=r"^50000 characters; at most 20000$") as caught:
        await parts_of(client)
    assert (caught.value.status, caught.value.code, caught.value.field) == (413, "input_too_long", "input")


async def test_unavailable_server_gives_its_reason(client: ApiClient, api: FakeApi) -> None:
    api.script = Script(refuse=(503, {"status": "starting", "reason": "loading the model"}))
    with pytest.raises(ApiNotReadyError, match="loading the model"):
        await parts_of(client)


async def test_fault_without_a_readable_body_still_says_something(client: ApiClient, api: FakeApi) -> None:
    api.script = Script(refuse=(500, {"trace": "secret"}))
    with pytest.raises(ApiFaultError, match=r"^The server refused the request \(500\)\.$"):
        await parts_of(client)


async def test_nothing_listening_is_said_with_the_address() -> None:
    client = ApiClient(f"http://127.0.0.1:{closed_port()}")
    with pytest.raises(ApiUnreachableError, match="cannot be reached"):
        await parts_of(client)
    with pytest.raises(ApiUnreachableError, match="cannot be reached"):
        await client.documents()
    assert await client.health() == Health("unreachable", f"Nothing answers at {client.base_url}.")


async def test_health_tells_ready_from_starting(client: ApiClient, api: FakeApi) -> None:
    assert await client.health() == Health("ready")
    api.script = Script(health=(503, {"status": "starting", "reason": "loading the model"}))
    assert await client.health() == Health("starting", "loading the model")


async def test_conversation_is_read_back_with_interrupted_turns_marked(client: ApiClient, api: FakeApi) -> None:
    assert await client.turns("unknown/../..") == []
    api.turns["s"] = [
        {"index": 0, "question": "a", "answer": "b", "sources": SOURCES[:1], "interrupted": False},
        {"index": 1, "question": "c", "answer": "d", "sources": None, "interrupted": True, "finish_reason": "abort"},
        {"index": 2, "question": "e", "answer": "", "sources": None, "interrupted": True, "finish_reason": None},
    ]
    turns = await client.turns("s")
    assert [(turn.question, turn.answer, turn.state) for turn in turns] == [
        ("a", "b", TurnState.DONE),
        ("c", "d", TurnState.STOPPED),
        ("e", "", TurnState.UNFINISHED),
    ]
    assert turns[0].sources == [Source.from_json(SOURCES[0])]


async def test_turns_are_dropped_from_an_index_and_a_missing_one_is_no_error(client: ApiClient, api: FakeApi) -> None:
    api.turns["s"] = [{"index": i, "question": str(i), "answer": ""} for i in range(3)]
    await client.drop_turns_from("s", 1)
    assert [turn["question"] for turn in api.turns["s"]] == ["0"]
    await client.drop_turns_from("s", 5)
    await client.drop_turns_from("unknown", 0)


async def test_key_goes_with_every_call_and_its_lack_is_an_error_of_its_own(client: ApiClient, api: FakeApi) -> None:
    api.key = "secret"
    with pytest.raises(LoginNeededError, match="asks for a key"):
        await parts_of(client)
    with pytest.raises(LoginNeededError):
        await client.conversations()
    user = client.as_user("secret")
    assert await user.conversations() == []
    assert len(await parts_of(user)) == 4
    assert await client.health() == Health("ready")


async def test_new_collection_is_listed(client: ApiClient, api: FakeApi) -> None:
    await client.create_collection("mine")
    assert (await client.collections())[-1] == Collection("mine", True, 0)


async def test_reply_of_another_kind_of_server_is_no_crash(client: ApiClient, api: FakeApi) -> None:
    api.turns["s"] = [{"no question": 1}]
    with pytest.raises(ApiFaultError, match="does not understand"):
        await client.turns("s")
