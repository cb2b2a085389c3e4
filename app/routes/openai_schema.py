"""What /v1/chat/completions and /v1/completions take, field by field; what is not honoured is refused by name.

Only shapes are checked here; ranges are the engine's (`SamplingParams`).
"""

from collections.abc import Iterable, Sequence
from typing import Annotated, Any, Literal, cast

from fastapi import Header
from pydantic import BaseModel, ConfigDict, Field, model_validator

from app.errors import RequestError
from app.messages import Message, check_text, content_text, merge_neighbours
from app.response_format import constraint_of
from app.setting_values import did_you_mean
from app.where import Where
from engine.errors import EngineError, InvalidParameterError, UnsupportedParameterError
from engine.request import PRIORITIES

# Fields that change nothing about the answer; clients send them to keep their own books.
HARMLESS = frozenset(
    {"user", "metadata", "store", "service_tier", "safety_identifier", "prompt_cache_key", "prompt_cache_retention"}
    | {"stream_options"}
)
# Fields with one value that asks for nothing special; any other value is refused.
NEUTRAL: dict[str, tuple[Any, ...]] = {
    "modalities": (["text"],),
    "functions": ([],),
    "function_call": ("none", "auto"),
    "best_of": (1,),
    "use_beam_search": (False,),
    "echo": (False,),
    "suffix": ("",),
    "verbosity": ("medium",),
    "include_stop_str_in_output": (False,),
    "skip_special_tokens": (True,),
    "add_generation_prompt": (True,),
}
SAMPLING = (
    "max_tokens",
    "temperature",
    "top_p",
    "top_k",
    "min_p",
    "repetition_penalty",
    "presence_penalty",
    "frequency_penalty",
    "logit_bias",
    "seed",
    "stop",
    "stop_token_ids",
    "ignore_eos",
    "min_tokens",
    "n",
)
# OpenAI's default for /v1/completions.
COMPLETION_TOKENS = 16
# Of one request, as OpenAI has it for embeddings.
MAX_PROMPTS = 2048
# vLLM's names of constraints, and the engine's.
GUIDED = {"guided_json": "json_schema", "guided_regex": "regex", "guided_choice": "choice"}


# As JSON has them: true is no number, "0.5" neither.
Integer = Annotated[int, Field(strict=True)]
Number = Annotated[float, Field(strict=True)]
Bool = Annotated[bool, Field(strict=True)]
Priority = Annotated[str | None, Header(alias="X-Priority", description="The field `priority`, as a header.")]


class StreamOptions(BaseModel):
    """`include_usage`: a last chunk with the usage and no choices."""

    model_config = ConfigDict(extra="allow")

    include_usage: bool = False


class ChatMessage(BaseModel):
    """One message; `content` is text or a list of text parts."""

    model_config = ConfigDict(extra="allow")

    role: Literal["system", "developer", "user", "assistant", "tool"]
    content: str | list[dict[str, Any]] | None = None
    name: str | None = None
    tool_calls: list[dict[str, Any]] | None = None
    tool_call_id: str | None = None


class NotJSONError(RequestError):
    """A body that is not said to be JSON."""

    code = "unsupported_media_type"
    status_code = 415

    def __init__(self) -> None:
        super().__init__("the body is not said to be JSON: send it with the header `Content-Type: application/json`")


def unsupported(name: str, known: Iterable[str]) -> UnsupportedParameterError:
    """What to raise for a field that would have to be ignored."""
    hint = did_you_mean(name, known)
    return UnsupportedParameterError(name, f"{name} is not supported{hint or ': leave it out'}")


class CheckedBody(BaseModel):
    """A JSON body whose texts are Unicode all through. Raises RequestError, which names the field of one that is not.

    Raises NotJSONError where the request gives another content type, or none.
    """

    @model_validator(mode="before")
    @classmethod
    def _check_text(cls, values: Any) -> Any:
        if isinstance(values, bytes):  # what the framework hands on where the request does not say that it is JSON
            raise NotJSONError
        check_text(values)
        return values


class GenerationRequest(CheckedBody):
    """What both requests for text share: OpenAI's fields and vLLM's sampling fields. Others are refused by name."""

    model_config = ConfigDict(extra="allow")

    model: str
    stream: Bool | None = False
    stream_options: StreamOptions | None = None
    private: Bool | None = Field(default=None, description="Show this to models of this machine only.")
    max_tokens: Integer | None = None
    min_tokens: Integer | None = None
    n: Integer | None = None
    temperature: Number | None = None
    top_p: Number | None = None
    top_k: Integer | None = None
    min_p: Number | None = None
    repetition_penalty: Number | None = None
    presence_penalty: Number | None = None
    frequency_penalty: Number | None = None
    logit_bias: dict[int, Number] | None = None
    seed: Integer | None = None
    stop: str | list[str] | None = None
    stop_token_ids: list[Integer] | None = None
    ignore_eos: Bool | None = None
    response_format: dict[str, Any] | None = None
    guided_json: dict[str, Any] | str | None = None
    guided_regex: str | None = None
    guided_choice: list[str] | None = None
    priority: str | None = Field(None, description=f"{', '.join(PRIORITIES[:-1])} or {PRIORITIES[-1]}.")

    def check_fields(self) -> None:
        """Raises UnsupportedParameterError for the first field that would have to be ignored."""
        for name, value in (self.model_extra or {}).items():
            if value is None or name in HARMLESS or value in NEUTRAL.get(name, ()):
                continue
            raise unsupported(name, type(self).model_fields)
        if self.stream_options is not None and not self.stream:
            raise InvalidParameterError("stream_options", "needs stream=true")

    @property
    def includes_usage(self) -> bool:
        """Whether the stream ends with a chunk that holds the usage."""
        return self.stream_options is not None and self.stream_options.include_usage

    def given_name(self, field: str) -> str:
        """The name under which the request gave a field of the engine's."""
        if field == "json_schema" and self.guided_json is None:
            return "response_format"
        return next((name for name, of_engine in GUIDED.items() if of_engine == field), field)

    def as_given(self, error: EngineError) -> EngineError:
        """An error of the engine's that names the field as the request does."""
        field = getattr(error, "field", None)
        name = None if field is None else self.given_name(field)
        if name == field:
            return error
        if isinstance(error, InvalidParameterError):
            return InvalidParameterError(str(name), str(error).removeprefix(f"{field}: "))
        error.field = name  # type: ignore[attr-defined]
        return error

    def sampling(self) -> dict[str, Any]:
        """Fields of SamplingParams that were given. Raises InvalidParameterError for a malformed response_format."""
        given = {name: getattr(self, name) for name in SAMPLING}
        given |= {name: getattr(self, guided) for guided, name in GUIDED.items()}
        if self.response_format is not None:
            constraint = constraint_of(self.response_format)
            if constraint and any(given[name] is not None for name in GUIDED.values()):
                raise InvalidParameterError("response_format", "cannot be combined with guided_* fields: give one")
            given |= constraint
        return {name: value for name, value in given.items() if value is not None}


