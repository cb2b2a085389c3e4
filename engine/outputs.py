"""What the engine gives back: deltas of a stream, and the whole of a finished request."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from engine.request import Request

FINISH_STOP = "stop"
FINISH_LENGTH = "length"
FINISH_TOOL_CALLS = "tool_calls"
FINISH_ABORT = "abort"
FINISH_ERROR = "error"


@dataclass(frozen=True)
class TokenLogprob:
    """One token with its natural-log probability; `top` holds the most likely alternatives, best first."""

    token_id: int
    token: str
    logprob: float
    bytes: bytes
    top: tuple[TokenLogprob, ...] = ()


@dataclass(frozen=True)
class ToolCallDelta:
    """A piece of the `index`-th tool call of an answer: its id and name first, then its arguments' JSON text."""

    index: int
    id: str | None
    name: str | None
    arguments: str


@dataclass(frozen=True)
class OutputDelta:
    """What one step added to one answer of a request.

    `text` may be empty while characters or a possible stop string are held back; the deltas of an answer, joined, are
    its whole text. `num_*` are running totals; of `num_draft_tokens` guessed at, `num_accepted_tokens` were right.
    `finish_reason` is set on the last delta of each answer. `tool_calls` are what `ToolCallParser` reads out of the
    text (with finish reason "tool_calls"); the engine itself leaves them empty.
    """

    request_id: str
    index: int
    text: str
    token_ids: tuple[int, ...]
    logprobs: tuple[TokenLogprob, ...] | None
    finish_reason: str | None
    stop_reason: str | int | None
    num_prompt_tokens: int
    num_cached_tokens: int
    num_output_tokens: int
    error: Exception | None = None
    tool_calls: tuple[ToolCallDelta, ...] = ()
    num_draft_tokens: int = 0
    num_accepted_tokens: int = 0

    @classmethod
    def of(
        cls,
        request: Request,
        finish_reason: str | None,
        *,
        text: str = "",
        token_ids: Sequence[int] = (),
        logprobs: Sequence[TokenLogprob] = (),
        stop_reason: str | int | None = None,
        error: Exception | None = None,
    ) -> OutputDelta:
        """What is new of a request, with its totals as they stand now."""
        return cls(
            request_id=request.request_id,
            index=request.index,
            text=text,
            token_ids=tuple(token_ids),
            logprobs=tuple(logprobs) or None,
            finish_reason=finish_reason,
            stop_reason=stop_reason,
            num_prompt_tokens=request.num_prompt_tokens,
            num_cached_tokens=request.num_prefix_tokens,
            num_output_tokens=request.num_output_tokens - request.num_awaited,
            error=error,
            num_draft_tokens=request.num_draft_tokens,
            num_accepted_tokens=request.num_accepted_tokens,
        )


def merged(deltas: Iterable[OutputDelta]) -> list[OutputDelta]:
    """Deltas that wait for a reader, those of each answer in one: the same text, tokens and log-probabilities.

    Answers stand in the order in which they first appear. An error stays a delta of its own, and nothing follows it.
    """
    waiting: dict[int, OutputDelta] = {}
    for delta in deltas:
        if delta.error is not None:
            return [*waiting.values(), delta]
        earlier = waiting.get(delta.index)
        waiting[delta.index] = delta if earlier is None else _joined(earlier, delta)
    return list(waiting.values())


def _joined(first: OutputDelta, second: OutputDelta) -> OutputDelta:
    logprobs = second.logprobs if first.logprobs is None else (*first.logprobs, *(second.logprobs or ()))
    return replace(
        second,
        text=first.text + second.text,
        token_ids=(*first.token_ids, *second.token_ids),
        logprobs=logprobs,
        tool_calls=(*first.tool_calls, *second.tool_calls),
    )


@dataclass
class Completion:
    """One answer. `finish_reason`: "stop", "length", "abort" or "error"; `stop_reason`: the stop string or token id."""

    index: int
    text: str = ""
    token_ids: list[int] = field(default_factory=list)
    finish_reason: str | None = None
    stop_reason: str | int | None = None
    logprobs: list[TokenLogprob] | None = None

    def add(self, delta: OutputDelta) -> None:
        """Append what a step brought."""
        self.text += delta.text
        self.token_ids.extend(delta.token_ids)
        if delta.logprobs is not None:
            self.logprobs = [*(self.logprobs or []), *delta.logprobs]
        if delta.finish_reason is not None:
            self.finish_reason, self.stop_reason = delta.finish_reason, delta.stop_reason


@dataclass
class RequestOutput:
    """A finished request: its prompt and `n` answers. `text`, `token_ids`, `finish_reason` are those of the first."""

    request_id: str
    prompt_token_ids: list[int]
    completions: list[Completion]
    num_cached_tokens: int = 0

    @property
    def text(self) -> str:
        return self.completions[0].text

    @property
    def token_ids(self) -> list[int]:
        return self.completions[0].token_ids

    @property
    def finish_reason(self) -> str | None:
        return self.completions[0].finish_reason


@dataclass(frozen=True)
class EngineStats:
    """A snapshot of the engine: gauges, and counters since the start.

    `num_drafts` counts verifications of one sequence's drafts, `num_draft_tokens` and `num_accepted_tokens` the tokens
    in them, and `num_accepted_by_position` how often the first, second, … draft was accepted. `max_num_seqs`: so many
    may run at a time.
    """

    num_running: int
    num_waiting: int
    num_kv_blocks: int
    num_free_blocks: int
    num_pinned_blocks: int
    num_steps: int
    num_preemptions: int
    num_prompt_tokens: int
    num_generated_tokens: int
    num_prefix_queries: int
    num_prefix_hits: int
    num_drafts: int = 0
    num_draft_tokens: int = 0
    num_accepted_tokens: int = 0
    num_accepted_by_position: tuple[int, ...] = ()
    num_waiting_by_priority: Mapping[str, int] = field(default_factory=dict)
    max_num_seqs: int = 0

    @property
    def kv_usage(self) -> float:
        """Share of KV blocks that requests hold (cached but unheld blocks count as free), 0 to 1."""
        return 1.0 - self.num_free_blocks / self.num_kv_blocks
