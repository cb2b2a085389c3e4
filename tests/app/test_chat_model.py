"""ChatRagstone against a scripted engine: what it asks for, what it makes of the deltas, what it refuses."""

import asyncio
import pickle
from itertools import pairwise
from typing import Any

import pytest
from langchain_core.callbacks import UsageMetadataCallbackHandler
from langchain_core.load import dumpd, dumps, load
from langchain_core.messages import AIMessage, HumanMessage, SystemMessage
from langchain_core.outputs import ChatGenerationChunk
from pydantic import ValidationError, create_model

from app.chat_model import ChatRagstone
from app.errors import ModelNotFoundError, RequestError
from engine.errors import EngineDeadError, InvalidParameterError, StepFailedError, UnsupportedParameterError
from tests.app.scripted import ScriptedEngineClient, until


def model(client=None, **options):
    return ChatRagstone(model="scripted", client=client or ScriptedEngineClient(), **options)


def test_invoke_gives_text_usage_and_how_it_ended():
    message = model().invoke("one two")
    assert message.content == "Hello world"
    assert message.usage_metadata == {
        "input_tokens": 2,
        "output_tokens": 2,
        "total_tokens": 4,
        "input_token_details": {"cache_read": 3},
    }
    assert message.response_metadata == {"finish_reason": "stop", "model_name": "scripted"}


async def test_all_four_ways_give_the_same_message():
    chat = model()
    messages = [
        chat.invoke("x"),
        await chat.ainvoke("x"),
        sum_of(list(chat.stream("x"))),
        sum_of([chunk async for chunk in chat.astream("x")]),
    ]
    for message in messages:
        assert (message.content, message.usage_metadata["total_tokens"]) == ("Hello world", 3)
        assert message.response_metadata == {"finish_reason": "stop", "model_name": "scripted"}


def sum_of(chunks):
    total = chunks[0]
    for chunk in chunks[1:]:
        total = total + chunk
    return total


def test_only_the_last_chunk_has_the_usage_and_says_that_it_is_the_last():
    chunks = list(model().stream("x"))
    assert [chunk.content for chunk in chunks] == ["Hello", " world", ""]
    assert [chunk.usage_metadata is not None for chunk in chunks] == [False, False, True]
    assert [chunk.chunk_position for chunk in chunks] == [None, None, "last"]


def test_an_answer_without_tokens_is_one_empty_chunk():
    assert [chunk.content for chunk in model(ScriptedEngineClient([])).stream("x")] == [""]
    assert model(ScriptedEngineClient([])).invoke("x").content == ""


def test_options_of_the_class_reach_the_engine_and_those_of_a_call_win():
    client = ScriptedEngineClient()
    chat = model(client, temperature=0.5, max_tokens=7, stop=["a"], seed=1)
    chat.invoke("x", temperature=0, stop=["b", "c"], max_completion_tokens=9)
    assert client.requests[0]["params"] == {"temperature": 0, "max_tokens": 9, "stop": ["b", "c"], "seed": 1}


def test_options_that_are_not_given_are_not_sent():
    client = ScriptedEngineClient()
    model(client).invoke("x")
    assert client.requests[0]["params"] == {}


def test_logprobs_are_asked_for_as_openai_does():
    chat = model()
    assert chat._sampling(None, {"logprobs": True, "top_logprobs": 3}) == {"logprobs": 3}
    assert chat._sampling(None, {"logprobs": True}) == {"logprobs": 0}
    assert chat._sampling(None, {"logprobs": False}) == {}


@pytest.mark.parametrize("name", ["best_of", "use_beam_search", "temprature"])
def test_an_unknown_option_is_refused_by_name(name):
    with pytest.raises(UnsupportedParameterError, match=name):
        model().invoke("x", **{name: 1})
    with pytest.raises(ValidationError, match=f"{name}: not supported by ChatRagstone"):
        model(**{name: 1})


def test_several_answers_come_by_generate_only():
    with pytest.raises(InvalidParameterError, match="2 answers cannot be streamed as one"):
        list(model(n=2).stream("x"))


def test_braces_of_messages_mean_nothing():
    client = ScriptedEngineClient()
    model(client).invoke([SystemMessage("{a}"), HumanMessage("{{b}} {0}")])
    assert [message["content"] for message in client.requests[0]["messages"]] == ["{a}", "{{b}} {0}"]


