"""Deltas out of the server-sent events of an OpenAI-compatible server.

Format: https://platform.openai.com/docs/api-reference/chat-streaming
"""

import uuid
from collections.abc import Iterator, Mapping
from typing import Any

import orjson

from app.engines.backend_errors import BackendError, told
from app.engines.request import EngineRequest
from engine.outputs import OutputDelta, TokenLogprob, ToolCallDelta

# Of OpenAI's older tool calls.
FINISH_REASONS: Mapping[str, str] = {"function_call": "tool_calls", "eos": "stop", "eos_token": "stop"}
# A token's id where only its text is told.
NO_ID = -1


class ChunkReader:
    """The deltas of one answer. Until the usage comes, output tokens are counted by chunk, prompt tokens as estimated.

    The last delta of each choice waits for the end of the body: the usage comes after it.
    """

    def __init__(self, request: EngineRequest, num_prompt_tokens: int, url: str) -> None:
        self._request_id = request.request_id
        self._num_prompt = num_prompt_tokens
        self._url = url
        self._rest = b""
        self._usage: Mapping[str, Any] = {}
        self._num_output: dict[int, int] = {}
        self._finished: dict[int, str] = {}
        self._calls: dict[int, set[int]] = {}

    def feed(self, piece: bytes) -> Iterator[OutputDelta]:
        """Those of the events that are whole with this piece. Raises the error that an event tells."""
        *lines, self._rest = (self._rest + piece).split(b"\n")
        for line in lines:
            yield from self._event(line)

    def close(self) -> Iterator[OutputDelta]:
        """The last delta of each choice that has ended."""
        yield from self._event(self._rest)
        for index, reason in sorted(self._finished.items()):
            yield self._delta(index, finish_reason=reason)

    def _event(self, line: bytes) -> Iterator[OutputDelta]:
        if not line.startswith(b"data:") or (data := line[5:].strip()) in (b"", b"[DONE]"):
            return
        try:
            chunk = orjson.loads(data)
            failure = chunk.get("error")
            self._take_usage(chunk.get("usage"))
            deltas = [self._choice(choice) for choice in chunk.get("choices") or ()]
        except (ValueError, LookupError, TypeError, AttributeError) as error:
            raise BackendError(f"the server at {self._url} sent what is no chunk of an answer: {error}") from None
        if failure:
            raise told(failure, self._url)
        yield from (delta for delta in deltas if delta is not None)

    def _choice(self, choice: Mapping[str, Any]) -> OutputDelta | None:
        index = int(choice.get("index") or 0)
        part: Mapping[str, Any] = choice.get("delta") or {"content": choice.get("text")}
        text, given = part.get("content") or "", choice.get("logprobs") or {}
        calls = tuple(self._call(index, piece, place) for place, piece in enumerate(part.get("tool_calls") or ()))
        logprobs = tuple(_chat_logprobs(given) if "content" in given else _text_logprobs(given))
        thoughts = part.get("reasoning_content") or part.get("reasoning")
        if text or calls or thoughts:
            self._num_output[index] = self._num_output.get(index, 0) + max(1, len(logprobs))
        if (reason := choice.get("finish_reason")) is not None:
            self._finished[index] = FINISH_REASONS.get(reason, str(reason))
        return self._delta(index, text, logprobs or None, calls) if text or calls or logprobs else None

    def _call(self, index: int, piece: Mapping[str, Any], place: int) -> ToolCallDelta:
        number = int(piece.get("index", place))
        function = piece.get("function") or {}
        arguments = function.get("arguments") or ""
        begun = self._calls.setdefault(index, set())
        if number in begun:  # some servers say the id and the name again
            return ToolCallDelta(number, None, None, arguments)
        begun.add(number)
        return ToolCallDelta(number, piece.get("id") or f"call_{uuid.uuid4().hex}", function.get("name"), arguments)

    def _take_usage(self, usage: Any) -> None:
        if isinstance(usage, dict):
            self._usage = usage
            self._num_prompt = int(usage.get("prompt_tokens") or self._num_prompt)

    def _delta(
        self,
        index: int,
        text: str = "",
        logprobs: tuple[TokenLogprob, ...] | None = None,
        calls: tuple[ToolCallDelta, ...] = (),
        finish_reason: str | None = None,
    ) -> OutputDelta:
        details = self._usage.get("prompt_tokens_details") or {}
        return OutputDelta(
            self._request_id,
            index,
            text,
            (),
            logprobs,
            finish_reason,
            None,
            self._num_prompt,
            int(details.get("cached_tokens") or 0),
            self._output_tokens(index),
            tool_calls=calls,
        )

    def _output_tokens(self, index: int) -> int:
        """Tokens of one choice so far. The usage counts all choices together: what the others leave is the last's."""
        counted = self._num_output.get(index, 0)
        total = self._usage.get("completion_tokens")
        if total is None or index != max(self._num_output, default=index):
            return counted
        return max(int(total) - sum(count for other, count in self._num_output.items() if other != index), 0)


def _chat_logprobs(given: Mapping[str, Any]) -> Iterator[TokenLogprob]:
    for entry in given["content"] or ():
        yield _logprob(entry, tuple(_logprob(other) for other in entry.get("top_logprobs") or ()))


def _logprob(entry: Mapping[str, Any], top: tuple[TokenLogprob, ...] = ()) -> TokenLogprob:
    spelled = entry.get("bytes")
    token = str(entry["token"])
    return TokenLogprob(
        NO_ID, token, float(entry["logprob"]), token.encode() if spelled is None else bytes(spelled), top
    )


def _text_logprobs(given: Mapping[str, Any]) -> Iterator[TokenLogprob]:
    """Those of /completions."""
    tokens = given.get("tokens") or ()
    tops = given.get("top_logprobs") or [None] * len(tokens)
    for token, logprob, top in zip(tokens, given.get("token_logprobs") or (), tops, strict=False):
        others = tuple(TokenLogprob(NO_ID, other, value, other.encode()) for other, value in (top or {}).items())
        yield TokenLogprob(NO_ID, token, logprob or 0.0, token.encode(), others)
