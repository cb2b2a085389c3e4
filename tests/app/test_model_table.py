"""What the settings may say of models and routes, and where requests go by them. Nothing is loaded here."""

import re
from pathlib import Path
from typing import Any

import pytest

from app.engines.entries import is_here
from app.engines.model_table import ModelTable
from app.engines.routing import Asked, Router, complexity
from app.errors import SettingsError, UnknownModelError
from app.privacy import PrivateRequestError
from app.settings import Settings

HERE = {"name": "large", "model": "some/large"}
CLOUD = {"name": "cloud", "url": "https://api.example.com/v1", "model": "theirs"}
OLLAMA = {"name": "ollama", "url": "http://127.0.0.1:11434/v1", "model": "llama3.2"}


def router(models: list[dict[str, Any]], routes: list[dict[str, Any]] | None = None, **settings: Any) -> Router:
    return Router(ModelTable.of(Settings(model="small", models=models, routes=routes or [], **settings), ("embed",)))


def asked(**more: Any) -> Asked:
    return Asked(**{"use": "generate", **more})


def test_model_alone_is_a_table_of_one() -> None:
    table = ModelTable.of(Settings(model="path/to/model", served_model_name="ours"))
    assert (table.default, list(table.entries), table.entries["ours"].source) == ("ours", ["ours"], "path/to/model")
    assert table.is_one_here


def test_model_may_name_an_entry_which_is_then_the_default() -> None:
    table = ModelTable.of(Settings(model="cloud", models=[CLOUD, HERE]))
    assert (table.default, list(table.entries)) == ("cloud", ["cloud", "large"])


@pytest.mark.parametrize(
    ("models", "routes", "settings", "why"),
    [
        ([HERE, HERE], [], {}, "'large' is there twice"),
        ([{"name": "embed"}], [], {}, "the name 'embed' is taken"),
        (
            [{**HERE, "fallback": ["absent"]}],
            [],
            {},
            "'large' falls back to 'absent'; it may to the others of",
        ),
        ([{**HERE, "fallback": ["large"]}], [], {}, "'large' falls back to 'large'"),
        ([HERE], [{"model": "absent"}], {}, "rule 1 names the model 'absent'; there are small, large"),
        (
            [CLOUD],
            [{"model": "cloud", "private": True}],
            {},
            "rule 1 is for private requests, and can reach 'cloud'",
        ),
        (
            [CLOUD, {**HERE, "fallback": ["cloud"]}],
            [{"model": "large", "private": True}],
            {},
            "at https://api.example.com/v1, by falling back from 'large', which is not on this machine",
        ),
        ([CLOUD], [], {"model": "cloud", "private_collections": ["hr"]}, "no model of this machine could answer"),
        (
            [],
            [],
            {"private_collections": ["hr"], "embedding_url": "https://api.example.com/v1"},
            "embedding_url would be sent their text",
        ),
        ([HERE], [], {"model": "large", "engine_url": "http://host:8000"}, "engine_url and models both say where"),
    ],
)
def test_what_does_not_go_together_is_refused_with_the_reason(
    models: list[dict[str, Any]], routes: list[dict[str, Any]], settings: dict[str, Any], why: str
) -> None:
    with pytest.raises(SettingsError) as raised:
        ModelTable.of(Settings(**{"model": "small", "models": models, "routes": routes, **settings}), ("embed",))
    assert why in raised.value.message


@pytest.mark.parametrize(
    ("given", "why"),
    [
        ({"models": [{**CLOUD, "load": "on_demand"}]}, "models[0]: load is for models that run here"),
        ({"models": [{**HERE, "key_env": "KEY"}]}, "models[0]: key_env is for models that have a url"),
        (
            {"models": [{**HERE, "lode": "always"}]},
            "models[0]: 'lode' is not one of its fields (name, ",
        ),
        ({"routes": [{"modle": "m", "model": "m"}]}, "collections, private); did you mean model?"),
        (
            {"routes": [{"model": "m", "min_complexity": 2}]},
            "[0].min_complexity is 2, which is not a number from 0.0 to 1.0",
        ),
        ({"routes": [{"model": "m", "min_prompt_tokens": 1.5}]}, "is 1.5, which is not a whole number of 0 or more"),
        ({"routes": [{"model": "m", "collections": []}]}, "is [], which is not a list of names, with one at least"),
        ({"routes": [{}]}, "routes[0] has no model: every one needs it; its fields are model, min_prompt_tokens, "),
        ({"models": [{}]}, "models[0] has no name: every one needs it"),
        ({"models": [7]}, "models[0] is 7, which is not a table with fields such as name"),
        ({"models": [{"name": ""}]}, "models[0].name is '', which is not a non-empty text"),
        ({"models": [{**HERE, "load": "never"}]}, "models[0].load is 'never', which is not one of: always, on_demand"),
        ({"models": [{**HERE, "idle_s": "x"}]}, "models[0].idle_s is 'x', which is not a number above 0"),
        ({"models": [{**HERE, "max_num_seqs": 5000}]}, "is 5000, which is not a whole number from 1 to 1,024"),
        ({"models": [{**HERE, "device": "tpu"}]}, "is 'tpu', which is not one of: auto, cpu, cuda, cuda:N"),
        ({"models": [{**HERE, "uses": ["fly"]}]}, "models[0].uses[0] is 'fly', which is not one of: generate, answer"),
        (
            {"models": [{**HERE, "uses": "answer"}]},
            "is 'answer', which is not a list of generate and answer, with one at",
        ),
        ({"models": [{**HERE, "fallback": [7]}]}, "models[0].fallback[0] is 7, which is not a text in quotes"),
        ({"models": [{"name": "a", "url": "ftp://x"}]}, "is 'ftp://x', which is not a URL that begins with http:// or"),
        ({"models": [{**CLOUD, "private": "perhaps"}]}, "is 'perhaps', which is not true or false"),
        ({"private_collections": [7]}, "[0] is 7, which is not a text in quotes"),
    ],
)
def test_entries_are_checked_by_their_place(given: dict[str, Any], why: str) -> None:
    with pytest.raises(SettingsError) as raised:
        Settings(**given)
    assert why in raised.value.message
    assert not re.search(r"Input should|Field required|should (have|match)|; option", raised.value.message)


