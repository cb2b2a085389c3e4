"""What the app asks of an engine, as one protocol, and the client for an engine in this process.

Rendering, scheduling and sampling belong to the engine. Errors are the engine's own (`engine.errors`), each with a
stable `code`, so that a client over a process or network border can raise the same classes.
"""

import asyncio
import contextlib
import logging
import threading
import time
import uuid
from collections.abc import AsyncGenerator, Callable, Generator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol

from opentelemetry import trace
from opentelemetry.trace import Span

from app.degradation import current_degradation
from app.messages import Message
from app.principal import current_principal

if TYPE_CHECKING:  # the engine brings torch; a program that only names a model should not wait for it
    from app.settings import Settings
    from engine import AsyncEngine, EngineConfig, SamplingParams
    from engine.outputs import OutputDelta
    from engine.tool_format import Held, Syntax, ToolUse
    from engine.tool_parser import ToolCallReader

    # A prompt's token ids, how to sample, and what reads tool calls out of the answer where tools are in play.
    Prepared = tuple[list[int], SamplingParams, ToolCallReader | None]

logger = logging.getLogger(__name__)

# Below this many characters tokenising takes about a millisecond, less than a hop to a worker thread is worth.
INLINE_RENDER_CHARS = 16_000

# Tokens that a chat template puts around one message, at most.
MESSAGE_OVERHEAD_TOKENS = 8


class EngineClient(Protocol):
    """A chat model behind some border: this process, another process, a URL."""

    @property
    def model_name(self) -> str:
        """The name by which the model is served."""

    @property
    def max_model_len(self) -> int:
        """Most tokens of prompt and answer together."""

    @property
    def num_parameters(self) -> int:
        """Size of the model, in parameters."""

    def stream_chat(
        self,
        messages: Sequence[Message],
        params: Mapping[str, Any],
        *,
        tools: Sequence[Mapping[str, Any]] | None = None,
        tool_choice: str | Mapping[str, Any] | None = None,
        parallel_tool_calls: bool | None = None,
        request_id: str | None = None,
        tenant: str = "",
        priority: str = "normal",
    ) -> "AsyncGenerator[OutputDelta, None]":
        """Answers `messages`; `params` holds fields of SamplingParams. Closing or cancelling it aborts the request.

        `tools`, `tool_choice` and `parallel_tool_calls` are OpenAI's; calls come in the deltas' `tool_calls`.
        `priority` is one of `engine.request.PRIORITIES`.

        Raises engine.errors.EngineError: before the first delta for a request that is refused.
        """

    def stream_chat_sync(
        self,
        messages: Sequence[Message],
        params: Mapping[str, Any],
        *,
        tools: Sequence[Mapping[str, Any]] | None = None,
        tool_choice: str | Mapping[str, Any] | None = None,
        parallel_tool_calls: bool | None = None,
        request_id: str | None = None,
        tenant: str = "",
        priority: str = "normal",
    ) -> "Generator[OutputDelta, None, None]":
        """The same for callers without an event loop. Closing it aborts the request."""

    def stream_text(
        self,
        prompt: str | Sequence[int],
        params: Mapping[str, Any],
        *,
        request_id: str | None = None,
        tenant: str = "",
        priority: str = "normal",
    ) -> "AsyncGenerator[OutputDelta, None]":
        """Continues a text, or token ids, as it stands: no template, no roles. Otherwise as `stream_chat`."""

    def abort(self, request_id: str) -> None:
        """Ends a request; harmless for one that has ended or is unknown."""

    def count_tokens(self, text: str) -> int:
        """Tokens of a piece of text, without what the chat template adds (see MESSAGE_OVERHEAD_TOKENS)."""

    def encode(self, text: str, *, add_bos: bool = True) -> list[int]:
        """Token ids of a text as `stream_text` takes it."""

    def encode_chat(
        self,
        messages: Sequence[Message],
        *,
        tools: Sequence[Mapping[str, Any]] | None = None,
        add_generation_prompt: bool = True,
    ) -> list[int]:
        """Token ids of messages as `stream_chat` takes them."""

    def decode(self, token_ids: Sequence[int]) -> str:
        """The text of token ids. Raises InvalidParameterError for one that is outside the vocabulary."""

    def token_texts(self, token_ids: Sequence[int]) -> list[str]:
        """Each token for people to read."""

    def check_health(self) -> str:
        """'ready', or the reason why not."""


