"""Documents of the knowledge base: put in, list, delete."""

import asyncio
import filecmp
import logging
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from datetime import datetime
from pathlib import Path
from typing import Annotated, Any

from fastapi import APIRouter, Query, Request, Response
from fastapi.responses import JSONResponse
from pydantic import BaseModel, ConfigDict

from app.errors import RequestError
from app.ingestion_jobs import JobFile
from app.private_documents import is_private_document, require_documents_stay
from app.routes.access import CurrentUser
from app.routes.document_content import DocumentId, find_document, find_own_document
from app.routes.uploads import Upload, read_form, upload_folder
from app.services import DEFAULT_COLLECTION, Services
from app.setting_values import did_you_mean
from retrieval.records import DocumentInfo

logger = logging.getLogger(__name__)

_TWO_OF_A_NAME = (
    "another file of this upload has the same name, and a document is known by its name: "
    "rename one of them and send it again"
)

_NO_NAME = "the file has no usable name: give it one and send it again"

FORM_FIELDS = ("collection", "private")

UPLOAD_FORM = {
    "requestBody": {
        "required": True,
        "content": {
            "multipart/form-data": {
                "schema": {
                    "type": "object",
                    "required": ["files"],
                    "properties": {
                        "files": {"type": "array", "items": {"type": "string", "format": "binary"}},
                        "collection": {"type": "string", "default": DEFAULT_COLLECTION},
                        "private": {
                            "type": "string",
                            "enum": ["true", "false"],
                            "description": "Whether their text is shown to models of this machine only. Without it, "
                            "what was said of a document when it was last put in, and what its file says, stays.",
                        },
                    },
                }
            }
        },
    }
}


class UploadResult(BaseModel):
    """What became of one file; `reason` says why one failed."""

    name: str
    status: str
    document_id: str | None = None
    num_chunks: int = 0
    num_pages: int = 0
    reason: str | None = None


class JobAccepted(BaseModel):
    """The files are here and will be taken in."""

    model_config = ConfigDict(
        json_schema_extra={
            "examples": [
                {"job_id": "5f0c3a1e8b7d4c6f9a2b1c0d3e4f5a6b", "collection": "default", "is_new_collection": False}
            ]
        }
    )

    job_id: str
    collection: str
    is_new_collection: bool


class UploadResults(BaseModel):
    """`is_new_collection`: there was none of that name before, so it may be mistyped."""

    results: Sequence[UploadResult]
    collection: str
    is_new_collection: bool


@dataclass(frozen=True)
class _Given:
    """An upload: the files, the collection that they go into, whether that one is made for them, `private` or not."""

    files: Sequence[Upload]
    collection: str
    is_new_collection: bool
    private: bool | None


DOCUMENT_EXAMPLE: dict[str, Any] = {
    "document_id": "0d8c8a4f2f6e4b0f8f3c5f1a2b3c4d5e",
    "title": "Latency",
    "source": "ttft.md",
    "collection": "default",
    "num_chunks": 1,
    "num_pages": 0,
    "size_bytes": 190,
    "added_at": "2026-11-30T12:00:00Z",
    "status": "ready",
    "is_private": False,
    "is_own": True,
}


class DocumentEntry(BaseModel):
    """One document of the knowledge base; `num_pages` is 0 where there are no pages.

    `is_private`: its text is shown to models of this machine only, by what was said when it was put in, by its file's
    front matter, or by its collection. `is_own`: the user may change it; somebody else shares it otherwise.
    """

    model_config = ConfigDict(json_schema_extra={"examples": [DOCUMENT_EXAMPLE]})

    document_id: str
    title: str
    source: str
    collection: str
    num_chunks: int
    num_pages: int
    size_bytes: int
    added_at: datetime
    status: str
    is_private: bool
    is_own: bool


class DocumentDetail(DocumentEntry):
    """One document, with what its file says of itself."""

    model_config = ConfigDict(
        json_schema_extra={
            "examples": [
                DOCUMENT_EXAMPLE | {"content_hash": "9f86d0818…", "version": 1, "metadata": {}, "has_original": True}
            ]
        }
    )

    content_hash: str
    version: int
    metadata: dict[str, Any]
    has_original: bool


class DocumentList(BaseModel):
    documents: Sequence[DocumentEntry]


def refuse_unknown(given: Iterable[str], known: Sequence[str], kind: str, *, elsewhere: Sequence[str] = ()) -> None:
    """Raises RequestError for a name of a form or an address that does nothing: it may have said `private`.

    `elsewhere` are the names that belong into the form.
    """
    for name in given:
        if name in elsewhere:
            raise RequestError(f"{name} goes into the form, not into the address: curl -F {name}=…", field=name)
        if name not in known:
            hint = did_you_mean(name, (*known, *elsewhere))
            raise RequestError(f"{name!r} is no {kind} of an upload: it has {', '.join(known)}{hint}", field=name)


