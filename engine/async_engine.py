"""One thread that owns the device, and streams that any thread or event loop can read.

Submissions and aborts go through an inbox that the engine thread empties between steps; every request has a ticket with
the sink to which its deltas are handed. Nothing but the engine thread touches the scheduler, the block pool or the
model. Tickets are closed by that thread, or by the watchdog when it hangs; whoever takes one out is the last to use it.
"""

from __future__ import annotations

import asyncio
import logging
import queue
import threading
import uuid
from collections.abc import AsyncIterator, Callable, Iterator, Mapping, Sequence
from typing import Any

from engine.config import EngineConfig
from engine.delivery import LoopMailboxes, Sink, Ticket
from engine.engine import Engine, Prompt
from engine.errors import (
    EngineDeadError,
    EngineDrainingError,
    EngineError,
    EngineStalledError,
    EngineStoppedError,
    InvalidParameterError,
    QueueFullError,
    StepFailedError,
)
from engine.outputs import Completion, EngineStats, OutputDelta, RequestOutput, merged
from engine.request import Request, RequestStatus
from engine.sampling_params import SamplingParams
from engine.tool_format import Syntax
from engine.watchdog import Watchdog

log = logging.getLogger(__name__)

# On a GPU the first step compiles kernels, inside a layer.
FIRST_GPU_STEP_S = 120.0
# How often a thread that waits for the engine thread's end looks whether it hangs.
JOIN_S = 0.25


