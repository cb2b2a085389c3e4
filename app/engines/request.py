"""A request to an engine, as one value: what is asked, how to sample, and on whose account."""

import uuid
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from app.messages import Message


def new_request_id() -> str:
    """A name for a request that no other has."""
    return f"chat-{uuid.uuid4().hex}"


@dataclass(frozen=True, kw_only=True)
class EngineRequest:
    """Either `messages` to answer, or a `prompt` (text, or token ids) to continue as it stands: no template, no roles.

    Attributes:
        params: fields of SamplingParams.
        begins: text that the answer to the messages begins with, in the model's mouth.
        tools, tool_choice, parallel_tool_calls: OpenAI's; calls come in the deltas' `tool_calls`.
        tenant: who pays; "": whose request is at hand.
        priority: one of `engine.request.PRIORITIES`.
    """

    messages: Sequence[Message] = ()
    prompt: str | Sequence[int] | None = None
    begins: str = ""
    params: Mapping[str, Any] = field(default_factory=dict)
    tools: Sequence[Mapping[str, Any]] | None = None
    tool_choice: str | Mapping[str, Any] | None = None
    parallel_tool_calls: bool | None = None
    request_id: str = field(default_factory=new_request_id)
    tenant: str = ""
    priority: str = "normal"

    @property
    def num_chars(self) -> int:
        """Characters of what is asked; of token ids, their number."""
        if self.prompt is not None:
            return len(self.prompt)
        return len(self.begins) + sum(len(message["content"]) for message in self.messages)
