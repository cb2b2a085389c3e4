"""What courses on LangChain teach, with ChatRagstone in the place of the model, on the default model."""

import asyncio
from pathlib import Path

import pytest
from langchain_core.caches import InMemoryCache
from langchain_core.messages import AIMessage, HumanMessage, SystemMessage, trim_messages
from langchain_core.output_parsers import JsonOutputParser, PydanticOutputParser, StrOutputParser
from langchain_core.prompts import ChatPromptTemplate, MessagesPlaceholder
from langchain_core.runnables import RunnableLambda, RunnableParallel, RunnablePassthrough
from langchain_core.runnables.history import RunnableWithMessageHistory
from pydantic import BaseModel

from app.chat_model import ChatRagstone
from app.engines.in_process import local_client
from app.history import RagstoneChatMessageHistory
from app.sqlite_history import SQLiteConversationStore
from engine.errors import PromptTooLongError
from tests.app.scripted import until

CAPITAL = ChatPromptTemplate.from_messages([("human", "Name the capital of {country}.")])
ROME = "The capital of Italy is Rome."


@pytest.fixture(scope="module")
def model(chat_model_path: Path) -> ChatRagstone:
    return ChatRagstone(model="smollm2-135m-instruct", temperature=0, max_tokens=12)


def test_prompt_model_and_parser_in_a_row(model):
    chain = CAPITAL | model | StrOutputParser()
    assert chain.invoke({"country": "Italy"}) == ROME
    assert "".join(chain.stream({"country": "Italy"})) == ROME


async def test_the_same_without_blocking(model):
    chain = CAPITAL | model | StrOutputParser()
    assert await chain.ainvoke({"country": "Italy"}) == ROME
    assert "".join([part async for part in chain.astream({"country": "Italy"})]) == ROME


def test_runnable_parallel_asks_twice_at_the_same_time(model):
    both = RunnableParallel(italy=CAPITAL | model | StrOutputParser(), raw=RunnablePassthrough())
    assert both.invoke({"country": "Italy"}) == {"italy": ROME, "raw": {"country": "Italy"}}


def test_runnable_passthrough_assign_adds_the_answer(model):
    chain = RunnablePassthrough.assign(answer=CAPITAL | model | StrOutputParser())
    assert chain.invoke({"country": "Italy"}) == {"country": "Italy", "answer": ROME}


def test_runnable_lambda_before_and_after(model):
    chain = (
        RunnableLambda(lambda name: {"country": name.title()})
        | CAPITAL
        | model
        | RunnableLambda(lambda m: m.content.upper())
    )
    assert chain.invoke("italy") == ROME.upper()


def test_with_retry_repeats_and_with_fallbacks_takes_over(model):
    calls = []

    def fail_once(value):
        calls.append(value)
        if len(calls) == 1:
            raise ValueError("not yet")
        return value

    chain = RunnableLambda(fail_once).with_retry(stop_after_attempt=2, wait_exponential_jitter=False) | CAPITAL | model
    assert chain.invoke({"country": "Italy"}).content == ROME
    assert len(calls) == 2
    short = ChatRagstone(model="smollm2-135m-instruct", max_tokens=8192)  # leaves no room for any prompt
    with pytest.raises(PromptTooLongError):
        short.invoke("hi")
    assert (CAPITAL | short.with_fallbacks([model])).invoke({"country": "Italy"}).content == ROME


def forced(model, text):
    """A model of 135M parameters that writes JSON when asked is luck; the parsers are what is tested."""
    return model | RunnableLambda(lambda message: AIMessage(text.replace("ANSWER", message.content)))


def test_json_and_pydantic_parsers(model):
    class Capital(BaseModel):
        sentence: str
        size: int

    text = 'Here it is: ```json\n{"sentence": "ANSWER", "size": 2}\n```'
    question = CAPITAL | forced(model, text)
    assert (question | JsonOutputParser()).invoke({"country": "Italy"}) == {"sentence": ROME, "size": 2}
    parser = PydanticOutputParser(pydantic_object=Capital)
    prompt = ChatPromptTemplate.from_messages([("human", "{format}\n{question}")]).partial(
        format=parser.get_format_instructions()
    )
    answer = (prompt | forced(model, text) | parser).invoke({"question": "hm"})
    assert isinstance(answer, Capital)
    assert answer.size == 2


def test_temperature_zero_three_times_is_three_times_the_same(model):
    answers = [model.invoke("Write a short story about a fox.").content for _ in range(3)]
    assert answers[0] == answers[1] == answers[2]
    assert len(answers[0]) > 10


def test_temperature_one_without_a_seed_differs_and_with_one_does_not():
    model = ChatRagstone(model="smollm2-135m-instruct", temperature=1, max_tokens=16)
    question = "Write a short story about a fox."
    assert len({model.invoke(question).content for _ in range(3)}) > 1
    assert len({model.invoke(question, seed=5).content for _ in range(2)}) == 1


