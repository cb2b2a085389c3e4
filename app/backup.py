"""`ragstone backup` and `restore`: everything that cannot be made again, in one archive, while the server runs or not.

Databases are copied by SQLite's own backup, so that each is whole in itself. What can be fetched or made again (models,
caches, the UI's temporary files) stays out; indexes are made again from the catalog.
"""

import contextlib
import json
import os
import shutil
import sqlite3
import tarfile
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path

from app import __version__
from app.errors import DataFolderError, RagstoneError
from app.settings import Settings

MANIFEST = "ragstone-backup.json"
FORMAT = 1
# By the name of what lies directly in the data folder, or anywhere in it.
LEFT_OUT = frozenset({"models", "cache", "tmp", "ui", "uploads", "server.lock"})
SQLITE_MAGIC = b"SQLite format 3\0"
SQLITE_COMPANIONS = ("-wal", "-shm", "-journal")


class BackupError(RagstoneError):
    """An archive that cannot be written, read, or put where it should go."""

    code = "backup_failed"


def backup(settings: Settings, archive: Path) -> int:
    """Writes the archive (.tar.gz); the number of files in it. Raises BackupError, and then leaves none behind."""
    data = settings.data_dir
    if not data.is_dir():
        raise BackupError(f"there is no data folder {data}: name the right one with --data")
    if archive.exists():
        raise BackupError(f"{archive} exists already: choose another name, or remove it first")
    if not archive.parent.is_dir():
        raise BackupError(f"there is no folder {archive.parent}: make it, or write {archive.name} somewhere else")
    part = archive.with_name(archive.name + ".part")
    count = 0
    try:
        part.unlink(missing_ok=True)  # one that was left over may be anybody's to read
        part.touch(mode=0o600, exist_ok=False)  # keys and conversations are nobody else's
        with tempfile.TemporaryDirectory() as folder, tarfile.open(part, "w:gz") as tar:
            manifest = Path(folder) / MANIFEST
            manifest.write_text(json.dumps({"format": FORMAT, "version": __version__, "made_at": int(time.time())}))
            tar.add(manifest, MANIFEST)
            for path in _files(data):
                source = _whole_copy(path, Path(folder)) if _is_sqlite(path) else path
                with contextlib.suppress(FileNotFoundError):  # gone since it was listed
                    tar.add(source, str(path.relative_to(data)), recursive=False)
                    count += 1
        os.replace(part, archive)
    except (OSError, sqlite3.Error, tarfile.TarError) as error:
        raise BackupError(f"{archive} could not be written: {_reason(error)}") from error
    finally:
        part.unlink(missing_ok=True)
    return count


def restore(settings: Settings, archive: Path) -> int:
    """Puts an archive's files into the data folder, which must hold none of them; the number of files.

    Raises BackupError for what is no backup of ours, DataFolderError where something is in the way.
    """
    if not archive.is_file():
        what = "is a folder" if archive.is_dir() else "does not exist"
        raise BackupError(f"{archive} {what}: name an archive that `ragstone backup` wrote")
    data = settings.data_dir
    occupied = sorted(path.name for path in data.iterdir() if path.name not in LEFT_OUT) if data.is_dir() else []
    if occupied:
        raise DataFolderError(
            f"the data folder {data} holds something already ({', '.join(occupied[:5])}): restore into another with "
            "--data, or move it away",
            folder=data,
        )
    data.parent.mkdir(parents=True, exist_ok=True)
    # Unpacked beside it first, so that a broken archive leaves nothing half restored.
    staging = Path(tempfile.mkdtemp(prefix=".restore-", dir=data.parent))
    try:
        with tarfile.open(archive, "r:gz") as tar:
            tar.extractall(staging, filter="data")
        _check_manifest(staging / MANIFEST, archive)
        (staging / MANIFEST).unlink()
        data.mkdir(exist_ok=True)
        count = 0
        for path in staging.rglob("*"):  # nobody else's, whatever it was where it comes from
            path.chmod(0o700 if path.is_dir() else 0o600)
            count += path.is_file()
        for path in staging.iterdir():
            os.replace(path, data / path.name)
        return count
    except (OSError, tarfile.TarError, EOFError) as error:
        raise BackupError(f"{archive} cannot be restored: {_reason(error)}") from error
    finally:
        shutil.rmtree(staging, ignore_errors=True)


def _reason(error: Exception) -> str:
    """Without the number of a system's error and the path of a temporary file."""
    return (isinstance(error, OSError) and error.strerror) or str(error)


def _files(data: Path) -> Iterator[Path]:
    for folder, folders, names in os.walk(data):
        at_root = Path(folder) == data
        if at_root:
            folders[:] = sorted(name for name in folders if name not in LEFT_OUT)
        for name in sorted(names):
            path = Path(folder) / name
            if (at_root and name in LEFT_OUT) or name.endswith(SQLITE_COMPANIONS) or not path.is_file():
                continue
            yield path


def _is_sqlite(path: Path) -> bool:
    with contextlib.suppress(OSError), path.open("rb") as file:
        return file.read(len(SQLITE_MAGIC)) == SQLITE_MAGIC
    return False


def _whole_copy(path: Path, folder: Path) -> Path:
    """A copy of a database as it is at one moment, with what its log holds."""
    copy = folder / "copy.sqlite3"
    copy.unlink(missing_ok=True)
    with (
        contextlib.closing(sqlite3.connect(path, timeout=30)) as source,
        contextlib.closing(sqlite3.connect(copy)) as target,
    ):
        source.backup(target)
    copy.chmod(path.stat().st_mode & 0o777)
    return copy


def _check_manifest(manifest: Path, archive: Path) -> None:
    try:
        form = json.loads(manifest.read_text(encoding="utf-8"))["format"]
    except (OSError, ValueError, LookupError, TypeError):
        raise BackupError(f"{archive} is no backup of Ragstone's") from None
    if form != FORMAT:
        raise BackupError(
            f"{archive} is of format {form}, and this version reads {FORMAT}: use the version that made it"
        )
