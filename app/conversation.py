"""The conversation chain: one question in, sources and answer out, with the history of (user, session) around it.

A Runnable of our own instead of LangChain's RunnableWithMessageHistory, which is deprecated and loses turns that run at
the same time. It binds the chains of `app/chains.py` to a store and to the memory rule; it knows no HTTP.
"""

import asyncio
import contextlib
import contextvars
import copy
import json
import logging
import queue
import threading
from collections.abc import AsyncGenerator, AsyncIterator, Callable, Iterator, Sequence
from concurrent.futures import Future
from contextlib import aclosing
from dataclasses import dataclass, field, replace
from typing import Any

from langchain_core.callbacks import AsyncCallbackManagerForChainRun
from langchain_core.messages import AIMessage, BaseMessage, HumanMessage
from langchain_core.runnables import Runnable, RunnableConfig
from langchain_core.runnables.config import ensure_config, patch_config
from langchain_core.runnables.utils import AddableDict, ConfigurableFieldSpec
from pydantic import BaseModel, Field

from app.answering import Answering, Grounding, Material, grounded, left_out, told, unchecked
from app.chains import State
from app.engine_client import MESSAGE_OVERHEAD_TOKENS
from app.errors import MissingSessionError, RequestError
from app.fixed_texts import about_assistant, texts_for
from app.history import ConversationStore, Turn, TurnResult
from app.memory import MemoryRule
from app.small_talk import asks_about_assistant, is_small_talk
from app.turn_lock import TurnLocks
from app.turn_prompt import CountTokens, PassageRule, TurnDraft, write_excerpt_turn, write_turn
from engine.errors import PromptTooLongError

logger = logging.getLogger(__name__)

DEFAULT_USER = "local"


class ChatInput(BaseModel):
    """What /chat and /llm take."""

    input: str = Field(description="The question.")


class Source(BaseModel):
    """A passage that an answer draws on. `n` is its number in the conversation, by which the model knows it."""

    n: int
    document_id: str
    title: str
    page: int | None = None
    heading: str | None = None
    text: str
    score: float


class ChatOutput(BaseModel):
    """What /chat answers. When streamed, `sources` come once and first, the answer in pieces, `grounding` last.

    `grounding` is missing where answers are not checked (`grounding = off`).
    """

    answer: str
    sources: list[Source]
    grounding: Grounding | None = None


CONFIG_SPECS = [
    ConfigurableFieldSpec(
        id="session_id", annotation=str, name="Session", description="Names the conversation; required.", default=""
    ),
    ConfigurableFieldSpec(
        id="retrieval", annotation=bool, name="Retrieval", description="Search the documents.", default=True
    ),
    ConfigurableFieldSpec(
        id="collections",
        annotation=list[str] | None,
        name="Collections",
        description="Search only these collections; null searches all.",
        default=None,
    ),
]


@dataclass(frozen=True)
class ModelRoom:
    """How many tokens a model takes, and what of them is spoken for."""

    max_model_len: int
    max_tokens: int
    system_tokens: int

    @property
    def prompt_tokens(self) -> int:
        """Tokens that system prompt, history and question may take together."""
        return self.max_model_len - self.max_tokens


@dataclass
class _OpenTurn:
    """A turn that is being answered; holds its conversation's lock."""

    user: str
    session_id: str
    question: str
    index: int | None = None
    draft: TurnDraft | None = None
    answer: list[str] = field(default_factory=list)
    completed: bool = False
    refused: bool = False
    grounding: dict[str, Any] | None = None

    @property
    def key(self) -> tuple[str, str]:
        return (self.user, self.session_id)


