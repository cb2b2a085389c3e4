"""/v1/completions: text continued by the default model, through the openai package and as raw JSON."""

import asyncio
import json

import openai
import pytest

from app.routes.completions import merged
from tests.app.serving import events

MODEL = "smollm2-135m-instruct"
PROMPT = "The capital of Italy is"
GREEDY = {"model": MODEL, "temperature": 0}


@pytest.fixture(scope="module")
def client(server):
    with openai.OpenAI(base_url=f"{server.url}/v1", api_key="none", max_retries=0, timeout=300) as client:
        yield client


def ask(server, prompt=PROMPT, **fields):
    return server.post("/v1/completions", {"model": MODEL, "prompt": prompt, "temperature": 0, **fields})


def test_a_text_is_continued_by_sixteen_tokens_unless_told_otherwise(client):
    reply = client.completions.create(prompt=PROMPT, **GREEDY, extra_body={"ignore_eos": True})
    assert reply.choices[0].text.startswith(" Rome")
    assert (reply.object, reply.model, reply.choices[0].finish_reason) == ("text_completion", MODEL, "length")
    assert (reply.usage.prompt_tokens, reply.usage.completion_tokens, reply.usage.total_tokens) == (5, 16, 21)
    assert client.completions.create(prompt=PROMPT, max_tokens=1, **GREEDY).choices[0].text == " Rome"


def test_token_ids_are_taken_as_the_text_that_they_spell(client, server):
    ids = server.post("/tokenize", {"prompt": PROMPT}).json()["tokens"]
    by_text, by_ids = (
        client.completions.create(prompt=prompt, max_tokens=6, **GREEDY).choices[0].text for prompt in (PROMPT, ids)
    )
    assert by_text == by_ids


def test_a_list_of_prompts_gives_n_choices_for_each_in_order(client, server):
    prompts = [PROMPT, "The capital of France is", "1, 2, 3, 4,"]
    alone = [client.completions.create(prompt=prompt, max_tokens=3, **GREEDY) for prompt in prompts]
    together = client.completions.create(prompt=prompts, max_tokens=3, n=2, **GREEDY)
    assert [choice.index for choice in together.choices] == [0, 1, 2, 3, 4, 5]
    texts = [reply.choices[0].text for reply in alone]
    assert [choice.text for choice in together.choices] == [text for text in texts for _ in range(2)]
    assert together.usage.prompt_tokens == sum(reply.usage.prompt_tokens for reply in alone)
    assert together.usage.completion_tokens == 18
    ids = [server.post("/tokenize", {"prompt": prompt}).json()["tokens"] for prompt in prompts]
    assert [choice.text for choice in client.completions.create(prompt=ids, max_tokens=3, **GREEDY).choices] == texts


def test_a_stream_has_the_same_texts_and_ends_with_the_usage(client):
    prompts = [PROMPT, "1, 2, 3, 4,"]
    whole = client.completions.create(prompt=prompts, max_tokens=5, **GREEDY)
    stream = client.completions.create(
        prompt=prompts, max_tokens=5, stream=True, stream_options={"include_usage": True}, **GREEDY
    )
    *chunks, last = list(stream)
    texts = {0: "", 1: ""}
    for chunk in chunks:
        (choice,) = chunk.choices
        texts[choice.index] += choice.text
    assert [texts[0], texts[1]] == [choice.text for choice in whole.choices]
    reasons = [chunk.choices[0].finish_reason for chunk in chunks]
    assert sorted(reason for reason in reasons if reason) == ["length", "length"]
    assert (last.choices, last.usage.total_tokens) == ([], whole.usage.total_tokens)
    assert len({chunk.id for chunk in (*chunks, last)}) == 1


def test_the_raw_stream_has_openais_shape(server):
    data = [text for _, text in events(ask(server, stream=True, max_tokens=2).text)]
    assert data[-1] == "[DONE]"
    first = json.loads(data[0])
    assert sorted(first) == ["choices", "created", "id", "model", "object"]
    assert first["choices"] == [{"index": 0, "text": " Rome", "logprobs": None, "finish_reason": None}]


def test_logprobs_have_the_older_shape(client):
    for stream in (False, True):
        reply = client.completions.create(prompt=PROMPT, max_tokens=3, logprobs=2, stream=stream, **GREEDY)
        parts = [chunk.choices[0] for chunk in (reply if stream else [reply])]
        text = "".join(part.text for part in parts)
        tokens = [token for part in parts for token in part.logprobs.tokens]
        offsets = [offset for part in parts for offset in part.logprobs.text_offset]
        assert "".join(tokens) == text
        assert [text[offset:].startswith(token) for offset, token in zip(offsets, tokens, strict=True)] == [True] * 3
        for part in parts:
            for token, value, top in zip(
                part.logprobs.tokens, part.logprobs.token_logprobs, part.logprobs.top_logprobs, strict=True
            ):
                assert len(top) == 2
                assert top[token] == value == max(top.values())


