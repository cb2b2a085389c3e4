"""What browsers are told and held to: security headers, and no calls from other people's web pages.

A server on a person's own machine is reachable from every page that this person opens. Reading replies across origins
is closed by CORS; but a page could still send a request that changes something. Browsers say where a request comes
from, so such requests are refused unless the setting `cors_origins` names their origin.
"""

from collections.abc import Collection

from starlette.datastructures import Headers, MutableHeaders
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from app.errors import RequestError
from app.routes.faults import respond

HEADERS = {
    "X-Content-Type-Options": "nosniff",
    "X-Frame-Options": "DENY",
    "Content-Security-Policy": "frame-ancestors 'none'",
    "Referrer-Policy": "no-referrer",
    "Cross-Origin-Resource-Policy": "same-site",
}
SAFE_METHODS = frozenset({"GET", "HEAD", "OPTIONS"})


class CrossOriginError(RequestError):
    """A request that a web page of another origin makes its visitor's browser send."""

    code = "cross_origin"
    status_code = 403

    def __init__(self, origin: str) -> None:
        super().__init__(
            f"the web page {origin or 'that sent this'} may not call this server from a browser: if it should, put its "
            "origin into the setting cors_origins (RAGSTONE_CORS_ORIGINS)"
        )


class BrowserGuard:
    """Refuses what other origins' pages send, and puts the headers on every response."""

    def __init__(self, app: ASGIApp, *, origins: Collection[str]) -> None:
        self._app = app
        self._origins = origins

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return

        async def guarded(message: Message) -> None:
            if message["type"] == "http.response.start":
                headers = MutableHeaders(scope=message)
                for name, value in HEADERS.items():
                    headers.setdefault(name, value)
            await send(message)

        headers = Headers(scope=scope)
        origin = headers.get("origin", "")
        if scope["method"] in SAFE_METHODS or self._may_call(headers, origin):
            await self._app(scope, receive, guarded)
            return
        await respond(CrossOriginError(origin), scope["path"])(scope, receive, guarded)

    def _may_call(self, headers: Headers, origin: str) -> bool:
        if "*" in self._origins or origin in self._origins:
            return True
        site = headers.get("sec-fetch-site")
        if site is not None:  # browsers set it, and pages cannot
            return site in ("same-origin", "none")
        # Programs send no origin; older browsers send it without the header above.
        return not origin or origin.split("://", 1)[-1] == headers.get("host", "")
