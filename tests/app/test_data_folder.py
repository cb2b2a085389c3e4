"""The data folder is its owner's alone, and what keeps its files from being opened is told in words."""

import os
import signal
import sqlite3
import subprocess
import sys
import tempfile
from contextlib import closing
from pathlib import Path

import pytest

from app.api_keys import KeyStore
from app.backup import backup, restore
from app.database_file import errors_of, open_database
from app.doctor import examine
from app.engines.socket_folder import make_folder
from app.errors import DataFolderError
from app.settings import Settings
from app.sqlite_history import SQLiteConversationStore
from app.usage import UsageStore

REPOSITORY = Path(__file__).resolve().parents[2]


def mode(path: Path) -> int:
    return path.stat().st_mode & 0o777


def ragstone(*arguments: str) -> None:
    subprocess.run([sys.executable, "-m", "app", *arguments], cwd=REPOSITORY, check=True, capture_output=True)


# ── whose it is ──────────────────────────────────────────────────────────────────────────────────────────────────────


def test_nobody_else_can_read_what_commands_write(tmp_path: Path) -> None:
    data, page = tmp_path / "data", tmp_path / "page.md"
    page.write_text("# Leave\n\nEmployees earn six hours of leave.\n")
    ragstone("ingest", str(page), "--data", str(data))
    ragstone("keys", "create", "anna", "--data", str(data))
    written = [data, *data.rglob("*")]
    assert len(written) > 5
    assert [path for path in written if mode(path) & 0o077] == []


@pytest.mark.parametrize("make", [SQLiteConversationStore, UsageStore, KeyStore])
def test_databases_are_their_owners_whatever_the_umask(make: type, tmp_path: Path) -> None:
    before = os.umask(0o022)
    try:
        with closing(make(tmp_path / "new" / "file.sqlite3")):
            assert {mode(path) for path in (tmp_path / "new").iterdir()} == {0o600}
    finally:
        os.umask(before)


def test_a_backup_is_nobody_elses_whatever_was_left_over_and_neither_is_what_is_restored(tmp_path: Path) -> None:
    settings, archive = Settings(data_dir=tmp_path / "data"), tmp_path / "b.tar.gz"
    SQLiteConversationStore(settings.history_path).close()
    (settings.data_dir / "files").mkdir(mode=0o755)
    (settings.data_dir / "files" / "original.txt").write_text("mine")
    for path in (settings.history_path, settings.data_dir / "files" / "original.txt"):
        path.chmod(0o644)
    part = tmp_path / "b.tar.gz.part"
    part.write_bytes(b"of a backup that was killed")
    part.chmod(0o644)
    backup(settings, archive)
    assert mode(archive) == 0o600
    restored = tmp_path / "restored"
    restored.mkdir(mode=0o755)
    restore(Settings(data_dir=restored), archive)
    assert {path.name: mode(path) for path in restored.rglob("*")} == {
        "history.sqlite3": 0o600,
        "files": 0o700,
        "original.txt": 0o600,
    }


def test_doctor_tells_of_a_folder_that_others_may_read(tmp_path: Path) -> None:
    settings = Settings(data_dir=tmp_path / "data", ui=False, host="127.0.0.1")
    settings.data_dir.mkdir()
    settings.data_dir.chmod(0o755)
    SQLiteConversationStore(settings.history_path).close()
    assert [finding.state for finding in examine(settings) if finding.what == "data folder"] == ["ok"]
    settings.history_path.chmod(0o644)
    (finding,) = (finding for finding in examine(settings) if finding.what == "data folder")
    assert (finding.state, finding.advice) == ("warning", f"chmod -R go-rwx {settings.data_dir}")
    assert "others may read history.sqlite3" in finding.found


# ── what keeps a file from being opened ──────────────────────────────────────────────────────────────────────────────


def test_a_file_that_another_program_holds_is_told_so(tmp_path: Path) -> None:
    path = tmp_path / "file.sqlite3"
    with (
        closing(sqlite3.connect(path, isolation_level=None)) as other,
        closing(open_database(path, "notes", wait_s=0.1)) as mine,
    ):
        other.execute("BEGIN EXCLUSIVE")
        with (
            pytest.raises(DataFolderError, match=r"file\.sqlite3: notes cannot be kept there: another program"),
            errors_of(path, "notes", wait_s=0.1),
        ):
            mine.execute("CREATE TABLE t (x)")


@pytest.mark.parametrize("make", [SQLiteConversationStore, UsageStore, KeyStore])
def test_a_damaged_file_and_a_place_that_is_none_are_told(make: type, tmp_path: Path) -> None:
    path = tmp_path / "file.sqlite3"
    path.write_text("no database, whatever its name says, and long enough to have a header" * 20)
    with pytest.raises(DataFolderError, match="cannot be read: the file is damaged, or no database"):
        make(path)
    (tmp_path / "folder.sqlite3").mkdir()
    with pytest.raises(DataFolderError, match=r"cannot be kept there: .*; make the file and its folder writable"):
        make(tmp_path / "folder.sqlite3")


# ── where an engine's socket is ──────────────────────────────────────────────────────────────────────────────────────


def test_the_folder_of_a_killed_servers_socket_is_removed_at_the_next_start() -> None:
    program = """
import sys, time; from pathlib import Path; from app.engines.socket_folder import make_folder
folder = make_folder(Path(sys.argv[1])); print(folder.name, flush=True); time.sleep(600)"""
    with tempfile.TemporaryDirectory(dir="/tmp") as short:
        command = [sys.executable, "-c", program, short]
        with subprocess.Popen(command, cwd=REPOSITORY, stdout=subprocess.PIPE, text=True) as child:
            assert child.stdout is not None
            theirs = Path(child.stdout.readline().strip())
            make_folder(Path(short)).cleanup()
            assert theirs.is_dir()  # its process runs
            child.send_signal(signal.SIGKILL)
        with make_folder(Path(short)) as mine:
            assert (theirs.exists(), mode(Path(mine)), Path(mine).parent) == (False, 0o700, Path(short) / "tmp")


def test_where_the_data_folders_path_is_too_long_for_a_socket_it_is_in_tmp(tmp_path: Path) -> None:
    with make_folder(tmp_path / ("long" * 30)) as folder:
        assert Path(folder).parent == Path("/tmp")
