"""What clients for engines behind HTTP share: connections, a stream's way from bytes to deltas, how it is broken off.

What is posted, how the body reads and what a refusal means is the business of a subclass, one for each wire format.
"""

import asyncio
import contextlib
import threading
import time
import weakref
from abc import ABC, abstractmethod
from collections.abc import AsyncGenerator, Awaitable, Callable, Generator, Iterator, Mapping
from contextlib import aclosing
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Protocol, TypeVar

import httpx

from app.degradation import current_degradation
from app.engines.client import RequestTimes
from app.engines.loop_thread import LoopThread
from app.engines.request import EngineRequest
from app.principal import current_principal
from app.privacy import PrivateRequestError, is_private
from engine.errors import EngineError
from engine.outputs import OutputDelta

CONNECT_S = 5.0
CALL_S = 120.0
RETRY_S = 0.2
LOADING = 503
LIMITS = httpx.Limits(max_connections=None, max_keepalive_connections=64)

T = TypeVar("T")


class DeltaReader(Protocol):
    """Deltas out of a body that comes in pieces, which may end anywhere."""

    def feed(self, piece: bytes) -> Iterator[OutputDelta]:
        """Those that are whole with this piece. Raises EngineError where the body tells one."""

    def close(self) -> Iterator[OutputDelta]:
        """Those that only the end of the body makes whole."""


@dataclass
class Post:
    """One request on its way: where to, what, and what reads the answer."""

    path: str
    body: bytes
    reader: DeltaReader
    request: EngineRequest
    times: RequestTimes


