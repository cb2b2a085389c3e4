"""ChatRagstone: the engine as a LangChain chat model.

Turns messages and options into a request to an EngineClient and its deltas into LangChain chunks and messages. Which
engine answers, and how, it leaves to the client, which also reads tool calls out of the text; structured output is a
chain around it (`app.structured_output`).
"""

import asyncio
import importlib
import threading
from collections.abc import AsyncIterator, Callable, Iterator, Mapping, Sequence
from contextlib import aclosing, closing
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from langchain_core.callbacks import AsyncCallbackManagerForLLMRun, CallbackManagerForLLMRun
from langchain_core.language_models import BaseChatModel, LanguageModelInput
from langchain_core.language_models.base import LangSmithParams
from langchain_core.messages import AIMessage, BaseMessage
from langchain_core.outputs import ChatGenerationChunk, ChatResult
from langchain_core.runnables import Runnable
from langchain_core.tools import BaseTool
from langchain_core.utils import from_env, secret_from_env
from langchain_core.utils.function_calling import convert_to_openai_tool
from pydantic import ConfigDict, Field, SecretStr, model_validator

from app.chat_deltas import chunk, chunks, result, says_something
from app.engines.client import EngineClient
from app.engines.in_process import local_client
from app.engines.request import EngineRequest
from app.errors import ModelNotFoundError
from app.messages import from_langchain
from app.response_format import constraint_of
from app.structured_output import StructuredOutputMethod, structured_output

if TYPE_CHECKING:
    from engine.outputs import OutputDelta

DEFAULT_MODEL = "smollm2-135m-instruct"

# Fields of the class (and options of a call) that the engine takes under the same name.
SAMPLING_FIELDS = (
    "max_tokens",
    "min_tokens",
    "temperature",
    "top_p",
    "top_k",
    "min_p",
    "repetition_penalty",
    "presence_penalty",
    "frequency_penalty",
    "logit_bias",
    "seed",
    "stop_token_ids",
    "ignore_eos",
    "n",
)
# Options that LangChain itself puts into a call; they say nothing to the engine.
# What a call takes beside sampling: passed to the client as it is.
CLIENT_OPTIONS = ("tools", "tool_choice", "parallel_tool_calls", "priority")
FRAMEWORK_OPTIONS = frozenset({"stream", "ls_structured_output_format", "structured_output_format"})


@dataclass(frozen=True)
class _Call:
    """One request, ready to send: what `_stream`, `_astream` and `_generate` have in common."""

    client: EngineClient
    request: EngineRequest
    model_name: str
    timeout: float | None


