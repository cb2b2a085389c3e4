"""An API that does as it is told: the HTTP format of the real one, with scripted answers, delays and failures.

For what a real server cannot be made to do on demand (break off, be slow in one phase, refuse). The end-to-end tests
use the real thing.
"""

import asyncio
import json
import socket
import threading
import time
from collections.abc import AsyncIterator, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Annotated, Any

import uvicorn
from fastapi import Depends, FastAPI, Form, Request, UploadFile
from fastapi.responses import JSONResponse, Response, StreamingResponse

SOURCES = [
    {
        "n": 1,
        "document_id": "doc-ttft",
        "title": "Latency: TTFT and TPOT",
        "page": None,
        "heading": "Time to first token",
        "text": "TTFT is the time from the arrival of a request to its first output token.",
        "score": 0.91,
    },
    {
        "n": 2,
        "document_id": "doc-manual",
        "title": "Manual <b>",
        "page": 7,
        "heading": None,
        "text": "A passage with <script>window.hit=1</script> and **stars**.",
        "score": 0.5,
    },
]


PDF_PAGES = ["The first page.", 'A tally of 312 steps <img src=x onerror="window.hit=1">.']
DEFAULTS = {
    "model": "tiny",
    "temperature": 0.0,
    "top_p": 0.9,
    "max_tokens": 256,
    "memory": "window",
    "num_passages": 4,
    "retrieval": True,
}
METRICS = """\
# TYPE ragstone:num_requests_running gauge
ragstone:num_requests_running{model_name="tiny"} 1
# TYPE ragstone:num_requests_waiting gauge
ragstone:num_requests_waiting{model_name="tiny"} 2
# TYPE ragstone:kv_cache_usage_perc gauge
ragstone:kv_cache_usage_perc{model_name="tiny"} 0.25
# TYPE ragstone:generation_tokens counter
ragstone:generation_tokens_total{model_name="tiny"} 40
# TYPE ragstone:prefix_cache_queries counter
ragstone:prefix_cache_queries_total{model_name="tiny"} 200
# TYPE ragstone:prefix_cache_hits counter
ragstone:prefix_cache_hits_total{model_name="tiny"} 100
# TYPE ragstone:time_to_first_token_seconds histogram
ragstone:time_to_first_token_seconds_bucket{model_name="tiny",le="0.1"} 1
ragstone:time_to_first_token_seconds_bucket{model_name="tiny",le="1.0"} 4
ragstone:time_to_first_token_seconds_bucket{model_name="tiny",le="+Inf"} 5
ragstone:time_to_first_token_seconds_count{model_name="tiny"} 5
ragstone:time_to_first_token_seconds_sum{model_name="tiny"} 2
"""
PNG = bytes.fromhex(
    "89504e470d0a1a0a0000000d4948445200000001000000010802000000907753de0000000c49444154789c63f8ffff3f0005fe02fe0def46b8"
    "0000000049454e44ae426082"
)


@dataclass
class Script:
    """How the next answers go. `pieces` are sent with `pause_s` between them; `before_s` comes ahead of the sources."""

    pieces: list[str] = field(default_factory=lambda: ["TTFT is the ", "time to ", "first token [1]."])
    sources: list[dict[str, Any]] = field(default_factory=lambda: list(SOURCES))
    grounding: dict[str, Any] | None = None
    statistics: dict[str, Any] | None = None
    finish_reason: str | None = None
    queued_s: float = 0.0  # before the status line
    position: int | None = None  # in the queue
    before_sources_s: float = 0.0
    before_text_s: float = 0.0
    pause_s: float = 0.0
    refuse: tuple[int, dict[str, Any]] | None = None
    error_event: str | None = None  # sent after the pieces, in place of `end`
    breaks_off: bool = False  # the connection ends after the pieces
    health: tuple[int, dict[str, Any]] = (200, {"status": "ready"})


