"""What /chat takes and gives: the question, the options of one turn, and the answer with what stands beside it.

Shapes and their checks only; what the options do is `app/conversation.py`'s business.
"""

import functools
import json
import re
from collections.abc import Callable, Mapping
from typing import Annotated, Any, Literal, get_args

from langchain_core.runnables import RunnableConfig
from langchain_core.runnables.utils import ConfigurableFieldSpec
from pydantic import BaseModel, ConfigDict, Field, JsonValue, ValidationError

from app.answering import Grounding
from app.errors import MissingSessionError, RequestError
from app.memory import MemoryKind
from app.setting_values import did_you_mean
from app.turn_statistics import TurnStatistics
from app.validation_text import explain
from app.where import Where

MAX_COLLECTIONS = 100


class ChatInput(BaseModel):
    """What /chat and /llm take."""

    model_config = ConfigDict(json_schema_extra={"examples": [{"input": "What does TTFT measure?"}]})

    input: str = Field(description="The question.")


class Source(BaseModel):
    """A passage that an answer draws on. `n` is its number in the conversation, by which the model knows it."""

    n: int
    document_id: str
    title: str
    page: int | None = None
    heading: str | None = None
    text: str
    score: float


class ChatOutput(BaseModel):
    """What /chat answers. When streamed, `sources` come once and first, then the answer in pieces, then `grounding`.

    `grounding` is missing where answers are not checked (`grounding = off`). Last come, together, the turn's id and
    index, how the answer ended, and what the engine did for it.
    """

    answer: str
    sources: list[Source]
    grounding: Grounding | None = None
    turn_id: str | None = None
    index: int | None = Field(default=None, description="The turn's place in its conversation, from 0.")
    finish_reason: Literal["stop", "length", "abort", "error"] | None = Field(
        default=None, description="length: cut by max_tokens; `continue_turn` goes on."
    )
    statistics: TurnStatistics | None = None


Priority = Literal["interactive", "normal", "batch", "background"]
PRIORITIES: tuple[str, ...] = get_args(Priority)


class ChatOptions(BaseModel):
    """`configurable` of one turn. What is not given is as the server's settings have it.

    Other keys are left alone here, where programs may have their own; `refuse_unknown_options` is for requests.
    """

    model_config = ConfigDict(extra="ignore", protected_namespaces=())

    model: str | None = Field(
        default=None, max_length=1000, description="A chat model's name on /v1; null leaves the choice to the server."
    )
    private: bool = Field(
        default=False, strict=True, description="Show the question, and what is found, to models of this machine only."
    )
    temperature: float | None = Field(default=None, ge=0.0, le=2.0, strict=True, allow_inf_nan=False)
    top_p: float | None = Field(default=None, gt=0.0, le=1.0, strict=True, allow_inf_nan=False)
    max_tokens: int | None = Field(default=None, ge=1, strict=True, description="Longest answer in tokens.")
    priority: Priority | None = Field(default=None, description="How urgent it is; null takes the header X-Priority.")
    memory: MemoryKind | None = Field(default=None, description="Earlier turns that the model sees.")
    num_passages: int | None = Field(default=None, ge=0, le=50, strict=True, description="Passages for the question.")
    retrieval: bool = Field(default=True, strict=True, description="Search the documents.")
    collections: list[str] | None = Field(
        default=None, max_length=MAX_COLLECTIONS, description="Search only these collections; null searches all."
    )
    where: Where | None = Field(default=None, description="Search only documents that pass.")
    continue_turn: bool = Field(
        default=False,
        strict=True,
        description="Go on with the last answer, cut or stopped; the question is not looked at.",
    )

    @classmethod
    def of(cls, configurable: dict[str, Any], place: str = "config.configurable") -> "ChatOptions":
        """The options in a config. Raises RequestError, naming the first one that is wrong by its place."""
        try:
            return cls.model_validate(configurable)
        except ValidationError as error:
            message, field = explain(error.errors(), place)
            raise RequestError(message, field=field) from None

    @property
    def sampling(self) -> dict[str, Any]:
        """Options of a call of the model."""
        given = {name: getattr(self, name) for name in (*MODEL_OPTIONS, "priority")}
        return {name: value for name, value in given.items() if value is not None}

    def as_settings(self) -> dict[str, Any]:
        """What was chosen for a turn, as it is kept with it."""
        return self.model_dump(mode="json", exclude_defaults=True, exclude={"continue_turn", "priority"})


def _form(option: str) -> Callable[[dict[str, JsonValue]], None]:
    """Makes an option's JSON schema one that LangServe's playground can make a form of.

    A null anywhere in it, and that page stays blank; so an option that may be null is described as one that may be
    left out, and what it refers to stands where it is.
    """

    def describe(schema: dict[str, JsonValue]) -> None:
        names = {key: value for key, value in schema.items() if key in ("title", "description")}
        whole = _options_schema()
        schema.clear()
        schema.update({**_without_null(whole["properties"][option], whole["$defs"]), **names})

    return describe


@functools.cache
def _options_schema() -> dict[str, Any]:
    return ChatOptions.model_json_schema()


