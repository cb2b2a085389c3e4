"""What a running server holds of chat models, which is all that an engine alone has, and how far loading has come.

Loading happens in the background, so that health routes answer from the first moment. Routes take what they need from
here and are refused with NotReadyError until it is there.

Nothing here knows documents or conversations: an engine's process starts without importing what they need.
"""

import asyncio
import logging
import threading
import time
from collections.abc import Callable, Sequence
from typing import Literal, TypeVar

from app.engines.backend import EngineHandle, InProcessBackend
from app.engines.client import RequestTimes
from app.engines.model_table import ModelTable
from app.engines.pool import ModelPool
from app.engines.routing import Asked, Candidate, Route, RoutedClient, Router, estimated_tokens
from app.errors import NotReadyError
from app.metrics import ServerMetrics
from app.privacy import is_private
from app.settings import Settings
from app.tracing import note_generation

logger = logging.getLogger(__name__)

# The name on /v1 under which the chat model answers from the documents.
RAG_MODEL = "ragstone-rag"
# The name under which the rules choose the chat model that answers alone.
AUTO_MODEL = "ragstone-auto"

DRAIN_POLL_S = 0.02
# Of one request, where nothing tells how many the model answers at a time.
FEW_AT_ONCE = 8

Status = Literal["starting", "ready", "degraded", "unhealthy", "draining"]
T = TypeVar("T")


