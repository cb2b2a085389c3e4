"""OpenAI's routes: chat completions, streamed or whole, and the list of models. The model alone, without documents.

Format: https://platform.openai.com/docs/api-reference/chat
"""

import time
import uuid
from collections.abc import AsyncIterator
from contextlib import aclosing
from typing import Any

from fastapi import APIRouter, Request, Response
from fastapi.responses import JSONResponse

from app.chat_deltas import logprob_entry, whole_calls
from app.engine_client import InProcessEngineClient
from app.errors import RequestError
from app.messages import Message
from app.routes import sse
from app.routes.faults import Fault, dump
from app.routes.openai_schema import ChatCompletionRequest
from app.services import Services
from engine.errors import EngineDeadError, InvalidParameterError
from engine.outputs import OutputDelta, ToolCallDelta

# Text has about 4.3 characters a token, of long words up to three times that; what is longer than this for each token
# of the context cannot be meant to fit, and is refused before the tokenizer works on it.
MAX_CHARS_PER_TOKEN = 16
DONE = sse.event("[DONE]")


class ContextLengthError(RequestError):
    """More characters than the model's context can hold."""

    code = "context_length_exceeded"
    status_code = 400

    def __init__(self, *, given: int, limit: int, max_model_len: int) -> None:
        super().__init__(
            f"This model's maximum context length is {max_model_len:,} tokens, for which at most {limit:,} characters "
            f"are taken; your messages have {given:,} characters. Please shorten them.",
            field="messages",
        )


class UnknownModelError(RequestError):
    """A model that this server does not serve."""

    code = "model_not_found"
    status_code = 404

    def __init__(self, name: str, served: str) -> None:
        super().__init__(f"The model {name!r} does not exist here; this server serves {served!r}.", field="model")


def create_router(services: Services) -> APIRouter:
    """/v1/chat/completions and /v1/models."""
    router = APIRouter(prefix="/v1", tags=["OpenAI"], route_class=sse.AbandonableRoute)

    @router.post("/chat/completions", response_model=None)
    async def chat_completions(request: Request, body: ChatCompletionRequest) -> Response:
        """An answer of the model, without documents; streamed with `"stream": true`."""
        services.require_ready()
        if body.model != services.model_name:
            raise UnknownModelError(body.model, services.model_name)
        body.check_fields()
        messages = body.engine_messages()
        _check_length(messages, services)
        completion = _Completion(services.engine, body, messages)
        if body.stream:
            return await sse.open_stream(completion.events(), _error_event)
        return JSONResponse(await completion.whole())

    @router.get("/models")
    async def list_models() -> dict[str, Any]:
        """The model that this server serves."""
        return {"object": "list", "data": [_model_entry(services)]}

    @router.get("/models/{model:path}")
    async def get_model(model: str) -> dict[str, Any]:
        """One model."""
        if model != services.model_name:
            raise UnknownModelError(model, services.model_name)
        return _model_entry(services)

    return router


def _model_entry(services: Services) -> dict[str, Any]:
    entry = {"id": services.model_name, "object": "model", "created": services.started_at, "owned_by": "ragstone"}
    if services.status()[0] == "ready":
        entry["max_model_len"] = services.engine.max_model_len
    return entry


def _check_length(messages: list[Message], services: Services) -> None:
    limit = max(services.settings.max_input_chars, MAX_CHARS_PER_TOKEN * services.engine.max_model_len)
    given = sum(len(message["content"]) for message in messages)
    if given > limit:
        raise ContextLengthError(given=given, limit=limit, max_model_len=services.engine.max_model_len)


def _error_event(fault: Fault) -> str:
    return sse.event(dump(fault.openai_body()))