class ConversationChain(Runnable[dict[str, Any], dict[str, Any]]):
    """`{"input": str}` with `configurable: {session_id, …}` -> `{"sources": [...], "answer": str}`.

    Turns of one conversation run one after another. However a turn ends, it is stored: what was produced of a stopped
    or broken answer is kept and marked. A question that is refused (too long) leaves no trace.
    """

    def __init__(
        self,
        *,
        retrieval: Runnable[State, State],
        answer: Runnable[State, str],
        store: ConversationStore,
        locks: TurnLocks,
        memory: MemoryRule,
        passages: PassageRule,
        room: ModelRoom,
        count_tokens: CountTokens,
        answering: Answering | None = None,
    ) -> None:
        self.name = "chat"
        self._retrieval = retrieval
        self._answer = answer
        self._store = store
        self._locks = locks
        self._memory = memory
        self._passages = passages
        self._room = room
        self._count_tokens = count_tokens
        self._answering = answering
        self._closing: set[asyncio.Task[None]] = set()

    # ── what LangChain asks of a Runnable ────────────────────────────────────────────────────────────────────────────

    @property
    def InputType(self) -> type[Any]:
        return ChatInput

    @property
    def OutputType(self) -> type[Any]:
        return ChatOutput

    @property
    def config_specs(self) -> list[ConfigurableFieldSpec]:
        return CONFIG_SPECS

    async def astream(
        self, input: dict[str, Any], config: RunnableConfig | None = None, **kwargs: Any
    ) -> AsyncGenerator[dict[str, Any], None]:
        async def once() -> AsyncIterator[dict[str, Any]]:
            yield input

        chunks = self._atransform_stream_with_config(once(), self._take_turn, config, run_type="chain", **kwargs)
        async with aclosing(chunks) as stream:  # type: ignore[type-var]  # an async generator behind an iterator's type
            async for chunk in stream:
                yield chunk

    async def ainvoke(
        self, input: dict[str, Any], config: RunnableConfig | None = None, **kwargs: Any
    ) -> dict[str, Any]:
        total = AddableDict()
        async with aclosing(self.astream(input, config, **kwargs)) as stream:
            async for chunk in stream:
                total = total + AddableDict(chunk)
        return total

    def stream(
        self, input: dict[str, Any], config: RunnableConfig | None = None, **kwargs: Any
    ) -> Iterator[dict[str, Any]]:
        yield from _from_own_loop(lambda: self.astream(input, config, **kwargs))

    def invoke(self, input: dict[str, Any], config: RunnableConfig | None = None, **kwargs: Any) -> dict[str, Any]:
        total = AddableDict()
        for chunk in self.stream(input, config, **kwargs):
            total = total + AddableDict(chunk)
        return total

    async def drain(self) -> None:
        """Waits until every turn that has ended is stored."""
        while self._closing:
            await asyncio.wait(self._closing)

    def over(self, store: ConversationStore, answer: Runnable[State, str], room: ModelRoom) -> "ConversationChain":
        """The same chain over another store, with another way to write the answer and the room that it has."""
        chain = copy.copy(self)
        chain._store, chain._locks, chain._answer, chain._room = store, TurnLocks(), answer, room
        return chain

    # ── one turn ─────────────────────────────────────────────────────────────────────────────────────────────────────

    async def _take_turn(
        self,
        inputs: AsyncIterator[dict[str, Any]],
        run_manager: AsyncCallbackManagerForChainRun,
        config: RunnableConfig,
    ) -> AsyncIterator[AddableDict]:
        question = question_of([given async for given in inputs][-1])
        options = ensure_config(config).get("configurable", {})
        turn = _OpenTurn(options.get("user") or DEFAULT_USER, session_of(options), question)
        child = patch_config(config, callbacks=run_manager.get_child())
        await self._locks.acquire(turn.key)
        try:
            state = await asyncio.to_thread(self._open, turn, options)
            state = await self._retrieval.ainvoke(state, child)
            turn.draft = state["turn"]
            yield AddableDict(sources=state["turn"].sources)
            async with aclosing(self._pieces(state, child)) as pieces:
                async for piece in pieces:
                    if isinstance(piece, Grounding):
                        turn.grounding = piece.model_dump()
                    elif piece:
                        turn.answer.append(piece)
                        yield AddableDict(answer=piece)
            if turn.grounding is not None:
                yield AddableDict(grounding=turn.grounding)
            turn.completed = True
        except (RequestError, PromptTooLongError):
            turn.refused = not turn.answer
            raise
        finally:
            # As a task of its own: the storing must not be cancelled together with the turn it stores.
            closing = asyncio.create_task(self._close(turn))
            self._closing.add(closing)
            closing.add_done_callback(self._closing.discard)
            await asyncio.shield(closing)

    async def _pieces(self, state: State, config: RunnableConfig) -> AsyncGenerator[str | Grounding, None]:
        """The answer in pieces; at last its grounding, where answers are checked."""
        draft: TurnDraft = state["turn"]

        def deltas() -> AsyncIterator[str]:
            return self._answer.astream({"history": state["history"], "prompt": draft.prompt}, config)

        if self._answering is not None and state["own_reply"]:
            answer = told(self._answering.mode, state["own_reply"])
        elif self._answering is None or draft.ranking is None:
            mode = self._answering.mode if self._answering else "off"
            answer = unchecked(mode, deltas, state["texts"])
        else:
            numbers = [source["n"] for source in draft.sources]
            material = Material(draft.passages, numbers, draft.ranking, state["texts"])
            answer = grounded(self._answering, material, deltas)
        async with aclosing(answer) as pieces:
            async for piece in pieces:
                if isinstance(piece, Grounding):
                    piece.left_out = [left_out(passage, num_tokens) for passage, num_tokens in draft.left_out]
                if not isinstance(piece, Grounding) or self._answering is not None:
                    yield piece

    def _open(self, turn: _OpenTurn, options: dict[str, Any]) -> State:
        """Notes the question and chooses what the model is shown. Blocks; runs in a worker thread."""
        turns = [self._sized(earlier) for earlier in self._store.turns(*turn.key)]
        fixed = self._room.system_tokens + self._size(turn.question)
        room = self._room.prompt_tokens
        if fixed > room:
            raise PromptTooLongError(fixed, self._room.max_model_len, self._room.max_tokens)
        wants_passages = options.get("retrieval", True) is not False and self._passages.count > 0
        own_reply = ""
        if self._answering is not None and wants_passages and is_small_talk(turn.question):
            wants_passages = False
            own_reply = self._own_reply(self._answering, turn.question)
        # At most half of what the question leaves, so that passages never push a whole conversation out.
        passage_tokens = min(self._passages.max_tokens, (room - fixed) // 2) if wants_passages else 0
        start = self._window_start(turn, turns, used=fixed + passage_tokens)
        # A stub that somebody stopped is left out: a small model would take it for the way to answer.
        shown = [
            earlier for earlier in turns[start:] if earlier.messages or (earlier.answer and not earlier.interrupted)
        ]
        questions = [earlier.question for earlier in turns if earlier.question]
        turn.index = self._store.begin_turn(turn.user, turn.session_id, turn.question)
        return {
            "input": turn.question,
            "own_reply": own_reply,
            "texts": texts_for(turn.question, *questions[:-4:-1]),
            "history": [message for earlier in shown for message in _as_sent(earlier)],
            "questions": questions,
            "known": {
                source["text"]: source["n"]
                for earlier in shown
                for source in earlier.sources
                if source["n"] in earlier.placed
            },
            "numbers": {source["text"]: source["n"] for earlier in turns for source in earlier.sources},
            "next_number": 1 + max((source["n"] for earlier in turns for source in earlier.sources), default=0),
            "passage_tokens": passage_tokens,
            "k": self._passages.count if wants_passages else 0,
            "collections": options.get("collections"),
            "user": turn.user,
        }

    @staticmethod
    def _own_reply(answering: Answering, question: str) -> str:
        """What is said of the assistant itself. A model that may be trusted speaks for itself, by its system prompt."""
        language = asks_about_assistant(question) if answering.mode == "strict" else None
        return about_assistant(language, answering.model_name) if language else ""

    def _window_start(self, turn: _OpenTurn, turns: Sequence[Turn], *, used: int) -> int:
        conversation = self._store.conversation(*turn.key)
        before = conversation.window_start if conversation else 0
        start = self._memory.first_turn(turns, start=before, room=self._room.prompt_tokens, used=used)
        if start != before and self._memory.kind != "window":
            self._store.set_window_start(turn.user, turn.session_id, start)
        return start

    async def _close(self, turn: _OpenTurn) -> None:
        try:
            await asyncio.to_thread(self._store_result, turn)
        except Exception:
            logger.exception("a turn of a conversation could not be stored")
            raise
        finally:
            self._locks.release(turn.key)

    def _store_result(self, turn: _OpenTurn) -> None:
        if turn.index is None:
            return
        if turn.refused:
            self._store.truncate(turn.user, turn.session_id, turn.index)
            return
        draft, answer = turn.draft or TurnDraft(prompt=turn.question), "".join(turn.answer)
        result = TurnResult(
            prompt=draft.prompt,
            answer=answer,
            sources=draft.sources,
            placed=draft.placed,
            num_tokens=self._size(draft.prompt) + self._size(answer),
            interrupted=not turn.completed,
            grounding=turn.grounding,
        )
        self._store.finish_turn(turn.user, turn.session_id, turn.index, result)

    def _size(self, text: str) -> int:
        """Tokens of a message with that text."""
        return self._count_tokens(text) + MESSAGE_OVERHEAD_TOKENS

    def _sized(self, turn: Turn) -> Turn:
        """The turn with its size; those that LangChain users added by themselves have not been measured."""
        if turn.num_tokens:
            return turn
        return replace(turn, num_tokens=sum(self._size(message.text) for message in _as_sent(turn)))


def turn_writer(
    rule: PassageRule, count_tokens: CountTokens, answering: Answering | None = None
) -> Callable[[State], TurnDraft]:
    """`write_turn` for the retrieval chain, over the state that a ConversationChain makes."""

    def write(state: State) -> TurnDraft:
        passages = [passage for passage in state["passages"] if passage.score >= rule.min_score]
        is_checked = answering is not None and state["k"] > 0
        if answering is not None and is_checked and answering.mode == "strict":
            return write_excerpt_turn(
                state["input"],
                passages,
                answering.rank(state["queries"], passages),
                numbers=state["numbers"],
                next_number=state["next_number"],
                max_tokens=state["passage_tokens"],
                count_tokens=count_tokens,
            )
        draft = write_turn(
            state["input"],
            passages,
            known=state["known"],
            next_number=state["next_number"],
            max_tokens=state["passage_tokens"],
            count_tokens=count_tokens,
        )
        if answering is not None and is_checked:
            draft.ranking = answering.rank(state["queries"], draft.passages)
        return draft

    return write


def session_of(configurable: dict[str, Any]) -> str:
    """The session's name. Raises MissingSessionError where it is missing or empty, RequestError for no text."""
    session_id = configurable.get("session_id")
    if session_id is None or session_id == "":
        raise MissingSessionError
    if not isinstance(session_id, str):
        raise RequestError(
            f"config.configurable.session_id must be a text, not {json.dumps(session_id, default=repr)[:80]}: put it "
            "in quotes",
            field="config.configurable.session_id",
        )
    if not session_id.strip():
        raise MissingSessionError
    return session_id


def question_of(given: Any) -> str:
    """The question in a chain's input: `{"input": str}`. Raises RequestError for anything else."""
    question = given.get("input") if isinstance(given, dict) else getattr(given, "input", None)
    if not isinstance(question, str):
        raise RequestError('the input must be an object with the question: {"input": "…"}', field="input.input")
    if not question.strip():
        raise RequestError("input.input is empty: send a question", field="input.input")
    unknown = sorted(str(name)[:80] for name in given if name != "input") if isinstance(given, dict) else []
    if unknown:
        raise RequestError(
            f'input.{unknown[0]} is not known here: the question goes into "input", options into config.configurable',
            field=f"input.{unknown[0]}",
        )
    return question


def _as_sent(turn: Turn) -> list[BaseMessage]:
    """A turn as the model saw it, passages included: byte for byte, or the prefix cache would not know it."""
    if turn.messages:
        return turn.as_messages()
    return [HumanMessage(turn.prompt or turn.question), AIMessage(turn.answer)]


def _from_own_loop(make: Callable[[], AsyncGenerator[dict[str, Any], None]]) -> Iterator[dict[str, Any]]:
    """Runs an async generator in an event loop on a thread of its own, and yields what it yields."""
    items: queue.SimpleQueue[tuple[dict[str, Any] | None, BaseException | None]] = queue.SimpleQueue()
    started: Future[tuple[asyncio.AbstractEventLoop, asyncio.Task[None]]] = Future()

    async def pump() -> None:
        task = asyncio.current_task()
        assert task is not None
        started.set_result((asyncio.get_running_loop(), task))
        async with aclosing(make()) as stream:
            async for item in stream:
                items.put((item, None))

    def run() -> None:
        try:
            asyncio.run(pump())
            items.put((None, None))
        except BaseException as error:  # handed to the caller's thread
            items.put((None, error))

    thread = threading.Thread(target=contextvars.copy_context().run, args=(run,), name="conversation", daemon=True)
    thread.start()
    try:
        while True:
            item, error = items.get()
            if error is not None:
                raise error
            if item is None:
                return
            yield item
    finally:
        loop, task = started.result()
        with contextlib.suppress(RuntimeError):  # the loop has ended by itself
            loop.call_soon_threadsafe(task.cancel)
        thread.join()