def _without_null(schema: Any, definitions: Mapping[str, Any]) -> Any:
    """A JSON schema with its references filled in and without null, as a type or as a default."""
    if isinstance(schema, list):
        return [_without_null(entry, definitions) for entry in schema if entry != {"type": "null"}]
    if not isinstance(schema, dict):
        return schema
    shown = {key: _without_null(value, definitions) for key, value in schema.items() if value is not None}
    if isinstance(reference := shown.pop("$ref", None), str):
        shown = {**_without_null(definitions[reference.rpartition("/")[2]], definitions), **shown}
    if len(kinds := shown.get("anyOf", [])) == 1:
        del shown["anyOf"]
        shown = {**kinds[0], **shown}
    return shown


_OPTION_SPECS = {
    name: ConfigurableFieldSpec(
        id=name,
        annotation=Annotated[field.annotation, Field(json_schema_extra=_form(name))],
        name=name.replace("_", " ").capitalize(),
        description=field.description,
        default=field.default,
    )
    for name, field in ChatOptions.model_fields.items()
}
CONFIG_SPECS = [
    ConfigurableFieldSpec(
        id="session_id", annotation=str, name="Session", description="Names the conversation; required.", default=""
    ),
    *_OPTION_SPECS.values(),
]
SEARCH_SPECS = [_OPTION_SPECS[name] for name in ("num_passages", "collections", "where")]
"""Of those, what /retrieve takes."""
MODEL_OPTIONS = ("temperature", "top_p", "max_tokens")
MODEL_SPECS = [_OPTION_SPECS[name] for name in ("model", "private", *MODEL_OPTIONS, "priority")]
"""Of those, what /llm takes."""


# What a config of LangChain's or LangGraph's carries by itself where a remote chain is a step of another; and the user,
# whom the server knows better.
_CARRIED = re.compile(
    r"__|langgraph_|checkpoint_(id|ns|map)$|(thread|run|assistant|graph|user)_id$|(user|message_history)$"
)


def refuse_unknown_options(configurable: Mapping[str, Any], place: str) -> None:
    """Raises RequestError for a name that no chain here knows: it may be mistyped, and would do nothing."""
    known = [spec.id for spec in CONFIG_SPECS]
    for name in configurable:
        if name not in known and not _CARRIED.match(name):
            raise RequestError(
                f"{name[:80]!r} is not an option{did_you_mean(name, known)}; there are {', '.join(known)}",
                field=f"{place}.{name[:80]}",
            )


# The body of a run, as LangServe's clients send it.
_FILTERS = [f"{kind}_{of}" for kind in ("include", "exclude") for of in ("names", "types", "tags")]
_BODY_KEYS = ("input", "inputs", "config", "kwargs", "diff", *_FILTERS)
_CONFIG_KEYS = tuple(RunnableConfig.__annotations__)


def refuse_misplaced(body: Mapping[str, Any]) -> None:
    """Raises RequestError for what would do nothing where it stands: options beside the config or in it, and kwargs."""
    options = [spec.id for spec in CONFIG_SPECS]
    for name, value in body.items():
        if name == "kwargs" and value:
            raise RequestError(
                "a run takes no kwargs: what a question chooses goes into config.configurable", field="kwargs"
            )
        if value is not None and _snake(name) not in _BODY_KEYS:
            raise RequestError(
                f"{name[:80]!r} is not known beside input and config{did_you_mean(name, _BODY_KEYS)}; what a question "
                "chooses goes into config.configurable",
                field=name[:80],
            )
    configs = body.get("config", {})
    for number, config in enumerate(configs) if isinstance(configs, list) else [("", configs)]:
        place = "config" if number == "" else f"config[{number}]"
        for name in config if isinstance(config, dict) else ():
            # Frameworks put keys of their own there; what is clearly meant for us is told of.
            hint = "" if _snake(name) in _CONFIG_KEYS else did_you_mean(name, _CONFIG_KEYS)
            if name in options or hint:
                raise RequestError(
                    f"{name[:80]!r} does nothing in {place}{hint}; what a question chooses goes into "
                    f"{place}.configurable",
                    field=f"{place}.{name[:80]}",
                )


def _snake(name: str) -> str:
    """The name as Python writes it; JavaScript's clients send theirs."""
    return re.sub("(?<=[a-z])(?=[A-Z])", "_", name).lower()


def session_of(configurable: dict[str, Any]) -> str:
    """The session's name. Raises MissingSessionError where it is missing or empty, RequestError for no text."""
    session_id = configurable.get("session_id")
    if session_id is None or session_id == "":
        raise MissingSessionError
    if not isinstance(session_id, str):
        raise RequestError(
            f"config.configurable.session_id must be a text, not {json.dumps(session_id, default=repr)[:80]}: put it "
            "in quotes",
            field="config.configurable.session_id",
        )
    if not session_id.strip():
        raise MissingSessionError
    return session_id


def question_of(given: Any, *, may_be_empty: bool = False) -> str:
    """The question in a chain's input: `{"input": str}`. Raises RequestError for anything else."""
    question = given.get("input") if isinstance(given, dict) else getattr(given, "input", None)
    if not isinstance(question, str):
        raise RequestError('the input must be an object with the question: {"input": "…"}', field="input.input")
    if not question.strip() and not may_be_empty:
        raise RequestError("input.input is empty: send a question", field="input.input")
    unknown = sorted(str(name)[:80] for name in given if name != "input") if isinstance(given, dict) else []
    if unknown:
        raise RequestError(
            f'input.{unknown[0]} is not known here: the question goes into "input", options into config.configurable',
            field=f"input.{unknown[0]}",
        )
    return question