class AsyncEngine:
    """An `Engine` on a thread of its own. Loads the model when made; serves after `start()`."""

    def __init__(self, config: EngineConfig) -> None:
        self.config = config
        self.engine = Engine(config)
        self._inbox: queue.SimpleQueue[Callable[[], None]] = queue.SimpleQueue()
        # Guards what follows it; notified whenever tickets are closed.
        self._changed = threading.Condition()
        self._tickets: dict[str, Ticket] = {}
        self._mailboxes = LoopMailboxes()
        self._num_arriving = 0
        self._draining = False
        self._stopping = False
        self._thread: threading.Thread | None = None
        self._is_warm = self.engine.runner.device.type == "cpu"
        self._watchdog = Watchdog(self._stall_limit_s, lambda: bool(self._tickets) or self._stopping, self._on_stall)
        self.engine.on_progress = self._watchdog.beat

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
            self._watchdog.watch(self._thread)

    def shutdown(self) -> None:
        """Stop the thread after the step at hand; unfinished requests end with finish_reason "abort".

        A thread that hangs is left behind: its requests have been failed, and it is a daemon.
        """
        thread = self._thread
        if thread is None or not thread.is_alive():
            return
        self._stopping = True
        self._inbox.put(lambda: None)  # wakes it
        while thread.is_alive() and not self._watchdog.stalled:
            thread.join(JOIN_S)
        self._watchdog.stop()

    def drain(self, timeout_s: float) -> bool:
        """Refuse new requests, let queued and running ones finish for at most `timeout_s` seconds, then shut down.

        Blocks. Returns whether all of them finished; the others end with an EngineStoppedError.
        """
        with self._changed:
            self._draining = True
            finished = self._changed.wait_for(lambda: not self._tickets or not self._is_running, timeout_s)
        if not finished:
            self._inbox.put(lambda: self._deliver(self.engine.fail_all(EngineStoppedError())))
        self.shutdown()
        return finished

    def stats(self) -> EngineStats:
        return self.engine.stats()

    def check_health(self) -> str:
        """ "ready", or a sentence that says why not."""
        if self._thread is None:
            return "the engine has not been started"
        if not self._thread.is_alive():
            return "the engine thread has stopped"
        if self._watchdog.stalled:
            return f"the engine has made no progress for {self._watchdog.silent_s:.1f} s: its step hangs"
        if self._draining:
            return "the engine is draining: it finishes its requests and takes no new ones"
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

    def encode(self, text: str, *, add_bos: bool = False) -> list[int]:
        """Token ids of plain text; what spells a control token stays text.

        add_bos: put BOS first where the model's plain prompts begin with it.
        """
        return self.engine.tokenizer.encode(text, add_bos=add_bos)

    def decode(self, token_ids: Sequence[int]) -> str:
        return self.engine.tokenizer.decode(token_ids)

    def token_str(self, token_id: int) -> str:
        """One token for people to read; see `Tokenizer.token_str`."""
        return self.engine.tokenizer.token_str(token_id)

    async def stream(
        self,
        prompt: Prompt,
        params: SamplingParams,
        *,
        request_id: str | None = None,
        tenant: str = "",
        priority: str = "normal",
        deadline_s: float | None = None,
    ) -> AsyncIterator[OutputDelta]:
        """Yield deltas as steps produce them; leaving the iteration early (close, cancel) aborts the request.

        What has come while the caller was busy with an earlier delta is one delta.

        Raises:
            PromptTooLongError, InvalidParameterError: before anything is queued.
            QueueFullError: too many requests wait; it says when to try again.
            EngineDeadError, EngineDrainingError, EngineStalledError: the engine does not run, ends or hangs.
            StepFailedError: the step that this request was part of failed.
            DeadlineExceededError: it was not finished `deadline_s` seconds after it was queued.
        """
        arrived: asyncio.Queue[list[OutputDelta]] = asyncio.Queue()
        mailbox = self._mailboxes.of(asyncio.get_running_loop())

        def sink(deltas: list[OutputDelta]) -> None:
            mailbox.put(arrived, deltas)

        if params.constraint_field is not None:
            # May take a second, so not on the event loop; it is kept, and `make_requests` finds it.
            await asyncio.to_thread(self.engine.grammars.compile, params)
        submitted = self._submit(
            prompt, params, sink, request_id, tenant=tenant, priority=priority, deadline_s=deadline_s, wake=mailbox.wake
        )
        unfinished = params.n
        try:
            while unfinished:
                waiting = list(await arrived.get())
                while not arrived.empty():
                    waiting.extend(arrived.get_nowait())
                for delta in waiting if len(waiting) == 1 else merged(waiting):
                    unfinished -= delta.finish_reason is not None
                    if delta.error is not None:
                        raise delta.error
                    yield delta
        finally:
            if unfinished:
                self.abort(submitted)

    def stream_sync(
        self,
        prompt: Prompt,
        params: SamplingParams,
        *,
        request_id: str | None = None,
        tenant: str = "",
        priority: str = "normal",
        deadline_s: float | None = None,
    ) -> Iterator[OutputDelta]:
        """`stream` for callers without an event loop; closing the iterator aborts the request."""
        arrived: queue.SimpleQueue[list[OutputDelta]] = queue.SimpleQueue()
        submitted = self._submit(
            prompt, params, arrived.put, request_id, tenant=tenant, priority=priority, deadline_s=deadline_s
        )
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
        self,
        prompt: Prompt,
        params: SamplingParams,
        *,
        request_id: str | None = None,
        tenant: str = "",
        priority: str = "normal",
        deadline_s: float | None = None,
    ) -> RequestOutput:
        """The whole answer; cancelling the call aborts the request."""
        output = RequestOutput(
            request_id or "", self.engine.tokenize(prompt), [Completion(index) for index in range(params.n)]
        )
        deltas = self.stream(
            prompt, params, request_id=request_id, tenant=tenant, priority=priority, deadline_s=deadline_s
        )
        async for delta in deltas:
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
        done: queue.SimpleQueue[int | Exception] = queue.SimpleQueue()

        def sink(deltas: list[OutputDelta]) -> None:
            last = deltas[-1]
            if last.finish_reason == "abort":
                done.put(EngineDeadError("the engine stopped before the prefix was computed"))
            elif last.finish_reason is not None:
                done.put(last.error or last.num_prompt_tokens)

        def submit() -> None:
            try:
                requests = self.engine.make_pin(token_ids)
                if not requests:
                    done.put(0)
                    return
                with self._changed:
                    self._tickets[requests[0].request_id] = Ticket(sink, requests)
                self.engine.add(requests)
            except EngineError as error:
                done.put(error)

        with self._changed:
            self._require_serving()
            self._inbox.put(submit)
        result = done.get()
        if isinstance(result, Exception):
            raise result
        return result

    def _submit(
        self,
        prompt: Prompt,
        params: SamplingParams,
        sink: Sink,
        request_id: str | None,
        *,
        tenant: str,
        priority: str,
        deadline_s: float | None,
        wake: Callable[[], None] | None = None,
    ) -> str:
        self._require_serving()
        request_id = request_id or f"req-{uuid.uuid4().hex}"
        # Tokenised and checked in the caller's thread: the engine thread only computes.
        requests = self.engine.make_requests(
            prompt, params, request_id=request_id, tenant=tenant, priority=priority, deadline_s=deadline_s
        )
        with self._changed:
            self._require_serving()
            if (refusal := self.full(len(requests))) is not None:
                raise refusal
            if request_id in self._tickets:
                raise InvalidParameterError(
                    "request_id", f"{request_id!r} is in use by a request that has not finished"
                )
            self._tickets[request_id] = Ticket(sink, requests, wake)
            self._num_arriving += len(requests)
            self._inbox.put(lambda: self._accept(requests))
        return request_id

    def _accept(self, requests: list[Request]) -> None:
        request_id = requests[0].request_id
        with self._changed:
            self._num_arriving -= len(requests)
            ticket = self._tickets.get(request_id)
        if ticket is None or ticket.requests is not requests:
            return  # the watchdog has failed it
        try:
            self.engine.add(requests)
        except EngineError as error:
            self._close(request_id, error)

    def _require_serving(self) -> None:
        if not self._is_running:
            raise EngineDeadError(f"the engine takes no requests: {self.check_health()}; start it (again)")
        if self._watchdog.stalled:
            raise EngineStalledError(self._watchdog.silent_s)
        if self._draining:
            raise EngineDrainingError()

    def full(self, num_sequences: int = 1) -> QueueFullError | None:
        """The refusal that so many newcomers would get now; None where there is room.

        They would make more wait than may; who gets a seat at once does not.
        """
        scheduler, limit = self.engine.scheduler, self.config.max_queue_size
        seats = max(0, scheduler.max_num_seqs - len(scheduler.running))
        waiting = len(scheduler.waiting) + self._num_arriving
        if waiting + num_sequences > limit + seats:
            return QueueFullError(waiting, limit, scheduler.retry_after_s)
        return None

    @property
    def _is_running(self) -> bool:
        return self._thread is not None and self._thread.is_alive() and not self._stopping

    def _stall_limit_s(self) -> float:
        return self.config.stall_timeout_s if self._is_warm else max(self.config.stall_timeout_s, FIRST_GPU_STEP_S)

    def _on_stall(self, silent_s: float) -> None:
        """Fail whoever waits, from the watchdog's thread; the engine forgets them when its thread goes on."""
        with self._changed:
            request_ids = list(self._tickets)
            for request_id in request_ids:
                self._close(request_id, EngineStalledError(silent_s))
        for request_id in request_ids:
            self.abort(request_id)

    def _close(self, request_id: str, error: EngineError) -> None:
        """End a request's stream with an error, without the engine."""
        with self._changed:
            ticket = self._tickets.pop(request_id)
            unfinished = [request for request in ticket.requests if request.status is not RequestStatus.FINISHED]
            ticket.sink([self.engine.refusal(request, error) for request in unfinished])
            if ticket.wake is not None:
                ticket.wake()
            self._changed.notify_all()

    def _run(self) -> None:
        try:
            while not self._stopping:
                self._watchdog.beat()
                if self.engine.has_work:
                    self._empty_inbox()
                    self._deliver(self._step())
                    self._is_warm = True
                else:
                    self._rest()
        except Exception:
            log.exception("the engine thread died")
        finally:
            with self._changed:
                self._stopping = True
            self._empty_inbox()
            for request_id in list(self._tickets):
                self._deliver(self.engine.abort(request_id))
            with self._changed:
                self._changed.notify_all()

    def _step(self) -> list[OutputDelta]:
        try:
            return self.engine.step()
        except AssertionError:
            raise  # the pool's books are wrong: to go on could mix one user's text into another's answer
        except Exception as error:
            log.exception("a step failed outside of the model")
            return self.engine.fail_all(StepFailedError.because(error))

    def _rest(self) -> None:
        """Idle: verify that every block came back, then sleep until something arrives."""
        self.engine.check_integrity()
        self._inbox.get()()
        self._empty_inbox()

    def _empty_inbox(self) -> None:
        while True:
            try:
                action = self._inbox.get_nowait()
            except queue.Empty:
                return
            action()

    def _deliver(self, deltas: list[OutputDelta]) -> None:
        """Hand each request's deltas of a step to its sink, and close tickets whose request is over."""
        by_request: dict[str, list[OutputDelta]] = {}
        for delta in deltas:
            by_request.setdefault(delta.request_id, []).append(delta)
        wakes: set[Callable[[], None]] = set()
        with self._changed:
            for request_id, own in by_request.items():
                ticket = self._tickets.get(request_id)
                if ticket is None:
                    continue
                ticket.sink(own)
                if ticket.wake is not None:
                    wakes.add(ticket.wake)
                if not self.engine.is_live(request_id):
                    del self._tickets[request_id]
            self._changed.notify_all()
        for wake in wakes:
            wake()