@dataclass
class RequestTimes:
    """When the steps of one request happened (monotonic seconds), and how it ended. For metrics."""

    started: float = field(default_factory=time.monotonic)
    first_token: float | None = None
    ended: float | None = None
    num_prompt_tokens: int = 0
    num_cached_tokens: int = 0
    num_output_tokens: int = 0
    finish_reason: str = "abort"
    max_tokens: int | None = None
    n: int = 1
    tenant: str = ""
    parent_span: Span | None = field(default_factory=trace.get_current_span, repr=False)
    _outputs: dict[int, int] = field(default_factory=dict)
    _num_finished: int = 0

    def wall_clock_ns(self, moment: float) -> int:
        """A monotonic time of this record as nanoseconds since 1970."""
        return time.time_ns() - int((time.monotonic() - moment) * 1e9)

    def note(self, delta: "OutputDelta") -> None:
        """Takes one delta into account."""
        if self.first_token is None and delta.token_ids:
            self.first_token = time.monotonic()
        self.num_prompt_tokens = delta.num_prompt_tokens
        self.num_cached_tokens = delta.num_cached_tokens
        self._outputs[delta.index] = delta.num_output_tokens
        if delta.finish_reason is not None:
            self.finish_reason = delta.finish_reason
            self._num_finished += 1

    @property
    def num_tokens(self) -> int:
        """Tokens that the engine has worked on: of the prompt and of all answers."""
        return self.num_prompt_tokens + self.num_output_tokens

    @property
    def is_whole(self) -> bool:
        """Whether all answers of the request have ended."""
        return self._num_finished >= self.n

    def end(self) -> None:
        """Closes the record."""
        self.ended = time.monotonic()
        self.num_output_tokens = sum(self._outputs.values())


