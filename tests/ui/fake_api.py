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
from typing import Any

import uvicorn
from fastapi import FastAPI, Request, UploadFile
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


@dataclass
class Script:
    """How the next answers go. `pieces` are sent with `pause_s` between them; `before_s` comes ahead of the sources."""

    pieces: list[str] = field(default_factory=lambda: ["TTFT is the ", "time to ", "first token [1]."])
    sources: list[dict[str, Any]] = field(default_factory=lambda: list(SOURCES))
    queued_s: float = 0.0  # before the status line
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
    turns: dict[str, list[dict[str, Any]]] = field(default_factory=dict)
    documents: dict[str, dict[str, Any]] = field(default_factory=dict)
    serving: "_Serving | None" = None

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
        app = FastAPI()
        app.post("/chat/stream")(self._stream)
        app.get("/v1/health/ready")(self._ready)
        app.get("/api/v1/conversations/{session_id}")(self._conversation)
        app.delete("/api/v1/conversations/{session_id}/turns/{index}")(self._drop)
        app.get("/api/v1/documents")(self._documents)
        app.post("/api/v1/documents")(self._upload)
        app.delete("/api/v1/documents/{document_id}")(self._delete)
        return app

    async def _ready(self) -> Response:
        status, body = self.script.health
        return JSONResponse(body, status)

    async def _stream(self, request: Request) -> Response:
        body = await request.json()
        session_id, question = body["config"]["configurable"]["session_id"], body["input"]["input"]
        script = self.script
        self.asked.append((session_id, question))
        if script.refuse is not None:
            status, error = script.refuse
            return JSONResponse(error, status)
        self.num_open += 1
        if script.queued_s:
            await self._queue(request, script.queued_s)
        return StreamingResponse(self._events(script, session_id, question), media_type="text/event-stream")

    async def _queue(self, request: Request, seconds: float) -> None:
        deadline = time.monotonic() + seconds
        while time.monotonic() < deadline:
            if await request.is_disconnected():
                self.num_open -= 1
                self.closed_early_at.append(time.monotonic())
                raise asyncio.CancelledError
            await asyncio.sleep(0.01)

    async def _events(self, script: Script, session_id: str, question: str) -> AsyncIterator[str]:
        answer, is_whole = "", False
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
            kept = self.turns.setdefault(session_id, [])
            kept.append(
                {
                    "index": len(kept),
                    "question": question,
                    "answer": answer,
                    "sources": script.sources,
                    "interrupted": not is_whole,
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

    async def _documents(self) -> Response:
        return JSONResponse({"documents": list(self.documents.values())})

    async def _upload(self, files: list[UploadFile]) -> Response:
        results = []
        for file in files:
            name, content = str(file.filename), await file.read()
            if not content.strip():
                results.append({"name": name, "status": "failed", "reason": "the file is empty"})
                continue
            self.documents[name] = {"document_id": name, "title": name, "source": name, "num_chunks": 1}
            results.append({"name": name, "status": "added", "document_id": name, "num_chunks": 1, "num_pages": 1})
        return JSONResponse({"results": results})

    async def _delete(self, document_id: str) -> Response:
        gone = self.documents.pop(document_id, None) is not None
        return Response(status_code=204 if gone else 404)


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
