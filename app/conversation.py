"""The conversation chain: one question in, sources and answer out, with the history of (user, session) around it.

A Runnable of our own instead of LangChain's RunnableWithMessageHistory, which is deprecated and loses turns that run at
the same time. It binds the chains of `app/chains.py` to a store and to the memory rule; it knows no HTTP.
"""

import asyncio
import contextlib
import contextvars
import copy
import logging
import queue
import threading
from collections.abc import AsyncGenerator, AsyncIterator, Callable, Iterator, Sequence
from concurrent.futures import Future
from contextlib import aclosing
from dataclasses import replace
from typing import Any

from langchain_core.callbacks import AsyncCallbackManagerForChainRun
from langchain_core.messages import AIMessage, BaseMessage, HumanMessage
from langchain_core.runnables import Runnable, RunnableConfig
from langchain_core.runnables.config import ensure_config, patch_config
from langchain_core.runnables.utils import AddableDict, ConfigurableFieldSpec

from app.answerer import Answerer
from app.answering import Grounding, Material, grounded, left_out, told, unchecked
from app.chains import State, wordings
from app.chat_schema import CONFIG_SPECS, ChatInput, ChatOptions, ChatOutput, question_of, session_of
from app.continuing import begun, beyond, draft_of, following, plain, require_unfinished
from app.engines.client import MESSAGE_OVERHEAD_TOKENS
from app.engines.patience import at_once
from app.errors import RagstoneError, RequestError
from app.fixed_texts import reply_to, texts_for
from app.history import ConversationStore, Turn
from app.memory import MemoryRule
from app.open_turn import Choice, OpenTurn
from app.principal import DEFAULT_USER
from app.small_talk import small_talk_of
from app.turn_lock import TurnLocks
from app.turn_progress import keep_progress
from app.turn_prompt import PassageRule, TurnDraft
from engine.errors import EngineError, PromptTooLongError

logger = logging.getLogger(__name__)

EarlierTurns = Callable[[str, str], Sequence[Turn]]
Choose = Callable[[OpenTurn, EarlierTurns], Choice]
"""Tells who answers a turn. Blocks: a model may have to be loaded, and the earlier turns may have to be read."""


