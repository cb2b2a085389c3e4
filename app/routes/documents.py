"""Documents of the knowledge base: put in, list, delete."""

import asyncio
import filecmp
import logging
from collections.abc import Sequence
from datetime import datetime
from typing import Any

from fastapi import APIRouter, Request, Response
from pydantic import BaseModel, ConfigDict

from app.errors import NotFoundError, RequestError
from app.routes.access import CurrentUser
from app.routes.document_content import DocumentId, find_document
from app.routes.uploads import Upload, read_form, upload_folder
from app.services import Services

logger = logging.getLogger(__name__)

DEFAULT_COLLECTION = "default"
_TWO_OF_A_NAME = (
    "another file of this upload has the same name, and a document is known by its name: "
    "rename one of them and send it again"
)

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


class UploadResults(BaseModel):
    results: Sequence[UploadResult]


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
}


class DocumentEntry(BaseModel):
    """One document of the knowledge base; `num_pages` is 0 where there are no pages."""

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


class DocumentDetail(DocumentEntry):
    """One document; `is_own`: the user may change it."""

    model_config = ConfigDict(
        json_schema_extra={
            "examples": [
                DOCUMENT_EXAMPLE
                | {"content_hash": "9f86d0818…", "version": 1, "metadata": {}, "has_original": True, "is_own": True}
            ]
        }
    )

    content_hash: str
    version: int
    metadata: dict[str, Any]
    has_original: bool
    is_own: bool


class DocumentList(BaseModel):
    documents: Sequence[DocumentEntry]


def create_router(services: Services) -> APIRouter:
    """Routes under /api/v1/documents."""
    router = APIRouter(prefix="/api/v1/documents", tags=["documents"])

    @router.post("", response_model=UploadResults, openapi_extra=UPLOAD_FORM)
    async def upload(request: Request, user: CurrentUser) -> dict[str, Any]:
        """Takes in files of any format that is read. One bad file does not stop its neighbours: see each `status`."""
        services.require_ready()
        settings = services.settings
        with upload_folder(services.uploads) as folder:
            form = await read_form(request, folder, max_file_bytes=settings.max_upload_bytes)
            if not form.files:
                raise RequestError("there is no file in the field `files`", field="files")
            collection = form.fields.get("collection", "").strip() or DEFAULT_COLLECTION
            return {"results": await _ingest_all(services, form.files, collection, user)}

    @router.get("", response_model=DocumentList)
    async def list_documents(user: CurrentUser, collection: str | None = None) -> dict[str, Any]:
        """All documents, or those of one collection."""
        found = await asyncio.to_thread(services.knowledge_base.documents, collection, user)
        return {"documents": [DocumentEntry.model_validate(entry, from_attributes=True) for entry in found]}

    @router.get("/{document_id}", response_model=DocumentDetail)
    async def read_document(user: CurrentUser, document_id: DocumentId) -> DocumentDetail:
        """One document, with what its file says of itself and whether that file is kept."""
        document = await find_document(services, user, document_id)
        knowledge_base = services.knowledge_base
        return DocumentDetail(
            **DocumentEntry.model_validate(document, from_attributes=True).model_dump(),
            content_hash=document.content_hash,
            version=document.version,
            metadata=dict(document.metadata),
            has_original=await asyncio.to_thread(knowledge_base.original, document) is not None,
            is_own=await asyncio.to_thread(knowledge_base.owns, document_id, user),
        )

    @router.delete("/{document_id}", status_code=204)
    async def delete_document(user: CurrentUser, document_id: DocumentId) -> Response:
        """Drops a document: it is found no more from now on."""
        if not await asyncio.to_thread(services.knowledge_base.delete_document, document_id, user):
            raise NotFoundError(f"there is no document {document_id!r}; GET /api/v1/documents lists them")
        return Response(status_code=204)

    return router


async def _ingest_all(services: Services, files: Sequence[Upload], collection: str, user: str) -> list[UploadResult]:
    """Takes the files in, in order. Of two of one name the second is refused: it would take the first one's place."""
    first_of_name: dict[str, Upload] = {}
    results = []
    for file in files:
        first = first_of_name.setdefault(file.name, file)
        if file.name and first is not file and not await asyncio.to_thread(filecmp.cmp, first.path, file.path, False):
            results.append(UploadResult(name=file.name, status="failed", reason=_TWO_OF_A_NAME))
        else:
            results.append(await _ingest(services, file, collection, user))
    return results


async def _ingest(services: Services, file: Upload, collection: str, user: str) -> UploadResult:
    if not file.name:
        return UploadResult(
            name="", status="failed", reason="the file has no usable name: give it one and send it again"
        )
    result = await asyncio.to_thread(
        services.knowledge_base.ingest_file, file.path, name=file.name, collection=collection, owner=user
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
