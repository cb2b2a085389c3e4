"""An asynchronous client of Ragstone's HTTP API, as far as the chat page needs it; it draws nothing.

Every method raises one of `ui.errors` with a sentence that can be shown as it is, and nothing else of its own.
"""

import json
import re
from collections.abc import AsyncGenerator, AsyncIterator, Iterator, Mapping
from contextlib import asynccontextmanager, contextmanager
from dataclasses import dataclass
from typing import Any
from urllib.parse import quote

import httpx

from ui.conversation import Grounding, Source, Turn, numbers
from ui.errors import (
    AnswerBrokenOffError,
    ApiFaultError,
    ApiNotReadyError,
    ApiUnreachableError,
    LoginNeededError,
    NotFoundError,
    RequestRefusedError,
    UIError,
)
from ui.records import NUM_LISTED_CONVERSATIONS, Collection, ConversationEntry, Document, Health, Section
from ui.sse import ServerSentEvent, SSEDecoder

# Connecting and short calls; an answer or an ingest may take as long as it takes, the person can stop it.
CONNECT_S = 5.0
SHORT_CALL_S = 15.0
# What the API says to programs, for people at the page.
_FOR_PEOPLE = {
    "missing_api_key": "This server asks for an API key: log in with yours.",
    "invalid_api_key": "This key is not valid: it is unknown, revoked or expired. Log in with another.",
}
_PATIENT = httpx.Timeout(CONNECT_S, read=None, write=None, pool=None)


@dataclass(frozen=True)
class AnswerPart:
    """One item of a streamed answer: the sources (first), the next piece of text, or (last) how it ended."""

    text: str = ""
    sources: list[Source] | None = None
    grounding: Grounding | None = None
    finish_reason: str = ""
    statistics: Mapping[str, float] | None = None
    model: str = ""


