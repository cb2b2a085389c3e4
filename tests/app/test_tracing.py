"""Traces: one span for a request, one below it for each stage, below the client's own span; and no text in any."""

from collections.abc import AsyncGenerator, Iterator
from functools import partial
from typing import Any

import pytest
from opentelemetry import trace
from opentelemetry.sdk.trace import ReadableSpan, TracerProvider
from opentelemetry.sdk.trace.export import SimpleSpanProcessor
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter

from app.engines.client import RequestTimes
from app.engines.request import EngineRequest
from app.tracing import note_generation
from engine.outputs import OutputDelta
from tests.app.scripted import ScriptedEngineClient
from tests.app.serving import RunningServer, question, scripted_app, wait_until

EXPORTER = InMemorySpanExporter()
TRACE_ID, PARENT_ID = "0af7651916cd43dd8448eb211c80319c", "b7ad6b7169203331"


class TimedEngine(ScriptedEngineClient):
    """Reports its requests as the real clients do."""

    on_end: Any = None

    async def stream(self, request: EngineRequest) -> AsyncGenerator[OutputDelta, None]:
        times = RequestTimes(tenant="t")
        async for delta in super().stream(request):
            times.note(delta)
            yield delta
        times.end()
        self.on_end(times)


@pytest.fixture(scope="module")
def traced(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RunningServer]:
    provider = TracerProvider()
    provider.add_span_processor(SimpleSpanProcessor(EXPORTER))
    trace.set_tracer_provider(provider)
    engine = TimedEngine(["secretive "] * 3)
    app = scripted_app(tmp_path_factory.mktemp("traced"), engine)
    engine.on_end = partial(app.state.services.observe, "scripted")
    with RunningServer(app) as server:
        yield server.wait_until_ready()


def spans_once_there(*names: str) -> dict[str, ReadableSpan]:
    wait_until(lambda: {span.name for span in EXPORTER.get_finished_spans()} >= set(names))
    return {span.name: span for span in EXPORTER.get_finished_spans()}


def test_every_stage_has_a_span_below_the_request_below_the_clients(traced: RunningServer) -> None:
    EXPORTER.clear()
    headers = {"traceparent": f"00-{TRACE_ID}-{PARENT_ID}-01"}
    response = traced.client.post("/chat/stream", json=question("What is TTFT, privately?", "traced"), headers=headers)
    assert response.status_code == 200
    spans = spans_once_there("POST /chat/stream", "retrieve", "generate")
    request = spans["POST /chat/stream"]
    assert request.parent is not None
    assert f"{request.parent.span_id:016x}" == PARENT_ID
    # The web framework has spans of its own in between.
    known = {span.context.span_id: span for span in EXPORTER.get_finished_spans()}
    for name in ("retrieve", "generate"):
        span: ReadableSpan | None = spans[name]
        while span is not None and span is not request:
            assert span.parent is not None
            span = known.get(span.parent.span_id)
        assert span is request, name
        assert f"{spans[name].context.trace_id:032x}" == TRACE_ID
    generated = dict(spans["generate"].attributes or {})
    assert (generated["gen_ai.usage.output_tokens"], generated["ragstone.tenant"]) == (3, "t")
    assert [event.name for event in spans["generate"].events] == ["first token"]
    written = " ".join(span.to_json() for span in spans.values())
    assert "privately" not in written
    assert "secretive" not in written


def test_failed_generation_is_marked(traced: RunningServer) -> None:
    EXPORTER.clear()
    times = RequestTimes(finish_reason="error")
    times.end()
    note_generation("m", times)
    (span,) = EXPORTER.get_finished_spans()
    assert span.status.status_code is trace.StatusCode.ERROR