def test_stop_and_seed(client):
    choice = client.completions.create(prompt="1, 2, 3, 4,", stop=[" 6"], **GREEDY).choices[0]
    assert (choice.text, choice.finish_reason) == (" 5,", "stop")
    drawn = {
        client.completions.create(model=MODEL, prompt=PROMPT, temperature=1.5, seed=7, max_tokens=6).choices[0].text
        for _ in range(2)
    }
    assert len(drawn) == 1


def test_what_spells_a_control_token_stays_text(server):
    one = server.post("/tokenize", {"prompt": "<|im_end|>"}).json()
    assert one["count"] > 1
    assert ask(server, "<|im_end|>", max_tokens=1).json()["usage"]["prompt_tokens"] == one["count"]


@pytest.mark.parametrize(
    ("field", "value"), [("echo", True), ("suffix", "."), ("best_of", 3), ("prompt_embeds", "x"), ("messages", [])]
)
def test_a_field_that_is_not_honoured_is_refused_by_name(server, field, value):
    for stream in (False, True):
        response = ask(server, stream=stream, **{field: value})
        error = response.json()["error"]
        assert (response.status_code, error["param"], error["code"]) == (400, field, "unsupported_parameter")


@pytest.mark.parametrize(
    ("field", "value"),
    [
        ("prompt", ""),
        ("prompt", []),
        ("prompt", [[]]),
        ("prompt", ["a", ""]),
        ("prompt", ["a", 5]),
        ("prompt", None),
        ("prompt", [1, True]),
        ("prompt", [10_000_000]),
        ("prompt", ["a"] * 2049),
        ("prompt", "7 " * 9_000),
        ("prompt", "7" * 200_000),
        ("logprobs", 99),
        ("logprobs", True),
        ("max_tokens", 0),
        ("stream_options", {"include_usage": True}),
        ("priority", "urgent"),
        ("priority", 1),
    ],
)
def test_a_value_that_is_not_allowed_is_400_and_names_the_field(server, field, value):
    response = ask(server, **{field: value})
    error = response.json()["error"]
    assert (response.status_code, error["type"]) == (400, "invalid_request_error"), error
    assert error["param"].split("[")[0] == field, error


def test_the_embedding_model_completes_nothing(client):
    with pytest.raises(openai.NotFoundError, match=MODEL):
        client.completions.create(model="all-minilm-l6-v2", prompt=PROMPT)


def test_priority_comes_by_field_or_by_header(server):
    for path, body in (
        ("/v1/completions", {"model": MODEL, "prompt": PROMPT, "max_tokens": 1}),
        ("/v1/chat/completions", {"model": MODEL, "messages": [{"role": "user", "content": "hi"}], "max_tokens": 1}),
    ):
        assert server.post(path, {**body, "priority": "background"}).status_code == 200
        assert server.post(path, body, headers={"X-Priority": "interactive"}).status_code == 200
        error = server.post(path, body, headers={"X-Priority": "now"}).json()["error"]
        assert (error["param"], '"interactive", "normal", "batch", "background"' in error["message"]) == (
            "priority",
            True,
        )


# ── several streams as one ───────────────────────────────────────────────────────────────────────────────────────────


class Stream:
    """Counts to `end`, and knows whether it was closed."""

    def __init__(self, end, error=None):
        self.end, self.error, self.opened, self.closed = end, error, False, False

    async def items(self):
        self.opened = True
        try:
            for number in range(self.end):
                await asyncio.sleep(0)
                yield number
            if self.error is not None:
                raise self.error
        finally:
            self.closed = True


async def test_streams_are_merged_in_order_of_each_and_few_at_a_time():
    streams = [Stream(3) for _ in range(5)]
    came = []
    async for number, item in merged([stream.items() for stream in streams], 2):
        came.append((number, item))
        assert sum(stream.opened and not stream.closed for stream in streams) <= 2
    assert sorted(came) == [(number, item) for number in range(5) for item in range(3)]
    assert all([item for n, item in came if n == number] == [0, 1, 2] for number in range(5))


async def test_an_error_in_one_stream_and_a_reader_that_leaves_close_all():
    streams = [Stream(50), Stream(2, ValueError("broken")), Stream(50)]
    with pytest.raises(ValueError, match="broken"):
        _ = [item async for item in merged([stream.items() for stream in streams], 3)]
    assert [stream.closed for stream in streams] == [True] * 3
    streams = [Stream(50), Stream(50)]
    reading = merged([stream.items() for stream in streams], 2)
    await anext(reading)
    await reading.aclose()
    assert [stream.closed for stream in streams] == [stream.opened for stream in streams]
