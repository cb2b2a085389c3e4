"""The chains, in plain LCEL: condense → retrieve → write the turn, and prompt | model | parser.

Knows no HTTP, no history store and no LangServe; what binds the two halves to a conversation is `app/conversation.py`.
Texts of users and documents are only ever values of a template, so braces in them mean nothing.
"""

from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from typing import Any

from langchain_core.documents import Document
from langchain_core.language_models import BaseChatModel
from langchain_core.messages import BaseMessage, SystemMessage
from langchain_core.output_parsers import StrOutputParser
from langchain_core.prompts import ChatPromptTemplate, MessagesPlaceholder
from langchain_core.runnables import Runnable, RunnableConfig, RunnableLambda, RunnablePassthrough

from app.chat_model import ChatRagstone
from app.chat_schema import ChatOptions, question_of
from app.principal import DEFAULT_USER
from app.turn_prompt import TurnDraft
from app.turn_statistics import AnswerRecord
from retrieval.question_kind import stands_alone
from retrieval.records import Passage
from retrieval.retriever import passage_document

State = dict[str, Any]
Search = Callable[..., list[Passage]]
"""`KnowledgeBase.search`: (query or forms of it, k, *, collections, user, where) -> passages, best first."""
ChooseModel = Callable[[str, ChatOptions], BaseChatModel]
"""Tells which model a question goes to: (question, options)."""
MakeAnswer = Callable[[Mapping[str, Any], AnswerRecord], Runnable[State, str]]
"""The chain for one answer: (options of the model's call, where its requests are noted) -> as `answers_of` makes it."""

CONDENSE_REQUEST = (
    "Rewrite my next question so that it can be understood without our conversation. Keep its language. Reply with the "
    "question only.\n\nQuestion: {input}"
)


class TextParser(StrOutputParser):
    """LangChain's parser of text, which hands every chunk of a stream to a worker thread, without that.

    The hop takes as long as everything else that a chunk goes through.
    """

    async def _atransform(self, input: AsyncIterator[str | BaseMessage]) -> AsyncIterator[str]:
        async for chunk in input:
            yield chunk if isinstance(chunk, str) else str(chunk.text)


def answers_of(model: ChatRagstone, system_prompt: str = "", defaults: Mapping[str, Any] | None = None) -> MakeAnswer:
    """Makes the chain of each answer of a model: `{"history": messages, "prompt": str}` -> the answer's text, streamed.

    `defaults` are options of the model's calls that those of a turn replace.
    """
    # Once: making them takes longer than using them, and so does what LangChain keeps with a model as its description.
    prompt, parser, _ = _prompt(system_prompt, "{prompt}"), TextParser(), model._serialized

    def make(options: Mapping[str, Any], record: AnswerRecord) -> Runnable[State, str]:
        watched = model.model_copy(update={"client": record.watch(model.client)})
        return prompt | watched.bind(**{**(defaults or {}), **options}) | parser

    return make


def llm_chain(choose: ChooseModel) -> Runnable[State, str]:
    """`{"input": str}` -> text of a model alone; of `configurable`, what `choose` looks at and the sampling count."""
    prompt = ChatPromptTemplate.from_messages([("human", "{input}")])

    # LangChain runs the chain that such a function returns, and answers what that answers.
    def chosen(state: State, config: RunnableConfig) -> Any:
        options = ChatOptions.of(config.get("configurable", {}))
        return prompt | choose(question_of(state), options).bind(**options.sampling) | TextParser()

    async def achosen(state: State, config: RunnableConfig) -> Any:
        return chosen(state, config)

    return RunnableLambda(chosen, achosen, name="llm")


def retrieve_chain(search: Search, num_passages: int) -> Runnable[State, list[Document]]:
    """`{"input": str}` -> the passages found, best first; of `configurable`, /retrieve's options and `user` count."""

    def retrieve(state: State, config: RunnableConfig) -> list[Document]:
        configurable = config.get("configurable", {})
        options = ChatOptions.of(configurable)
        k = num_passages if options.num_passages is None else options.num_passages
        if k < 1:
            return []
        where = options.where.filter() if options.where else None
        user = configurable.get("user") or DEFAULT_USER
        found = search([question_of(state)], k=k, collections=options.collections, user=user, where=where)
        return [passage_document(passage) for passage in found]

    return RunnableLambda(retrieve, name="retrieve")


def retrieval_chain(
    condense: Runnable[State, list[str]], search: Search, write_turn: Callable[[State], TurnDraft]
) -> Runnable[State, State]:
    """Question and history -> the same with `queries`, `passages` and `turn` (a TurnDraft).

    Takes `input`, `history` (messages), `questions` (the earlier ones), `user`, `collections` and `where` (None: all)
    and `k` (0: no retrieval; then there is nothing to condense either), and whatever else `write_turn` asks for.
    """

    def retrieve(state: State) -> list[Passage]:
        narrowed = {name: state[name] for name in ("collections", "user", "where")}
        return search(state["queries"], k=state["k"], **narrowed)

    searching = (
        RunnablePassthrough.assign(queries=condense)
        | RunnablePassthrough.assign(passages=RunnableLambda(retrieve))
        | RunnablePassthrough.assign(turn=RunnableLambda(write_turn, name="write_turn"))
    )

    # LangChain runs the chain that such a function returns. Each step of one takes a hop to a worker thread, which is
    # most of what a turn without a search would take.
    def chosen(state: State) -> Any:
        if state["k"] > 0:
            return searching
        without: State = {**state, "queries": [state["input"]], "passages": []}
        return {**without, "turn": write_turn(without)}

    async def achosen(state: State) -> Any:
        return chosen(state)

    return RunnableLambda(chosen, achosen, name="retrieval")


def condense_by_context() -> Runnable[State, list[str]]:
    """`wordings`: what a small model would get wrong when it rewrites, search can do."""
    return RunnableLambda(lambda state: wordings(state["input"], state["questions"]), name="condense")


def wordings(question: str, earlier: Sequence[str]) -> list[str]:
    """The question, and the question after the one before it.

    Where that one goes on from the one before it ("and why?"), that one is told too. Never more of the history: it
    drowns what is asked.
    """
    if not earlier:
        return [question]
    before = earlier[-1:] if stands_alone(earlier[-1]) else earlier[-2:]
    return [question, " ".join([*before, question])]


def condense_by_model(model: BaseChatModel, system_prompt: str = "") -> Runnable[State, list[str]]:
    """The question, and the question as the model rewrites it from the conversation (which the prefix cache holds)."""
    rewrite = _prompt(system_prompt, CONDENSE_REQUEST) | model.bind(temperature=0, max_tokens=96) | TextParser()

    async def condense(state: State) -> list[str]:
        if not state["questions"]:
            return [state["input"]]
        rewritten = (await rewrite.ainvoke({"history": state["history"], "input": state["input"]})).strip()
        return [state["input"], rewritten] if rewritten else [state["input"]]

    return RunnableLambda(condense)


def no_condensing() -> Runnable[State, list[str]]:
    """The question as it is."""
    return RunnableLambda(lambda state: [state["input"]], name="condense")


def _prompt(system_prompt: str, last: str) -> ChatPromptTemplate:
    system = [SystemMessage(system_prompt)] if system_prompt else []
    return ChatPromptTemplate.from_messages([*system, MessagesPlaceholder("history"), ("human", last)])
