"""OpenAI's protocol at /v1: through the openai package and as raw JSON, on the default model."""

import json
import re

import openai
import pytest

from app.routes.openai_schema import ChatCompletionRequest
from engine.errors import StepFailedError
from tests.app.scripted import ScriptedEngineClient
from tests.app.serving import RunningServer, events, scripted_app

MODEL = "smollm2-135m-instruct"
ITALY = [{"role": "user", "content": "Name the capital of Italy."}]


@pytest.fixture(scope="module")
def client(server):
    with openai.OpenAI(base_url=f"{server.url}/v1", api_key="none", max_retries=0, timeout=300) as client:
        yield client


def ask(server, messages=ITALY, **fields):
    return server.post("/v1/chat/completions", {"model": MODEL, "messages": messages, "max_tokens": 12, **fields})


# ── answers ──────────────────────────────────────────────────────────────────────────────────────────────────────────


def test_a_completion(client):
    reply = client.chat.completions.create(model=MODEL, messages=ITALY, temperature=0, max_tokens=12)
    assert reply.choices[0].message.content == "The capital of Italy is Rome."
    assert (reply.object, reply.model, reply.choices[0].finish_reason) == ("chat.completion", MODEL, "stop")
    assert (reply.usage.prompt_tokens, reply.usage.completion_tokens, reply.usage.total_tokens) == (36, 8, 44)


def test_a_stream_has_the_same_text_and_openais_shape(client):
    stream = client.chat.completions.create(
        model=MODEL, messages=ITALY, temperature=0, max_tokens=12, stream=True, stream_options={"include_usage": True}
    )
    chunks = list(stream)
    assert "".join(c.choices[0].delta.content or "" for c in chunks if c.choices) == "The capital of Italy is Rome."
    assert chunks[0].choices[0].delta.role == "assistant"
    assert [c.choices[0].finish_reason for c in chunks[:-2]] == [None] * (len(chunks) - 2)
    assert (chunks[-2].choices[0].finish_reason, chunks[-2].choices[0].delta.content) == ("stop", None)
    assert (chunks[-1].choices, chunks[-1].usage.total_tokens) == ([], 44)
    assert len({c.id for c in chunks}) == 1


def test_the_raw_stream_has_null_finish_reasons_and_ends_with_done(server):
    response = ask(server, stream=True, temperature=0)
    assert response.headers["content-type"].startswith("text/event-stream")
    assert (response.headers["cache-control"], response.headers["x-accel-buffering"]) == ("no-cache", "no")
    data = [text for _, text in events(response.text)]
    assert data[-1] == "[DONE]"
    first = json.loads(data[0])
    assert first["object"] == "chat.completion.chunk"
    assert first["choices"] == [
        {"index": 0, "delta": {"role": "assistant", "content": ""}, "logprobs": None, "finish_reason": None}
    ]
    assert "usage" not in first
    assert json.loads(data[-2])["choices"] == [{"index": 0, "delta": {}, "logprobs": None, "finish_reason": "stop"}]


def test_the_answer_stops_at_max_tokens_and_before_stop_texts(client):
    def create(**fields):
        return client.chat.completions.create(model=MODEL, messages=ITALY, temperature=0, **fields).choices[0]

    assert (create(max_tokens=3).message.content, create(max_tokens=3).finish_reason) == ("The capital of", "length")
    assert create(max_completion_tokens=3).message.content == "The capital of"
    choice = create(max_tokens=12, stop=[" is"])
    assert (choice.message.content, choice.finish_reason) == ("The capital of Italy", "stop")


def test_cached_tokens_are_reported(client):
    messages = [{"role": "system", "content": "You know all about cheese. " * 12}, *ITALY]
    counts = [
        client.chat.completions.create(
            model=MODEL, messages=messages, max_tokens=1
        ).usage.prompt_tokens_details.cached_tokens
        for _ in range(2)
    ]
    assert counts[0] < 64 <= counts[1]


def test_logprobs(client):
    reply = client.chat.completions.create(
        model=MODEL, messages=ITALY, temperature=0, max_tokens=3, logprobs=True, top_logprobs=2
    )
    content = reply.choices[0].logprobs.content
    assert [entry.token for entry in content] == ["The", " capital", " of"]
    assert bytes(content[1].bytes) == b" capital"
    assert all(len(entry.top_logprobs) == 2 and entry.top_logprobs[0].token == entry.token for entry in content)
    assert all(-5 < entry.logprob <= 0 for entry in content)


def test_several_answers_by_index(client):
    reply = client.chat.completions.create(model=MODEL, messages=ITALY, n=2, max_tokens=6, temperature=1, seed=3)
    assert [choice.index for choice in reply.choices] == [0, 1]
    assert reply.usage.prompt_tokens == 36
    parts = {0: "", 1: ""}
    for chunk in client.chat.completions.create(
        model=MODEL, messages=ITALY, n=2, max_tokens=6, temperature=1, seed=3, stream=True
    ):
        parts[chunk.choices[0].index] += chunk.choices[0].delta.content or ""
    assert [parts[0], parts[1]] == [choice.message.content for choice in reply.choices]


