"""Answers that come later: how far one is, the answer itself when it is ready, and calling it off."""

import asyncio
import json
from datetime import UTC, datetime
from typing import Annotated, Any

from fastapi import APIRouter, Path, Response
from pydantic import BaseModel, ConfigDict, Field

from app.answer_jobs import KEPT_S, AnswerJob, AnswerJobs, JobState
from app.errors import NotFoundError
from app.routes.access import CurrentUser

PREFIX = "/api/v1/answers"
JobId = Annotated[str, Path(max_length=200, examples=["5f0c3a1e8b7d4c6f9a2b1c0d3e4f5a6b"])]


class LaterAnswer(BaseModel):
    """A request that is answered later. `result` is what its route answers, with `status_code`, when it is ready."""

    model_config = ConfigDict(
        json_schema_extra={
            "examples": [
                {
                    "job_id": "5f0c3a1e8b7d4c6f9a2b1c0d3e4f5a6b",
                    "state": "done",
                    "path": "/v1/chat/completions",
                    "priority": "batch",
                    "created_at": "2026-11-30T12:00:00Z",
                    "ended_at": "2026-11-30T12:04:00Z",
                    "kept_until": "2026-12-01T12:04:00Z",
                    "status_code": 200,
                    "result": {"object": "chat.completion", "choices": []},
                }
            ]
        }
    )

    job_id: str
    state: JobState
    path: str
    priority: str
    created_at: datetime
    ended_at: datetime | None
    kept_until: datetime | None
    status_code: int | None
    result: Any = Field(description="JSON as the route answers it; of a stream, its events as text.")


def create_router(jobs: AnswerJobs) -> APIRouter:
    """/api/v1/answers."""
    router = APIRouter(prefix=PREFIX, tags=["answers"])

    @router.get("/{job_id}", response_model=LaterAnswer)
    async def read_answer(user: CurrentUser, job_id: JobId) -> LaterAnswer:
        """How far a request is that was taken down under load, and its answer when it is ready."""
        job = await asyncio.to_thread(jobs.get, user, job_id)
        if job is None:
            raise _unknown(job_id)
        return entry(job)

    @router.delete("/{job_id}", status_code=204)
    async def drop_answer(user: CurrentUser, job_id: JobId) -> Response:
        """Calls a request off that is not answered yet, or forgets its answer."""
        if not await jobs.drop(user, job_id):
            raise _unknown(job_id)
        return Response(status_code=204)

    return router


def entry(job: AnswerJob) -> LaterAnswer:
    """A job as it is told of."""
    answer = job.answer
    result: Any = None
    if answer is not None:
        text = answer.body.decode("utf-8", "replace")
        result = json.loads(text) if answer.content_type.startswith("application/json") and text else text
    return LaterAnswer(
        job_id=job.job_id,
        state=job.state,
        path=job.path,
        priority=job.priority,
        created_at=datetime.fromtimestamp(job.created_at, UTC),
        ended_at=None if job.ended_at is None else datetime.fromtimestamp(job.ended_at, UTC),
        kept_until=None if job.ended_at is None else datetime.fromtimestamp(job.ended_at + KEPT_S, UTC),
        status_code=None if answer is None else answer.status_code,
        result=result,
    )


def _unknown(job_id: str) -> NotFoundError:
    hours = KEPT_S // 3600
    return NotFoundError(f"there is no answer {job_id!r}: answers are kept for {hours} hours", field="job_id")