def create_router(services: Services) -> APIRouter:
    """Routes under /api/v1/documents."""
    router = APIRouter(prefix="/api/v1/documents", tags=["documents"])

    @router.post(
        "",
        response_model=UploadResults,
        responses={
            202: {"model": JobAccepted, "description": "With `background`: GET /api/v1/jobs/{job_id} tells more."}
        },
        openapi_extra=UPLOAD_FORM,
    )
    async def upload(
        request: Request,
        user: CurrentUser,
        background: Annotated[bool, Query(description="Answer as soon as the files are here.")] = False,
    ) -> UploadResults | Response:
        """Takes in files of any format that is read. One bad file does not stop its neighbours: see each `status`."""
        services.require_ready()
        refuse_unknown(request.query_params, ("background",), "parameter", elsewhere=FORM_FIELDS)
        if background:
            return await _accept(request, user)
        with upload_folder(services.uploads) as folder:
            given = await _read(request, folder, user)
            refusals = await asyncio.to_thread(_refusals, given.files)
            results = [
                await _ingest(services, file, given, user) if reason is None else _failed(file, reason)
                for file, reason in zip(given.files, refusals, strict=True)
            ]
            return UploadResults(
                results=results, collection=given.collection, is_new_collection=given.is_new_collection
            )

    async def _accept(request: Request, user: str) -> Response:
        folder = services.jobs.new_folder()
        try:
            given = await _read(request, folder, user)
            refusals = await asyncio.to_thread(_refusals, given.files)
            entries = [
                JobFile(file.name, file.path.name, "queued" if reason is None else "failed", reason=reason)
                for file, reason in zip(given.files, refusals, strict=True)
            ]
            job = await asyncio.to_thread(
                services.jobs.add, folder, user, given.collection, entries, private=given.private
            )
        except BaseException:
            services.jobs.discard(folder)
            raise
        headers = {"Location": f"{request.scope.get('root_path', '')}/api/v1/jobs/{job.job_id}"}
        accepted = JobAccepted(
            job_id=job.job_id, collection=given.collection, is_new_collection=given.is_new_collection
        )
        return JSONResponse(accepted.model_dump(), 202, headers=headers)

    async def _read(request: Request, folder: Path, user: str) -> _Given:
        form = await read_form(request, folder, max_file_bytes=services.settings.max_upload_bytes)
        if not form.files:
            raise RequestError("there is no file in the field `files`", field="files")
        refuse_unknown(form.fields, FORM_FIELDS, "field")
        collection = form.fields.get("collection", "").strip() or DEFAULT_COLLECTION
        services.knowledge_base.check_collection(collection)
        private = _flag("private", form.fields.get("private", ""))
        if private:
            require_documents_stay(services.settings)
        is_there = await asyncio.to_thread(services.knowledge_base.has_collection, collection, owner=user)
        return _Given(form.files, collection, not is_there and collection != DEFAULT_COLLECTION, private)

    def entry_of(document: DocumentInfo) -> DocumentEntry:
        return DocumentEntry(
            **{name: getattr(document, name) for name in DocumentEntry.model_fields if name != "is_private"},
            is_private=is_private_document(document, services.settings),
        )

    @router.get("", response_model=DocumentList)
    async def list_documents(user: CurrentUser, collection: str | None = None) -> dict[str, Any]:
        """All documents, or those of one collection."""
        found = await asyncio.to_thread(services.knowledge_base.documents, collection, user)
        return {"documents": [entry_of(document) for document in found]}

    @router.get("/{document_id}", response_model=DocumentDetail)
    async def read_document(user: CurrentUser, document_id: DocumentId) -> DocumentDetail:
        """One document, with what its file says of itself and whether that file is kept."""
        document = await find_document(services, user, document_id)
        return DocumentDetail(
            **entry_of(document).model_dump(),
            content_hash=document.content_hash,
            version=document.version,
            metadata=dict(document.metadata),
            has_original=await asyncio.to_thread(services.knowledge_base.original, document) is not None,
        )

    @router.delete("/{document_id}", status_code=204)
    async def delete_document(user: CurrentUser, document_id: DocumentId) -> Response:
        """Drops a document: it is found no more from now on."""
        await find_own_document(services, user, document_id)
        await asyncio.to_thread(services.knowledge_base.delete_document, document_id, user)
        return Response(status_code=204)

    return router


def _refusals(files: Sequence[Upload]) -> list[str | None]:
    """For each file why it is not taken in, or None. The second of one name would take the first one's place."""
    first_of_name: dict[str, Upload] = {}
    reasons: list[str | None] = []
    for file in files:
        first = first_of_name.setdefault(file.name, file)
        if not file.name:
            reasons.append(_NO_NAME)
        elif first is not file and not filecmp.cmp(first.path, file.path, shallow=False):
            reasons.append(_TWO_OF_A_NAME)
        else:
            reasons.append(None)
    return reasons


def _flag(name: str, given: str) -> bool | None:
    """A field of a form that is true or false; None where it is left out or empty."""
    if given.strip().lower() not in ("", "true", "false"):
        raise RequestError(f"{name!r} is {given[:40]!r}: give true or false, or leave it out", field=name)
    return given.strip().lower() == "true" if given.strip() else None


def _failed(file: Upload, reason: str) -> UploadResult:
    return UploadResult(name=file.name, status="failed", reason=reason)


async def _ingest(services: Services, file: Upload, given: _Given, user: str) -> UploadResult:
    result = await asyncio.to_thread(
        services.knowledge_base.ingest_file,
        file.path,
        name=file.name,
        collection=given.collection,
        owner=user,
        private=given.private,
    )
    logger.info("document %s: %s, %d chunks", result.document_id, result.status, result.num_chunks)
    return UploadResult(
        name=file.name,
        status=result.status,
        document_id=result.document_id,
        num_chunks=result.num_chunks,
        num_pages=result.num_pages,
        reason=result.reason,
    )
