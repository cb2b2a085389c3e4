"""What the app asks of an engine, as one protocol, and what is noted of each request.

Rendering, scheduling and sampling belong to the engine. Errors are the engine's own (`engine.errors`), each with a
stable `code`, so that a client over a process or network border can raise the same classes.
"""

import logging
import time
from collections.abc import AsyncGenerator, Callable, Generator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Protocol

from opentelemetry import trace
from opentelemetry.trace import Span

from app.engines.request import EngineRequest
from app.messages import Message

if TYPE_CHECKING:  # the engine brings torch; a program that only names a model should not wait for it
    from engine.outputs import OutputDelta

logger = logging.getLogger(__name__)

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

    def stream(self, request: EngineRequest) -> "AsyncGenerator[OutputDelta, None]":
        """Answers a request. Closing or cancelling it aborts the request.

        Raises engine.errors.EngineError: before the first delta for a request that is refused.
        """

    def stream_sync(self, request: EngineRequest) -> "Generator[OutputDelta, None, None]":
        """The same for callers without an event loop. Closing it aborts the request."""

    def abort(self, request_id: str) -> None:
        """Ends a request; harmless for one that has ended or is unknown."""

    def count_tokens(self, text: str) -> int:
        """Tokens of a piece of text, without what the chat template adds (see MESSAGE_OVERHEAD_TOKENS)."""

    def encode(self, text: str, *, add_bos: bool = True) -> list[int]:
        """Token ids of a text as a request's `prompt` has it."""

    def encode_chat(
        self,
        messages: Sequence[Message],
        *,
        tools: Sequence[Mapping[str, Any]] | None = None,
        add_generation_prompt: bool = True,
    ) -> list[int]:
        """Token ids of messages as a request has them."""

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
        if self.first_token is None and delta.num_output_tokens:
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

    def end(self, tell: "Callable[[RequestTimes], None] | None" = None) -> None:
        """Closes the record and tells it. A fault of who is told is logged: metrics must not break an answer."""
        self.ended = time.monotonic()
        self.num_output_tokens = sum(self._outputs.values())
        if tell is None:
            return
        try:
            tell(self)
        except Exception:
            logger.exception("what a request took could not be noted")
