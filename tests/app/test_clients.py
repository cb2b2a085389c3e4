"""Clients that people have already, unchanged but for the address: LangChain's for OpenAI and NVIDIA, curl, and wrk."""

import json
import re
import shutil
import subprocess

import pytest
from langchain_core.messages import HumanMessage, SystemMessage
from langchain_core.tools import tool
from langchain_nvidia_ai_endpoints import ChatNVIDIA, NVIDIAEmbeddings
from langchain_openai import ChatOpenAI, OpenAI, OpenAIEmbeddings
from pydantic import BaseModel

from tests.app.scripted import ScriptedEngineClient
from tests.app.serving import RunningServer, events, scripted_app

MODEL = "smollm2-135m-instruct"
EMBEDDING = "all-minilm-l6-v2"
QUESTION = "Name the capital of Italy."
ANSWER = "The capital of Italy is Rome."
TEXTS = ["A derailleur moves the chain.", "Rome is in Italy."]


class City(BaseModel):
    """A city."""

    name: str


@tool
def weather(town: str) -> str:
    """The weather of a town."""
    return f"sunny in {town}"


@pytest.fixture(scope="module")
def chat_openai(server):
    return ChatOpenAI(model=MODEL, base_url=f"{server.url}/v1", api_key="none", temperature=0, max_retries=0)


@pytest.fixture(scope="module")
def chat_nvidia(server):
    return ChatNVIDIA(model=MODEL, base_url=f"{server.url}/v1", temperature=0, usage_telemetry_enabled=False)


# ── langchain-openai ─────────────────────────────────────────────────────────────────────────────────────────────────


async def test_chat_openai_answers_whole_and_streamed_sync_and_async(chat_openai):
    reply = chat_openai.invoke(QUESTION)
    assert (reply.content, reply.response_metadata["finish_reason"]) == (ANSWER, "stop")
    assert (reply.usage_metadata["input_tokens"], reply.usage_metadata["output_tokens"]) == (36, 8)
    assert "".join(chunk.content for chunk in chat_openai.stream(QUESTION)) == ANSWER
    assert (await chat_openai.ainvoke(QUESTION)).content == ANSWER
    assert "".join([chunk.content async for chunk in chat_openai.astream(QUESTION)]) == ANSWER
    counts = [chunk.usage_metadata for chunk in chat_openai.stream(QUESTION, stream_usage=True)]
    assert [entry["total_tokens"] for entry in counts if entry] == [44]


def test_chat_openai_uses_tools_structure_stop_and_logprobs(chat_openai):
    call = chat_openai.bind_tools([weather], tool_choice="weather", max_tokens=60).invoke("Is it sunny in Rome?")
    assert [entry["name"] for entry in call.tool_calls] == ["weather"]
    assert isinstance(call.tool_calls[0]["args"]["town"], str)
    longer = chat_openai.model_copy(update={"max_tokens": 60})
    assert isinstance(longer.with_structured_output(City).invoke(QUESTION), City)
    assert chat_openai.invoke(QUESTION, stop=[" is"]).content == "The capital of Italy"
    entries = chat_openai.bind(logprobs=True, max_tokens=3).invoke(QUESTION).response_metadata["logprobs"]["content"]
    assert [entry["token"] for entry in entries] == ["The", " capital", " of"]


def test_chat_openai_answers_from_the_documents(server):
    chat = ChatOpenAI(model="ragstone-rag", base_url=f"{server.url}/v1", api_key="none", temperature=0)
    messages = [SystemMessage("Be brief."), HumanMessage("What does TTFT measure?")]
    assert chat.invoke(messages).content == "".join(chunk.content for chunk in chat.stream(messages)) != ""


def test_openai_completions_through_langchain(server):
    model = OpenAI(model=MODEL, base_url=f"{server.url}/v1", api_key="none", temperature=0, max_tokens=1)
    assert model.invoke("The capital of Italy is") == " Rome"
    assert model.batch(["The capital of Italy is", "The capital of France is"]) == [" Rome", " Paris"]
    assert "".join(model.stream("The capital of Italy is")) == " Rome"


async def test_openai_embeddings_give_the_servers_vectors(server):
    embeddings = OpenAIEmbeddings(
        model=EMBEDDING, base_url=f"{server.url}/v1", api_key="none", check_embedding_ctx_length=False
    )
    expected = server.services.knowledge_base.embedder.embed_passages(TEXTS)
    for vectors in (embeddings.embed_documents(TEXTS), await embeddings.aembed_documents(TEXTS)):
        assert [vector == pytest.approx(list(row), abs=1e-5) for vector, row in zip(vectors, expected, strict=True)]
    assert embeddings.embed_query(TEXTS[0]) == pytest.approx(list(expected[0]), abs=1e-5)


