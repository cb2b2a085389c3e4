"""A server of OpenAI's kind that does what the name of the model says, and refuses fields that OpenAI does not have.

No mock of ours stands between: it is spoken to over HTTP, as a stranger's server is.
"""

import json
import threading
import time
from collections.abc import Iterator, Mapping
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

KEY = "secret-key"
WORDS = ("Paris ", "is ", "the ", "capital.")
MODELS = ("says", "busy", "fails", "hangs", "breaks", "breaks-at-once", "tells-late", "never-ends", "calls")
KNOWN_FIELDS = frozenset(
    {"model", "messages", "prompt", "stream", "stream_options", "max_tokens", "temperature", "top_p", "n", "stop"}
    | {
        "presence_penalty",
        "frequency_penalty",
        "logit_bias",
        "seed",
        "logprobs",
        "top_logprobs",
        "tools",
        "tool_choice",
    }
    | {"parallel_tool_calls", "response_format"}
)
LOGPROBS = {"content": [{"token": "Paris ", "logprob": -0.5, "bytes": None, "top_logprobs": []}]}
CALL = [{"index": 0, "id": "call-1", "type": "function", "function": {"name": "add", "arguments": '{"a": '}}]
REST_OF_CALL = [{"index": 0, "function": {"arguments": "1}"}}]


class OpenAIServer:
    """The server, from `with` to its end. `requests` are the bodies that came; `num_open` answers are being sent."""

    def __init__(self, *, models: tuple[str, ...] = MODELS, key: str | None = None) -> None:
        self.models = models
        self.key = key
        self.requests: list[dict[str, Any]] = []
        self.num_open = 0
        self.released = threading.Event()
        server = self

        class Handler(_Handler):
            script = server

        self._http = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self._http.daemon_threads = True
        self.url = f"http://127.0.0.1:{self._http.server_address[1]}/v1"

    def __enter__(self) -> "OpenAIServer":
        threading.Thread(target=self._http.serve_forever, daemon=True).start()
        return self

    def __exit__(self, *exception: object) -> None:
        self.released.set()
        self._http.shutdown()
        self._http.server_close()


class _Handler(BaseHTTPRequestHandler):
    script: OpenAIServer

    def log_message(self, *arguments: Any) -> None:
        pass

    def do_GET(self) -> None:
        if self.path != "/v1/models":
            self._json(404, {"detail": "Not Found"})
        elif not self._has_key():
            self._json(401, {"error": {"message": "no such key", "code": "invalid_api_key"}})
        else:
            self._json(
                200, {"object": "list", "data": [{"id": name, "max_model_len": 4096} for name in self.script.models]}
            )

    def do_POST(self) -> None:
        body = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
        self.script.requests.append(body)
        model = body["model"]
        if not self._has_key():
            self._json(401, {"error": {"message": "no such key", "code": "invalid_api_key"}})
        elif self.path not in ("/v1/chat/completions", "/v1/completions"):
            self._json(404, {"detail": "Not Found"})
        elif model not in self.script.models:
            self._json(404, {"error": {"message": f"The model `{model}` does not exist.", "code": "model_not_found"}})
        elif unknown := sorted(set(body) - KNOWN_FIELDS):
            self._json(400, {"error": {"message": f"Unrecognized request argument: {unknown[0]}", "param": unknown[0]}})
        elif model == "busy":
            self._json(429, {"error": {"message": "Rate limit reached"}}, {"Retry-After": "7"})
        elif model == "fails":
            self._json(500, {"error": {"message": "CUDA error"}})
        else:
            self._stream(body)

    def _has_key(self) -> bool:
        return self.script.key is None or self.headers["Authorization"] == f"Bearer {self.script.key}"

    def _json(self, status: int, body: Any, headers: Mapping[str, str] = {}) -> None:
        data = json.dumps(body).encode()
        self.send_response(status)
        for name, value in {"Content-Type": "application/json", "Content-Length": str(len(data)), **headers}.items():
            self.send_header(name, value)
        self.end_headers()
        self.wfile.write(data)

    def _stream(self, body: Mapping[str, Any]) -> None:
        self.script.num_open += 1
        try:
            self.send_response(200)
            self.send_header("Content-Type", "text/event-stream")
            self.end_headers()
            for chunk in self._chunks(body):
                self.wfile.write(f"data: {chunk if isinstance(chunk, str) else json.dumps(chunk)}\r\n\r\n".encode())
                self.wfile.flush()
        except OSError:
            pass  # the client is gone
        finally:
            self.script.num_open -= 1

    def _chunks(self, body: Mapping[str, Any]) -> Iterator[Any]:
        model, is_chat = body["model"], self.path == "/v1/chat/completions"
        if model == "hangs":
            self.script.released.wait(60)
            return
        if model == "breaks-at-once":
            return
        if model == "calls":
            yield {"choices": [{"index": 0, "delta": {"role": "assistant", "tool_calls": CALL}, "finish_reason": None}]}
            yield {"choices": [{"index": 0, "delta": {"tool_calls": REST_OF_CALL}, "finish_reason": "tool_calls"}]}
            yield "[DONE]"
            return
        for number, word in enumerate(WORDS if model != "never-ends" else ("on ",) * 10_000):
            said: dict[str, Any] = {"delta": {"content": word}} if is_chat else {"text": word}
            logprobs = LOGPROBS if body.get("logprobs") and is_chat and number == 0 else None
            yield {"choices": [{"index": 0, **said, "logprobs": logprobs, "finish_reason": None}]}
            if model == "breaks" and number == 1:
                return
            if model == "tells-late" and number == 1:
                yield {"error": {"message": "the worker died"}}
                return
            if model == "never-ends":
                time.sleep(0.005)
        end = {"delta": {}} if is_chat else {"text": ""}
        yield {"choices": [{"index": 0, **end, "logprobs": None, "finish_reason": "stop"}]}
        if (body.get("stream_options") or {}).get("include_usage"):
            yield {"choices": [], "usage": {"prompt_tokens": 11, "completion_tokens": 5, "total_tokens": 16}}
        yield "[DONE]"
