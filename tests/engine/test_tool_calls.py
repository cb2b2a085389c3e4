"""Tool calls: told to models of every kind, held to their schemas, and read out of text however it is cut."""

import json
import re
from pathlib import Path
from typing import Any

import jsonschema
import pytest
from hypothesis import given
from hypothesis import strategies as st

from engine import Engine, SamplingParams
from engine.errors import InvalidParameterError
from engine.json_escapes import whole_escapes
from engine.tool_format import call_grammar, closed, described, json_rule, native_syntax, tool_use
from engine.tool_parser import ToolCallParser
from tests.engine import chat_templates
from tests.engine.conftest import make_tiny_engine


def tool(name: str, parameters: dict[str, Any] | None = None, **more: Any) -> dict[str, Any]:
    return {"type": "function", "function": {"name": name, "parameters": parameters or {"type": "object"}, **more}}


ADD = tool(
    "add",
    {"type": "object", "properties": {"a": {"enum": [1, 2]}, "b": {"type": "boolean"}}, "required": ["a", "b"]},
)
NOTHING = tool("nothing", {"type": "object", "properties": {}})


@pytest.fixture(scope="module")
def engine(tiny_folder: Path) -> Engine:
    return make_tiny_engine(tiny_folder, num_kv_blocks=400, max_num_batched_tokens=64)


def read(syntax: Any, pieces: list[str], holds: Any = "") -> tuple[str, list[tuple[str, str]]]:
    """(text, [(name, arguments)]) of an answer that arrives in these pieces."""
    parser = ToolCallParser(syntax, {"add", "nothing"}, holds)
    parts = [parser.push(piece) for piece in pieces] + [parser.finish()]
    calls: list[list[str]] = []
    for part in parts:
        for call in part.calls:
            if call.id is not None:
                assert (len(call.id), call.index) == (9, len(calls))
                calls.append([call.name or "", call.arguments])
            else:
                calls[call.index][1] += call.arguments
    return "".join(part.text for part in parts), [(name, arguments) for name, arguments in calls]


CALL = '{"name": "add", "arguments": {"a": 1, "s": "}{\\"</tool_call>"}}'
ANSWERS = [
    ("hermes", "Just text < and > </tool_call>.", ("Just text < and > </tool_call>.", [])),
    ("hermes", f"<tool_call>\n{CALL}\n</tool_call>", ("", [("add", '{"a": 1, "s": "}{\\"</tool_call>"}')])),
    ("hermes", 'Hm.\n\n<tool_call>{"name":"nothing","arguments":{}}</tool_call>\n', ("Hm.", [("nothing", "{}")])),
    (
        "hermes",
        '<tool_call>\n{"name": "nothing", "arguments": {}}\n</tool_call>\n<tool_call>\n{"arguments": {"a": 2}, '
        '"name": "add"}\n</tool_call>',
        ("", [("nothing", "{}"), ("add", '{"a": 2}')]),
    ),
    ("hermes", '<tool_call>\n{"name": "add", "arguments": "{\\"a\\": 2}"}</tool_call>', ("", [("add", '{"a": 2}')])),
    ("hermes", '<tool_call>\n{"name": "add", "arguments": {"a": ', ("", [("add", '{"a": ')])),
    ("hermes", '<tool_call>{"name": "other", "arguments": {}}</tool_call>', None),
    ("hermes", "<tool_call>no json</tool_call> and text", None),
    ("hermes", "half <tool_ca", None),
    ("hermes", '<tool_call>{"name":"nothing","arguments":{}}</tool_call>\n<tool_c', ("", [("nothing", "{}")])),
    ("hermes", '<tool_call>{"name":"nothing","arguments":{}}</tool_call>\n<tool_call>{"na', ("", [("nothing", "{}")])),
    ("hermes", "lines\n\n", None),
    ("hermes", f"```json\n{CALL}\n```", ("", [("add", '{"a": 1, "s": "}{\\"</tool_call>"}')])),
    ("hermes", f"\n{CALL}\nDone.", ("\nDone.", [("add", '{"a": 1, "s": "}{\\"</tool_call>"}')])),
    ("hermes", '```\n{ "name" : "nothing",\n"arguments" : {} }\n```', ("", [("nothing", "{}")])),
    ("hermes", '```json\n{"name": "other", "arguments": {}}\n```', None),
    ("hermes", '```json\n{"name": "Ada"}\n```', None),
    ("hermes", f"Such as:\n```json\n{CALL.replace('</tool_call>', '')}\n```", None),
    ("hermes", "```python\nname = 1\n```", None),
    ("llama", "Text with {braces}", None),
    ("llama", '{"name": "add", "parameters": {"a": 1}}', ("", [("add", '{"a": 1}')])),
    (
        "llama",
        ' {"name": "add", "parameters": {"a": 1}}; {"name": "nothing", "parameters": {}}',
        ("", [("add", '{"a": 1}'), ("nothing", "{}")]),
    ),
    ("llama", '{"name": "other", "parameters": {}}', None),
    ("llama", '{"answer": 42}', None),
]


