"""The page's own routes under /page: fragments of HTML, files and small replies that its script asks for.

Each is one or two calls of the API in the name of whoever is logged in. Nothing is kept here but the key, in a cookie
that no script can read. Whatever changes something needs the header `X-Ragstone-Page`, which a page of another origin
cannot send without asking first.
"""

from collections.abc import AsyncIterator
from typing import Any
from urllib.parse import quote

from fastapi import APIRouter, Depends, FastAPI, Request
from fastapi.responses import HTMLResponse, JSONResponse, Response, StreamingResponse
from pydantic import BaseModel

from ui.chat import Chats
from ui.client import ApiClient
from ui.conversation import Feedback
from ui.errors import RequestRefusedError, UIError
from ui.library_html import choices_html, collections_html, documents_html, viewer_html, welcome_html
from ui.markdown import text_of_markdown
from ui.metrics import readings
from ui.sidebar_html import conversations_html, health_html, notice_html

KEY_COOKIE = "ragstone_key"
PAGE_HEADER = "X-Ragstone-Page"
KEY_LASTS_S = 30 * 24 * 3600
# What a reply is passed on with; the API says that no original may run or be guessed at.
_FILE_HEADERS = ("content-type", "content-disposition", "content-length", "cache-control", "etag")


class Title(BaseModel):
    title: str


class Name(BaseModel):
    name: str


class Key(BaseModel):
    key: str


class Rating(BaseModel):
    """ "" as rating takes it back."""

    session_id: str
    index: int
    rating: str
    comment: str = ""


def install_routes(app: FastAPI, client: ApiClient, chats: Chats, max_upload_bytes: int) -> None:
    """Add the routes to `app`. What the API refuses is answered with its status and `{"error": sentence}`."""
    app.add_exception_handler(UIError, _error)
    router = APIRouter(prefix="/page", dependencies=[Depends(_is_from_page)])
    _add_server(router, client, max_upload_bytes)
    _add_conversations(router, client, chats)
    _add_documents(router, client)
    _add_uploads(router, client)
    app.include_router(router)


def key_of(request: Any) -> str:
    """The key that the sender is logged in with; "" where there is none. Takes Gradio's requests too."""
    return str(request.cookies.get(KEY_COOKIE) or "")


async def _error(_: Request, error: Exception) -> Response:
    status = error.status if isinstance(error, UIError) else 500
    return JSONResponse({"error": str(error)}, status)


def _is_from_page(request: Request) -> None:
    if request.method not in ("GET", "HEAD") and PAGE_HEADER.lower() not in request.headers:
        raise RequestRefusedError(f"requests that change something need the header {PAGE_HEADER}", status=403)


def _add_server(router: APIRouter, client: ApiClient, max_upload_bytes: int) -> None:
    @router.get("/health")
    async def health() -> dict[str, Any]:
        seen = await client.health()
        return {"is_ready": seen.is_ready, "status": health_html(seen), "notice": notice_html(seen)}

    @router.get("/limits")
    async def limits() -> dict[str, Any]:
        return {"max_upload_bytes": max_upload_bytes}

    @router.get("/options")
    async def options(request: Request) -> dict[str, Any]:
        user = client.as_user(key_of(request))
        return {"defaults": await user.defaults(), "models": await user.models()}

    @router.get("/metrics")
    async def metrics(request: Request) -> dict[str, Any]:
        return readings(await client.as_user(key_of(request)).metrics())

    @router.post("/login")
    async def login(given: Key, request: Request) -> Response:
        """Keep the key, if the API takes it."""
        key = given.key.strip()
        if not key.isascii() or not key.isprintable() or not key:
            raise RequestRefusedError("This is not a key: it holds letters, digits and signs only.", status=401)
        await client.as_user(key).conversations(limit=1)
        response = JSONResponse({})
        response.set_cookie(
            KEY_COOKIE,
            key,
            max_age=KEY_LASTS_S,
            httponly=True,
            samesite="strict",
            secure=request.url.scheme == "https",
        )
        return response

    @router.post("/logout")
    async def logout() -> Response:
        response = JSONResponse({})
        response.delete_cookie(KEY_COOKIE)
        return response

    @router.get("/session")
    async def session(request: Request) -> dict[str, Any]:
        return {"has_key": bool(key_of(request))}


