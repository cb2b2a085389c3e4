"""The routes by which an app uses an engine of another process: what `EngineClient` says, over HTTP.

Streams are lines of JSON (`app/engines/wire.py`); who stops reading aborts the request.
"""

import asyncio
import logging
from collections.abc import AsyncGenerator
from contextlib import aclosing, suppress
from typing import Any, Literal

from fastapi import APIRouter
from pydantic import BaseModel, ConfigDict, Field
from starlette.responses import Response
from starlette.types import Send

from app.engines.request import EngineRequest, new_request_id
from app.engines.wire import error_body, write_delta, write_error, write_stats
from app.errors import NotReadyError
from app.model_services import ModelServices
from app.routes.faults import describe
from app.routes.sse import AbandonableStream
from engine.errors import EngineError, InvalidParameterError
from engine.outputs import OutputDelta

logger = logging.getLogger(__name__)


class Generation(BaseModel):
    """An `EngineRequest`."""

    model_config = ConfigDict(extra="forbid")

    messages: list[dict[str, Any]] = []
    prompt: str | list[int] | None = None
    begins: str = ""
    params: dict[str, Any]
    tools: list[dict[str, Any]] | None = None
    tool_choice: str | dict[str, Any] | None = None
    parallel_tool_calls: bool | None = None
    request_id: str = Field(default_factory=new_request_id)
    tenant: str = ""
    priority: str = "normal"

    def request(self) -> EngineRequest:
        """The request. Raises InvalidParameterError where it asks for nothing, or for two things."""
        if bool(self.messages) == (self.prompt is not None):
            raise InvalidParameterError("prompt", "give either prompt or messages")
        return EngineRequest(**dict(self))


class Call(BaseModel):
    """A call of one of the engine's methods that answer at once."""

    model_config = ConfigDict(extra="forbid")

    method: Literal[
        "abort", "check_health", "count_tokens", "decode", "encode", "encode_chat", "pin_system_prompt", "token_texts"
    ]
    arguments: list[Any] = []
    options: dict[str, Any] = {}


def create_router(services: ModelServices) -> APIRouter:
    """/engine/generate, /engine/call, /engine/info and /engine/stats."""
    router = APIRouter(prefix="/engine", tags=["engine"])

    @router.post("/generate")
    async def generate(body: Generation) -> Response:
        """Deltas of an answer, one JSON object a line; an error is the last line."""
        return DeltaStream(services.engine.stream(body.request()))

    @router.post("/call")
    async def call(body: Call) -> dict[str, Any]:
        """`{"result": …}`, or `{"error": …}` with what the error is rebuilt from."""
        try:
            method = getattr(services.engine, body.method)
            return {"result": await asyncio.to_thread(method, *body.arguments, **body.options)}
        except EngineError as error:
            return {"error": error_body(error)}

    @router.get("/info")
    async def info() -> dict[str, Any]:
        """What does not change while the engine runs."""
        engine = services.engine
        return {
            "model_name": engine.model_name,
            "max_model_len": engine.max_model_len,
            "num_parameters": engine.num_parameters,
        }

    @router.get("/stats")
    async def stats() -> dict[str, Any]:
        """`EngineStats`."""
        services.require_ready()
        watched = services.metrics.engine
        if watched is None:
            raise NotReadyError("the engine is starting")
        return write_stats(watched[1]())

    return router


class DeltaStream(AbandonableStream):
    """Sends deltas as lines."""

    media_type = "application/x-ndjson"

    def __init__(self, deltas: AsyncGenerator[OutputDelta, None]) -> None:
        super().__init__({"Cache-Control": "no-cache"})
        self._deltas = deltas

    async def _close(self) -> None:
        await self._deltas.aclose()

    async def _send_all(self, send: Send) -> None:
        await send({"type": "http.response.start", "status": 200, "headers": self.raw_headers})
        try:
            async with aclosing(self._deltas) as deltas:
                async for delta in deltas:
                    await send({"type": "http.response.body", "body": write_delta(delta), "more_body": True})
        except OSError:
            return  # the connection is gone
        except Exception as error:
            known = error if isinstance(error, EngineError) else EngineError(describe(error).message)
            with suppress(OSError):
                await send({"type": "http.response.body", "body": write_error(known), "more_body": True})
        with suppress(OSError):
            await send({"type": "http.response.body", "body": b"", "more_body": False})
