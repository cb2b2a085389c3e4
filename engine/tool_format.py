"""How a model writes tool calls: which syntax it was trained on, and the grammar that holds it to the tools' schemas.

Two syntaxes are known: *Hermes* (also Qwen's and ours: `<tool_call>` tags around `{"name": …, "arguments": …}`) and
*Llama* 3 (`{"name": …, "parameters": …}` as the whole answer). A model whose chat template knows neither is told of
Hermes in the system message. Reading calls out of an answer is `engine.tool_parser`'s part.
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal

from engine.errors import InvalidParameterError
from engine.grammar import JSON_WHITESPACE
from engine.schema_check import parse_schema

Message = Mapping[str, Any]
Syntax = Literal["hermes", "llama"]
Held = Literal["answer", "calls", ""]

MAX_TOOLS = 128
MAX_CALLS = 16  # in one answer; a small model would otherwise go on calling until its tokens are used up
OPEN, CLOSE = "<tool_call>", "</tool_call>"
_NAME = re.compile(r"[A-Za-z0-9_.-]{1,64}")

DESCRIPTION = """\
You can call functions. These are the functions, as JSON schemas:
<tools>
{tools}
</tools>
To call a function, write this and nothing after it, with the name and the arguments of the call:
<tool_call>
{{"name": "function-name", "arguments": {{"argument": "value"}}}}
</tool_call>
The result is given to you between <tool_response> and </tool_response>."""


@dataclass(frozen=True)
class ToolUse:
    """The tools of one request. `choice`: "auto", "required", or the name of the tool that must be called."""

    tools: tuple[Mapping[str, Any], ...]
    choice: str = "auto"
    parallel: bool = True

    @property
    def names(self) -> frozenset[str]:
        return frozenset(tool["function"]["name"] for tool in self.tools)

    @property
    def is_forced(self) -> bool:
        return self.choice != "auto"

    @property
    def callable_tools(self) -> list[Mapping[str, Any]]:
        """The functions that may be called under the choice."""
        functions = [tool["function"] for tool in self.tools]
        return functions if self.choice in ("auto", "required") else [f for f in functions if f["name"] == self.choice]


def tool_use(tools: Any, choice: Any = None, parallel: Any = None) -> ToolUse | None:
    """The tools of a request from OpenAI's `tools`, `tool_choice` and `parallel_tool_calls`; None: no tool is in play.

    Where `parallel` is not given, a forced choice gives one call, and "auto" as many as the model writes.

    Raises:
        InvalidParameterError: not of OpenAI's form; names the field.
    """
    if parallel not in (None, True, False):
        raise InvalidParameterError("parallel_tool_calls", f"must be true or false, got {parallel!r}")
    if choice is not None and not isinstance(choice, str | Mapping):
        raise InvalidParameterError("tool_choice", f"must be text or an object, not {type(choice).__name__}")
    if not tools:
        if choice not in (None, "none", "auto"):
            raise InvalidParameterError("tool_choice", "needs tools; none are given")
        return None
    checked = _checked_tools(tools)
    names = [tool["function"]["name"] for tool in checked]
    if isinstance(choice, Mapping):
        function = choice.get("function")
        name = function.get("name") if isinstance(function, Mapping) else None
        if choice.get("type") != "function" or name not in names:
            raise InvalidParameterError(
                "tool_choice", f'must be {{"type": "function", "function": {{"name": one of {", ".join(names)}}}}}'
            )
        choice = name
    elif choice not in (None, "none", "auto", "required"):
        raise InvalidParameterError("tool_choice", f'must be "none", "auto", "required" or an object, got {choice!r}')
    if choice == "none":
        return None
    # A forced answer of a small model would repeat its call for ever: several are a matter of asking for them.
    is_forced = choice not in (None, "auto")
    return ToolUse(tuple(checked), choice or "auto", not is_forced if parallel is None else parallel)


def _checked_tools(tools: Any) -> list[Mapping[str, Any]]:
    if isinstance(tools, str | Mapping) or not isinstance(tools, Sequence):
        raise InvalidParameterError("tools", f"must be a list of tools, not {type(tools).__name__}")
    if len(tools) > MAX_TOOLS:
        raise InvalidParameterError("tools", f"has {len(tools):,} entries; at most {MAX_TOOLS} are allowed")
    names: set[str] = set()
    for index, tool in enumerate(tools):
        function = tool.get("function") if isinstance(tool, Mapping) else None
        if not isinstance(function, Mapping) or tool.get("type") != "function":
            raise InvalidParameterError("tools", f'tools[{index}] must be {{"type": "function", "function": {{…}}}}')
        name = function.get("name")
        if not isinstance(name, str) or not _NAME.fullmatch(name):
            raise InvalidParameterError(
                "tools", f"tools[{index}].function.name must be 1 to 64 letters, digits, _, - or ., got {name!r}"
            )
        if name in ("auto", "required") or name in names:
            raise InvalidParameterError("tools", f"tools[{index}].function.name {name!r} is taken: choose another")
        names.add(name)
        if not isinstance(function.get("parameters", {}), Mapping | None):
            raise InvalidParameterError("tools", f"tools[{index}].function.parameters must be a JSON schema")
    return list(tools)


# --------------------------------------------------------------------------------------------------------------- format


def native_syntax(template: str) -> Syntax | None:
    """The syntax of tool calls that a chat template (its source) teaches; None where it teaches none that is known."""
    if OPEN in template and "<function=" not in template:
        return "hermes"
    if "<|python_tag|>" in template or "Environment: ipython" in template or '"parameters": dictionary' in template:
        return "llama"
    return None


def speak_of_tools(messages: Any, tools: Any) -> bool:
    """Whether there are tools, calls or results; what is no list of messages is for the template to refuse."""
    if isinstance(messages, str | Mapping) or not all(isinstance(message, Mapping) for message in messages):
        return False
    return bool(tools) or any(message.get("role") == "tool" or message.get("tool_calls") for message in messages)


def described(messages: Sequence[Message], tools: Sequence[Mapping[str, Any]] | None) -> list[Message]:
    """Messages for a template without tools: definitions in the system message, calls and results as text.

    The format is Qwen2.5's and Hermes', in our words (`DESCRIPTION`).
    """
    told: list[Message] = []
    for message in messages:
        text = _text(message.get("content"))
        if message.get("role") == "tool":
            result = f"<tool_response>\n{text}\n</tool_response>"
            if told and told[-1].get("is_result"):
                told[-1] = {**told[-1], "content": f"{told[-1]['content']}\n{result}"}
            else:
                told.append({"role": "user", "content": result, "is_result": True})
        elif message.get("tool_calls"):
            calls = [_call_text(call) for call in message["tool_calls"]]
            told.append({"role": "assistant", "content": "\n".join(part for part in (text, *calls) if part)})
        else:
            told.append(message)
    told = [{key: value for key, value in message.items() if key != "is_result"} for message in told]
    if not tools:
        return told
    definitions = "\n".join(json.dumps(tool.get("function", tool), ensure_ascii=False) for tool in tools)
    description = DESCRIPTION.format(tools=definitions)
    if told and told[0].get("role") in ("system", "developer"):
        head = {**told[0], "content": f"{_text(told[0].get('content'))}\n\n{description}"}
        return [head, *told[1:]]
    return [{"role": "system", "content": description}, *told]


def _text(content: Any) -> str:
    if isinstance(content, list | tuple):
        return "\n".join(str(block.get("text", "")) if isinstance(block, Mapping) else str(block) for block in content)
    return "" if content is None else str(content)


def _call_text(call: Any) -> str:
    function = call.get("function") if isinstance(call, Mapping) else None
    if not isinstance(function, Mapping):
        return ""
    arguments = function.get("arguments", "{}")
    arguments = arguments if isinstance(arguments, str) else json.dumps(arguments, ensure_ascii=False)
    return f'{OPEN}\n{{"name": {json.dumps(function.get("name"))}, "arguments": {arguments or "{}"}}}\n{CLOSE}'


# -------------------------------------------------------------------------------------------------------------- grammar


def call_grammar(syntax: Syntax, use: ToolUse, answer_schema: Mapping[str, Any] | str | None = None) -> str | None:
    """A grammar (llguidance's Lark) for an answer with tools; None where the answer is free.

    A forced choice allows calls only. With "auto" the answer is free until it opens a call (Hermes), or it is a call
    or a document of `answer_schema` where that is given. A tool's arguments are held to its schema: exactly with
    `"strict": true`, else as far as its keywords can be enforced.

    Raises:
        InvalidParameterError: a schema that cannot be served.
    """
    if syntax == "llama":
        if not use.is_forced and answer_schema is None:
            return None
        rules = ["calls: call", f"call: {_alternatives(use)}", *_bodies(use, "parameters")]
    else:
        more = f' ("\\n{OPEN}" inner){{0,{MAX_CALLS - 1}}}' if use.parallel else ""
        rules = [
            f"calls: OPEN inner{more}",
            f'inner: "\\n" call "\\n{CLOSE}"',
            f"call: {_alternatives(use)}",
            *_bodies(use, "arguments"),
        ]
    if use.is_forced:
        return "\n".join(
            ["start: calls", f'OPEN: "{OPEN}"', *rules] if syntax == "hermes" else ["start: calls", *rules]
        )
    if answer_schema is not None:
        rules = ["start: calls | answer", f"answer: {json_rule(answer_schema)}", *rules]
        return "\n".join([*rules, f'OPEN: "{OPEN}"'] if syntax == "hermes" else rules)
    any_text = r"(.|\n)*"
    free = f"TEXT: /{any_text}/ & ~/{any_text}{OPEN}{any_text}/"
    opened = rf"OPEN: /{any_text}{OPEN}/ & ~/{any_text}{OPEN}(.|\n)+/"
    return "\n".join(["start: TEXT | calls", free, opened, *rules])


def _alternatives(use: ToolUse) -> str:
    return " | ".join(f"call_{number}" for number in range(len(use.callable_tools)))


def _bodies(use: ToolUse, key: str) -> list[str]:
    rules = []
    for number, function in enumerate(use.callable_tools):
        head = json.dumps(f'{{"name": "{function["name"]}", "{key}": ')
        schema = function.get("parameters") or {"type": "object", "properties": {}}
        lenient = function.get("strict") is not True
        rules.append(f'call_{number}: {head} {json_rule(schema, closes=True, lenient=lenient, field="tools")} "}}"')
    return rules


def json_rule(
    schema: Mapping[str, Any] | str, *, closes: bool = False, lenient: bool = False, field: str = "json_schema"
) -> str:
    """The right side of a grammar rule for documents of a schema, which is made a `closed` one first if `closes`.

    Raises InvalidParameterError, naming `field`.
    """
    try:
        parsed = parse_schema(schema)
    except InvalidParameterError as error:
        raise InvalidParameterError(field, str(error)) from None
    if closes:
        parsed = closed(parsed)
    options = {"whitespace_flexible": True, "whitespace_pattern": JSON_WHITESPACE, "lenient": lenient}
    return f"%json {json.dumps({**parsed, 'x-guidance': options})}"


def closed(schema: Any) -> Any:
    """The schema with every object that lists its properties closed to others, where it does not say.

    What matches it matches the given schema too, and a function is not called with arguments that it does not have.
    """
    if isinstance(schema, list | tuple):
        return [closed(item) for item in schema]
    if not isinstance(schema, Mapping):
        return schema
    changed = {
        key: value if key in ("enum", "const", "default", "examples") else closed(value)
        for key, value in schema.items()
    }
    is_object = isinstance(schema.get("properties"), Mapping) and schema.get("type", "object") == "object"
    if (
        is_object
        and not {"additionalProperties", "patternProperties", "allOf", "unevaluatedProperties"} & schema.keys()
    ):
        changed["additionalProperties"] = False
    return changed
