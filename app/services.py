"""What a running server holds beside its chat models: knowledge base, conversations, chains, jobs."""

import asyncio
import logging
import shutil
from collections.abc import Collection, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from langchain_core.documents import Document
from langchain_core.runnables import Runnable

from app import chains, sample_handbook
from app.answerers import Answerers
from app.chat_model import ChatRagstone
from app.chat_schema import ChatOptions
from app.conversation import ConversationChain, EarlierTurns
from app.degradation import current_degradation
from app.engines.routing import Asked, RoutedClient, estimated_tokens
from app.errors import UnknownCollectionError
from app.given_turns import GivenTurns
from app.history import ConversationStore, Turn
from app.history_url import open_history
from app.ingestion_jobs import Embedded, IngestionJobs, Job
from app.memory import MemoryRule
from app.model_services import AUTO_MODEL, RAG_MODEL, ModelServices, Status
from app.open_turn import Choice, OpenTurn
from app.principal import current_principal
from app.privacy import is_private
from app.private_documents import PRIVATE_DOCUMENTS, is_private_document
from app.search_models import make_embedder, make_reranker
from app.settings import Settings
from app.tracing import stage
from app.turn_lock import TurnLocks
from app.turn_prompt import CountTokens
from retrieval.records import IngestResult, Passage

if TYPE_CHECKING:
    from retrieval import KnowledgeBase
    from retrieval.embeddings import Vectors

logger = logging.getLogger(__name__)

# Where documents go whose upload names no collection.
DEFAULT_COLLECTION = "default"

# What the engine is still computing when the server stops may go on for this long. Clients had their time before.
DRAIN_S = 5.0