class ConversationChain(Runnable[dict[str, Any], dict[str, Any]]):
    """`{"input": str}` with `configurable: {session_id, …}` -> `{"sources": [...], "answer": str, …}` (ChatOutput).

    Turns of one conversation run one after another. However a turn ends, it is stored: what was produced of a stopped
    or broken answer is kept and marked. A question that is refused (too long) leaves no trace.
    """

    def __init__(
        self,
        *,
        answerer: Answerer,
        store: ConversationStore,
        locks: TurnLocks,
        memory: MemoryRule,
        passages: PassageRule,
        choose: Choose | None = None,
        note_grounding: Callable[[Grounding], None] = lambda grounding: None,
    ) -> None:
        """`choose` tells which model answers a turn; None: `answerer` answers all.

        `note_grounding` is told how each answer that was checked stands to its sources.
        """
        self.name = "chat"
        self._answerer = answerer
        self._choose = choose
        self._store = store
        self._locks = locks
        self._memory = memory
        self._passages = passages
        self._note_grounding = note_grounding
        self._closing: set[asyncio.Task[None]] = set()
        self._open_turns: list[OpenTurn] = []

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

    def place_in_queue(self, user: str, session_id: str, *, is_full: bool) -> int | None:
        """Where a conversation's newest turn stands, from 1; 0: it is being answered; None: there is none.

        `is_full`: requests wait for room in the engine.
        """
        turns = list(self._open_turns)
        mine = [turn for turn in turns if turn.key == (user, session_id)]
        if not mine:
            return None
        newest = mine[-1]
        if newest.record.last is not None or (not is_full and newest is mine[0]):
            return 0
        return 1 + [turn for turn in turns if turn.record.last is None].index(newest)

    async def drain(self) -> None:
        """Waits until every turn that has ended is stored."""
        while self._closing:
            await asyncio.wait(self._closing)

    def over(self, store: ConversationStore, answerer: Answerer) -> "ConversationChain":
        """The same chain over another store, answered by this one."""
        chain = copy.copy(self)
        chain._store, chain._locks, chain._answerer, chain._choose = store, TurnLocks(), answerer, None
        return chain

    # ── one turn ─────────────────────────────────────────────────────────────────────────────────────────────────────

    async def _take_turn(
        self,
        inputs: AsyncIterator[dict[str, Any]],
        run_manager: AsyncCallbackManagerForChainRun,
        config: RunnableConfig,
    ) -> AsyncIterator[AddableDict]:
        configurable = ensure_config(config).get("configurable", {})
        options = ChatOptions.of(configurable)
        question = question_of([given async for given in inputs][-1], may_be_empty=options.continue_turn)
        user = configurable.get("user") or DEFAULT_USER
        turn = OpenTurn(user, session_of(configurable), question, options, self._answerer)
        child = patch_config(config, callbacks=run_manager.get_child())
        self._open_turns.append(turn)
        try:
            await self._locks.acquire(turn.key)
        except BaseException:
            self._open_turns.remove(turn)
            raise
        keeping = asyncio.create_task(keep_progress(turn, self._store_progress))
        try:
            if self._choose is not None:
                turn.take(await asyncio.to_thread(self._choose, turn, self._store.turns))
            state = await asyncio.to_thread(self._open, turn)
            if "turn" not in state:
                state = await turn.answerer.retrieval.ainvoke(state, child)
            turn.draft = state["turn"]
            yield AddableDict(sources=state["turn"].sources)
            async with aclosing(self._pieces(turn, state, child)) as pieces:
                async for piece in pieces:
                    if isinstance(piece, Grounding):
                        turn.grounding = piece.model_dump()
                        self._note_grounding(piece)
                    elif piece:
                        turn.answer.append(piece)
                        yield AddableDict(answer=piece)
            if not turn.answer:
                yield AddableDict(answer="")
            turn.complete()
            if turn.grounding is not None:
                yield AddableDict(grounding=turn.grounding)
            yield AddableDict(
                turn_id=turn.turn_id,
                index=turn.index,
                finish_reason=turn.finish_reason,
                statistics=turn.statistics,
            )
        except Exception as error:
            turn.refused = isinstance(error, RequestError | PromptTooLongError) and not turn.answer
            turn.finish_reason = "error"
            raise
        finally:
            keeping.cancel()
            # As a task of its own: the storing must not be cancelled together with the turn it stores.
            closing = asyncio.create_task(self._close(turn))
            self._closing.add(closing)
            closing.add_done_callback(self._closing.discard)
            await asyncio.shield(closing)

    async def _pieces(
        self, turn: OpenTurn, state: State, config: RunnableConfig
    ) -> AsyncGenerator[str | Grounding, None]:
        """The answer in pieces; at last its grounding, where answers are checked."""
        draft: TurnDraft = state["turn"]
        answering, said = turn.answering, turn.began
        is_checked = answering is not None and draft.ranking is not None
        # What is said in a strict answer is not the model's words; of a marked one all is but the marks.
        if answering is None or answering.mode != "strict" or not is_checked:
            turn.record.continues = (plain(said) if is_checked else said).rstrip()
        chain = turn.answerer.answer(turn.options.sampling, turn.record)
        source: Any = chain.astream({"history": state["history"], "prompt": draft.prompt}, config)
        stream: AsyncIterator[str] = source
        if is_checked and turn.answerer.is_weak is not None and not state["own_reply"]:
            stream = await _first_read(turn, source)
            answering = turn.answering

        def deltas() -> AsyncIterator[str]:
            return stream

        def whole() -> AsyncIterator[str]:
            return begun(turn.record.continues, deltas())

        is_whole = True
        if answering is not None and state["own_reply"]:
            answer = told(answering.mode, state["own_reply"])
        elif answering is None or draft.ranking is None:
            mode, is_whole = answering.mode if answering else "off", False
            answer = unchecked(mode, lambda: following(said, deltas()), state["texts"], goes_on=bool(said))
        else:
            numbers = [source["n"] for source in draft.sources]
            material = Material(draft.passages, numbers, draft.ranking, state["texts"])
            answer = grounded(answering, material, whole, lambda: turn.record.was_cut)
        dropped = turn.continues.answer[len(said) :] if turn.continues else ""
        fresh = beyond(said, answer, dropped) if said and is_whole else answer
        async with aclosing(source), aclosing(answer), aclosing(fresh) as pieces:
            async for piece in pieces:
                if isinstance(piece, Grounding):
                    piece.left_out = [left_out(passage, num_tokens) for passage, num_tokens in draft.left_out]
                if not isinstance(piece, Grounding) or answering is not None:
                    yield piece

    def _open(self, turn: OpenTurn) -> State:
        """Notes the question and chooses what the model is shown. Blocks; runs in a worker thread."""
        options = turn.options
        turns = [_sized(earlier, turn.answerer) for earlier in self._store.turns(*turn.key)]
        room = turn.answerer.room
        if options.continue_turn:
            turn.go_on(require_unfinished(turns.pop() if turns else None))
            options = turn.options
        begins = _size(turn.began, turn.answerer) if turn.began else 0
        # The prompt of an answer that goes on is written, passages and all.
        asked = turn.continues.prompt if turn.continues and turn.began else ""
        fixed = room.system_tokens + _size(asked or turn.question, turn.answerer) + begins
        max_tokens = room.max_tokens if options.max_tokens is None else options.max_tokens
        prompt_tokens = replace(room, max_tokens=max_tokens).prompt_tokens
        if fixed > prompt_tokens:
            raise PromptTooLongError(fixed, room.max_model_len, max_tokens)
        num_passages = self._passages.count if options.num_passages is None else options.num_passages
        wants_passages = options.retrieval and num_passages > 0
        own_reply = ""
        small_talk = small_talk_of(turn.question) if turn.answering is not None and wants_passages else None
        if turn.answering is not None and small_talk is not None:
            wants_passages = False
            # A model that may be trusted speaks for itself, by its system prompt.
            own_reply = reply_to(small_talk, turn.answering.model_name) if turn.answering.mode == "strict" else ""
        # At most half of what the question leaves, so that passages never push a whole conversation out.
        half = (prompt_tokens - fixed) // 2
        passage_tokens = min(self._passages.max_tokens, half) if wants_passages and not asked else 0
        used = fixed + passage_tokens
        start = turn.num_turns_left_out = self._window_start(turn, turns, room=prompt_tokens, used=used)
        # A stub that somebody stopped is left out: a small model would take it for the way to answer.
        shown = [
            earlier for earlier in turns[start:] if earlier.messages or (earlier.answer and not earlier.interrupted)
        ]
        questions = [earlier.question for earlier in turns if earlier.question]
        if turn.index is None:
            turn.index = self._store.begin_turn(turn.user, turn.session_id, turn.question, turn_id=turn.turn_id)
        resumed = {}
        if turn.continues and turn.began:
            queries = wordings(turn.question, questions)
            resumed["turn"] = draft_of(turn.continues, turn.answering, queries, asks_documents=wants_passages)
        return {
            **resumed,
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
            "k": num_passages if wants_passages else 0,
            "collections": options.collections,
            "where": options.where.filter() if options.where else None,
            "user": turn.user,
        }

    def _window_start(self, turn: OpenTurn, turns: Sequence[Turn], *, room: int, used: int) -> int:
        memory = replace(self._memory, kind=turn.options.memory or self._memory.kind)
        conversation = self._store.conversation(*turn.key)
        before = conversation.window_start if conversation else 0
        start = memory.first_turn(turns, start=before, room=room, used=used)
        if start != before and memory.kind != "window":
            self._store.set_window_start(turn.user, turn.session_id, start)
        return start

    async def _close(self, turn: OpenTurn) -> None:
        try:
            await turn.record.close()
            with at_once():  # the answer is here: its end waits for no engine
                await asyncio.to_thread(self._store_result, turn)
        except Exception:
            logger.exception("a turn of a conversation could not be stored")
            raise
        finally:
            self._open_turns.remove(turn)
            self._locks.release(turn.key)

    def _store_result(self, turn: OpenTurn) -> None:
        with turn.storing:
            turn.has_ended = True
            if turn.index is None or turn.is_unchanged:
                return
            if turn.refused:
                self._store.truncate(turn.user, turn.session_id, turn.index)
                return
            result = turn.result
            num_tokens = _tokens_of(turn, result.prompt, result.answer)
            self._store.finish_turn(turn.user, turn.session_id, turn.index, replace(result, num_tokens=num_tokens))

    def _store_progress(self, turn: OpenTurn) -> None:
        with turn.storing:
            if turn.index is not None and not turn.has_ended:
                self._store.note_progress(turn.user, turn.session_id, turn.index, turn.result)


