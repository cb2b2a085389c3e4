"""Constraints: what is generated matches, whatever else a request asks; what cannot be served is refused at once."""

import builtins
import json
import re
import threading
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import jsonschema
import numpy as np
import pytest
import torch
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from engine import Engine, SamplingParams
from engine.errors import InvalidParameterError, UnsupportedParameterError
from engine.gguf_file import GGUFFile
from engine.grammar import LIMITS, GrammarCompiler, with_ascii_digits
from engine.outputs import Completion
from engine.tokenizer import Tokenizer
from tests.engine.conftest import make_tiny_engine
from tests.engine.test_speculation import Oracle, assert_speculation_changes_nothing, run, speculate
from tests.engine.vocabularies import sentencepiece

NAMES = st.sampled_from(["a", "b", "long name", 'q"uote', "é"])
LEAVES = st.one_of(
    st.just({"type": "boolean"}),
    st.just({"type": "null"}),
    st.integers(-50, 50).map(lambda low: {"type": "integer", "minimum": low, "maximum": low + 60}),
    st.just({"type": "string", "maxLength": 4}),
    st.just({"type": "string", "pattern": "^[a-f]{1,3}$"}),
    st.lists(st.sampled_from(["x", 'y"', 3, None, True]), min_size=1, unique_by=repr).map(lambda v: {"enum": v}),
    st.just({"const": {"k": [1, "v"]}}),
)


def _nested(inner: st.SearchStrategy[dict[str, Any]]) -> st.SearchStrategy[dict[str, Any]]:
    def document(properties: dict[str, Any], optional: int) -> dict[str, Any]:
        required = list(properties)[optional:]
        return {
            "type": "object",
            "properties": properties,
            "required": required,
            "additionalProperties": False,
        }

    return st.one_of(
        st.builds(document, st.dictionaries(NAMES, inner, max_size=3), st.integers(0, 1)),
        inner.map(lambda item: {"type": "array", "items": item, "maxItems": 2}),
        st.lists(inner, min_size=1, max_size=2).map(lambda parts: {"anyOf": parts}),
    )


SCHEMAS = st.recursive(LEAVES, _nested, max_leaves=4)


@pytest.fixture(scope="module")
def engine(tiny_folder: Path) -> Engine:
    """A tiny engine with room for a few answers that fill its context."""
    return roomy(tiny_folder)


def roomy(folder: Path, **config: Any) -> Engine:
    return make_tiny_engine(folder, num_kv_blocks=400, max_num_batched_tokens=64, **config)


@pytest.fixture(scope="module")
def real(chat_model_path: Path) -> GrammarCompiler:
    """Over the default model's vocabulary, with an embedding that is padded beyond it."""
    tokenizer = Tokenizer.from_gguf(GGUFFile(chat_model_path).metadata)
    return GrammarCompiler(tokenizer, tokenizer.vocab_size + 64)


def walk(compiler: GrammarCompiler, params: SamplingParams, seed: int, most: int = 400) -> tuple[str, bool]:
    """The text of random allowed tokens, and whether it ended by itself."""
    grammar = compiler.compile(params)
    assert grammar is not None
    rng = np.random.default_rng(seed)
    ids: list[int] = []
    while not grammar.is_complete and len(ids) < most:
        row = torch.zeros(compiler.vocab_size)
        grammar.mask_row(row, len(ids))
        allowed = torch.isfinite(row).nonzero().flatten().numpy()
        ids.append(int(rng.choice(allowed)))
        grammar.advance(ids[-1])
        assert grammar.failure is None
        if ids[-1] in compiler.end_ids:
            break
    return compiler._tokenizer.decode(ids), grammar.is_complete


# ── what is generated matches ────────────────────────────────────────────────────────────────────────────────────────