class ModelServices:
    """The chat models that requests are served from. Made at once, opened by `load`, closed by `close`.

    `reserved` are names on /v1 that no chat model may have.
    """

    def __init__(self, settings: Settings, reserved: Sequence[str] = ()) -> None:
        self.settings = settings
        self.metrics = ServerMetrics()
        self.table = ModelTable.of(settings, reserved)
        self.router = Router(self.table)
        self.pool = ModelPool(self.table, settings, self.metrics, self.observe)
        self.load_error: Exception | None = None
        self.started_at = int(time.time())
        # Whether requests to models are being answered; who counts them says so.
        self.is_busy: Callable[[], bool] = lambda: False
        # Told of every request to the chat model that has ended: its name, and the times.
        self.observers: list[Callable[[str, RequestTimes], None]] = []
        self._loading = "the server has just started"
        self._loaded = False
        self._closing = threading.Event()
        self._draining = False

    # ── state ────────────────────────────────────────────────────────────────────────────────────────────────────────

    def status(self) -> tuple[Status, str]:
        """How the server is, and why."""
        if self.load_error is not None:
            return "unhealthy", str(self.load_error)
        if not self._loaded:
            return "starting", self._loading
        if self._draining:
            return "draining", "the server is shutting down: it finishes its answers and takes no new ones"
        return self.pool.backend(self.model_name).health()

    @property
    def model_name(self) -> str:
        """The default chat model's name on /v1."""
        return self.table.default

    @property
    def served_models(self) -> tuple[str, ...]:
        """Every name that /v1 knows."""
        return tuple(self.tasks)

    @property
    def tasks(self) -> dict[str, str]:
        """What each name on /v1 does: `generate`, `answer` (from documents), `embed` or `rank`."""
        entries = self.table.entries.items()
        tasks = {name: "generate" if "generate" in entry.uses else "answer" for name, entry in entries}
        return tasks | ({AUTO_MODEL: "generate"} if self.table.rules else {})

    @property
    def chat_names(self) -> tuple[str, ...]:
        """The names that /v1/chat/completions answers to."""
        return self.generate_names

    @property
    def generate_names(self) -> tuple[str, ...]:
        """The names by which a model may be asked alone."""
        return (*self.table.names("generate"), *((AUTO_MODEL,) if self.table.rules else ()))

    @property
    def engine(self) -> EngineHandle:
        """The default chat model's client."""
        self._present(self.pool)
        return self.pool.backend(self.model_name).client

    def context_of(self, name: str) -> int | None:
        """Tokens that a name on /v1 takes that is no chat model's; None where nothing tells."""
        return None

    def client_of(self, route: Route) -> RoutedClient:
        """The models of a route, as one client."""
        entries = self.table.entries
        candidates = [Candidate(name, self.pool.backend(name), entries[name].overloaded_at) for name in route.names]
        return RoutedClient(route, candidates, self.metrics.count_routed)

    def generator(self, name: str, texts: Sequence[str] = ()) -> RoutedClient:
        """The client for a request to models alone: by name, or by the rules for AUTO_MODEL.

        `texts` are those of the request, the question last. Raises UnknownModelError, PrivateRequestError.
        """
        return self.client_of(self._route_alone(name, texts))

    def _route_alone(self, name: str | None, texts: Sequence[str], *, private: bool = False) -> Route:
        asked = Asked(
            use="generate",
            name=None if name == AUTO_MODEL and self.table.rules else name,
            question=texts[-1] if texts else "",
            num_prompt_tokens=sum(estimated_tokens(text) for text in texts),
            private=private or is_private(),
        )
        return self.router.route(asked)

    @property
    def questions_at_once(self) -> int:
        """How many questions of one request are with the model at a time: half of its places.

        A long list leaves room for others so, in the engine and in its queue.
        """
        num_places = self.pool.backend(self.model_name).stats().max_num_seqs
        return max(1, num_places // 2) if num_places else FEW_AT_ONCE

    def full(self) -> Exception | None:
        """The refusal that a request to the model would get now, known before it is read; None where it is to be read.

        Under overload most requests are refused, and what that costs is taken from the answers.
        """
        if not self._loaded or not self.table.is_one_here:
            return None
        backend = self.pool.backend(self.model_name)
        return backend.full() if isinstance(backend, InProcessBackend) else None

    def require_ready(self) -> None:
        """Raises NotReadyError unless the server takes requests, which it does while it is degraded."""
        status, reason = self.status()
        if status not in ("ready", "degraded"):
            raise NotReadyError(f"the server is {status}: {reason}")

    def _present(self, part: T | None) -> T:
        if part is None or not self._loaded:
            self.require_ready()
            raise NotReadyError("the server is starting")
        return part

    async def load(self) -> None:
        """Loads everything; a failure is kept in `load_error` and logged, and the server says `unhealthy`."""
        started = time.monotonic()
        try:
            await asyncio.to_thread(self._load)
        except Exception as error:
            self.load_error = error
            known = hasattr(type(error), "code")  # a sentence for a person; anything else is a defect with a trace
            logger.error("the server could not load: %s", error, exc_info=None if known else error)
            return
        self._loaded = True
        self._start_jobs()
        logger.info("ready after %.1f s", time.monotonic() - started)

    def _start_jobs(self) -> None:
        """Begin what runs beside requests."""

    def _load(self) -> None:
        self._load_engine()

    def _load_engine(self) -> None:
        self._step(f"loading the chat model {self.table.entries[self.model_name].source}")
        client = self.pool.open(self.model_name).client
        logger.info(
            "chat model loaded: %s, %d million parameters, %d tokens of context",
            self.model_name,
            client.num_parameters // 1_000_000,
            client.max_model_len,
        )
        if len(self.table.entries) > 1:
            self._step("loading the other chat models")
        self.pool.open_rest()

    def observe(self, model_name: str, times: RequestTimes) -> None:
        """Takes a request to a chat model that has ended into account."""
        self.metrics.observe(model_name, times)
        note_generation(model_name, times)
        for observer in self.observers:
            observer(model_name, times)

    def _tell_loading(self, what: str) -> None:
        self._loading = what

    def _step(self, what: str) -> None:
        self._tell_loading(what)
        logger.info("%s", what)

    # ── closing ──────────────────────────────────────────────────────────────────────────────────────────────────────

    def drain(self, timeout_s: float) -> None:
        """Let running answers finish for so long; then they end with a typed error. Takes no new ones. Blocks."""
        deadline = time.monotonic() + timeout_s
        self._draining = True
        self.pool.drain(timeout_s)
        while self.is_busy() and time.monotonic() < deadline:  # what the engine has said is still on its way
            time.sleep(DRAIN_POLL_S)

    async def close(self) -> None:
        """Stops the engines."""
        self._closing.set()
        await asyncio.to_thread(self.pool.drain, 0.0)
