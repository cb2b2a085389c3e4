"""One thread that owns the device, and streams that any thread or event loop can read.

Submissions and aborts go through an inbox that the engine thread drains between steps; every request has a sink to
which its deltas are handed. Nothing but the engine thread touches the scheduler, the block pool or the model.
"""

from __future__ import annotations

import asyncio
import logging
import queue
import threading
import time
import uuid
from collections.abc import AsyncIterator, Callable, Iterator, Mapping, Sequence
from contextlib import suppress
from typing import Any

from engine.config import EngineConfig
from engine.engine import Engine, Prompt
from engine.errors import EngineDeadError, EngineError
from engine.outputs import Completion, EngineStats, OutputDelta, RequestOutput
from engine.request import Request
from engine.sampling_params import SamplingParams
from engine.tool_format import Syntax

log = logging.getLogger(__name__)

Sink = Callable[[list[OutputDelta]], None]

# With work at hand and no step finished for this long, the engine is not healthy. Far above any honest step.
STALL_S = 30.0


class AsyncEngine:
    """An `Engine` on a thread of its own. Loads the model when made; serves after `start()`."""

    def __init__(self, config: EngineConfig) -> None:
        self.config = config
        self.engine = Engine(config)
        self._inbox: queue.SimpleQueue[Callable[[], None]] = queue.SimpleQueue()
        self._sinks: dict[str, Sink] = {}
        self._thread: threading.Thread | None = None
        self._stopping = False
        self._heartbeat_s = time.monotonic()

    @property
    def model_name(self) -> str:
        return self.engine.runner.model_name

    @property
    def max_model_len(self) -> int:
        return self.engine.max_model_len

    @property
    def vocab_size(self) -> int:
        return self.engine.runner.model_config.vocab_size

    @property
    def num_parameters(self) -> int:
        return self.engine.runner.decoder.num_parameters

    def start(self) -> None:
        """Start the engine thread; twice is harmless."""
        if self._thread is None:
            self._thread = threading.Thread(target=self._run, name="ragstone-engine", daemon=True)
            self._thread.start()

    def shutdown(self) -> None:
        """Stop the thread after the step at hand; unfinished requests end with finish_reason "abort"."""
        if self._thread is not None and self._thread.is_alive():
            self._inbox.put(self._stop)
            self._thread.join()

    def stats(self) -> EngineStats:
        return self.engine.stats()

    def check_health(self) -> str:
        """ "ready", or a sentence that says why not."""
        if self._thread is None:
            return "the engine has not been started"
        if not self._thread.is_alive():
            return "the engine thread has stopped"
        silent = time.monotonic() - self._heartbeat_s
        if self.engine.has_work and silent > STALL_S:
            return f"no step has finished for {silent:.0f} s although requests are waiting"
        return "ready"

    def render_chat(
        self,
        messages: Sequence[Mapping[str, Any]],
        *,
        tools: Sequence[Mapping[str, Any]] | None = None,
        add_generation_prompt: bool = True,
    ) -> list[int]:
        """See `Engine.render_chat`."""
        return self.engine.render_chat(messages, tools=tools, add_generation_prompt=add_generation_prompt)

    @property
    def chat_stop(self) -> tuple[str, ...]:
        """Strings that must also end an answer to a rendered chat, for models without an end-of-turn token."""
        return self.engine.chat_template.stop

    @property
    def tool_syntax(self) -> Syntax:
        """How this model is expected to write tool calls."""
        return self.engine.chat_template.tool_syntax or "hermes"

    def encode(self, text: str) -> list[int]:
        """Token ids of plain text, without BOS; what spells a control token stays text."""
        return self.engine.tokenizer.encode(text)

    def decode(self, token_ids: Sequence[int]) -> str:
        return self.engine.tokenizer.decode(token_ids)

    async def stream(
        self, prompt: Prompt, params: SamplingParams, *, request_id: str | None = None, tenant: str = ""
    ) -> AsyncIterator[OutputDelta]:
        """Yield deltas as steps produce them; leaving the iteration early (close, cancel) aborts the request.

        Raises:
            PromptTooLongError, InvalidParameterError: before anything is queued.
            EngineDeadError: the engine is not running.
            StepFailedError: the step that this request was part of failed.
        """
        loop = asyncio.get_running_loop()
        arrived: asyncio.Queue[list[OutputDelta]] = asyncio.Queue()

        def sink(deltas: list[OutputDelta]) -> None:
            # The loop may be gone when its server has been stopped; then nobody waits for these.
            with suppress(RuntimeError):
                loop.call_soon_threadsafe(arrived.put_nowait, deltas)

        if params.constraint_field is not None:
            # May take a second, so not on the event loop; it is kept, and `make_requests` finds it.
            await asyncio.to_thread(self.engine.grammars.compile, params)
        submitted = self._submit(prompt, params, sink, request_id=request_id, tenant=tenant)
        unfinished = params.n
        try:
            while unfinished:
                for delta in await arrived.get():
                    unfinished -= delta.finish_reason is not None
                    if delta.error is not None:
                        raise delta.error
                    yield delta
        finally:
            if unfinished:
                self.abort(submitted)

    def stream_sync(
        self, prompt: Prompt, params: SamplingParams, *, request_id: str | None = None, tenant: str = ""
    ) -> Iterator[OutputDelta]:
        """`stream` for callers without an event loop; closing the iterator aborts the request."""
        arrived: queue.SimpleQueue[list[OutputDelta]] = queue.SimpleQueue()
        submitted = self._submit(prompt, params, arrived.put, request_id=request_id, tenant=tenant)
        unfinished = params.n
        try:
            while unfinished:
                for delta in arrived.get():
                    unfinished -= delta.finish_reason is not None
                    if delta.error is not None:
                        raise delta.error
                    yield delta
        finally:
            if unfinished:
                self.abort(submitted)

    async def generate(
        self, prompt: Prompt, params: SamplingParams, *, request_id: str | None = None, tenant: str = ""
    ) -> RequestOutput:
        """The whole answer; cancelling the call aborts the request."""
        output = RequestOutput(
            request_id or "", self.engine.tokenize(prompt), [Completion(index) for index in range(params.n)]
        )
        async for delta in self.stream(prompt, params, request_id=request_id, tenant=tenant):
            output.request_id = delta.request_id
            output.num_cached_tokens = delta.num_cached_tokens
            output.completions[delta.index].add(delta)
        return output

    def abort(self, request_id: str) -> None:
        """End a request, from any thread; unknown or finished ids are harmless."""
        self.engine.abandon(request_id)
        self._inbox.put(lambda: self._deliver(self.engine.abort(request_id)))

    def pin(self, token_ids: Sequence[int]) -> int:
        """Keep the whole blocks of this prefix (the system prompt) cached for good; blocks until they are computed.

        Returns how many tokens are pinned.
        """
        self._require_alive()
        done: queue.SimpleQueue[int | EngineError] = queue.SimpleQueue()

        def submit() -> None:
            try:
                requests = self.engine.make_pin(token_ids)
            except EngineError as error:
                done.put(error)
                return
            if not requests:
                done.put(0)
                return
            first = requests[0]
            self._sinks[first.request_id] = lambda deltas: done.put(
                EngineDeadError("the engine stopped before the prefix was computed")
                if deltas[-1].finish_reason == "abort"
                else first.num_prompt_tokens
            )
            self.engine.add(requests)

        self._inbox.put(submit)
        result = done.get()
        if isinstance(result, EngineError):
            raise result
        return result

    def _submit(
        self, prompt: Prompt, params: SamplingParams, sink: Sink, *, request_id: str | None, tenant: str
    ) -> str:
        self._require_alive()
        request_id = request_id or f"req-{uuid.uuid4().hex}"
        # Tokenised and checked in the caller's thread: the engine thread only computes.
        requests = self.engine.make_requests(prompt, params, request_id=request_id, tenant=tenant)
        self._inbox.put(lambda: self._accept(requests, sink))
        return request_id

    def _accept(self, requests: list[Request], sink: Sink) -> None:
        try:
            self.engine.add(requests)
        except EngineError as error:
            # Only a doubled id can fail here; its first user's stream must not be touched.
            sink([self.engine.refusal(request, error) for request in requests])
            return
        self._sinks[requests[0].request_id] = sink

    def _require_alive(self) -> None:
        if self._thread is None or not self._thread.is_alive() or self._stopping:
            raise EngineDeadError(f"the engine takes no requests: {self.check_health()}; start it (again)")

    def _run(self) -> None:
        try:
            while not self._stopping:
                if not self.engine.has_work:
                    self._rest()
                else:
                    self._drain()
                    self._deliver(self.engine.step())
                self._heartbeat_s = time.monotonic()
        except Exception:
            log.exception("the engine thread died")
        finally:
            self._stopping = True
            self._drain()
            for request_id in list(self._sinks):
                self._deliver(self.engine.abort(request_id))

    def _rest(self) -> None:
        """Idle: verify that every block came back, then sleep until something arrives."""
        self.engine.check_integrity()
        self._inbox.get()()
        self._drain()

    def _drain(self) -> None:
        while True:
            try:
                action = self._inbox.get_nowait()
            except queue.Empty:
                return
            action()

    def _deliver(self, deltas: list[OutputDelta]) -> None:
        """Hand each request's deltas of a step to its sink, and forget sinks whose request is over."""
        by_request: dict[str, list[OutputDelta]] = {}
        for delta in deltas:
            by_request.setdefault(delta.request_id, []).append(delta)
        for request_id, own in by_request.items():
            sink = self._sinks.get(request_id)
            if sink is not None:
                sink(own)
            if not self.engine.is_live(request_id):
                self._sinks.pop(request_id, None)

    def _stop(self) -> None:
        self._stopping = True