@dataclass
class FakeApi:
    """The state of the API, for tests to set and to look at."""

    url: str = ""
    script: Script = field(default_factory=Script)
    num_open: int = 0
    closed_early_at: list[float] = field(default_factory=list)
    asked: list[tuple[str, str]] = field(default_factory=list)  # (session id, question)
    options: list[dict[str, Any]] = field(default_factory=list)  # `configurable` of each, but for the session id
    turns: dict[str, list[dict[str, Any]]] = field(default_factory=dict)
    titles: dict[str, str] = field(default_factory=dict)
    deleted: dict[str, list[dict[str, Any]]] = field(default_factory=dict)
    feedback: list[dict[str, Any]] = field(default_factory=list)
    collections: list[str] = field(default_factory=lambda: ["default", "handbook"])
    key: str = ""  # without which nothing but the health is told
    documents: dict[str, dict[str, Any]] = field(default_factory=dict)
    jobs: dict[str, list[dict[str, Any]]] = field(default_factory=dict)
    job_lasts: bool = False  # until it is called off
    serving: "_Serving | None" = None

    def reset(self) -> None:
        """Forget all that has happened."""
        fresh = FakeApi()
        for name, value in vars(fresh).items():
            if name not in ("url", "serving", "num_open"):
                setattr(self, name, value)

    def start(self) -> None:
        """Serve, at the same address as before if there was one."""
        self.serving = _Serving(self.app(), int(self.url.rsplit(":", 1)[1]) if self.url else 0)
        self.url = self.serving.url

    def stop(self) -> None:
        """Stop serving, as if the process were gone. Harmless when stopped."""
        if self.serving is not None:
            self.serving.stop()
            self.serving = None

    def app(self) -> FastAPI:
        """The ASGI app that serves this state."""
        app = FastAPI(dependencies=[Depends(self._check_key)])
        app.add_exception_handler(PermissionError, _needs_key)
        app.post("/chat/stream")(self._stream)
        app.get("/v1/health/ready")(self._ready)
        app.get("/v1/models")(self._models)
        app.get("/metrics")(self._metrics)
        app.get("/api/v1/options")(self._defaults)
        conversation = "/api/v1/conversations/{session_id}"
        app.get("/api/v1/conversations")(self._conversations)
        app.get(f"{conversation}/export")(self._export)
        app.get(conversation)(self._conversation)
        app.patch(conversation)(self._rename)
        app.delete(f"{conversation}/turns/{{index}}")(self._drop)
        app.delete(conversation)(self._delete_conversation)
        app.post(f"{conversation}/restore")(self._restore)
        app.get("/api/v1/feedback")(self._feedback)
        app.put("/api/v1/feedback")(self._rate)
        app.delete("/api/v1/feedback")(self._unrate)
        app.get("/api/v1/queue")(self._position)
        app.get("/api/v1/collections")(self._collections)
        app.post("/api/v1/collections")(self._add_collection)
        app.delete("/api/v1/collections/{name}")(self._drop_collection)
        document = "/api/v1/documents/{document_id}"
        app.get("/api/v1/documents")(self._documents)
        app.post("/api/v1/documents")(self._upload)
        app.get("/api/v1/jobs/{job_id}")(self._job)
        app.delete("/api/v1/jobs/{job_id}")(self._cancel)
        app.get(document)(self._document)
        app.get(f"{document}/text")(self._text)
        app.get(f"{document}/html")(self._html)
        app.get(f"{document}/original")(self._original)
        app.get(f"{document}/pages/{{number}}.png")(self._page)
        app.post(f"{document}/reingest")(self._reingest)
        app.delete(document)(self._delete)
        return app

    async def _check_key(self, request: Request) -> None:
        is_open = not self.key or request.url.path.startswith("/v1/health")
        if not is_open and request.headers.get("authorization") != f"Bearer {self.key}":
            raise PermissionError

    async def _models(self) -> Response:
        return JSONResponse(
            {"data": [{"id": "tiny", "task": "generate"}, {"id": "large"}, {"id": "vectors", "task": "embed"}]}
        )

    async def _defaults(self) -> Response:
        return JSONResponse({"defaults": DEFAULTS, "limits": {"max_input_chars": 20_000, "max_upload_bytes": 2000}})

    async def _metrics(self) -> Response:
        return Response(METRICS, media_type="text/plain")

    async def _position(self) -> Response:
        return JSONResponse({"position": self.script.position, "num_running": 1, "num_waiting": 1})

    async def _ready(self) -> Response:
        status, body = self.script.health
        return JSONResponse(body, status)

    async def _stream(self, request: Request) -> Response:
        body = await request.json()
        options = body["config"]["configurable"]
        session_id, question = options.pop("session_id"), body["input"]["input"]
        self.options.append(options)
        script = self.script
        self.asked.append((session_id, question))
        if script.refuse is not None:
            status, error = script.refuse
            return JSONResponse(error, status)
        self.num_open += 1
        if script.queued_s:
            await self._queue(request, script.queued_s)
        events = self._events(script, session_id, question, bool(options.get("continue_turn")))
        return StreamingResponse(events, media_type="text/event-stream")

    async def _queue(self, request: Request, seconds: float) -> None:
        deadline = time.monotonic() + seconds
        while time.monotonic() < deadline:
            if await request.is_disconnected():
                self.num_open -= 1
                self.closed_early_at.append(time.monotonic())
                raise asyncio.CancelledError
            await asyncio.sleep(0.01)

    async def _events(self, script: Script, session_id: str, question: str, continues: bool) -> AsyncIterator[str]:
        # Those of the test that asked: an answer may end after the next one's `reset`.
        turns, titles = self.turns, self.titles
        answer, is_whole = "", False
        titles.setdefault(session_id, question)
        try:
            yield _event("metadata", {"run_id": "0"})
            await asyncio.sleep(script.before_sources_s)
            yield _event("data", {"sources": script.sources})
            await asyncio.sleep(script.before_text_s)
            yield ": ping\r\n\r\n"
            for piece in script.pieces:
                yield _event("data", {"answer": piece})
                answer += piece
                await asyncio.sleep(script.pause_s)
            for name in ("grounding", "statistics", "finish_reason"):
                if getattr(script, name) is not None:
                    yield _event("data", {name: getattr(script, name)})
            is_whole = not script.breaks_off and script.error_event is None
            if script.error_event is not None:
                yield _event("error", {"status_code": 500, "message": script.error_event})
            elif not script.breaks_off:
                yield "event: end\r\n\r\n"
        except (asyncio.CancelledError, GeneratorExit):
            self.closed_early_at.append(time.monotonic())
            raise
        finally:
            self.num_open -= 1
            kept = turns.setdefault(session_id, [])
            if continues:
                answer = kept.pop()["answer"] + answer
            kept.append(
                {
                    "index": len(kept),
                    "question": question,
                    "answer": answer,
                    "sources": script.sources,
                    "interrupted": not is_whole,
                    "grounding": script.grounding,
                    "statistics": script.statistics,
                    "finish_reason": (script.finish_reason or "stop") if is_whole else "abort",
                    "created_at": "2026-01-01T00:00:00Z",
                }
            )

    async def _conversation(self, session_id: str) -> Response:
        if session_id not in self.turns:
            return JSONResponse({"error": {"code": "not_found", "message": "no such conversation"}}, 404)
        return JSONResponse({"session_id": session_id, "title": "t", "turns": self.turns[session_id]})

    async def _drop(self, session_id: str, index: int) -> Response:
        kept = self.turns.get(session_id, [])
        if index >= len(kept):
            return JSONResponse({"error": {"code": "not_found", "message": "no such turn"}}, 404)
        del kept[index:]
        return Response(status_code=204)

    async def _conversations(self, query: str = "") -> Response:
        entries = []
        for session_id, title in reversed(self.titles.items()):
            turns = self.turns.get(session_id, [])
            if session_id in self.deleted:
                continue
            if query.casefold() in title.casefold() or any(query in turn["answer"] for turn in turns):
                entry = {"session_id": session_id, "title": title, "num_turns": len(turns)}
                snippet = turns[-1]["answer"][:60] if query and turns else None
                entries.append({**entry, "updated_at": "2026-01-01T00:00:00Z", "snippet": snippet})
        return JSONResponse({"conversations": entries})

    async def _rename(self, session_id: str, request: Request) -> Response:
        self.titles[session_id] = (await request.json())["title"]
        return JSONResponse({})

    async def _delete_conversation(self, session_id: str) -> Response:
        self.deleted[session_id] = self.turns.pop(session_id)
        return Response(status_code=204)

    async def _restore(self, session_id: str) -> Response:
        self.turns[session_id] = self.deleted.pop(session_id)
        return JSONResponse({})

    async def _export(self, session_id: str, format: str) -> Response:
        suffix = "md" if format == "markdown" else format
        headers = {"Content-Disposition": f'attachment; filename="conversation.{suffix}"'}
        return Response(f"# {self.titles[session_id]}\n", headers=headers, media_type="text/plain")

    async def _rate(self, request: Request) -> Response:
        given = await request.json()
        self.feedback.append(given)
        self.turns[given["session_id"]][given["index"]]["feedback"] = given
        return JSONResponse({})

    async def _feedback(self, format: str) -> Response:
        headers = {"Content-Disposition": f'attachment; filename="feedback.{format}"'}
        return Response("".join(json.dumps(item) + "\n" for item in self.feedback), headers=headers)

    async def _unrate(self, session_id: str, index: int) -> Response:
        self.feedback.append({"session_id": session_id, "index": index, "rating": None})
        return Response(status_code=204)

    async def _collections(self) -> Response:
        def number_in(name: str) -> int:
            return len([item for item in self.documents.values() if item["collection"] == name])

        entries = [
            {"name": name, "is_own": name != "handbook", "num_documents": number_in(name), "num_chunks": 0}
            for name in self.collections
        ]
        return JSONResponse({"collections": entries})

    async def _add_collection(self, request: Request) -> Response:
        name = (await request.json())["name"]
        if name in self.collections:
            return JSONResponse({"error": {"code": "conflict", "message": f"there is a collection {name!r}"}}, 409)
        self.collections.append(name)
        return JSONResponse({"name": name}, 201)

    async def _drop_collection(self, name: str) -> Response:
        self.collections.remove(name)
        return Response(status_code=204)

    async def _documents(self, collection: str = "") -> Response:
        found = [item for item in self.documents.values() if collection in ("", item["collection"])]
        return JSONResponse({"documents": found})

    async def _upload(
        self,
        files: list[UploadFile],
        collection: Annotated[str, Form()] = "default",
        private: Annotated[bool, Form()] = False,
        background: bool = False,
    ) -> Response:
        results = []
        for file in files:
            name, content = str(file.filename), await file.read()
            if not content.strip():
                results.append({"name": name, "status": "failed", "reason": "the file is empty"})
                continue
            self.documents[name] = {
                "document_id": name,
                "title": name,
                "source": name,
                "collection": collection,
                "num_chunks": 1,
                "num_pages": len(PDF_PAGES) if name.endswith(".pdf") else 0,
                "size_bytes": len(content),
                "added_at": "2026-01-01T00:00:00Z",
                "status": "ready",
                "is_private": private,
                "content": content.decode(),
            }
            results.append({"name": name, "status": "added", "document_id": name, "num_chunks": 1, "num_pages": 1})
        if not background:
            return JSONResponse({"results": results})
        job_id = str(len(self.jobs))
        self.jobs[job_id] = [
            {"job_id": job_id, "status": "running", "files": [{"name": "", "status": "running", "progress": 0.5}]},
            {"job_id": job_id, "status": "done", "files": results},
        ]
        return JSONResponse({"job_id": job_id}, 202)

    async def _job(self, job_id: str) -> Response:
        states = self.jobs[job_id]
        return JSONResponse(states.pop(0) if len(states) > 1 and not self.job_lasts else states[0])

    async def _cancel(self, job_id: str) -> Response:
        files = [{"name": "", "status": "cancelled"}]
        self.jobs[job_id] = [{"job_id": job_id, "status": "cancelled", "files": files}]
        return JSONResponse(self.jobs[job_id][0])

    async def _document(self, document_id: str) -> Response:
        if document_id not in self.documents:
            return JSONResponse({"error": {"code": "not_found", "message": "no such document"}}, 404)
        return JSONResponse(self.documents[document_id])

    async def _text(self, document_id: str) -> Response:
        if document_id.endswith(".pdf"):
            pages = [{"page": n, "headings": [], "text": text} for n, text in enumerate(PDF_PAGES, 1)]
            return JSONResponse({"pages": pages})
        section = {"page": None, "headings": ["A heading"], "text": self.documents[document_id]["content"]}
        return JSONResponse({"sections": [section]})

    async def _html(self, document_id: str) -> Response:
        if not document_id.endswith(".html"):
            return JSONResponse({"error": {"code": "not_rendered", "message": "no HTML"}}, 404)
        return JSONResponse({"html": self.documents[document_id]["content"]})

    async def _original(self, document_id: str) -> Response:
        headers = {"Content-Disposition": f'attachment; filename="{document_id}"'}
        content = self.documents[document_id]["content"]
        return Response(content, headers=headers, media_type="application/octet-stream")

    async def _page(self, document_id: str, number: int) -> Response:
        return Response(PNG, media_type="image/png")

    async def _reingest(self, document_id: str) -> Response:
        return JSONResponse({"name": document_id, "status": "updated", "num_chunks": 1})

    async def _delete(self, document_id: str) -> Response:
        gone = self.documents.pop(document_id, None) is not None
        return Response(status_code=204 if gone else 404)


async def _needs_key(_: Request, error: Exception) -> Response:
    return JSONResponse({"error": {"code": "unauthorized", "message": "this server asks for a key"}}, 401)


def _event(name: str, data: Any) -> str:
    return f"event: {name}\r\ndata: {json.dumps(data, ensure_ascii=False)}\r\n\r\n"


class _Serving:
    """A server in a thread of its own; port 0 takes a free one."""

    def __init__(self, app: FastAPI, port: int) -> None:
        listener = socket.create_server(("127.0.0.1", port))
        self.url = f"http://127.0.0.1:{listener.getsockname()[1]}"
        # No grace: open answers are cut when the server ends.
        self._server = uvicorn.Server(uvicorn.Config(app, log_level="critical", timeout_graceful_shutdown=0))
        self._thread = threading.Thread(target=self._server.run, kwargs={"sockets": [listener]}, daemon=True)
        self._thread.start()
        while not self._server.started:
            time.sleep(0.01)

    def stop(self) -> None:
        self._server.should_exit = True
        self._thread.join(timeout=10)


@contextmanager
def fake_api() -> Iterator[FakeApi]:
    """A FakeApi being served."""
    api = FakeApi()
    api.start()
    try:
        yield api
    finally:
        api.stop()
