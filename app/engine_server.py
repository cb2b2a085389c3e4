"""`ragstone engine` as an HTTP application: the chat model alone, on OpenAI's /v1 and on the routes that an app uses.

No documents, no conversations, no UI. Loading, health, errors and draining are those of the whole server.
"""

import asyncio
import threading
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

from fastapi import FastAPI

from app import __version__
from app.api_keys import KeyStore
from app.browser_guard import BrowserGuard
from app.engines.model_table import local_settings
from app.metrics import ServerMetrics
from app.preflight import keys_required
from app.request_id import RequestIds
from app.routes import completions, engine, faults, health, openai, tokens
from app.routes.access import AccessGuard
from app.services import Services
from app.settings import Settings

DESCRIPTION = "A chat model on OpenAI's protocol. `/engine` is what `ragstone serve` uses of it (engine_url)."


class EngineServices(Services):
    """The part of the services that an engine alone has."""

    def __init__(self, settings: Settings) -> None:
        self.settings = settings
        self.metrics = ServerMetrics()
        self.load_error = None
        self.observers = []
        self.is_busy = lambda: False
        self.started_at = int(time.time())
        self._loading = "the engine has just started"
        self._loaded = False
        self._draining = False
        self._closing = threading.Event()
        self._read_table(())

    @property
    def served_models(self) -> tuple[str, ...]:
        return (self.model_name,)

    def _load(self) -> None:
        self._load_engine()

    def _start_jobs(self) -> None:
        """There are none: an engine takes in no documents."""

    async def close(self) -> None:
        self._closing.set()
        await asyncio.to_thread(self.pool.drain, 0.0)


def create_app(settings: Settings, socket: Path | None = None) -> FastAPI:
    """The application. Behind a Unix socket, which only its owner can open, it asks for no keys."""
    local = local_settings(settings).model_copy(update={"engine_mode": "in-process"})
    services = EngineServices(local)
    keys = KeyStore(settings.keys_path) if socket is None and keys_required(settings) else None

    @asynccontextmanager
    async def lifespan(app: FastAPI) -> AsyncIterator[None]:
        loading = asyncio.create_task(services.load())
        try:
            yield
        finally:
            await asyncio.wait({loading})
            await services.close()

    app = FastAPI(
        title="Ragstone engine", version=__version__, description=DESCRIPTION, lifespan=lifespan, docs_url=None
    )
    app.state.services = services
    faults.install(app)
    for router in (openai, completions, tokens, health):
        app.include_router(router.create_router(services), responses=faults.OPENAI_ERRORS)
    app.include_router(engine.create_router(services), responses=faults.ERRORS)
    app.add_middleware(AccessGuard, keys=keys)
    hosts = None if keys or socket else [settings.host.lower(), *settings.allowed_host_names]
    app.add_middleware(BrowserGuard, origins=[], hosts=hosts)
    app.add_middleware(RequestIds)
    return app
