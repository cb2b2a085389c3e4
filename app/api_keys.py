"""API keys: made, listed, revoked, and recognised. They lie in one SQLite file of the data folder, hashed.

A key is `rag-ID-SECRET`. Its secret holds 256 random bits, so one round of SHA-256 is enough: there is nothing to guess
that a slower hash would protect. A key that is revoked while the server runs is refused from its next request on.
"""

import hashlib
import hmac
import secrets
import threading
import time
from collections.abc import Collection
from dataclasses import dataclass
from pathlib import Path

from app.database_file import errors_of, open_database
from app.errors import RequestError, SettingsError
from app.limits import Limits
from app.principal import SCOPES, Principal

PREFIX = "rag"
ID_BYTES = 6
SECRET_BYTES = 32
MAX_NAME_CHARS = 64
DEFAULT_SCOPES = ("chat", "documents")
DEFAULT_TENANT = "default"

SCHEMA = """
CREATE TABLE IF NOT EXISTS api_keys (
    key_id TEXT PRIMARY KEY,
    hash BLOB NOT NULL,
    name TEXT NOT NULL,
    user TEXT NOT NULL,
    tenant TEXT NOT NULL,
    scopes TEXT NOT NULL,
    created_at REAL NOT NULL,
    expires_at REAL,
    revoked_at REAL
) STRICT;
CREATE TABLE IF NOT EXISTS tenant_limits (
    tenant TEXT PRIMARY KEY,
    requests_per_minute INTEGER,
    tokens_per_minute INTEGER,
    concurrency INTEGER
) STRICT;
"""
_COLUMNS = "key_id, name, user, tenant, scopes, created_at, expires_at, revoked_at"


class MissingKeyError(RequestError):
    """A request without a key to a server that asks for one."""

    code = "missing_api_key"
    status_code = 401

    def __init__(self) -> None:
        super().__init__(
            "this server asks for an API key: send it as `Authorization: Bearer KEY`; `ragstone keys create` makes one"
        )


class InvalidKeyError(RequestError):
    """A key that is unknown, revoked or expired; which of them is only told by `ragstone keys list`."""

    code = "invalid_api_key"
    status_code = 401

    def __init__(self) -> None:
        super().__init__("the API key is not valid: it is unknown, revoked or expired")


@dataclass(frozen=True)
class KeyRecord:
    """What is known of a key; times are seconds since 1970."""

    key_id: str
    name: str
    user: str
    tenant: str
    scopes: tuple[str, ...]
    created_at: float
    expires_at: float | None
    revoked_at: float | None

    @property
    def status(self) -> str:
        """`active`, `revoked` or `expired`."""
        if self.revoked_at is not None:
            return "revoked"
        return "expired" if self.expires_at is not None and self.expires_at <= time.time() else "active"

    @property
    def principal(self) -> Principal:
        """Who a request with this key is of."""
        return Principal(self.user, self.tenant, frozenset(self.scopes), self.key_id)


# How long another process's writing is waited for.
_WAIT_S = 10.0


