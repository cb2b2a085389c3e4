"""Requests that are answered later: taken down while the server is under load, worked on one by one when it is not.

Kept in one SQLite file of the data folder: what was accepted is answered also after a restart, and what was being
answered when the server ended is asked again. How a request is answered is the caller's to say (`answer`).
"""

import asyncio
import json
import logging
import threading
import time
import uuid
from collections.abc import Callable, Coroutine
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

from app.database_file import errors_of, open_database
from app.errors import RequestError
from app.principal import Principal

logger = logging.getLogger(__name__)

JobState = Literal["queued", "running", "done", "failed"]

# How long an answer is kept after it is ready.
KEPT_S = 24 * 3600
# Most requests that may wait; further ones are refused.
MAX_WAITING = 1_000
# A request that has waited so long is answered although the server is still under load.
MAX_WAIT_S = 600.0
# How often the load is looked at while requests wait.
LOOK_S = 0.2

SCHEMA = """
CREATE TABLE IF NOT EXISTS jobs (
    job_id TEXT PRIMARY KEY,
    user TEXT NOT NULL,
    principal TEXT NOT NULL,
    path TEXT NOT NULL,
    priority TEXT NOT NULL,
    is_private INTEGER NOT NULL,
    body BLOB NOT NULL,
    state TEXT NOT NULL,
    status_code INTEGER,
    content_type TEXT,
    result BLOB,
    created_at REAL NOT NULL,
    ended_at REAL
) STRICT;
CREATE INDEX IF NOT EXISTS jobs_by_state ON jobs (state, created_at);
"""
_COLUMNS = (
    "job_id, user, principal, path, priority, is_private, body, state, status_code, content_type, result, created_at, "
    "ended_at"
)


@dataclass(frozen=True)
class Answer:
    """What a route has answered."""

    status_code: int
    content_type: str
    body: bytes


@dataclass(frozen=True)
class AnswerJob:
    """A request to a route and what became of it. Times are seconds since 1970.

    `is_private`: it may be shown to models of this machine only.
    """

    job_id: str
    principal: Principal
    path: str
    priority: str
    is_private: bool
    body: bytes
    state: JobState
    answer: Answer | None
    created_at: float
    ended_at: float | None


class TooManyJobsError(RequestError):
    """As many requests wait to be answered later as may."""

    code = "queue_full"
    status_code = 429
    retry_after_s = 60.0

    def __init__(self) -> None:
        super().__init__(f"{MAX_WAITING:,} requests wait to be answered later, and no more may: try again in a minute")


