"""Chat messages in the shape the engine takes: OpenAI-style dicts with a role and plain text.

Translates LangChain messages and content blocks (OpenAI's and Anthropic's), and merges neighbours of the same role.
What a message looks like to the model is the chat template's business, in the engine.
"""

import json
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from langchain_core.messages import AIMessage, BaseMessage, ChatMessage, HumanMessage, SystemMessage, ToolMessage

from app.errors import RequestError

Message = dict[str, Any]
"""`role` (system, user, assistant or tool) and `content` (str); perhaps `name`, `tool_calls`, `tool_call_id`."""

TEXT_BLOCKS = frozenset({"text", "input_text", "output_text"})
# Thoughts of an earlier answer are not part of what was said; tool calls stand in `tool_calls` as well.
SILENT_BLOCKS = frozenset({"thinking", "redacted_thinking", "reasoning", "tool_use", "tool_call", "cache_point"})


def from_langchain(messages: Sequence[BaseMessage]) -> list[Message]:
    """LangChain messages as the engine takes them, neighbours of one role merged.

    Raises RequestError for a kind of message or of content that a text model cannot take, naming it.
    """
    return merge_neighbours([entry for message in messages for entry in _translate(message)])


def merge_neighbours(messages: Iterable[Message]) -> list[Message]:
    """Joins neighbouring system, user or assistant messages into one, with an empty line between.

    Many chat templates refuse two turns of one role in a row, which happens after every turn that failed.
    """
    merged: list[Message] = []
    for message in messages:
        last = merged[-1] if merged else None
        if last is not None and _may_merge(last, message):
            last["content"] = "\n\n".join(part for part in (last["content"], message["content"]) if part)
        else:
            merged.append(dict(message))
    return merged


def content_text(content: Any, where: str = "content") -> str:
    """The text of a message's content: a string, None, or a list of blocks of which only text ones are taken.

    Raises RequestError naming a block that is not text (image, audio, file).
    """
    if content is None:
        return ""
    if isinstance(content, str):
        return content
    if not isinstance(content, Sequence):
        raise RequestError(f"{where} must be a string or a list of blocks, not {type(content).__name__}", field=where)
    return "".join(_block_text(block, f"{where}[{number}]") for number, block in enumerate(content))


def check_text(body: Any) -> None:
    """Raises RequestError where a JSON body holds half a surrogate pair, which JSON can spell and UTF-8 cannot.

    It names the first of the body's own fields that does.
    """
    fields = body.items() if isinstance(body, Mapping) else [("body", body)]
    for name, value in fields:
        try:
            json.dumps([name, value], ensure_ascii=False).encode()
        except UnicodeEncodeError:
            shown = name.encode("utf-8", "replace").decode()
            raise RequestError(f"{shown} holds half a surrogate pair, which is not a character", field=shown) from None


def _block_text(block: Any, where: str) -> str:
    if isinstance(block, str):
        return block
    kind = block.get("type") if isinstance(block, Mapping) else None
    if kind in TEXT_BLOCKS and isinstance(block.get("text"), str):
        return str(block["text"])
    if kind in SILENT_BLOCKS:
        return ""
    raise RequestError(f"{where} is a block of type {kind!r}; this model takes text only: leave it out", field=where)


def _translate(message: BaseMessage) -> list[Message]:
    if isinstance(message, HumanMessage):
        return _user_messages(message)
    if isinstance(message, AIMessage):
        entry: Message = {"role": "assistant", "content": content_text(message.content)}
        if message.tool_calls:
            entry["tool_calls"] = [
                {
                    "id": call["id"],
                    "type": "function",
                    "function": {"name": call["name"], "arguments": json.dumps(call["args"], ensure_ascii=False)},
                }
                for call in message.tool_calls
            ]
        return [_named(entry, message)]
    if isinstance(message, SystemMessage):
        return [_named({"role": "system", "content": content_text(message.content)}, message)]
    if isinstance(message, ToolMessage):
        return [_tool_result(message.tool_call_id, message.content)]
    if isinstance(message, ChatMessage):
        return [{"role": message.role, "content": content_text(message.content)}]
    raise RequestError(
        f"messages of type {message.type!r} are not supported; use system, human, ai or tool messages", field="messages"
    )


def _user_messages(message: HumanMessage) -> list[Message]:
    """A user message; Anthropic puts tool results inside one, OpenAI (and every template) beside it."""
    if isinstance(message.content, str):
        return [_named({"role": "user", "content": message.content}, message)]
    results = [block for block in message.content if isinstance(block, dict) and block.get("type") == "tool_result"]
    rest = [block for block in message.content if block not in results]
    entries = [_tool_result(str(block.get("tool_use_id", "")), block.get("content")) for block in results]
    if rest or not entries:
        entries.append(_named({"role": "user", "content": content_text(rest)}, message))
    return entries


def _tool_result(call_id: str, content: Any) -> Message:
    return {"role": "tool", "content": content_text(content), "tool_call_id": call_id}


def _named(entry: Message, message: BaseMessage) -> Message:
    return {**entry, "name": message.name} if message.name else entry


def _may_merge(first: Message, second: Message) -> bool:
    if first["role"] != second["role"] or first["role"] not in ("system", "user", "assistant"):
        return False
    return first.get("name") == second.get("name") and "tool_calls" not in first and "tool_calls" not in second
