"""OpenTelemetry traces: one span for a request to a model, and below it one for each stage (search, generation).

Nothing is recorded until `configure` is called, or until the program that this code is part of sets a tracer provider
of its own. Spans hold names, counts and times, never texts.
"""

import contextlib
import logging
from collections.abc import Iterator
from typing import Any

from opentelemetry import propagate, trace
from opentelemetry.trace import Span, SpanKind, Status, StatusCode
from starlette.datastructures import Headers
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from app import __version__
from app.engines.client import RequestTimes
from app.errors import SettingsError
from app.request_path import route_path
from app.settings import Settings

logger = logging.getLogger(__name__)


def configure(settings: Settings) -> None:
    """Sends spans to `otlp_endpoint`, where the settings name one. Raises SettingsError without the extra `otel`."""
    if settings.otlp_endpoint is None:
        return
    try:
        from opentelemetry.exporter.otlp.proto.http.trace_exporter import OTLPSpanExporter
        from opentelemetry.sdk.resources import Resource
        from opentelemetry.sdk.trace import TracerProvider
        from opentelemetry.sdk.trace.export import BatchSpanProcessor
    except ModuleNotFoundError as error:
        raise SettingsError(
            f"otlp_endpoint needs the package {error.name}: install Ragstone with the extra `otel`",
            field="otlp_endpoint",
        ) from error
    provider = TracerProvider(resource=Resource.create({"service.name": "ragstone", "service.version": __version__}))
    endpoint = settings.otlp_endpoint.rstrip("/") + "/v1/traces"
    provider.add_span_processor(BatchSpanProcessor(OTLPSpanExporter(endpoint=endpoint)))
    trace.set_tracer_provider(provider)
    logger.info("traces go to %s", endpoint)


@contextlib.contextmanager
def stage(name: str, **attributes: Any) -> Iterator[Span]:
    """A span around a block, below the request's; an error is noted by its class."""
    with _tracer().start_as_current_span(name, record_exception=False, attributes=_known(attributes)) as span:
        yield span


def note_generation(model: str, times: RequestTimes) -> None:
    """The span of a request to the engine, made when it has ended: its stream is read by whoever waits for it."""
    context = trace.set_span_in_context(times.parent_span) if times.parent_span is not None else None
    span = _tracer().start_span(
        "generate",
        context=context,
        start_time=times.wall_clock_ns(times.started),
        attributes=_known(
            {
                "gen_ai.request.model": model,
                "gen_ai.usage.input_tokens": times.num_prompt_tokens,
                "gen_ai.usage.output_tokens": times.num_output_tokens,
                "gen_ai.response.finish_reasons": [times.finish_reason],
                "ragstone.cached_tokens": times.num_cached_tokens,
                "ragstone.tenant": times.tenant,
            }
        ),
    )
    if times.first_token is not None:
        span.add_event("first token", timestamp=times.wall_clock_ns(times.first_token))
    if times.finish_reason == "error":
        span.set_status(Status(StatusCode.ERROR))
    span.end(times.wall_clock_ns(times.ended or times.started))


class RequestSpans:
    """A span around every request to a model, below the one that a client names in `traceparent`."""

    def __init__(self, app: ASGIApp) -> None:
        self._app = app

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http" or scope["method"] != "POST":
            await self._app(scope, receive, send)
            return
        context = propagate.extract(dict(Headers(scope=scope)))
        path = route_path(scope)
        with _tracer().start_as_current_span(
            f"POST {path.partition('/c/')[0]}", context=context, kind=SpanKind.SERVER, record_exception=False
        ) as span:

            async def noted(message: Message) -> None:
                if message["type"] == "http.response.start":
                    span.set_attribute("http.response.status_code", message["status"])
                    if message["status"] >= 500:
                        span.set_status(Status(StatusCode.ERROR))
                await send(message)

            await self._app(scope, receive, noted)


def _tracer() -> trace.Tracer:
    return trace.get_tracer("ragstone", __version__)


def _known(attributes: dict[str, Any]) -> dict[str, Any]:
    return {name: value for name, value in attributes.items() if value is not None}
