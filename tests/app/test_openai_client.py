"""Models of other servers: spoken to as OpenAI's clients do, and their failures told as the engine's are."""

import asyncio
import threading
from collections.abc import Iterator
from typing import Any

import pytest
from pydantic import BaseModel

from app.chat_model import ChatRagstone
from app.engines.backend_errors import (
    BackendBusyError,
    BackendError,
    BackendKeyError,
    BackendModelError,
    BackendTimeoutError,
    BackendUnreachableError,
)
from app.engines.client import RequestTimes
from app.engines.openai_client import OpenAIClient
from app.engines.request import EngineRequest
from engine.errors import EngineError, InvalidParameterError, UnsupportedParameterError
from engine.outputs import OutputDelta
from tests.app.openai_server import KEY, OpenAIServer
from tests.app.scripted import until
from tests.app.serving import wait_until

QUESTION = [{"role": "user", "content": "What is the capital of France?"}]


@pytest.fixture(scope="module")
def there() -> Iterator[OpenAIServer]:
    with OpenAIServer(key=KEY) as server:
        yield server


def client_of(server: OpenAIServer, model: str = "says", **options: Any) -> OpenAIClient:
    return OpenAIClient(server.url, model=model, api_key=KEY, key_env="THEIR_KEY", **{"silence_s": 10.0, **options})


def asked(**more: Any) -> EngineRequest:
    return EngineRequest(**{"messages": QUESTION, **more})


def let_go(server: OpenAIServer) -> None:
    """Ends the answers that hang: a server that says nothing does not see that its client is gone."""
    server.released.set()
    wait_until(lambda: server.num_open == 0)
    server.released.clear()


async def read(client: OpenAIClient, request: EngineRequest) -> list[OutputDelta]:
    return [delta async for delta in client.stream(request)]


@pytest.mark.parametrize("given", [{}, {"messages": (), "prompt": "The capital"}])
async def test_answer_streams_with_its_usage_and_ends_once(there: OpenAIServer, given: dict[str, Any]) -> None:
    ended: list[RequestTimes] = []
    deltas = await read(client_of(there, on_end=ended.append), asked(**given))
    assert [delta.text for delta in deltas] == ["Paris ", "is ", "the ", "capital.", ""]
    assert [delta.finish_reason for delta in deltas] == [None] * 4 + ["stop"]
    assert (deltas[-1].num_prompt_tokens, deltas[-1].num_output_tokens) == (11, 5)
    (times,) = ended
    assert (times.num_prompt_tokens, times.num_output_tokens, times.finish_reason) == (11, 5, "stop")
    assert times.first_token is not None


def test_callers_without_a_loop_read_the_same(there: OpenAIServer) -> None:
    client = client_of(there)
    assert "".join(delta.text for delta in client.stream_sync(asked())) == "Paris is the capital."
    model = ChatRagstone(model="says", client=client, temperature=0, top_k=0, repetition_penalty=1.0, stop=["x"])
    reply = model.invoke("What is the capital of France?", logprobs=True)
    assert (reply.text, reply.usage_metadata["total_tokens"]) == ("Paris is the capital.", 16)
    assert reply.response_metadata["logprobs"]["content"][0]["token"] == "Paris "


def test_only_openais_fields_are_sent(there: OpenAIServer) -> None:
    class City(BaseModel):
        name: str

    model = ChatRagstone(model="says", client=client_of(there), max_tokens=9, top_k=0, frequency_penalty=0.3, seed=4)
    model.with_structured_output(City, include_raw=True).invoke("Name a city.")
    sent = there.requests[-1]
    assert sent["response_format"]["json_schema"]["schema"]["properties"]["name"]["type"] == "string"
    rest = {name: value for name, value in sent.items() if name not in ("messages", "response_format")}
    assert rest == {
        "model": "says", "stream": True, "stream_options": {"include_usage": True}, "max_tokens": 9, "seed": 4,
        "frequency_penalty": 0.3,
    }  # fmt: skip


def test_tool_calls_come_as_the_engines_do(there: OpenAIServer) -> None:
    add = {"type": "function", "function": {"name": "add", "parameters": {"type": "object", "properties": {}}}}
    reply = ChatRagstone(model="calls", client=client_of(there, "calls")).bind_tools([add]).invoke("1?")
    (call,) = reply.tool_calls
    assert (call["name"], call["args"], call["id"]) == ("add", {"a": 1}, "call-1")
    assert there.requests[-1]["tools"] == [add]


