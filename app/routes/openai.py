"""OpenAI's routes: chat completions, streamed or whole, and the list of models.

A model by its own name answers alone; answers from the documents are `app/routes/rag_completion.py`'s.

Format: https://platform.openai.com/docs/api-reference/chat
"""

import time
import uuid
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import aclosing
from typing import Any, Protocol

from fastapi import APIRouter, Response
from fastapi.responses import JSONResponse

from app.chat_deltas import logprob_entry, whole_calls
from app.engines.request import EngineRequest
from app.engines.routing import RoutedClient
from app.errors import UnknownModelError
from app.messages import Message
from app.model_services import RAG_MODEL, ModelServices
from app.privacy import note_private
from app.routes import sse
from app.routes.access import CurrentUser
from app.routes.faults import dump
from app.routes.openai_reply import DONE, check_length, error_event, usage
from app.routes.openai_schema import ChatCompletionRequest, Priority
from engine.errors import EngineDeadError, EngineError
from engine.outputs import OutputDelta, ToolCallDelta


class Completion(Protocol):
    """One request that is being answered, whole or as a stream of chunks."""

    async def whole(self) -> dict[str, Any]:
        """The reply to a request that does not stream."""

    def events(self) -> sse.Events:
        """The reply as server-sent events."""


FromDocuments = Callable[[ChatCompletionRequest, list[Message], str, str], Awaitable[Completion]]
"""Request, its messages, priority and user -> an answer from the documents."""


def create_router(services: ModelServices, from_documents: FromDocuments | None = None) -> APIRouter:
    """/v1/chat/completions and /v1/models; an engine alone has no documents to answer from."""
    router = APIRouter(prefix="/v1", tags=["OpenAI"], route_class=sse.AbandonableRoute)

    @router.post("/chat/completions", response_model=None)
    async def chat_completions(body: ChatCompletionRequest, user: CurrentUser, x_priority: Priority = None) -> Response:
        """An answer of the model, without documents; from the documents with the model `ragstone-rag`."""
        services.require_ready()
        names = services.chat_names
        if body.model not in names:
            raise UnknownModelError(body.model, *names)
        body.check_fields()
        if body.private:
            note_private()
        messages = body.engine_messages()
        num_chars = sum(len(message["content"]) for message in messages)
        priority = body.priority or x_priority or "normal"
        completion: Completion
        if from_documents is not None and body.model == RAG_MODEL:
            await check_length("messages", num_chars, services.engine, services.settings)
            completion = await from_documents(body, messages, priority, user)
        else:
            body.refuse_search_fields(RAG_MODEL)
            client = services.generator(body.model, [message["content"] for message in messages])
            await check_length("messages", num_chars, client, services.settings)
            completion = _ModelCompletion(client, body, messages, priority)
        if body.stream:
            return await sse.open_stream(completion.events(), error_event)
        return JSONResponse(await completion.whole())

    @router.get("/models")
    def list_models() -> dict[str, Any]:
        """The models that this server serves. `state` of a chat model: loaded, loading, not_loaded, or remote."""
        return {"object": "list", "data": [_model_entry(name, services) for name in services.served_models]}

    @router.get("/models/{model:path}")
    def get_model(model: str) -> dict[str, Any]:
        """One model."""
        if model not in services.served_models:
            raise UnknownModelError(model, *services.served_models)
        return _model_entry(model, services)

    return router


def _model_entry(name: str, services: ModelServices) -> dict[str, Any]:
    entry = {
        "id": name,
        "object": "model",
        "created": services.started_at,
        "owned_by": "ragstone",
        "task": services.tasks[name],
    }
    is_up = services.status()[0] in ("ready", "degraded")
    if (given := services.table.entries.get(name)) is not None:
        entry |= {"uses": list(given.uses), "state": services.pool.state(name)}
        if is_up and entry["state"] in ("loaded", "remote"):
            client = services.pool.backend(name).client
            entry |= {"max_model_len": client.max_model_len, "num_parameters": client.num_parameters}
    elif is_up and (context := services.context_of(name)) is not None:
        entry["max_model_len"] = context
    return entry


class _ModelCompletion:
    """One request, answered whole or as a stream of chunks."""

    def __init__(
        self, client: RoutedClient, body: ChatCompletionRequest, messages: list[Message], priority: str
    ) -> None:
        self._client = client
        self._priority = priority
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
        return self._reply("chat.completion", choices, usage=usage(last.values()))

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
        if self._body.includes_usage:
            yield self._chunk([], usage=usage(last.values()))
        yield DONE

    async def _deltas(self) -> AsyncIterator[OutputDelta]:
        request = EngineRequest(
            messages=self._messages,
            params=self._body.sampling(),
            priority=self._priority,
            **self._body.tool_options,
        )
        try:
            async with aclosing(self._client.stream(request)) as deltas:
                async for delta in deltas:
                    if delta.finish_reason == "abort":
                        raise EngineDeadError("the engine broke off the answer; it is shutting down")
                    yield delta
        except EngineError as error:
            raise self._body.as_given(error) from None

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
            "model": self._client.answered_by,
            "choices": choices,
            **more,
            **self._client.told(),
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
