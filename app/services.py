"""What a running server holds: engine, knowledge base, conversations and chains, and how far their loading has come.

Loading happens in the background, so that health routes answer from the first moment. Routes take what they need from
here and are refused with NotReadyError until it is there.
"""

import asyncio
import hashlib
import logging
import shutil
import threading
import time
from collections.abc import Callable, Collection, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, TypeVar

from langchain_core.documents import Document
from langchain_core.runnables import Runnable

from app import chains
from app.answering import Answering
from app.chat_model import ChatRagstone
from app.conversation import ConversationChain, ModelRoom, turn_writer
from app.degradation import current_degradation
from app.engines.backend import EngineBackend, open_backend
from app.engines.client import MESSAGE_OVERHEAD_TOKENS, RequestTimes
from app.engines.in_process import InProcessEngineClient
from app.engines.remote import RemoteEngineClient
from app.errors import NotReadyError
from app.given_turns import GivenTurns
from app.history import ConversationStore, Turn
from app.history_url import open_history
from app.ingestion_jobs import Embedded, IngestionJobs
from app.memory import MemoryRule
from app.metrics import ServerMetrics
from app.principal import DEFAULT_USER
from app.search_models import make_embedder, make_reranker
from app.settings import Settings
from app.tracing import note_generation, stage
from app.turn_lock import TurnLocks
from app.turn_prompt import PassageRule
from retrieval.records import IngestResult, Passage

if TYPE_CHECKING:
    from retrieval import KnowledgeBase
    from retrieval.embeddings import Vectors

logger = logging.getLogger(__name__)

HANDBOOK = Path(__file__).resolve().parent.parent / "data" / "handbook"
HANDBOOK_COLLECTION = "handbook"

# The name on /v1 under which the chat model answers from the documents.
RAG_MODEL = "ragstone-rag"

# Models with fewer parameters rewrite follow-up questions worse than search can do without them, and their answers are
# held to the sources.
TRUSTED_PARAMETERS = 1_000_000_000

# How long a client that came too early should wait before it asks again.
RETRY_AFTER_S = 2

# What the engine is still computing when the server stops may go on for this long. Clients had their time before.
DRAIN_S = 5.0
DRAIN_POLL_S = 0.02

Status = Literal["starting", "ready", "degraded", "unhealthy", "draining"]
EngineHandle = InProcessEngineClient | RemoteEngineClient
T = TypeVar("T")


