"""How one request's tokens are chosen and when it stops. Every field is honoured; an unknown one is refused by name."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, fields
from typing import Any

from engine.errors import InvalidParameterError, UnsupportedParameterError
from engine.parameter_check import as_tuple, check_bool, check_integer, check_number, shown

MAX_LOGPROBS = 20
MAX_STOPS = 64
MAX_N = 128
# Of tokens; what a model takes is far less, and is the engine's to check.
MAX_COUNT = 2**31 - 1
# Below this a temperature makes the best token certain as far as float32 can tell; dividing by less overflows.
LEAST_TEMPERATURE = 1e-6
_ID = re.compile(r"[0-9]{1,18}")
CONSTRAINTS = ("json_schema", "json_object", "regex", "choice", "grammar")


@dataclass(frozen=True)
class SamplingParams:
    """Names and meanings follow OpenAI's and vLLM's.

    Attributes:
        max_tokens: most tokens of the answer; None means what is left of the context.
        min_tokens: tokens before an end token or stop string may end the answer.
        temperature: 0 (or less than 1e-6) is greedy; otherwise logits are divided by it, at most 100.
        top_p: smallest set of tokens whose probability reaches it, in (0, 1].
        top_k: the k most likely tokens; 0 (or −1) is off.
        min_p: tokens at least this likely relative to the best one, in [0, 1].
        repetition_penalty: > 1 discourages tokens of prompt and answer, in [0.01, 10].
        presence_penalty, frequency_penalty: OpenAI's penalties over the answer, in [−2, 2].
        logit_bias: token id → value added to its logit, in [−100, 100].
        seed: the same seed gives the same tokens (64 bits); None draws one.
        stop: strings that end the answer; they are not part of it.
        stop_token_ids: token ids that end the answer.
        ignore_eos: go on past the model's own end tokens.
        n: answers to the same prompt, 1 to 128.
        logprobs: how many alternatives to report at each token, 0 to 20 (0: the chosen token only); None is off.
            Values are of the model's raw distribution, before temperature, penalties and filters.
        json_schema: the answer is a JSON document that matches this schema (data, or JSON text).
        json_object: the answer is a JSON object.
        regex: the whole answer matches this regular expression (the syntax of Rust's regex crate).
        choice: the answer is one of these texts.
        grammar: the answer matches this grammar, in llguidance's Lark syntax.

    At most one of the last five. A constraint goes before everything else: of the tokens it allows, the other fields
    choose; where it allows only the end, the answer ends, whatever `min_tokens` and `ignore_eos` say; `max_tokens` and
    `stop` may cut it short.
    """

    max_tokens: int | None = None
    min_tokens: int = 0
    temperature: float = 1.0
    top_p: float = 1.0
    top_k: int = 0
    min_p: float = 0.0
    repetition_penalty: float = 1.0
    presence_penalty: float = 0.0
    frequency_penalty: float = 0.0
    logit_bias: Mapping[int, float] = field(default_factory=dict)
    seed: int | None = None
    stop: Sequence[str] = ()
    stop_token_ids: Sequence[int] = ()
    ignore_eos: bool = False
    n: int = 1
    logprobs: int | None = None
    json_schema: Mapping[str, Any] | str | None = None
    json_object: bool = False
    regex: str | None = None
    choice: Sequence[str] | None = None
    grammar: str | None = None

    def __post_init__(self) -> None:
        stop = (self.stop,) if isinstance(self.stop, str) else as_tuple("stop", self.stop, "texts")
        object.__setattr__(self, "stop", stop)
        object.__setattr__(self, "stop_token_ids", as_tuple("stop_token_ids", self.stop_token_ids, "token ids"))
        object.__setattr__(self, "logit_bias", _bias(self.logit_bias))
        if self.top_k == -1:
            object.__setattr__(self, "top_k", 0)
        if self.choice is not None:
            object.__setattr__(self, "choice", as_tuple("choice", self.choice, "texts"))
        self._check_ranges()
        self._check_types()
        self._check_constraints()

    @classmethod
    def from_mapping(cls, values: Mapping[str, Any]) -> SamplingParams:
        """Build from names and values; None means "not given".

        Raises:
            UnsupportedParameterError: a name this engine does not honour.
            InvalidParameterError: a value outside its range.
        """
        known = {f.name for f in fields(cls)}
        for name in values:
            if name not in known:
                raise UnsupportedParameterError(
                    name,
                    f"{str(name)[:80]} is not supported by this engine; supported: {', '.join(sorted(known))}",
                )
        return cls(**{name: value for name, value in values.items() if value is not None})

    @property
    def constraint_field(self) -> str | None:
        """The name of the field that constrains the answer, if one does."""
        return next((name for name in CONSTRAINTS if getattr(self, name) not in (None, False)), None)

    @property
    def is_greedy(self) -> bool:
        """Whether the most likely token is always taken."""
        return self.temperature < LEAST_TEMPERATURE or self.top_k == 1

    @property
    def changes_logits(self) -> bool:
        """Whether logits must be edited before a token is chosen from them."""
        return bool(self.logit_bias or self.min_tokens or self.penalizes)

    @property
    def penalizes(self) -> bool:
        """Whether logits depend on the tokens before them."""
        return self.repetition_penalty != 1.0 or bool(self.presence_penalty or self.frequency_penalty)

    def _check_ranges(self) -> None:
        check_number("temperature", self.temperature, 0, 100)
        check_number("top_p", self.top_p, 0, 1, above_low=True)
        check_number("min_p", self.min_p, 0, 1)
        check_number("repetition_penalty", self.repetition_penalty, 0.01, 10)
        check_number("presence_penalty", self.presence_penalty, -2, 2)
        check_number("frequency_penalty", self.frequency_penalty, -2, 2)
        check_integer("min_tokens", self.min_tokens, 0, MAX_COUNT)
        check_integer("top_k", self.top_k, 0, MAX_COUNT)
        check_integer("n", self.n, 1, MAX_N)
        if self.max_tokens is not None:
            check_integer("max_tokens", self.max_tokens, 1, MAX_COUNT)
            if self.min_tokens > self.max_tokens:
                raise InvalidParameterError(
                    "min_tokens", f"must not exceed max_tokens ({shown(self.max_tokens)}), got {shown(self.min_tokens)}"
                )
        if self.logprobs is not None:
            check_integer("logprobs", self.logprobs, 0, MAX_LOGPROBS)
        if self.seed is not None:
            check_integer("seed", self.seed, -(2**63), 2**64 - 1)

    def _check_types(self) -> None:
        check_bool("ignore_eos", self.ignore_eos)
        if len(self.stop) > MAX_STOPS:
            raise InvalidParameterError("stop", f"at most {MAX_STOPS} stop strings are allowed, got {len(self.stop):,}")
        for text in self.stop:
            if not isinstance(text, str) or not text:
                raise InvalidParameterError("stop", f"every stop string must be non-empty text, got {shown(text)}")
        for token_id in self.stop_token_ids:
            check_integer("stop_token_ids", token_id, 0)
        for token_id, value in self.logit_bias.items():
            check_integer("logit_bias", token_id, 0)
            check_number("logit_bias", value, -100, 100)

    def _check_constraints(self) -> None:
        given = [name for name in CONSTRAINTS if getattr(self, name) is not None and name != "json_object"]
        check_bool("json_object", self.json_object)
        given += ["json_object"] if self.json_object else []
        if len(given) > 1:
            raise InvalidParameterError(given[1], f"at most one constraint is allowed; {given[0]} is given as well")
        if self.json_schema is not None and not isinstance(self.json_schema, Mapping | str):
            raise InvalidParameterError(
                "json_schema", f"must be a schema or its JSON text, not {type(self.json_schema).__name__}"
            )
        for name in ("regex", "grammar"):
            value = getattr(self, name)
            if value is not None and not isinstance(value, str):
                raise InvalidParameterError(name, f"must be text, not {type(value).__name__}")
        if self.choice is not None:
            if not self.choice:
                raise InvalidParameterError("choice", "must be a list of at least one text, got none")
            for text in self.choice:
                if not isinstance(text, str) or not text:
                    raise InvalidParameterError("choice", f"every choice must be non-empty text, got {shown(text)}")


def _bias(given: Any) -> dict[Any, Any]:
    """Token ids as integers: in JSON, where keys are texts, they are spelled out."""
    if not isinstance(given, Mapping):
        raise InvalidParameterError("logit_bias", f"must map token ids to numbers, got {shown(given)}")
    return {int(key) if isinstance(key, str) and _ID.fullmatch(key) else key: value for key, value in given.items()}