class Services(ModelServices):
    """Everything that requests are served from. Made at once, opened by `load`, closed by `close`."""

    def __init__(self, settings: Settings) -> None:
        own = (RAG_MODEL, AUTO_MODEL, settings.embedding_model, settings.reranker or RAG_MODEL)
        super().__init__(settings, reserved=own)
        self.locks = TurnLocks()
        self.history: ConversationStore = open_history(settings)
        self.uploads = settings.data_dir / "uploads"
        self.jobs = IngestionJobs(settings.data_dir / "jobs", self._ingest)
        self._knowledge_base: KnowledgeBase | None = None
        self._chat: ConversationChain | None = None
        self._llm: Runnable[dict[str, Any], str] | None = None
        self._retrieve: Runnable[dict[str, Any], list[Document]] | None = None
        self._answerers: Answerers | None = None

    # ── state ────────────────────────────────────────────────────────────────────────────────────────────────────────

    def status(self) -> tuple[Status, str]:
        """How the server is, and why: degraded, too, where conversations cannot be read or kept."""
        status, reason = super().status()
        return ("degraded", problem) if status == "ready" and (problem := self.history.problem) else (status, reason)

    @property
    def embedding_model_name(self) -> str:
        """The embedding model's name on /v1."""
        return self.settings.embedding_model

    @property
    def reranker_model_name(self) -> str | None:
        """The reranker's name on /v1; None where there is none."""
        return self.settings.reranker

    @property
    def chat_names(self) -> tuple[str, ...]:
        """The names that /v1/chat/completions answers to."""
        return (*super().chat_names, RAG_MODEL)

    @property
    def answer_names(self) -> tuple[str, ...]:
        """The names by which /chat may be asked for a model."""
        return (*self.table.names("answer"), *((AUTO_MODEL,) if self.table.rules else ()))

    @property
    def tasks(self) -> dict[str, str]:
        """What each name on /v1 does: `generate`, `answer` (from documents), `embed` or `rank`."""
        tasks = {**super().tasks, RAG_MODEL: "answer", self.embedding_model_name: "embed"}
        return tasks if self.reranker_model_name is None else {**tasks, self.reranker_model_name: "rank"}

    def context_of(self, name: str) -> int | None:
        """Tokens that a name on /v1 takes that is no chat model's; None where nothing tells."""
        if name == self.embedding_model_name:
            return self.knowledge_base.embedder.max_tokens
        return self.engine.max_model_len if name == RAG_MODEL else None

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
        the RoutedClient to ask, or a client around it.
        """
        answerer = self._present(self._answerers).over(client, instructions, options)
        return self.chat.over(GivenTurns(turns), answerer)

    def answerer_client(
        self, question: str, num_prompt_tokens: int, collections: Sequence[str] | None
    ) -> tuple[bool, RoutedClient]:
        """Whether an answer from documents over turns that are sent along is private, and the client for it. Blocks."""
        private = self._is_private(current_principal().user, collections)
        asked = Asked(
            use="answer",
            question=question,
            num_prompt_tokens=num_prompt_tokens,
            collections=collections,
            private=private,
        )
        return private, self.client_of(self.router.route(asked))

    async def require_collections(self, names: Sequence[str] | None, user: str, field: str) -> None:
        """Raises UnknownCollectionError for a name that `user` may not search; `field` is where the names stand.

        Everybody's own collection is there before anything is in it.
        """
        if not names:
            return
        known = await asyncio.to_thread(self.knowledge_base.visible_collections, user)
        for number, name in enumerate(names):
            if name not in known and name != DEFAULT_COLLECTION:
                raise UnknownCollectionError(name, field=f"{field}[{number}]")

    # ── loading ──────────────────────────────────────────────────────────────────────────────────────────────────────

    def _start_jobs(self) -> None:
        self.jobs.start()

    def _load(self) -> None:
        shutil.rmtree(self.uploads, ignore_errors=True)  # what a killed process has left there
        self._load_engine()
        self._load_knowledge_base()
        self._build_chains()

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
        if settings.sample_kb and not self._closing.is_set():
            sample_handbook.take_in(self._knowledge_base, settings.data_dir, self._tell_loading)

    def _build_chains(self) -> None:
        settings = self.settings
        self._answerers = Answerers(
            settings,
            self.client_of,
            system_prompt=settings.system_prompt,
            search=self._search,
            term_weights=self._term_weights,
            embed=self._embed,
            surroundings=self._surroundings,
        )
        default = self.router.default(Asked(use="answer"))
        self._chat = ConversationChain(
            answerer=self._answerers.of(default),
            store=self.history,
            locks=self.locks,
            memory=MemoryRule(settings.memory_kind, settings.memory_turns, settings.memory_tokens),
            passages=self._answerers.passages,
            choose=None if self.table.is_one_here else self._choose,
            note_grounding=self.metrics.count_grounding,
        )
        self._llm = chains.llm_chain(self._choose_alone)
        self._retrieve = chains.retrieve_chain(self._search, settings.num_passages)

    def _choose_alone(self, question: str, options: ChatOptions) -> ChatRagstone:
        """The model of /llm, by its options or by the rules."""
        route = self._route_alone(options.model, [question], private=options.private)
        return self._present(self._answerers).model(route)

    def _choose(self, turn: OpenTurn, earlier_turns: EarlierTurns) -> Choice:
        """Who answers a turn of /chat: by its options, by the rules, and by what it may find."""
        earlier, options = earlier_turns(*turn.key), turn.options
        name = None if options.model == AUTO_MODEL else options.model
        if options.continue_turn and name is None and earlier:
            name = (earlier[-1].settings or {}).get("model")
            name = name if name in self.table.names("answer") else None
        asked = Asked(
            use="answer",
            name=name,
            question=turn.question,
            num_prompt_tokens=estimated_tokens(turn.question) + sum(one.num_tokens for one in earlier),
            collections=options.collections,
            private=options.private
            or self._was_private(turn.user, earlier)
            or self._is_private(turn.user, options.collections, searches=options.retrieval),
        )
        return Choice(self._present(self._answerers).of(self.router.route(asked)), asked.private)

    def _was_private(self, user: str, earlier: Sequence[Turn]) -> bool:
        """Whether something private was said or found before, which the model would be shown again."""
        if any((turn.settings or {}).get("private") for turn in earlier):
            return True
        found = {source["document_id"] for turn in earlier for source in turn.sources}
        documents = (self.knowledge_base.document(document_id, user) for document_id in found)
        return any(is_private_document(document, self.settings) for document in documents if document is not None)

    def _is_private(self, user: str, collections: Sequence[str] | None, *, searches: bool = True) -> bool:
        """Whether a request is private: it says so, or its search may find what is."""
        if is_private() or not searches:
            return is_private()
        marked = self.settings.private_collections
        return self.knowledge_base.may_find(marked, PRIVATE_DOCUMENTS, collections=collections, user=user)

    def _term_weights(self, terms: Collection[str]) -> dict[str, float]:
        return self.knowledge_base.term_weights(terms)

    def _embed(self, texts: Sequence[str]) -> "Vectors":
        return self.knowledge_base.embedder.embed_passages(texts)

    def _search(self, queries: Sequence[str], k: int, **narrowed: Any) -> list[Passage]:
        with self.metrics.retrieval_seconds.time(), stage("retrieve", k=k, queries=len(queries)):
            return self.knowledge_base.search(queries, current_degradation().passages(k), **narrowed)

    def _ingest(self, path: Path, name: str, job: Job, embedded: Embedded) -> IngestResult:
        return self.knowledge_base.ingest_file(
            path, name=name, collection=job.collection, owner=job.user, embedded=embedded, private=job.private
        )

    def _surroundings(self, passage: Passage, max_tokens: int, count_tokens: CountTokens) -> str:
        return self.knowledge_base.surroundings(passage, max_tokens, count_tokens)

    # ── closing ──────────────────────────────────────────────────────────────────────────────────────────────────────

    async def close(self) -> None:
        """Stops the engine and closes the stores; turns that are being stored are stored first."""
        self._closing.set()
        if self._chat is not None:
            await self._chat.drain()
        await asyncio.to_thread(self._close)

    def _close(self) -> None:
        self.jobs.close()
        self.pool.drain(DRAIN_S)
        if self._knowledge_base is not None:
            self._knowledge_base.close()
        self.history.close()
