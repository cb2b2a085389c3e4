"""`ragstone-rag` on /v1/chat/completions: an answer from the documents, in OpenAI's shape.

The last message is the question, those before it the conversation; nothing of it is kept. What the answer draws on
stands beside it, on the message or on the last delta of a stream: `sources`, `statistics`, and `grounding` where
answers are checked.
"""

import asyncio
import time
import uuid
from collections.abc import AsyncGenerator, Mapping, Sequence
from contextlib import aclosing
from typing import Any

from langchain_core.runnables import RunnableConfig

from app import given_turns
from app.engines.client import EngineClient
from app.engines.request import EngineRequest
from app.engines.routing import estimated_tokens
from app.messages import Message
from app.principal import current_principal
from app.privacy import note_private
from app.routes import sse
from app.routes.faults import dump
from app.routes.openai import FromDocuments
from app.routes.openai_reply import DONE, usage
from app.routes.openai_schema import ChatCompletionRequest
from app.services import Services
from engine.errors import EngineDeadError, EngineError, UnsupportedParameterError
from engine.outputs import OutputDelta
from engine.stop_strings import StopStrings

# Fields of a request to the model alone that an answer from documents cannot honour, with what asks for nothing.
REFUSED: dict[str, tuple[Any, ...]] = {
    "n": (1,),
    "logprobs": (False,),
    "tools": ([],),
    "tool_choice": ("none", "auto"),
    "response_format": ({"type": "text"},),
    "guided_json": (),
    "guided_regex": (),
    "guided_choice": (),
}


# Parts of a chain's answer that stand beside its text; a turn's id and index name nothing where turns are not kept.
BESIDE = ("sources", "grounding", "statistics")


def answers_of(services: Services) -> FromDocuments:
    """Answers from the documents of `services`, for the routes of /v1."""

    async def answer(body: ChatCompletionRequest, messages: list[Message], priority: str, user: str) -> RagCompletion:
        await services.require_collections(body.collections, user, "collections")
        completion = await asyncio.to_thread(RagCompletion, services, body, messages, priority)
        if completion.is_private:
            note_private()
        return completion

    return answer


class RagCompletion:
    """One request, answered whole or as a stream of chunks. Making it blocks: a model may have to be loaded."""

    def __init__(
        self, services: Services, body: ChatCompletionRequest, messages: Sequence[Message], priority: str
    ) -> None:
        for name, neutral in REFUSED.items():
            value = getattr(body, name)
            if value is not None and value not in neutral:
                raise UnsupportedParameterError(
                    name, f"{name} is not supported by {body.model}: leave it out, or ask {services.model_name}"
                )
        instructions, turns, self._question = given_turns.split(messages)
        options = {name: value for name, value in body.sampling().items() if name != "n"}
        self._stops = [body.stop] if isinstance(body.stop, str) else list(body.stop or ())
        if self._stops:
            options["stop"] = self._stops
        texts = [message["content"] for message in messages]
        num_prompt_tokens = sum(estimated_tokens(text) for text in texts)
        self.is_private, self._routed = services.answerer_client(self._question, num_prompt_tokens, body.collections)
        self._client = _Counted(self._routed)
        self._chain = services.chat_over(turns, instructions, {**options, "priority": priority}, self._client)
        self._body = body
        self._id = f"chatcmpl-{uuid.uuid4().hex}"
        self._created = int(time.time())

    async def whole(self) -> dict[str, Any]:
        """The reply to a request that does not stream."""
        answer = ""
        beside: dict[str, Any] = {}
        async with aclosing(self._pieces()) as pieces:
            async for piece in pieces:
                answer += piece.pop("answer", "")
                beside |= piece
        choice = {
            "index": 0,
            "message": {"role": "assistant", "content": answer, **beside},
            "logprobs": None,
            "finish_reason": self._finish_reason(beside),
        }
        return self._reply("chat.completion", [choice], usage=self._client.usage)

    async def events(self) -> sse.Events:
        """The reply as server-sent events."""
        beside: dict[str, Any] = {}
        async with aclosing(self._pieces()) as pieces:
            async for piece in pieces:
                if "sources" in piece:  # the first, before the model has begun
                    yield self._chunk({"role": "assistant", "content": ""}, None)
                if text := piece.pop("answer", ""):
                    yield self._chunk({"content": text}, None)
                beside |= piece
        yield self._chunk(beside, self._finish_reason(beside))
        if self._body.includes_usage:
            yield sse.event(dump(self._reply("chat.completion.chunk", [], usage=self._client.usage)))
        yield DONE

    async def _pieces(self) -> AsyncGenerator[dict[str, Any], None]:
        """What the chain yields: `sources`, `answer` in pieces, perhaps `grounding`."""
        narrowed = {"collections": self._body.collections, "where": self._body.where}
        config = RunnableConfig(configurable={**narrowed, "session_id": self._id, "user": current_principal().user})
        shown = StopStrings(self._stops)  # the model keeps to them by itself; what is quoted does not
        try:
            async with aclosing(self._chain.astream({"input": self._question}, config)) as pieces:
                async for piece in pieces:
                    kept = {name: value for name, value in piece.items() if name == "answer" or name in BESIDE}
                    if "answer" in kept:
                        kept["answer"] = shown.push(kept["answer"])
                    yield kept
            yield {"answer": shown.finish()}
        except EngineError as error:
            raise self._body.as_given(error) from None
        if self._client.finish_reason == "abort":
            raise EngineDeadError("the engine broke off the answer; it is shutting down")

    def _finish_reason(self, beside: Mapping[str, Any]) -> str:
        """How the answer ended. In strict mode it is whole sentences, whatever cut the model's own words off."""
        reason = self._client.finish_reason
        is_whole = (beside.get("grounding") or {}).get("mode") == "strict"
        return "stop" if is_whole and reason == "length" else reason

    def _chunk(self, delta: dict[str, Any], finish_reason: str | None) -> str:
        choice = {"index": 0, "delta": delta, "logprobs": None, "finish_reason": finish_reason}
        return sse.event(dump(self._reply("chat.completion.chunk", [choice])))

    def _reply(self, kind: str, choices: list[dict[str, Any]], **more: Any) -> dict[str, Any]:
        head = {"id": self._id, "object": kind, "created": self._created, "model": self._body.model}
        return {**head, "choices": choices, **more, **self._routed.told()}


class _Counted:
    """An engine client that remembers where each answer stood when its reading ended."""

    def __init__(self, client: EngineClient) -> None:
        self._client = client
        self._last: list[dict[int, OutputDelta]] = []

    def __getattr__(self, name: str) -> Any:
        return getattr(self._client, name)

    @property
    def usage(self) -> dict[str, Any]:
        """Token counts, in OpenAI's shape."""
        return usage(*(last.values() for last in self._last))

    @property
    def finish_reason(self) -> str:
        """How the answer ended; "stop" also where the model was not asked, or was stopped because enough was said."""
        reasons = [delta.finish_reason for last in self._last for delta in last.values()]
        return (reasons[-1] if reasons else None) or "stop"

    async def stream(self, request: EngineRequest) -> AsyncGenerator[OutputDelta, None]:
        last: dict[int, OutputDelta] = {}
        self._last.append(last)
        async with aclosing(self._client.stream(request)) as deltas:
            async for delta in deltas:
                last[delta.index] = delta
                yield delta
