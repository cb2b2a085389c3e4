"""`ragstone-rag` on /v1/chat/completions: answers from the documents, by OpenAI's protocol and without memory."""

import openai
import pytest

from app.errors import RequestError
from app.given_turns import split
from engine.errors import StepFailedError
from tests.app.scripted import ScriptedEngineClient
from tests.app.serving import RunningServer, scripted_app

MODEL = "ragstone-rag"
TTFT = [{"role": "user", "content": "What does TTFT measure?"}]


@pytest.fixture(scope="module")
def client(server):
    with openai.OpenAI(base_url=f"{server.url}/v1", api_key="none", max_retries=0, timeout=300) as client:
        yield client


def ask(server, messages=TTFT, **fields):
    return server.post("/v1/chat/completions", {"model": MODEL, "messages": messages, **fields})


def test_an_answer_comes_with_its_sources(client):
    reply = client.chat.completions.create(model=MODEL, messages=TTFT, temperature=0)
    message = reply.choices[0].message
    assert message.sources[0]["title"] == "Latency"
    assert "time to first token" in message.sources[0]["text"]
    assert (reply.object, reply.model) == ("chat.completion", MODEL)
    assert reply.choices[0].finish_reason in ("stop", "length")
    assert message.content


def test_a_stream_has_the_same_answer_and_the_sources_last(client):
    whole = client.chat.completions.create(model=MODEL, messages=TTFT, temperature=0)
    stream = client.chat.completions.create(
        model=MODEL, messages=TTFT, temperature=0, stream=True, stream_options={"include_usage": True}
    )
    *chunks, last, counts = list(stream)
    assert "".join(chunk.choices[0].delta.content or "" for chunk in chunks) == whole.choices[0].message.content
    assert chunks[0].choices[0].delta.role == "assistant"
    assert {chunk.choices[0].finish_reason for chunk in chunks} == {None}
    assert last.choices[0].finish_reason == whole.choices[0].finish_reason
    assert last.choices[0].delta.sources == whole.choices[0].message.sources
    # How many tokens the model made before its words were found to stray and it was stopped depends on the moment.
    assert (counts.choices, counts.usage.prompt_tokens) == ([], whole.usage.prompt_tokens)
    assert 0 < counts.usage.completion_tokens <= 12


def test_a_quotation_keeps_to_the_stop_strings_and_is_whole_whatever_cut_the_model_off(client):
    whole = client.chat.completions.create(model=MODEL, messages=TTFT, temperature=0, max_tokens=1)
    content = whole.choices[0].message.content
    assert whole.choices[0].finish_reason == "stop"
    stop = content.split()[3]
    before = content[: content.index(stop)]
    cut = client.chat.completions.create(model=MODEL, messages=TTFT, temperature=0, max_tokens=1, stop=[stop, "zzz"])
    assert cut.choices[0].message.content == before
    stream = client.chat.completions.create(
        model=MODEL, messages=TTFT, temperature=0, max_tokens=1, stop=stop, stream=True
    )
    chunks = list(stream)
    assert "".join(chunk.choices[0].delta.content or "" for chunk in chunks) == before
    assert chunks[-1].choices[0].delta.sources


def test_nothing_is_kept(server):
    def kept():
        return len(server.client.get("/api/v1/conversations").json()["conversations"])

    before = kept()
    assert ask(server).status_code == 200
    assert kept() == before


@pytest.mark.parametrize(
    ("field", "value"),
    [
        ("n", 2),
        ("logprobs", True),
        ("tools", [{"type": "function", "function": {"name": "f", "parameters": {"type": "object"}}}]),
        ("tool_choice", "required"),
        ("response_format", {"type": "json_object"}),
        ("guided_regex", "a+"),
        ("echo", True),
    ],
)
def test_what_it_cannot_honour_is_refused_by_name(server, field, value):
    for stream in (False, True):
        response = ask(server, stream=stream, **{field: value})
        error = response.json()["error"]
        assert (response.status_code, error["param"], error["code"]) == (400, field, "unsupported_parameter")


