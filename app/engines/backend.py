"""Where the engine runs, behind one face: in this process, in a child that is looked after, or elsewhere by URL.

`app/engines/client.py` is how it is asked; this is how it is started, watched and ended.
"""

import logging
import os
import threading
import time
from collections.abc import Callable
from dataclasses import replace
from typing import TYPE_CHECKING, Literal, Protocol

import httpx

from app import models
from app.engines.client import EngineClient, RequestTimes
from app.engines.entries import ModelEntry, is_here
from app.engines.in_process import InProcessEngineClient, engine_config
from app.engines.openai_client import OpenAIClient
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
# A server that is somebody else's is asked for its list of models no more often than that.
OTHERS_POLL_S = 15.0
NOTHING_COUNTED = EngineStats(0, 0, 1, 1, 0, 0, 0, 0, 0, 0, 0)


class EngineHandle(EngineClient, Protocol):
    """How an engine is asked by who keeps it."""

    def pin_system_prompt(self, text: str) -> int:
        """Keeps the system prompt's blocks in the prefix cache for good; answers the number of tokens kept."""


class EngineBackend(Protocol):
    """An engine that somebody keeps."""

    @property
    def client(self) -> "EngineHandle":
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

    def full(self) -> EngineError | None:
        """The refusal that a request would get now for want of room in the queue; None where there is room."""
        return self._engine.full()

    def drain(self, timeout_s: float) -> None:
        self._engine.drain(timeout_s)


class RemoteBackend:
    """An engine elsewhere, which this process neither starts nor ends."""

    def __init__(self, client: RemoteEngineClient) -> None:
        self.client = client
        self._health: tuple[EngineHealth, str] = ("unhealthy", "the engine has not answered yet")
        self._last_stats = NOTHING_COUNTED
        self._num_sequences_then = 0
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
        """What it counted a moment ago; running and waiting with what went there and came back since.

        Who decides about admission would else let a burst in that comes between two looks.
        """
        return with_others(self._last_stats, self.client.num_sequences - self._num_sequences_then)

    def drain(self, timeout_s: float) -> None:
        self._ended.set()
        self.client.close()

    def _watch(self) -> None:
        while not self._ended.wait(POLL_S):
            why = self.client.check_health()
            self._health = ("ready", "") if why == "ready" else ("unhealthy", why)
            self._read_stats()

    def _read_stats(self) -> None:
        num_sequences = self.client.num_sequences
        try:
            self._last_stats, self._num_sequences_then = self.client.stats(), num_sequences
        except EngineError:
            logger.debug("the engine's statistics cannot be read")


def with_others(stats: EngineStats, num_more: int) -> EngineStats:
    """Statistics with so many more sequences (or fewer): those for which there is no room wait, and end last."""
    if num_more == 0:
        return stats
    total = max(0, stats.num_running + stats.num_waiting + num_more)
    # Where some wait, there was no room for more than run; else there is for as many as the engine takes.
    room = stats.num_running if stats.num_waiting else max(stats.num_running, stats.max_num_seqs)
    num_running = min(total, room)
    return replace(stats, num_running=num_running, num_waiting=total - num_running)


class OpenAIBackend:
    """A model of an OpenAI-compatible server. One that does not answer is degraded: others may step in for it."""

    def __init__(self, client: OpenAIClient) -> None:
        self.client = client
        self._health: tuple[EngineHealth, str] = ("ready", "")
        self._ended = threading.Event()

    def start(self) -> None:
        """Looks after it from now on; says so where it cannot be used yet."""
        self._look()
        if self._health[1]:
            logger.warning("model %s: %s", self.client.model_name, self._health[1])
        threading.Thread(target=self._watch, name="engine-watch", daemon=True).start()

    def health(self) -> tuple[EngineHealth, str]:
        return self._health

    def stats(self) -> EngineStats:
        return NOTHING_COUNTED

    def drain(self, timeout_s: float) -> None:
        self._ended.set()
        self.client.close()

    def _watch(self) -> None:
        while not self._ended.wait(OTHERS_POLL_S):
            self._look()

    def _look(self) -> None:
        why = self.client.check_health()
        self._health = ("ready", "") if why == "ready" else ("degraded", why)


def open_backend(
    settings: Settings,
    model_name: str,
    on_end: Callable[[RequestTimes], None] | None,
    entry: ModelEntry | None = None,
) -> EngineBackend:
    """The engine that the settings ask for, or the model of an entry, started. Blocks.

    Raises RagstoneError or EngineError.
    """
    if entry is not None and entry.url is not None:
        return _open_entry(entry, on_end)
    if settings.engine_url is not None:
        return _open_url(settings, settings.engine_url, model_name, on_end)
    if settings.engine_mode == "process":
        from app.engines.process import EngineProcess

        process = EngineProcess(settings, model_name=model_name, on_end=on_end)
        process.start()
        return process
    from engine import AsyncEngine

    engine = AsyncEngine(engine_config(settings, models.resolve(settings.model, settings)))
    engine.start()
    return InProcessBackend(engine, InProcessEngineClient(engine, model_name=model_name, on_end=on_end))


def _open_entry(entry: ModelEntry, on_end: Callable[[RequestTimes], None] | None) -> OpenAIBackend:
    assert entry.url is not None, "it is behind a URL"
    key = None if entry.key_env is None else os.environ.get(entry.key_env)
    if entry.key_env is not None and not key:
        raise StartupError(
            f"the model {entry.name!r} takes its key from the environment variable {entry.key_env}, which is not set: "
            "set it, or leave key_env out"
        )
    client = OpenAIClient(
        entry.url,
        model=entry.source,
        model_name=entry.name,
        api_key=key,
        key_env=entry.key_env,
        max_model_len=entry.max_model_len,
        num_parameters=entry.num_parameters,
        extra_fields=entry.extra_fields,
        silence_s=entry.timeout_s,
        takes_private=entry.takes_private,
        on_end=on_end,
    )
    backend = OpenAIBackend(client)
    backend.start()
    return backend


def _open_url(
    settings: Settings, url: str, model_name: str, on_end: Callable[[RequestTimes], None] | None
) -> EngineBackend:
    """What is at engine_url: an engine of ours, with all that it can do, or another server of OpenAI's kind."""
    key = settings.engine_api_key
    if is_ours(url, key):
        remote = RemoteBackend(
            RemoteEngineClient(url, api_key=key, model_name=model_name, takes_private=is_here(url), on_end=on_end)
        )
        remote.start()
        return remote
    backend = OpenAIBackend(
        OpenAIClient(
            url,
            model=settings.model,
            model_name=model_name,
            api_key=key,
            key_env="RAGSTONE_ENGINE_API_KEY",
            max_model_len=settings.max_model_len,
            silence_s=settings.request_timeout_s,
            takes_private=is_here(url),
            on_end=on_end,
        )
    )
    backend.start()
    return backend


def is_ours(url: str, key: str | None) -> bool:
    """Whether `ragstone engine` answers at a URL; where nothing does, it is taken for one that is still to start."""
    headers = {} if key is None else {"Authorization": f"Bearer {key}"}
    try:
        status = httpx.get(url.rstrip("/").removesuffix("/v1") + "/engine/info", headers=headers).status_code
    except httpx.HTTPError:
        return True
    return status not in (404, 405, 501)
