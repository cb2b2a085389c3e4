"""What HTTP clients expect of every route: HEAD where there is GET, redirects that hold under any address, and a word
about parameters that do nothing.
"""

import asyncio
from urllib.parse import urlsplit

from fastapi import Request
from fastapi.dependencies.models import Dependant
from fastapi.routing import APIRoute
from starlette.datastructures import MutableHeaders
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from app.errors import RequestError
from app.setting_values import did_you_mean


class HeadRequests:
    """Answers HEAD as GET, without the body (RFC 9110, 9.3.2); FastAPI's routes have no HEAD of their own.

    What would stream is left at its first byte, as by a client that goes away.
    """

    def __init__(self, app: ASGIApp) -> None:
        self._app = app

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http" or scope["method"] != "HEAD":
            await self._app(scope, receive, send)
            return
        answered = asyncio.Event()
        asked = False

        async def left() -> Message:
            nonlocal asked
            if not asked:
                asked = True
                return {"type": "http.request", "body": b"", "more_body": False}
            await answered.wait()
            return {"type": "http.disconnect"}

        async def head_only(message: Message) -> None:
            if answered.is_set():
                return
            if message["type"] == "http.response.start":
                await send(message)
            else:
                answered.set()
                await send({"type": "http.response.body", "body": b"", "more_body": False})

        await self._app({**scope, "method": "GET"}, left, head_only)


class RelativeRedirects:
    """Makes the redirects that put a slash at a path's end, or take it off, relative to that path.

    The router makes them absolute, of the host and path that it sees: behind a reverse proxy not those of the client.
    """

    def __init__(self, app: ASGIApp) -> None:
        self._app = app

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        async def relative(message: Message) -> None:
            if message["type"] == "http.response.start" and message["status"] == 307:
                headers = MutableHeaders(scope=message)
                target = urlsplit(headers.get("location", ""))
                last = scope["path"].rstrip("/").rsplit("/", 1)[-1]
                if target.path.rstrip("/").endswith(f"/{last}") and target.netloc:
                    place = f"{last}/" if target.path.endswith("/") else f"../{last}"
                    headers["location"] = place + (f"?{target.query}" if target.query else "")
            await send(message)

        await self._app(scope, receive, relative if scope["type"] == "http" else send)


def refuse_unknown_parameters(request: Request) -> None:
    """A dependency: raises RequestError for a parameter in the address that the route does not have."""
    route = request.scope.get("route")
    # A route that documents its request itself checks it itself.
    if not isinstance(route, APIRoute) or route.openapi_extra:
        return
    known = _parameters(route.dependant)
    for name in request.query_params:
        if name not in known:
            has = f"it has {', '.join(known)}" if known else "it has none"
            raise RequestError(
                f"{name[:80]!r} is no parameter of this address: {has}{did_you_mean(name, known)}", field=name[:80]
            )


def _parameters(dependant: Dependant) -> list[str]:
    """The names of a route's parameters in the address, with those of what it depends on."""
    inner = (name for one in dependant.dependencies for name in _parameters(one))
    return [*(field.alias for field in dependant.query_params), *inner]
