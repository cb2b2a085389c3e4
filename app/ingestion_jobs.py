"""Ingestion in the background: jobs that stand in the data folder until they are done, taken one after another.

A job is a folder with its files and `job.json`, which says how far it is. What was accepted is done also when the
process ends in between: the next one goes on, and files that are in already change nothing. Knows no HTTP.
"""

import json
import logging
import os
import re
import secrets
import shutil
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any, Literal, Protocol

from app.errors import RequestError
from retrieval.records import IngestResult

logger = logging.getLogger(__name__)

JobStatus = Literal["queued", "running", "done", "failed", "cancelled"]
FileStatus = Literal["queued", "running", "added", "updated", "unchanged", "failed", "cancelled"]

MAX_UNFINISHED = 100
# How long it is told what became of a job.
KEPT_S = 24 * 3600.0
# How long the end of the process waits for the file at hand.
CLOSE_S = 5.0
# Until it is known how much there is to embed, a file has come so far.
_READ = 0.1
_ID = re.compile(r"[0-9a-f]{32}")
_MANIFEST = "job.json"

Embedded = Callable[[int, int], None]


class _CalledOffError(Exception):
    """Ends the taking in of a file whose job is called off."""


class TooManyJobsError(RequestError):
    """More waits than is taken on."""

    code = "too_many_jobs"
    status_code = 429
    retry_after_s = 10.0

    def __init__(self) -> None:
        super().__init__(f"{MAX_UNFINISHED} ingestion jobs wait already: send this one when some are done")


@dataclass
class JobFile:
    """One file of a job. `stored` is its name in the job's folder; `reason` why it failed, or what was not read."""

    name: str
    stored: str
    status: FileStatus = "queued"
    progress: float = 0.0
    num_chunks: int = 0
    num_pages: int = 0
    document_id: str | None = None
    reason: str | None = None


@dataclass
class Job:
    """Files to take into one collection of a user. `created_at` and `ended_at` are seconds since the epoch.

    `private`: see `KnowledgeBase.ingest_file`.
    """

    job_id: str
    user: str
    collection: str
    files: list[JobFile]
    created_at: float
    private: bool | None = None
    ended_at: float | None = None
    is_called_off: bool = False
    version: int = field(default=0, compare=False)
    """Grows with every change, for those who watch it."""

    @property
    def status(self) -> JobStatus:
        statuses = {file.status for file in self.files}
        if "running" in statuses:
            return "running"
        if "queued" in statuses:
            return "queued" if statuses == {"queued"} else "running"
        if "cancelled" in statuses:
            return "cancelled"
        return "failed" if statuses == {"failed"} else "done"

    @property
    def is_finished(self) -> bool:
        return self.status in ("done", "failed", "cancelled")


class Ingest(Protocol):
    """Takes one file of a job in, and tells what became of it. `name` is what the client called it."""

    def __call__(self, path: Path, name: str, job: Job, embedded: Embedded) -> IngestResult: ...


