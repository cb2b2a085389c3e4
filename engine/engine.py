"""The engine's core: requests in, one step at a time, deltas out. Single-threaded: threads are `AsyncEngine`'s."""

from __future__ import annotations

import itertools
import logging
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Any, overload

from engine.answer_end import end_of
from engine.chat_template import ChatTemplate
from engine.choices import Choice
from engine.collector import paused_collector
from engine.config import EngineConfig
from engine.detokenizer import Detokenizer
from engine.draft_model import DraftModel
from engine.errors import DeadlineExceededError, EngineError, InvalidParameterError, StepFailedError
from engine.grammar import GrammarCompiler
from engine.kv_cache import KVCache
from engine.model_runner import ModelRunner
from engine.offline import generate_all
from engine.outputs import FINISH_ABORT, FINISH_ERROR, EngineStats, OutputDelta, RequestOutput, TokenLogprob
from engine.parameter_check import as_tuple
from engine.request import Request, RequestStatus
from engine.request_check import check_ids, check_urgency, longest_answer
from engine.sampler import Sampler
from engine.sampling_params import SamplingParams
from engine.scheduler import Scheduler, StepPlan
from engine.speculation import Drafter, NgramDrafter, Speculator
from engine.step_launch import LaunchedStep, StepLauncher
from engine.tool_format import described, speak_of_tools

log = logging.getLogger(__name__)

Prompt = str | Sequence[int]