class HttpEngineClient(ABC):
    """The streams of an EngineClient at `url`, or, with `socket`, at that Unix socket.

    `starting_s`: how long a request waits for an engine that does not answer yet, as one that is being restarted.
    `silence_s`: how long an answer may be silent; None: for as long as it waits for its turn.
    `takes_private`: whether it may be sent what must not leave this machine; else that is refused, whoever asks.
    `on_end` is called with the times of every request that ended.
    """

    def __init__(
        self,
        url: str,
        *,
        headers: Mapping[str, str],
        socket: Path | None = None,
        starting_s: float = 0.0,
        silence_s: float | None = None,
        takes_private: bool = True,
        on_end: Callable[[RequestTimes], None] | None = None,
    ) -> None:
        self.url = url
        self._socket = None if socket is None else str(socket)
        self._headers = {"Content-Type": "application/json", **headers}
        self._starting_s = starting_s
        self._silence_s = silence_s
        self._takes_private = takes_private
        self._on_end = on_end
        self._lock = threading.Lock()
        self._waits: dict[str, _Wait] = {}
        self._loop_thread = LoopThread("engine-streams")
        self._sync = httpx.Client(
            base_url=url,
            headers=self._headers,
            timeout=httpx.Timeout(CALL_S, connect=CONNECT_S),
            transport=httpx.HTTPTransport(uds=self._socket, limits=LIMITS),
        )
        # Connections belong to the event loop they were opened in, and chains run in loops of their own too.
        self._clients: weakref.WeakKeyDictionary[asyncio.AbstractEventLoop, httpx.AsyncClient] = (
            weakref.WeakKeyDictionary()
        )

    # ── of each wire format ──────────────────────────────────────────────────────────────────────────────────────────

    @abstractmethod
    def _written(self, request: EngineRequest) -> tuple[str, bytes, DeltaReader]:
        """Path, body and reader of a request."""

    @abstractmethod
    def _refusal(self, response: httpx.Response) -> EngineError:
        """The error of a reply, read to its end, that is no answer."""

    @abstractmethod
    def _unreachable(self, error: Exception) -> EngineError:
        """The error where nothing answers, or nothing more."""

    @abstractmethod
    def _broken_off(self) -> EngineError:
        """The error of an answer that has no end."""

    # ── streams ──────────────────────────────────────────────────────────────────────────────────────────────────────

    async def stream(self, request: EngineRequest) -> AsyncGenerator[OutputDelta, None]:
        async with aclosing(self._deltas(self._post(request))) as deltas:
            async for delta in deltas:
                yield delta

    def stream_sync(self, request: EngineRequest) -> Generator[OutputDelta, None, None]:
        yield from self._loop_thread.iterate(self._deltas(self._post(request)))

    @property
    def num_sequences(self) -> int:
        """Answers that are being waited for or read."""
        return sum(wait.num_sequences for wait in list(self._waits.values()))

    def abort(self, request_id: str) -> None:
        """Ends a request by closing its connection; its last delta says so."""
        wait = self._waits.get(request_id)
        if wait is not None:
            wait.abort()

    def close(self) -> None:
        """Closes connections that no stream uses."""
        self._sync.close()

    @property
    @abstractmethod
    def model_name(self) -> str:
        """The name by which the model is served."""

    def _refuse_private(self) -> None:
        """Raises PrivateRequestError where what is about to be sent must not be."""
        if is_private() and not self._takes_private:
            raise PrivateRequestError(self.model_name)

    def _post(self, request: EngineRequest) -> Post:
        self._refuse_private()
        tenant = request.tenant or current_principal().tenant
        params = current_degradation().sampling(request.params)
        request = replace(request, tenant=tenant, params=params)
        times = RequestTimes(max_tokens=params.get("max_tokens"), n=params.get("n") or 1, tenant=tenant)
        return Post(*self._written(request), request, times)

    async def _deltas(self, post: Post) -> AsyncGenerator[OutputDelta, None]:
        request_id, times, last = post.request.request_id, post.times, _nothing_yet(post.request)
        wait = self._waits[request_id] = _Wait(times.n)
        try:
            async with aclosing(self._pieces(post, wait)) as pieces:
                async for piece in pieces:
                    for delta in post.reader.feed(piece) if piece is not None else post.reader.close():
                        last = delta
                        times.note(delta)
                        yield delta
            if not times.is_whole:
                raise self._broken_off()
        except TimeoutError:
            if not wait.aborted:
                raise
            yield replace(last, text="", token_ids=(), logprobs=None, tool_calls=(), finish_reason="abort")
        except (httpx.HTTPError, EngineError) as error:
            if times.is_whole and isinstance(error, httpx.HTTPError):
                return  # it broke behind the last word
            times.finish_reason = "error"
            if isinstance(error, EngineError):
                raise
            raise self._unreachable(error) from None
        finally:
            self._waits.pop(request_id, None)
            times.end(self._on_end)

    async def _pieces(self, post: Post, wait: "_Wait") -> AsyncGenerator[bytes | None, None]:
        """The body's pieces, and None behind them.

        Where it is worth waiting for a restart, what breaks off before the first piece is asked once more: nobody has
        seen anything of it. Once, for it may be the request that ends the engine.
        """
        may_ask_again = self._starting_s > 0
        while True:
            try:
                async with aclosing(self._pieces_once(post, wait)) as pieces:
                    async for piece in pieces:
                        may_ask_again = False
                        yield piece
                break
            except (httpx.NetworkError, httpx.RemoteProtocolError):
                if not may_ask_again:
                    raise
                may_ask_again = False
            await wait.until(asyncio.sleep(RETRY_S))
        yield None

    async def _pieces_once(self, post: Post, wait: "_Wait") -> AsyncGenerator[bytes, None]:
        response = await self._opened(post, wait)
        try:
            async with aclosing(response.aiter_bytes()) as pieces:  # type: ignore[type-var]  # is a generator
                while (piece := await wait.until(anext(pieces, None))) is not None:
                    yield piece
        finally:
            await response.aclose()

    async def _opened(self, post: Post, wait: "_Wait") -> httpx.Response:
        """The response, its body still to come; waited for while nothing listens there or it is still loading."""
        client = self._client()
        deadline = time.monotonic() + self._starting_s
        while True:
            try:
                sent = client.build_request("POST", post.path, content=post.body)
                response = await wait.until(client.send(sent, stream=True))
            except (httpx.ConnectError, httpx.ConnectTimeout):
                if time.monotonic() > deadline:
                    raise
            else:
                if response.status_code == 200:
                    return response
                try:
                    await wait.until(response.aread())
                finally:
                    await response.aclose()
                if response.status_code != LOADING or time.monotonic() > deadline:
                    raise self._refusal(response)
            await wait.until(asyncio.sleep(RETRY_S))

    def _client(self) -> httpx.AsyncClient:
        loop = asyncio.get_running_loop()
        with self._lock:
            client = self._clients.get(loop)
            if client is None:
                client = httpx.AsyncClient(
                    base_url=self.url,
                    headers=self._headers,
                    timeout=httpx.Timeout(self._silence_s, connect=CONNECT_S),
                    transport=httpx.AsyncHTTPTransport(uds=self._socket, limits=LIMITS),
                )
                self._clients[loop] = client
            return client


def _nothing_yet(request: EngineRequest) -> OutputDelta:
    return OutputDelta(request.request_id, 0, "", (), None, None, None, 0, 0, 0)


class _Wait:
    """Waiting that can be ended from outside, by whichever thread: what is waited for is cancelled, nothing else."""

    def __init__(self, num_sequences: int) -> None:
        self.num_sequences = num_sequences
        self.aborted = False
        self._loop = asyncio.get_running_loop()
        self._scope: asyncio.Timeout | None = None

    async def until(self, awaited: Awaitable[T]) -> T:
        """What is waited for. Raises TimeoutError where `aborted`."""
        async with asyncio.timeout(0 if self.aborted else None) as self._scope:
            try:
                return await awaited
            finally:
                self._scope = None

    def abort(self) -> None:
        with contextlib.suppress(RuntimeError):  # the loop has ended, and all its requests with it
            self._loop.call_soon_threadsafe(self._end)

    def _end(self) -> None:
        self.aborted = True
        if self._scope is not None:
            self._scope.reschedule(self._loop.time())
