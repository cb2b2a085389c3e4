"""The client for an engine of another process: the child of `app/engines/process.py`, or `ragstone engine` by URL.

Answers, errors and metrics are those of the engine in this process; only the border is another. Reading less than all
of a stream closes its connection, which aborts the request there.
"""

import functools
import json
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import fields
from pathlib import Path
from typing import Any

import httpx
import orjson

from app.engines.client import RequestTimes
from app.engines.http_client import CALL_S, CONNECT_S, LOADING, RETRY_S, HttpEngineClient
from app.engines.patience import may_wait
from app.engines.request import EngineRequest
from app.engines.wire import DeltaReader, read_error, read_stats
from app.errors import NotReadyError
from app.messages import Message
from engine.errors import EngineDeadError, EngineError
from engine.outputs import EngineStats

# Texts are counted again and again while a prompt is put together.
COUNTS_KEPT = 4096
# So long a call may take for which nobody may wait.
HURRIED_S = 0.5


class RemoteEngineClient(HttpEngineClient):
    """An engine of ours at `url`, or, with `socket`, at that Unix socket. Properties ask it at their first use."""

    def __init__(
        self,
        url: str,
        *,
        socket: Path | None = None,
        api_key: str | None = None,
        model_name: str | None = None,
        starting_s: float = 0.0,
        takes_private: bool = True,
        on_end: Callable[[RequestTimes], None] | None = None,
    ) -> None:
        super().__init__(
            url.rstrip("/").removesuffix("/v1"),
            headers={} if api_key is None else {"Authorization": f"Bearer {api_key}"},
            socket=socket,
            starting_s=starting_s,
            takes_private=takes_private,
            on_end=on_end,
        )
        self._name = model_name
        self._info: dict[str, Any] | None = None
        self.count_tokens = functools.lru_cache(COUNTS_KEPT)(self._count_tokens)

    # ── what does not change ─────────────────────────────────────────────────────────────────────────────────────────

    @property
    def model_name(self) -> str:
        return self._name or str(self._facts["model_name"])

    @property
    def max_model_len(self) -> int:
        return int(self._facts["max_model_len"])

    @property
    def num_parameters(self) -> int:
        return int(self._facts["num_parameters"])

    @property
    def _facts(self) -> dict[str, Any]:
        if self._info is None:
            self._info = self._get("/engine/info")
        return self._info

    # ── tokens ───────────────────────────────────────────────────────────────────────────────────────────────────────

    def _count_tokens(self, text: str) -> int:
        return int(self._call("count_tokens", text))

    def encode(self, text: str, *, add_bos: bool = True) -> list[int]:
        return list(self._call("encode", text, add_bos=add_bos))

    def encode_chat(
        self,
        messages: Sequence[Message],
        *,
        tools: Sequence[Mapping[str, Any]] | None = None,
        add_generation_prompt: bool = True,
    ) -> list[int]:
        options: dict[str, Any] = {"tools": tools, "add_generation_prompt": add_generation_prompt}
        return list(self._call("encode_chat", messages, **options))

    def decode(self, token_ids: Sequence[int]) -> str:
        return str(self._call("decode", list(token_ids)))

    def token_texts(self, token_ids: Sequence[int]) -> list[str]:
        return list(self._call("token_texts", list(token_ids)))

    def pin_system_prompt(self, text: str) -> int:
        """Keeps the system prompt's blocks in the prefix cache for good; answers the number of tokens kept.

        Waits for no engine that is not there: it is called when one has just come up, by who would start the next.
        """
        return int(self._call("pin_system_prompt", text, waits=False))

    # ── state ────────────────────────────────────────────────────────────────────────────────────────────────────────

    def check_health(self) -> str:
        try:
            return self.told_health()
        except EngineDeadError as error:
            return str(error)

    def told_health(self) -> str:
        """What the engine says of its health. Raises EngineDeadError where it says nothing."""
        try:
            response = self._sync.get("/v1/health/ready", timeout=CONNECT_S)
            if response.status_code == 200:
                return "ready"
            return f"{self._place}: {response.json().get('reason', response.status_code)}"
        except (httpx.HTTPError, ValueError) as error:
            raise self._unreachable(error) from None

    def stats(self) -> EngineStats:
        """What the engine counts. Raises EngineDeadError, at once: who watches the engine asks for them."""
        return read_stats(self._get("/engine/stats", waits=False))

    # ── the border ───────────────────────────────────────────────────────────────────────────────────────────────────

    def _written(self, request: EngineRequest) -> tuple[str, bytes, DeltaReader]:
        body = {field.name: getattr(request, field.name) for field in fields(request)}
        return "/engine/generate", json.dumps(body, default=list).encode(), DeltaReader()

    def _refusal(self, response: httpx.Response) -> EngineError:
        return _refusal(response.status_code, response.content)

    @property
    def _place(self) -> str:
        """The engine, for people to read."""
        return f"the engine at {self.url}"

    def _unreachable(self, error: Exception) -> EngineDeadError:
        return EngineDeadError(f"{self._place} does not answer ({type(error).__name__}); try again")

    def _broken_off(self) -> EngineDeadError:
        return EngineDeadError(f"{self._place} broke off in the middle of the answer; try again")

    def _call(self, method: str, *arguments: Any, waits: bool = True, **options: Any) -> Any:
        self._refuse_private()
        body = json.dumps({"method": method, "arguments": arguments, "options": options}, default=list).encode()
        timeout = CALL_S if may_wait() else HURRIED_S
        reply = self._answer(lambda: self._sync.post("/engine/call", content=body, timeout=timeout), waits=waits)
        return reply["result"]

    def _get(self, path: str, *, waits: bool = True) -> dict[str, Any]:
        return self._answer(lambda: self._sync.get(path), waits=waits)

    def _answer(self, ask: Callable[[], httpx.Response], *, waits: bool) -> dict[str, Any]:
        """The reply's object; with `waits` also of an engine that is starting. Raises its error, or EngineDeadError."""
        try:
            response = self._patiently(ask) if waits and may_wait() else ask()
        except httpx.HTTPError as error:
            raise self._unreachable(error) from None
        if response.status_code != 200:
            raise _refusal(response.status_code, response.content)
        entry: dict[str, Any] = orjson.loads(response.content)
        if (error_entry := entry.get("error")) is not None:
            raise read_error(error_entry)
        return entry

    def _patiently(self, ask: Callable[[], httpx.Response]) -> httpx.Response:
        """The response, waited for while nothing listens there or it is still loading: a restart may be under way."""
        deadline = time.monotonic() + self._starting_s
        while True:
            try:
                response = ask()
                if response.status_code != LOADING or time.monotonic() > deadline:
                    return response
                response.close()
            except (httpx.NetworkError, httpx.RemoteProtocolError, httpx.ConnectTimeout):  # perhaps it is just dying
                if time.monotonic() > deadline:
                    raise
            time.sleep(RETRY_S)


def _refusal(status: int, body: bytes) -> EngineError:
    """The error of a reply that is no answer: of the engine's server, or of something before it."""
    try:
        entry = orjson.loads(body)["error"]
        if entry["code"] == NotReadyError.code:
            return EngineDeadError(entry["message"])
        return read_error({"code": entry["code"], "message": entry["message"]})
    except (ValueError, LookupError, TypeError):
        return EngineDeadError(f"the engine's server answered with HTTP {status}")