class Services:
    """Everything that requests are served from. Made at once, opened by `load`, closed by `close`."""

    def __init__(self, settings: Settings) -> None:
        self.settings = settings
        self.metrics = ServerMetrics()
        self.locks = TurnLocks()
        self.history: ConversationStore = open_history(settings)
        self.uploads = settings.data_dir / "uploads"
        self.jobs = IngestionJobs(settings.data_dir / "jobs", self._ingest)
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
        self._backend: EngineBackend | None = None
        self._client: EngineHandle | None = None
        self._knowledge_base: KnowledgeBase | None = None
        self._chat: ConversationChain | None = None
        self._llm: Runnable[dict[str, Any], str] | None = None
        self._retrieve: Runnable[dict[str, Any], list[Document]] | None = None
        self._model: ChatRagstone | None = None

    # ── state ────────────────────────────────────────────────────────────────────────────────────────────────────────

    def status(self) -> tuple[Status, str]:
        """How the server is, and why."""
        if self.load_error is not None:
            return "unhealthy", str(self.load_error)
        if not self._loaded or self._client is None:
            return "starting", self._loading
        if self._draining:
            return "draining", "the server is shutting down: it finishes its answers and takes no new ones"
        if self._backend is None:
            health = self._client.check_health()
            return ("ready", "") if health == "ready" else ("unhealthy", health)
        return self._backend.health()

    @property
    def model_name(self) -> str:
        """The chat model's name on /v1."""
        return self.settings.served_model_name or self.settings.model

    @property
    def embedding_model_name(self) -> str:
        """The embedding model's name on /v1."""
        return self.settings.embedding_model

    @property
    def reranker_model_name(self) -> str | None:
        """The reranker's name on /v1; None where there is none."""
        return self.settings.reranker

    @property
    def served_models(self) -> tuple[str, ...]:
        """Every name that /v1 knows."""
        return tuple(self.tasks)

    @property
    def tasks(self) -> dict[str, str]:
        """What each name on /v1 does: `generate`, `answer` (from documents), `embed` or `rank`."""
        tasks = {self.model_name: "generate", RAG_MODEL: "answer", self.embedding_model_name: "embed"}
        return tasks if self.reranker_model_name is None else {**tasks, self.reranker_model_name: "rank"}

    @property
    def engine(self) -> EngineHandle:
        self._present(self._client)
        assert self._client is not None, "what is present is there"
        return self._client

    @property
    def knowledge_base(self) -> "KnowledgeBase":
        return self._present(self._knowledge_base)

    @property
    def chat(self) -> ConversationChain:
        return self._present(self._chat)

    @property
    def llm(self) -> Runnable[dict[str, Any], str]:
        return self._present(self._llm)

    @property
    def retrieve(self) -> Runnable[dict[str, Any], list[Document]]:
        return self._present(self._retrieve)

    def chat_over(
        self, turns: Sequence[Turn], instructions: str, options: Mapping[str, Any], client: Any
    ) -> ConversationChain:
        """The chat over turns that a client of ours sends along; nothing is kept.

        `instructions` follow the server's own system prompt; `options` are those of a call of ChatRagstone; `client` is
        the EngineClient to ask, ours or one around it.
        """
        model = self._present(self._model).model_copy(update={"client": client})
        system_prompt = "\n\n".join(part for part in (self.settings.system_prompt, instructions) if part)
        answer = chains.answers_of(model, system_prompt, options)
        room = self._room(self.engine, system_prompt, options.get("max_tokens"))
        return self.chat.over(GivenTurns(turns), answer, room)

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

    # ── loading ──────────────────────────────────────────────────────────────────────────────────────────────────────

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
        self.jobs.start()
        logger.info("ready after %.1f s", time.monotonic() - started)

    def _load(self) -> None:
        shutil.rmtree(self.uploads, ignore_errors=True)  # what a killed process has left there
        self._load_engine()
        self._load_knowledge_base()
        self._build_chains()

    def _load_engine(self) -> None:
        settings = self.settings
        self._step(f"loading the chat model {settings.model}")
        backend = open_backend(settings, self.model_name, self.observe)
        self._backend, self._client = backend, backend.client
        self.metrics.watch(self.model_name, backend.stats)
        pinned = self._client.pin_system_prompt(settings.system_prompt)
        logger.info(
            "chat model loaded: %s, %d million parameters, %d tokens of context, %d tokens of system prompt pinned",
            self.model_name,
            self._client.num_parameters // 1_000_000,
            self._client.max_model_len,
            pinned,
        )

    def _load_knowledge_base(self) -> None:
        from retrieval import IndexOptions, KnowledgeBase

        settings = self.settings
        self._step(f"loading the embedding model {settings.embedding_model}")
        self._knowledge_base = KnowledgeBase.open(
            settings.knowledge_dir,
            make_embedder(settings),
            index=IndexOptions(settings.vector_format, qdrant=settings.qdrant, gpu=settings.vector_gpu),
            reranker=make_reranker(settings),
        )
        if advice := self._knowledge_base.advice():
            logger.warning("%s", advice)
        if settings.sample_kb and HANDBOOK.is_dir() and not self._closing.is_set():
            self._ingest_handbook(self._knowledge_base)

    def _ingest_handbook(self, knowledge_base: "KnowledgeBase") -> None:
        """Puts the sample pages in, once for each version of them: who deletes a page does not get it back."""
        pages = sorted(path for path in HANDBOOK.iterdir() if path.is_file())
        marker, version = self.settings.data_dir / "handbook.sha256", _digest(pages)
        if marker.is_file() and marker.read_text() == version:
            return
        self._step(f"taking in the sample handbook, {len(pages)} pages")
        done = 0

        def progress(result: IngestResult) -> None:
            nonlocal done
            done += 1
            self._loading = f"taking in the sample handbook, {done} of {len(pages)} pages"
            if done % 10 == 0:
                logger.info("%s", self._loading)
            if result.status == "failed":
                logger.warning("%s was not taken in: %s", result.path, result.reason)

        knowledge_base.ensure_collection(HANDBOOK_COLLECTION, owner=DEFAULT_USER, visibility="shared")
        results = knowledge_base.ingest_paths(
            pages, collection=HANDBOOK_COLLECTION, owner=DEFAULT_USER, progress=progress, relative_to=HANDBOOK
        )
        changed = sum(result.status in ("added", "updated") for result in results)
        logger.info("sample handbook: %d pages, %d new or changed", len(results), changed)
        marker.write_text(version)

    def _build_chains(self) -> None:
        settings, client = self.settings, self.engine_while_loading
        model = ChatRagstone(
            model=self.model_name,
            client=client,
            temperature=settings.temperature,
            top_p=settings.top_p,
            top_k=settings.top_k,
            repetition_penalty=settings.repetition_penalty,
            frequency_penalty=settings.frequency_penalty,
            seed=settings.seed,
            max_tokens=settings.max_tokens,
            timeout=settings.request_timeout_s,
        )
        passages = PassageRule(settings.num_passages, settings.max_passage_tokens, settings.min_passage_score)
        answering = self._answering()
        self._chat = ConversationChain(
            retrieval=chains.retrieval_chain(
                self._condenser(model),
                self._search,
                turn_writer(passages, client.count_tokens, answering, self._section),
            ),
            answer=chains.answers_of(model, settings.system_prompt),
            store=self.history,
            locks=self.locks,
            memory=MemoryRule(settings.memory_kind, settings.memory_turns, settings.memory_tokens),
            passages=passages,
            room=self._room(client, settings.system_prompt),
            count_tokens=client.count_tokens,
            answering=answering,
            settings={
                "model": self.model_name,
                "temperature": settings.temperature,
                "top_p": settings.top_p,
                "max_tokens": settings.max_tokens,
                "memory": settings.memory_kind,
                "num_passages": settings.num_passages,
                "grounding": answering.mode if answering else "off",
            },
        )
        self._llm = chains.llm_chain(model)
        self._retrieve = chains.retrieve_chain(self._search, settings.num_passages)
        self._model = model

    def _room(self, client: EngineHandle, system_prompt: str, max_tokens: int | None = None) -> ModelRoom:
        return ModelRoom(
            max_model_len=client.max_model_len,
            max_tokens=self.settings.max_tokens if max_tokens is None else max_tokens,
            system_tokens=client.count_tokens(system_prompt) + MESSAGE_OVERHEAD_TOKENS,
        )

    @property
    def engine_while_loading(self) -> EngineHandle:
        """The engine, also before everything else is loaded."""
        assert self._client is not None, "the engine is loaded first"
        return self._client

    def _condenser(self, model: ChatRagstone) -> Runnable[dict[str, Any], list[str]]:
        if not self.settings.condense_question:
            return chains.no_condensing()
        if self.engine_while_loading.num_parameters < TRUSTED_PARAMETERS:
            return chains.condense_by_context()
        return chains.condense_by_model(model, self.settings.system_prompt)

    def _answering(self) -> Answering | None:
        mode = self.settings.grounding
        if mode == "auto":
            mode = "strict" if self.engine_while_loading.num_parameters < TRUSTED_PARAMETERS else "mark"
        if mode == "off":
            return None
        return Answering(mode, self._term_weights, self._embed, self.model_name)

    def _term_weights(self, terms: Collection[str]) -> dict[str, float]:
        return self.knowledge_base.term_weights(terms)

    def _embed(self, texts: Sequence[str]) -> "Vectors":
        return self.knowledge_base.embedder.embed_passages(texts)

    def _search(self, queries: Sequence[str], k: int, **narrowed: Any) -> list[Passage]:
        with self.metrics.retrieval_seconds.time(), stage("retrieve", k=k, queries=len(queries)):
            return self.knowledge_base.search(queries, current_degradation().passages(k), **narrowed)

    def observe(self, times: RequestTimes) -> None:
        """Takes a request to the chat model that has ended into account."""
        self.metrics.observe(times)
        note_generation(self.model_name, times)
        for observer in self.observers:
            observer(self.model_name, times)

    def _ingest(self, path: Path, name: str, collection: str, owner: str, embedded: Embedded) -> IngestResult:
        return self.knowledge_base.ingest_file(path, name=name, collection=collection, owner=owner, embedded=embedded)

    def _section(self, passage: Passage, max_tokens: int) -> str:
        return self.knowledge_base.surroundings(passage, max_tokens, self.engine.count_tokens)

    def _step(self, what: str) -> None:
        self._loading = what
        logger.info("%s", what)

    # ── closing ──────────────────────────────────────────────────────────────────────────────────────────────────────

    async def close(self) -> None:
        """Stops the engine and closes the stores; turns that are being stored are stored first."""
        self._closing.set()
        if self._chat is not None:
            await self._chat.drain()
        await asyncio.to_thread(self._close)

    def drain(self, timeout_s: float) -> None:
        """Let running answers finish for so long; then they end with a typed error. Takes no new ones. Blocks."""
        deadline = time.monotonic() + timeout_s
        self._draining = True
        if self._backend is not None:
            self._backend.drain(timeout_s)
        while self.is_busy() and time.monotonic() < deadline:  # what the engine has said is still on its way
            time.sleep(DRAIN_POLL_S)

    def _close(self) -> None:
        self.jobs.close()
        if self._backend is not None:
            self._backend.drain(DRAIN_S)
        if self._knowledge_base is not None:
            self._knowledge_base.close()
        self.history.close()


def _digest(paths: Sequence[Path]) -> str:
    """SHA-256 over names and contents."""
    digest = hashlib.sha256()
    for path in paths:
        digest.update(path.name.encode() + b"\0" + hashlib.sha256(path.read_bytes()).digest())
    return digest.hexdigest()
