"""The chat models of a server: which of them are loaded, and their engines, by name."""

import logging
import threading
from collections.abc import Callable
from functools import partial

from app.engines.backend import EngineBackend, open_backend
from app.engines.client import RequestTimes
from app.engines.model_table import ModelTable, settings_of
from app.engines.on_demand import OnDemandBackend
from app.errors import RagstoneError
from app.metrics import ServerMetrics
from app.settings import Settings
from engine.errors import EngineError

logger = logging.getLogger(__name__)

# How often is looked whether a model has been idle for long enough.
IDLE_LOOK_S = 1.0


class ModelPool:
    """The backends of a table. `on_end` is told of every request that ended: the model's name, and its times."""

    def __init__(
        self,
        table: ModelTable,
        settings: Settings,
        metrics: ServerMetrics,
        on_end: Callable[[str, RequestTimes], None],
    ) -> None:
        self.table = table
        self._settings = settings
        self._metrics = metrics
        self._on_end = on_end
        self._backends: dict[str, EngineBackend] = {}
        self._closing = threading.Event()

    def open(self, name: str) -> EngineBackend:
        """Opens a model: loads it, where it is loaded always. Blocks. Raises RagstoneError or EngineError."""
        entry = self.table.entries[name]
        backend: EngineBackend
        if entry.load == "on_demand":
            backend = OnDemandBackend(
                name, lambda: self._opened(name), idle_s=entry.idle_s, make_room=lambda: self._make_room(name)
            )
        else:
            backend = self._opened(name)
        self.put(name, backend)
        return backend

    def put(self, name: str, backend: EngineBackend) -> None:
        """Takes a backend that is open."""
        self._backends[name] = backend
        self._metrics.watch(name, backend.stats)

    def open_rest(self) -> None:
        """Opens the models that are not open yet, and begins to look for idle ones. Raises as `open`."""
        for name in self.table.entries:
            if name not in self._backends:
                self.open(name)
        if any(isinstance(backend, OnDemandBackend) for backend in self._backends.values()):
            threading.Thread(target=self._unload_idle, name="model-idle", daemon=True).start()

    def backend(self, name: str) -> EngineBackend:
        """The backend of an open model."""
        return self._backends[name]

    def state(self, name: str) -> str:
        """loaded, loading or not_loaded; remote where another server runs it."""
        if self.table.entries[name].url is not None:
            return "remote"
        backend = self._backends.get(name)
        if isinstance(backend, OnDemandBackend):
            return backend.state
        return "loading" if backend is None else "loaded"

    def drain(self, timeout_s: float) -> None:
        """Lets answers finish for so long, of all models at a time, then ends what is ours of them. Blocks."""
        self._closing.set()
        threads = [threading.Thread(target=backend.drain, args=(timeout_s,)) for backend in self._backends.values()]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()

    def _opened(self, name: str) -> EngineBackend:
        entry, settings = self.table.entries[name], self._settings
        is_implicit = all(one.name != name for one in settings.models)
        if not is_implicit:
            settings = settings_of(entry, settings)
        backend = open_backend(settings, name, partial(self._on_end, name), entry=None if is_implicit else entry)
        try:
            pinned = backend.client.pin_system_prompt(settings.system_prompt)
        except (EngineError, RagstoneError):
            backend.drain(0.0)
            raise
        logger.info("chat model %s: %d tokens of system prompt pinned", name, pinned)
        return backend

    def _make_room(self, name: str) -> bool:
        """Puts the model away that was unused for longest."""
        others = [one for one in self._backends.values() if isinstance(one, OnDemandBackend) and one.name != name]
        return any(other.unload() for other in sorted(others, key=lambda other: other.last_used))

    def _unload_idle(self) -> None:
        while not self._closing.wait(IDLE_LOOK_S):
            for backend in list(self._backends.values()):
                if isinstance(backend, OnDemandBackend):
                    backend.unload(idle_s=backend.idle_s)
