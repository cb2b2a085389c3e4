"""Ingestion jobs: how far one is, as it goes on, and calling it off; and the place of a question in the queue."""

import asyncio
from collections.abc import Sequence
from typing import Annotated

from fastapi import APIRouter, Path, Query, Response
from pydantic import BaseModel, ConfigDict, Field

from app.errors import NotFoundError
from app.ingestion_jobs import FileStatus, Job, JobStatus
from app.routes import sse
from app.routes.access import CurrentUser
from app.routes.faults import Fault, dump
from app.services import Services

# How often a job is looked at for those who watch it.
LOOK_S = 0.1

JobId = Annotated[str, Path(max_length=200, examples=["5f0c3a1e8b7d4c6f9a2b1c0d3e4f5a6b"])]


class JobFileEntry(BaseModel):
    """One file; `progress` goes from 0 to 1, `reason` says why it failed or what of it could not be read."""

    model_config = ConfigDict(from_attributes=True)

    name: str
    status: FileStatus
    progress: float = Field(ge=0, le=1)
    num_chunks: int
    num_pages: int
    document_id: str | None
    reason: str | None


class JobEntry(BaseModel):
    """An ingestion job; `failed` where no file of it went in."""

    model_config = ConfigDict(
        from_attributes=True,
        json_schema_extra={
            "examples": [
                {
                    "job_id": "5f0c3a1e8b7d4c6f9a2b1c0d3e4f5a6b",
                    "status": "running",
                    "collection": "default",
                    "files": [
                        {
                            "name": "notes.pdf",
                            "status": "running",
                            "progress": 0.4,
                            "num_chunks": 0,
                            "num_pages": 0,
                            "document_id": None,
                            "reason": None,
                        }
                    ],
                }
            ]
        },
    )

    job_id: str
    status: JobStatus
    collection: str
    files: Sequence[JobFileEntry]


class QueueEntry(BaseModel):
    """The server's load. `position`: 0 is being answered, from 1 it waits, null is not here."""

    model_config = ConfigDict(json_schema_extra={"examples": [{"position": 2, "num_running": 8, "num_waiting": 3}]})

    position: int | None
    num_running: int
    num_waiting: int


def create_router(services: Services) -> APIRouter:
    """/api/v1/jobs and /api/v1/queue."""
    router = APIRouter(prefix="/api/v1", tags=["documents"])

    def find(user: str, job_id: str) -> Job:
        job = services.jobs.get(user, job_id)
        if job is None:
            raise NotFoundError(
                f"there is no job {job_id!r}: jobs are told of for a day after their end", field="job_id"
            )
        return job

    @router.get("/jobs/{job_id}", response_model=JobEntry)
    async def read_job(user: CurrentUser, job_id: JobId) -> Job:
        """How far a job is."""
        return find(user, job_id)

    @router.get(
        "/jobs/{job_id}/events",
        response_model=None,
        responses={200: {"content": {"text/event-stream": {}}, "description": "`progress` events, then `end`."}},
    )
    async def watch_job(user: CurrentUser, job_id: JobId) -> Response:
        """Server-sent events: `progress` with the job's body, now and after every change; `end` when it is over."""
        return await sse.open_stream(_events(find(user, job_id)), _error_event)

    @router.delete("/jobs/{job_id}", response_model=JobEntry)
    async def cancel_job(user: CurrentUser, job_id: JobId) -> Job:
        """Calls off what has not begun. A file that is being taken in is left, unless little of it is missing."""
        job = find(user, job_id)
        await asyncio.to_thread(services.jobs.cancel, job)
        return job

    @router.get("/queue", response_model=QueueEntry, tags=["conversations"])
    async def queue(
        user: CurrentUser,
        session_id: Annotated[str | None, Query(max_length=1000, description="A conversation to find in it.")] = None,
    ) -> QueueEntry:
        """How many requests are computed and wait, and where among them the newest question of a conversation is."""
        services.require_ready()
        engine = services.metrics.engine
        stats = engine[1]() if engine is not None else None
        num_running, num_waiting = (0, 0) if stats is None else (stats.num_running, stats.num_waiting)
        position = None
        if session_id:
            position = services.chat.place_in_queue(user, session_id, is_full=num_waiting > 0)
        return QueueEntry(position=position, num_running=num_running, num_waiting=num_waiting)

    return router


async def _events(job: Job) -> sse.Events:
    seen = None
    while True:
        version, is_finished = job.version, job.is_finished
        if version != seen:
            yield sse.event(dump(JobEntry.model_validate(job).model_dump(mode="json")), "progress")
            seen = version
        if is_finished and version == job.version:
            break
        await asyncio.sleep(LOOK_S)
    yield "event: end\r\n\r\n"


def _error_event(fault: Fault) -> str:
    return sse.event(dump(fault.event()), "error")
