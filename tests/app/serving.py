"""Servers for tests: the application under uvicorn on a free port, with real parts or with scripted ones."""

import threading
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from types import SimpleNamespace
from typing import Any
from unittest.mock import patch

import httpx
import uvicorn
from fastapi import FastAPI
from langserve import RemoteRunnable

from app.server import create_app
from app.services import Services
from app.settings import Settings
from retrieval.records import Passage
from tests.app.scripted import ScriptedBackend, ScriptedEngineClient, passage

START_TIMEOUT_S = 300.0


class RunningServer:
    """An application served by uvicorn on a thread, from `with` to its end."""

    def __init__(self, app: FastAPI) -> None:
        self.app = app
        self.services: Services = app.state.services
        # "warning": the lines of every request would hide what matters.
        self._server = uvicorn.Server(uvicorn.Config(app, host="127.0.0.1", port=0, log_level="warning", lifespan="on"))
        self._thread = threading.Thread(target=self._server.run, name="test-server", daemon=True)

    def __enter__(self) -> "RunningServer":
        self._thread.start()
        wait_until(lambda: self._server.started)
        self.port = self._server.servers[0].sockets[0].getsockname()[1]
        self.url = f"http://127.0.0.1:{self.port}"
        self.client = httpx.Client(base_url=self.url, timeout=100)
        return self

    def __exit__(self, *exception: object) -> None:
        self.client.close()
        self._server.should_exit = True
        self._thread.join(60)
        assert not self._thread.is_alive(), "the server did not stop"

    def wait_until_ready(self) -> "RunningServer":
        wait_until(lambda: self.services.status()[0] != "starting", START_TIMEOUT_S)
        assert self.services.status() == ("ready", "")
        return self

    def post(self, path: str, body: Any, **options: Any) -> httpx.Response:
        return self.client.post(path, json=body, **options)

    def remote(self, path: str = "chat") -> RemoteRunnable[Any, Any]:
        """LangServe's client of one of the chains."""
        # When one is collected, it closes its connections on a thread that it starts; where the collector runs in a
        # thread that is itself starting one (here, in the server under test), that waits for ever.
        with patch("langserve.client._close_clients", lambda client, async_client: client.close()):
            return RemoteRunnable(f"{self.url}/{path}/")


def wait_until(holds: Callable[[], bool], timeout_s: float = 60.0) -> None:
    """Waits until something holds; fails when it does not within a generous time."""
    deadline = time.monotonic() + timeout_s
    while not holds():
        assert time.monotonic() < deadline, "it did not come to hold"
        time.sleep(0.02)


class ScriptedKnowledgeBase:
    """Finds the same passages for every question; `private`: some of them must not leave the machine."""

    private = False
    embedder = SimpleNamespace(max_tokens=256)

    def may_find(self, marked: Sequence[str], condition: Any, **options: Any) -> bool:
        return self.private

    def document(self, document_id: str, user: str) -> None:
        return None

    def __init__(self, found: Sequence[Passage]) -> None:
        self.found = list(found)

    def search(self, queries: Sequence[str], k: int, **options: Any) -> list[Passage]:
        return self.found[:k]

    def surroundings(self, passage: Passage, max_tokens: int, count_tokens: Any) -> str:
        return passage.text

    def close(self) -> None:
        pass


def scripted_app(
    folder: Path, client: ScriptedEngineClient | None = None, found: Sequence[Passage] | None = None, **settings: Any
) -> FastAPI:
    """The application with a scripted engine and knowledge base; everything else is real.

    What a script says has no source, so it is not checked unless a test asks for that.
    """
    settings.setdefault("grounding", "off")
    app = create_app(Settings(data_dir=folder, model="scripted", **settings))
    services: Services = app.state.services

    def load() -> None:
        services.pool.put(services.model_name, ScriptedBackend(client or ScriptedEngineClient()))  # type: ignore[arg-type]
        services._knowledge_base = ScriptedKnowledgeBase(  # type: ignore[assignment]
            [passage("TTFT is the time to the first token.", title="TTFT")] if found is None else found
        )
        services._build_chains()

    services._load = load  # type: ignore[method-assign]
    return app


def question(text: str, session_id: str | None = "s", **configurable: Any) -> dict[str, Any]:
    """The body of a request to /chat or /llm."""
    if session_id is not None:
        configurable["session_id"] = session_id
    return {"input": {"input": text}, "config": {"configurable": configurable}}


def events(text: str) -> list[tuple[str, str]]:
    """Server-sent events as (name, data)."""
    found = []
    for block in text.replace("\r\n", "\n").split("\n\n"):
        lines = [line for line in block.split("\n") if line and not line.startswith(":")]
        if lines:
            fields = dict(line.split(": ", 1) for line in lines)
            found.append((fields.get("event", "message"), fields.get("data", "")))
    return found