async def test_what_the_server_would_not_know_is_refused_by_name(there: OpenAIServer) -> None:
    with pytest.raises(UnsupportedParameterError, match=r"top_k is not in OpenAI's API.*extra_fields"):
        await read(client_of(there), asked(params={"top_k": 40}))
    with pytest.raises(InvalidParameterError, match="Unrecognized request argument: top_k"):
        await read(client_of(there, extra_fields=["top_k"]), asked(params={"top_k": 40}))
    with pytest.raises(UnsupportedParameterError, match="known to its server only"):
        client_of(there).encode("text")


@pytest.mark.parametrize(
    ("model", "kind", "message"),
    [
        ("busy", BackendBusyError, "is busy .HTTP 429: Rate limit reached.: try again in 7 s"),
        ("fails", BackendError, "failed .HTTP 500: CUDA error."),
        ("absent", BackendModelError, "does not have the model 'absent'"),
        ("breaks-at-once", BackendUnreachableError, "broke off"),
        ("breaks", BackendUnreachableError, "broke off in the middle"),
        ("tells-late", BackendError, "broke off the answer: the worker died"),
    ],
)
async def test_failures_are_typed_and_say_what_to_do(
    there: OpenAIServer, model: str, kind: type[EngineError], message: str
) -> None:
    with pytest.raises(kind, match=message):
        await read(client_of(there, model), asked())
    with pytest.raises(kind, match=message):
        list(client_of(there, model).stream_sync(asked()))


async def test_silence_ends_in_a_timeout(there: OpenAIServer) -> None:
    with pytest.raises(BackendTimeoutError, match=r"said nothing for 0.3 s.*timeout_s"):
        await read(client_of(there, "hangs", silence_s=0.3), asked())
    let_go(there)


async def test_wrong_key_names_its_variable_and_never_the_key(there: OpenAIServer) -> None:
    client = OpenAIClient(there.url, model="says", api_key="wrong-key", key_env="THEIR_KEY")
    with pytest.raises(BackendKeyError, match=r"HTTP 401: no such key.*environment variable THEIR_KEY") as raised:
        await read(client, asked())
    assert "wrong-key" not in str(raised.value)
    assert "THEIR_KEY" in client.check_health()


async def test_nothing_listening_is_told() -> None:
    client = OpenAIClient("http://127.0.0.1:9", model="m")
    assert client.url == "http://127.0.0.1:9/v1"
    with pytest.raises(BackendUnreachableError, match=r"http://127.0.0.1:9/v1 does not answer"):
        await read(client, asked())


async def test_leaving_the_stream_closes_the_connection(there: OpenAIServer) -> None:
    stream = client_of(there, "never-ends").stream(asked())
    await anext(stream)
    assert there.num_open == 1
    await stream.aclose()
    await until(lambda: there.num_open == 0)


async def test_abort_ends_the_answer_from_any_thread(there: OpenAIServer) -> None:
    client = client_of(there, "never-ends")
    request = asked()
    reasons = []
    async for delta in client.stream(request):
        if not reasons:
            threading.Thread(target=client.abort, args=(request.request_id,)).start()
        reasons.append(delta.finish_reason)
    assert reasons[-1] == "abort"
    await until(lambda: there.num_open == 0)


def test_time_limit_of_a_call_holds_before_the_first_word_too(there: OpenAIServer) -> None:
    for model in ("never-ends", "hangs"):
        chat = ChatRagstone(model=model, client=client_of(there, model), timeout=0.3)
        with pytest.raises(TimeoutError, match=r"within 0\.3 s"):
            chat.invoke("hi")
        with pytest.raises(TimeoutError, match=r"within 0\.3 s"):
            asyncio.run(chat.ainvoke("hi"))
    let_go(there)


def test_size_and_health_come_from_the_list_of_models(there: OpenAIServer) -> None:
    client = client_of(there)
    assert (client.max_model_len, client_of(there, max_model_len=99).max_model_len) == (4096, 99)
    assert client.check_health() == "ready"
    assert "does not have the model 'absent'; it has says, busy" in client_of(there, "absent").check_health()
    assert [client.count_tokens(text) for text in ("", "four", "東京")] == [0, 2, 2]
