"""Where traces go: to an OTLP collector and to a LangSmith endpoint where variables name them, and nowhere otherwise.

The exporters are the real ones, in a process of its own, since a process has one tracer provider for good.
"""

import json
import os
import subprocess
import sys
import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import pytest
from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import ExportTraceServiceRequest

REPOSITORY = Path(__file__).resolve().parents[2]

# A server that is asked three questions, says whom it has called beside this machine, and ends.
PROGRAM = """
import sys

def watch(event, arguments):
    if event == "socket.getaddrinfo":
        host = arguments[0]
    elif event == "socket.connect" and isinstance(arguments[1], tuple):
        host = arguments[1][0]
    else:
        return
    if host not in (None, "127.0.0.1", "::1", "localhost"):
        print("called", host, flush=True)

sys.addaudithook(watch)
from functools import partial
from pathlib import Path
from langchain_core.tracers.langchain import wait_for_all_tracers
from tests.app.serving import RunningServer, question, scripted_app
from tests.app.test_tracing import TimedEngine

engine = TimedEngine(["fine."])
app = scripted_app(Path(sys.argv[1]), engine)
engine.on_end = partial(app.state.services.observe, "scripted")
with RunningServer(app) as server:
    server.wait_until_ready()
    for path in ("/chat/invoke", "/llm/invoke", "/chat/stream"):
        assert server.post(path, question("What is TTFT?", "traced")).status_code == 200
    wait_for_all_tracers()
print("done", flush=True)
"""


# What LangSmith's endpoint says of itself: runs are to come as JSON, and not as a form of many parts.
BATCHES = {
    "scale_up_qsize_trigger": 1000,
    "scale_up_nthreads_limit": 1,
    "scale_down_nempty_trigger": 4,
    "size_limit": 100,
    "size_limit_bytes": 20 << 20,
    "use_multipart_endpoint": False,
}


class Collector:
    """Takes whatever is posted, and remembers it as (path, headers, body)."""

    def __init__(self) -> None:
        self.posted: list[tuple[str, dict[str, str], bytes]] = []
        collector = self

        class Handler(BaseHTTPRequestHandler):
            def do_GET(self) -> None:
                self._answer(json.dumps({"version": "0", "batch_ingest_config": BATCHES}).encode())

            def do_POST(self) -> None:
                body = self.rfile.read(int(self.headers.get("Content-Length", 0)))
                collector.posted.append((self.path, dict(self.headers), body))
                self._answer(b"{}" if self.headers.get("Content-Type") == "application/json" else b"")

            def _answer(self, body: bytes) -> None:
                self.send_response(200)
                self.send_header("Content-Length", str(len(body)))
                self.end_headers()
                self.wfile.write(body)

            def log_message(self, *arguments: Any) -> None:
                pass

        self.server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self.url = f"http://127.0.0.1:{self.server.server_port}"
        threading.Thread(target=self.server.serve_forever, daemon=True).start()

    def bodies(self, path: str) -> list[bytes]:
        return [body for posted, _, body in self.posted if posted == path]


@pytest.fixture
def collector() -> Iterator[Collector]:
    collector = Collector()
    yield collector
    collector.server.shutdown()
    collector.server.server_close()


def run(folder: Path, **variables: str) -> str:
    plain = {name: value for name, value in os.environ.items() if not name.startswith(("LANGSMITH", "LANGCHAIN"))}
    child = subprocess.run(
        [sys.executable, "-c", PROGRAM, str(folder)],
        env={**plain, "PYTHONPATH": str(REPOSITORY), **variables},
        capture_output=True,
        text=True,
        timeout=120,
    )
    assert child.returncode == 0, child.stderr
    assert child.stdout.splitlines()[-1] == "done"
    return child.stdout


def test_spans_and_runs_go_where_the_variables_say(collector: Collector, tmp_path: Path) -> None:
    said = run(
        tmp_path,
        RAGSTONE_OTLP_ENDPOINT=collector.url,
        LANGSMITH_TRACING="true",
        LANGSMITH_ENDPOINT=collector.url,
        LANGSMITH_API_KEY="a-key",
        LANGSMITH_PROJECT="mine",
    )
    assert "called" not in said
    spans = []
    for body in collector.bodies("/v1/traces"):
        for resource in ExportTraceServiceRequest.FromString(body).resource_spans:
            assert {entry.key: entry.value.string_value for entry in resource.resource.attributes}["service.name"]
            spans += [span.name for scope in resource.scope_spans for span in scope.spans]
    assert (spans.count("retrieve"), spans.count("generate")) == (2, 3)
    assert {"POST /chat/invoke", "POST /llm/invoke", "POST /chat/stream"} <= set(spans)
    posted = [json.loads(body) for body in collector.bodies("/runs/batch")]
    runs = [run for batch in posted for run in batch.get("post", ())]
    roots = [run for run in runs if not run.get("parent_run_id")]
    assert sorted(run["name"] for run in roots) == ["/chat", "/chat", "/llm"]
    assert {run["session_name"] for run in runs} == {"mine"}
    assert any(run["run_type"] == "llm" for run in runs)
    keys = {headers.get("x-api-key") for path, headers, _ in collector.posted if path == "/runs/batch"}
    assert keys == {"a-key"}


def test_without_the_variables_nothing_leaves_the_machine(collector: Collector, tmp_path: Path) -> None:
    said = run(tmp_path, LANGSMITH_ENDPOINT=collector.url, LANGSMITH_API_KEY="a-key")
    assert "called" not in said
    assert collector.posted == []