class _Completion:
    """One request, answered whole or as a stream of chunks."""

    def __init__(self, client: InProcessEngineClient, body: ChatCompletionRequest, messages: list[Message]) -> None:
        self._client = client
        self._body = body
        self._messages = messages
        self._id = f"chatcmpl-{uuid.uuid4().hex}"
        self._created = int(time.time())

    async def whole(self) -> dict[str, Any]:
        """The reply to a request that does not stream."""
        parts: dict[int, list[OutputDelta]] = {}
        async for delta in self._deltas():
            parts.setdefault(delta.index, []).append(delta)
        choices = [
            {
                "index": index,
                "message": _whole_message(parts[index]),
                "logprobs": self._logprobs(parts[index]),
                "finish_reason": parts[index][-1].finish_reason,
            }
            for index in sorted(parts)
        ]
        last = {index: deltas[-1] for index, deltas in parts.items()}
        return self._reply("chat.completion", choices, usage=_usage(last))

    async def events(self) -> sse.Events:
        """The reply as server-sent events: a chunk with the role, chunks with text, perhaps one with the usage."""
        last: dict[int, OutputDelta] = {}
        async with aclosing(self._deltas()) as deltas:  # type: ignore[type-var]
            async for delta in deltas:
                if delta.index not in last:
                    yield self._chunk([self._choice(delta.index, {"role": "assistant", "content": ""}, None, None)])
                last[delta.index] = delta
                if delta.text or delta.logprobs or delta.tool_calls:  # else characters are held back until whole
                    content: dict[str, Any] = {"content": delta.text} if delta.text or not delta.tool_calls else {}
                    if delta.tool_calls:
                        content["tool_calls"] = [_call_piece(piece) for piece in delta.tool_calls]
                    yield self._chunk([self._choice(delta.index, content, self._logprobs([delta]), None)])
                if delta.finish_reason is not None:
                    yield self._chunk([self._choice(delta.index, {}, None, delta.finish_reason)])
        if self._body.stream_options is not None and self._body.stream_options.include_usage:
            yield self._chunk([], usage=_usage(last))
        yield DONE

    async def _deltas(self) -> AsyncIterator[OutputDelta]:
        stream = self._client.stream_chat(self._messages, self._body.sampling(), **self._body.tool_options)
        try:
            async with aclosing(stream) as deltas:
                async for delta in deltas:
                    if delta.finish_reason == "abort":
                        raise EngineDeadError("the engine broke off the answer; it is shutting down")
                    yield delta
        except InvalidParameterError as error:
            name = self._body.given_name(error.field)
            if name is None or name == error.field:
                raise
            raise InvalidParameterError(name, str(error).removeprefix(f"{error.field}: ")) from None

    def _choice(
        self, index: int, delta: dict[str, Any], logprobs: dict[str, Any] | None, finish_reason: str | None
    ) -> dict[str, Any]:
        return {"index": index, "delta": delta, "logprobs": logprobs, "finish_reason": finish_reason}

    def _logprobs(self, deltas: list[OutputDelta]) -> dict[str, Any] | None:
        if not self._body.logprobs:
            return None
        return {"content": [logprob_entry(entry) for delta in deltas for entry in delta.logprobs or ()]}

    def _chunk(self, choices: list[dict[str, Any]], **more: Any) -> str:
        return sse.event(dump(self._reply("chat.completion.chunk", choices, **more)))

    def _reply(self, kind: str, choices: list[dict[str, Any]], **more: Any) -> dict[str, Any]:
        return {
            "id": self._id,
            "object": kind,
            "created": self._created,
            "model": self._body.model,
            "choices": choices,
            **more,
        }


def _call_piece(piece: ToolCallDelta) -> dict[str, Any]:
    if piece.id is None:
        return {"index": piece.index, "function": {"arguments": piece.arguments}}
    function = {"name": piece.name, "arguments": piece.arguments}
    return {"index": piece.index, "id": piece.id, "type": "function", "function": function}


def _whole_message(deltas: list[OutputDelta]) -> dict[str, Any]:
    """The message of an answer: its text (null beside calls that no text goes with) and its tool calls."""
    text = "".join(delta.text for delta in deltas)
    calls = whole_calls(deltas)
    if not calls:
        return {"role": "assistant", "content": text}
    written = [
        {"id": call.id, "type": "function", "function": {"name": call.name, "arguments": call.arguments}}
        for call in calls
    ]
    return {"role": "assistant", "content": text or None, "tool_calls": written}


def _usage(last: dict[int, OutputDelta]) -> dict[str, Any]:
    """Token counts; the prompt counts once, however many answers there are."""
    prompt = max((delta.num_prompt_tokens for delta in last.values()), default=0)
    cached = max((delta.num_cached_tokens for delta in last.values()), default=0)
    output = sum(delta.num_output_tokens for delta in last.values())
    return {
        "prompt_tokens": prompt,
        "completion_tokens": output,
        "total_tokens": prompt + output,
        "prompt_tokens_details": {"cached_tokens": cached},
    }
