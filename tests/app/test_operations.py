"""What keeps a server running: backup and restore, the doctor, the table of settings, and the dashboard."""

import json
import os
import re
import sqlite3
import tarfile
from contextlib import closing
from pathlib import Path

import pytest
import torch
from typer.testing import CliRunner

from app import cli
from app.api_keys import KeyStore
from app.backup import MANIFEST, BackupError, backup, restore
from app.doctor import examine
from app.engines.client import RequestTimes
from app.errors import DataFolderError
from app.history import TurnResult
from app.metrics import ServerMetrics
from app.settings import Settings
from app.settings_table import in_force, markdown_table
from app.sqlite_history import SQLiteConversationStore
from engine.outputs import EngineStats

REPOSITORY = Path(__file__).resolve().parents[2]


# ── backup and restore ───────────────────────────────────────────────────────────────────────────────────────────────


@pytest.fixture
def filled(tmp_path: Path) -> Settings:
    settings = Settings(data_dir=tmp_path / "data")
    store = SQLiteConversationStore(settings.history_path)
    index = store.begin_turn("local", "s", "What?")
    store.finish_turn("local", "s", index, TurnResult(answer="That."))
    store.close()
    (settings.data_dir / "files" / "ab").mkdir(parents=True)
    (settings.data_dir / "files" / "ab" / "original.pdf").write_bytes(b"%PDF")
    (settings.data_dir / "models").mkdir()
    (settings.data_dir / "models" / "big.gguf").write_bytes(b"fetched again")
    return settings


def test_everything_comes_back_even_what_only_the_log_of_a_database_holds(filled: Settings, tmp_path: Path) -> None:
    # A server holds the store open and has just written: that turn is in the write-ahead log only.
    with closing(SQLiteConversationStore(filled.history_path)) as running:
        running.begin_turn("local", "late", "And this?")
        archive = tmp_path / "b.tar.gz"
        assert backup(filled, archive) == 2
    restored = Settings(data_dir=tmp_path / "elsewhere" / "data")
    assert restore(restored, archive) == 2
    with closing(SQLiteConversationStore(restored.history_path)) as store:
        assert [entry.session_id for entry in store.conversations("local")] == ["late", "s"]
        assert [turn.answer for turn in store.turns("local", "s")] == ["That."]
    assert (restored.data_dir / "files" / "ab" / "original.pdf").read_bytes() == b"%PDF"
    assert not (restored.data_dir / "models").exists()


def test_keys_stay_readable_by_their_owner_only(filled: Settings, tmp_path: Path) -> None:
    with closing(KeyStore(filled.keys_path)) as keys:
        key, _ = keys.create("ada")
    backup(filled, tmp_path / "b.tar.gz")
    restored = Settings(data_dir=tmp_path / "restored")
    restore(restored, tmp_path / "b.tar.gz")
    with closing(KeyStore(restored.keys_path)) as keys:
        assert keys.recognise(key).user == "ada"
    assert restored.keys_path.stat().st_mode & 0o777 == 0o600


def test_restore_never_writes_over_what_is_there(filled: Settings, tmp_path: Path) -> None:
    backup(filled, tmp_path / "b.tar.gz")
    with pytest.raises(DataFolderError, match=r"holds something already \(files, history"):
        restore(filled, tmp_path / "b.tar.gz")
    with pytest.raises(BackupError, match="exists already"):
        backup(filled, tmp_path / "b.tar.gz")