class ApiClient:
    """Calls to the API at `base_url`, e.g. "http://127.0.0.1:8080", as whoever holds `key` (nobody in particular: "").

    One per process, from which `as_user` makes those of its users: they share the connections, which stay open.
    """

    def __init__(self, base_url: str, key: str = "", http: httpx.AsyncClient | None = None) -> None:
        self.base_url = base_url
        self.key = key
        self._headers = {"Authorization": f"Bearer {key}"} if key else {}
        self._http = http or httpx.AsyncClient(
            base_url=base_url,
            timeout=httpx.Timeout(SHORT_CALL_S, connect=CONNECT_S),
            # Every open answer holds a connection; a limit would make one person wait for another.
            limits=httpx.Limits(max_connections=None, max_keepalive_connections=20),
            # The API is a neighbour: a proxy for the outside world set in the environment must not get between.
            trust_env=False,
        )

    def as_user(self, key: str) -> "ApiClient":
        """The same, for calls by whoever holds `key`."""
        return ApiClient(self.base_url, key, self._http)

    async def aclose(self) -> None:
        """Close all connections."""
        await self._http.aclose()

    # ── the server ───────────────────────────────────────────────────────────────────────────────────────────────────

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

    async def metrics(self) -> str:
        """The Prometheus page."""
        return (await self._response("GET", "/metrics")).text

    async def defaults(self) -> dict[str, Any]:
        """The options that hold for a question which chooses none."""
        body = await self._call("GET", "/api/v1/options")
        with _understood():
            return dict(body["defaults"])

    async def models(self) -> list[str]:
        """Names of the models that a chat can be had with."""
        body = await self._call("GET", "/v1/models")
        with _understood():
            return [str(item["id"]) for item in body["data"] if _answers(item)]

    async def queue_position(self, session_id: str) -> int | None:
        """How many requests stand before this conversation's; 0 while it is answered, None where nothing waits."""
        body = await self._call("GET", "/api/v1/queue", params={"session_id": session_id})
        with _understood():
            return None if body.get("position") is None else int(body["position"])

    # ── answers ──────────────────────────────────────────────────────────────────────────────────────────────────────

    async def stream_answer(
        self, question: str, session_id: str, options: Mapping[str, Any] | None = None
    ) -> AsyncGenerator[AnswerPart]:
        """The answer to `question` in the conversation `session_id`, piece by piece.

        `options` are further keys of `configurable`. Closing the iterator closes the connection, on which the server
        abandons the answer. Raises AnswerBrokenOffError when the stream ends without its `end`, ApiFaultError for an
        `error` event.
        """
        configurable = {**(options or {}), "session_id": session_id}
        body = {"input": {"input": question}, "config": {"configurable": configurable}}
        decoder = SSEDecoder()
        async with self._open_stream("/chat/stream", body) as response:
            async for chunk in response.aiter_raw():
                for event in decoder.feed(chunk):
                    if event.event == "end":
                        return
                    for part in _answer_parts(event):
                        yield part
        raise AnswerBrokenOffError("The connection to the server broke off before the answer was complete.")

    # ── conversations ────────────────────────────────────────────────────────────────────────────────────────────────

    async def conversations(self, query: str = "", limit: int = NUM_LISTED_CONVERSATIONS) -> list[ConversationEntry]:
        """The conversations whose title or text holds `query`, the one used last first."""
        parameters = {"limit": str(limit)} | ({"query": query} if query else {})
        body = await self._call("GET", "/api/v1/conversations", params=parameters)
        with _understood():
            return [ConversationEntry.from_json(item) for item in body["conversations"]]

    async def turns(self, session_id: str) -> list[Turn]:
        """The turns that the server has kept of a conversation, oldest first; none for an unknown one."""
        try:
            body = await self._call("GET", _conversation(session_id))
        except NotFoundError:
            return []
        with _understood():
            return [Turn.from_json(turn) for turn in body["turns"]]

    async def drop_turns_from(self, session_id: str, index: int) -> None:
        """Forget the turn `index` (counted from 0) and all later ones. One that is already gone is no error."""
        try:
            await self._call("DELETE", f"{_conversation(session_id)}/turns/{index}")
        except NotFoundError:
            return

    async def rename_conversation(self, session_id: str, title: str) -> None:
        """Give a conversation another title."""
        await self._call("PATCH", _conversation(session_id), json={"title": title})

    async def delete_conversation(self, session_id: str) -> None:
        """Delete a conversation; for a day it can be restored. One that is already gone is no error."""
        try:
            await self._call("DELETE", _conversation(session_id))
        except NotFoundError:
            return

    async def restore_conversation(self, session_id: str) -> None:
        """Undo a deletion."""
        await self._call("POST", f"{_conversation(session_id)}/restore")

    async def rate(self, session_id: str, index: int, rating: str, comment: str = "") -> None:
        """Keep what a person thinks of the answer of turn `index`: "up" or "down"; "" takes it back."""
        if rating:
            body = {"session_id": session_id, "index": index, "rating": rating, "comment": comment}
            await self._call("PUT", "/api/v1/feedback", json=body)
        else:
            await self._call("DELETE", "/api/v1/feedback", params={"session_id": session_id, "index": str(index)})

    # ── documents ────────────────────────────────────────────────────────────────────────────────────────────────────

    async def collections(self) -> list[Collection]:
        """All collections that the user may search."""
        body = await self._call("GET", "/api/v1/collections")
        with _understood():
            return [Collection.from_json(item) for item in body["collections"]]

    async def create_collection(self, name: str) -> None:
        """Make an empty collection."""
        await self._call("POST", "/api/v1/collections", json={"name": name})

    async def delete_collection(self, name: str) -> None:
        """Delete a collection with all its documents."""
        await self._call("DELETE", f"/api/v1/collections/{quote(name, safe='')}")

    async def documents(self, collection: str = "") -> list[Document]:
        """All documents of the knowledge base, or of one collection."""
        body = await self._call("GET", "/api/v1/documents", params={"collection": collection} if collection else None)
        with _understood():
            return [Document.from_json(item) for item in body["documents"]]

    async def document(self, document_id: str) -> Document:
        """One document. Raises NotFoundError."""
        body = await self._call("GET", _document(document_id))
        with _understood():
            return Document.from_json(body)

    async def sections(self, document_id: str) -> list[Section]:
        """A document's text in pages or sections."""
        body = await self._call("GET", f"{_document(document_id)}/text")
        with _understood():
            return [Section.from_json(item) for item in body.get("pages") or body.get("sections") or ()]

    async def rendered(self, document_id: str) -> str | None:
        """An HTML or Markdown document as safe HTML; None for others, and where its file is not kept."""
        try:
            body = await self._call("GET", f"{_document(document_id)}/html")
        except NotFoundError:
            return None
        with _understood():
            return str(body["html"])

    async def delete_document(self, document_id: str) -> None:
        """Take a document out of the knowledge base. One that is already gone is no error."""
        try:
            await self._call("DELETE", _document(document_id))
        except NotFoundError:
            return

    async def reingest_document(self, document_id: str) -> Any:
        """Read a document's original again; the API's reply."""
        return await self._call("POST", f"{_document(document_id)}/reingest", timeout=_PATIENT)

    async def upload(self, body: AsyncIterator[bytes], content_type: str) -> Any:
        """Send a multipart form of files on; the API's reply: a job's id, or the results."""
        return await self._call(
            "POST",
            "/api/v1/documents",
            params={"background": "true"},
            content=body,
            headers={"Content-Type": content_type},
            timeout=_PATIENT,
        )

    async def job(self, job_id: str) -> Any:
        """How far an upload has come."""
        return await self._call("GET", f"/api/v1/jobs/{quote(job_id, safe='')}")

    async def cancel_job(self, job_id: str) -> None:
        """Take in none of the files that have not been begun."""
        await self._call("DELETE", f"/api/v1/jobs/{quote(job_id, safe='')}")

    # ── how calls are made ───────────────────────────────────────────────────────────────────────────────────────────

    @asynccontextmanager
    async def download(self, path: str) -> AsyncIterator[httpx.Response]:
        """The response to a GET, whose body is still to be read."""
        request = self._http.build_request("GET", path, headers=self._headers, timeout=_PATIENT)
        try:
            response = await self._http.send(request, stream=True)
        except httpx.TransportError as error:
            raise self._unreachable() from error
        try:
            if response.status_code != 200:
                await response.aread()
                raise _refusal(response)
            yield response
        finally:
            await response.aclose()

    @asynccontextmanager
    async def _open_stream(self, path: str, body: Any) -> AsyncIterator[httpx.Response]:
        headers = {**self._headers, "Accept": "text/event-stream", "Accept-Encoding": "identity"}
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
        response = await self._response(method, path, **options)
        with _understood():
            return response.json() if response.content else None

    async def _response(self, method: str, path: str, **options: Any) -> httpx.Response:
        headers = {**self._headers, **options.pop("headers", {})}
        try:
            response = await self._http.request(method, path, headers=headers, **options)
        except httpx.TimeoutException as error:
            raise ApiUnreachableError(f"The server at {self.base_url} did not answer in time.") from error
        except httpx.TransportError as error:
            raise self._unreachable() from error
        if response.status_code >= 400:
            raise _refusal(response)
        return response

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
        if chunk.get("grounding") is not None:
            parts.append(AnswerPart(grounding=Grounding.from_json(chunk["grounding"])))
        if chunk.get("statistics") is not None:
            statistics = chunk["statistics"]
            parts.append(AnswerPart(statistics=numbers(statistics), model=str(statistics.get("model") or "")))
        if chunk.get("finish_reason"):
            parts.append(AnswerPart(finish_reason=str(chunk["finish_reason"])))
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


