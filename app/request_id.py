"""The id of the request at hand: in every response, and in every log line that is written for it.

A client may choose it with `X-Request-Id`, so that its own log and the server's can be laid side by side.
"""

import contextvars
import logging
import re
import uuid

from starlette.datastructures import Headers, MutableHeaders
from starlette.types import ASGIApp, Message, Receive, Scope, Send

HEADER = "X-Request-Id"

# What may stand in a log line; anything else a client sends is replaced.
_ALLOWED = re.compile(r"[\w.:/+=-]{1,128}", re.ASCII)
_current: contextvars.ContextVar[str] = contextvars.ContextVar("request_id", default="")


class RequestIds:
    """Gives every request an id, unless its client did."""

    def __init__(self, app: ASGIApp) -> None:
        self._app = app

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        given = Headers(scope=scope).get(HEADER, "")
        request_id = given if _ALLOWED.fullmatch(given) else uuid.uuid4().hex
        _current.set(request_id)

        async def named(message: Message) -> None:
            if message["type"] == "http.response.start":
                MutableHeaders(scope=message)[HEADER] = request_id
            await send(message)

        await self._app(scope, receive, named)


def add_request_id(record: logging.LogRecord) -> bool:
    """A logging filter that lets everything pass: `%(request)s` is the id in brackets, or nothing outside requests."""
    request_id = _current.get()
    record.request = f" [{request_id}]" if request_id else ""
    return True
