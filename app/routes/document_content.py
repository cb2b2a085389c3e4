"""What a document holds: its file as it came, pictures of its pages, its text, and reading it anew."""

import asyncio
from collections.abc import Sequence
from pathlib import PurePosixPath
from typing import Annotated, Any

from fastapi import APIRouter, Path, Query, Response
from pydantic import BaseModel, ConfigDict, Field

from app.document_html import HTML, MARKDOWN, MAX_RENDERED_BYTES, document_html
from app.errors import ConflictError, NotFoundError
from app.routes.access import CurrentUser
from app.routes.attachments import attachment
from app.routes.uploads import safe_name
from app.services import Services
from retrieval.errors import LoadError
from retrieval.loaders.pdf import page_png
from retrieval.records import DocumentInfo

# What a file may be called besides "bytes": nothing that a browser would run, whatever the file says of itself.
CONTENT_TYPES = {
    ".pdf": "application/pdf",
    ".txt": "text/plain",
    ".md": "text/plain",
    ".csv": "text/plain",
    ".log": "text/plain",
}
PAGE_WIDTH = 1000
MAX_PAGE = 1_000_000

DocumentId = Annotated[str, Path(max_length=200, examples=["0d8c8a4f2f6e4b0f8f3c5f1a2b3c4d5e"])]


class OriginalMissingError(NotFoundError):
    """The file of a document that was taken in as text, or when files were not kept."""

    code = "original_missing"

    def __init__(self, document: DocumentInfo) -> None:
        super().__init__(
            f"the file of {document.source!r} is not kept: it was taken in as text, or by an earlier version; put the "
            "file in again, by upload or with `ragstone ingest`, to have it kept"
        )


class NotInPagesError(NotFoundError):
    """A document that has no pages that could be drawn."""

    code = "no_page_images"


class NotRenderedError(NotFoundError):
    """A document of another format than HTML or Markdown, or one too large to look at."""

    code = "not_rendered"


class DocumentHtml(BaseModel):
    """A document to be shown in a page: HTML without scripts, styles, handlers and anything to load."""

    model_config = ConfigDict(
        json_schema_extra={
            "examples": [
                {
                    "document_id": "0d8c8a4f2f6e4b0f8f3c5f1a2b3c4d5e",
                    "title": "Latency",
                    "html": "<h1>Latency</h1>\n<p>TTFT means <em>time to first token</em>. …</p>\n",
                }
            ]
        }
    )

    document_id: str
    title: str
    html: str


class TextSection(BaseModel):
    """A part of the text with one place: its page (from 1), the headings above it, outermost first."""

    model_config = ConfigDict(from_attributes=True)

    page: int | None
    headings: Sequence[str]
    text: str


class DocumentText(BaseModel):
    """A document's text as it is searched."""

    model_config = ConfigDict(
        json_schema_extra={
            "examples": [
                {
                    "document_id": "0d8c8a4f2f6e4b0f8f3c5f1a2b3c4d5e",
                    "title": "Latency",
                    "sections": [{"page": None, "headings": ["TTFT"], "text": "TTFT means time to first token. …"}],
                }
            ]
        }
    )

    document_id: str
    title: str
    sections: Sequence[TextSection]


class ReingestResult(BaseModel):
    """What became of it; `reason` says why it failed, in which case the old version answers on."""

    document_id: str | None
    status: str = Field(examples=["updated"])
    num_chunks: int
    num_pages: int
    reason: str | None = None


