"""What browsers are told and held to: security headers, and no calls from other people's web pages.

A server on a person's own machine is reachable from every page that this person opens. Reading replies across origins
is closed by CORS; but a page could still send a request that changes something. Browsers say where a request comes
from, so such requests are refused unless the setting `cors_origins` names their origin.

A page may also make its own name mean this machine (DNS rebinding), and is then of the same origin. So a server without
keys answers only to names that no stranger can give it: addresses, localhost, and those of the setting `allowed_hosts`.
"""

import ipaddress
from collections.abc import Collection

from starlette.datastructures import Headers, MutableHeaders
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from app.errors import RequestError
from app.request_path import route_path
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


class UnknownHostError(RequestError):
    """A request to a name that may not be ours."""

    code = "unknown_host"
    status_code = 403

    def __init__(self, host: str) -> None:
        super().__init__(
            f"this server does not answer to the name {host!r}: call it by its address or as localhost, or put the "
            "name into the setting allowed_hosts (RAGSTONE_ALLOWED_HOSTS)"
        )


class BrowserGuard:
    """Refuses what other origins' pages send, and puts the headers on every response.

    `hosts`: names that the server answers to beside addresses and localhost; None: to any name.
    """

    def __init__(self, app: ASGIApp, *, origins: Collection[str], hosts: Collection[str] | None = None) -> None:
        self._app = app
        self._origins = origins
        self._hosts = None if hosts is None or "*" in hosts else {"localhost", *hosts}

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
        host = headers.get("host", "")
        if not self._is_ours(host):
            await respond(UnknownHostError(host), route_path(scope))(scope, receive, guarded)
            return
        origin = headers.get("origin", "")
        if scope["method"] in SAFE_METHODS or self._may_call(headers, origin):
            await self._app(scope, receive, guarded)
            return
        await respond(CrossOriginError(origin), route_path(scope))(scope, receive, guarded)

    def _is_ours(self, host: str) -> bool:
        name = host_name(host)
        return self._hosts is None or not name or name in self._hosts or is_address(name)

    def _may_call(self, headers: Headers, origin: str) -> bool:
        if "*" in self._origins or origin in self._origins:
            return True
        site = headers.get("sec-fetch-site")
        if site is not None:  # browsers set it, and pages cannot
            return site in ("same-origin", "none")
        # Programs send no origin; older browsers send it without the header above.
        return not origin or origin.split("://", 1)[-1] == headers.get("host", "")


def host_name(host: str) -> str:
    """The name in a Host header: without port, brackets and case."""
    name = host.strip().lower()
    if name.startswith("["):
        return name[1:].partition("]")[0]
    return name.partition(":")[0].removesuffix(".")


def is_address(name: str) -> bool:
    """Whether it is an IP address, which nobody can make mean another machine."""
    try:
        ipaddress.ip_address(name)
    except ValueError:
        return False
    return True
