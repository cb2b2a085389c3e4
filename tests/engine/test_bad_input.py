"""Parameters, prompts and settings that are wrong are refused in words, whatever they are."""

import contextlib
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from engine import Engine, EngineConfig, SamplingParams, errors
from engine.errors import InvalidParameterError
from tests.engine.conftest import make_tiny_engine

NAN, INF, HUGE = float("nan"), float("inf"), 10**5000
NO_NUMBERS: tuple[Any, ...] = (NAN, INF, -INF, True, "0.5", "", [1], {}, 1j, HUGE, -HUGE)
NO_INTEGERS: tuple[Any, ...] = (*NO_NUMBERS, 1.0, 0.5, b"1")

# ── sampling parameters ──────────────────────────────────────────────────────────────────────────────────────────────

RANGES: dict[str, tuple[str, tuple[Any, ...], tuple[Any, ...]]] = {
    # field: (the range its message names, values refused beside those of a wrong kind, values taken)
    "temperature": (r"\[0, 100\]", (-1, -1e-9, 100.1), (0, 0.5, 1e-300, 100)),
    "top_p": (r"\(0, 1\]", (0, 0.0, 2, -0.1, 1.0001), (1, 1e-9)),
    "min_p": (r"\[0, 1\]", (-0.1, 1.5), (0, 1)),
    "repetition_penalty": (r"\[0.01, 10\]", (0, 1e-300, -1, 10.5), (0.01, 10)),
    "presence_penalty": (r"\[-2, 2\]", (-3, 2.1), (-2, 2)),
    "frequency_penalty": (r"\[-2, 2\]", (-3, 2.1), (-2, 2)),
    "n": ("from 1 to 128", (0, -1, 129), (1, 128)),
    "max_tokens": ("from 1 to 2,147,483,647", (0, -5, 2**31), (1, 2**31 - 1)),
    "min_tokens": ("from 0 to 2,147,483,647", (-1, 2**31), (0, 7)),
    "top_k": ("from 0 to 2,147,483,647", (-2, 2**31), (-1, 0, 2**31 - 1)),
    "logprobs": ("from 0 to 20", (-1, 21), (0, 20)),
    "seed": ("from -9,223,372,036,854,775,808 to 18,446,744,073,709,551,615", (2**64, -(2**63) - 1), (-1, 2**64 - 1)),
}
INTEGERS = ("n", "max_tokens", "min_tokens", "top_k", "logprobs", "seed")


def refused(field: str, message: str, **values: Any) -> None:
    with pytest.raises(InvalidParameterError, match=message) as caught:
        SamplingParams.from_mapping(values)
    assert caught.value.field == field
    assert str(caught.value).startswith(f"{field}: ")
    assert len(str(caught.value)) < 500


@pytest.mark.parametrize("field", RANGES)
def test_a_number_out_of_range_or_of_another_kind_is_refused_with_the_range(field: str) -> None:
    allowed, bad, good = RANGES[field]
    for value in (*bad, *(NO_INTEGERS if field in INTEGERS else NO_NUMBERS)):
        refused(field, allowed, **{field: value})
    for value in good:
        assert SamplingParams.from_mapping({field: value})