class InProcessEngineClient:
    """An `AsyncEngine` of this process as an EngineClient. It does not own the engine: who started it shuts it down.

    `on_end` is called with the times of every request that ended, in whatever way, on the thread that read its stream.
    """

    def __init__(
        self, engine: "AsyncEngine", *, model_name: str, on_end: Callable[[RequestTimes], None] | None = None
    ) -> None:
        self.engine = engine
        self._model_name = model_name
        self._on_end = on_end

    @property
    def model_name(self) -> str:
        return self._model_name

    @property
    def max_model_len(self) -> int:
        return self.engine.max_model_len

    @property
    def num_parameters(self) -> int:
        return self.engine.num_parameters

    def stream_chat(
        self,
        messages: Sequence[Message],
        params: Mapping[str, Any],
        *,
        tools: Sequence[Mapping[str, Any]] | None = None,
        tool_choice: str | Mapping[str, Any] | None = None,
        parallel_tool_calls: bool | None = None,
        request_id: str | None = None,
        tenant: str = "",
        priority: str = "normal",
    ) -> "AsyncGenerator[OutputDelta, None]":
        allowed = current_degradation().sampling(params)

        def prepare() -> "Prepared":
            return self._prepare(messages, allowed, _tool_use(tools, tool_choice, parallel_tool_calls))

        is_quick = not tools and sum(len(message["content"]) for message in messages) < INLINE_RENDER_CHARS
        return self._stream(prepare, is_quick, request_id, tenant, priority)

    def stream_text(
        self,
        prompt: str | Sequence[int],
        params: Mapping[str, Any],
        *,
        request_id: str | None = None,
        tenant: str = "",
        priority: str = "normal",
    ) -> "AsyncGenerator[OutputDelta, None]":
        allowed = current_degradation().sampling(params)

        def prepare() -> "Prepared":
            from engine import SamplingParams

            token_ids = self.encode(prompt) if isinstance(prompt, str) else list(prompt)
            return token_ids, SamplingParams.from_mapping(dict(allowed)), None

        return self._stream(prepare, len(prompt) < INLINE_RENDER_CHARS, request_id, tenant, priority)

    async def _stream(
        self, prepare: "Callable[[], Prepared]", is_quick: bool, request_id: str | None, tenant: str, priority: str
    ) -> "AsyncGenerator[OutputDelta, None]":
        request_id = request_id or new_request_id()
        prompt, sampling, reader = prepare() if is_quick else await asyncio.to_thread(prepare)
        tenant = tenant or current_principal().tenant
        times = RequestTimes(max_tokens=sampling.max_tokens, n=sampling.n, tenant=tenant)
        deltas = self.engine.stream(prompt, sampling, request_id=request_id, tenant=tenant, priority=priority)
        try:
            async for delta in deltas:
                times.note(delta)
                yield delta if reader is None else reader.read(delta)
        except Exception:
            times.finish_reason = "error"
            raise
        finally:
            # However this ends (read to the end, closed, cancelled, failed) the request's blocks must go back at once,
            # not when the garbage collector finds the engine's stream.
            self.engine.abort(request_id)
            self._end(times)

    def stream_chat_sync(
        self,
        messages: Sequence[Message],
        params: Mapping[str, Any],
        *,
        tools: Sequence[Mapping[str, Any]] | None = None,
        tool_choice: str | Mapping[str, Any] | None = None,
        parallel_tool_calls: bool | None = None,
        request_id: str | None = None,
        tenant: str = "",
        priority: str = "normal",
    ) -> "Generator[OutputDelta, None, None]":
        request_id = request_id or new_request_id()
        params = current_degradation().sampling(params)
        prompt, sampling, reader = self._prepare(messages, params, _tool_use(tools, tool_choice, parallel_tool_calls))
        tenant = tenant or current_principal().tenant
        times = RequestTimes(max_tokens=sampling.max_tokens, n=sampling.n, tenant=tenant)
        try:
            for delta in self.engine.stream_sync(
                prompt, sampling, request_id=request_id, tenant=tenant, priority=priority
            ):
                times.note(delta)
                yield delta if reader is None else reader.read(delta)
        except Exception:
            times.finish_reason = "error"
            raise
        finally:
            self.engine.abort(request_id)
            self._end(times)

    def abort(self, request_id: str) -> None:
        self.engine.abort(request_id)

    def count_tokens(self, text: str) -> int:
        return len(self.engine.encode(text))

    def encode(self, text: str, *, add_bos: bool = True) -> list[int]:
        return self.engine.encode(text, add_bos=add_bos)

    def encode_chat(
        self,
        messages: Sequence[Message],
        *,
        tools: Sequence[Mapping[str, Any]] | None = None,
        add_generation_prompt: bool = True,
    ) -> list[int]:
        return self.engine.render_chat(messages, tools=tools, add_generation_prompt=add_generation_prompt)

    def decode(self, token_ids: Sequence[int]) -> str:
        from engine.errors import InvalidParameterError

        size = self.engine.vocab_size
        for token_id in token_ids:
            if not 0 <= token_id < size:
                raise InvalidParameterError(
                    "tokens", f"token id {token_id} is outside the vocabulary; ids are 0 to {size - 1}"
                )
        return self.engine.decode(token_ids)

    def token_texts(self, token_ids: Sequence[int]) -> list[str]:
        return [self.engine.token_str(token_id) for token_id in token_ids]

    def check_health(self) -> str:
        return self.engine.check_health()

    def pin_system_prompt(self, text: str) -> int:
        """Keeps the system prompt's blocks in the prefix cache for good; answers the number of tokens kept."""
        if not text:
            return 0
        return self.engine.pin(
            self.engine.render_chat([{"role": "system", "content": text}], add_generation_prompt=False)
        )

    def _prepare(self, messages: Sequence[Message], params: Mapping[str, Any], use: "ToolUse | None") -> "Prepared":
        """The prompt's token ids, how to sample, and what reads the calls out of the answer where tools are in play."""
        from engine import SamplingParams
        from engine.tool_parser import ToolCallReader

        sampling = SamplingParams.from_mapping(dict(params))
        if self.engine.chat_stop:
            sampling = replace(sampling, stop=(*sampling.stop, *self.engine.chat_stop))
        if use is None:
            return self.engine.render_chat(messages), sampling, None
        prompt = self.engine.render_chat(messages, tools=use.tools)
        syntax = self.engine.tool_syntax
        sampling = _held_to_tools(sampling, use, syntax)
        holds: Held = "answer" if use.is_forced else "calls" if sampling.grammar is not None else ""
        return prompt, sampling, ToolCallReader(syntax, use.names, holds)

    def _end(self, times: RequestTimes) -> None:
        times.end()
        if self._on_end is not None:
            with contextlib.suppress(Exception):  # a fault in metrics must not break an answer
                self._on_end(times)