@pytest.mark.parametrize(
    "messages",
    [
        [{"role": "system", "content": "Be brief."}],
        [*TTFT, {"role": "assistant", "content": "Time."}],
        [{"role": "user", "content": "  "}],
        [*TTFT, {"role": "tool", "content": "4", "tool_call_id": "c"}, *TTFT],
        [{"role": "user", "content": "7 " * 9_000}],
    ],
)
def test_messages_that_end_in_no_question_or_fit_nowhere_are_400(server, messages):
    response = ask(server, messages)
    assert (response.status_code, response.json()["error"]["param"]) == (400, "messages"), response.text


def test_a_value_that_is_not_allowed_names_its_field(server):
    for field, value in (("temperature", 101), ("priority", "now"), ("top_p", 0)):
        response = ask(server, **{field: value})
        assert (response.status_code, response.json()["error"]["param"]) == (400, field)


def test_earlier_messages_instructions_and_options_reach_the_model(tmp_path):
    engine = ScriptedEngineClient(["It ", "is."])
    with RunningServer(scripted_app(tmp_path, engine, system_prompt="Answer.")) as server:
        server.wait_until_ready()
        messages = [
            {"role": "system", "content": "In French."},
            {"role": "user", "content": "What is TTFT?"},
            {"role": "assistant", "content": "A time."},
            {"role": "user", "content": "Of what?"},
        ]
        reply = ask(server, messages, temperature=0.5, max_tokens=7, stop="x", priority="batch").json()
        (request,) = engine.requests
        sent = [(message["role"], message["content"]) for message in request["messages"]]
        assert sent[:3] == [("system", "Answer.\n\nIn French."), ("user", "What is TTFT?"), ("assistant", "A time.")]
        assert sent[3][1].startswith("Passages:\n\n[1] TTFT\nTTFT is the time to the first token.")
        assert sent[3][1].endswith("Of what?")
        assert request["params"]["temperature"] == 0.5
        assert (request["params"]["max_tokens"], request["params"]["stop"]) == (7, ["x"])
        assert request["priority"] == "batch"
        assert reply["choices"][0]["message"]["content"] == "It is."
        assert reply["usage"]["completion_tokens"] == 2
        assert reply["usage"]["prompt_tokens"] == sum(len(content.split()) for _, content in sent)


def test_an_error_in_mid_stream_is_an_event_with_the_reason(tmp_path):
    engine = ScriptedEngineClient(["one", " two"], error=StepFailedError("out of memory"), error_after=1)
    with RunningServer(scripted_app(tmp_path, engine)) as server:
        server.wait_until_ready()
        client = openai.OpenAI(base_url=f"{server.url}/v1", api_key="none", max_retries=0)
        stream = client.chat.completions.create(model=MODEL, messages=TTFT, stream=True)
        assert [next(stream).choices[0].delta.content for _ in range(2)] == ["", "one"]
        with pytest.raises(openai.APIError, match="out of memory"):
            next(stream)


# ── messages as turns ────────────────────────────────────────────────────────────────────────────────────────────────


def said(*texts):
    roles = {"s": "system", "u": "user", "a": "assistant"}
    return [{"role": roles[text[0]], "content": text[1:]} for text in texts]


@pytest.mark.parametrize(
    ("messages", "instructions", "turns", "question"),
    [
        (said("uq"), "", [], "q"),
        (said("ss1", "uq1", "aa1", "ss2", "uq2"), "s1\n\ns2", [("q1", "a1")], "q2"),
        (said("uq1", "ss", "uq2"), "s", [], "q1\n\nq2"),
        (said("uq1", "aa1", "aa2", "uq2", "aa3", "uq3"), "", [("q1", "a1\n\na2"), ("q2", "a3")], "q3"),
    ],
)
def test_messages_are_read_as_turns(messages, instructions, turns, question):
    found = split(messages)
    assert (found[0], [(turn.question, turn.answer) for turn in found[1]], found[2]) == (instructions, turns, question)


def test_an_assistant_that_speaks_first_is_a_turn_without_a_question():
    _, (turn,), question = split(said("ahello", "uq"))
    assert ([message.content for message in turn.messages], question) == (["hello"], "q")


@pytest.mark.parametrize("messages", [[], said("ss"), said("uq", "aa"), said("u ")])
def test_without_a_question_at_the_end_there_is_nothing_to_answer(messages):
    with pytest.raises(RequestError, match="last message"):
        split(messages)