class ChatRagstone(BaseChatModel):
    """A chat model that runs in Ragstone's engine.

    `ChatRagstone(model="smollm2-135m-instruct")` loads the model into this process at the first call (a packaged name,
    a local file or folder, or a Hugging Face repo id); all instances in a process share one engine per model. The
    server passes `client` instead. Every option below may also be given with a call: `model.invoke(text,
    temperature=0)`. An option that is not listed is refused by name.
    """

    model_config = ConfigDict(extra="forbid", populate_by_name=True, protected_namespaces=())

    model_name: str = Field(default_factory=from_env("RAGSTONE_MODEL", default=DEFAULT_MODEL), alias="model")
    """Name, path or repo id of the model (environment: RAGSTONE_MODEL)."""
    api_key: SecretStr | None = Field(default_factory=secret_from_env("RAGSTONE_API_KEY", default=None))
    """Credential for an engine behind a URL (environment: RAGSTONE_API_KEY); an engine in this one asks for none."""
    client: Any = Field(default=None, exclude=True, repr=False)
    """The EngineClient to use; None: an engine in this process, found by `model`."""

    max_tokens: int | None = None
    """Longest answer in tokens; None: what is left of the context."""
    min_tokens: int | None = None
    temperature: float | None = None
    """0 is greedy; None: the engine's default, 1."""
    top_p: float | None = None
    top_k: int | None = None
    min_p: float | None = None
    repetition_penalty: float | None = None
    presence_penalty: float | None = None
    frequency_penalty: float | None = None
    logit_bias: dict[int, float] | None = None
    """Token id to what is added to its logit."""
    seed: int | None = None
    stop: list[str] | None = None
    """Texts at which the answer ends; they are not part of it. A call's `stop` replaces this list."""
    stop_token_ids: list[int] | None = None
    ignore_eos: bool | None = None
    n: int | None = None
    """Answers per prompt; more than one only with `generate`, which returns them all."""
    logprobs: bool | None = None
    """Put log-probabilities of the answer's tokens into `response_metadata["logprobs"]`, in OpenAI's shape."""
    top_logprobs: int | None = None
    """With `logprobs`: this many likeliest alternatives for each token (0..20)."""

    timeout: float | None = None
    """Seconds after which an unfinished answer is given up with TimeoutError."""
    max_retries: int | None = None
    """Accepted for compatibility: an engine in this process does not fail by chance, so no request is repeated."""
    streaming: bool = False
    """`invoke` reads the stream too, so that callbacks see tokens; the text is the same."""

    @model_validator(mode="before")
    @classmethod
    def _refuse_unknown(cls, values: Any) -> Any:
        if isinstance(values, dict):
            known = {*cls.model_fields, "model"}
            unknown = sorted(str(name) for name in values if name not in known)
            if unknown:
                raise ValueError(f"{', '.join(unknown)}: not supported by ChatRagstone; leave it out")
        return values

    # ── identity ─────────────────────────────────────────────────────────────────────────────────────────────────────

    @property
    def _llm_type(self) -> str:
        return "ragstone"

    @property
    def _identifying_params(self) -> dict[str, Any]:
        """Everything that changes the answer: the key of LangChain's caches."""
        options = {name: getattr(self, name) for name in (*SAMPLING_FIELDS, "stop", "logprobs", "top_logprobs")}
        return {"model_name": self.model_name, **options}

    @classmethod
    def is_lc_serializable(cls) -> bool:
        return True

    @classmethod
    def get_lc_namespace(cls) -> list[str]:
        return ["app", "chat_model"]

    @property
    def lc_secrets(self) -> dict[str, str]:
        return {"api_key": "RAGSTONE_API_KEY"}

    def __getstate__(self) -> dict[Any, Any]:
        # An engine cannot travel; the copy finds one by the model's name.
        state = super().__getstate__()
        return {**state, "__dict__": {**state["__dict__"], "client": None}}

    def _get_ls_params(self, stop: list[str] | None = None, **kwargs: Any) -> LangSmithParams:
        params = super()._get_ls_params(stop=stop or self.stop, **kwargs)
        params["ls_provider"] = "ragstone"
        params["ls_model_name"] = kwargs.get("model") or self.model_name
        return params

    # ── generation ───────────────────────────────────────────────────────────────────────────────────────────────────

    def _stream(
        self,
        messages: list[BaseMessage],
        stop: list[str] | None = None,
        run_manager: CallbackManagerForLLMRun | None = None,
        **kwargs: Any,
    ) -> Iterator[ChatGenerationChunk]:
        call = self._call(messages, stop, kwargs)
        _refuse_many_answers(call)
        with closing(call.client.stream_sync(call.request)) as deltas:
            yield from chunks(_until_deadline(deltas, call), call.model_name)

    async def _astream(
        self,
        messages: list[BaseMessage],
        stop: list[str] | None = None,
        run_manager: AsyncCallbackManagerForLLMRun | None = None,
        **kwargs: Any,
    ) -> AsyncIterator[ChatGenerationChunk]:
        call = await self._acall(messages, stop, kwargs)
        _refuse_many_answers(call)
        # aclosing: the request is aborted before this generator ends, whoever stops reading and in whatever way.
        async with aclosing(call.client.stream(call.request)) as deltas:
            async for delta in _auntil_deadline(deltas, call):
                if says_something(delta):
                    yield chunk(delta, call.model_name)

    def _generate(
        self,
        messages: list[BaseMessage],
        stop: list[str] | None = None,
        run_manager: CallbackManagerForLLMRun | None = None,
        **kwargs: Any,
    ) -> ChatResult:
        call = self._call(messages, stop, kwargs)
        with closing(call.client.stream_sync(call.request)) as deltas:
            return result(list(_until_deadline(deltas, call)), call.model_name)

    async def _agenerate(
        self,
        messages: list[BaseMessage],
        stop: list[str] | None = None,
        run_manager: AsyncCallbackManagerForLLMRun | None = None,
        **kwargs: Any,
    ) -> ChatResult:
        call = await self._acall(messages, stop, kwargs)
        async with aclosing(call.client.stream(call.request)) as deltas:
            return result([delta async for delta in _auntil_deadline(deltas, call)], call.model_name)

    def bind_tools(
        self,
        tools: Sequence[dict[str, Any] | type | Callable[..., Any] | BaseTool],
        *,
        tool_choice: str | bool | dict[str, Any] | None = None,
        parallel_tool_calls: bool | None = None,
        strict: bool | None = None,
        **kwargs: Any,
    ) -> Runnable[LanguageModelInput, AIMessage]:
        """Shows `tools` to the model; what it calls comes back in `tool_calls`.

        Args:
            tool_choice: "auto" (None): the model decides. "any", "required" or True: it must call some tool. The name
                of a tool, or OpenAI's object: it must call that one. "none": it calls none. A call that is forced is
                held to the tool's schema by constrained decoding, and so is one that the model begins by itself.
            parallel_tool_calls: whether an answer may hold several calls; None: not where a call is forced.
            strict: refuse a tool whose schema cannot be enforced to the letter.
        """
        converted = [convert_to_openai_tool(tool, strict=strict) for tool in tools]
        names = [tool["function"]["name"] for tool in converted]
        choice: Any = "required" if tool_choice is True or tool_choice == "any" else tool_choice or None
        if choice in names:
            choice = {"type": "function", "function": {"name": choice}}
        elif isinstance(choice, str) and choice not in ("auto", "none", "required"):
            raise ValueError(f"tool_choice={choice!r} names none of the tools; they are {', '.join(names)}")
        options = {"tool_choice": choice, "parallel_tool_calls": parallel_tool_calls, **kwargs}
        return self.bind(tools=converted, **{name: value for name, value in options.items() if value is not None})

    def with_structured_output(
        self,
        schema: dict[str, Any] | type | None = None,
        *,
        method: StructuredOutputMethod = "json_schema",
        include_raw: bool = False,
        strict: bool | None = None,
        **kwargs: Any,
    ) -> Runnable[LanguageModelInput, Any]:
        """A chain that answers with data of `schema`: a pydantic class, a TypedDict, or a JSON schema.

        Args:
            method: "json_schema": decoding is held to the schema. "function_calling": a forced call of a tool with that
                schema. "json_mode": any JSON object; the messages must ask for the right one.
            include_raw: give `{"raw": message, "parsed": data or None, "parsing_error": error or None}`.
            strict: refuse a schema that cannot be enforced to the letter ("function_calling").
            kwargs: options of the call, such as `temperature`.
        """
        return structured_output(self, schema, method=method, include_raw=include_raw, strict=strict, options=kwargs)

    # ── requests ─────────────────────────────────────────────────────────────────────────────────────────────────────

    def get_num_tokens(self, text: str) -> int:
        """Tokens of `text` by the model's own tokenizer."""
        return self._engine(self.model_name).count_tokens(text)

    def get_token_ids(self, text: str) -> list[int]:
        """Not offered: ids of one model mean nothing to another, and an engine behind a URL need not tell them."""
        raise TypeError("ChatRagstone does not tell token ids; use get_num_tokens to count")

    async def _acall(self, messages: list[BaseMessage], stop: list[str] | None, options: dict[str, Any]) -> _Call:
        if self.client is None:  # may load a model: seconds that the event loop must not stand still
            return await asyncio.to_thread(self._call, messages, stop, options)
        return self._call(messages, stop, options)

    def _call(self, messages: list[BaseMessage], stop: list[str] | None, options: dict[str, Any]) -> _Call:
        options = {name: value for name, value in options.items() if name not in FRAMEWORK_OPTIONS}
        model = options.pop("model", None) or options.pop("model_name", None) or self.model_name
        timeout = options.pop("timeout", self.timeout)
        client_options = {name: options.pop(name) for name in CLIENT_OPTIONS if name in options}
        return _Call(
            client=self._engine(model),
            request=EngineRequest(
                messages=from_langchain(messages), params=self._sampling(stop, options), **client_options
            ),
            model_name=model,
            timeout=timeout,
        )

    def _engine(self, model: str) -> EngineClient:
        if self.client is None:
            return local_client(model)
        client: EngineClient = self.client
        if model not in (client.model_name, self.model_name):
            raise ModelNotFoundError(
                model, [f"the engine of this server, which runs {client.model_name!r}"], "Name that one, or none."
            )
        return client

    def _sampling(self, stop: list[str] | None, options: Mapping[str, Any]) -> dict[str, Any]:
        """Fields of SamplingParams; unknown names are passed on, for the engine to refuse by name."""
        given: dict[str, Any] = {name: getattr(self, name) for name in SAMPLING_FIELDS}
        given["stop"] = self.stop if stop is None else stop
        logprobs, top_logprobs = self.logprobs, self.top_logprobs
        for name, value in options.items():
            if name == "logprobs":
                logprobs = value
            elif name == "top_logprobs":
                top_logprobs = value
            elif name == "response_format" and value is not None:
                given |= constraint_of(value)
            else:
                given["max_tokens" if name == "max_completion_tokens" else name] = value
        if logprobs:
            given["logprobs"] = top_logprobs or 0
        return {name: value for name, value in given.items() if value is not None}