class AnswerJobs:
    """The requests of one server. `may_work` tells whether it has time for them.

    `may_work` is told whether the oldest request has waited for MAX_WAIT_S.
    """

    def __init__(self, path: Path, *, may_work: Callable[[bool], bool], clock: Callable[[], float] = time.time) -> None:
        self._answer: Callable[[AnswerJob], Coroutine[Any, Any, Answer]] | None = None
        self._may_work = may_work
        self._clock = clock
        self._lock = threading.Lock()
        self._arrived = asyncio.Event()
        self._worker: asyncio.Task[None] | None = None
        self._current: tuple[str, asyncio.Task[Answer]] | None = None
        self._connection = open_database(path, "requests that are answered later")
        with errors_of(path, "requests that are answered later"):
            self._connection.execute("PRAGMA journal_mode=WAL")
            self._connection.executescript(SCHEMA)
            self._connection.execute("UPDATE jobs SET state = 'queued' WHERE state = 'running'")

    # ── what routes ask ──────────────────────────────────────────────────────────────────────────────────────────────

    async def add(
        self, principal: Principal, path: str, priority: str, body: bytes, *, is_private: bool = False
    ) -> str:
        """Takes a request down; its id. Raises TooManyJobsError."""
        job_id = uuid.uuid4().hex
        await asyncio.to_thread(self._insert, job_id, principal, path, priority, is_private, body)
        self._arrived.set()
        return job_id

    def get(self, user: str, job_id: str) -> AnswerJob | None:
        """A user's job; None where there is none such, or no more. Blocks."""
        rows = self._rows("job_id = ? AND user = ? AND coalesce(ended_at, ?) >= ?", job_id, user, *self._kept_from())
        return rows[0] if rows else None

    async def drop(self, user: str, job_id: str) -> bool:
        """Calls a user's job off, or forgets its answer; False where there is none such."""
        if await asyncio.to_thread(self.get, user, job_id) is None:
            return False
        if self._current is not None and self._current[0] == job_id:
            self._current[1].cancel()
        await asyncio.to_thread(self._execute, "DELETE FROM jobs WHERE job_id = ?", job_id)
        return True

    # ── working on them ──────────────────────────────────────────────────────────────────────────────────────────────

    def answer_with(self, answer: Callable[[AnswerJob], Coroutine[Any, Any, Answer]]) -> None:
        """How a request is answered; must be said before `start`."""
        self._answer = answer

    def start(self) -> None:
        """Begins to answer what waits, on the running event loop."""
        self._worker = asyncio.create_task(self._work())

    async def close(self) -> None:
        """Stops; what is being answered is asked again after the next start."""
        if self._worker is not None:
            self._worker.cancel()
            await asyncio.wait({self._worker})
        self._connection.close()

    async def _work(self) -> None:
        while True:
            self._arrived.clear()
            job = await asyncio.to_thread(self._oldest)
            if job is None:
                await self._arrived.wait()
                continue
            if not self._may_work(self._clock() - job.created_at > MAX_WAIT_S):
                await asyncio.sleep(LOOK_S)
                continue
            try:
                await self._work_on(job)
            except Exception:
                logger.exception("the store of answers that wait does not work; it is tried again")
                await asyncio.sleep(MAX_WAIT_S / 10)

    async def _work_on(self, job: AnswerJob) -> None:
        await asyncio.to_thread(self._execute, "UPDATE jobs SET state = 'running' WHERE job_id = ?", job.job_id)
        assert self._answer is not None, "said before the start"
        answering = asyncio.create_task(self._answer(job))
        self._current = (job.job_id, answering)
        try:
            await asyncio.wait({answering})
        finally:
            self._current = None
            if not answering.done():  # the server ends
                answering.cancel()
                await asyncio.wait({answering})
        if answering.cancelled():
            return  # called off
        if (error := answering.exception()) is not None:
            logger.error("request %s could not be answered", job.job_id, exc_info=error)
            answer = Answer(500, "text/plain", f"the server's log has the details under {job.job_id}".encode())
        else:
            answer = answering.result()
        await asyncio.to_thread(
            self._execute,
            "UPDATE jobs SET state = ?, status_code = ?, content_type = ?, result = ?, body = x'', ended_at = ? "
            "WHERE job_id = ?",
            "done" if answer.status_code < 400 else "failed",
            answer.status_code,
            answer.content_type,
            answer.body,
            self._clock(),
            job.job_id,
        )

    # ── the file ─────────────────────────────────────────────────────────────────────────────────────────────────────

    def _insert(
        self, job_id: str, principal: Principal, path: str, priority: str, is_private: bool, body: bytes
    ) -> None:
        who = json.dumps({**vars(principal), "scopes": sorted(principal.scopes)})
        with self._lock:
            self._connection.execute("DELETE FROM jobs WHERE ended_at < ?", (self._kept_from()[1],))
            (waiting,) = self._connection.execute("SELECT count(*) FROM jobs WHERE ended_at IS NULL").fetchone()
            if waiting >= MAX_WAITING:
                raise TooManyJobsError
            self._connection.execute(
                "INSERT INTO jobs (job_id, user, principal, path, priority, is_private, body, state, created_at) "
                "VALUES (?, ?, ?, ?, ?, ?, ?, 'queued', ?)",
                (job_id, principal.user, who, path, priority, is_private, body, self._clock()),
            )

    def _oldest(self) -> AnswerJob | None:
        # `batch` goes before `background`, as in the engine.
        rows = self._rows("state = 'queued' ORDER BY priority = 'background', created_at LIMIT 1")
        return rows[0] if rows else None

    def _kept_from(self) -> tuple[float, float]:
        now = self._clock()
        return now, now - KEPT_S

    def _rows(self, condition: str, *values: object) -> list[AnswerJob]:
        with self._lock:
            rows = self._connection.execute(f"SELECT {_COLUMNS} FROM jobs WHERE {condition}", values).fetchall()
        return [_job(*row) for row in rows]

    def _execute(self, statement: str, *values: object) -> None:
        with self._lock:
            self._connection.execute(statement, values)


def _job(
    job_id: str,
    user: str,
    principal: str,
    path: str,
    priority: str,
    is_private: int,
    body: bytes,
    state: JobState,
    status_code: int | None,
    content_type: str | None,
    result: bytes | None,
    created_at: float,
    ended_at: float | None,
) -> AnswerJob:
    who = json.loads(principal)
    answer = None if status_code is None else Answer(status_code, content_type or "", result or b"")
    return AnswerJob(
        job_id, Principal(**{**who, "scopes": frozenset(who["scopes"])}), path, priority, bool(is_private), body, state,
        answer, created_at, ended_at,
    )  # fmt: skip
