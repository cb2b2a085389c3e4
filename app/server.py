"""The HTTP application: all routes over one set of services, loaded in the background so that health answers at once.

Ports, processes and signals are `app/serve.py`'s business.
"""

import asyncio
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from typing import Any

from fastapi import Depends, FastAPI
from fastapi.responses import RedirectResponse
from fastapi_offline import FastAPIOffline
from starlette.middleware.cors import CORSMiddleware
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from app import __version__
from app.answer_jobs import AnswerJobs
from app.api_keys import KeyStore
from app.browser_guard import BrowserGuard
from app.degradation import NONE, Degradation
from app.limits import Limits, TenantLimits
from app.preflight import keys_required
from app.request_id import HEADER, RequestIds
from app.request_path import route_path
from app.routes import (
    answers,
    collections,
    completions,
    conversations,
    document_content,
    documents,
    embeddings,
    faults,
    feedback,
    health,
    jobs,
    langserve,
    openai,
    options,
    rag_completion,
    ranking,
    tokens,
    turns,
    usage,
)
from app.routes.access import AccessGuard
from app.routes.admission import Admission
from app.routes.plain_http import HeadRequests, RelativeRedirects, refuse_unknown_parameters
from app.services import Services
from app.settings import Settings
from app.tracing import RequestSpans, configure
from app.usage import UsageStore
from app.warm_up import warm_up

# JSON bodies are small; uploads have a limit of their own.
MAX_BODY_BYTES = 8 << 20
UPLOAD_PATH = "/api/v1/documents"

# Their errors have OpenAI's shape.
OPENAI_FAMILIES = (completions, embeddings, ranking, tokens, health)
# All under /api/v1.
API_FAMILIES = (documents, document_content, collections, jobs, conversations, turns, feedback, options)

DESCRIPTION = """\
Chat with your documents. `/chat` answers from them (LangServe's protocol: `RemoteRunnable`, or plain POST), and so does
the model `ragstone-rag` on `/v1/chat/completions` (OpenAI's protocol); by its own name, the chat model answers alone.
`/api/v1` holds documents, collections, conversations and feedback.
"""


def create_app(settings: Settings) -> FastAPI:
    """The application. Its lifespan loads models and documents; `app.state.services` tells how far it is."""
    configure(settings)
    services = Services(settings)
    keys = KeyStore(settings.keys_path) if keys_required(settings) else None

    @asynccontextmanager
    async def lifespan(app: FastAPI) -> AsyncIterator[None]:
        loading = asyncio.create_task(_load(app, services))
        app.state.loading = loading
        answer_jobs.start()
        try:
            yield
        finally:
            await answer_jobs.close()
            await asyncio.wait({loading})  # its thread cannot be interrupted, and closing under it would break it
            await services.close()
            usage_store.close()
            if keys is not None:
                keys.close()

    app = FastAPIOffline(  # its page of routes loads nothing from elsewhere
        redoc_url=None,
        title="Ragstone",
        version=__version__,
        description=DESCRIPTION,
        lifespan=lifespan,
        root_path=settings.root_path,
    )
    app.state.services = services
    limits = TenantLimits(_limits_of(settings, keys))
    usage_store = UsageStore(settings.usage_path)
    answer_jobs = AnswerJobs(settings.answers_path, may_work=lambda is_old: _has_time(settings, services, is_old))
    services.is_busy = lambda: limits.num_running > 0
    services.observers += [usage_store.observe, lambda model, times: limits.spend(times.tenant, times.num_tokens)]
    faults.install(app)
    ours: dict[str, Any] = {"responses": faults.ERRORS, "dependencies": [Depends(refuse_unknown_parameters)]}
    app.include_router(usage.create_router(settings, usage_store), **ours)
    app.include_router(answers.create_router(answer_jobs), **ours)
    chat_completions = openai.create_router(services, from_documents=rag_completion.answers_of(services))
    app.include_router(chat_completions, responses=faults.OPENAI_ERRORS)
    for family in OPENAI_FAMILIES:
        app.include_router(family.create_router(services), responses=faults.OPENAI_ERRORS)
    for family in API_FAMILIES:
        app.include_router(family.create_router(services), **ours)
    app.include_router(langserve.create_router(services), responses=faults.ERRORS)

    @app.get("/", include_in_schema=False)
    async def index() -> RedirectResponse:
        return RedirectResponse("docs")

    # The last one added is the first that a request meets.
    app.add_middleware(BodyLimit)
    app.add_middleware(
        Admission,
        limits=limits,
        metrics=services.metrics,
        degradation=lambda: _degradation(settings, services),
        jobs=answer_jobs,
        full=services.full,
        max_body_bytes=MAX_BODY_BYTES,
    )
    app.add_middleware(RequestSpans)
    app.add_middleware(AccessGuard, keys=keys)
    origins = settings.allowed_origins
    if origins:
        app.add_middleware(
            CORSMiddleware, allow_origins=origins, allow_methods=["*"], allow_headers=["*"], expose_headers=[HEADER]
        )
    # A stranger's page has no key, so it matters by which name a server is called only where there are none.
    hosts = None if keys else [settings.host.lower(), *settings.allowed_host_names]
    app.add_middleware(BrowserGuard, origins=origins, hosts=hosts)
    app.add_middleware(RelativeRedirects)
    app.add_middleware(HeadRequests)
    app.add_middleware(RequestIds)
    return app


async def _load(app: FastAPI, services: Services) -> None:
    await services.load()
    if services.load_error is None:
        await asyncio.to_thread(warm_up, app.routes)


def _limits_of(settings: Settings, keys: KeyStore | None) -> Callable[[str], Limits]:
    """A tenant's limits: its own, else those that the settings have for all."""
    defaults = Limits(
        settings.tenant_requests_per_minute, settings.tenant_tokens_per_minute, settings.tenant_concurrency
    )
    return lambda tenant: defaults if keys is None else keys.limits(tenant).over(defaults)


def _is_loaded(settings: Settings, services: Services) -> bool:
    engine = services.metrics.engine
    return engine is not None and engine[1]().num_waiting >= settings.degrade_at


def _has_time(settings: Settings, services: Services, is_old: bool) -> bool:
    """Whether the server may answer a request that was taken down, perhaps long ago."""
    return services.status()[0] in ("ready", "degraded") and (is_old or not _is_loaded(settings, services))


def _degradation(settings: Settings, services: Services) -> Degradation:
    """What a request that comes now must do without."""
    if not settings.degradation_policies or not _is_loaded(settings, services):
        return NONE
    return Degradation(
        tuple(settings.degradation_policies), settings.degraded_num_passages, settings.degraded_max_tokens
    )


class BodyLimit:
    """Refuses bodies over the limit with 413 while they arrive, whether or not they say their length."""

    def __init__(self, app: ASGIApp) -> None:
        self._app = app

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http" or route_path(scope) == UPLOAD_PATH:
            await self._app(scope, receive, send)
            return
        received = 0

        async def limited() -> Message:
            nonlocal received
            message = await receive()
            received += len(message.get("body", b""))
            if received > MAX_BODY_BYTES:
                raise faults.BodyTooLargeError(MAX_BODY_BYTES)
            return message

        await self._app(scope, limited, send)