def test_an_image_is_refused_before_anything_runs():
    client = ScriptedEngineClient()
    with pytest.raises(RequestError, match="takes text only"):
        model(client).invoke([HumanMessage([{"type": "image_url", "image_url": {"url": "data:"}}])])
    assert client.requests == []


def add(a: int, b: int) -> int:
    """Add two numbers."""
    return a + b


@pytest.mark.parametrize(
    ("given", "sent"),
    [
        (None, None),
        ("auto", "auto"),
        ("none", "none"),
        ("any", "required"),
        ("required", "required"),
        (True, "required"),
        ("add", {"type": "function", "function": {"name": "add"}}),
        ({"type": "function", "function": {"name": "add"}}, {"type": "function", "function": {"name": "add"}}),
    ],
)
def test_tools_are_sent_in_openais_form_with_every_way_to_choose_one(given, sent):
    client = ScriptedEngineClient()
    model(client).bind_tools([add], tool_choice=given, parallel_tool_calls=False).invoke("x")
    request = client.requests[0]
    assert request["tools"][0]["function"]["name"] == "add"
    assert (request["tool_choice"], request["parallel_tool_calls"]) == (sent, False)


def test_a_tool_choice_that_names_no_tool_is_refused():
    with pytest.raises(ValueError, match="tool_choice='sub' names none of the tools; they are add"):
        model().bind_tools([add], tool_choice="sub")


@pytest.mark.parametrize(
    ("response_format", "params"),
    [
        ({"type": "text"}, {}),
        ({"type": "json_object"}, {"json_object": True}),
        (
            {"type": "json_schema", "json_schema": {"name": "n", "schema": {"type": "null"}}},
            {"json_schema": {"type": "null"}},
        ),
    ],
)
def test_response_format_becomes_a_constraint(response_format, params):
    client = ScriptedEngineClient()
    model(client).invoke("x", response_format=response_format)
    assert client.requests[0]["params"] == params


@pytest.mark.parametrize(
    "response_format", [1, {}, {"type": "xml"}, {"type": "json_schema"}, {"type": "json_schema", "json_schema": {}}]
)
def test_a_malformed_response_format_is_refused(response_format):
    with pytest.raises(InvalidParameterError, match="response_format"):
        model().invoke("x", response_format=response_format)


def test_with_structured_output_needs_a_schema_and_a_known_method():
    with pytest.raises(ValueError, match="needs a schema"):
        model().with_structured_output(None)
    with pytest.raises(ValueError, match="method='xml' is not supported"):
        model().with_structured_output({"title": "t", "type": "object"}, method="xml")


@pytest.mark.parametrize("schema", ["a dict", "a class"])
def test_a_streamed_value_never_loses_what_it_had_nor_holds_half_a_character(schema):
    """[vercel/ai#15865, pydantic/jiter#207: a value vanished while an escape sequence of it was being written]"""
    text = r'{"s": "caf\u00e9 \ud83d\ude00\n\\u00"}'
    wanted: Any = {"title": "t", "type": "object", "properties": {"s": {"type": "string"}}}
    if schema == "a class":
        wanted = create_model("t", s=(str, ""))
    chain = model(ScriptedEngineClient(list(text))).with_structured_output(wanted, method="json_schema")
    values = [dict(part).get("s", "") for part in chain.stream("x")]
    assert values[-1] == "café 😀\n\\u00"
    assert all(later.startswith(earlier) for earlier, later in pairwise(values))
    assert not any("\ud800" <= character <= "\udfff" for value in values for character in value)


# ── stopping ─────────────────────────────────────────────────────────────────────────────────────────────────────────


def test_leaving_a_stream_early_ends_the_request():
    client = ScriptedEngineClient()
    stream = model(client).stream("x")
    next(stream)
    assert client.open == 1
    stream.close()
    assert client.open == 0


async def test_cancelling_an_answer_ends_the_request():
    client = ScriptedEngineClient(delay_s=5)
    for start in (lambda chat: chat.ainvoke("x"), lambda chat: anext(chat.astream("x"))):
        task = asyncio.ensure_future(start(model(client)))
        await until(lambda: client.open == 1)
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task
        await until(lambda: client.open == 0)