@pytest.mark.parametrize(
    ("field", "value", "message"),
    [
        ("stop", [""], "every stop string must be non-empty text, got ''"),
        ("stop", "", "non-empty text"),
        ("stop", ["a", 5], "non-empty text, got 5"),
        ("stop", ["x"] * 10_000, "at most 64 stop strings are allowed, got 10,000"),
        ("stop", 5, "must be a list of texts, got 5"),
        ("stop", {"a": 1}, "must be a list of texts"),
        ("stop", b"ab", "must be a list of texts"),
        ("stop_token_ids", 5, "must be a list of token ids, got 5"),
        ("stop_token_ids", "5", "must be a list of token ids"),
        ("stop_token_ids", [True], "integer of at least 0, got True"),
        ("stop_token_ids", ["5"], "integer of at least 0, got '5'"),
        ("stop_token_ids", [-1], "integer of at least 0, got -1"),
        ("logit_bias", [5], r"must map token ids to numbers, got \[5\]"),
        ("logit_bias", {"a": 1}, "integer of at least 0, got 'a'"),
        ("logit_bias", {"-5": 1}, "integer of at least 0, got '-5'"),
        ("logit_bias", {1.5: 1}, "integer of at least 0, got 1.5"),
        ("logit_bias", {True: 1}, "integer of at least 0, got True"),
        ("logit_bias", {-1: 1}, "integer of at least 0, got -1"),
        *[("logit_bias", {1: value}, r"must be a number in \[-100, 100\]") for value in (*NO_NUMBERS, 101, -101)],
        ("ignore_eos", "yes", "must be true or false, got 'yes'"),
        ("ignore_eos", 1, "must be true or false, got 1"),
        ("json_object", 1, "must be true or false, got 1"),
        ("json_schema", 5, "must be a schema or its JSON text, not int"),
        ("regex", 5, "must be text, not int"),
        ("grammar", ["x"], "must be text, not list"),
        ("choice", "a", "must be a list of texts, got 'a'"),
        ("choice", 5, "must be a list of texts, got 5"),
        ("choice", [], "at least one text"),
        ("choice", ["a", ""], "every choice must be non-empty text, got ''"),
    ],
)
def test_a_field_of_the_wrong_kind_is_refused_by_name(field: str, value: Any, message: str) -> None:
    refused(field, message, **{field: value})


def test_min_tokens_stay_within_max_tokens() -> None:
    refused("min_tokens", r"must not exceed max_tokens \(3\), got 5", min_tokens=5, max_tokens=3)


def test_token_ids_may_be_spelled_as_json_spells_them() -> None:
    assert SamplingParams(logit_bias={"7": 1, 8: 2}).logit_bias == {7: 1, 8: 2}  # type: ignore[dict-item]


JUNK = st.one_of(
    st.sampled_from(
        [None, *NO_INTEGERS, [], [None], [""], ["a"], [NAN], {"a": [1]}, {"1": 1}, {1: "a"}, "\ud800", "5"]
    ),
    st.integers(),
    st.floats(),
)


@given(st.dictionaries(st.sampled_from([*SamplingParams.__dataclass_fields__, "best_of"]), JUNK, max_size=3))
def test_any_mapping_is_taken_or_refused_by_field(values: dict[str, Any]) -> None:
    fields = set()
    with contextlib.suppress(InvalidParameterError, errors.UnsupportedParameterError):
        try:
            SamplingParams.from_mapping(values)
        except errors.EngineError as error:
            fields = {getattr(error, "field", None)}
            raise
    assert fields <= values.keys()


# ── requests ─────────────────────────────────────────────────────────────────────────────────────────────────────────


@pytest.fixture(scope="module")
def engine(tiny_folder: Path) -> Engine:
    return make_tiny_engine(tiny_folder)


