"""A model that is loaded when it is first asked for, and put away again when nobody has asked for it for a while.

The client in front of it loads it for whatever is asked; requests that come while it loads wait for the same load.
"""

import asyncio
import contextlib
import ctypes
import gc
import logging
import threading
import time
from collections.abc import AsyncGenerator, Callable, Generator, Iterator, Mapping, Sequence
from concurrent.futures import Future
from contextlib import aclosing, closing
from typing import Any

from app.engines.backend import NOTHING_COUNTED, EngineBackend, EngineHealth
from app.engines.patience import may_wait
from app.engines.request import EngineRequest
from app.messages import Message
from engine.errors import EngineDeadError, InsufficientMemoryError
from engine.outputs import EngineStats, OutputDelta

logger = logging.getLogger(__name__)

# Two models that load at the same time would each be promised the same memory, and so would one that loads while
# another is still being put away. Who loads may put others away.
_loading = threading.RLock()


class OnDemandBackend:
    """`open_` makes the backend, and blocks; `make_room` frees memory, and says whether there was anything to free."""

    def __init__(
        self, name: str, open_: Callable[[], EngineBackend], *, idle_s: float, make_room: Callable[[], bool]
    ) -> None:
        self.name = name
        self.idle_s = idle_s
        self.client = OnDemandClient(self)
        self._open = open_
        self._make_room = make_room
        self._lock = threading.Lock()
        self._loaded: Future[EngineBackend] | None = None
        self._num_using = 0
        self.last_used = time.monotonic()

    @property
    def state(self) -> str:
        """loaded, loading or not_loaded."""
        future = self._loaded
        if future is None:
            return "not_loaded"
        return "loaded" if future.done() else "loading"

    def health(self) -> tuple[EngineHealth, str]:
        backend = self.present()
        return ("ready", "") if backend is None else backend.health()

    def stats(self) -> EngineStats:
        backend = self.present()
        return NOTHING_COUNTED if backend is None else backend.stats()

    def drain(self, timeout_s: float) -> None:
        backend = self.present()
        if backend is not None:
            backend.drain(timeout_s)

    @contextlib.contextmanager
    def using(self) -> Iterator[EngineBackend]:
        """The backend, loaded, and kept so. Blocks while it loads. Raises what its loading raises.

        Raises EngineDeadError where it is not loaded and nobody may wait for it (`app/engines/patience.py`).
        """
        if not may_wait() and self.present() is None:
            raise EngineDeadError(f"the model {self.name} is not loaded")
        future = self._begin()
        try:
            yield future.result()
        finally:
            self._end()

    @contextlib.asynccontextmanager
    async def ausing(self) -> AsyncGenerator[EngineBackend, None]:
        """The same without blocking."""
        future = self._begin()
        try:
            yield await asyncio.shield(asyncio.wrap_future(future))
        finally:
            self._end()

    def unload(self, *, idle_s: float = 0.0) -> bool:
        """Puts the model away where nobody has used it for so long; whether it did. Blocks."""
        with _loading:
            with self._lock:
                future = self._loaded
                is_idle = self._num_using == 0 and time.monotonic() - self.last_used >= idle_s
                if future is None or not future.done() or not is_idle:
                    return False
                self._loaded = None
            logger.info("unloading the model %s, which nobody uses", self.name)
            future.result().drain(0.0)
            del future
            give_memory_back()
        return True

    def present(self) -> EngineBackend | None:
        """The backend, where it is loaded."""
        future = self._loaded
        return future.result() if future is not None and future.done() and future.exception() is None else None

    def _begin(self) -> "Future[EngineBackend]":
        with self._lock:
            self._num_using += 1
            if self._loaded is None:
                self._loaded = Future()
                threading.Thread(target=self._load, args=(self._loaded,), name="model-load", daemon=True).start()
            return self._loaded

    def _end(self) -> None:
        with self._lock:
            self._num_using -= 1
            self.last_used = time.monotonic()

    def _load(self, future: "Future[EngineBackend]") -> None:
        started = time.monotonic()
        try:
            with _loading:
                backend = self._opened()
        except BaseException as error:
            with self._lock:  # the next request tries again
                self._loaded = None
            future.set_exception(error)
            return
        logger.info("loaded the model %s on demand in %.1f s", self.name, time.monotonic() - started)
        future.set_result(backend)

    def _opened(self) -> EngineBackend:
        while True:
            try:
                return self._open()
            except InsufficientMemoryError:
                if not self._make_room():
                    raise


class OnDemandClient:
    """An EngineClient that loads its model first. Its size and context are remembered while it is put away."""

    def __init__(self, backend: OnDemandBackend) -> None:
        self._backend = backend
        self._facts: tuple[int, int] | None = None

    @property
    def model_name(self) -> str:
        return self._backend.name

    @property
    def max_model_len(self) -> int:
        return self._known[0]

    @property
    def num_parameters(self) -> int:
        return self._known[1]

    async def stream(self, request: EngineRequest) -> AsyncGenerator[OutputDelta, None]:
        async with self._backend.ausing() as backend, aclosing(backend.client.stream(request)) as deltas:
            async for delta in deltas:
                yield delta

    def stream_sync(self, request: EngineRequest) -> Generator[OutputDelta, None, None]:
        with self._backend.using() as backend, closing(backend.client.stream_sync(request)) as deltas:
            yield from deltas

    def abort(self, request_id: str) -> None:
        backend = self._backend.present()
        if backend is not None:
            backend.client.abort(request_id)

    def count_tokens(self, text: str) -> int:
        with self._backend.using() as backend:
            return backend.client.count_tokens(text)

    def encode(self, text: str, *, add_bos: bool = True) -> list[int]:
        with self._backend.using() as backend:
            return backend.client.encode(text, add_bos=add_bos)

    def encode_chat(
        self,
        messages: Sequence[Message],
        *,
        tools: Sequence[Mapping[str, Any]] | None = None,
        add_generation_prompt: bool = True,
    ) -> list[int]:
        with self._backend.using() as backend:
            return backend.client.encode_chat(messages, tools=tools, add_generation_prompt=add_generation_prompt)

    def decode(self, token_ids: Sequence[int]) -> str:
        with self._backend.using() as backend:
            return backend.client.decode(token_ids)

    def token_texts(self, token_ids: Sequence[int]) -> list[str]:
        with self._backend.using() as backend:
            return backend.client.token_texts(token_ids)

    def pin_system_prompt(self, text: str) -> int:
        """Keeps the system prompt's blocks in the prefix cache while the model is loaded; the number of tokens kept."""
        with self._backend.using() as backend:
            return backend.client.pin_system_prompt(text)

    def check_health(self) -> str:
        status, reason = self._backend.health()
        return reason or status

    @property
    def _known(self) -> tuple[int, int]:
        if self._facts is None:
            with self._backend.using() as backend:
                self._facts = (backend.client.max_model_len, backend.client.num_parameters)
        return self._facts


def give_memory_back() -> None:
    """Returns what nothing refers to any more to the system: an engine is full of circles, and malloc keeps pages."""
    gc.collect()
    with contextlib.suppress(OSError, AttributeError):  # another C library than glibc
        ctypes.CDLL("libc.so.6").malloc_trim(0)