class KeyStore:
    """The keys of one data folder. Any number of processes may have it open; methods may be called from any thread."""

    def __init__(self, path: Path) -> None:
        """Opens or makes the file, readable by its owner only. Raises DataFolderError."""
        self._lock = threading.Lock()
        self._connection = open_database(path, "API keys", wait_s=_WAIT_S)
        with errors_of(path, "API keys", wait_s=_WAIT_S):
            self._connection.executescript(SCHEMA)

    def create(
        self,
        name: str,
        *,
        user: str | None = None,
        tenant: str = DEFAULT_TENANT,
        scopes: Collection[str] = DEFAULT_SCOPES,
        lifetime_s: float | None = None,
    ) -> tuple[str, KeyRecord]:
        """A new key, which is told here and never again, and its record. `user` is `name` unless given.

        Raises SettingsError for a name, user, tenant or scope that cannot be.
        """
        for what, text in (("name", name), ("user", user), ("tenant", tenant)):
            if text is not None and not (0 < len(text.strip()) <= MAX_NAME_CHARS and text.isprintable()):
                raise SettingsError(f"the {what} {text!r} is not 1 to {MAX_NAME_CHARS} printable characters")
        if unknown := sorted(set(scopes) - set(SCOPES)):
            raise SettingsError(f"{', '.join(unknown)}: no such scope; scopes are {', '.join(SCOPES)}")
        key_id, secret = secrets.token_hex(ID_BYTES), secrets.token_urlsafe(SECRET_BYTES)
        now = time.time()
        expires_at = None if lifetime_s is None else now + lifetime_s
        chosen = tuple(scope for scope in SCOPES if scope in scopes)
        record = KeyRecord(key_id, name, user or name, tenant, chosen, now, expires_at, None)
        with self._lock:
            self._connection.execute(
                f"INSERT INTO api_keys (hash, {_COLUMNS}) VALUES (?, ?, ?, ?, ?, ?, ?, ?, NULL)",
                (_hash(secret), key_id, name, record.user, tenant, " ".join(chosen), now, expires_at),
            )
        return f"{PREFIX}-{key_id}-{secret}", record

    def records(self) -> list[KeyRecord]:
        """All keys, the oldest first."""
        with self._lock:
            rows = self._connection.execute(f"SELECT {_COLUMNS} FROM api_keys ORDER BY created_at, key_id").fetchall()
        return [_record(row) for row in rows]

    def revoke(self, name_or_id: str) -> list[KeyRecord]:
        """Makes every active key of that name, or of that id, useless; answers which they were."""
        found = [key for key in self.records() if name_or_id in (key.key_id, key.name) and key.revoked_at is None]
        with self._lock:
            for key in found:
                self._connection.execute(
                    "UPDATE api_keys SET revoked_at = ? WHERE key_id = ?", (time.time(), key.key_id)
                )
        return found

    def has_active(self) -> bool:
        """Whether any key is of use."""
        return any(key.status == "active" for key in self.records())

    def recognise(self, key: str) -> Principal:
        """Whose key it is. Takes the same time for every wrong one. Raises InvalidKeyError."""
        prefix, _, rest = key.partition("-")
        key_id, _, secret = rest.partition("-")
        with self._lock:
            row = self._connection.execute(
                f"SELECT hash, {_COLUMNS} FROM api_keys WHERE key_id = ?", (key_id,)
            ).fetchone()
        expected = row[0] if row else bytes(hashlib.sha256().digest_size)
        matches = hmac.compare_digest(_hash(secret), expected)
        if not (matches and row and prefix == PREFIX):
            raise InvalidKeyError
        record = _record(row[1:])
        if record.status != "active":
            raise InvalidKeyError
        return record.principal

    def set_limits(self, tenant: str, limits: Limits) -> None:
        """What a tenant may use, in place of what the settings say for all."""
        values = (tenant, limits.requests_per_minute, limits.tokens_per_minute, limits.concurrency)
        with self._lock:
            self._connection.execute("INSERT OR REPLACE INTO tenant_limits VALUES (?, ?, ?, ?)", values)

    def limits(self, tenant: str) -> Limits:
        """What was set for a tenant; nothing where nothing was."""
        query = "SELECT requests_per_minute, tokens_per_minute, concurrency FROM tenant_limits WHERE tenant = ?"
        with self._lock:
            row = self._connection.execute(query, (tenant,)).fetchone()
        return Limits(*row) if row else Limits()

    def close(self) -> None:
        """Closes the file."""
        with self._lock:
            self._connection.close()


def _hash(secret: str) -> bytes:
    return hashlib.sha256(secret.encode("utf-8", "surrogateescape")).digest()


def _record(row: tuple[str, str, str, str, str, float, float | None, float | None]) -> KeyRecord:
    key_id, name, user, tenant, scopes, created_at, expires_at, revoked_at = row
    return KeyRecord(key_id, name, user, tenant, tuple(scopes.split()), created_at, expires_at, revoked_at)