def test_the_same_seed_gives_the_same_answer(client):
    answers = {
        client.chat.completions.create(model=MODEL, messages=ITALY, temperature=1.5, seed=11, max_tokens=8)
        .choices[0]
        .message.content
        for _ in range(2)
    }
    assert len(answers) == 1


def test_parts_of_text_neighbouring_roles_and_the_developer_role_are_taken(server):
    messages = [
        {"role": "developer", "content": "Be brief."},
        {"role": "user", "content": [{"type": "text", "text": "What is the capital "}, {"type": "text", "text": "of"}]},
        {"role": "user", "content": "France?", "name": "ada"},
        {"role": "assistant", "content": None, "tool_calls": []},
        {"role": "user", "content": "Well?"},
    ]
    assert ask(server, messages, max_tokens=2).status_code == 200


def test_fields_that_change_nothing_and_null_are_taken(server):
    fields = {
        "user": "u", "metadata": {"a": "b"}, "store": False, "service_tier": "auto", "seed": None, "stop": None,
        "tools": [], "tool_choice": "none", "response_format": {"type": "text"}, "best_of": 1,
        "logit_bias": None, "n": 1,
    }  # fmt: skip
    assert ask(server, max_tokens=1, **fields).status_code == 200


def test_the_models_are_listed(client):
    chat, rag, embedding = client.models.list().data
    assert (chat.id, chat.object, chat.owned_by, chat.max_model_len) == (MODEL, "model", "ragstone", 8192)
    assert (rag.id, rag.max_model_len) == ("ragstone-rag", 8192)
    assert (embedding.id, embedding.max_model_len) == ("all-minilm-l6-v2", 254)
    assert (chat.task, rag.task, embedding.task) == ("generate", "answer", "embed")
    assert client.models.retrieve(MODEL).id == MODEL
    with pytest.raises(openai.NotFoundError):
        client.models.retrieve("gpt-4")


# ── what is refused ──────────────────────────────────────────────────────────────────────────────────────────────────


@pytest.mark.parametrize(
    ("field", "value"),
    [
        ("best_of", 2),
        ("use_beam_search", True),
        ("functions", [{"name": "f"}]),
        ("guided_grammar", "start: x"),
        ("modalities", ["text", "audio"]),
        ("audio", {"voice": "alloy"}),
        ("reasoning_effort", "high"),
        ("temprature", 1),
        ("prompt_logprobs", 1),
    ],
)
@pytest.mark.parametrize("stream", [False, True])
def test_a_field_that_is_not_honoured_is_refused_by_name(server, field, value, stream):
    response = ask(server, stream=stream, **{field: value})
    error = response.json()["error"]
    assert (response.status_code, error["param"], error["code"]) == (400, field, "unsupported_parameter")
    assert error["type"] == "invalid_request_error"
    assert field in error["message"]


def test_a_mistyped_field_is_told_the_one_that_it_resembles(server):
    assert ask(server, tempature=1).json()["error"]["message"] == (
        "tempature is not supported; did you mean temperature?"
    )
    body = {"model": "all-minilm-l6-v2", "input": "x", "encodng_format": "float"}
    error = server.post("/v1/embeddings", body).json()["error"]
    assert error["message"] == "encodng_format is not supported; did you mean encoding_format?"


@pytest.mark.parametrize(
    ("field", "value"),
    [
        ("temperature", -1),
        ("temperature", 1000),
        ("top_p", 0),
        ("top_p", 1.5),
        ("min_p", 2),
        ("presence_penalty", 3),
        ("max_tokens", 0),
        ("max_tokens", -5),
        ("n", 0),
        ("stop", [""]),
        ("logprobs", "many"),
        ("top_logprobs", 3),
        ("stream_options", {"include_usage": True}),
        ("logit_bias", {"x": 1}),
        ("logit_bias", {"1": 1000}),
        ("seed", 1.5),
        ("stop", 5),
        ("stop", [5]),
        ("response_format", {"type": "json_schema", "json_schema": {"name": "x", "schema": "{}"}}),
    ],
)
def test_a_value_that_is_not_allowed_is_400_and_names_the_field(server, field, value):
    response = ask(server, **{field: value})
    assert response.status_code == 400
    assert re.split(r"[.\[]", response.json()["error"]["param"])[0] == field


def test_a_place_in_the_body_is_named_as_clients_write_it(server):
    messages = [{"role": "user", "content": "hi"}, {"role": "user", "content": 7}]
    assert ask(server, messages=messages).json()["error"]["param"] == "messages[1].content"


def test_a_field_with_two_names_is_refused_under_the_one_that_was_given(server):
    for fields, said in (
        ({"logprobs": True, "top_logprobs": 99}, "top_logprobs: must be"),
        ({"max_tokens": None, "max_completion_tokens": -1}, "max_completion_tokens: must be"),
        ({"guided_regex": "("}, "guided_regex: "),
        ({"max_tokens": 5, "max_completion_tokens": 5}, "max_completion_tokens: is the new name of max_tokens"),
    ):
        error = ask(server, **fields).json()["error"]
        assert (error["param"], error["message"].startswith(said)) == (said.split(":")[0], True), error


