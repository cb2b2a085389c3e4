"""The server's own chat chain over a model in this process, for benchmarks that give it passages and conversations."""

import time
from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from contextlib import aclosing
from pathlib import Path
from typing import Any, Literal

from langchain_core.runnables import Runnable, RunnableGenerator

from app import chains, models
from app.answerer import Answerer, ModelRoom, turn_writer
from app.answerers import TRUSTED_PARAMETERS
from app.answering import Answering
from app.chat_model import ChatRagstone
from app.conversation import ConversationChain
from app.engines.client import MESSAGE_OVERHEAD_TOKENS, RequestTimes
from app.engines.in_process import InProcessEngineClient, engine_config
from app.evaluation.scoring import is_refusal
from app.memory import MemoryRule
from app.settings import Settings
from app.sqlite_history import SQLiteConversationStore
from app.turn_lock import TurnLocks
from app.turn_prompt import PassageRule
from app.turn_statistics import AnswerRecord
from benchmarks.answer_sets import Answer, Question
from engine import AsyncEngine
from retrieval.records import Passage
from retrieval.sentences import split_sentences


class Product:
    """The server's own chain over a model in this process, with passages that are given instead of searched for."""

    def __init__(self, settings: Settings, folder: Path, mode: Literal["strict", "mark"] | None = None) -> None:
        self.settings = settings
        engine = AsyncEngine(engine_config(settings, models.resolve(settings.model, settings)))
        engine.start()
        self.engine = engine
        self.requests: list[RequestTimes] = []
        self.client = InProcessEngineClient(engine, model_name=settings.model, on_end=self.requests.append)
        self.client.pin_system_prompt(settings.system_prompt)
        self.store = SQLiteConversationStore(folder / "history.sqlite3")
        self.mode = mode or ("strict" if engine.num_parameters < TRUSTED_PARAMETERS else "mark")
        self._num_sessions = 0
        self._deltas: list[tuple[float, str]] = []

    def chain(self, find: Callable[..., Sequence[Passage]], answering: Answering | None) -> ConversationChain:
        """The conversation chain, its model's words noted with the time at which they came."""
        settings, client = self.settings, self.client
        model = ChatRagstone(
            model=settings.model,
            client=client,
            temperature=0.0,
            frequency_penalty=settings.frequency_penalty,
            max_tokens=settings.max_tokens,
        )
        rule = PassageRule(settings.num_passages, settings.max_passage_tokens)

        async def noted(deltas: AsyncIterator[str]) -> AsyncIterator[str]:
            async for delta in deltas:
                self._deltas.append((time.perf_counter(), delta))
                yield delta

        make = chains.answers_of(model, settings.system_prompt)

        def answer(options: Mapping[str, Any], record: AnswerRecord) -> Runnable[Any, str]:
            return make(options, record) | RunnableGenerator(noted)

        return ConversationChain(
            answerer=Answerer(
                retrieval=chains.retrieval_chain(
                    chains.condense_by_context(), find, turn_writer(rule, client.count_tokens, answering)
                ),
                answer=answer,
                room=ModelRoom(
                    client.max_model_len,
                    settings.max_tokens,
                    client.count_tokens(settings.system_prompt) + MESSAGE_OVERHEAD_TOKENS,
                ),
                count_tokens=client.count_tokens,
                answering=answering,
            ),
            store=self.store,
            locks=TurnLocks(),
            memory=MemoryRule(settings.memory_kind, settings.memory_turns, settings.memory_tokens),
            passages=rule,
        )

    async def ask(self, question: Question, answering: Answering | None) -> Answer:
        """One question in a conversation of its own; the questions before it are known, not answered."""
        chain = self.chain(lambda *_, **__: list(question.passages), answering)
        session = self.new_session()
        for earlier in question.earlier:
            self.store.begin_turn("local", session, earlier)
        return await self.take_turn(chain, question.text, session)

    async def take_turn(self, chain: ConversationChain, text: str, session: str) -> Answer:
        self._deltas.clear()
        answer = Answer("")
        started = time.perf_counter()
        async with aclosing(chain.astream({"input": text}, {"configurable": {"session_id": session}})) as chunks:
            async for chunk in chunks:
                if chunk.get("answer") and answer.first_words_s is None:
                    answer.first_words_s = time.perf_counter() - started
                answer.text += chunk.get("answer", "")
                if grounding := chunk.get("grounding"):
                    answer.sentences = grounding["sentences"]
                    answer.refused = grounding["state"] == "not_found"
        answer.refused = answer.refused or (not answer.sentences and is_refusal(answer.text))
        answer.first_sentence_s = self._first_sentence(started)
        return answer

    def new_session(self) -> str:
        self._num_sessions += 1
        return f"benchmark-{self._num_sessions}"

    def _first_sentence(self, started: float) -> float | None:
        """Seconds from the question to the delta after which the model's first sentence was known to be whole."""
        text = ""
        for at, delta in self._deltas:
            text += delta
            if len(split_sentences(text)) > 1:
                return at - started
        return self._deltas[-1][0] - started if self._deltas else None
