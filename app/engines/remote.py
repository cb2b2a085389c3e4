"""The client for an engine of another process: the child of `app/engines/process.py`, or `ragstone engine` by URL.

Answers, errors and metrics are those of the engine in this process; only the border is another. Reading less than all
of a stream closes its connection, which aborts the request there.
"""

import asyncio
import contextlib
import functools
import json
import threading
import time
import weakref
from collections.abc import AsyncGenerator, Callable, Generator, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import httpx
import orjson

from app.degradation import current_degradation
from app.engines.client import RequestTimes
from app.engines.request import EngineRequest
from app.engines.wire import DeltaReader, read_error, read_stats
from app.errors import NotReadyError
from app.messages import Message
from app.principal import current_principal
from engine.errors import EngineDeadError, EngineError
from engine.outputs import EngineStats, OutputDelta

CONNECT_S = 5.0
CALL_S = 120.0
RETRY_S = 0.2
LOADING = 503
# Texts are counted again and again while a prompt is put together.
COUNTS_KEPT = 4096


class RemoteEngineClient:
    """An engine at `url`, or, with `socket`, at that Unix socket.

    `starting_s`: how long a request waits for an engine that does not answer yet, as one that is being restarted.
    `on_end` is called with the times of every request that ended. Properties ask the engine at their first use.
    """

    def __init__(
        self,
        url: str,
        *,
        socket: Path | None = None,
        api_key: str | None = None,
        model_name: str | None = None,
        starting_s: float = 0.0,
        on_end: Callable[[RequestTimes], None] | None = None,
    ) -> None:
        self._url = url.rstrip("/").removesuffix("/v1")
        self._socket = None if socket is None else str(socket)
        self._headers = {"Content-Type": "application/json"}
        if api_key is not None:
            self._headers["Authorization"] = f"Bearer {api_key}"
        self._name = model_name
        self._starting_s = starting_s
        self._on_end = on_end
        self._lock = threading.Lock()
        self._info: dict[str, Any] | None = None
        self._sync = httpx.Client(
            base_url=self._url,
            headers=self._headers,
            timeout=httpx.Timeout(CALL_S, connect=CONNECT_S),
            transport=httpx.HTTPTransport(uds=self._socket, limits=_LIMITS),
        )
        # Connections belong to the event loop they were opened in, and chains run in loops of their own too.
        self._clients: weakref.WeakKeyDictionary[asyncio.AbstractEventLoop, httpx.AsyncClient] = (
            weakref.WeakKeyDictionary()
        )
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

    # ── answers ──────────────────────────────────────────────────────────────────────────────────────────────────────

    async def stream(self, request: EngineRequest) -> AsyncGenerator[OutputDelta, None]:
        body, times = self._body(request)
        try:
            deadline = time.monotonic() + self._starting_s
            while True:
                try:
                    async with self._client().stream("POST", "/engine/generate", content=body) as response:
                        if response.status_code == LOADING and time.monotonic() < deadline:
                            raise httpx.ConnectError("it listens, and is still loading")
                        if response.status_code != 200:
                            raise _refusal(response.status_code, await response.aread())
                        reader = DeltaReader()
                        async for piece in response.aiter_raw():
                            for delta in reader.feed(piece):
                                times.note(delta)
                                yield delta
                        self._check_whole(times)
                    return
                except (httpx.ConnectError, httpx.ConnectTimeout) as error:
                    if time.monotonic() > deadline:
                        raise self._dead(error) from None
                await asyncio.sleep(RETRY_S)
        except httpx.HTTPError as error:
            times.finish_reason = "error"
            raise self._dead(error) from None
        except EngineError:
            times.finish_reason = "error"
            raise
        finally:
            self._end(times)

    def stream_sync(self, request: EngineRequest) -> Generator[OutputDelta, None, None]:
        body, times = self._body(request)
        try:
            sent = self._sync.build_request("POST", "/engine/generate", content=body, timeout=_PATIENT)
            with contextlib.closing(self._patiently(lambda: self._sync.send(sent, stream=True))) as response:
                if response.status_code != 200:
                    raise _refusal(response.status_code, response.read())
                reader = DeltaReader()
                for piece in response.iter_raw():
                    for delta in reader.feed(piece):
                        times.note(delta)
                        yield delta
                self._check_whole(times)
        except httpx.HTTPError as error:
            times.finish_reason = "error"
            raise self._dead(error) from None
        except EngineError:
            times.finish_reason = "error"
            raise
        finally:
            self._end(times)

    def abort(self, request_id: str) -> None:
        with contextlib.suppress(EngineError):
            self._call("abort", request_id)

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
        options = {"tools": tools, "add_generation_prompt": add_generation_prompt}
        return list(self._call("encode_chat", messages, **options))

    def decode(self, token_ids: Sequence[int]) -> str:
        return str(self._call("decode", list(token_ids)))

    def token_texts(self, token_ids: Sequence[int]) -> list[str]:
        return list(self._call("token_texts", list(token_ids)))

    def pin_system_prompt(self, text: str) -> int:
        """Keeps the system prompt's blocks in the prefix cache for good; answers the number of tokens kept."""
        return int(self._call("pin_system_prompt", text))

    # ── state ────────────────────────────────────────────────────────────────────────────────────────────────────────

    def check_health(self) -> str:
        try:
            response = self._sync.get("/v1/health/ready", timeout=CONNECT_S)
            if response.status_code == 200:
                return "ready"
            return f"the engine at {self._url}: {response.json().get('reason', response.status_code)}"
        except (httpx.HTTPError, ValueError) as error:
            return str(self._dead(error))

    def stats(self) -> EngineStats:
        """What the engine counts. Raises EngineDeadError."""
        return read_stats(self._get("/engine/stats"))

    def close(self) -> None:
        """Closes connections that no stream uses."""
        self._sync.close()

    # ── the border ───────────────────────────────────────────────────────────────────────────────────────────────────

    def _client(self) -> httpx.AsyncClient:
        loop = asyncio.get_running_loop()
        with self._lock:
            client = self._clients.get(loop)
            if client is None:
                client = httpx.AsyncClient(
                    base_url=self._url,
                    headers=self._headers,
                    timeout=_PATIENT,
                    transport=httpx.AsyncHTTPTransport(uds=self._socket, limits=_LIMITS),
                )
                self._clients[loop] = client
            return client

    def _body(self, request: EngineRequest) -> tuple[bytes, RequestTimes]:
        tenant = request.tenant or current_principal().tenant
        params = current_degradation().sampling(request.params)
        times = RequestTimes(max_tokens=params.get("max_tokens"), n=params.get("n") or 1, tenant=tenant)
        return json.dumps(vars(replace(request, params=params, tenant=tenant)), default=list).encode(), times

    def _call(self, method: str, *arguments: Any, **options: Any) -> Any:
        body = json.dumps({"method": method, "arguments": arguments, "options": options}, default=list).encode()
        return self._answer(lambda: self._sync.post("/engine/call", content=body))["result"]

    def _get(self, path: str) -> dict[str, Any]:
        return self._answer(lambda: self._sync.get(path))

    def _answer(self, ask: Callable[[], httpx.Response]) -> dict[str, Any]:
        """The reply's object. Raises the engine's error, or EngineDeadError."""
        try:
            response = self._patiently(ask)
        except httpx.HTTPError as error:
            raise self._dead(error) from None
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
            except (httpx.ConnectError, httpx.ConnectTimeout):
                if time.monotonic() > deadline:
                    raise
            time.sleep(RETRY_S)

    def _check_whole(self, times: RequestTimes) -> None:
        if not times.is_whole:
            raise EngineDeadError(f"the engine at {self._url} broke off in the middle of the answer")

    def _dead(self, error: Exception) -> EngineDeadError:
        return EngineDeadError(f"the engine at {self._url} does not answer ({type(error).__name__}); try again")

    def _end(self, times: RequestTimes) -> None:
        times.end()
        if self._on_end is not None:
            with contextlib.suppress(Exception):  # a fault in metrics must not break an answer
                self._on_end(times)


# An answer may be silent for as long as it waits for its turn.
_PATIENT = httpx.Timeout(None, connect=CONNECT_S)
_LIMITS = httpx.Limits(max_connections=None, max_keepalive_connections=64)


def _refusal(status: int, body: bytes) -> EngineError:
    """The error of a reply that is no answer: of the engine's server, or of something before it."""
    try:
        entry = orjson.loads(body)["error"]
        if entry["code"] == NotReadyError.code:
            return EngineDeadError(entry["message"])
        return read_error({"code": entry["code"], "message": entry["message"]})
    except (ValueError, LookupError, TypeError):
        return EngineDeadError(f"the engine's server answered with HTTP {status}")