class IngestionJobs:
    """The jobs in `folder`, worked on by one thread from `start` to `close`. Thread-safe."""

    def __init__(self, folder: Path, ingest: Ingest) -> None:
        self._folder = folder
        self._ingest = ingest
        self._lock = threading.Lock()
        self._saving = threading.Lock()
        self._wake = threading.Event()
        self._closing = False
        self._jobs: dict[str, Job] = {}
        self._thread: threading.Thread | None = None

    def start(self) -> None:
        """Takes up what an earlier process has left, and works from now on."""
        for job in self._left():
            self._jobs[job.job_id] = job
        self._thread = threading.Thread(target=self._work, name="ingestion", daemon=True)
        self._thread.start()

    def close(self) -> None:
        """Ends after the file at hand, or after a while; the rest is for the next process."""
        self._closing = True
        self._wake.set()
        if self._thread is not None:
            self._thread.join(CLOSE_S)

    def new_folder(self) -> Path:
        """A folder for the files of a job, which `add` accepts or `discard` drops. Raises TooManyJobsError."""
        with self._lock:
            if sum(not job.is_finished for job in self._jobs.values()) >= MAX_UNFINISHED:
                raise TooManyJobsError
        folder = self._folder / secrets.token_hex(16)
        folder.mkdir(parents=True)
        return folder

    def discard(self, folder: Path) -> None:
        """Drops a folder whose job never came to be."""
        shutil.rmtree(folder, ignore_errors=True)

    def add(
        self, folder: Path, user: str, collection: str, files: Sequence[JobFile], *, private: bool | None = None
    ) -> Job:
        """Accepts a job; when this returns it is on the disk. A file that has failed already is only told of."""
        job = Job(folder.name, user, collection, list(files), time.time(), private)
        self._save(job)
        with self._lock:
            self._jobs[job.job_id] = job
        self._wake.set()
        return job

    def get(self, user: str, job_id: str) -> Job | None:
        """A job of the user; None where there is none of that id, or none any more."""
        with self._lock:
            job = self._jobs.get(job_id)
        return job if job is not None and job.user == user else None

    def cancel(self, job: Job) -> None:
        """What has not begun will not begin; the file at hand is left before its next batch of texts is embedded."""
        with self._lock:
            if job.is_finished:
                return
            job.is_called_off = True
            for file in job.files:
                if file.status == "queued":
                    file.status = "cancelled"
        self._changed(job)

    # ── working ──────────────────────────────────────────────────────────────────────────────────────────────────────

    def _work(self) -> None:
        while not self._closing:
            self._wake.clear()
            self._forget_old()
            for job, file in iter(self._next, None):
                self._take_in(job, file)
            self._wake.wait(60.0)

    def _next(self) -> tuple[Job, JobFile] | None:
        """The next file, marked as running; jobs in the order in which they came."""
        with self._lock:
            if self._closing:
                return None
            for job in sorted(self._jobs.values(), key=lambda job: job.created_at):
                for file in job.files:
                    if file.status == "queued":
                        file.status = "running"
                        job.version += 1
                        return job, file
        return None

    def _take_in(self, job: Job, file: JobFile) -> None:
        path = self._folder / job.job_id / file.stored

        def embedded(done: int, of: int) -> None:
            if job.is_called_off and done < of:
                raise _CalledOffError
            file.progress = round(_READ + (1 - _READ) * done / max(1, of), 3)
            job.version += 1

        try:
            result = self._ingest(path, file.name, job, embedded)
        except _CalledOffError:
            file.status, file.progress = "cancelled", 0.0
        except Exception as error:
            if self._closing:
                return  # the store was closed under it: the next process takes it up
            known = hasattr(type(error), "code")
            logger.error("ingestion of a file failed: %s", error, exc_info=None if known else error)
            file.status = "failed"
            file.reason = str(error) if known else "internal error; the server's log has the details"
        else:
            assert result.status != "removed", "a file that is here has not vanished"
            file.status, file.reason, file.document_id = result.status, result.reason, result.document_id
            file.num_chunks, file.num_pages = result.num_chunks, result.num_pages
            file.progress = 0.0 if result.status == "failed" else 1.0
        logger.info("ingestion job %s: a file is %s", job.job_id, file.status)
        path.unlink(missing_ok=True)
        self._changed(job)

    def _changed(self, job: Job) -> None:
        with self._lock:
            if job.is_finished and job.ended_at is None:
                job.ended_at = time.time()
                for path in (self._folder / job.job_id).iterdir():
                    if path.name != _MANIFEST:
                        path.unlink(missing_ok=True)
        self._save(job)
        job.version += 1

    # ── on disk ──────────────────────────────────────────────────────────────────────────────────────────────────────

    def _save(self, job: Job) -> None:
        path = self._folder / job.job_id / _MANIFEST
        aside = path.with_suffix(".new")
        with self._saving:  # so that who comes last writes what is newest
            with aside.open("w", encoding="utf-8") as file:
                json.dump({name: value for name, value in asdict(job).items() if name != "version"}, file)
                file.flush()
                os.fsync(file.fileno())
            os.replace(aside, path)

    def _left(self) -> Iterator[Job]:
        """Jobs of earlier processes; folders that never became one are dropped."""
        if not self._folder.is_dir():
            return
        for folder in self._folder.iterdir():
            try:
                given: dict[str, Any] = json.loads((folder / _MANIFEST).read_text(encoding="utf-8"))
                files = [JobFile(**file) for file in given.pop("files")]
                job = Job(files=files, **given)
            except (OSError, ValueError, TypeError, KeyError):
                if _ID.fullmatch(folder.name):
                    shutil.rmtree(folder, ignore_errors=True)
                continue
            for file in job.files:
                if file.status == "running":
                    file.status, file.progress = "queued", 0.0
            yield job

    def _forget_old(self) -> None:
        limit = time.time() - KEPT_S
        with self._lock:
            old = [job for job in self._jobs.values() if job.ended_at is not None and job.ended_at < limit]
            for job in old:
                del self._jobs[job.job_id]
        for job in old:
            shutil.rmtree(self._folder / job.job_id, ignore_errors=True)
