"""Tools and structured output at /v1, through the openai package as it is, on the default model."""

import json
from typing import Literal

import jsonschema
import openai
import pytest
from pydantic import BaseModel, Field

from tests.app.test_openai import MODEL, ask

WEATHER = {
    "type": "function",
    "function": {
        "name": "get_weather",
        "description": "Get the weather of a town.",
        "parameters": {
            "type": "object",
            "properties": {
                "town": {"enum": ["Paris", "Rome"]},
                "days": {"type": "integer", "minimum": 1, "maximum": 9},
            },
            "required": ["town", "days"],
        },
    },
}
TIME = {"type": "function", "function": {"name": "get_time", "parameters": {"type": "object", "properties": {}}}}
QUESTION = [{"role": "user", "content": "What is the weather in Paris on the next 3 days?"}]


class Visit(BaseModel):
    town: Literal["Paris", "Rome"]
    days: int = Field(ge=1, le=9)
    by_train: bool


@pytest.fixture(scope="module")
def client(server):
    with openai.OpenAI(base_url=f"{server.url}/v1", api_key="none", max_retries=0, timeout=300) as client:
        yield client


def create(client, **fields):
    return client.chat.completions.create(
        **{"model": MODEL, "messages": QUESTION, "temperature": 0, "max_tokens": 80} | fields
    )


@pytest.mark.parametrize("choice", ["required", {"type": "function", "function": {"name": "get_weather"}}])
def test_a_forced_call_is_valid_and_streams_the_same(client, choice):
    fields = {"tools": [WEATHER, TIME], "tool_choice": choice, "parallel_tool_calls": False}
    reply = create(client, **fields).choices[0]
    (call,) = reply.message.tool_calls
    assert (reply.finish_reason, reply.message.content, call.type) == ("tool_calls", None, "function")
    if choice != "required":
        assert call.function.name == "get_weather"
    tool = WEATHER if call.function.name == "get_weather" else TIME
    jsonschema.validate(json.loads(call.function.arguments), tool["function"]["parameters"])

    chunks = list(create(client, stream=True, **fields))
    pieces = [piece for chunk in chunks for piece in chunk.choices[0].delta.tool_calls or []]
    assert [piece.id is not None for piece in pieces] == [True] + [False] * (len(pieces) - 1)
    assert {piece.index for piece in pieces} == {0}
    assert pieces[0].function.name == call.function.name
    assert "".join(piece.function.arguments for piece in pieces) == call.function.arguments
    assert not any(chunk.choices[0].delta.content for chunk in chunks)
    assert chunks[-1].choices[0].finish_reason == "tool_calls"


@pytest.mark.parametrize("choice", ["required", "auto"])
@pytest.mark.parametrize("cut", [{"max_tokens": 3}, {"max_tokens": 12}, {"stop": ["\n", "name"]}])
def test_a_call_that_is_cut_shows_none_of_its_markup(client, choice, cut):
    reply = create(client, tools=[WEATHER], tool_choice=choice, **cut).choices[0]
    assert "tool_call" not in (reply.message.content or "")
    if choice == "required" and "stop" in cut:  # stop texts end a text, and a forced call has none
        assert reply.finish_reason == "tool_calls"
        json.loads(reply.message.tool_calls[0].function.arguments)


def test_a_result_is_taken_back_and_answered(client):
    call = {
        "id": "abc123xyz",
        "type": "function",
        "function": {"name": "get_weather", "arguments": '{"town": "Paris"}'},
    }
    messages = [
        *QUESTION,
        {"role": "assistant", "content": None, "tool_calls": [call]},
        {"role": "tool", "tool_call_id": "abc123xyz", "content": "sunny"},
    ]
    reply = create(client, messages=messages, tools=[WEATHER], tool_choice="none", max_tokens=8)
    assert reply.choices[0].message.tool_calls is None
    assert reply.choices[0].message.content


def test_a_call_that_is_cut_says_length(client):
    reply = create(client, tools=[WEATHER], tool_choice="required", max_tokens=20)
    assert reply.choices[0].finish_reason == "length"


def test_the_parse_method_gives_an_object_of_the_class(client):
    reply = client.chat.completions.parse(
        model=MODEL, messages=QUESTION, response_format=Visit, temperature=1, seed=1, max_tokens=80
    )
    assert isinstance(reply.choices[0].message.parsed, Visit)
    assert reply.choices[0].finish_reason == "stop"
    with client.chat.completions.stream(
        model=MODEL, messages=QUESTION, response_format=Visit, temperature=1, seed=1, max_tokens=80
    ) as stream:
        final = stream.get_final_completion()
    assert final.choices[0].message.parsed == reply.choices[0].message.parsed


def test_the_parse_method_gives_parsed_arguments_of_a_tool(client):
    reply = client.chat.completions.parse(
        model=MODEL,
        messages=QUESTION,
        tools=[openai.pydantic_function_tool(Visit)],
        tool_choice="required",
        parallel_tool_calls=False,
        max_tokens=80,
    )
    assert isinstance(reply.choices[0].message.tool_calls[0].function.parsed_arguments, Visit)


def test_json_object_and_several_answers(client):
    schema = {"name": "v", "schema": {"type": "array", "items": {"type": "boolean"}, "minItems": 2, "maxItems": 2}}
    reply = create(client, n=2, temperature=1, response_format={"type": "json_schema", "json_schema": schema})
    assert all(len(json.loads(choice.message.content)) == 2 for choice in reply.choices)
    reply = create(client, response_format={"type": "json_object"}, max_tokens=60)
    assert reply.choices[0].message.content.startswith("{")


def test_vllms_guided_fields(client):
    def content(**fields):
        return create(client, extra_body=fields).choices[0].message.content

    assert content(guided_choice=["Rome", "Paris"]) in ("Rome", "Paris")
    assert content(guided_regex="[0-9]{3}-[0-9]{2}").replace("-", "").isdigit()
    assert json.loads(content(guided_json={"enum": [7]})) == 7


@pytest.mark.parametrize(
    ("fields", "param"),
    [
        ({"response_format": {"type": "xml"}}, "response_format"),
        ({"response_format": {"type": "json_schema"}}, "response_format"),
        ({"response_format": {"type": "json_schema", "json_schema": {"schema": {"$ref": "#"}}}}, "response_format"),
        ({"guided_json": {"type": "array", "uniqueItems": True}}, "guided_json"),
        ({"guided_regex": "(?=a)"}, "guided_regex"),
        ({"guided_regex": "(.{1,1000}){1,1000}"}, "guided_regex"),
        ({"guided_choice": []}, "guided_choice"),
        ({"guided_choice": ["a"], "guided_regex": "a"}, "guided_choice"),
        ({"guided_regex": "a", "response_format": {"type": "json_object"}}, "response_format"),
        ({"guided_regex": "a", "tools": [WEATHER]}, "tools"),
        ({"tools": [{"type": "retrieval"}]}, "tools"),
        ({"tools": [WEATHER], "tool_choice": "maybe"}, "tool_choice"),
        ({"tool_choice": "required"}, "tool_choice"),
        ({"tools": [WEATHER], "tool_choice": "required", "response_format": {"type": "json_object"}}, "tool_choice"),
    ],
)
@pytest.mark.parametrize("stream", [False, True])
def test_what_cannot_be_served_is_400_and_names_the_field_as_it_was_given(server, fields, param, stream):
    response = ask(server, stream=stream, **fields)
    assert response.status_code == 400
    assert response.json()["error"]["param"] == param
