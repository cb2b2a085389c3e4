"""The engine's deltas in LangChain's and OpenAI's shapes: chunks, whole answers, tool calls, log-probabilities."""

import json
from collections.abc import Iterator, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from langchain_core.messages import AIMessage, AIMessageChunk, InvalidToolCall
from langchain_core.messages.ai import InputTokenDetails, UsageMetadata
from langchain_core.messages.tool import ToolCall, invalid_tool_call, tool_call, tool_call_chunk
from langchain_core.outputs import ChatGeneration, ChatGenerationChunk, ChatResult

if TYPE_CHECKING:
    from engine.outputs import OutputDelta, TokenLogprob, ToolCallDelta


def chunks(deltas: "Iterator[OutputDelta]", model_name: str) -> Iterator[ChatGenerationChunk]:
    """The deltas that say something, as chunks."""
    for delta in deltas:
        if says_something(delta):
            yield chunk(delta, model_name)


def says_something(delta: "OutputDelta") -> bool:
    """False while characters are held back until they are whole, or until they are no stop text."""
    return bool(delta.text or delta.logprobs or delta.tool_calls or delta.finish_reason)


def chunk(delta: "OutputDelta", model_name: str) -> ChatGenerationChunk:
    """One delta as a chunk. Usage, model name and finish reason stand in the last one only: chunks are added up."""
    info: dict[str, Any] = {}
    if delta.logprobs:
        info["logprobs"] = {"content": [logprob_entry(entry) for entry in delta.logprobs]}
    calls = [
        tool_call_chunk(name=piece.name, args=piece.arguments, id=piece.id, index=piece.index)
        for piece in delta.tool_calls
    ]
    if delta.finish_reason is None:
        message = AIMessageChunk(content=delta.text, tool_call_chunks=calls)
        return ChatGenerationChunk(message=message, generation_info=info or None)
    info |= {"finish_reason": delta.finish_reason, "model_name": model_name}
    message = AIMessageChunk(
        content=delta.text, tool_call_chunks=calls, usage_metadata=_usage(delta), chunk_position="last"
    )
    return ChatGenerationChunk(message=message, generation_info=info)


def result(deltas: "list[OutputDelta]", model_name: str) -> ChatResult:
    """Whole answers, by index."""
    by_index: dict[int, list[OutputDelta]] = {}
    for delta in deltas:
        by_index.setdefault(delta.index, []).append(delta)
    generations = []
    for index in sorted(by_index):
        parts = by_index[index]
        info: dict[str, Any] = {"finish_reason": parts[-1].finish_reason, "model_name": model_name}
        entries = [logprob_entry(entry) for part in parts for entry in part.logprobs or ()]
        if entries:
            info["logprobs"] = {"content": entries}
        valid, invalid = _parsed_calls(whole_calls(parts))
        message = AIMessage(
            content="".join(part.text for part in parts),
            tool_calls=valid,
            invalid_tool_calls=invalid,
            usage_metadata=_usage(parts[-1]),
        )
        generations.append(ChatGeneration(message=message, generation_info=info))
    return ChatResult(generations=generations, llm_output={"model_name": model_name})


def whole_calls(deltas: "Sequence[OutputDelta]") -> "list[ToolCallDelta]":
    """The tool calls of one answer, each put together from its pieces."""
    calls: dict[int, ToolCallDelta] = {}
    for piece in (piece for delta in deltas for piece in delta.tool_calls):
        begun = calls.get(piece.index)
        calls[piece.index] = piece if begun is None else replace(begun, arguments=begun.arguments + piece.arguments)
    return [calls[index] for index in sorted(calls)]


def _parsed_calls(calls: "Sequence[ToolCallDelta]") -> tuple[list[ToolCall], list[InvalidToolCall]]:
    """Calls with their arguments as data; those whose arguments are not (the answer was cut) as invalid ones."""
    valid, invalid = [], []
    for call in calls:
        try:
            arguments = json.loads(call.arguments)
        except ValueError as error:
            invalid.append(invalid_tool_call(name=call.name, args=call.arguments, id=call.id, error=str(error)))
        else:
            valid.append(tool_call(name=call.name or "", args=arguments, id=call.id))
    return valid, invalid


def _usage(delta: "OutputDelta") -> UsageMetadata:
    return UsageMetadata(
        input_tokens=delta.num_prompt_tokens,
        output_tokens=delta.num_output_tokens,
        total_tokens=delta.num_prompt_tokens + delta.num_output_tokens,
        input_token_details=InputTokenDetails(cache_read=delta.num_cached_tokens),
    )


def logprob_entry(entry: "TokenLogprob") -> dict[str, Any]:
    """A token's log-probability in OpenAI's shape."""
    return {
        "token": entry.token,
        "logprob": entry.logprob,
        "bytes": list(entry.bytes),
        "top_logprobs": [
            {"token": other.token, "logprob": other.logprob, "bytes": list(other.bytes)} for other in entry.top
        ],
    }