@pytest.mark.parametrize(("syntax", "answer", "expected"), ANSWERS)
def test_calls_are_read_however_the_text_is_cut(syntax, answer, expected):
    expected = expected or (answer, [])  # None: it is text and nothing else
    assert read(syntax, [answer]) == expected
    assert read(syntax, list(answer)) == expected
    for at in range(len(answer)):
        assert read(syntax, [answer[:at], answer[at:]]) == expected


@pytest.mark.parametrize(
    ("syntax", "holds", "answer", "shown"),
    [
        ("hermes", "answer", CALL_TEXT := f"<tool_call>\n{CALL}\n</tool_call>", ""),
        ("llama", "answer", CALL.replace("arguments", "parameters"), ""),
        ("hermes", "calls", f"Hm.\n{CALL_TEXT}", "Hm."),
        ("hermes", "calls", "half <", "half <"),
        ("llama", "calls", '{"answer": "cu', '{"answer": "cu'),
    ],
)
def test_a_call_that_is_cut_anywhere_shows_none_of_its_markup(syntax, holds, answer, shown):
    assert read(syntax, [answer], holds)[0] == shown
    for length in range(answer.find("<tool") + 2 if "<tool" in answer else len(answer), len(answer)):
        assert read(syntax, [answer[:length]], holds)[0] == shown
    if holds == "answer":
        assert all(read(syntax, [answer[:length]], holds)[0] == "" for length in range(len(answer)))


@given(st.text(alphabet='<tool_ca>l/{"}\n :name', max_size=60), st.integers(1, 7))
def test_text_without_a_call_comes_out_as_it_is(text, size):
    pieces = [text[i : i + size] for i in range(0, len(text), size)]
    for syntax in ("hermes", "llama"):
        shown, calls = read(syntax, pieces)
        assert calls or shown == text


def test_arguments_are_streamed_as_they_come():
    parser = ToolCallParser("hermes", {"add"})
    seen = [parser.push(piece).calls for piece in ('<tool_call>{"name": "add", "arguments": {', '"a": ', "1}", "}")]
    assert [[call.arguments for call in calls] for calls in seen] == [["{"], ['"a": '], ["1}"], []]


ESCAPED = r'{"s": "caf\u00e9 \ud83d\ude00 \\u00e9 \\\" \n"}'


@pytest.mark.parametrize("size", [1, 2, 3, 5])
def test_pieces_of_arguments_end_where_an_escape_sequence_is_whole(size):
    """[vercel/ai#15865: a value vanished while an escape of it was written]"""
    call = f'<tool_call>{{"name": "add", "arguments": {ESCAPED}}}</tool_call>'
    parser, seen = ToolCallParser("hermes", {"add"}), ""
    for start in range(0, len(call), size):
        for piece in parser.push(call[start : start + size]).calls:
            seen += piece.arguments
            text = seen.removesuffix("}")
            if text.startswith('{"s": "') and not text.endswith('"'):
                assert json.loads(ESCAPED)["s"].startswith(json.loads(f'{text}"}}')["s"])
    assert seen == ESCAPED


@given(st.text(alphabet="\\u0dD8eCn", max_size=12))
def test_what_is_held_of_json_text_is_its_last_escape_only(text):
    whole = whole_escapes(text)
    assert text.startswith(whole)
    assert len(text) - len(whole) <= 11
    assert whole_escapes(text + " ") == text + " "


# ── held to the schemas ──────────────────────────────────────────────────────────────────────────────────────────────


@pytest.mark.parametrize("syntax", ["hermes", "llama"])
@pytest.mark.parametrize("choice", ["required", {"type": "function", "function": {"name": "add"}}])
def test_a_forced_call_is_a_call_with_valid_arguments(engine, syntax, choice):
    use = tool_use([ADD, NOTHING], choice, False)
    for seed in range(4):
        output = engine.generate([2, 3], SamplingParams(grammar=call_grammar(syntax, use), seed=seed))
        assert output.finish_reason == "stop"
        text, calls = read(syntax, [output.text])
        assert text == ""
        assert calls
        for name, arguments in calls:
            schema = (ADD if name == "add" else NOTHING)["function"]["parameters"]
            jsonschema.validate(json.loads(arguments), closed(schema))
            assert choice == "required" or name == "add"


def test_without_parallel_calls_the_answer_ends_after_one(engine):
    use = tool_use([NOTHING], "required", False)
    output = engine.generate([2], SamplingParams(grammar=call_grammar("hermes", use)))
    assert read("hermes", [re.sub(r"\s+(?=})", "", output.text)]) == ("", [("nothing", "{}")])
    assert (output.finish_reason, output.text.endswith("}\n</tool_call>")) == ("stop", True)