# ── langchain-nvidia-ai-endpoints ────────────────────────────────────────────────────────────────────────────────────


async def test_chat_nvidia_answers_whole_and_streamed_sync_and_async(chat_nvidia):
    reply = chat_nvidia.invoke(QUESTION)
    assert (reply.content, reply.response_metadata["finish_reason"]) == (ANSWER, "stop")
    assert reply.usage_metadata["total_tokens"] == 44
    assert "".join(chunk.content for chunk in chat_nvidia.stream(QUESTION)) == ANSWER
    assert (await chat_nvidia.ainvoke(QUESTION)).content == ANSWER
    assert "".join([chunk.content async for chunk in chat_nvidia.astream(QUESTION)]) == ANSWER


def test_chat_nvidia_knows_the_models_and_uses_tools(chat_nvidia):
    assert [model.id for model in chat_nvidia.available_models][:2] == [MODEL, "ragstone-rag"]
    call = chat_nvidia.bind_tools([weather], tool_choice="weather").bind(max_tokens=60).invoke("Is it sunny in Rome?")
    assert [entry["name"] for entry in call.tool_calls] == ["weather"]


async def test_nvidia_embeddings_give_the_servers_vectors(server):
    embeddings = NVIDIAEmbeddings(model=EMBEDDING, base_url=f"{server.url}/v1", usage_telemetry_enabled=False)
    embedder = server.services.knowledge_base.embedder
    expected = embedder.embed_passages(TEXTS)
    for vectors in (embeddings.embed_documents(TEXTS), await embeddings.aembed_documents(TEXTS)):
        for vector, row in zip(vectors, expected, strict=True):
            assert vector == pytest.approx(list(row), abs=1e-5)
    assert embeddings.embed_query(TEXTS[0]) == pytest.approx(list(embedder.embed_query(TEXTS[0])), abs=1e-5)


# ── curl ─────────────────────────────────────────────────────────────────────────────────────────────────────────────


@pytest.mark.skipif(shutil.which("curl") is None, reason="curl is not installed")
def test_curl_gets_answers_streams_and_errors(server):
    def curl(path, body, *options):
        command = ["curl", "-sS", "--max-time", "60", f"{server.url}{path}", "-d", json.dumps(body), *options]
        command += ["-H", "Content-Type: application/json"]
        return subprocess.run(command, capture_output=True, text=True, check=True).stdout

    body = {"model": MODEL, "messages": [{"role": "user", "content": QUESTION}], "temperature": 0}
    assert json.loads(curl("/v1/chat/completions", body))["choices"][0]["message"]["content"] == ANSWER
    pieces = [data for _, data in events(curl("/v1/chat/completions", {**body, "stream": True}, "-N"))]
    assert pieces[-1] == "[DONE]"
    assert "".join(json.loads(piece)["choices"][0]["delta"].get("content", "") for piece in pieces[:-1]) == ANSWER
    failed = curl("/v1/chat/completions", {**body, "model": "gpt-4"}, "-w", "%{http_code}")
    assert failed.endswith("404")
    assert len(json.loads(curl("/v1/embeddings", {"model": EMBEDDING, "input": "a"}))["data"][0]["embedding"]) == 384


LOAD = """
wrk.method = "POST"
wrk.headers["Content-Type"] = "application/json"
wrk.body = '{"model": "scripted", "stream": true, "messages": [{"role": "user", "content": "hi"}]}'
"""


@pytest.mark.skipif(shutil.which("wrk") is None, reason="wrk is not installed")
def test_wrk_loads_streams_from_many_connections_without_an_error(tmp_path):
    script = tmp_path / "load.lua"
    script.write_text(LOAD)
    with RunningServer(scripted_app(tmp_path / "data", ScriptedEngineClient())) as server:
        server.wait_until_ready()
        command = ["wrk", "-t1", "-c32", "-d2s", "-s", str(script), f"{server.url}/v1/chat/completions"]
        told = subprocess.run(command, capture_output=True, text=True, timeout=60, check=True).stdout
    assert int(re.search(r"(\d+) requests in", told)[1]) > 0
    assert "Non-2xx" not in told
    assert "Socket errors" not in told
