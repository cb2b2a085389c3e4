"""Errors of servers that answer for this one: what went wrong there, and what to do here.

They are the engine's kind of error, so that whoever asks need not know where a model runs. What is wrong with a request
keeps the engine's classes; it is a ValueError here as there.
"""

import contextlib
from typing import Any

import httpx
import orjson

from app.engines.wire import read_error
from engine.errors import EngineError, InvalidParameterError

# Of a message of another server, so much is passed on.
MOST_CHARS = 500
# Asked for where a busy server does not say when to come again.
RETRY_AFTER_S = 5.0


class BackendError(EngineError):
    """The server answers, but with a failure of its own, or with what is no answer."""

    code = "backend_failed"
    status_code = 502


class BackendUnreachableError(BackendError):
    """Nothing answers there, or the connection broke."""

    code = "backend_unreachable"
    status_code = 503


class BackendTimeoutError(BackendError):
    """It has been silent for too long."""

    code = "backend_timeout"
    status_code = 504


class BackendKeyError(BackendError):
    """It does not take the key, or asks for one."""

    code = "backend_unauthorized"


class BackendModelError(BackendError):
    """It has no such model, or no such route."""

    code = "backend_model_not_found"


class BackendBusyError(BackendError):
    """It takes no more requests at the moment. `retry_after_s`: when it may again."""

    code = "backend_busy"
    status_code = 429

    def __init__(self, message: str, retry_after_s: float) -> None:
        super().__init__(message)
        self.retry_after_s = retry_after_s


class BackendRefusalError(BackendError, ValueError):
    """It refuses the request as it is."""

    code = "backend_refused"
    status_code = 422


def refusal(response: httpx.Response, url: str, model: str, key_env: str | None) -> EngineError:
    """The error of a reply, read to its end, that is no answer of the server at `url` to a request for `model`."""
    status, (said, entry) = response.status_code, _said(response)
    where = f"the server at {url}"
    if status in (401, 403):
        variable = (
            f"the environment variable {key_env}" if key_env else "an environment variable, and name it in key_env"
        )
        return BackendKeyError(
            f"{where} does not let us in (HTTP {status}: {said}): put a key that it knows in {variable}"
        )
    if status == 404:
        return BackendModelError(
            f"{where} does not have the model {model!r} (HTTP 404: {said}): correct the model's `model` or `url`"
        )
    if status == 429:
        seconds = _retry_after_s(response)
        return BackendBusyError(f"{where} is busy (HTTP 429: {said}): try again in {seconds:.0f} s", seconds)
    if status >= 500:
        return BackendError(f"{where} failed (HTTP {status}: {said}); try again, or look into its log")
    return _refused(f"{where} refuses the request (HTTP {status}): {said}", entry)


def told(entry: Any, url: str) -> EngineError:
    """The error that a stream of the server at `url` ends with."""
    said = _message(entry)
    if isinstance(entry, dict) and entry.get("code") == "context_length_exceeded":
        return _refused(said, entry)
    return BackendError(f"the server at {url} broke off the answer: {said}")


def _refused(message: str, entry: Any) -> EngineError:
    code, field = (entry.get("code"), entry.get("param")) if isinstance(entry, dict) else (None, None)
    if code == "context_length_exceeded" or "context length" in message:
        attributes = {"field": field if field == "max_tokens" else "prompt"}
        return read_error({"code": "context_length_exceeded", "message": message, "attributes": attributes})
    if isinstance(field, str) and field:
        return InvalidParameterError(field, message)
    return BackendRefusalError(message)


def _said(response: httpx.Response) -> tuple[str, Any]:
    """What the reply says, for a person, and its error as data where it has one."""
    try:
        body = orjson.loads(response.content)
    except ValueError:
        return response.text.strip()[:MOST_CHARS] or response.reason_phrase, None
    entry = body.get("error", body) if isinstance(body, dict) else body
    return _message(entry), entry


def _message(entry: Any) -> str:
    """The sentence in an error of OpenAI's, FastAPI's or Ollama's shape."""
    if isinstance(entry, dict):
        entry = entry.get("message") or entry.get("detail") or entry
    return str(entry)[:MOST_CHARS]


def _retry_after_s(response: httpx.Response) -> float:
    with contextlib.suppress(ValueError):  # it may be a date, of a clock that need not be ours
        return max(0.0, float(response.headers.get("Retry-After", "")))
    return RETRY_AFTER_S
