"""An asynchronous client of Ragstone's HTTP API, as far as the chat page needs it; it draws nothing.

Every method raises one of `ui.errors` with a sentence that can be shown as it is, and nothing else of its own.
"""

import json
from collections.abc import AsyncGenerator, AsyncIterator, Iterator
from contextlib import asynccontextmanager, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from urllib.parse import quote

import httpx

from ui.conversation import Source, Turn, is_not_found
from ui.errors import (
    AnswerBrokenOffError,
    ApiFaultError,
    ApiNotReadyError,
    ApiUnreachableError,
    NotFoundError,
    RequestRefusedError,
    UIError,
)
from ui.sse import ServerSentEvent, SSEDecoder

# Connecting and short calls; an answer or an ingest may take as long as it takes, the person can stop it.
CONNECT_S = 5.0
SHORT_CALL_S = 15.0
_PATIENT = httpx.Timeout(CONNECT_S, read=None, write=None, pool=None)


@dataclass(frozen=True)
class Health:
    """What the API says of itself: `status` is "ready", "starting", "unhealthy" or "unreachable"; `reason` says why."""

    status: str
    reason: str = ""

    @property
    def is_ready(self) -> bool:
        """Whether questions can be answered now."""
        return self.status == "ready"


@dataclass(frozen=True)
class AnswerPart:
    """One item of a streamed answer: the sources (once, first), the next piece of text, or (last) how it ended."""

    text: str = ""
    sources: list[Source] | None = None
    not_found: bool = False


@dataclass(frozen=True)
class UploadResult:
    """What became of one uploaded file: status added, updated, unchanged or failed, with the reason for a person.

    A file that was taken in has a reason where not all of it could be read.
    """

    name: str
    status: str
    num_chunks: int = 0
    num_pages: int = 0
    reason: str = ""


@dataclass(frozen=True)
class Document:
    """One document of the knowledge base, as the list shows it."""

    document_id: str
    title: str
    source: str
    collection: str
    num_chunks: int
    num_pages: int
    size_bytes: int


class ApiClient:
    """Calls to the API at `base_url`, e.g. "http://127.0.0.1:8080". One per process: it keeps connections open."""

    def __init__(self, base_url: str) -> None:
        self.base_url = base_url
        self._http = httpx.AsyncClient(
            base_url=base_url,
            timeout=httpx.Timeout(SHORT_CALL_S, connect=CONNECT_S),
            # Every open answer holds a connection; a limit would make one person wait for another.
            limits=httpx.Limits(max_connections=None, max_keepalive_connections=20),
            # The API is a neighbour: a proxy for the outside world set in the environment must not get between.
            trust_env=False,
        )

    async def aclose(self) -> None:
        """Close all connections."""
        await self._http.aclose()

    async def health(self) -> Health:
        """The API's readiness. Never raises: not answering is an answer."""
        try:
            response = await self._http.get("/v1/health/ready")
            body = response.json()
            if response.status_code == 200:
                return Health("ready")
            return Health(str(body.get("status") or "unhealthy"), str(body.get("reason") or ""))
        except (httpx.HTTPError, ValueError, AttributeError):
            return Health("unreachable", f"Nothing answers at {self.base_url}.")

    async def stream_answer(self, question: str, session_id: str) -> AsyncGenerator[AnswerPart]:
        """The answer to `question` in the conversation `session_id`, piece by piece.

        Closing the iterator closes the connection, on which the server abandons the answer.
        Raises AnswerBrokenOffError when the stream ends without its `end`, ApiFaultError for an `error` event.
        """
        body = {"input": {"input": question}, "config": {"configurable": {"session_id": session_id}}}
        decoder = SSEDecoder()
        async with self._open_stream("/chat/stream", body) as response:
            async for chunk in response.aiter_raw():
                for event in decoder.feed(chunk):
                    if event.event == "end":
                        return
                    for part in _answer_parts(event):
                        yield part
        raise AnswerBrokenOffError("The connection to the server broke off before the answer was complete.")

    async def turns(self, session_id: str) -> list[Turn]:
        """The turns that the server has kept of a conversation, oldest first; none for an unknown one."""
        try:
            body = await self._call("GET", f"/api/v1/conversations/{quote(session_id, safe='')}")
        except NotFoundError:
            return []
        with _understood():
            return [Turn.from_json(turn) for turn in body["turns"]]

    async def drop_turns_from(self, session_id: str, index: int) -> None:
        """Forget the turn `index` (counted from 0) and all later ones. One that is already gone is no error."""
        try:
            await self._call("DELETE", f"/api/v1/conversations/{quote(session_id, safe='')}/turns/{index}")
        except NotFoundError:
            return

    async def documents(self) -> list[Document]:
        """All documents of the knowledge base."""
        body = await self._call("GET", "/api/v1/documents")
        with _understood():
            return [_document(item) for item in body["documents"]]

    async def upload(self, path: Path, name: str) -> UploadResult:
        """Send one file to be ingested under `name` and wait until it is in (or refused, which the result says)."""
        with path.open("rb") as file:
            body = await self._call(
                "POST",
                "/api/v1/documents",
                files=[("files", (name, file, "application/octet-stream"))],
                timeout=_PATIENT,
            )
        with _understood():
            result = body["results"][0]
            return UploadResult(
                name=str(result.get("name") or name),
                status=str(result["status"]),
                num_chunks=int(result.get("num_chunks") or 0),
                num_pages=int(result.get("num_pages") or 0),
                reason=str(result.get("reason") or ""),
            )

    async def delete_document(self, document_id: str) -> None:
        """Take a document out of the knowledge base. One that is already gone is no error."""
        try:
            await self._call("DELETE", f"/api/v1/documents/{quote(document_id, safe='')}")
        except NotFoundError:
            return

    @asynccontextmanager
    async def _open_stream(self, path: str, body: Any) -> AsyncIterator[httpx.Response]:
        headers = {"Accept": "text/event-stream", "Accept-Encoding": "identity"}
        # json.dumps with ASCII only: httpx would send a lone surrogate (which browsers can produce) as broken UTF-8.
        content = json.dumps(body).encode("ascii")
        headers["Content-Type"] = "application/json"
        try:
            async with self._http.stream("POST", path, content=content, headers=headers, timeout=_PATIENT) as response:
                if response.status_code != 200:
                    await response.aread()
                    raise _refusal(response)
                try:
                    yield response
                except httpx.TransportError as error:
                    raise AnswerBrokenOffError(
                        "The connection to the server broke off before the answer was complete."
                    ) from error
        except httpx.TransportError as error:
            raise self._unreachable() from error

    async def _call(self, method: str, path: str, **options: Any) -> Any:
        """The decoded JSON body of a successful call; None for an empty one."""
        try:
            response = await self._http.request(method, path, **options)
        except httpx.TimeoutException as error:
            raise ApiUnreachableError(f"The server at {self.base_url} did not answer in time.") from error
        except httpx.TransportError as error:
            raise self._unreachable() from error
        if response.status_code >= 400:
            raise _refusal(response)
        with _understood():
            return response.json() if response.content else None

    def _unreachable(self) -> ApiUnreachableError:
        return ApiUnreachableError(f"The server at {self.base_url} cannot be reached. Is it running?")


