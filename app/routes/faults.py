"""Errors as clients see them: which HTTP status, code and message each has, before the first byte and after it.

A message says what is wrong and what to do; a stack trace goes to the log only, with an id that the client is told.
"""

import errno
import json
import logging
import math
import sqlite3
import uuid
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from fastapi import FastAPI, Request
from fastapi.exceptions import RequestValidationError
from fastapi.responses import JSONResponse
from starlette.exceptions import HTTPException
from starlette.requests import ClientDisconnect
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from app.errors import RagstoneError
from app.request_path import route_path
from app.services import RETRY_AFTER_S
from engine.errors import EngineError
from retrieval.errors import RetrievalError

logger = logging.getLogger(__name__)

# Routes whose clients expect errors in OpenAI's shape; the last two are vLLM's.
OPENAI_PATHS = ("/v1/", "/tokenize", "/detokenize")

# By the error's code; whatever stands here has a message for the client.
STATUS_OF_CODE: Mapping[str, int] = {
    "context_length_exceeded": 413,
    "invalid_parameter": 422,
    "unsupported_parameter": 422,
    "chat_template_error": 422,
    "engine_dead": 503,
    "engine_draining": 503,
    "engine_stalled": 503,
    "queue_full": 429,
    "insufficient_memory": 503,
    "model_load_failed": 503,
    "deadline_exceeded": 504,
    "step_failed": 500,
    "model_not_found": 404,
    "invalid_argument": 422,
    "store_busy": 503,
    "store_full": 507,
    "store_unavailable": 503,
    "store_closed": 503,
}


class BodyTooLargeError(HTTPException):
    """A request body over the server's limit."""

    def __init__(self, limit: int) -> None:
        super().__init__(413, f"the body has more than {limit:,} bytes, which is the limit: send less")


@dataclass(frozen=True)
class Fault:
    """An error, ready to be sent."""

    status: int
    code: str
    message: str
    field: str | None = None
    retry_after_s: float | None = None

    def body(self) -> dict[str, Any]:
        """The body of our own routes."""
        error = {"code": self.code, "message": self.message}
        return {"error": error if self.field is None else {**error, "field": self.field}}

    def openai_body(self) -> dict[str, Any]:
        """The body of /v1, in OpenAI's shape."""
        status = self.openai_status
        kinds = {401: "authentication_error", 403: "permission_error", 404: "not_found_error", 429: "rate_limit_error"}
        kind = "server_error" if status >= 500 else kinds.get(status, "invalid_request_error")
        return {"error": {"message": self.message, "type": kind, "param": self.field, "code": self.code}}

    @property
    def openai_status(self) -> int:
        """OpenAI's clients expect 400 for what is wrong with a request."""
        return 400 if self.status in (413, 422) else self.status

    def event(self) -> dict[str, Any]:
        """The data of an `error` event in a stream."""
        return {"status_code": self.status, "code": self.code, "message": self.message}

    def headers(self) -> dict[str, str]:
        if self.retry_after_s is not None:
            return {"Retry-After": str(math.ceil(self.retry_after_s))}
        if self.status == 401:
            return {"WWW-Authenticate": "Bearer"}
        return {"Retry-After": str(RETRY_AFTER_S)} if self.status == 503 else {}


def describe(error: BaseException) -> Fault:
    """The fault that a client is told of. Unforeseen errors are logged with an id, and their text stays here."""
    if isinstance(error, RequestValidationError):
        return _validation_fault(error)
    if isinstance(error, HTTPException):
        return Fault(error.status_code, _http_code(error.status_code), str(error.detail))
    if isinstance(error, ClientDisconnect):
        return Fault(499, "client_disconnected", "the client went away before its request was complete")
    if isinstance(error, TimeoutError) and str(error):
        return Fault(504, "timeout", str(error))
    if isinstance(error, RagstoneError | EngineError | RetrievalError):
        status = getattr(error, "status_code", None) or STATUS_OF_CODE.get(error.code, 500)
        if status == 500:
            logger.error("%s: %s", error.code, error, exc_info=error)
        return Fault(
            status, error.code, str(error), getattr(error, "field", None), getattr(error, "retry_after_s", None)
        )
    storage = _storage_fault(error)
    if storage is not None:
        logger.error("%s: %s", storage.code, error)
        return storage
    incident = uuid.uuid4().hex[:12]
    logger.error("internal error %s", incident, exc_info=error)
    return Fault(500, "internal_error", f"internal error; the server's log has the details under {incident}")


