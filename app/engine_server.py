"""`ragstone engine` as an HTTP application: the chat model alone, on OpenAI's /v1 and on the routes that an app uses.

No documents, no conversations, no UI. Loading, health, errors and draining are those of the whole server.
"""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

from fastapi import FastAPI

from app import __version__
from app.api_keys import KeyStore
from app.browser_guard import BrowserGuard
from app.engines.model_table import local_settings
from app.model_services import ModelServices
from app.preflight import keys_required
from app.request_id import RequestIds
from app.routes import completions, engine, faults, health, openai, tokens
from app.routes.access import AccessGuard
from app.routes.plain_http import HeadRequests, RelativeRedirects
from app.settings import Settings

DESCRIPTION = "A chat model on OpenAI's protocol. `/engine` is what `ragstone serve` uses of it (engine_url)."


def create_app(settings: Settings, socket: Path | None = None) -> FastAPI:
    """The application. Behind a Unix socket, which only its owner can open, it asks for no keys."""
    local = local_settings(settings).model_copy(update={"engine_mode": "in-process"})
    services = ModelServices(local)
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
    app.add_middleware(RelativeRedirects)
    app.add_middleware(HeadRequests)
    app.add_middleware(RequestIds)
    return app
