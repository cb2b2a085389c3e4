"""Token ids to text while they are generated: no half characters, nothing that may yet become a stop string.

One `Detokenizer` a sequence. The joined deltas equal `Tokenizer.decode` of all ids, up to a character that the last
token left incomplete. The work for a token depends on its length and on the stop strings, not on the text before it.
"""

from __future__ import annotations

import codecs
from collections.abc import Sequence
from typing import Protocol

from engine.stop_strings import StopStrings
from engine.tokenizer import Tokenizer


class Detokenizer:
    """Streams the text of one sequence.

    Args:
        stop: texts that end the answer. The one that is complete first wins; of several complete at the same
            character, the longest.
        include_stop: keep the stop string at the end of the text.
        min_tokens: a stop string that is complete before this many tokens does not count.

    Attributes:
        stopped_by: the stop string that was seen; the text is cut there and further tokens add nothing.

    Raises:
        InvalidParameterError: an empty stop string.
    """

    def __init__(
        self, tokenizer: Tokenizer, stop: Sequence[str] = (), include_stop: bool = False, *, min_tokens: int = 0
    ) -> None:
        self._characters: _Characters = (
            _ByteLevelCharacters(tokenizer) if tokenizer.is_byte_level else _SentencePieceCharacters(tokenizer)
        )
        self._stops = StopStrings(stop, include_stop=include_stop)
        self._emitted: list[str] = []
        self._num_tokens = 0
        self._min_tokens = min_tokens

    @property
    def text(self) -> str:
        """Everything emitted so far."""
        return "".join(self._emitted)

    @property
    def stopped_by(self) -> str | None:
        return self._stops.found

    def push(self, token_id: int) -> str:
        """Take one token; returns the text that is certain now, often ''."""
        self._num_tokens += 1
        may_stop = self._num_tokens >= self._min_tokens
        return self._emit(self._stops.push(self._characters.push(token_id), may_stop))

    def finish(self) -> str:
        """No more tokens: returns the text that was held back. Bytes of an incomplete character are dropped."""
        may_stop = self._num_tokens >= self._min_tokens
        return self._emit(self._stops.push(self._characters.finish(), may_stop) + self._stops.finish())

    def _emit(self, delta: str) -> str:
        if delta:
            self._emitted.append(delta)
        return delta


class _Characters(Protocol):
    """Tokens to whole characters."""

    def push(self, token_id: int) -> str: ...

    def finish(self) -> str: ...


def _begins_character(pending: bytes) -> bool:
    """Whether bytes that a decoder keeps back may become a character. It keeps those of surrogates, which never do."""
    return bool(pending) and not (pending[0] == 0xED and pending[1:2] >= b"\xa0")


class _ByteLevelCharacters:
    """Tokens are any bytes; the characters are what the whole stream of bytes spells."""

    def __init__(self, tokenizer: Tokenizer) -> None:
        self._tokenizer = tokenizer
        self._decoder = codecs.getincrementaldecoder("utf-8")(errors="replace")

    def push(self, token_id: int) -> str:
        return self._decoder.decode(self._tokenizer.token_bytes(token_id))

    def finish(self) -> str:
        pending = self._decoder.getstate()[0]
        return "" if _begins_character(pending) else pending.decode("utf-8", errors="replace")


class _SentencePieceCharacters:
    """Tokens are text, save for byte tokens; the space that encoding put before the text is taken off again.

    A run of byte tokens is decoded as a whole, or, where it is not UTF-8, gives one U+FFFD a byte (so does
    `Tokenizer.decode`): it is certain only when the run ends.
    """

    def __init__(self, tokenizer: Tokenizer) -> None:
        self._tokenizer = tokenizer
        self._run = bytearray()
        self._spaces_to_strip = tokenizer.strips_leading_space

    def push(self, token_id: int) -> str:
        content = self._tokenizer.token_bytes(token_id)
        if not content:
            return ""
        if self._tokenizer.is_byte_fallback(token_id):
            self._run += content
            return ""
        return self._stripped(self._end_run() + content.decode("utf-8"))

    def finish(self) -> str:
        decoder = codecs.getincrementaldecoder("utf-8")(errors="replace")
        decoder.decode(bytes(self._run))
        pending = decoder.getstate()[0]
        if _begins_character(pending):
            del self._run[len(self._run) - len(pending) :]
        return self._stripped(self._end_run())

    def _end_run(self) -> str:
        run = bytes(self._run)
        self._run.clear()
        try:
            return run.decode("utf-8")
        except UnicodeDecodeError:
            return "\ufffd" * len(run)

    def _stripped(self, text: str) -> str:
        while text and self._spaces_to_strip:
            self._spaces_to_strip = self._spaces_to_strip - 1 if text[0] == " " else 0
            text = text.removeprefix(" ")
        return text