class ChatCompletionRequest(GenerationRequest):
    """OpenAI's chat request."""

    messages: list[ChatMessage] = Field(min_length=1)
    max_completion_tokens: Integer | None = None
    logprobs: Bool | None = None
    top_logprobs: Integer | None = None
    tools: list[dict[str, Any]] | None = None
    tool_choice: str | dict[str, Any] | None = None
    parallel_tool_calls: bool | None = None
    collections: list[str] | None = Field(default=None, max_length=100, description="For ragstone-rag: search these.")
    where: Where | None = Field(default=None, description="For ragstone-rag: search only documents that pass.")

    def check_fields(self) -> None:
        super().check_fields()
        if self.top_logprobs is not None and not self.logprobs:
            raise InvalidParameterError("top_logprobs", "needs logprobs=true")
        if self.max_tokens is not None and self.max_completion_tokens is not None:
            raise InvalidParameterError("max_completion_tokens", "is the new name of max_tokens: give one of them")

    def refuse_search_fields(self, rag_model: str) -> None:
        """Raises UnsupportedParameterError for what says where to search, which a model alone does not."""
        for name in ("collections", "where"):
            if getattr(self, name) is not None:
                raise UnsupportedParameterError(name, f"{name} is for the model {rag_model}: ask that, or leave it out")

    def engine_messages(self) -> list[Message]:
        """The messages as the engine takes them. Raises RequestError for parts that are not text."""
        return engine_messages(self.messages)

    @property
    def tool_options(self) -> dict[str, Any]:
        """What EngineClient takes about tools."""
        return {
            "tools": self.tools,
            "tool_choice": self.tool_choice,
            "parallel_tool_calls": self.parallel_tool_calls,
        }

    def given_name(self, field: str) -> str:
        if field == "prompt":
            return "messages"
        if field == "logprobs":
            return "top_logprobs"
        if field == "max_tokens" and self.max_completion_tokens is not None:
            return "max_completion_tokens"
        return super().given_name(field)

    def sampling(self) -> dict[str, Any]:
        given = super().sampling()
        if self.max_completion_tokens is not None:
            given["max_tokens"] = self.max_completion_tokens
        if self.logprobs:
            given["logprobs"] = self.top_logprobs or 0
        return given


class CompletionRequest(GenerationRequest):
    """OpenAI's older request: text (or token ids) to be continued, without a chat template.

    Text is text: what spells a control token does not become one. Prompts that hold control tokens are token ids.
    """

    prompt: str | list[Integer] | list[str] | list[list[Integer]]
    logprobs: Integer | None = None

    @property
    def prompts(self) -> list[str | list[int]]:
        """One or more prompts. Raises InvalidParameterError where there is none."""
        if isinstance(self.prompt, str):
            return [self.prompt]
        if self.prompt and isinstance(self.prompt[0], int):
            return [self.prompt]
        if not 1 <= len(self.prompt) <= MAX_PROMPTS:
            raise InvalidParameterError("prompt", f"must hold 1 to {MAX_PROMPTS:,} prompts, got {len(self.prompt):,}")
        return list(cast(list[str | list[int]], self.prompt))

    def sampling(self) -> dict[str, Any]:
        given = super().sampling()
        given.setdefault("max_tokens", COMPLETION_TOKENS)
        if self.logprobs is not None:
            given["logprobs"] = self.logprobs
        return given


def engine_messages(messages: Sequence[ChatMessage]) -> list[Message]:
    """Messages as the engine takes them. Raises RequestError for parts that are not text."""
    return merge_neighbours(_message(message, number) for number, message in enumerate(messages))


def _message(message: ChatMessage, number: int) -> Message:
    place = f"messages[{number}].content"
    if message.content is None and message.role != "assistant":
        raise RequestError(f"{place} is missing", field=place)
    entry: Message = {
        # OpenAI renamed the role; templates know the old name.
        "role": "system" if message.role == "developer" else message.role,
        "content": content_text(message.content, place),
    }
    for name in ("name", "tool_calls", "tool_call_id"):
        value = getattr(message, name)
        if value:
            entry[name] = value
    return entry