def _add_conversations(router: APIRouter, client: ApiClient, chats: Chats) -> None:
    # Ids may hold slashes, so they are parameters and no part of the path.
    @router.get("/conversations", response_class=HTMLResponse)
    async def conversations(request: Request, query: str = "") -> str:
        found = await client.as_user(key_of(request)).conversations(query.strip())
        return conversations_html(found, query.strip())

    @router.get("/conversation/earlier", response_class=HTMLResponse)
    async def earlier(session_id: str, before: int, request: Request) -> str:
        return await chats.of(key_of(request)).earlier(session_id, before)

    @router.patch("/conversation")
    async def rename(session_id: str, given: Title, request: Request) -> dict[str, Any]:
        await client.as_user(key_of(request)).rename_conversation(session_id, given.title)
        return {}

    @router.delete("/conversation")
    async def delete(session_id: str, request: Request) -> dict[str, Any]:
        await client.as_user(key_of(request)).delete_conversation(session_id)
        chats.of(key_of(request)).forget(session_id)
        return {}

    @router.post("/conversation/restore")
    async def restore(session_id: str, request: Request) -> dict[str, Any]:
        await client.as_user(key_of(request)).restore_conversation(session_id)
        return {}

    @router.get("/conversation/export")
    async def export(session_id: str, request: Request, format: str = "markdown") -> Response:
        path = f"/api/v1/conversations/{quote(session_id, safe='')}/export?format={quote(format, safe='')}"
        return await _passed_on(client.as_user(key_of(request)), path)

    @router.get("/feedback/export")
    async def export_feedback(request: Request) -> Response:
        return await _passed_on(client.as_user(key_of(request)), "/api/v1/feedback?format=jsonl")

    @router.put("/feedback")
    async def rate(given: Rating, request: Request) -> dict[str, Any]:
        key = key_of(request)
        await client.as_user(key).rate(given.session_id, given.index, given.rating, given.comment)
        feedback = Feedback(given.rating, given.comment) if given.rating else None
        chats.of(key).rated(given.session_id, given.index, feedback)
        return {}


def _add_documents(router: APIRouter, client: ApiClient) -> None:
    @router.get("/welcome", response_class=HTMLResponse)
    async def welcome(request: Request) -> str:
        return welcome_html(await client.as_user(key_of(request)).documents())

    @router.get("/documents")
    async def documents(request: Request, collection: str = "", query: str = "") -> dict[str, str]:
        user = client.as_user(key_of(request))
        found = await user.documents(collection)
        known = await user.collections()
        return {"collections": collections_html(known, collection), "documents": documents_html(found, query)}

    @router.get("/collections", response_class=HTMLResponse)
    async def collections(request: Request) -> str:
        return choices_html(await client.as_user(key_of(request)).collections())

    @router.post("/collections")
    async def create(given: Name, request: Request) -> dict[str, Any]:
        await client.as_user(key_of(request)).create_collection(given.name.strip())
        return {}

    @router.delete("/collections")
    async def drop(name: str, request: Request) -> dict[str, Any]:
        await client.as_user(key_of(request)).delete_collection(name)
        return {}

    @router.delete("/documents/{document_id}")
    async def delete(document_id: str, request: Request) -> dict[str, Any]:
        await client.as_user(key_of(request)).delete_document(document_id)
        return {}

    @router.post("/documents/{document_id}/reingest")
    async def reingest(document_id: str, request: Request) -> Any:
        return await client.as_user(key_of(request)).reingest_document(document_id) or {}

    @router.get("/documents/{document_id}/view")
    async def view(document_id: str, request: Request, page: int | None = None, quote: str = "") -> dict[str, str]:
        user = client.as_user(key_of(request))
        document = await user.document(document_id)
        rendered = await user.rendered(document_id)
        sections = await user.sections(document_id) if rendered is None else []
        html = viewer_html(document, sections, page, rendered, quote)
        return {"title": document.title, "html": html, "quote": text_of_markdown(quote)}

    @router.get("/documents/{document_id}/original")
    async def original(document_id: str, request: Request) -> Response:
        user = client.as_user(key_of(request))
        return await _passed_on(user, f"/api/v1/documents/{quote(document_id, safe='')}/original")

    @router.get("/documents/{document_id}/pages/{number}.png")
    async def page_image(document_id: str, number: int, request: Request) -> Response:
        user = client.as_user(key_of(request))
        return await _passed_on(user, f"/api/v1/documents/{quote(document_id, safe='')}/pages/{number}.png")


def _add_uploads(router: APIRouter, client: ApiClient) -> None:
    @router.post("/upload")
    async def upload(request: Request) -> Any:
        """Passes the form on as it arrives; nothing of it is kept here."""
        user = client.as_user(key_of(request))
        return await user.upload(request.stream(), request.headers.get("content-type", ""))

    @router.get("/jobs/{job_id}")
    async def job(job_id: str, request: Request) -> Any:
        return await client.as_user(key_of(request)).job(job_id)

    @router.delete("/jobs/{job_id}")
    async def cancel(job_id: str, request: Request) -> dict[str, Any]:
        await client.as_user(key_of(request)).cancel_job(job_id)
        return {}


async def _passed_on(client: ApiClient, path: str) -> Response:
    """A file of the API, piece by piece. Raises UIError before the first byte."""
    opened = client.download(path)
    response = await opened.__aenter__()

    async def body() -> AsyncIterator[bytes]:
        try:
            async for piece in response.aiter_raw():
                yield piece
        finally:
            await opened.__aexit__(None, None, None)

    headers = {name: response.headers[name] for name in _FILE_HEADERS if name in response.headers}
    return StreamingResponse(body(), headers=headers)