def test_the_answer_ends_before_a_stop_text_also_when_it_straddles_tokens(model):
    message = (CAPITAL | model).invoke({"country": "Italy"}, stop=["Italy is"])
    assert model.invoke(CAPITAL.format_messages(country="Italy"), stop=["tal of Ita"]).content == "The capi"
    assert message.content == ROME
    assert "".join(c.content for c in model.stream("Name the capital of Italy.", stop=["tal of Ita"])) == "The capi"


def test_batch_keeps_the_order(model):
    chain = CAPITAL | model | StrOutputParser()
    answers = chain.batch([{"country": "Italy"}, {"country": "Italy"}, {"country": "Italy"}])
    assert answers[0] == answers[2] == ROME
    assert "Italy" in answers[1]


def test_logprobs_are_in_the_response_metadata(model):
    message = model.invoke("Name the capital of Italy.", logprobs=True, top_logprobs=2, max_tokens=2)
    content = message.response_metadata["logprobs"]["content"]
    assert [entry["token"] for entry in content] == ["The", " capital"]
    total = None
    for chunk in model.stream("Name the capital of Italy.", logprobs=True, max_tokens=2):
        total = chunk if total is None else total + chunk
    assert total.response_metadata["logprobs"]["content"] == [{**entry, "top_logprobs": []} for entry in content]


def test_several_answers_by_generate(model):
    (answers,) = model.generate(
        [[HumanMessage("Write a story.")]], n=2, temperature=1, seed=1, max_tokens=8
    ).generations
    assert len(answers) == 2
    assert answers[0].text != answers[1].text


def test_a_cache_answers_the_second_time(model):
    cached = ChatRagstone(model="smollm2-135m-instruct", temperature=0, max_tokens=4, cache=InMemoryCache())
    stats = local_client("smollm2-135m-instruct").engine.stats
    first = cached.invoke("Name the capital of Italy.")
    generated = stats().num_generated_tokens
    second = cached.invoke("Name the capital of Italy.")
    assert (first.content, second.content) == ("The capital of Italy", "The capital of Italy")
    assert stats().num_generated_tokens == generated


def test_token_counts_are_the_models_own(model):
    assert model.get_num_tokens("The capital of Italy is Rome.") == 7


# ── memory ───────────────────────────────────────────────────────────────────────────────────────────────────────────


def test_window_memory_with_trim_messages(model):
    window = trim_messages(max_tokens=3, strategy="last", token_counter=len, include_system=True, start_on="human")
    chain = window | model
    history = [SystemMessage("Be brief."), *(m for n in range(4) for m in (HumanMessage(f"q{n}"), AIMessage(f"a{n}")))]
    message = chain.invoke([*history, HumanMessage("Name the capital of Italy.")])
    assert message.usage_metadata["input_tokens"] < 40
    assert message.content


@pytest.mark.filterwarnings("ignore::DeprecationWarning")
def test_a_users_own_runnable_with_message_history(model, tmp_path):
    store = SQLiteConversationStore(tmp_path / "history.sqlite3")
    prompt = ChatPromptTemplate.from_messages([MessagesPlaceholder("history"), ("human", "{input}")])
    chain = RunnableWithMessageHistory(
        prompt | model,
        lambda session_id: RagstoneChatMessageHistory(store, session_id),
        input_messages_key="input",
        history_messages_key="history",
    )
    config = {"configurable": {"session_id": "mine"}}
    first = chain.invoke({"input": "Name the capital of Italy."}, config)
    list(chain.stream({"input": "And of Italy?"}, config))
    messages = RagstoneChatMessageHistory(store, "mine").messages
    assert [type(message) for message in messages] == [HumanMessage, AIMessage, HumanMessage, AIMessage]
    assert [messages[0].content, messages[1].content] == ["Name the capital of Italy.", first.content]
    store.close()


# ── stopping ─────────────────────────────────────────────────────────────────────────────────────────────────────────


async def test_leaving_a_stream_gives_the_engines_blocks_back(model):
    stats = local_client("smollm2-135m-instruct").engine.stats
    await until(lambda: stats().num_running == 0)
    free = stats().num_free_blocks
    stream = model.stream("Count to a thousand.", max_tokens=500, ignore_eos=True)
    next(stream)
    stream.close()
    await until(lambda: stats().num_running == 0 and stats().num_free_blocks == free)
    task = asyncio.ensure_future(model.ainvoke("Count to a thousand.", max_tokens=500, ignore_eos=True))
    await until(lambda: stats().num_running == 1)
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    await until(lambda: stats().num_running == 0 and stats().num_free_blocks == free)