@pytest.mark.parametrize(
    ("prompt", "params", "field", "message"),
    [
        ("", {}, "prompt", "is empty"),
        ([], {}, "prompt", "is empty"),
        ([5, 300], {}, "prompt", "token id 300 is outside the vocabulary; ids are 0 to 299"),
        ([5, -1], {}, "prompt", "token id -1 is outside"),
        ([5, True], {}, "prompt", "token id True is outside"),
        ([5, "a"], {}, "prompt", "token id 'a' is outside"),
        ([5, NAN], {}, "prompt", "token id nan is outside"),
        ([5, HUGE], {}, "prompt", "is outside the vocabulary"),
        (None, {}, "prompt", "must be a list of token ids"),
        (5, {}, "prompt", "must be a list of token ids"),
        ({"a": 1}, {}, "prompt", "must be a list of token ids"),
        ([5], {"logit_bias": {300: 1}}, "logit_bias", "token id 300 is outside the vocabulary; ids are 0 to 299"),
        ([5], {"stop_token_ids": [300]}, "stop_token_ids", "token id 300 is outside the vocabulary"),
        ([5], {"max_tokens": 257}, "max_tokens", r"this model takes 256 in all, 257 of them .* \(max_tokens\)"),
        ([5], {"max_tokens": 100}, "max_tokens", "the KV cache of this engine holds 64 in all"),
        ([5] * 300, {}, "prompt", "prompt is 300 tokens; this model takes 256 in all"),
        ([5], {"regex": "(" * 50_000}, "regex", "50,000 characters; at most 8,192"),
        ([5], {"regex": "(((a{1,999}){1,999}){1,999}){1,999}"}, "regex", "comes to more than 1,000,000,000 characters"),
        ([5], {"regex": "["}, "regex", "regex"),
        ([5], {"json_schema": "{"}, "json_schema", "is not valid JSON"),
        ([5], {"json_schema": {"$ref": "#"}}, "json_schema", "recursive without an end"),
    ],
)
def test_a_request_that_cannot_be_served_is_refused_before_it_is_queued(
    engine: Engine, prompt: Any, params: dict[str, Any], field: str, message: str
) -> None:
    with pytest.raises(errors.EngineError, match=message) as caught:
        engine.make_requests(prompt, SamplingParams.from_mapping(params))
    assert caught.value.field == field  # type: ignore[attr-defined]
    if prompt not in (None, 5):  # which `generate` takes for no prompt of any kind
        with pytest.raises(errors.EngineError) as caught:
            engine.generate([prompt] if isinstance(prompt, dict) or not prompt else prompt, SamplingParams(**params))
        assert caught.value.field == field  # type: ignore[attr-defined]
    assert not engine.has_work


@pytest.mark.parametrize(
    ("urgency", "field"),
    [
        *[({"deadline_s": value}, "deadline_s") for value in (*NO_NUMBERS, 0, -1, 1e10)],
        *[({"priority": value}, "priority") for value in ("urgent", "", 1, [], {})],
    ],
)
def test_an_urgency_that_is_none_is_refused(engine: Engine, urgency: dict[str, Any], field: str) -> None:
    with pytest.raises(InvalidParameterError) as caught:
        engine.make_requests([5], SamplingParams(), **urgency)
    assert caught.value.field == field


@pytest.mark.parametrize("temperature", [1e-300, 1e-40, 1e-30, 1e-7, 1e-6])
def test_the_smallest_temperatures_choose_the_best_token(engine: Engine, temperature: float) -> None:
    def answer(**fields: float) -> list[int]:
        return engine.generate([5, 6, 7], SamplingParams(max_tokens=12, ignore_eos=True, **fields)).token_ids  # type: ignore[arg-type]

    assert answer(temperature=temperature) == answer(temperature=0)


# ── settings ─────────────────────────────────────────────────────────────────────────────────────────────────────────


@pytest.mark.parametrize(
    ("field", "bad"),
    [
        *[
            (field, (*NO_INTEGERS, 0, -1))
            for field in (
                "max_model_len", "block_size", "num_kv_blocks", "kv_memory_bytes", "max_num_seqs",
                "max_num_batched_tokens", "max_prefill_tokens_while_decoding", "max_queue_size", "default_max_tokens",
                "num_draft_tokens", "max_speculative_rows",
            )
        ],
        ("stall_timeout_s", (*NO_NUMBERS, 0, -1)),
        ("enable_prefix_caching", ("no", 1, None)),
        ("deterministic", ("no", 1, None)),
        ("check_integrity", ("no", 1, None)),
        ("dtype", ("int3", "", None, 5, [])),
        ("kv_cache_dtype", ("int8", "", None, 5, [])),
        ("device", (None, 5, "a\0b")),
        ("model", (None, 5, b"x", "a\0b")),
        ("speculation", ("on", None, True, [])),
        ("draft_model", (5, [])),
    ],
)  # fmt: skip
def test_a_setting_of_the_wrong_kind_or_range_is_refused_by_name(field: str, bad: tuple[Any, ...]) -> None:
    for value in bad:
        with pytest.raises(InvalidParameterError) as caught:
            EngineConfig(**{"model": "m", field: value})
        assert caught.value.field == field