async def _first_read(turn: OpenTurn, source: Any) -> AsyncIterator[str]:
    """The stream of an answer, read to its first words: by then it is known who answers, and how that is checked."""
    try:
        first: str = await anext(source, "")
        model, is_weak = turn.record.model, turn.answerer.is_weak
        if model is not None and is_weak is not None and await asyncio.to_thread(is_weak, model):
            turn.answering = turn.answering and replace(turn.answering, mode="strict")
    except BaseException:
        await source.aclose()
        raise
    return begun(first, source)


def _size(text: str, answerer: Answerer) -> int:
    """Tokens of a message with that text."""
    return answerer.count_tokens(text) + MESSAGE_OVERHEAD_TOKENS


def _tokens_of(turn: OpenTurn, prompt: str, answer: str) -> int:
    """Size of a turn that has ended; 0, which has it measured when it is read next, where the engine cannot tell now.

    It may have ended with the answer, or been what broke it off.
    """
    try:
        return _size(prompt, turn.answerer) + _size(answer, turn.answerer)
    except (EngineError, RagstoneError):
        return 0


def _sized(turn: Turn, answerer: Answerer) -> Turn:
    """The turn with its size; those that broke off or that LangChain users added have not been measured."""
    if turn.num_tokens:
        return turn
    return replace(turn, num_tokens=sum(_size(message.text, answerer) for message in _as_sent(turn)))


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