async def test_a_time_limit_gives_up_with_a_sentence():
    client = ScriptedEngineClient(["a"] * 1000, delay_s=0.01)
    with pytest.raises(TimeoutError, match=r"no complete answer within 0\.1 s: raise the timeout or lower max_tokens"):
        await model(client, timeout=0.1).ainvoke("x")
    with pytest.raises(TimeoutError):
        model(client, timeout=0.1).invoke("x")
    with pytest.raises(TimeoutError):
        model(client).invoke("x", timeout=0.1)
    assert client.open == 0


def test_an_answer_that_the_engine_breaks_off_is_an_error():
    client = ScriptedEngineClient(delay_s=0.01)
    stream = model(client).stream("x")
    next(stream)
    client.aborted.append(client.last_request_id)
    with pytest.raises(EngineDeadError, match="broke off"):
        list(stream)


def test_engine_errors_arrive_as_they_are():
    with pytest.raises(StepFailedError, match="no memory"):
        model(ScriptedEngineClient(error=StepFailedError("no memory"), error_after=1)).invoke("x")


def test_with_retry_and_with_fallbacks_recover():
    broken = ScriptedEngineClient(error=StepFailedError("no"), error_after=0)
    with pytest.raises(StepFailedError):
        model(broken).with_retry(stop_after_attempt=2, wait_exponential_jitter=False).invoke("x")
    assert len(broken.requests) == 2
    assert model(broken).with_fallbacks([model()]).invoke("x").content == "Hello world"


# ── which model ──────────────────────────────────────────────────────────────────────────────────────────────────────


def test_another_model_than_the_servers_is_refused():
    with pytest.raises(ModelNotFoundError, match="which runs 'scripted'"):
        model().invoke("x", model="gpt-4")


def test_the_model_is_named_by_the_environment_when_not_given(monkeypatch):
    monkeypatch.setenv("RAGSTONE_MODEL", "some/model")
    monkeypatch.setenv("RAGSTONE_API_KEY", "secret")
    chat = ChatRagstone()
    assert chat.model_name == "some/model"
    assert chat.api_key.get_secret_value() == "secret"
    assert "secret" not in repr(chat)


def test_what_identifies_the_model_changes_with_everything_that_changes_the_answer():
    options = {"temperature": 0.5, "seed": 3, "max_tokens": 5, "stop": ["x"], "logit_bias": {1: 2.0}, "min_p": 0.1}
    plain = model()._get_llm_string()
    for name, value in options.items():
        assert model(**{name: value})._get_llm_string() != plain
        assert model(**{name: value})._identifying_params[name] == value


def test_tracing_names_the_model_that_answers():
    params = model(temperature=0, max_tokens=5)._get_ls_params(model="other")
    assert params["ls_model_name"] == "other"
    assert (params["ls_provider"], params["ls_temperature"], params["ls_max_tokens"]) == ("ragstone", 0, 5)


def test_usage_callbacks_of_langchain_count_tokens():
    counter = UsageMetadataCallbackHandler()
    list(model().stream("one two", config={"callbacks": [counter]}))
    assert counter.usage_metadata["scripted"]["total_tokens"] == 4


# ── leaving the process ──────────────────────────────────────────────────────────────────────────────────────────────


def test_a_saved_model_holds_options_but_neither_engine_nor_secret():
    chat = model(temperature=0.5, api_key="top-secret")
    text = dumps(chat)
    assert "top-secret" not in text
    assert "ScriptedEngineClient" not in text
    restored = load(dumpd(chat), allowed_objects="all", valid_namespaces=["app"], secrets_map={"RAGSTONE_API_KEY": "k"})
    assert (restored.model_name, restored.temperature, restored.client) == ("scripted", 0.5, None)


def test_a_pickled_model_finds_an_engine_by_name():
    restored = pickle.loads(pickle.dumps(model(temperature=0.5)))
    assert (restored.model_name, restored.temperature, restored.client) == ("scripted", 0.5, None)


def test_callbacks_see_each_token_once():
    seen = []

    class Handler(UsageMetadataCallbackHandler):
        def on_llm_new_token(self, token, *, chunk=None, **kwargs):
            assert isinstance(chunk, ChatGenerationChunk)
            seen.append(token)

    message = model(streaming=True).invoke("x", config={"callbacks": [Handler()]})
    assert seen == ["Hello", " world", ""]
    assert type(message) is AIMessage
