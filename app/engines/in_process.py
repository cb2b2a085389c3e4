"""The client for an engine of this process, and the engines that programs share which only name a model."""

import asyncio
import contextlib
import logging
import threading
from collections.abc import AsyncGenerator, Callable, Generator, Iterator, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from app.degradation import current_degradation
from app.engines.client import RequestTimes
from app.engines.request import EngineRequest
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

    async def stream(self, request: EngineRequest) -> "AsyncGenerator[OutputDelta, None]":
        params = current_degradation().sampling(request.params)
        is_quick = not request.tools and request.num_chars < INLINE_RENDER_CHARS
        prepared = (
            self._prepare(request, params) if is_quick else await asyncio.to_thread(self._prepare, request, params)
        )
        with self._noted(request, prepared) as (noted, options):
            async for delta in self.engine.stream(*prepared[:2], **options):
                yield noted(delta)

    def stream_sync(self, request: EngineRequest) -> "Generator[OutputDelta, None, None]":
        prepared = self._prepare(request, current_degradation().sampling(request.params))
        with self._noted(request, prepared) as (noted, options):
            for delta in self.engine.stream_sync(*prepared[:2], **options):
                yield noted(delta)

    @contextlib.contextmanager
    def _noted(
        self, request: EngineRequest, prepared: "Prepared"
    ) -> "Iterator[tuple[Callable[[OutputDelta], OutputDelta], dict[str, Any]]]":
        """What every delta of the request's stream passes through, and the stream's options; ends the request."""
        _, sampling, reader = prepared
        tenant = request.tenant or current_principal().tenant
        times = RequestTimes(max_tokens=sampling.max_tokens, n=sampling.n, tenant=tenant)

        def noted(delta: "OutputDelta") -> "OutputDelta":
            times.note(delta)
            return delta if reader is None else reader.read(delta)

        try:
            yield noted, {"request_id": request.request_id, "tenant": tenant, "priority": request.priority}
        except Exception:
            times.finish_reason = "error"
            raise
        finally:
            # However this ends (read to the end, closed, cancelled, failed) the request's blocks must go back at once,
            # not when the garbage collector finds the engine's stream.
            self.engine.abort(request.request_id)
            times.end(self._on_end)

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

    def _prepare(self, request: EngineRequest, params: Mapping[str, Any]) -> "Prepared":
        """The prompt's token ids, how to sample, and what reads the calls out of the answer where tools are in play."""
        from engine import SamplingParams
        from engine.tool_parser import ToolCallReader

        sampling = SamplingParams.from_mapping(dict(params))
        if (prompt := request.prompt) is not None:
            return self.encode(prompt) if isinstance(prompt, str) else list(prompt), sampling, None
        use = _tool_use(request.tools, request.tool_choice, request.parallel_tool_calls)
        if self.engine.chat_stop:
            sampling = replace(sampling, stop=(*sampling.stop, *self.engine.chat_stop))
        if use is None:
            # A chat template knows no answer that goes on: its tokens up to the answer, and those of what was said.
            begun = self.encode(request.begins, add_bos=False) if request.begins else []
            return [*self.engine.render_chat(request.messages), *begun], sampling, None
        token_ids = self.engine.render_chat(request.messages, tools=use.tools)
        syntax = self.engine.tool_syntax
        sampling = _held_to_tools(sampling, use, syntax)
        holds: Held = "answer" if use.is_forced else "calls" if sampling.grammar is not None else ""
        return token_ids, sampling, ToolCallReader(syntax, use.names, holds)


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
        kv_cache_dtype=settings.kv_cache_dtype,
        kv_memory_bytes=settings.kv_memory_bytes,
        max_num_seqs=settings.max_num_seqs,
        max_num_batched_tokens=settings.max_num_batched_tokens,
        max_queue_size=settings.max_queue_size,
        default_max_tokens=settings.max_tokens,
        speculation=settings.speculation,
        draft_model=draft,
        num_draft_tokens=settings.num_draft_tokens,
        enable_prefix_caching=settings.enable_prefix_caching,
        overlap_scheduling=settings.overlap_scheduling,
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
