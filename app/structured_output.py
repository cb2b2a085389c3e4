"""Chains that answer with data instead of text: a chat model bound to a schema, and a parser behind it.

How decoding is held to a schema is the engine's part; here a schema of any of LangChain's kinds becomes options of a
call, and the message that comes back becomes data.
"""

from operator import itemgetter
from typing import TYPE_CHECKING, Any, Literal

from langchain_core.language_models import LanguageModelInput
from langchain_core.output_parsers import BaseOutputParser, JsonOutputParser, PydanticOutputParser
from langchain_core.output_parsers.openai_tools import JsonOutputKeyToolsParser, PydanticToolsParser
from langchain_core.outputs import Generation
from langchain_core.runnables import Runnable, RunnableMap, RunnablePassthrough
from langchain_core.utils.function_calling import convert_to_json_schema, convert_to_openai_tool
from langchain_core.utils.pydantic import is_basemodel_subclass

from engine.json_escapes import whole_escapes

if TYPE_CHECKING:
    from app.chat_model import ChatRagstone

StructuredOutputMethod = Literal["json_schema", "function_calling", "json_mode"]


def structured_output(
    model: "ChatRagstone",
    schema: dict[str, Any] | type | None,
    *,
    method: StructuredOutputMethod,
    include_raw: bool,
    strict: bool | None,
    options: dict[str, Any],
) -> Runnable[LanguageModelInput, Any]:
    """See `ChatRagstone.with_structured_output`. Raises ValueError for an unknown method or a missing schema."""
    if method not in ("json_schema", "function_calling", "json_mode"):
        raise ValueError(f'method={method!r} is not supported; use "json_schema", "function_calling" or "json_mode"')
    if schema is None and method != "json_mode":
        raise ValueError(f'method="{method}" needs a schema')
    pydantic_class: Any = schema if isinstance(schema, type) and is_basemodel_subclass(schema) else None
    parser: BaseOutputParser[Any] | Any
    if method == "function_calling":
        assert schema is not None
        tool = convert_to_openai_tool(schema, strict=strict)
        name = tool["function"]["name"]
        tracing = {"kwargs": {"method": method, "strict": strict}, "schema": tool}
        llm = model.bind_tools(
            [tool], tool_choice=name, parallel_tool_calls=False, ls_structured_output_format=tracing, **options
        )
        parser = (
            PydanticToolsParser(tools=[pydantic_class], first_tool_only=True)
            if pydantic_class is not None
            else JsonOutputKeyToolsParser(key_name=name, first_tool_only=True)
        )
    else:
        response_format, tracing = _response_format(schema, method)
        llm = model.bind(response_format=response_format, ls_structured_output_format=tracing, **options)
        parser = _PydanticParser(pydantic_object=pydantic_class) if pydantic_class is not None else _JsonParser()
    return _with_raw(llm, parser) if include_raw else llm | parser


class _JsonParser(JsonOutputParser):
    """LangChain's, in whose streams no value vanishes while an escape sequence of it is being written."""

    def parse_result(self, result: list[Generation], *, partial: bool = False) -> Any:
        return super().parse_result(_certain(result) if partial else result, partial=partial)


class _PydanticParser(PydanticOutputParser[Any]):
    """The same for objects of a class."""

    def parse_result(self, result: list[Generation], *, partial: bool = False) -> Any:
        return super().parse_result(_certain(result) if partial else result, partial=partial)


def _certain(result: list[Generation]) -> list[Generation]:
    return [Generation(text=whole_escapes(one.text)) for one in result]


def _response_format(
    schema: dict[str, Any] | type | None, method: StructuredOutputMethod
) -> tuple[dict[str, Any], dict[str, Any]]:
    """OpenAI's `response_format`, and what tracing is told of it."""
    described = convert_to_openai_tool(schema) if schema is not None else None
    tracing = {"kwargs": {"method": method}, "schema": described}
    if method == "json_mode" or schema is None or described is None:
        return {"type": "json_object"}, tracing
    json_schema = {"name": described["function"]["name"], "schema": convert_to_json_schema(schema), "strict": True}
    return {"type": "json_schema", "json_schema": json_schema}, tracing


def _with_raw(llm: Runnable[Any, Any], parser: Any) -> Runnable[LanguageModelInput, Any]:
    """Keeps the message beside the data, and an error of the parser instead of raising it."""
    parsed = RunnablePassthrough.assign(parsed=itemgetter("raw") | parser, parsing_error=lambda _: None)
    failed = RunnablePassthrough.assign(parsed=lambda _: None)
    return RunnableMap(raw=llm) | parsed.with_fallbacks([failed], exception_key="parsing_error")