def test_an_answer_is_free_until_it_opens_a_call(engine):
    grammar = call_grammar("hermes", tool_use([ADD], "auto"))
    follow = engine.grammars.compile(SamplingParams(grammar=grammar))
    for token_id in engine.tokenizer.encode("the fox <tool_call>"):
        assert follow.valid_drafts([token_id]) == [token_id]
        follow.advance(token_id)
    assert follow.valid_drafts(engine.tokenizer.encode("x")) == []
    rest = engine.tokenizer.encode('\n{"name": "add", "arguments": {"a": 2, "b": true}}\n</tool_call>')
    assert follow.valid_drafts(rest) == rest
    assert follow.valid_drafts(engine.tokenizer.encode('\n{"name": "sub')) != engine.tokenizer.encode('\n{"name": "sub')


def test_auto_with_a_schema_gives_a_call_or_a_document(engine):
    grammar = call_grammar("hermes", tool_use([NOTHING], "auto"), {"enum": ["yes", "no"]})
    texts = {engine.generate([2], SamplingParams(grammar=grammar, seed=seed)).text for seed in range(8)}
    call = re.compile(r'<tool_call>\n{"name": "nothing", "arguments": {\s*}}\n</tool_call>')
    assert all(text in ('"yes"', '"no"') or call.match(text) for text in texts)


def test_keywords_that_cannot_be_enforced_are_left_out_unless_strict_is_asked_for(engine):
    schema = {"type": "object", "properties": {"a": {"type": "array", "uniqueItems": True, "items": {"enum": [1]}}}}
    engine.grammars.compile(SamplingParams(grammar=call_grammar("hermes", tool_use([tool("f", schema)], "required"))))
    strict = call_grammar("hermes", tool_use([tool("f", schema, strict=True)], "required"))
    with pytest.raises(InvalidParameterError, match="uniqueItems"):
        engine.grammars.compile(SamplingParams(grammar=strict))


# ── what a model is told ─────────────────────────────────────────────────────────────────────────────────────────────


@pytest.mark.parametrize(("name", "syntax"), [("LLAMA3", "llama"), ("QWEN25", "hermes"), ("MISTRAL", None)])
def test_the_syntax_is_the_one_that_the_template_teaches(name, syntax):
    assert native_syntax(getattr(chat_templates, name)) == syntax


def test_a_template_without_tools_is_told_of_them_in_text():
    call = {"id": "1", "type": "function", "function": {"name": "add", "arguments": '{"a": 1}'}}
    messages = [
        {"role": "system", "content": "Be brief."},
        {"role": "user", "content": "add"},
        {"role": "assistant", "content": "", "tool_calls": [call, call]},
        {"role": "tool", "content": "1", "tool_call_id": "1"},
        {"role": "tool", "content": "2", "tool_call_id": "1"},
    ]
    told = described(messages, [ADD])
    assert [message["role"] for message in told] == ["system", "user", "assistant", "user"]
    assert told[0]["content"].startswith("Be brief.\n\nYou can call functions.")
    assert json.dumps(ADD["function"]) in told[0]["content"]
    assert told[2]["content"] == "\n".join(['<tool_call>\n{"name": "add", "arguments": {"a": 1}}\n</tool_call>'] * 2)
    assert told[3]["content"] == ("<tool_response>\n1\n</tool_response>\n<tool_response>\n2\n</tool_response>")
    assert described(messages[1:2], [ADD])[0]["role"] == "system"


def test_the_prompt_of_a_model_without_tools_in_its_template_holds_them(engine):
    ids = engine.render_chat([{"role": "user", "content": "Hi"}], tools=[ADD])
    assert '"name": "add"' in engine.tokenizer.decode(ids)


@pytest.mark.parametrize(
    ("tools", "choice", "field"),
    [
        ("x", None, "tools"),
        ([{"type": "web_search"}], None, "tools"),
        ([{"type": "function", "function": {"name": "a b"}}], None, "tools"),
        ([tool("x" * 65)], None, "tools"),
        ([ADD, ADD], None, "tools"),
        ([tool(f"t{i}") for i in range(129)], None, "tools"),
        ([{"type": "function", "function": {"name": "a", "parameters": 1}}], None, "tools"),
        ([ADD], "sometimes", "tool_choice"),
        ([ADD], {"type": "function", "function": {"name": "sub"}}, "tool_choice"),
        ([ADD], 7, "tool_choice"),
        (None, "required", "tool_choice"),
    ],
)
def test_malformed_tools_are_refused_by_field(tools, choice, field):
    with pytest.raises(InvalidParameterError) as caught:
        tool_use(tools, choice)
    assert caught.value.field == field


def test_none_and_no_tools_put_nothing_in_play():
    assert tool_use([ADD], "none") is None
    assert tool_use([], "auto") is None
    assert tool_use(None) is None


@pytest.mark.parametrize("depth", [100, 300, 2000])
def test_parameters_that_are_nested_too_deeply_are_refused_by_name(depth: int) -> None:
    schema: dict[str, object] = {"type": "string"}
    for _ in range(depth):
        schema = {"type": "object", "properties": {"a": schema}, "required": ["a"]}
    with pytest.raises(InvalidParameterError, match=r"nested too deeply|cannot be written as JSON") as caught:
        json_rule(schema, closes=True, field="tools")
    assert caught.value.field == "tools"
