"""The command `ragstone` as a person uses it: help, options that become settings, results and exit codes."""

import http.server
import json
import os
import socket
import subprocess
import sys
import threading
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import pytest
import typer
from typer.testing import CliRunner

from app import __version__, cli, preflight
from app import serve as process
from app.settings import ALIASES, Settings
from tests.engine.tiny_models import save_tiny_model

REPOSITORY = Path(__file__).resolve().parents[2]
MODELS = os.environ["RAGSTONE_MODEL_CACHE"]


@pytest.fixture(autouse=True)
def clean_place(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for name in list(os.environ):
        if name.startswith("RAGSTONE_"):
            monkeypatch.delenv(name)
    # Commands put defaults for the libraries into the environment of their process, which here is ours.
    for name in ("OMP_NUM_THREADS", "OMP_WAIT_POLICY", "TMPDIR", "HF_HOME", "HF_TOKEN_PATH", "GRADIO_TEMP_DIR"):
        monkeypatch.setenv(name, os.environ.get(name, ""))
    monkeypatch.chdir(tmp_path)


def ragstone(*arguments: str, **environment: str) -> "subprocess.CompletedProcess[str]":
    return subprocess.run(
        [sys.executable, "-m", "app", *arguments],
        env={**os.environ, "PYTHONPATH": str(REPOSITORY), **environment},
        capture_output=True,
        text=True,
        timeout=300,
        check=False,
    )


def commands() -> Iterator[tuple[list[str], Any]]:
    """Every command with the words that call it."""
    root: Any = typer.main.get_command(cli.cli)
    for name, command in root.commands.items():
        if hasattr(command, "commands"):
            yield from (([name, inner], inner_command) for inner, inner_command in command.commands.items())
        else:
            yield [name], command


# ── help and usage ───────────────────────────────────────────────────────────────────────────────────────────────────


def test_commands_are_those_of_the_design() -> None:
    assert sorted(" ".join(words) for words, _ in commands()) == [
        "backup",
        "doctor",
        "engine",
        "eval",
        "ingest",
        "keys create",
        "keys limit",
        "keys list",
        "keys revoke",
        "models list",
        "models path",
        "models pull",
        "models show",
        "profile",
        "reembed",
        "restore",
        "serve",
        "settings",
        "status",
        "sync",
        "ui",
        "watch",
    ]


@pytest.mark.parametrize("words", [words for words, _ in commands()], ids=" ".join)
def test_help_of_every_command_has_an_example_of_it(words: list[str]) -> None:
    result = CliRunner().invoke(cli.cli, [*words, "--help"])
    assert result.exit_code == 0
    assert "Example: " in result.output
    assert f"ragstone {' '.join(words)} " in " ".join(result.output.split()).replace(" │", "") + " "


def test_every_option_is_explained() -> None:
    for words, command in commands():
        for parameter in command.params:
            assert getattr(parameter, "help", None), f"{words}: {parameter.name}"


def test_version_is_printed() -> None:
    result = CliRunner().invoke(cli.cli, ["--version"])
    assert (result.exit_code, result.output) == (0, f"ragstone {__version__}\n")


@pytest.mark.parametrize(
    "arguments",
    [["serve", "--nonsense"], ["ingest"], ["ingest", "absent.md"], ["models", "path"]],
)
def test_wrong_usage_ends_with_2(arguments: list[str]) -> None:
    assert CliRunner().invoke(cli.cli, arguments).exit_code == 2


def test_wrong_setting_ends_with_2_and_one_line_that_names_it() -> None:
    result = ragstone("serve", RAGSTONE_PORT="many")
    assert result.returncode == 2
    assert result.stderr == (
        "error: environment variable RAGSTONE_PORT is 'many', which is not a whole number from 1 to 65,535\n"
    )


def test_a_number_that_is_none_is_told_as_it_is_of_a_variable() -> None:
    result = ragstone("status", "--port", "abc")
    assert result.returncode == 2
    assert result.stderr == "error: option --port is 'abc', which is not a whole number from 1 to 65,535\n"


def test_unknown_key_in_the_settings_file_ends_with_2(tmp_path: Path) -> None:
    (tmp_path / "mine.toml").write_text("prot = 1\n")
    result = ragstone("status", "--config", "mine.toml")
    assert result.returncode == 2
    assert result.stderr == "error: mine.toml: 'prot' is not a setting; did you mean port?\n"


# ── options become settings ──────────────────────────────────────────────────────────────────────────────────────────


@pytest.fixture
def served(monkeypatch: pytest.MonkeyPatch) -> list[Settings]:
    """Settings that `ragstone serve` was called with, in place of serving."""
    seen: list[Settings] = []

    def remember(settings: Settings) -> int:
        seen.append(settings)
        return 0

    monkeypatch.setattr(process, "serve", remember)
    return seen


def test_every_option_of_serve_reaches_its_setting(served: list[Settings], tmp_path: Path) -> None:
    given: dict[str, tuple[Sequence[str], Any]] = {
        "host": (["--host", "0.0.0.0"], "0.0.0.0"),
        "port": (["--port", "9001"], 9001),
        "ui_port": (["--ui-port", "9002"], 9002),
        "data": (["--data", "here"], tmp_path / "here"),
        "model": (["--model", "me/model"], "me/model"),
        "embedding_model": (["--embedding-model", "me/other"], "me/other"),
        "ui": (["--no-ui"], False),
        "sample_kb": (["--no-sample-kb"], False),
        "device": (["--device", "cpu"], "cpu"),
        "dtype": (["--dtype", "bfloat16"], "bfloat16"),
        "max_model_len": (["--max-model-len", "2048"], 2048),
        "model_cache": (["--model-cache", "/models"], Path("/models")),
        "log_level": (["--log-level", "debug"], "debug"),
    }
    command = next(command for words, command in commands() if words == ["serve"])
    assert {parameter.name for parameter in command.params} == {*given, "config"}
    arguments = [word for words, _ in given.values() for word in words]
    result = CliRunner().invoke(cli.cli, ["serve", *arguments])
    assert result.exit_code == 0, result.output
    for name, (_, value) in given.items():
        assert getattr(served[0], ALIASES.get(name, name)) == value, name


def test_option_left_out_leaves_the_setting_to_environment_and_file(
    served: list[Settings], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "ragstone.toml").write_text('ui = false\nport = 9001\nui_port = 9001\ndata = "from-file"\n')
    monkeypatch.setenv("RAGSTONE_UI_PORT", "9002")
    monkeypatch.setenv("RAGSTONE_PORT", "9002")
    assert CliRunner().invoke(cli.cli, ["serve", "--port", "9003"]).exit_code == 0
    settings = served[0]
    assert (settings.port, settings.ui_port, settings.ui) == (9003, 9002, False)
    assert settings.data_dir == tmp_path / "from-file"


# ── models ───────────────────────────────────────────────────────────────────────────────────────────────────────────


def test_models_path_prints_the_path_and_nothing_else(chat_model_path: Path) -> None:
    result = ragstone("models", "path", "smollm2-135m-instruct", RAGSTONE_MODEL_CACHE=MODELS)
    assert (result.returncode, result.stdout) == (0, f"{chat_model_path}\n")


def test_models_path_of_an_unknown_name_keeps_stdout_empty() -> None:
    result = ragstone("models", "path", "nowhere")
    assert (result.returncode, result.stdout) == (1, "")
    assert result.stderr.startswith("error: model 'nowhere' was not found; tried a local path (nothing at ")


def test_models_list_says_what_is_fetched(chat_model_path: Path, embedding_model_path: Path) -> None:
    def rows(**environment: str) -> list[list[str]]:
        return [line.split() for line in ragstone("models", "list", **environment).stdout.splitlines()]

    assert rows()[0] == ["NAME", "KIND", "SIZE", "FETCHED", "WHAT"]
    assert [row[:5] for row in rows() if row[0] in ("smollm2-135m-instruct", "all-minilm-l6-v2")] == [
        ["smollm2-135m-instruct", "chat", "98", "MB", "no"],
        ["all-minilm-l6-v2", "embedding", "92", "MB", "no"],
    ]
    fetched = [row[4] for row in rows(RAGSTONE_MODEL_CACHE=MODELS) if row[1] in ("chat", "embedding")]
    assert fetched == ["yes", "yes"]


def test_models_pull_checks_what_is_there(chat_model_path: Path) -> None:
    result = ragstone("models", "pull", "smollm2-135m-instruct", "--model-cache", MODELS)
    assert result.returncode == 0
    assert result.stderr == f"smollm2-135m-instruct is at {chat_model_path}\n"


# ── status ───────────────────────────────────────────────────────────────────────────────────────────────────────────


class Health(http.server.ThreadingHTTPServer):
    status = 200
    body: Any = {"status": "ready"}


class HealthHandler(http.server.BaseHTTPRequestHandler):
    server: Health

    def do_GET(self) -> None:
        data = json.dumps(self.server.body).encode() if self.server.body is not None else b"<html>"
        self.send_response(self.server.status if self.path == "/v1/health/ready" else 404)
        self.send_header("Content-Length", str(len(data)))
        self.end_headers()
        self.wfile.write(data)

    def log_message(self, format: str, *args: object) -> None:
        pass


@pytest.fixture
def health() -> Iterator[Health]:
    server = Health(("127.0.0.1", 0), HealthHandler)
    threading.Thread(target=server.serve_forever, daemon=True).start()
    yield server
    server.shutdown()
    server.server_close()


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


def status_rows(*arguments: str) -> tuple[int, dict[str, str]]:
    result = CliRunner().invoke(cli.cli, ["status", *arguments])
    rows = (line.split(maxsplit=1) for line in result.stdout.replace("Chat model", "Chat_model").splitlines())
    return result.exit_code, {row[0]: row[1] for row in rows}


def test_status_of_a_ready_server_ends_with_0(health: Health, tmp_path: Path) -> None:
    ui_port = free_port()
    code, rows = status_rows("--port", str(health.server_port), "--ui-port", str(ui_port))
    assert code == 0
    assert rows == {
        "API": f"http://127.0.0.1:{health.server_port}  ready",
        "Chat": f"http://127.0.0.1:{ui_port}  does not answer",
        "Data": f"{tmp_path}/ragstone-data  (not made yet)",
        "Chat_model": "smollm2-135m-instruct  (is fetched at first start)",
        "Embeddings": "all-minilm-l6-v2  (is fetched at first start)",
        "Index": "none yet",
        "Settings": "no ragstone.toml here",
    }


@pytest.mark.parametrize(
    ("body", "said"),
    [
        ({"status": "starting", "reason": "loading the chat model"}, "starting: loading the chat model"),
        ({"status": "unhealthy", "reason": ""}, "unhealthy"),
        (["no", "object"], "HTTP 503"),
        (None, "HTTP 503"),
    ],
)
def test_status_passes_on_why_a_server_is_not_ready(health: Health, body: Any, said: str) -> None:
    health.status, health.body = 503, body
    code, rows = status_rows("--port", str(health.server_port))
    assert code == 1
    assert rows["API"] == f"http://127.0.0.1:{health.server_port}  {said}"


def test_status_without_a_server_ends_with_1() -> None:
    port = free_port()
    code, rows = status_rows("--port", str(port))
    assert (code, rows["API"]) == (1, f"http://127.0.0.1:{port}  does not answer")


def test_status_finds_a_server_by_its_data_folder(health: Health, tmp_path: Path) -> None:
    there = f"http://127.0.0.1:{health.server_port}  ready"
    settings = Settings(data=tmp_path / "data", port=health.server_port, min_free_bytes=0)
    with preflight.take_data_folder(settings):
        code, rows = status_rows("--data", str(tmp_path / "data"))
        assert (code, rows["API"]) == (0, there)
        port = free_port()
        assert status_rows("--data", str(tmp_path / "data"), "--port", str(port))[1]["API"].startswith(
            f"http://127.0.0.1:{port} "
        )
    # What a server that has ended has left there is not believed.
    assert status_rows("--data", str(tmp_path / "data"))[1]["API"] != there
    assert preflight.running_address(tmp_path / "nothing") == {}


def test_status_does_not_ask_a_proxy(health: Health, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("http_proxy", f"http://127.0.0.1:{free_port()}")
    code, _ = status_rows("--port", str(health.server_port))
    assert code == 0


# ── ingest ───────────────────────────────────────────────────────────────────────────────────────────────────────────


@pytest.fixture
def documents(tmp_path: Path) -> Path:
    folder = tmp_path / "documents"
    (folder / "deep").mkdir(parents=True)
    (folder / "bridge.md").write_text("# The bridge\n\nThe drawbridge of Ystrad opens at half past six.\n")
    (folder / "deep" / "tower.txt").write_text("The watchman of the tower is called Morwenna.\n")
    return folder


def ingest(*arguments: str, data: Path) -> "subprocess.CompletedProcess[str]":
    return ragstone("ingest", *arguments, "--data", str(data), RAGSTONE_MODEL_CACHE=MODELS, OMP_NUM_THREADS="1")


def test_ingest_takes_folders_in_and_the_second_time_changes_nothing(
    documents: Path, tmp_path: Path, embedding_model_path: Path
) -> None:
    first = ingest(str(documents), "--collection", "castle", data=tmp_path / "data")
    assert (first.returncode, first.stdout) == (0, "2 added, 0 updated, 0 unchanged, 0 failed\n"), first.stderr

    (documents / "bridge.md").write_text("# The bridge\n\nThe drawbridge of Ystrad opens at seven.\n")
    second = ingest(str(documents), "--collection", "castle", data=tmp_path / "data")
    assert (second.returncode, second.stdout) == (0, "0 added, 1 updated, 1 unchanged, 0 failed\n"), second.stderr

    from retrieval import Embedder, KnowledgeBase

    knowledge = KnowledgeBase.open(tmp_path / "data" / "knowledge", Embedder(embedding_model_path))
    try:
        best = knowledge.search("Who watches from the tower?", k=1)[0]
        assert (best.collection, Path(best.source).name) == ("castle", "tower.txt")
    finally:
        knowledge.close()


def test_ingest_names_each_file_that_failed_takes_its_neighbours_in_and_ends_with_1(
    documents: Path, tmp_path: Path, embedding_model_path: Path
) -> None:
    (documents / "broken.pdf").write_bytes(b"%PDF-1.7 and then nothing")
    (documents / "empty.md").write_bytes(b"")
    result = ingest(str(documents), data=tmp_path / "data")
    assert (result.returncode, result.stdout) == (1, "2 added, 0 updated, 0 unchanged, 2 failed\n"), result.stderr
    reported = [line for line in result.stderr.splitlines() if line.startswith("not taken in: ")]
    assert sorted(Path(line.removeprefix("not taken in: ").split(": ")[0]).name for line in reported) == [
        "broken.pdf",
        "empty.md",
    ]
    assert "Traceback" not in result.stderr


def test_sync_takes_folders_and_addresses_and_tells_what_is_none(
    documents: Path, tmp_path: Path, embedding_model_path: Path
) -> None:
    command = (
        "sync",
        str(documents),
        "http://127.0.0.1:9/page",
        "file:///etc/passwd",
        "--data",
        str(tmp_path / "data"),
    )
    result = ragstone(*command, RAGSTONE_MODEL_CACHE=MODELS, OMP_NUM_THREADS="1")
    assert (result.returncode, result.stdout) == (1, "2 added, 0 updated, 0 unchanged, 2 failed\n"), result.stderr
    assert "127.0.0.1 is in a private network (127.0.0.1): add --private if you mean it" in result.stderr
    assert "'file:///etc/passwd' is not fetched: only http:// and https:// addresses are" in result.stderr


def test_sync_of_what_is_no_folder_is_wrong_usage(tmp_path: Path) -> None:
    result = CliRunner().invoke(cli.cli, ["sync", str(tmp_path / "none"), "--data", str(tmp_path / "data")])
    assert result.exit_code == 2


def test_ingest_into_a_folder_that_cannot_be_written_says_where(documents: Path) -> None:
    result = ragstone("ingest", str(documents), "--data", "/proc/sys")
    assert result.returncode == 1
    assert "error: the data folder /proc/sys cannot be written" in result.stderr


def test_ingest_passes_on_what_is_wrong_with_the_store(
    documents: Path, tmp_path: Path, embedding_model_path: Path
) -> None:
    (tmp_path / "data").mkdir()
    (tmp_path / "data" / "knowledge").write_text("a file where the store's folder should be")
    result = ingest(str(documents), data=tmp_path / "data")
    assert result.returncode == 1
    assert result.stdout == ""
    assert str(tmp_path / "data" / "knowledge") in result.stderr
    assert "Traceback" not in result.stderr


# ── models show ──────────────────────────────────────────────────────────────────────────────────────────────────────


def shown(folder: Path, *options: str) -> Any:
    result = CliRunner().invoke(cli.cli, ["models", "show", str(folder), "--device", "cpu", *options])
    assert result.exit_code == 0, result.output
    return json.loads(result.stdout) if "--json" in options else result.stdout


def test_models_show_prints_the_shape_the_sizes_and_the_arithmetic(tmp_path: Path) -> None:
    save_tiny_model("llama", tmp_path)
    text = shown(tmp_path, "--dtype", "float32")
    assert "LlamaForCausalLM, 64,368 parameters" in text
    assert "256 bytes = 2 × 2 layers × 2 heads × 8 × 4 bytes" in text
    assert "257,472 bytes      0.00 GiB  float32  ← served here" in text
    assert "128,736 bytes      0.00 GiB  bfloat16" in text
    assert "packed weights are not possible: the model has a hidden_size of 48" in text
    assert "available now" in text
    assert "up to 16 sequences at once, 256 blocks of 16 tokens: 4,096 tokens" in text


def test_models_show_in_json_adds_up(tmp_path: Path) -> None:
    save_tiny_model("qwen3", tmp_path)
    sheet = shown(tmp_path, "--json", "--max-model-len", "128", "--dtype", "bfloat16")
    assert (sheet["architecture"], sheet["num_layers"], sheet["context"]) == ("Qwen3ForCausalLM", 2, 256)
    assert (sheet["num_heads"], sheet["num_kv_heads"], sheet["kv_bytes_per_token"]) == (6, 2, 128)
    assert sheet["weight_bytes"]["float32"] == 4 * sheet["num_parameters"] == 2 * sheet["weight_bytes"]["bfloat16"]
    assert sheet["stored_types"] == ["F32"]
    largest = sheet["largest"]
    assert sum(part["bytes"] for part in largest["parts"]) == largest["needed_bytes"] <= largest["available_bytes"]
    assert largest["sequences"] == {"128": largest["tokens"] // 128}
    assert sheet["served"]["kv_tokens"] == 16 * 128
    assert sheet["served"]["fits"] is True


@pytest.mark.parametrize(
    ("architectures", "says"),
    [(["MambaForCausalLM"], "supported: LlamaForCausalLM"), ([], "architecture 'none' is not supported")],
)
def test_models_show_says_what_is_wrong_with_a_model(tmp_path: Path, architectures: list[str], says: str) -> None:
    save_tiny_model("llama", tmp_path)
    config = json.loads((tmp_path / "config.json").read_text())
    (tmp_path / "config.json").write_text(json.dumps({**config, "architectures": architectures}))
    result = ragstone("models", "show", str(tmp_path))
    assert result.returncode == 1
    assert says in result.stderr
    assert "Traceback" not in result.stderr