def _for_people(code: str, message: str) -> str:
    if code == "input_too_long" and (counts := re.search(r"([\d,]+) characters; at most ([\d,]+) ", message)):
        return (
            f"This question has {counts[1]} characters; the server takes {counts[2]}. Shorten it, or add the long text "
            "to your documents and ask about it."
        )
    return _FOR_PEOPLE.get(code, message)


def _refusal(response: httpx.Response) -> UIError:
    """The error for a reply with a status of 400 or more, in the server's own words where it has any."""
    error = _error_body(response)
    message = str(error.get("message") or f"The server refused the request ({response.status_code}).")
    if response.status_code == 503:
        return ApiNotReadyError(message, str(error.get("reason") or message))
    if response.status_code >= 500:
        return ApiFaultError(message)
    kind = {401: LoginNeededError, 404: NotFoundError}.get(response.status_code, RequestRefusedError)
    code, field = error.get("code"), error.get("field")
    return kind(
        _for_people(str(code), message),
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


def _conversation(session_id: str) -> str:
    return f"/api/v1/conversations/{quote(session_id, safe='')}"


def _document(document_id: str) -> str:
    return f"/api/v1/documents/{quote(document_id, safe='')}"


def _answers(model: Mapping[str, Any]) -> bool:
    """Whether a chat can be had with an entry of the list of models: it may answer from documents."""
    return "answer" in model["uses"] if "uses" in model else model.get("task", "generate") == "generate"