def _tool_use(tools: Any, choice: Any, parallel: Any) -> "ToolUse | None":
    from engine.tool_format import tool_use

    return tool_use(tools, choice, parallel)


def _held_to_tools(sampling: "SamplingParams", use: "ToolUse", syntax: "Syntax") -> "SamplingParams":
    """Sampling under the grammar of the tools. Raises InvalidParameterError where another constraint excludes it.

    Stop texts end the text of an answer; a call that is forced has none, and they would cut its wrapping.
    """
    from engine.errors import InvalidParameterError
    from engine.grammar import is_available
    from engine.tool_format import call_grammar

    field = sampling.constraint_field
    if field is not None and (use.is_forced or field not in ("json_schema", "json_object")):
        raise InvalidParameterError(
            "tool_choice" if use.is_forced else "tools",
            f"the answer cannot be held to tools and to {field} at once: leave one of them out",
        )
    if field is None and not use.is_forced and not is_available():
        return sampling  # calls are still read out of the answer
    schema = sampling.json_schema if field == "json_schema" else {"type": "object"} if field else None
    grammar = call_grammar(syntax, use, schema)
    stop = () if use.is_forced else sampling.stop
    return replace(sampling, json_schema=None, json_object=False, grammar=grammar, stop=stop)


def new_request_id() -> str:
    """A name for a request that no other has."""
    return f"chat-{uuid.uuid4().hex}"


def engine_config(settings: "Settings", path: Path) -> "EngineConfig":
    """The engine's configuration for a model at `path`, from the settings."""
    from app.models import resolve
    from engine import EngineConfig

    draft = None if settings.draft_model is None else resolve(settings.draft_model, settings)
    return EngineConfig(
        model=path,
        dtype=settings.dtype,
        device=settings.device,
        max_model_len=settings.max_model_len,
        block_size=settings.block_size,
        num_kv_blocks=settings.num_kv_blocks,
        kv_memory_bytes=settings.kv_memory_bytes,
        max_num_seqs=settings.max_num_seqs,
        max_num_batched_tokens=settings.max_num_batched_tokens,
        max_queue_size=settings.max_queue_size,
        default_max_tokens=settings.max_tokens,
        speculation=settings.speculation,
        draft_model=draft,
        num_draft_tokens=settings.num_draft_tokens,
        enable_prefix_caching=settings.enable_prefix_caching,
        check_integrity=settings.check_integrity,
    )


# ── one engine per model and process, for programs that only name a model ────────────────────────────────────────────

_local_engines: dict[Path, "AsyncEngine"] = {}
_local_lock = threading.Lock()


def local_client(model: str) -> InProcessEngineClient:
    """A client for the model of that name, path or repo id, loaded at the first call and then shared by the process.

    Raises app.errors.ModelNotFoundError, engine.errors.ModelLoadError.
    """
    from app.models import resolve
    from app.settings import Settings
    from engine import AsyncEngine

    settings = Settings()
    path = resolve(model, settings).resolve()
    with _local_lock:  # held while loading, so that two threads do not load the same model twice
        engine = _local_engines.get(path)
        if engine is None:
            logger.info("loading model %s", model)
            engine = AsyncEngine(engine_config(settings, path))
            engine.start()
            _local_engines[path] = engine
    return InProcessEngineClient(engine, model_name=model)
