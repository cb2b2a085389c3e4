"""Messages from LangChain and OpenAI in the engine's shape."""

import pytest
from langchain_core.messages import AIMessage, ChatMessage, HumanMessage, SystemMessage, ToolMessage

from app.errors import RequestError
from app.messages import content_text, from_langchain, merge_neighbours


def test_each_kind_of_message_gets_its_role():
    messages = [
        SystemMessage("be brief"),
        HumanMessage("hi", name="ada"),
        AIMessage("hello"),
        ToolMessage("42", tool_call_id="a"),
    ]
    assert from_langchain(messages) == [
        {"role": "system", "content": "be brief"},
        {"role": "user", "content": "hi", "name": "ada"},
        {"role": "assistant", "content": "hello"},
        {"role": "tool", "content": "42", "tool_call_id": "a"},
    ]


def test_neighbours_of_one_role_are_merged_because_templates_refuse_them():
    messages = [
        SystemMessage("a"),
        SystemMessage("b"),
        HumanMessage("c"),
        HumanMessage("d"),
        AIMessage("e"),
        AIMessage("f"),
    ]
    assert from_langchain(messages) == [
        {"role": "system", "content": "a\n\nb"},
        {"role": "user", "content": "c\n\nd"},
        {"role": "assistant", "content": "e\n\nf"},
    ]


def test_messages_of_two_people_stay_apart():
    messages = [HumanMessage("a", name="ada"), HumanMessage("b", name="bob")]
    assert [message["content"] for message in from_langchain(messages)] == ["a", "b"]


def test_merging_leaves_its_input_alone():
    given = [{"role": "user", "content": "a"}, {"role": "user", "content": "b"}]
    merge_neighbours(given)
    assert given == [{"role": "user", "content": "a"}, {"role": "user", "content": "b"}]


def test_text_blocks_of_openai_and_anthropic_are_joined():
    blocks = [
        {"type": "text", "text": "one ", "cache_control": {"type": "ephemeral"}},
        {"type": "input_text", "text": "two"},
        "!",
    ]
    assert content_text(blocks) == "one two!"


def test_thoughts_and_tool_use_blocks_are_left_out_of_the_text():
    content = [
        {"type": "thinking", "thinking": "hm"},
        {"type": "text", "text": "Yes."},
        {"type": "tool_use", "name": "x", "input": {}, "id": "1"},
    ]
    assert from_langchain([AIMessage(content)]) == [{"role": "assistant", "content": "Yes."}]


def test_a_tool_call_travels_as_openai_writes_it():
    call = {"name": "add", "args": {"a": 1}, "id": "c1", "type": "tool_call"}
    (message,) = from_langchain([AIMessage("", tool_calls=[call])])
    assert message["tool_calls"] == [
        {"id": "c1", "type": "function", "function": {"name": "add", "arguments": '{"a": 1}'}}
    ]


def test_anthropic_tool_results_inside_a_user_message_become_tool_messages():
    content = [
        {"type": "tool_result", "tool_use_id": "foo", "content": [{"type": "text", "text": "green"}]},
        {"type": "text", "text": "and now?"},
    ]
    assert from_langchain([HumanMessage(content)]) == [
        {"role": "tool", "content": "green", "tool_call_id": "foo"},
        {"role": "user", "content": "and now?"},
    ]


@pytest.mark.parametrize("kind", ["image_url", "image", "input_audio", "file", None])
def test_what_is_not_text_is_refused_by_its_kind(kind):
    with pytest.raises(RequestError, match=f"block of type {kind!r}; this model takes text only") as caught:
        content_text([{"type": "text", "text": "a"}, {"type": kind}], "messages[0].content")
    assert caught.value.field == "messages[0].content[1]"


def test_a_chat_message_keeps_its_own_role():
    assert from_langchain([ChatMessage(role="critic", content="no")]) == [{"role": "critic", "content": "no"}]