def _register_for_load() -> None:
    """Lets `langchain_core.load.load(…, allowed_objects="all", valid_namespaces=["app"])` make a ChatRagstone.

    LangChain admits only classes of a table of its own there, and offers no way to be put into it. Without this (in a
    version that keeps the table elsewhere) `allowed_objects=[ChatRagstone]` still works.
    """
    loading = importlib.import_module("langchain_core.load.load")
    path = tuple(ChatRagstone.lc_id())
    getattr(loading, "ALL_SERIALIZABLE_MAPPINGS", {}).setdefault(path, path)
    getattr(loading, "_default_class_paths_cache", {}).pop("all", None)


_register_for_load()


def _refuse_many_answers(call: _Call) -> None:
    if (n := call.request.params.get("n", 1)) != 1:
        from engine.errors import InvalidParameterError

        raise InvalidParameterError("n", f"{n} answers cannot be streamed as one; use generate, or n=1")


# ── time limit ───────────────────────────────────────────────────────────────────────────────────────────────────────


class _Deadline:
    """Aborts a request when its time is over, and tells whether that happened."""

    def __init__(self, call: _Call) -> None:
        self._call = call
        self.passed = False

    def pass_by(self) -> None:
        self.passed = True
        self._call.client.abort(self._call.request.request_id)

    def check(self, delta: "OutputDelta") -> None:
        """Raises if `delta` is the end of an answer that was broken off."""
        if delta.finish_reason != "abort":
            return
        if self.passed:
            raise TimeoutError(
                f"no complete answer within {self._call.timeout:g} s: raise the timeout or lower max_tokens"
            )
        from engine.errors import EngineDeadError

        raise EngineDeadError("the engine broke off the answer; it is shutting down or was told to abort")


def _until_deadline(deltas: "Iterator[OutputDelta]", call: _Call) -> "Iterator[OutputDelta]":
    deadline = _Deadline(call)
    timer = threading.Timer(call.timeout, deadline.pass_by) if call.timeout else None
    if timer is not None:
        timer.daemon = True
        timer.start()
    try:
        for delta in deltas:
            deadline.check(delta)
            yield delta
    finally:
        if timer is not None:
            timer.cancel()


async def _auntil_deadline(deltas: "AsyncIterator[OutputDelta]", call: _Call) -> "AsyncIterator[OutputDelta]":
    deadline = _Deadline(call)
    timer = asyncio.get_running_loop().call_later(call.timeout, deadline.pass_by) if call.timeout else None
    try:
        async for delta in deltas:
            deadline.check(delta)
            yield delta
    finally:
        if timer is not None:
            timer.cancel()
