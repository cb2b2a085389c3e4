"""An event loop on a thread of its own, for callers that have none: asynchronous streams read as ordinary ones."""

import asyncio
import threading
from collections.abc import AsyncGenerator, Coroutine, Generator
from typing import Any, TypeVar

T = TypeVar("T")

_END = object()


class LoopThread:
    """The loop; its thread starts with the first stream, and ends with the process."""

    def __init__(self, name: str) -> None:
        self._name = name
        self._lock = threading.Lock()
        self._loop: asyncio.AbstractEventLoop | None = None

    def iterate(self, stream: AsyncGenerator[T, None]) -> Generator[T, None, None]:
        """The items of a stream, which ends with the reading of it."""

        async def step() -> Any:
            return await anext(stream, _END)

        try:
            while (item := self._run(step())) is not _END:
                yield item
        finally:
            self._run(stream.aclose())

    def _run(self, coroutine: Coroutine[Any, Any, T]) -> T:
        future = asyncio.run_coroutine_threadsafe(coroutine, self._started())
        try:
            return future.result()
        except BaseException:
            future.cancel()
            raise

    def _started(self) -> asyncio.AbstractEventLoop:
        with self._lock:
            if self._loop is None:
                self._loop = asyncio.new_event_loop()
                threading.Thread(target=self._loop.run_forever, name=self._name, daemon=True).start()
            return self._loop
