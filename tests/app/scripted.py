"""Stand-ins that do what a test tells them: slow tokens, errors, numbers known beforehand."""

import asyncio
import time
from collections.abc import AsyncGenerator, Callable, Generator, Sequence
from typing import Any

from app.engines.request import EngineRequest
from engine.errors import PromptTooLongError
from engine.outputs import EngineStats, OutputDelta
from engine.sampling_params import SamplingParams
from retrieval.records import Passage


class ScriptedEngineClient:
    """Answers every request with the same pieces; a token is a word.

    `delay_s` passes before each piece; `error_after` pieces, `error` is raised. `requests` and `aborted` record what
    came.
    """

    model_name = "scripted"
    max_model_len = 1000
    num_parameters = 1000

    def __init__(
        self,
        pieces: Sequence[str] = ("Hello", " world"),
        *,
        delay_s: float = 0.0,
        error: Exception | None = None,
        error_after: int = 0,
        num_cached: int = 3,
        finish_reason: str = "stop",
    ) -> None:
        self.pieces = list(pieces)
        self.delay_s = delay_s
        self.error = error
        self.error_after = error_after
        self.num_cached = num_cached
        self.finish_reason = finish_reason
        self.requests: list[dict[str, Any]] = []
        self.aborted: list[str] = []
        self.open = 0
        self.most_open = 0
        self.produced = 0
        self.last_request_id = ""

    async def stream(self, request: EngineRequest) -> AsyncGenerator[OutputDelta, None]:
        self.open += 1
        self.most_open = max(self.most_open, self.open)
        try:
            for delta in self._deltas(request):
                if self.delay_s:
                    await asyncio.sleep(self.delay_s)
                if request.request_id in self.aborted:
                    yield self._end(delta, "abort")
                    return
                self.produced += 1
                yield delta
        finally:
            self.open -= 1

    def stream_sync(self, request: EngineRequest) -> Generator[OutputDelta, None, None]:
        self.open += 1
        try:
            for delta in self._deltas(request):
                if self.delay_s:
                    time.sleep(self.delay_s)
                if request.request_id in self.aborted:
                    yield self._end(delta, "abort")
                    return
                self.produced += 1
                yield delta
        finally:
            self.open -= 1

    def encode(self, text: str, *, add_bos: bool = True) -> list[str]:
        return text.split()

    def encode_chat(self, messages: Sequence[dict[str, Any]], **options: Any) -> list[str]:
        return [word for message in messages for word in str(message["content"]).split()]

    def abort(self, request_id: str) -> None:
        self.aborted.append(request_id)

    def count_tokens(self, text: str) -> int:
        return len(text.split())

    def check_health(self) -> str:
        return "ready"

    def _deltas(self, request: EngineRequest) -> Generator[OutputDelta, None, None]:
        SamplingParams.from_mapping(request.params)
        messages = list(request.messages)
        if request.prompt is not None:
            messages = [{"role": "text", "content": request.prompt}]
        num_prompt = sum(self.count_tokens(str(message["content"])) for message in messages)
        if num_prompt > self.max_model_len:
            raise PromptTooLongError(num_prompt, self.max_model_len, 1)
        request_id = self.last_request_id = request.request_id
        self.requests.append(
            {"messages": messages, "params": dict(request.params), "tools": request.tools}
            | {"tool_choice": request.tool_choice, "parallel_tool_calls": request.parallel_tool_calls}
            | {"priority": request.priority, "begins": request.begins}
        )
        for number, piece in enumerate(self.pieces):
            if self.error is not None and number == self.error_after:
                raise self.error
            yield self._delta(request_id, piece, number + 1, num_prompt)
        if self.error is not None and self.error_after >= len(self.pieces):
            raise self.error
        yield self._end(self._delta(request_id, "", len(self.pieces), num_prompt), self.finish_reason)

    def _delta(self, request_id: str, text: str, num_output: int, num_prompt: int) -> OutputDelta:
        token_ids = (num_output,) if text else ()
        return OutputDelta(request_id, 0, text, token_ids, None, None, None, num_prompt, self.num_cached, num_output)

    @staticmethod
    def _end(delta: OutputDelta, reason: str) -> OutputDelta:
        return OutputDelta(
            delta.request_id, 0, "", (), None, reason, None,
            delta.num_prompt_tokens, delta.num_cached_tokens, delta.num_output_tokens,
        )  # fmt: skip


class ScriptedBackend:
    """Keeps a scripted engine."""

    def __init__(self, client: ScriptedEngineClient) -> None:
        self.client = client

    def health(self) -> tuple[str, str]:
        why = self.client.check_health()
        return ("ready", "") if why == "ready" else ("unhealthy", why)

    def stats(self) -> EngineStats:
        return EngineStats(0, 0, 1, 1, 0, 0, 0, 0, 0, 0, 0)

    def drain(self, timeout_s: float) -> None:
        pass


def passage(text: str, *, title: str = "Guide", heading: str | None = None, page: int | None = None) -> Passage:
    """A passage with that text."""
    return Passage(
        document_id=f"doc-{title}",
        chunk_id=f"chunk-{text[:12]}",
        title=title,
        source=f"{title}.md",
        page=page,
        heading=heading,
        text=text,
        score=0.9,
        collection="default",
    )


async def until(holds: Callable[[], bool], timeout_s: float = 10.0) -> None:
    """Waits until something holds; fails when it does not within a generous time."""
    deadline = time.monotonic() + timeout_s
    while not holds():
        assert time.monotonic() < deadline, "it did not come to hold"
        await asyncio.sleep(0.005)