def create_router(services: Services) -> APIRouter:
    """Routes below /api/v1/documents/{document_id}."""
    router = APIRouter(prefix="/api/v1/documents/{document_id}", tags=["documents"])

    @router.get("/original", response_model=None, responses={200: {"content": {"*/*": {}}, "description": "The file."}})
    async def original(user: CurrentUser, document_id: DocumentId) -> Response:
        """The file as it was taken in, to be saved."""
        document = await find_document(services, user, document_id)
        content = await asyncio.to_thread(_read_original, services, document)
        name = safe_name(document.source) or "document"
        kind = CONTENT_TYPES.get(PurePosixPath(name).suffix.lower(), "application/octet-stream")
        return attachment(content, name, kind)

    @router.get(
        "/pages/{number}.png",
        response_model=None,
        responses={200: {"content": {"image/png": {}}, "description": "The page."}},
    )
    async def page_image(
        user: CurrentUser,
        document_id: DocumentId,
        number: Annotated[int, Path(ge=1, le=MAX_PAGE, description="From 1.")],
        width: Annotated[int, Query(ge=50, le=3000, description="In pixels.")] = PAGE_WIDTH,
    ) -> Response:
        """A picture of a page of a PDF."""
        document = await find_document(services, user, document_id)
        if PurePosixPath(document.source).suffix.lower() != ".pdf":
            raise NotInPagesError(f"{document.source!r} is no PDF: GET …/text gives its text")
        content = await asyncio.to_thread(_read_original, services, document)
        try:
            picture = await asyncio.to_thread(page_png, content, number, width)
        except LoadError as error:
            raise NotInPagesError(f"{document.source!r}: {error}") from None
        if picture is None:
            raise NotFoundError(
                f"{document.source!r} has {document.num_pages} pages, and no page {number}", field="number"
            )
        headers = {"X-Content-Type-Options": "nosniff", "Cache-Control": "private, max-age=3600"}
        return Response(picture, media_type="image/png", headers=headers)

    @router.get("/text", response_model=DocumentText)
    async def text(user: CurrentUser, document_id: DocumentId) -> dict[str, Any]:
        """The text that is searched, in order, cut where page or headings change."""
        document = await find_document(services, user, document_id)
        sections = await asyncio.to_thread(services.knowledge_base.sections, document_id)
        return {
            "document_id": document_id,
            "title": document.title,
            "sections": [TextSection.model_validate(section) for section in sections],
        }

    @router.get("/html", response_model=DocumentHtml)
    async def html(user: CurrentUser, document_id: DocumentId) -> DocumentHtml:
        """An HTML or Markdown document as HTML that is safe to show: nothing in it runs or loads anything."""
        document = await find_document(services, user, document_id)
        suffix = PurePosixPath(services.knowledge_base.file_name(document)).suffix.lower()
        rendered = None
        if suffix in MARKDOWN | HTML:
            content = await asyncio.to_thread(_read_original, services, document)
            try:
                rendered = await asyncio.to_thread(document_html, suffix, content)
            except LoadError as error:
                raise NotRenderedError(f"{document.source!r}: {error}") from None
        if rendered is None:
            raise NotRenderedError(
                f"{document.source!r} is no HTML or Markdown of at most {MAX_RENDERED_BYTES >> 20} MB: GET …/text "
                "gives its text"
            )
        return DocumentHtml(document_id=document_id, title=document.title, html=rendered)

    @router.post("/reingest", response_model=ReingestResult)
    async def reingest(user: CurrentUser, document_id: DocumentId) -> ReingestResult:
        """Reads the file anew, as after an upgrade that reads it better. The old version answers meanwhile."""
        services.require_ready()
        document = await find_own_document(services, user, document_id)
        result = await asyncio.to_thread(services.knowledge_base.reingest, document, user)
        if result is None:
            raise OriginalMissingError(document)
        return ReingestResult(
            document_id=result.document_id or document_id,
            status=result.status,
            num_chunks=result.num_chunks,
            num_pages=result.num_pages,
            reason=result.reason,
        )

    return router


async def find_document(services: Services, user: str, document_id: str) -> DocumentInfo:
    """A document that the user may search. Raises NotFoundError."""
    document = await asyncio.to_thread(services.knowledge_base.document, document_id, user)
    if document is None:
        raise NotFoundError(
            f"there is no document {document_id!r}; GET /api/v1/documents lists them", field="document_id"
        )
    return document


async def find_own_document(services: Services, user: str, document_id: str) -> DocumentInfo:
    """A document that the user may change. Raises NotFoundError, ConflictError."""
    document = await find_document(services, user, document_id)
    if not document.is_own:
        raise ConflictError(
            f"{document.source!r} is shared with you by somebody else, who alone may change it", field="document_id"
        )
    return document


def _read_original(services: Services, document: DocumentInfo) -> bytes:
    path = services.knowledge_base.original(document)
    if path is None:
        raise OriginalMissingError(document)
    try:
        return path.read_bytes()
    except FileNotFoundError:  # deleted in between
        raise OriginalMissingError(document) from None