def test_broken_and_foreign_archives_leave_nothing_behind(filled: Settings, tmp_path: Path) -> None:
    backup(filled, tmp_path / "b.tar.gz")
    whole = (tmp_path / "b.tar.gz").read_bytes()
    (tmp_path / "cut.tar.gz").write_bytes(whole[: len(whole) // 2])
    with tarfile.open(tmp_path / "foreign.tar.gz", "w:gz") as tar:
        tar.add(filled.history_path, "history.sqlite3")
    (tmp_path / "text.tar.gz").write_text("no archive")
    with tarfile.open(tmp_path / "evil.tar.gz", "w:gz") as tar:
        tar.add(filled.history_path, "../escaped.sqlite3")
    place = tmp_path / "place"
    place.mkdir()
    for name in ("cut", "foreign", "text", "evil"):
        with pytest.raises(BackupError):
            restore(Settings(data_dir=place / "data"), tmp_path / f"{name}.tar.gz")
        assert list(place.iterdir()) == []
    assert not (tmp_path / "escaped.sqlite3").exists()


def test_places_that_are_none_are_told_with_what_to_do(filled: Settings, tmp_path: Path) -> None:
    absent = tmp_path / "no" / "b.tar.gz"
    with pytest.raises(BackupError) as unwritten:
        backup(filled, absent)
    assert unwritten.value.message == (f"there is no folder {tmp_path}/no: make it, or write b.tar.gz somewhere else")
    for archive, what in ((absent, "does not exist"), (tmp_path, "is a folder")):
        with pytest.raises(BackupError) as unread:
            restore(Settings(data_dir=tmp_path / "new" / "data"), archive)
        assert unread.value.message == f"{archive} {what}: name an archive that `ragstone backup` wrote"
    assert not (tmp_path / "new").exists()


def test_backup_of_another_format_says_which_it_reads(filled: Settings, tmp_path: Path) -> None:
    (tmp_path / MANIFEST).write_text(json.dumps({"format": 99}))
    with tarfile.open(tmp_path / "new.tar.gz", "w:gz") as tar:
        tar.add(tmp_path / MANIFEST, MANIFEST)
    with pytest.raises(BackupError, match="is of format 99, and this version reads 1"):
        restore(Settings(data_dir=tmp_path / "x"), tmp_path / "new.tar.gz")


def test_commands_say_what_they_did(filled: Settings, tmp_path: Path) -> None:
    run = CliRunner().invoke
    archive = str(tmp_path / "b.tar.gz")
    assert run(cli.cli, ["backup", archive, "--data", str(filled.data_dir)]).output.startswith("2 files of ")
    assert Path(archive).stat().st_mode & 0o077 == 0
    restored = run(cli.cli, ["restore", archive, "--data", str(tmp_path / "new")])
    assert restored.output == f"2 files restored into {tmp_path / 'new'}\n"
    assert sqlite3.connect(tmp_path / "new" / "history.sqlite3").execute("PRAGMA integrity_check").fetchone() == ("ok",)


# ── doctor ───────────────────────────────────────────────────────────────────────────────────────────────────────────


def test_doctor_finds_what_would_keep_a_server_from_starting(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("RAGSTONE_PROT", "1")
    settings = Settings(
        data_dir=tmp_path, host="0.0.0.0", port=9, ui_port=9, device="cuda", model=str(tmp_path / "absent.gguf"),
        min_free_bytes=1 << 60,
    )  # fmt: skip
    found = {finding.what: finding for finding in examine(settings) if finding.state == "problem"}
    assert set(found) >= {"ports", "data folder", "API keys", "chat model"}
    assert all(finding.advice for finding in found.values())
    assert "ragstone keys create" in found["API keys"].advice


def test_doctor_is_content_with_a_good_place(tmp_path: Path) -> None:
    settings = Settings(data_dir=tmp_path, port=free_port(), ui=False, min_free_bytes=0)
    states = {finding.what: finding.state for finding in examine(settings)}
    assert {"ports": "ok", "data folder": "ok", "API keys": "ok"}.items() <= states.items()


@pytest.mark.parametrize(
    ("cuda", "found", "advice"),
    [
        (None, "there is one, driver 580.65.06, and torch is a CPU build", "make install RAGSTONE_EXTRA=gpu"),
        ("13.0", "there is one, driver 580.65.06, and torch cannot use it", "install a driver for CUDA 13.0"),
    ],
)
def test_doctor_tells_the_driver_of_a_card_that_torch_cannot_use(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, cuda: str | None, found: str, advice: str
) -> None:
    program = tmp_path / "nvidia-smi"  # there is no card here
    program.write_text("#!/bin/sh\necho 580.65.06\n")
    program.chmod(0o755)
    monkeypatch.setenv("PATH", str(tmp_path), prepend=os.pathsep)
    monkeypatch.setattr(torch.version, "cuda", cuda)
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    (finding,) = (each for each in examine(Settings(data_dir=tmp_path / "data")) if each.what == "GPU")
    assert (finding.state, finding.found) == ("warning", found)
    assert advice in finding.advice


def free_port() -> int:
    import socket

    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


# ── settings ─────────────────────────────────────────────────────────────────────────────────────────────────────────


def test_documented_settings_are_those_of_the_code() -> None:
    """After a change: ragstone settings --markdown > docs/settings.md"""
    assert (REPOSITORY / "docs" / "settings.md").read_text(encoding="utf-8") == markdown_table()


def test_settings_in_force_show_no_key() -> None:
    shown = dict(in_force(Settings(engine_api_key="secret", port=9001)))
    assert (shown["engine_api_key"], shown["port"]) == ("(set)", "9001")


# ── dashboard ────────────────────────────────────────────────────────────────────────────────────────────────────────


def test_dashboard_asks_for_metrics_that_there_are() -> None:
    metrics = ServerMetrics()
    metrics.watch("m", lambda: EngineStats(0, 0, 1, 1, 0, 0, 0, 0, 0, 0, 0, num_accepted_by_position=(1,)))
    metrics.observe("m", RequestTimes(tenant="t", num_output_tokens=1))
    metrics.refused.labels("t", "concurrency").inc()
    metrics.degraded.labels("fewer-passages").inc()
    page = metrics.render().decode()
    known = set(re.findall(r"^# TYPE (\S+)", page, flags=re.MULTILINE)) | set(
        re.findall(r"^([\w:]+)[ {]", page, flags=re.MULTILINE)
    )
    dashboard = json.loads(
        (REPOSITORY / "deploy" / "grafana" / "dashboards" / "ragstone.json").read_text(encoding="utf-8")
    )
    asked = [target["expr"] for panel in dashboard["panels"] for target in panel.get("targets", [])]
    named = {name for expression in asked for name in re.findall(r"ragstone:\w+", expression)}
    assert len(named) > 10
    # A histogram that has seen nothing yet has no buckets on the page.
    histograms = {name for name in known if f"# TYPE {name} histogram" in page}
    known |= {f"{name}_{part}" for name in histograms for part in ("bucket", "sum", "count")}
    assert named <= known
