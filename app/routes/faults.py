"""Errors as clients see them: which HTTP status, code and message each has, before the first byte and after it.

A message says what is wrong and what to do; a stack trace goes to the log only, with an id that the client is told.
"""

import contextlib
import dataclasses
import errno
import json
import logging
import math
import sqlite3
import uuid
from collections.abc import Mapping
from dataclasses import dataclass
from http import HTTPStatus
from typing import Any

from fastapi import FastAPI, Request
from fastapi.exceptions import RequestValidationError
from fastapi.responses import JSONResponse
from pydantic import BaseModel, Field
from starlette.exceptions import HTTPException
from starlette.requests import ClientDisconnect
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from app.errors import RETRY_AFTER_S, RagstoneError
from app.request_path import route_path
from app.validation_text import explain
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
    "engine_stopped": 503,
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
    "embedder_unavailable": 503,
    "embedder_mismatch": 503,
    "reranker_unavailable": 503,
}


# Where the framework says that a value stands, before its name.
_PARTS = (("body",), ("query",), ("path",), ("header",), ("cookie",))
# What the framework says with the status's name alone.
_PLAIN = {
    404: "there is no such address here: /docs shows those that there are",
    405: "this address does not take that method: /docs shows which it takes, and so does the header Allow",
}


class ErrorDetail(BaseModel):
    """What is wrong."""

    code: str = Field(description="Stable, for programs.", examples=["not_found"])
    message: str = Field(description="What was given, what is allowed and what to do, for people.")
    field: str | None = Field(description="The part of the request that is to blame, where one is.")


class ErrorBody(BaseModel):
    """The body of every error of our own routes."""

    error: ErrorDetail


class OpenAIErrorDetail(BaseModel):
    """What is wrong, in OpenAI's words."""

    message: str = Field(description="What was given, what is allowed and what to do, for people.")
    type: str = Field(description="The kind of error.", examples=["invalid_request_error"])
    param: str | None = Field(description="The part of the request that is to blame, where one is.")
    code: str | None = Field(description="Stable, for programs.", examples=["model_not_found"])


class OpenAIErrorBody(BaseModel):
    """The body of every error of /v1."""

    error: OpenAIErrorDetail


# What routers publish of their errors.
ERRORS: dict[int | str, dict[str, Any]] = {"default": {"model": ErrorBody, "description": "What is wrong."}}
OPENAI_ERRORS: dict[int | str, dict[str, Any]] = {
    "default": {"model": OpenAIErrorBody, "description": "What is wrong."}
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
    more_headers: Mapping[str, str] = dataclasses.field(default_factory=dict)

    def body(self) -> dict[str, Any]:
        """The body of our own routes: an ErrorBody."""
        return {"error": {"code": self.code, "message": self.message, "field": self.field}}

    def openai_body(self) -> dict[str, Any]:
        """The body of /v1, in OpenAI's shape: an OpenAIErrorBody."""
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
        headers = dict(self.more_headers)
        if self.retry_after_s is not None:
            headers["Retry-After"] = str(math.ceil(self.retry_after_s))
        elif self.status == 503:
            headers["Retry-After"] = str(RETRY_AFTER_S)
        if self.status == 401:
            headers["WWW-Authenticate"] = "Bearer"
        return headers


# What FastAPI and LangServe say of a request in words of their own.
_REWORDED = {
    "Invalid config hash": Fault(
        400,
        "invalid_request",
        "the part of the address behind /c/ is no config: take one that the playground has made, or send the config in "
        "the body",
        "config_hash",
    ),
}


def describe(error: BaseException) -> Fault:
    """The fault that a client is told of. Unforeseen errors are logged with an id, and their text stays here."""
    if isinstance(error, RequestValidationError):
        return _validation_fault(error)
    if isinstance(error, HTTPException):
        return _http_fault(error)
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
    if isinstance(error, RecursionError):
        # What a request can hold is walked down level by level, here and in libraries.
        return Fault(400, "invalid_request", "the request is nested too deeply: a few dozen levels are plenty")
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

    ours = (RagstoneError, EngineError, RetrievalError)
    for kind in (HTTPException, RequestValidationError, *ours, TimeoutError, RecursionError):
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
    """The first thing that is wrong, by its place in the request."""
    errors = [each for each in error.errors() if isinstance(each, Mapping)]
    if not errors:
        return Fault(422, "invalid_request", str(error.errors()[0]) if error.errors() else "the request is not valid")
    first = errors[0]
    if first.get("type") == "json_invalid":
        reason, at = first.get("ctx", {}).get("error", ""), ".".join(map(str, first["loc"][1:]))
        return Fault(422, "invalid_json", f"the body is not valid JSON: {reason} at character {at}", "body")
    # The framework's places begin with the part of the request: the body, its address, its headers.
    own = [{**each, "loc": each["loc"][1:] if each["loc"][:1] in _PARTS else each["loc"]} for each in errors]
    message, field = explain(own)
    return Fault(422, "invalid_request", message, field or "body")


def _http_fault(error: HTTPException) -> Fault:
    """What the framework refuses: its own words where they are more than the status's name."""
    if error.detail == "There was an error parsing the body":
        return Fault(422, "invalid_json", unreadable(error.__cause__), "body")
    if error.detail in _REWORDED:
        return _REWORDED[error.detail]
    message = _PLAIN.get(error.status_code) if _is_bare(error) else str(error.detail)
    return Fault(
        error.status_code,
        _http_code(error.status_code),
        message or str(error.detail),
        more_headers=dict(error.headers or {}),
    )


def unreadable(error: BaseException | None) -> str:
    """Why a body cannot be read as JSON: `error` is what the parser raised."""
    if isinstance(error, RecursionError):
        return "the body is nested too deeply: a few dozen levels are plenty"
    if isinstance(error, UnicodeDecodeError):
        return "the body is not UTF-8: send JSON in UTF-8"
    if isinstance(error, json.JSONDecodeError):
        return f"the body is not valid JSON: {error}"
    if isinstance(error, ValueError):  # Python limits how many digits it reads
        return "the body holds a number with more digits than any that is meant: send fewer"
    return "the body cannot be read: send JSON in UTF-8"


def _is_bare(error: HTTPException) -> bool:
    with contextlib.suppress(ValueError):
        return error.detail == HTTPStatus(error.status_code).phrase
    return False


def _http_code(status: int) -> str:
    return {404: "not_found", 405: "method_not_allowed", 413: "too_large", 415: "unsupported_media_type"}.get(
        status, "invalid_request" if status < 500 else "internal_error"
    )


def dump(value: Any) -> str:
    """JSON on one line, in ASCII: no line separator of any kind can be taken for the end of an event."""
    return json.dumps(value, separators=(",", ":"))
