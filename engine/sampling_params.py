"""How one request's tokens are chosen and when it stops. Every field is honoured; an unknown one is refused by name."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, fields
from typing import Any

from engine.errors import InvalidParameterError, UnsupportedParameterError

MAX_LOGPROBS = 20
CONSTRAINTS = ("json_schema", "json_object", "regex", "choice", "grammar")


@dataclass(frozen=True)
class SamplingParams:
    """Names and meanings follow OpenAI's and vLLM's.

    Attributes:
        max_tokens: most tokens of the answer; None means what is left of the context.
        min_tokens: tokens before an end token or stop string may end the answer.
        temperature: 0 is greedy; otherwise logits are divided by it.
        top_p: smallest set of tokens whose probability reaches it, in (0, 1].
        top_k: the k most likely tokens; 0 (or −1) is off.
        min_p: tokens at least this likely relative to the best one, in [0, 1].
        repetition_penalty: > 1 discourages tokens of prompt and answer, in (0, 10].
        presence_penalty, frequency_penalty: OpenAI's penalties over the answer, in [−2, 2].
        logit_bias: token id → value added to its logit, in [−100, 100].
        seed: the same seed gives the same tokens; None draws one.
        stop: strings that end the answer; they are not part of it.
        stop_token_ids: token ids that end the answer.
        ignore_eos: go on past the model's own end tokens.
        n: answers to the same prompt.
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
        if isinstance(self.stop, str):
            object.__setattr__(self, "stop", (self.stop,))
        object.__setattr__(self, "stop", tuple(self.stop))
        object.__setattr__(self, "stop_token_ids", tuple(self.stop_token_ids))
        if self.top_k == -1:
            object.__setattr__(self, "top_k", 0)
        if self.choice is not None and not isinstance(self.choice, str):
            object.__setattr__(self, "choice", tuple(self.choice))
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
                    name, f"{name} is not supported by this engine; supported: {', '.join(sorted(known))}"
                )
        return cls(**{name: value for name, value in values.items() if value is not None})

    @property
    def constraint_field(self) -> str | None:
        """The name of the field that constrains the answer, if one does."""
        return next((name for name in CONSTRAINTS if getattr(self, name) not in (None, False)), None)

    @property
    def is_greedy(self) -> bool:
        """Whether the most likely token is always taken."""
        return self.temperature == 0.0 or self.top_k == 1

    @property
    def changes_logits(self) -> bool:
        """Whether logits must be edited before a token is chosen from them."""
        return bool(
            self.logit_bias
            or self.min_tokens
            or self.repetition_penalty != 1.0
            or self.presence_penalty
            or self.frequency_penalty
        )

    def _check_ranges(self) -> None:
        ranges: tuple[tuple[str, float, float, bool], ...] = (
            ("temperature", 0.0, 100.0, True),
            ("top_p", 0.0, 1.0, False),
            ("min_p", 0.0, 1.0, True),
            ("repetition_penalty", 0.0, 10.0, False),
            ("presence_penalty", -2.0, 2.0, True),
            ("frequency_penalty", -2.0, 2.0, True),
        )
        for name, low, high, closed in ranges:
            value = getattr(self, name)
            if isinstance(value, bool) or not isinstance(value, int | float) or not math.isfinite(value):
                raise InvalidParameterError(name, f"must be a finite number, got {value!r}")
            if value > high or value < low or (value == low and not closed):
                raise InvalidParameterError(
                    name, f"must be in {'[' if closed else '('}{low:g}, {high:g}], got {value:g}"
                )
        for name, least in (("min_tokens", 0), ("top_k", 0), ("n", 1)):
            value = getattr(self, name)
            if isinstance(value, bool) or not isinstance(value, int) or value < least:
                raise InvalidParameterError(name, f"must be an integer of at least {least}, got {value!r}")
        if self.n > 128:
            raise InvalidParameterError("n", f"must be at most 128, got {self.n}")

    def _check_types(self) -> None:
        if self.max_tokens is not None and (
            isinstance(self.max_tokens, bool) or not isinstance(self.max_tokens, int) or self.max_tokens < 1
        ):
            raise InvalidParameterError("max_tokens", f"must be an integer of at least 1, got {self.max_tokens!r}")
        if self.max_tokens is not None and self.min_tokens > self.max_tokens:
            raise InvalidParameterError(
                "min_tokens", f"must not exceed max_tokens ({self.max_tokens}), got {self.min_tokens}"
            )
        if self.logprobs is not None and not 0 <= self.logprobs <= MAX_LOGPROBS:
            raise InvalidParameterError("logprobs", f"must be 0 to {MAX_LOGPROBS} (or None), got {self.logprobs!r}")
        if self.seed is not None and (isinstance(self.seed, bool) or not isinstance(self.seed, int)):
            raise InvalidParameterError("seed", f"must be an integer, got {self.seed!r}")
        for text in self.stop:
            if not isinstance(text, str) or not text:
                raise InvalidParameterError("stop", f"every stop string must be non-empty text, got {text!r}")
        if len(self.stop) > 64:
            raise InvalidParameterError("stop", f"at most 64 stop strings are allowed, got {len(self.stop)}")
        for token_id, value in self.logit_bias.items():
            if not isinstance(token_id, int) or not isinstance(value, int | float) or not -100.0 <= value <= 100.0:
                raise InvalidParameterError(
                    "logit_bias", f"maps integer token ids to values in [-100, 100], got {token_id!r}: {value!r}"
                )

    def _check_constraints(self) -> None:
        given = [name for name in CONSTRAINTS if getattr(self, name) is not None and name != "json_object"]
        if not isinstance(self.json_object, bool):
            raise InvalidParameterError("json_object", f"must be true or false, got {self.json_object!r}")
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
            if isinstance(self.choice, str) or not self.choice:
                raise InvalidParameterError("choice", f"must be a list of at least one text, got {self.choice!r}")
            for text in self.choice:
                if not isinstance(text, str) or not text:
                    raise InvalidParameterError("choice", f"every choice must be non-empty text, got {text!r}")
