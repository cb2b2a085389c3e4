"""Tools and structured output of ChatRagstone on the default model: every method, every kind of schema, every way."""

from typing import Annotated, Any, Literal, TypedDict

import jsonschema
import pytest
from langchain_core.exceptions import OutputParserException
from langchain_core.messages import AIMessage, HumanMessage, ToolMessage
from langchain_core.tools import tool
from pydantic import BaseModel, Field

from app.chat_model import ChatRagstone
from engine.errors import InvalidParameterError

QUESTION = "Plan a visit to a town."


class Visit(BaseModel):
    """A visit to a town."""

    town: Literal["Paris", "Rome"]
    days: int = Field(ge=1, le=9)
    by_train: bool = True


class VisitDict(TypedDict):
    """A visit to a town."""

    town: Annotated[Literal["Paris", "Rome"], ..., "which town"]
    by_train: bool


SCHEMA: dict[str, Any] = {
    "title": "visit",
    "description": "A visit to a town.",
    "type": "object",
    "properties": {"town": {"enum": ["Paris", "Rome"]}, "hotels": {"$ref": "#/$defs/hotels"}},
    "required": ["town", "hotels"],
    "$defs": {"hotels": {"type": "array", "items": {"type": "boolean"}, "maxItems": 2}},
}


@pytest.fixture(scope="module")
def chat(chat_model_path):
    return ChatRagstone(model=str(chat_model_path), temperature=1, seed=5, max_tokens=120)


@tool
def visit(town: Literal["Paris", "Rome"], days: Annotated[int, Field(ge=1, le=9)]) -> str:
    """Visit a town."""
    return f"{town} for {days} days"


def check(result: Any, schema: Any) -> None:
    if schema is Visit:
        assert isinstance(result, Visit)
    elif schema is VisitDict:
        assert result.keys() == {"town", "by_train"}
        assert result["town"] in ("Paris", "Rome")
    else:
        jsonschema.validate(result, SCHEMA)
        assert result.keys() == {"town", "hotels"}


@pytest.mark.parametrize("schema", [Visit, VisitDict, SCHEMA], ids=["pydantic", "typeddict", "json_schema"])
@pytest.mark.parametrize("method", ["json_schema", "function_calling"])
async def test_data_of_every_kind_of_schema_in_every_way(chat, schema, method):
    chain = chat.with_structured_output(schema, method=method)
    check(chain.invoke(QUESTION), schema)
    check(list(chain.stream(QUESTION))[-1], schema)
    check(await chain.ainvoke(QUESTION), schema)
    check([chunk async for chunk in chain.astream(QUESTION)][-1], schema)


def test_the_message_beside_the_data(chat):
    for method in ("json_schema", "function_calling"):
        result = chat.with_structured_output(Visit, method=method, include_raw=True).invoke(QUESTION)
        assert isinstance(result["raw"], AIMessage)
        assert result["raw"].usage_metadata["output_tokens"] > 0
        assert isinstance(result["parsed"], Visit)
        assert result["parsing_error"] is None


def test_json_mode_gives_an_object_and_the_parsers_error_beside_it(chat):
    cut = chat.with_structured_output(Visit, method="json_mode", include_raw=True, max_tokens=3).invoke(QUESTION)
    assert cut["raw"].content.startswith("{")
    assert cut["parsed"] is None
    assert isinstance(cut["parsing_error"], OutputParserException)
    with pytest.raises(OutputParserException):
        chat.with_structured_output(Visit, method="json_mode", max_tokens=3).invoke(QUESTION)


def test_a_schema_that_cannot_be_served_is_refused_with_its_reason(chat):
    endless = {"title": "e", "type": "object", "properties": {"e": {"$ref": "#"}}, "required": ["e"]}
    with pytest.raises(InvalidParameterError, match="recursive without an end"):
        chat.invoke("x", json_schema=endless)


async def test_a_forced_call_has_valid_arguments_in_every_way(chat):
    bound = chat.bind_tools([visit], tool_choice="visit", parallel_tool_calls=False)
    total: Any = None
    async for chunk in bound.astream(QUESTION):
        total = chunk if total is None else total + chunk
    for message in (bound.invoke(QUESTION), await bound.ainvoke(QUESTION), total):
        (call,) = message.tool_calls
        assert (call["name"], message.content, message.invalid_tool_calls) == ("visit", "", [])
        assert call["args"]["town"] in ("Paris", "Rome")
        assert 1 <= call["args"]["days"] <= 9
        assert message.response_metadata["finish_reason"] == "tool_calls"
        assert message.usage_metadata["total_tokens"] > message.usage_metadata["output_tokens"] > 0
    assert total.tool_call_chunks
    result = visit.invoke(message.tool_calls[0])
    assert isinstance(result, ToolMessage)
    answer = chat.bind_tools([visit], tool_choice="none").invoke(
        [HumanMessage(QUESTION), message, result], max_tokens=8
    )
    assert (answer.tool_calls, answer.content != "") == ([], True)


def test_a_call_that_is_cut_is_an_invalid_one(chat):
    whole = chat.bind_tools([visit], tool_choice="any", parallel_tool_calls=False).invoke(QUESTION)
    num_tokens = whole.usage_metadata["output_tokens"]
    cut = chat.bind_tools([visit], tool_choice="any", parallel_tool_calls=False).invoke(
        QUESTION, max_tokens=num_tokens // 2
    )
    assert cut.response_metadata["finish_reason"] == "length"
    assert (cut.tool_calls, len(cut.invalid_tool_calls)) == ([], 1)


def test_choice_and_regex_are_options_of_a_call(chat):
    assert chat.invoke("Pick one.", choice=["red", "blue"]).content in ("red", "blue")
    assert len(chat.invoke("A number?", regex="[0-9]{4}").content) == 4
