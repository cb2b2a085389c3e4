"""What the engine did for one answer: watched at the engine's client, told to the reader, kept with the turn."""

import time
from collections.abc import AsyncGenerator
from contextlib import aclosing, suppress
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from pydantic import BaseModel, Field

from app.engines.client import EngineClient
from app.engines.request import EngineRequest
from app.engines.routing import RoutedClient

if TYPE_CHECKING:
    from engine.outputs import OutputDelta


class TurnStatistics(BaseModel):
    """Times in seconds. Where the model was not asked, or said nothing, times are null and counts 0."""

    time_to_first_token_s: float | None = Field(default=None, description="From asking the model to its first token.")
    tokens_per_s: float | None = Field(default=None, description="After the first token.")
    model: str | None = Field(default=None, description="The model that was asked last.")
    routed_by: str | None = Field(default=None, description="Why that one: name, rule or default.")
    fallback_because: str | None = Field(default=None, description="Code of the failure for which it stepped in.")
    num_prompt_tokens: int = 0
    num_cached_tokens: int = Field(default=0, description="Of the prompt, found in the prefix cache.")
    num_output_tokens: int = 0
    num_draft_tokens: int = Field(default=0, description="Guessed at by speculation.")
    num_accepted_tokens: int = Field(default=0, description="Of the drafts, those that were right.")
    num_passages: int = 0
    num_passages_left_out: int = Field(default=0, description="Found, and without room in the prompt.")
    num_turns_left_out: int = Field(default=0, description="Earlier turns that the model was not shown.")


class AnswerRecord:
    """Watches the requests for one answer. `continues` is text that the answer begins with, in the model's mouth."""

    def __init__(self, continues: str = "") -> None:
        self.continues = continues
        self.last: OutputDelta | None = None
        self.client: Any = None
        self.reading: AsyncGenerator[OutputDelta, None] | None = None
        self._started: float | None = None
        self._first: float | None = None
        self._newest: float | None = None
        self._num_before_first = 0

    @property
    def finish_reason(self) -> str | None:
        """The engine's; None where the model was not asked, or its answer was not read to the end."""
        return None if self.last is None else self.last.finish_reason

    @property
    def model(self) -> str | None:
        """The model that was asked last; None where none was, or its client does not say."""
        if self.last is None:
            return None
        name: str = getattr(self.client, "answered_by", None) or self.client.model_name
        return name

    @property
    def was_cut(self) -> bool:
        """Whether the answer ended at max_tokens."""
        return self.finish_reason == "length"

    def statistics(self, **counts: Any) -> TurnStatistics:
        """What is known so far; `counts` are those that the engine cannot know."""
        last, started, first, newest = self.last, self._started, self._first, self._newest
        if last is None or started is None:
            return TurnStatistics(**counts)
        rate = None
        if first is not None and newest is not None and newest > first:
            rate = round((last.num_output_tokens - self._num_before_first) / (newest - first), 2)
        return TurnStatistics(
            time_to_first_token_s=None if first is None else round(first - started, 4),
            tokens_per_s=rate,
            num_prompt_tokens=last.num_prompt_tokens,
            num_cached_tokens=last.num_cached_tokens,
            num_output_tokens=last.num_output_tokens,
            num_draft_tokens=last.num_draft_tokens,
            num_accepted_tokens=last.num_accepted_tokens,
            model=self.model,
            routed_by=self.client.route.reason if hasattr(self.client, "route") else None,
            fallback_because=getattr(self.client, "because", None),
            **counts,
        )

    def watch(self, client: EngineClient) -> EngineClient:
        """The client, its streams noted here."""
        self.client = client.begin() if isinstance(client, RoutedClient) else client
        watched: Any = _Watched(self.client, self)
        return watched  # type: ignore[no-any-return]  # what it does not have itself it passes on

    def begin(self) -> None:
        """The model is asked now."""
        self._started = time.monotonic()

    def note(self, delta: "OutputDelta") -> None:
        """Takes one delta into account."""
        now = time.monotonic()
        if delta.num_output_tokens and self._first is None:
            self._first, self._num_before_first = now, delta.num_output_tokens
        if delta.num_output_tokens > (self.last.num_output_tokens if self.last else 0):
            self._newest = now
        self.last = delta

    async def close(self) -> None:
        """Ends the request that is still being read, if one is.

        LangChain leaves its generators, and with them the request, to the garbage collector where an answer is broken
        off between two chunks.
        """
        if self.reading is not None:
            with suppress(RuntimeError):  # it is just being cancelled
                await self.reading.aclose()


class _Watched:
    def __init__(self, client: EngineClient, record: AnswerRecord) -> None:
        self._client = client
        self._record = record

    def __getattr__(self, name: str) -> Any:
        return getattr(self._client, name)

    async def stream(self, request: EngineRequest) -> "AsyncGenerator[OutputDelta, None]":
        self._record.begin()
        self._record.reading = self._client.stream(replace(request, begins=self._record.continues))
        async with aclosing(self._record.reading) as deltas:
            async for delta in deltas:
                self._record.note(delta)
                yield delta
