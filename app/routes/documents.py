"""Documents of the knowledge base: put in, list, delete."""

import asyncio
import filecmp
import logging
from collections.abc import Sequence
from datetime import datetime
from typing import Any

from fastapi import APIRouter, Request, Response
from pydantic import BaseModel

from app.conversation import DEFAULT_USER
from app.errors import NotFoundError, RequestError
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


class DocumentEntry(BaseModel):
    """One document of the knowledge base."""

    document_id: str
    title: str
    source: str
    collection: str
    num_chunks: int
    num_pages: int
    size_bytes: int
    added_at: datetime
    status: str


class DocumentList(BaseModel):
    documents: Sequence[DocumentEntry]


def create_router(services: Services) -> APIRouter:
    """Routes under /api/v1/documents."""
    router = APIRouter(prefix="/api/v1/documents", tags=["documents"])

    @router.post("", response_model=UploadResults, openapi_extra=UPLOAD_FORM)
    async def upload(request: Request) -> dict[str, Any]:
        """Takes in files of any format that is read. One bad file does not stop its neighbours: see each `status`."""
        services.require_ready()
        settings = services.settings
        with upload_folder(services.uploads) as folder:
            form = await read_form(request, folder, max_file_bytes=settings.max_upload_bytes)
            if not form.files:
                raise RequestError("there is no file in the field `files`", field="files")
            collection = form.fields.get("collection", "").strip() or DEFAULT_COLLECTION
            return {"results": await _ingest_all(services, form.files, collection)}

    @router.get("", response_model=DocumentList)
    async def list_documents(collection: str | None = None) -> dict[str, Any]:
        """All documents, or those of one collection."""
        found = await asyncio.to_thread(services.knowledge_base.documents, collection, DEFAULT_USER)
        return {"documents": [DocumentEntry.model_validate(entry, from_attributes=True) for entry in found]}

    @router.delete("/{document_id}", status_code=204)
    async def delete_document(document_id: str) -> Response:
        """Drops a document: it is found no more from now on."""
        if not await asyncio.to_thread(services.knowledge_base.delete_document, document_id, DEFAULT_USER):
            raise NotFoundError(f"there is no document {document_id!r}; GET /api/v1/documents lists them")
        return Response(status_code=204)

    return router


async def _ingest_all(services: Services, files: Sequence[Upload], collection: str) -> list[UploadResult]:
    """Takes the files in, in order. Of two of one name the second is refused: it would take the first one's place."""
    first_of_name: dict[str, Upload] = {}
    results = []
    for file in files:
        first = first_of_name.setdefault(file.name, file)
        if file.name and first is not file and not await asyncio.to_thread(filecmp.cmp, first.path, file.path, False):
            results.append(UploadResult(name=file.name, status="failed", reason=_TWO_OF_A_NAME))
        else:
            results.append(await _ingest(services, file, collection))
    return results


async def _ingest(services: Services, file: Upload, collection: str) -> UploadResult:
    if not file.name:
        return UploadResult(
            name="", status="failed", reason="the file has no usable name: give it one and send it again"
        )
    result = await asyncio.to_thread(
        services.knowledge_base.ingest_file, file.path, name=file.name, collection=collection, owner=DEFAULT_USER
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