def respond(error: BaseException, path: str) -> JSONResponse:
    """The response for an error before the first byte, in the shape that the route's clients expect."""
    fault = describe(error)
    if path.startswith(OPENAI_PATHS):
        return JSONResponse(fault.openai_body(), fault.openai_status, headers=fault.headers())
    return JSONResponse(fault.body(), fault.status, headers=fault.headers())


def install(app: FastAPI) -> None:
    """Makes every error of the app one of these."""

    async def handle(request: Request, error: Exception) -> JSONResponse:
        return respond(error, route_path(request.scope))

    for kind in (HTTPException, RequestValidationError, RagstoneError, EngineError, RetrievalError, TimeoutError):
        app.add_exception_handler(kind, handle)
    app.add_middleware(LastResort)


class LastResort:
    """Answers what no handler foresaw.

    FastAPI's handler of all exceptions raises them again, which makes the server print a trace and cut the connection.
    """

    def __init__(self, app: ASGIApp) -> None:
        self._app = app

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        started = False

        async def watched(message: Message) -> None:
            nonlocal started
            started = True
            await send(message)

        try:
            await self._app(scope, receive, watched)
        except Exception as error:
            if started or scope["type"] != "http":
                raise
            await respond(error, route_path(scope))(scope, receive, send)


def _storage_fault(error: BaseException) -> Fault | None:
    """A full disk, or a store that others keep busy; None for anything else."""
    no_space = isinstance(error, OSError) and error.errno == errno.ENOSPC
    if no_space or (isinstance(error, sqlite3.OperationalError) and "full" in str(error)):
        return Fault(507, "store_full", "no space is left on the disk of the data folder: free some and try again")
    if isinstance(error, sqlite3.OperationalError) and "locked" in str(error):
        return Fault(503, "store_busy", "another process keeps the conversations locked: try again")
    return None


def _validation_fault(error: RequestValidationError) -> Fault:
    """The first thing that is wrong, by the place in the request; never the value, which may be anything."""
    first = error.errors()[0] if error.errors() else None
    if not isinstance(first, Mapping):
        return Fault(422, "invalid_request", str(first or "the request is not valid"))
    location = list(first.get("loc", ()))
    if location and location[0] in ("body", "query", "path", "header"):  # where it stands, before its name
        del location[0]
    if first.get("type") == "json_invalid":
        reason, at = first.get("ctx", {}).get("error", ""), ".".join(map(str, location))
        return Fault(422, "invalid_json", f"the body is not valid JSON: {reason} at character {at}")
    place = _place(location)
    message = str(first.get("msg", "not valid"))
    return Fault(422, "invalid_request", f"{place}: {message}" if place else message, place or None)


def _place(location: Sequence[Any]) -> str:
    """A place in a body as clients write it: `messages[0].content`."""
    place = ""
    for part in location:
        if isinstance(part, int):
            place += f"[{part}]"
        # Pydantic names the member of a union too ("str", "list[str]"), which is no part of a body.
        elif str(part).isidentifier() and part not in ("str", "int", "float", "bool"):
            place += f".{part}" if place else str(part)
    return place


def _http_code(status: int) -> str:
    return {404: "not_found", 405: "method_not_allowed", 413: "too_large", 415: "unsupported_media_type"}.get(
        status, "invalid_request" if status < 500 else "internal_error"
    )


def dump(value: Any) -> str:
    """JSON on one line, in ASCII: no line separator of any kind can be taken for the end of an event."""
    return json.dumps(value, separators=(",", ":"))