def _answer_parts(event: ServerSentEvent) -> list[AnswerPart]:
    """What one event adds to the answer. Events and keys that we do not know are left alone."""
    if event.event == "error":
        raise ApiFaultError(_stream_error_message(event.data))
    if event.event != "data":
        return []
    parts = []
    with _understood():
        chunk = json.loads(event.data)
        if chunk.get("sources") is not None:
            parts.append(AnswerPart(sources=[Source.from_json(source) for source in chunk["sources"]]))
        if chunk.get("answer"):
            parts.append(AnswerPart(text=str(chunk["answer"])))
        if is_not_found(chunk.get("grounding")):
            parts.append(AnswerPart(not_found=True))
    return parts


@contextmanager
def _understood() -> Iterator[None]:
    """Turn what goes wrong while a reply is read into the one error that says so."""
    try:
        yield
    except (LookupError, TypeError, ValueError, AttributeError) as error:
        raise ApiFaultError("The server sent a reply that this page does not understand.") from error


def _stream_error_message(data: str) -> str:
    try:
        message = json.loads(data)["message"]
    except (ValueError, KeyError, TypeError):
        message = ""
    return str(message) or "The server failed while it answered and gave no reason."


def _refusal(response: httpx.Response) -> UIError:
    """The error for a reply with a status of 400 or more, in the server's own words where it has any."""
    error = _error_body(response)
    message = str(error.get("message") or f"The server refused the request ({response.status_code}).")
    if response.status_code == 503:
        return ApiNotReadyError(message, str(error.get("reason") or message))
    if response.status_code >= 500:
        return ApiFaultError(message)
    kind = NotFoundError if response.status_code == 404 else RequestRefusedError
    code, field = error.get("code"), error.get("field")
    return kind(
        message,
        status=response.status_code,
        code=None if code is None else str(code),
        field=None if field is None else str(field),
    )


def _error_body(response: httpx.Response) -> dict[str, Any]:
    """The API's `error` object; health replies carry `status` and `reason` at the top instead."""
    try:
        body = response.json()
    except ValueError:
        return {}
    if not isinstance(body, dict):
        return {}
    error = body.get("error")
    if isinstance(error, dict):
        return error
    return {"message": body.get("reason") or (body["detail"] if isinstance(body.get("detail"), str) else None)}


def _document(item: dict[str, Any]) -> Document:
    return Document(
        document_id=str(item["document_id"]),
        title=str(item.get("title") or item.get("source") or "Untitled document"),
        source=str(item.get("source") or ""),
        collection=str(item.get("collection") or "default"),
        num_chunks=int(item.get("num_chunks") or 0),
        num_pages=int(item.get("num_pages") or 0),
        size_bytes=int(item.get("size_bytes") or 0),
    )