def test_tables_come_from_the_file_and_from_the_environment(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    file = tmp_path / "mine.toml"
    file.write_text(
        '[[models]]\nname = "large"\nload = "on_demand"\n\n[[routes]]\nmodel = "large"\nmin_complexity = 0.5\n'
    )
    monkeypatch.setenv("RAGSTONE_CONFIG", str(file))
    settings = Settings()
    assert (settings.models[0].load, settings.routes[0].min_complexity) == ("on_demand", 0.5)
    monkeypatch.setenv("RAGSTONE_MODELS", '[{"name": "other"}]')
    assert [entry.name for entry in Settings().models] == ["other"]


@pytest.mark.parametrize(
    ("variable", "example"),
    [
        ("RAGSTONE_MODELS", '[{"name": "large"}]'),
        ("RAGSTONE_ROUTES", '[{"model": "large"}]'),
        ("RAGSTONE_PRIVATE_COLLECTIONS", '["large"]'),
    ],
)
def test_a_list_in_the_environment_that_is_no_json_is_told_with_an_example(
    variable: str, example: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv(variable, "[{")
    with pytest.raises(SettingsError) as raised:
        Settings()
    assert raised.value.message.startswith(f"environment variable {variable} is '[{{', which is not valid JSON (")
    assert raised.value.message.endswith(f"): write a list, such as '{example}'")
    monkeypatch.setenv(variable, example)
    Settings()


def test_first_rule_that_fits_wins_and_else_the_default() -> None:
    rules = [
        {"model": "large", "collections": ["law"]},
        {"model": "cloud", "min_prompt_tokens": 100},
        {"model": "large", "min_complexity": 0.3},
    ]
    ways = router([HERE, CLOUD], rules)

    def way(**more: Any) -> tuple[str, str]:
        route = ways.route(asked(**more))
        return route.name, route.reason

    assert way(question="Hi") == ("small", "default")
    assert way(question="Hi", num_prompt_tokens=100) == ("cloud", "rule")
    assert way(question="Hi", num_prompt_tokens=100, collections=["law", "other"]) == ("large", "rule")
    assert way(question="Compare a, b, c and d. Then say which is best, why, and at what price.") == ("large", "rule")
    assert way(name="small", num_prompt_tokens=100) == ("small", "name")


def test_name_that_is_not_served_so_is_told_with_those_that_are() -> None:
    ways = router([{**HERE, "uses": ["answer"]}, CLOUD])
    with pytest.raises(
        UnknownModelError,
        match="'large' does not exist here, or does something else; for this there is 'small' and 'cloud'",
    ):
        ways.route(asked(name="large"))
    assert ways.route(asked(use="answer", name="large")).names == ("large",)


def test_private_requests_stay_here_whatever_the_rules_and_the_fallbacks() -> None:
    models = [{**HERE, "fallback": ["cloud", "ollama"]}, CLOUD, OLLAMA]
    ways = router(models, [{"model": "cloud", "min_prompt_tokens": 1}])
    assert ways.route(asked(num_prompt_tokens=5)).names == ("cloud",)
    assert ways.route(asked(num_prompt_tokens=5, private=True)).names == ("small",)
    assert ways.route(asked(name="large")).names == ("large", "cloud", "ollama")
    assert ways.route(asked(name="large", private=True)).names == ("large", "ollama")
    with pytest.raises(PrivateRequestError, match="private, and the model 'cloud' is not on this machine"):
        ways.route(asked(name="cloud", private=True))
    remote = Router(ModelTable.of(Settings(model="cloud", models=[{**CLOUD, "fallback": ["ollama"]}, OLLAMA])))
    assert remote.route(asked(private=True)).names == ("ollama",)
    with pytest.raises(PrivateRequestError):
        remote.route(asked(name="cloud", private=True))
    trusted = Router(ModelTable.of(Settings(model="cloud", models=[{**CLOUD, "private": True}])))
    assert trusted.route(asked(private=True)).names == ("cloud",)


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("What is TTFT?", 0.03),
        ("One. Two. Three.", 0.23),
        ("a, b; c", 0.13),
        ("word " * 500, 1.0),
        ("", 0.0),
    ],
)
def test_complexity_counts_words_sentences_and_clauses(text: str, expected: float) -> None:
    assert complexity(text) == pytest.approx(expected)


def test_what_is_on_this_machine_is_told_by_its_name_alone() -> None:
    here = ("http://127.0.0.1:8000/v1", "http://localhost:1", "http://[::1]:8000/v1", "http://vllm.localhost/v1")
    assert [is_here(url) for url in here] == [True] * 4
    assert not any(
        is_here(url) for url in ("http://10.0.0.5/v1", "https://localhost.example.com/v1", "http://vllm:8000")
    )