@settings(max_examples=15, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(schemas=st.lists(SCHEMAS, min_size=1, max_size=3), seed=st.integers(0, 1000))
def test_documents_of_random_schemas_validate_in_a_batch_at_temperature_1(engine, schemas, seed):
    requests = [
        engine.make_requests([2, 3, 4], SamplingParams(json_schema=schema, seed=seed + i, max_tokens=120))[0]
        for i, schema in enumerate(schemas)
    ]
    plain = engine.make_requests([5, 6], SamplingParams(max_tokens=8, seed=1))[0]  # unconstrained, in the same steps
    answers = {request.request_id: Completion(0) for request in (*requests, plain)}
    for request in (*requests, plain):
        engine.add([request])
    while engine.has_work:
        for delta in engine.step():
            answers[delta.request_id].add(delta)
    for request, schema in zip(requests, schemas, strict=True):
        answer = answers[request.request_id]
        if answer.finish_reason == "length":
            assert len(answer.token_ids) == 120
            continue
        assert answer.finish_reason == "stop"
        jsonschema.validate(json.loads(answer.text), schema)


@settings(max_examples=20, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(schema=SCHEMAS, seed=st.integers(0, 1000))
def test_random_walks_over_the_real_vocabulary_validate(real, schema, seed):
    text, ended = walk(real, SamplingParams(json_schema=schema), seed)
    if ended:
        jsonschema.validate(json.loads(text), schema)


@pytest.mark.parametrize(
    "pattern",
    [
        r"[a-c]{3,9}",
        "(yes|no), [0-9]{1,3}%",
        r"a?b",
        r"[0-9_]+@[^\n]{1,9}\.(com|org)",
        r"/\*x{2}\*/",
        r"[^a-z]{2}",
        "é😀+!",
    ],
)
def test_answers_match_the_regex_as_a_whole(engine, real, pattern):
    for seed in range(6):
        text, ended = walk(real, SamplingParams(regex=pattern), seed)
        assert not ended or re.fullmatch(pattern, text)
        answer = engine.generate([3, 4], SamplingParams(regex=pattern, seed=seed, max_tokens=200))
        assert answer.finish_reason in ("stop", "length")
        assert answer.finish_reason == "length" or re.fullmatch(pattern, answer.text)


def test_digits_of_a_regex_are_0_to_9(engine):
    for pattern in (r"\d{30}", r"[\dx]{30}"):
        answer = engine.generate([3, 4], SamplingParams(regex=pattern, seed=1, max_tokens=200, temperature=2)).text
        assert (len(answer), answer.isascii()) == (30, True)
    assert with_ascii_digits(r"\\d\D[^\d]") == r"\\d\D[^[0-9]]"


def test_a_choice_is_one_of_the_texts_and_masks_are_what_brute_force_finds(engine):
    choices = ["the fox", "the fix", "then", 'a "b"\n\\', "é"]
    grammar = engine.grammars.compile(SamplingParams(choice=choices))
    tokenizer = engine.tokenizer
    said = b""
    for token_id in tokenizer.encode("the fix"):
        row = torch.zeros(engine.grammars.vocab_size)
        grammar.mask_row(row, grammar._num_tokens)
        expected = {
            i
            for i in range(tokenizer.vocab_size)
            if tokenizer.token_bytes(i) and any(c.encode().startswith(said + tokenizer.token_bytes(i)) for c in choices)
        }
        assert set(torch.isfinite(row).nonzero().flatten().tolist()) == expected
        grammar.advance(token_id)
        said += tokenizer.token_bytes(token_id)
    assert grammar.is_complete
    texts = {engine.generate([2], SamplingParams(choice=choices, seed=seed)).text for seed in range(12)}
    assert texts <= set(choices)
    assert len(texts) > 1


def test_a_json_object_is_an_object(real):
    texts = [walk(real, SamplingParams(json_object=True), seed, most=60) for seed in range(6)]
    assert all(text.startswith("{") for text, _ in texts)
    assert all(isinstance(json.loads(text), dict) for text, ended in texts if ended)


def test_a_recursive_schema_with_an_end_is_served(real):
    node = {"type": "object", "properties": {"next": {"anyOf": [{"$ref": "#/$defs/n"}, {"type": "null"}]}}}
    node |= {"required": ["next"], "additionalProperties": False}
    schema = {"$ref": "#/$defs/n", "$defs": {"n": node}}
    ended = [text for text, ended in (walk(real, SamplingParams(json_schema=schema), s) for s in range(10)) if ended]
    assert ended
    for text in ended:
        jsonschema.validate(json.loads(text), schema)


def test_a_sentencepiece_answer_matches_without_the_space_that_decoding_takes_off():
    tokenizer = sentencepiece().from_folder
    compiler = GrammarCompiler(tokenizer, tokenizer.vocab_size)
    for seed in range(8):
        text, ended = walk(compiler, SamplingParams(regex="[ a-c]{2,5}"), seed)
        assert ended
        assert re.fullmatch("[ a-c]{2,5}", text)


# ── with everything else that a request may ask for ──────────────────────────────────────────────────────────────────

OBJECT = {
    "type": "object",
    "properties": {"ok": {"type": "boolean"}, "tags": {"type": "array", "items": {"enum": ["a", "b"]}, "maxItems": 3}},
    "required": ["ok", "tags"],
    "additionalProperties": False,
}


@pytest.mark.parametrize("wrong_every", [0, 1, 3])
@pytest.mark.parametrize("temperature", [0.0, 1.0])
def test_speculation_changes_nothing(tiny_folder, wrong_every, temperature):
    params = SamplingParams(json_schema=OBJECT, temperature=temperature, seed=4, n=2, max_tokens=60, logprobs=2)
    assert_speculation_changes_nothing(
        tiny_folder, [[2, 3, 4], [7, 8]], params, 5, wrong_every, num_kv_blocks=200, max_num_batched_tokens=64
    )


def test_drafts_are_cut_where_the_constraint_would_cut_them(tiny_folder):
    plain = run(roomy(tiny_folder, speculation="off"), [[2, 3]], SamplingParams(json_schema=OBJECT, temperature=0))
    engine = roomy(tiny_folder, speculation="off")
    # The oracle goes on past the end of the answer with tokens that may not stand there.
    oracle = Oracle({("r0", 0): plain[0].token_ids + [5] * 20})
    speculate(engine, oracle, 7)
    answer = run(engine, [[2, 3]], SamplingParams(json_schema=OBJECT, temperature=0))[0]
    assert (answer.text, answer.finish_reason) == (plain[0].text, "stop")
    stats = engine.stats()
    assert stats.num_accepted_tokens == stats.num_draft_tokens > 0


def test_ngram_speculation_gives_the_same_documents(tiny_folder):
    params = SamplingParams(
        json_schema={"type": "array", "items": OBJECT, "minItems": 3}, temperature=0, max_tokens=150
    )
    prompts = [[2, 3, 4, 2, 3, 4], [9, 9]]
    plain = run(roomy(tiny_folder, speculation="off"), prompts, params)
    engine = roomy(tiny_folder, speculation="ngram")
    engine.speculator._choose_length = lambda plan, candidates: 4
    assert [a.token_ids for a in run(engine, prompts, params)] == [a.token_ids for a in plain]


def test_the_same_document_after_preemption_and_from_a_cached_prefix(tiny_folder):
    params = SamplingParams(json_schema=OBJECT, seed=3, max_tokens=30)
    prompts = [[2, 3, 4, 5, 6, 7, 8, 9, i] for i in range(6)]
    alone = [roomy(tiny_folder).generate(prompt, params).token_ids for prompt in prompts]
    small = make_tiny_engine(tiny_folder, num_kv_blocks=14)
    assert [output.token_ids for output in small.generate(prompts, params)] == alone
    assert small.stats().num_preemptions > 0
    warm = small.generate(prompts[0], params)
    assert (warm.token_ids, warm.num_cached_tokens) == (alone[0], 8)


def test_the_constraint_wins_over_min_tokens_ignore_eos_and_bias(engine):
    for options in ({"min_tokens": 50}, {"ignore_eos": True}, {"min_tokens": 9, "ignore_eos": True}):
        for seed in range(5):
            output = engine.generate([2], SamplingParams(choice=["the", "fox"], seed=seed, **options))
            assert (output.text in ("the", "fox"), output.finish_reason) == (True, "stop")
            output = engine.generate([2], SamplingParams(regex="", seed=seed, **options))
            assert (output.text, output.finish_reason) == ("", "stop")
    ends = engine.tokenizer.eos_token_ids
    biased = SamplingParams(regex="[ab]{1,40}", logit_bias={ends[0]: 100.0}, min_tokens=7, temperature=0)
    assert len(engine.generate([2], biased).token_ids) == 8  # seven, and the end
    assert len(engine.generate([2], SamplingParams(regex="[ab]{30}", ignore_eos=True)).text) == 30


def test_max_tokens_and_stop_strings_may_cut_it(engine):
    cut = engine.generate([2], SamplingParams(regex="[ab]{30}", max_tokens=5))
    assert (cut.finish_reason, len(cut.token_ids)) == ("length", 5)
    stopped = engine.generate([2], SamplingParams(regex="a{3}b{5}", stop=["ab"]))
    assert (stopped.text, stopped.finish_reason, stopped.completions[0].stop_reason) == ("aa", "stop", "ab")
    whole = engine.generate([2], SamplingParams(choice=["fox"], max_tokens=len(engine.tokenizer.encode("fox"))))
    assert (whole.text, whole.finish_reason) in (("fox", "stop"), (whole.text, "length"))


def test_penalties_logprobs_and_several_answers(engine):
    params = SamplingParams(
        json_schema=OBJECT, n=3, seed=2, frequency_penalty=1.5, repetition_penalty=1.3, top_p=0.9, logprobs=1
    )
    output = engine.generate([2, 3], params)
    for completion in output.completions:
        jsonschema.validate(json.loads(completion.text), OBJECT)
        assert [entry.token_id for entry in completion.logprobs] == completion.token_ids
    assert len({tuple(completion.token_ids) for completion in output.completions}) > 1


# ── what is refused ──────────────────────────────────────────────────────────────────────────────────────────────────

NEST: dict[str, Any] = {"type": "integer"}
for _ in range(100):
    NEST = {"type": "array", "items": NEST}
RECURSIVE = [
    {"$ref": "#"},
    {"type": "object", "properties": {"a": {"$ref": "#"}}, "required": ["a"]},
    {"type": "array", "items": {"$ref": "#"}, "minItems": 1},
    {"$ref": "#/$defs/a", "$defs": {"a": {"anyOf": [{"$ref": "#/$defs/b"}]}, "b": {"$ref": "#/$defs/a"}}},
]


@pytest.mark.parametrize(
    ("field", "value", "reason"),
    [
        ("regex", "(?=a)b", "look-ahead"),
        ("regex", r"(a)\1", "backreferences are not supported"),
        ("regex", "(", "unclosed group"),
        ("regex", r"[^\s\S]", "matches no text"),
        ("regex", "a" * 10_000, "10,000 characters; at most 8,192"),
        ("regex", 7, "must be text, not int"),
        *(("json_schema", schema, "recursive without an end") for schema in RECURSIVE),
        ("json_schema", NEST, "nested too deeply, at #/items/items/.*: at most 64 objects and lists of its JSON"),
        (
            "json_schema",
            {"type": "string", "pattern": "(a{1,99}){99}"},
            "pattern: comes to 9,801 .*repetitions.*, at #",
        ),
        ("json_schema", {"patternProperties": {"a{99999}": {}}}, "pattern: comes to 99,999 .*; at most 10,000"),
        (
            "json_schema",
            {"properties": {"a": {"multipleOf": 999983}}},
            "multipleOf is 999983 at #/properties/a; .*10,000",
        ),
        ("json_schema", {"type": "array", "uniqueItems": True}, "uniqueItems"),
        ("json_schema", {"not": {"type": "string"}}, "not"),
        ("json_schema", {"$ref": "http://example.com/x"}, "http://example.com/x"),
        ("json_schema", {"$ref": "#/$defs/missing"}, "missing"),
        ("json_schema", {"type": "strin"}, "strin"),
        ("json_schema", {"type": "integer", "minimum": 5, "maximum": 3}, "minimum"),
        ("json_schema", {"properties": {str(i): {} for i in range(1001)}}, "1,001 properties; at most 1,000"),
        ("json_schema", {"const": "x" * 140_000}, "at most 131,072"),
        ("json_schema", "{", "not valid JSON"),
        ("json_schema", "[1]", "must be an object"),
        ("json_schema", {"const": {1, 2}}, "cannot be written as JSON"),
        ("json_schema", 5, "must be a schema"),
        ("choice", [], "at least one text"),
        ("choice", "ab", "a list"),
        ("choice", ["a", ""], "non-empty"),
        ("choice", ["x" * 300_000], "at most 262,144"),
        ("choice", [f"c{i}" for i in range(5000)], "5,000 texts; at most 4,096"),
        ("grammar", "start: nothing", "nothing"),
        ("json_object", 1, "true or false"),
    ],
)
def test_what_cannot_be_served_is_refused_before_it_is_queued(engine, field, value, reason):
    with pytest.raises(InvalidParameterError, match=reason) as caught:
        engine.make_requests([2], SamplingParams.from_mapping({field: value}))
    assert caught.value.field == field
    assert len(str(caught.value)) < 500
    assert not engine.has_work


EXPLODING = {
    "((a{1,100}){1,100}){1,100}": "comes to 1,000,000 characters with its repetitions written out; at most 10,000",
    "(a{1,1000}){1000}": "comes to 1,000,000 characters with its repetitions written out; at most 10,000",
    "a{4000000}": "comes to 4,000,000 characters with its repetitions written out; at most 10,000 are allowed",
    "(a{1,10}){1000}x": "comes to 10,001 characters",
    "a+" * 4000: "has 4,000 repetitions; at most 1,000 are allowed",
    "(a|aa){4000}": "comes to 12,000 characters",
    r"([a-z]{1,50}[^]\d]?){50,}": "comes to 2,550 characters in repeated groups .*; at most 2,000 are allowed: lower",
    "(" + "|".join(f".*{letter}.{{20}}" for letter in "abcdefghijklmnopqrst") + ")": "grows too complex",
}


EXPLODING_GRAMMARS = {
    "start: /(a{1,1000}){1000}/": "comes to 1,000,000 characters with its repetitions written out; at most 10,000",
    "start: A\nA: B{1000}\nB: /a{1,1000}/": "its terminal A comes to 1,000,000 characters with",
    'start: A\nA: (("a"){1,1000}){1000} // more': "its terminal A comes to 1,000,000 characters with",
    "start: x\nx: B\nB[lazy]: /[ab]{1,50}/{50}": "its terminal B comes to 2,500 characters in repeated groups",
    'start: A\nA: "a"{4000000}': "its terminal A comes to 4,000,000 characters with",
    'start: %json {"type": "string", "pattern": "(a{1,1000}){1000}"}': "comes to 1,000,000 characters",
    "start: T0\n" + "\n".join(f"T{i}: T{i + 1}" for i in range(100)) + '\nT100: "a"': "nests terminals deeper than 64",
    "start: A\nA: " + "(" * 50_000 + '"a"' + ")" * 50_000: "nests groups deeper than 64",
    'start: ("a"{1,1000}){1000}': "grows too complex to follow",
}


@pytest.mark.parametrize("grammar", EXPLODING_GRAMMARS)
def test_a_grammar_that_explodes_is_refused(real, grammar):
    with pytest.raises(InvalidParameterError, match=EXPLODING_GRAMMARS[grammar]) as caught:
        real.compile(SamplingParams(grammar=grammar))
    assert caught.value.field == "grammar"


def test_a_grammar_whose_terminals_are_long_and_can_be_followed_is_followed(real):
    words = " | ".join(f'"w{number}"i' for number in range(2000))
    grammar = f'start: (NUMBER | WORD) (":" NUMBER){{2}}\nNUMBER: /[0-9]{{1,9}}/\nWORD: {words}\n%ignore /[ ]/'
    text, ended = walk(real, SamplingParams(grammar=grammar), seed=1, most=40)
    assert ended
    assert re.fullmatch(r"\s*(\d+|[Ww]\d+)(\s*:\s*\d+){2}\s*", text)


@pytest.mark.parametrize("pattern", EXPLODING)
def test_a_regex_that_explodes_is_refused(real, pattern):
    with pytest.raises(InvalidParameterError, match=EXPLODING[pattern]) as caught:
        real.compile(SamplingParams(regex=pattern))
    assert caught.value.field == "regex"


@pytest.mark.parametrize(
    "pattern", [r"\w{1,5000}", "(ab|cd|ef){1,300}", r"(\w+\s){1,600}", "a{9999}b", "(x{1,20}y){90}", r"[ab]*a[ab]{20}"]
)
def test_a_regex_that_is_large_and_can_be_followed_is_followed(real, pattern):
    text, ended = walk(real, SamplingParams(regex=pattern), seed=1, most=40)
    assert re.fullmatch(pattern, text) is not None if ended else text


@pytest.mark.parametrize("value", [{"type": "integer"}, {}])
def test_an_object_of_as_many_optional_properties_as_are_allowed_is_followed(real, value):
    schema = {"type": "object", "properties": {f"property_{number}": value for number in range(1000)}}
    assert max(len(walk(real, SamplingParams(json_schema=schema), seed, most=30)[0]) for seed in range(4)) > 12


def test_a_constraint_that_is_being_compiled_keeps_no_other_waiting(real, monkeypatch):
    compile_one, begun, release = GrammarCompiler._matcher, threading.Event(), threading.Event()

    def waiting(compiler: GrammarCompiler, field: str, source: str) -> Any:
        if "slow" in source:
            begun.set()
            assert release.wait(60)
        return compile_one(compiler, field, source)

    monkeypatch.setattr(GrammarCompiler, "_matcher", waiting)
    with ThreadPoolExecutor(1) as pool:
        slow = pool.submit(real.compile, SamplingParams(choice=["slow"]))
        assert begun.wait(60)
        assert real.compile(SamplingParams(choice=["quick"])) is not None
        assert not slow.done()
        release.set()
        assert slow.result() is not None


def test_two_constraints_are_refused():
    with pytest.raises(InvalidParameterError, match="regex: at most one constraint is allowed; json_schema"):
        SamplingParams(json_schema={}, regex="a")


def test_a_constraint_that_grows_too_complex_on_its_way_fails_its_request_only(engine, monkeypatch):
    with monkeypatch.context() as limits:
        limits.setattr("engine.grammar.PROBE_TOKENS", 0)
        limits.setitem(LIMITS, "step_lexer_fuel", 100)
        bad = engine.make_requests([2], SamplingParams(regex="(.*[a-m].{9}|.*[g-z].{8})x"))
    good = engine.make_requests([2], SamplingParams(regex="[ab]{9}"))
    engine.add(bad)
    engine.add(good)
    deltas = []
    while engine.has_work:
        deltas += engine.step()
    ends = {delta.request_id: delta for delta in deltas if delta.finish_reason}
    error = ends[bad[0].request_id].error
    assert isinstance(error, InvalidParameterError)
    assert (error.field, "grows too complex" in str(error)) == ("regex", True), error
    assert ends[good[0].request_id].finish_reason == "stop"


def test_without_the_library_the_field_is_refused_by_name(tiny_folder, monkeypatch):
    real_import = builtins.__import__

    def without(name: str, *args: Any, **kwargs: Any) -> Any:
        if name == "llguidance":
            raise ImportError(name)
        return real_import(name, *args, **kwargs)

    monkeypatch.setattr(builtins, "__import__", without)
    engine = roomy(tiny_folder)
    with pytest.raises(UnsupportedParameterError, match="choice needs the package llguidance"):
        engine.generate([2], SamplingParams(choice=["a"]))
    assert len(engine.generate([2], SamplingParams(max_tokens=2, ignore_eos=True)).token_ids) == 2


def test_the_same_constraint_is_compiled_once(tiny_folder):
    compiler = roomy(tiny_folder).grammars
    for _ in range(3):
        compiler.compile(SamplingParams(json_schema=OBJECT))
    for i in range(40):
        compiler.compile(SamplingParams(choice=[f"c{i}"]))
    assert len(compiler._compiled) == 32
