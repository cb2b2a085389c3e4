"""Settings: precedence of option, environment, file and default, and errors that name the place."""

from pathlib import Path
from typing import Any

import pytest

from app.errors import SettingsError
from app.setting_values import allowed_values
from app.settings import OTHER_VARIABLES, Settings, read_config_file, unknown_variables


@pytest.fixture(autouse=True)
def clean_place(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A working folder without a settings file and an environment without our variables."""
    import os

    for name in list(os.environ):
        if name.startswith("RAGSTONE_"):
            monkeypatch.delenv(name)
    monkeypatch.chdir(tmp_path)
    return tmp_path


def write_config(folder: Path, text: str, name: str = "ragstone.toml") -> Path:
    path = folder / name
    path.write_text(text, encoding="utf-8")
    return path


def test_defaults_are_those_of_the_design(clean_place: Path) -> None:
    settings = Settings()
    assert (settings.host, settings.port, settings.ui_port) == ("127.0.0.1", 8080, 7860)
    assert settings.data_dir == clean_place / "ragstone-data"
    assert settings.model_cache == clean_place / "ragstone-data" / "models"
    assert (settings.model, settings.embedding_model) == ("smollm2-135m-instruct", "all-minilm-l6-v2")


# One field of every type, with a value for each place; (name, file text, file, variable text, variable, option).
PLACES: list[tuple[str, str, Any, str, Any, Any]] = [
    ("port", "9001", 9001, "9002", 9002, 9003),
    ("host", '"10.0.0.1"', "10.0.0.1", "10.0.0.2", "10.0.0.2", "10.0.0.3"),
    ("temperature", "0.1", 0.1, "0.2", 0.2, 0.3),
    ("ui", "false", False, "true", True, False),
    ("memory_kind", '"buffer"', "buffer", "window", "window", "token_budget"),
    ("max_model_len", "1001", 1001, "1002", 1002, 1003),
    ("log_level", '"error"', "error", "debug", "debug", "warning"),
]


@pytest.mark.parametrize(("name", "file_text", "file", "variable_text", "variable", "option"), PLACES)
def test_option_goes_before_environment_before_file_before_default(
    clean_place: Path,
    monkeypatch: pytest.MonkeyPatch,
    name: str,
    file_text: str,
    file: Any,
    variable_text: str,
    variable: Any,
    option: Any,
) -> None:
    default = Settings.model_fields[name].default
    assert getattr(Settings(), name) == default
    write_config(clean_place, f"{name} = {file_text}\n")
    assert getattr(Settings(), name) == file
    monkeypatch.setenv(f"RAGSTONE_{name.upper()}", variable_text)
    assert getattr(Settings(), name) == variable
    assert getattr(Settings(**{name: option}), name) == option


@pytest.mark.parametrize("key", ["data", "data_dir"])
@pytest.mark.parametrize("variable", ["RAGSTONE_DATA", "RAGSTONE_DATA_DIR"])
@pytest.mark.parametrize("option", ["data", "data_dir"])
def test_data_folder_has_the_same_precedence_under_both_its_names(
    clean_place: Path, monkeypatch: pytest.MonkeyPatch, key: str, variable: str, option: str
) -> None:
    write_config(clean_place, f'{key} = "from-file"\n')
    assert Settings().data_dir == clean_place / "from-file"
    monkeypatch.setenv(variable, "/from/environment")
    assert Settings().data_dir == Path("/from/environment")
    options: dict[str, Any] = {option: Path("/from/option")}
    assert Settings(**options).data_dir == Path("/from/option")
    assert Settings(**options).model_cache == Path("/from/option/models")


def test_a_general_variable_called_data_is_not_read(monkeypatch: pytest.MonkeyPatch, clean_place: Path) -> None:
    monkeypatch.setenv("DATA", "/somebody/elses")
    monkeypatch.setenv("PORT", "1")
    assert Settings().data_dir == clean_place / "ragstone-data"
    assert Settings().port == 8080


def test_model_cache_is_a_setting_of_its_own(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("RAGSTONE_MODEL_CACHE", "/shared/models")
    assert Settings(data="/somewhere").model_cache == Path("/shared/models")


def test_folders_are_absolute_and_know_the_home_folder(clean_place: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HOME", "/home/ada")
    assert Settings(data="~/kept").data_dir == Path("/home/ada/kept")
    assert Settings(data="here").knowledge_dir == clean_place / "here" / "knowledge"


def test_empty_variable_counts_as_not_given(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("RAGSTONE_MAX_MODEL_LEN", "")
    monkeypatch.setenv("RAGSTONE_PORT", "")
    assert Settings().max_model_len is None
    assert Settings().port == 8080


def test_named_config_file_is_read_instead_of_the_one_in_the_folder(
    clean_place: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    write_config(clean_place, "port = 9001\nui_port = 9002\n")
    monkeypatch.setenv("RAGSTONE_CONFIG", str(write_config(clean_place, "port = 9009\n", "other.toml")))
    assert (Settings().port, Settings().ui_port) == (9009, 7860)


def test_named_config_file_must_exist(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("RAGSTONE_CONFIG", "/nowhere/ragstone.toml")
    with pytest.raises(SettingsError, match=r"RAGSTONE_CONFIG=/nowhere/ragstone\.toml: no such file"):
        Settings()


def test_unknown_key_in_the_file_names_file_key_and_the_close_one(clean_place: Path) -> None:
    write_config(clean_place, "ui-port = 9000\n")
    with pytest.raises(SettingsError) as raised:
        Settings()
    assert str(raised.value) == "ragstone.toml: 'ui-port' is not a setting; did you mean ui_port?"
    assert raised.value.field == "ui-port"


def test_unknown_key_that_is_close_to_nothing_lists_the_settings(clean_place: Path) -> None:
    write_config(clean_place, "[zzzz]\nx = 1\n")
    with pytest.raises(
        SettingsError, match=r"ragstone\.toml: 'zzzz' is not a setting; settings are: .*\bdata, .*ui_port"
    ):
        Settings()


def test_file_that_is_not_toml_says_where(clean_place: Path) -> None:
    write_config(clean_place, "port 9000\n")
    with pytest.raises(SettingsError, match=r"ragstone\.toml: not a TOML file.*line 1"):
        Settings()


def test_file_that_is_not_utf8_is_refused_by_name(clean_place: Path) -> None:
    (clean_place / "ragstone.toml").write_bytes(b'host = "\xe9"\n')
    with pytest.raises(SettingsError, match=r"ragstone\.toml: not a TOML file in UTF-8"):
        read_config_file()


def test_wrong_value_names_the_place_it_came_from(clean_place: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    allowed = "which is not a whole number from 1 to 65,535"
    write_config(clean_place, 'port = "many"\n')
    with pytest.raises(SettingsError) as from_file:
        Settings()
    assert str(from_file.value) == f"ragstone.toml: port is 'many', {allowed}"
    monkeypatch.setenv("RAGSTONE_PORT", "70000")
    with pytest.raises(SettingsError) as from_environment:
        Settings()
    assert str(from_environment.value) == f"environment variable RAGSTONE_PORT is '70000', {allowed}"
    with pytest.raises(SettingsError) as from_option:
        Settings(port=0)
    assert str(from_option.value) == f"option --port is 0, {allowed}"
    assert from_option.value.field == "port"
    assert Settings(port=9000).port == 9000  # a wrong value that is overridden does no harm


def test_every_wrong_value_is_reported_at_once() -> None:
    with pytest.raises(SettingsError) as raised:
        Settings(dtype="float8", temperature=9)
    assert "option --dtype is 'float8', which is not one of: auto, float32, bfloat16, float16" in str(raised.value)
    assert "option --temperature is 9, which is not a number from 0.0 to 2.0" in str(raised.value)
    assert raised.value.field is None


def test_wrong_data_folder_is_reported_without_follow_up_errors() -> None:
    with pytest.raises(SettingsError) as raised:
        Settings(data=3)
    assert str(raised.value) == "option --data is 3, which is not a path"


def test_unknown_option_is_refused() -> None:
    with pytest.raises(SettingsError, match="'prot' is not a setting; did you mean port"):
        Settings(prot=1)


@pytest.mark.parametrize("device", ["auto", "cpu", "cuda", "cuda:1"])
def test_devices_that_are_allowed(device: str) -> None:
    assert Settings(device=device).device == device


@pytest.mark.parametrize("device", ["gpu", "cuda:", "cuda:x", ""])
def test_other_devices_are_refused(device: str) -> None:
    with pytest.raises(SettingsError, match="which is not one of: auto, cpu, cuda, cuda:N"):
        Settings(device=device)


def test_mistyped_variables_are_named() -> None:
    environment = {
        "RAGSTONE_PROT": "1",
        "RAGSTONE_UI_DATA": "x",
        "RAGSTONE_DATA": "x",
        "RAGSTONE_QQQQ": "",
        "PATH": "/",
    }
    assert unknown_variables(environment) == [
        "RAGSTONE_PROT is not a setting and is ignored; did you mean RAGSTONE_PORT?",
        "RAGSTONE_QQQQ is not a setting and is ignored",
    ]
    assert unknown_variables(dict.fromkeys(OTHER_VARIABLES, "x")) == []


def test_settings_cannot_be_changed_later() -> None:
    with pytest.raises(ValueError, match="frozen"):
        Settings().port = 1


def test_every_setting_is_described_and_says_what_it_takes() -> None:
    for name, field in Settings.model_fields.items():
        assert field.description, name
        assert field.description.endswith("."), name
        assert len(allowed_values(name, field)) > 5, name


def test_the_vector_store_is_faiss_or_a_qdrant(monkeypatch: pytest.MonkeyPatch) -> None:
    assert Settings().qdrant is None
    assert Settings(vector_store="qdrant:http://127.0.0.1:6333").qdrant == "http://127.0.0.1:6333"
    with pytest.raises(SettingsError, match="not faiss, or qdrant: followed by a URL or a folder"):
        Settings(vector_store="milvus")
