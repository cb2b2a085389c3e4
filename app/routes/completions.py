"""OpenAI's older route: text, or token ids, continued by the model alone. No chat template, no documents.

Format: https://platform.openai.com/docs/api-reference/completions
"""

import asyncio
import time
import uuid
from collections.abc import AsyncGenerator, Sequence
from contextlib import aclosing
from typing import Any, TypeVar

from fastapi import APIRouter, Response
from fastapi.responses import JSONResponse

from app.engines.request import EngineRequest
from app.engines.routing import RoutedClient
from app.limits import places_for
from app.model_services import ModelServices
from app.privacy import note_private
from app.routes import sse
from app.routes.faults import dump
from app.routes.openai_reply import DONE, check_length, error_event, usage
from app.routes.openai_schema import CompletionRequest, Priority
from engine.errors import EngineDeadError, EngineError
from engine.outputs import OutputDelta, TokenLogprob

T = TypeVar("T")


def create_router(services: ModelServices) -> APIRouter:
    """/v1/completions."""
    router = APIRouter(prefix="/v1", tags=["OpenAI"], route_class=sse.AbandonableRoute)

    @router.post("/completions", response_model=None)
    async def completions(body: CompletionRequest, x_priority: Priority = None) -> Response:
        """Text continued, of one prompt or of several; streamed with `"stream": true`."""
        services.require_ready()
        body.check_fields()
        if body.private:
            note_private()
        client = services.generator(body.model, [prompt for prompt in body.prompts if isinstance(prompt, str)])
        for prompt in body.prompts:
            await check_length("prompt", len(prompt), client, services.settings)
        at_once = places_for(services.questions_at_once)
        completion = _Completion(client, body, body.priority or x_priority or "normal", at_once)
        if body.stream:
            return await sse.open_stream(completion.events(), error_event)
        return JSONResponse(await completion.whole())

    return router


class _Completion:
    """One request, answered whole or as a stream of chunks. The n answers of prompt p are the choices from p·n on."""

    def __init__(self, client: RoutedClient, body: CompletionRequest, priority: str, at_once: int) -> None:
        self._body = body
        self._at_once = at_once
        params = body.sampling()
        self._clients = [client.begin() for _ in body.prompts]
        self._streams = [
            asked.stream(EngineRequest(prompt=prompt, params=params, priority=priority))
            for asked, prompt in zip(self._clients, body.prompts, strict=True)
        ]
        self._head = {
            "id": f"cmpl-{uuid.uuid4().hex}",
            "object": "text_completion",
            "created": int(time.time()),
        }

    async def whole(self) -> dict[str, Any]:
        """The reply to a request that does not stream."""
        parts: dict[int, list[OutputDelta]] = {}
        async for choice, delta in self._deltas():
            parts.setdefault(choice, []).append(delta)
        choices = [
            {
                "index": choice,
                "text": "".join(delta.text for delta in parts[choice]),
                "logprobs": self._logprobs(parts[choice], 0),
                "finish_reason": parts[choice][-1].finish_reason,
            }
            for choice in sorted(parts)
        ]
        last = {choice: deltas[-1] for choice, deltas in parts.items()}
        return self._reply(choices=choices, usage=self._usage(last))

    async def events(self) -> sse.Events:
        """The reply as server-sent events; the last one of each choice has its finish reason."""
        last: dict[int, OutputDelta] = {}
        offsets: dict[int, int] = {}
        async with aclosing(self._deltas()) as deltas:
            async for choice, delta in deltas:
                last[choice] = delta
                if not (delta.text or delta.logprobs or delta.finish_reason):
                    continue  # characters are held back until they are whole
                offset = offsets.get(choice, 0)
                offsets[choice] = offset + sum(len(entry.token) for entry in delta.logprobs or ())
                entry = {
                    "index": choice,
                    "text": delta.text,
                    "logprobs": self._logprobs([delta], offset),
                    "finish_reason": delta.finish_reason,
                }
                yield self._chunk(choices=[entry])
        if self._body.includes_usage:
            yield self._chunk(choices=[], usage=self._usage(last))
        yield DONE

    async def _deltas(self) -> AsyncGenerator[tuple[int, OutputDelta], None]:
        """Every delta with the index of its choice."""
        n = self._body.n or 1
        try:
            async with aclosing(merged(self._streams, self._at_once)) as deltas:
                async for prompt, delta in deltas:
                    if delta.finish_reason == "abort":
                        raise EngineDeadError("the engine broke off the answer; it is shutting down")
                    yield prompt * n + delta.index, delta
        except EngineError as error:
            raise self._body.as_given(error) from None

    def _logprobs(self, deltas: Sequence[OutputDelta], offset: int) -> dict[str, Any] | None:
        if self._body.logprobs is None:
            return None
        return legacy_logprobs([entry for delta in deltas for entry in delta.logprobs or ()], offset)

    def _usage(self, last: dict[int, OutputDelta]) -> dict[str, Any]:
        n = self._body.n or 1
        of_prompt: list[list[OutputDelta]] = [[] for _ in self._streams]
        for choice, delta in last.items():
            of_prompt[choice // n].append(delta)
        return usage(*of_prompt)

    def _chunk(self, **more: Any) -> str:
        return sse.event(dump(self._reply(**more)))

    def _reply(self, **more: Any) -> dict[str, Any]:
        first = self._clients[0]
        return {**self._head, "model": first.answered_by, **more, **first.told()}


def legacy_logprobs(entries: Sequence[TokenLogprob], offset: int) -> dict[str, Any]:
    """Log-probabilities in the shape of /v1/completions; `offset` is where the first token stands in the text."""
    offsets = []
    for entry in entries:
        offsets.append(offset)
        offset += len(entry.token)
    return {
        "tokens": [entry.token for entry in entries],
        "token_logprobs": [entry.logprob for entry in entries],
        "top_logprobs": [
            {**{other.token: other.logprob for other in entry.top}, entry.token: entry.logprob} for entry in entries
        ],
        "text_offset": offsets,
    }


async def merged(streams: Sequence[AsyncGenerator[T, None]], at_once: int) -> AsyncGenerator[tuple[int, T], None]:
    """Items of several streams as they come, each with its stream's number; `at_once` streams are open at a time.

    The first error ends it. However it ends, every stream is closed.
    """
    arrived: asyncio.Queue[tuple[int, T] | asyncio.Task[None]] = asyncio.Queue()
    places = asyncio.Semaphore(at_once)

    async def read(number: int, stream: AsyncGenerator[T, None]) -> None:
        async with places, aclosing(stream) as items:
            async for item in items:
                arrived.put_nowait((number, item))

    tasks = [asyncio.create_task(read(number, stream)) for number, stream in enumerate(streams)]
    for task in tasks:
        task.add_done_callback(arrived.put_nowait)
    num_open = len(tasks)
    try:
        while num_open:
            came = await arrived.get()
            if isinstance(came, asyncio.Task):
                num_open -= 1
                came.result()
            else:
                yield came
    finally:
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
