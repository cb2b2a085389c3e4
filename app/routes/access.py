"""Who may call which route: the key of every request is looked at before anything else is, and closed is the default.

Routes learn whose request it is by the dependency `CurrentUser`; what is not theirs they must not find.
"""

import base64
from typing import Annotated

from fastapi import Depends, Request
from starlette.datastructures import Headers
from starlette.types import ASGIApp, Receive, Scope, Send

from app.api_keys import InvalidKeyError, KeyStore, MissingKeyError
from app.errors import RequestError
from app.principal import LOCAL, Principal, set_principal
from app.request_path import route_path
from app.routes.faults import respond

# What anybody may read: whether the server lives, and the description of its routes, which is the same everywhere.
PUBLIC = frozenset({"/", "/docs", "/openapi.json", "/v1/health/live", "/v1/health/ready"})
PUBLIC_FOLDER = "/static-offline-docs/"
# Browsers ask for a name and a password then, and send them with what a page of ours fetches: so the playground and
# the page of routes can be used, which know nothing of keys. Only browsers send the header that tells them.
BROWSERS_CHALLENGE = 'Basic realm="Ragstone: any name, and the API key as the password", charset="UTF-8"'
READING = frozenset({"GET", "HEAD"})
METRICS = frozenset({"/metrics", "/v1/metrics"})
# Below these, whatever changes something needs the scope `documents`.
DOCUMENT_PATHS = ("/api/v1/documents", "/api/v1/collections", "/api/v1/jobs")


class MissingScopeError(RequestError):
    """A key that may not do this."""

    code = "missing_scope"
    status_code = 403

    def __init__(self, scope: str) -> None:
        super().__init__(
            f"the API key lacks the scope `{scope}`: use one that has it; `ragstone keys create --scope {scope}` makes "
            "one"
        )


def principal_of(request: Request) -> Principal:
    """Whose request it is."""
    principal: Principal = getattr(request.state, "principal", LOCAL)
    return principal


def current_user(request: Request) -> str:
    """The user whose request it is: the owner of the conversations and documents that it may see."""
    return principal_of(request).user


CurrentUser = Annotated[str, Depends(current_user)]
CurrentPrincipal = Annotated[Principal, Depends(principal_of)]


class AccessGuard:
    """Refuses requests without a valid key, or with one that may not do this. Without `keys`, all are LOCAL's."""

    def __init__(self, app: ASGIApp, *, keys: KeyStore | None) -> None:
        self._app = app
        self._keys = keys

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        try:
            principal = self._principal(scope)
        except RequestError as error:
            response = respond(error, route_path(scope))
            if response.status_code == 401 and Headers(scope=scope).get("sec-fetch-mode"):
                response.headers["WWW-Authenticate"] = BROWSERS_CHALLENGE
            await response(scope, receive, send)
            return
        if principal is not None:
            scope.setdefault("state", {})["principal"] = principal
            set_principal(principal)
        await self._app(scope, receive, send)

    def _principal(self, scope: Scope) -> Principal | None:
        """Who asks; None where nobody needs to know. Raises RequestError."""
        if self._keys is None:
            return LOCAL
        path = route_path(scope)
        if scope["method"] in READING and (path in PUBLIC or path.startswith(PUBLIC_FOLDER)):
            return None
        principal = self._keys.recognise(key_in(Headers(scope=scope).get("authorization", "")))
        needed = needed_scope(scope["method"], path)
        if not principal.may(needed):
            raise MissingScopeError(needed)
        return principal


def key_in(authorization: str) -> str:
    """The key in a header: after `Bearer`, or the password after `Basic`. Raises MissingKeyError, InvalidKeyError."""
    kind, _, given = authorization.partition(" ")
    given = given.strip()
    if not given:
        raise MissingKeyError
    if kind.lower() == "bearer":
        return given
    if kind.lower() != "basic":
        raise InvalidKeyError
    try:
        _, _, key = base64.b64decode(given, validate=True).decode().partition(":")
    except ValueError:
        raise InvalidKeyError from None
    if not key:
        raise MissingKeyError
    return key


def needed_scope(method: str, path: str) -> str:
    """The scope that a request needs."""
    if path in METRICS:
        return "metrics"
    if path.startswith(DOCUMENT_PATHS) and method not in READING:
        return "documents"
    return "chat"