class Engine:
    """One model, one KV pool, one scheduler.

    Raises:
        ModelLoadError: the model's files are missing, broken or not supported.
        InvalidParameterError: a setting does not fit the model or the machine.
    """

    @paused_collector()
    def __init__(self, config: EngineConfig) -> None:
        self.config = config
        self.runner = ModelRunner(config)
        self.tokenizer = self.runner.tokenizer
        self.chat_template = ChatTemplate(self.tokenizer.chat_template, self.tokenizer)
        self.kv_cache = KVCache(
            self.runner.num_blocks, config.block_size, enable_prefix_caching=config.enable_prefix_caching
        )
        size = self.runner.memory_plan.size
        self.scheduler = Scheduler(self.kv_cache, size.max_num_seqs, size.max_num_batched_tokens, size.prefill_share)
        self.grammars = GrammarCompiler(self.tokenizer, self.runner.model_config.vocab_size)
        overlaps = config.overlap_scheduling
        self.sampler = Sampler(self.tokenizer, self.runner.model_config.vocab_size, together=overlaps)
        self.launcher = StepLauncher(self.scheduler, self.runner, self.sampler, overlaps=overlaps)
        drafter = self._make_drafter()
        self.speculator: Speculator | None = None
        if drafter is not None:
            self.speculator = Speculator(drafter, config.num_draft_tokens, config.max_speculative_rows)
        self._requests: dict[str, list[Request]] = {}
        self._abandoned: set[str] = set()
        # The step whose tokens have not been collected.
        self._in_flight: LaunchedStep | None = None
        self._ids = itertools.count()
        # Called before each layer of a step, so that a long step can be told from one that hangs.
        self.on_progress: Callable[[], None] = lambda: None
        self.num_steps = 0
        self.num_overlapped_steps = 0
        self.num_prompt_tokens = 0
        self.num_generated_tokens = 0

    def _make_drafter(self) -> Drafter | None:
        if self.runner.draft_decoder is not None:
            vocab_size = self.runner.model_config.vocab_size
            return DraftModel(self.runner.draft_decoder, self.config.block_size, vocab_size)
        return NgramDrafter() if self.config.speculation == "ngram" else None

    @property
    def max_model_len(self) -> int:
        return self.runner.max_model_len

    @property
    def has_work(self) -> bool:
        return self.scheduler.has_work or self._in_flight is not None

    @overload
    def generate(self, prompt: str | list[int], params: SamplingParams | None = None) -> RequestOutput: ...

    @overload
    def generate(
        self, prompt: list[str] | list[list[int]] | list[str | list[int]], params: SamplingParams | None = None
    ) -> list[RequestOutput]: ...

    def generate(
        self,
        prompt: str | list[int] | list[str] | list[list[int]] | list[str | list[int]],
        params: SamplingParams | None = None,
    ) -> RequestOutput | list[RequestOutput]:
        """Answer a prompt (text or token ids), or a list of prompts together; returns when all are finished.

        Text is taken as plain text: what spells a control token stays text. Prompts that hold control tokens are given
        as token ids, from `render_chat` or `tokenizer.encode(text, allow_special=True)`.
        """
        params = params or SamplingParams()
        if isinstance(prompt, str) or (len(prompt) > 0 and isinstance(prompt[0], int)):
            return generate_all(self, [prompt], params)[0]
        return generate_all(self, prompt, params)  # type: ignore[arg-type]

    def tokenize(self, prompt: Prompt) -> list[int]:
        """Token ids of a prompt: text as plain text behind the model's BOS (where it has one), ids as they are."""
        if isinstance(prompt, str):
            return self.tokenizer.encode(prompt, add_bos=True)
        return list(as_tuple("prompt", prompt, "token ids (or a text)"))

    def render_chat(
        self,
        messages: Sequence[Mapping[str, Any]],
        *,
        tools: Sequence[Mapping[str, Any]] | None = None,
        add_generation_prompt: bool = True,
    ) -> list[int]:
        """Token ids of a conversation in the model's chat format; text of messages never becomes a control token.

        A model whose template teaches no syntax of tool calls that is known here is told of one in the system message.
        """
        if self.chat_template.tool_syntax is None and speak_of_tools(messages, tools):
            messages, tools = described(messages, tools), None
        return self.chat_template.render(messages, tools=tools, add_generation_prompt=add_generation_prompt)

    def make_requests(
        self,
        prompt: Prompt,
        params: SamplingParams,
        *,
        request_id: str | None = None,
        tenant: str = "",
        priority: str = "normal",
        deadline_s: float | None = None,
        pins_prefix: bool = False,
    ) -> list[Request]:
        """Check a prompt against the model and the pool, and build its `params.n` sequences. Touches no engine state.

        priority: one of "interactive", "normal", "batch" and "background", the most urgent first. tenant: whose it is;
        tenants of a class get equal shares, and see nothing of each other in the prefix cache. deadline_s: seconds from
        when it is queued, after which it ends with DeadlineExceededError wherever it is.

        Raises:
            PromptTooLongError: it can never fit, whatever else runs.
            InvalidParameterError: an empty prompt, an id outside the vocabulary, a constraint that cannot be served, an
                unknown priority, or a deadline that is not a positive number.
        """
        check_urgency(priority, deadline_s)
        token_ids = self.tokenize(prompt)
        check_ids(token_ids, params, self.runner.model_config.vocab_size)
        max_tokens = longest_answer(
            len(token_ids), params, self.max_model_len, self.kv_cache.capacity, self.config.default_max_tokens
        )
        request_id = request_id or f"req-{next(self._ids)}"
        return [
            Request(
                request_id,
                token_ids,
                params,
                max_tokens,
                Detokenizer(self.tokenizer, params.stop, min_tokens=params.min_tokens),
                index=index,
                tenant=tenant,
                pins_prefix=pins_prefix,
                grammar=self.grammars.compile(params),
                priority=priority,
                deadline_s=deadline_s,
            )
            for index in range(params.n)
        ]

    def add(self, requests: Sequence[Request]) -> None:
        """Queue the sequences of one request."""
        request_id = requests[0].request_id
        if request_id in self._requests:
            raise InvalidParameterError("request_id", f"{request_id!r} is in use by a request that has not finished")
        self._requests[request_id] = list(requests)
        for request in requests:
            self.scheduler.add(request)

    def pin(self, token_ids: Sequence[int]) -> int:
        """Compute a prefix (the system prompt) and keep its whole blocks in the cache for good; returns its tokens.

        For use while nothing else runs; `AsyncEngine.pin` may be called at any time.
        """
        requests = self.make_pin(token_ids)
        if requests:
            self.add(requests)
            while self.has_work:
                self.step()
        return requests[0].num_prompt_tokens if requests else 0

    def make_pin(self, token_ids: Sequence[int]) -> list[Request]:
        """The request whose blocks `pin` keeps; empty if the prefix fills no block or prefixes are not cached."""
        if not self.config.enable_prefix_caching:
            return []
        tokens = self.kv_cache.share(token_ids)
        params = SamplingParams(max_tokens=1, temperature=0.0, ignore_eos=True)
        return self.make_requests(tokens, params, pins_prefix=True) if tokens else []

    def abort(self, request_id: str) -> list[OutputDelta]:
        """End a request in whatever state it is; unknown or finished ids are harmless. Returns its last deltas."""
        deltas = []
        self._abandoned.discard(request_id)
        for request in self._requests.pop(request_id, []):
            self._release(request)
            deltas.append(OutputDelta.of(request, FINISH_ABORT))
        if deltas and self.config.check_integrity:
            self.check_integrity()
        return deltas

    def abandon(self, request_id: str) -> None:
        """Say, from any thread, that `abort` is about to come: a step of abandoned requests only is broken off.

        A step of a long prompt takes a large part of a second on a CPU, and an abort must not wait for it.
        """
        if request_id in self._requests:
            self._abandoned.add(request_id)

    def step(self) -> list[OutputDelta]:
        """Advance running requests by some tokens. Returns what became known.

        A step is scheduled, drafted, computed and sampled; with `overlap_scheduling`, the one behind it is launched
        before this one's tokens are collected, and is still on the device when this returns (`step_launch`).
        """
        late = self._expire()
        step = self._in_flight or self._launch(self.scheduler.schedule())
        if step is None:
            return late + self._unblock()
        self._in_flight = step
        self._in_flight = self._launch_behind(step)
        return late + self._collect(step)

    def fail_all(self, error: EngineError) -> list[OutputDelta]:
        """End every request with this error; for what no step could be blamed for."""
        return self._fail([request for requests in self._requests.values() for request in requests], error)

    def is_live(self, request_id: str) -> bool:
        """Whether a request is queued or running."""
        return request_id in self._requests

    def refusal(self, request: Request, error: EngineError) -> OutputDelta:
        """The only delta of a request that was never queued."""
        return OutputDelta.of(request, FINISH_ERROR, error=error)

    def check_integrity(self) -> None:
        """Assert that no block is lost, doubled or leaked (`KVCache.check_integrity`)."""
        live = [request for requests in self._requests.values() for request in requests]
        self.kv_cache.check_integrity([*live, *(self._in_flight.ended if self._in_flight is not None else ())])

    def stats(self) -> EngineStats:
        """A snapshot; may be called from any thread."""
        cache, speculator = self.kv_cache, self.speculator
        return EngineStats(
            num_running=len(self.scheduler.running),
            num_waiting=len(self.scheduler.waiting),
            num_kv_blocks=cache.pool.num_blocks,
            num_free_blocks=cache.pool.num_free,
            num_pinned_blocks=cache.num_pinned_blocks,
            num_steps=self.num_steps,
            num_preemptions=self.scheduler.num_preemptions,
            num_prompt_tokens=self.num_prompt_tokens,
            num_generated_tokens=self.num_generated_tokens,
            num_prefix_queries=cache.num_prefix_queries,
            num_prefix_hits=cache.num_prefix_hits,
            num_drafts=speculator.num_drafts if speculator else 0,
            num_draft_tokens=speculator.num_draft_tokens if speculator else 0,
            num_accepted_tokens=speculator.num_accepted_tokens if speculator else 0,
            num_accepted_by_position=tuple(speculator.num_accepted_by_position) if speculator else (),
            num_waiting_by_priority=self.scheduler.waiting.num_waiting(),
            max_num_seqs=self.scheduler.max_num_seqs,
        )

    def _is_abandoned(self, request_ids: set[str]) -> bool:
        self.on_progress()
        return request_ids <= self._abandoned

    def _expire(self) -> list[OutputDelta]:
        deltas = []
        for request in self.scheduler.expired():
            assert request.deadline_s is not None, "only requests with a deadline expire"
            running = request.status is RequestStatus.RUNNING
            error = DeadlineExceededError(request.deadline_s, request.num_output_tokens, was_running=running)
            deltas += self._fail([request], error)
        return deltas

    def _launch(self, plan: StepPlan, behind: LaunchedStep | None = None) -> LaunchedStep | None:
        """Bring a plan onto the device; None if there is nothing to do."""
        if not plan:
            return None
        self.num_steps += 1
        self.num_overlapped_steps += behind is not None
        scheduled = {request.request_id for request in plan.requests}
        return self.launcher.launch(plan, self.speculator, lambda: self._is_abandoned(scheduled), behind)

    def _launch_behind(self, step: LaunchedStep) -> LaunchedStep | None:
        plan = self.launcher.plan_behind(step, self.speculator)
        return self._launch(plan, step) if plan is not None else None

    def _collect(self, step: LaunchedStep) -> list[OutputDelta]:
        """Wait for a step's tokens; what it failed for, or what became known."""
        for request in step.complete:
            request.num_awaited = 0
        deltas: list[OutputDelta] = []
        if step.error is not None:
            deltas = self._fail(step.requests, step.error)
        elif step.choices is not None:
            try:
                choices = step.choices.arrive()
            except Exception as error:
                deltas = self._fail_in_flight(step, StepFailedError.because(error))
            else:
                deltas = self._advance_all(step, choices)
        for request in step.ended:
            self.kv_cache.release(request)
        if self.config.check_integrity:
            self.check_integrity()
        return deltas

    def _advance_all(self, step: LaunchedStep, choices: Sequence[Iterator[Choice]]) -> list[OutputDelta]:
        step.count()
        for request in step.requests:
            self.kv_cache.publish(request)
        self.scheduler.complete(step.plan)
        deltas = [
            self._advance_or_fail(request, row)
            for request, row in zip(step.complete, choices, strict=True)
            if request.status is not RequestStatus.FINISHED
        ]
        if self.speculator is not None:
            self.speculator.learn(step.plan)
        return deltas

    def _fail_in_flight(self, step: LaunchedStep, error: StepFailedError) -> list[OutputDelta]:
        """The device has failed: what was launched behind the step builds on what it did not compute."""
        log.error("step failed on the device: requests=%d", len(step.requests), exc_info=error)
        following, self._in_flight = self._in_flight, None
        deltas = self._fail(step.requests, error)
        if following is not None:
            deltas += self._fail(following.requests, error)
            for request in following.ended:
                self.kv_cache.release(request)
        return deltas

    def _advance_or_fail(self, request: Request, choices: Iterator[Choice]) -> OutputDelta:
        """`_advance`; what goes wrong while one request's tokens are chosen is no matter of its neighbours."""
        try:
            return self._advance(request, choices)
        except Exception as error:
            log.exception("choosing tokens failed: request_id=%s", request.request_id)
            (delta,) = self._fail([request], StepFailedError(error))
            return delta

    def _advance(self, request: Request, choices: Iterator[Choice]) -> OutputDelta:
        """Append tokens up to the first that is not the one drafted in its place, or that ends the answer."""
        if request.num_output_tokens == 0:
            self.num_prompt_tokens += request.num_prompt_tokens
        drafts, request.draft_token_ids = request.draft_token_ids, []
        token_ids: list[int] = []
        logprobs: list[TokenLogprob] = []
        text = ""
        reason, stopped_by, error = None, None, None
        for (token_id, logprob), draft in itertools.zip_longest(choices, drafts):
            request.append(token_id)
            token_ids.append(token_id)
            logprobs += () if logprob is None else (logprob,)
            accepted = token_id == draft
            request.num_computed += accepted
            if request.grammar is not None and request.grammar.failure is not None:
                reason, error = FINISH_ERROR, InvalidParameterError(request.grammar.field, request.grammar.failure)
                break
            reason, stopped_by, certain = end_of(request, token_id, self.tokenizer.eos_token_ids)
            text += certain
            if reason is not None or not accepted:
                break
        self.num_generated_tokens += len(token_ids)
        if drafts:
            self._settle(request, len(drafts), request.num_computed - (request.num_tokens - len(token_ids)))
        if reason is not None:
            if request.pins_prefix:
                self.kv_cache.pin(request)
            self._finish(request)
        return OutputDelta.of(
            request, reason, text=text, token_ids=token_ids, logprobs=logprobs, stop_reason=stopped_by, error=error
        )

    def _settle(self, request: Request, num_drafts: int, num_accepted: int) -> None:
        """After verification: publish what the accepted drafts filled, give back what only rejected ones needed."""
        request.check()
        self.kv_cache.publish(request)
        self.kv_cache.trim(request)
        request.num_draft_tokens += num_drafts
        request.num_accepted_tokens += num_accepted
        assert self.speculator is not None, "only a speculator drafts"
        self.speculator.count(request, num_drafts, num_accepted)

    def _release(self, request: Request) -> None:
        step = self._in_flight
        if step is not None and request.status is not RequestStatus.FINISHED and request in step.plan.requests:
            # It writes to the request's blocks, so that they may not be anybody else's until it is collected.
            step.ended.append(request)
            self.scheduler.finish(request, releases=False)
        else:
            self.scheduler.finish(request)
        if self.speculator is not None:
            self.speculator.forget(request)

    def _finish(self, request: Request) -> None:
        self._release(request)
        siblings = self._requests.get(request.request_id, [])
        if request in siblings:
            siblings.remove(request)
        if not siblings:
            self._requests.pop(request.request_id, None)

    def _fail(self, requests: Iterable[Request], error: EngineError) -> list[OutputDelta]:
        deltas = []
        for request in list(requests):
            self._finish(request)
            deltas.append(OutputDelta.of(request, FINISH_ERROR, error=error))
        return deltas

    def _unblock(self) -> list[OutputDelta]:
        """Nothing could be scheduled: right when there is no work, else the head of the queue would wait for ever."""
        if not self.scheduler.waiting or self.scheduler.running:
            return []
        request = next(iter(self.scheduler.waiting))
        log.error("request can not be admitted to an idle engine: request_id=%s", request.request_id)
        return self._fail(
            [request], EngineError(f"{request.num_tokens:,} tokens do not fit the KV cache; this is a bug")
        )
