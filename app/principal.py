"""Who asks: the user, tenant and scopes of the request at hand.

A server without keys knows one user, `LOCAL`. With keys (`app/api_keys.py`), `app/routes/access.py` finds out who it is
and notes it here, so that what runs for a request can tell without being told.
"""

import contextvars
from dataclasses import dataclass

DEFAULT_USER = "local"

# What a key may do: ask and read; change documents and collections; read metrics; all of it, and see every tenant.
SCOPES = ("chat", "documents", "metrics", "admin")


@dataclass(frozen=True)
class Principal:
    """`user` owns conversations and documents; `tenant` is who limits and accounts are kept for."""

    user: str
    tenant: str
    scopes: frozenset[str]
    key_id: str | None = None

    def may(self, scope: str) -> bool:
        """Whether the scope, or `admin`, is among the principal's."""
        return scope in self.scopes or "admin" in self.scopes


LOCAL = Principal(DEFAULT_USER, "", frozenset(SCOPES))

_current: contextvars.ContextVar[Principal] = contextvars.ContextVar("principal", default=LOCAL)


def current_principal() -> Principal:
    """Who the request at hand is of; LOCAL outside requests."""
    return _current.get()


def set_principal(principal: Principal) -> None:
    """From now on, in this task and those it starts, the request is this principal's."""
    _current.set(principal)
