"""Where the engine runs, behind one face: in this process, in a child that is looked after, or elsewhere by URL.

`app/engines/client.py` is how it is asked; this is how it is started, watched and ended.
"""

import logging
import threading
import time
from collections.abc import Callable
from typing import TYPE_CHECKING, Literal, Protocol

from app import models
from app.engines.client import RequestTimes
from app.engines.in_process import InProcessEngineClient, engine_config
from app.engines.remote import RemoteEngineClient
from app.errors import StartupError
from app.settings import Settings
from engine.errors import EngineError
from engine.outputs import EngineStats

if TYPE_CHECKING:
    from engine import AsyncEngine

logger = logging.getLogger(__name__)

EngineHealth = Literal["ready", "degraded", "unhealthy"]

# A model of many gigabytes takes minutes to load.
FIRST_START_S = 900.0
POLL_S = 1.0
NOTHING_COUNTED = EngineStats(0, 0, 1, 1, 0, 0, 0, 0, 0, 0, 0)


class EngineBackend(Protocol):
    """An engine that somebody keeps."""

    @property
    def client(self) -> InProcessEngineClient | RemoteEngineClient:
        """How it is asked."""

    def health(self) -> tuple[EngineHealth, str]:
        """How it is, and if not ready, why. Does not block. What is degraded still takes requests."""

    def stats(self) -> EngineStats:
        """What it counts, or counted a moment ago. Does not block."""

    def drain(self, timeout_s: float) -> None:
        """Lets answers finish for so long, then ends what is ours of it. Blocks; twice is harmless."""


class InProcessBackend:
    """An engine of this process."""

    def __init__(self, engine: "AsyncEngine", client: InProcessEngineClient) -> None:
        self.client = client
        self._engine = engine

    def health(self) -> tuple[EngineHealth, str]:
        why = self._engine.check_health()
        return ("ready", "") if why == "ready" else ("unhealthy", why)

    def stats(self) -> EngineStats:
        return self._engine.stats()

    def drain(self, timeout_s: float) -> None:
        self._engine.drain(timeout_s)


class RemoteBackend:
    """An engine elsewhere, which this process neither starts nor ends."""

    def __init__(self, client: RemoteEngineClient) -> None:
        self.client = client
        self._health: tuple[EngineHealth, str] = ("unhealthy", "the engine has not answered yet")
        self._last_stats = NOTHING_COUNTED
        self._ended = threading.Event()

    def start(self) -> None:
        """Waits until it is ready, then watches it. Raises StartupError where it does not become so."""
        deadline = time.monotonic() + FIRST_START_S
        while (why := self.client.check_health()) != "ready":
            if time.monotonic() > deadline or self._ended.wait(POLL_S):
                raise StartupError(f"{why}; start it with `ragstone engine`, or correct engine_url")
        self._health = ("ready", "")
        self._read_stats()
        threading.Thread(target=self._watch, name="engine-watch", daemon=True).start()

    def health(self) -> tuple[EngineHealth, str]:
        return self._health

    def stats(self) -> EngineStats:
        return self._last_stats

    def drain(self, timeout_s: float) -> None:
        self._ended.set()
        self.client.close()

    def _watch(self) -> None:
        while not self._ended.wait(POLL_S):
            why = self.client.check_health()
            self._health = ("ready", "") if why == "ready" else ("unhealthy", why)
            self._read_stats()

    def _read_stats(self) -> None:
        try:
            self._last_stats = self.client.stats()
        except EngineError:
            logger.debug("the engine's statistics cannot be read")


def open_backend(
    settings: Settings, model_name: str, on_end: Callable[[RequestTimes], None] | None
) -> InProcessBackend | RemoteBackend:
    """The engine that the settings ask for, started. Blocks. Raises RagstoneError or EngineError."""
    backend: InProcessBackend | RemoteBackend
    if settings.engine_url is not None:
        key = settings.engine_api_key
        client = RemoteEngineClient(settings.engine_url, api_key=key, model_name=model_name, on_end=on_end)
        backend = RemoteBackend(client)
        backend.start()
        return backend
    if settings.engine_mode == "process":
        from app.engines.process import EngineProcess

        backend = EngineProcess(settings, model_name=model_name, on_end=on_end)
        backend.start()
        return backend
    from engine import AsyncEngine

    engine = AsyncEngine(engine_config(settings, models.resolve(settings.model, settings)))
    engine.start()
    return InProcessBackend(engine, InProcessEngineClient(engine, model_name=model_name, on_end=on_end))