def test_a_long_prompt_of_long_words_is_answered(client):
    text = "internationalization " * 3_000
    assert len(text) > 4 * 8_192
    reply = client.chat.completions.create(model=MODEL, messages=[{"role": "user", "content": text}], max_tokens=1)
    assert reply.usage.prompt_tokens < 8_192


@pytest.mark.parametrize(
    "body",
    [
        {"messages": ITALY},
        {"model": MODEL},
        {"model": MODEL, "messages": []},
        {"model": MODEL, "messages": "hi"},
        {"model": MODEL, "messages": [{"role": "user"}]},
        {"model": MODEL, "messages": [{"role": "wizard", "content": "hi"}]},
        {"model": MODEL, "messages": [{"role": "user", "content": 7}]},
        {"model": MODEL, "messages": [{"role": "user", "content": [{"type": "image_url", "image_url": {"url": "x"}}]}]},
        {"model": MODEL, "messages": [{"role": "user", "content": [{"no": "type"}]}]},
    ],
)
def test_a_request_of_the_wrong_shape_is_400_in_openais_form(server, body):
    response = server.post("/v1/chat/completions", body)
    assert response.status_code == 400
    assert sorted(response.json()["error"]) == ["code", "message", "param", "type"]


@pytest.mark.parametrize(
    "content", [b"{", b"caf\xe9", b'{"model": "m", "messages": [{"role": "user", "content": "\\ud83d"}]}', b"[]", b""]
)
def test_a_malformed_body_is_400(server, content):
    response = server.client.post("/v1/chat/completions", content=content, headers={"content-type": "application/json"})
    assert response.status_code == 400
    error = response.json()["error"]
    assert error["message"]
    assert error["param"] == ("messages" if b"messages" in content else "body")


def test_an_unknown_model_is_404(client):
    with pytest.raises(openai.NotFoundError, match="gpt-4") as caught:
        client.chat.completions.create(model="gpt-4", messages=ITALY)
    assert (caught.value.code, caught.value.param) == ("model_not_found", "model")


@pytest.mark.parametrize("text", ["a" * 150_000, "word " * 30_000, " " * 150_000, "é" * 150_000])
@pytest.mark.parametrize("stream", [False, True])
def test_a_text_beyond_all_measure_is_400_context_length_exceeded_with_the_limit(client, text, stream):
    with pytest.raises(openai.BadRequestError) as caught:
        client.chat.completions.create(model=MODEL, messages=[{"role": "user", "content": text}], stream=stream)
    assert caught.value.code == "context_length_exceeded"
    assert "8,192" in caught.value.message


def test_a_prompt_of_too_many_tokens_is_refused_with_the_numbers(client):
    with pytest.raises(
        openai.BadRequestError, match=r"prompt is 1\d,\d{3} tokens; this model takes 8,192 in all"
    ) as caught:
        client.chat.completions.create(model=MODEL, messages=[{"role": "user", "content": "7 " * 8_000}], max_tokens=5)
    assert caught.value.code == "context_length_exceeded"


def test_braces_and_control_tokens_are_plain_text(client):
    messages = [{"role": "user", "content": "{a} {{b}} <|im_end|> <script>"}]
    assert (
        client.chat.completions.create(model=MODEL, messages=messages, max_tokens=2).choices[0].finish_reason
        == "length"
    )


# ── faults ───────────────────────────────────────────────────────────────────────────────────────────────────────────


def test_an_error_in_mid_stream_is_an_event_with_the_reason(tmp_path):
    engine = ScriptedEngineClient(["one", " two"], error=StepFailedError("out of memory"), error_after=1)
    with RunningServer(scripted_app(tmp_path, engine)) as server:
        server.wait_until_ready()
        client = openai.OpenAI(base_url=f"{server.url}/v1", api_key="none", max_retries=0)
        stream = client.chat.completions.create(model="scripted", messages=ITALY, stream=True)
        assert [next(stream).choices[0].delta.content for _ in range(2)] == ["", "one"]
        with pytest.raises(openai.APIError, match="out of memory"):
            next(stream)
        with pytest.raises(openai.InternalServerError, match="out of memory"):
            client.chat.completions.create(model="scripted", messages=ITALY)


def test_sampling_fields_reach_the_engine_under_its_names():
    body = ChatCompletionRequest.model_validate(
        {
            "model": "m",
            "messages": ITALY,
            "max_completion_tokens": 5,
            "max_tokens": 9,
            "stop": "x",
            "logit_bias": {"7": 1},
        }
        | {"logprobs": True, "top_logprobs": 4, "top_k": 3, "temperature": 0}
    )
    assert body.sampling() == {
        "max_tokens": 5,
        "stop": "x",
        "logit_bias": {7: 1.0},
        "logprobs": 4,
        "top_k": 3,
        "temperature": 0.0,
    }


def test_without_max_tokens_the_servers_limit_holds(client):
    reply = client.chat.completions.create(model=MODEL, messages=ITALY, extra_body={"ignore_eos": True})
    assert (reply.choices[0].finish_reason, reply.usage.completion_tokens) == ("length", 12)
