"""Tool calls read out of an answer while it is being written.

One `ToolCallParser` an answer: text goes in as it becomes certain, and comes out as text to show and as pieces of
calls in OpenAI's shape (a first piece with id and name, then pieces of the arguments' JSON text). What begins like a
call and turns out to be none comes out as the text it is.
"""

from __future__ import annotations

import json
import re
import secrets
import string
from collections.abc import Collection
from dataclasses import dataclass, replace

from engine.json_escapes import whole_escapes
from engine.outputs import FINISH_STOP, FINISH_TOOL_CALLS, OutputDelta, ToolCallDelta
from engine.tool_format import CLOSE, OPEN, Held, Syntax

_HEAD = re.compile(r'\s*\{\s*"name"\s*:\s*"([^"\\]+)"\s*,\s*"(?:arguments|parameters)"\s*:\s*(?=\{)')
# Models that were trained on code (Qwen2.5-Coder) leave the tags out: their answer is the call, most often as a block
# of code. Of `_BARE`, every beginning matches `_BARE_BEGINNING`.
FENCE = "```"
_BARE = re.compile(rf"\s*({FENCE}[a-z]*)?{_HEAD.pattern}")
_BARE_PARTS = (r"\{\s*", *'"name', r'"\s*', r":\s*", '"', r'[^"\\]+', r'"\s*', r",\s*", '"', "[a-z]+", r'"\s*', r":\s*")


def _beginnings(*parts: str) -> str:
    """A pattern of the first few of the parts, of any number."""
    pattern = ""
    for part in reversed(parts):
        pattern = f"(?:{part}{pattern})?"
    return pattern


_BARE_CALL = _beginnings(*_BARE_PARTS)
_BARE_BLOCK = _beginnings(*FENCE, "[a-z]*", r"\s*", *_BARE_PARTS)
_BARE_BEGINNING = re.compile(rf"\s*(?:{_BARE_CALL}|{_BARE_BLOCK})")


@dataclass
class Piece:
    """What some text brought: `text` to show, and pieces of calls."""

    text: str = ""
    calls: tuple[ToolCallDelta, ...] = ()


class ToolCallReader:
    """Reads the deltas of a request: a parser for each of its answers.

    Args:
        holds: what of the answers a grammar holds to calls, so that what begins like one and ends too early was cut
            off and is no text: all of it ("answer"), what follows an opening tag ("calls"), or nothing ("").
    """

    def __init__(self, syntax: Syntax, names: Collection[str], holds: Held = "") -> None:
        self._syntax = syntax
        self._names = names
        self._holds: Held = holds
        self._parsers: dict[int, ToolCallParser] = {}

    def read(self, delta: OutputDelta) -> OutputDelta:
        """The delta with the calls taken out of its text; an answer that ended after a call says "tool_calls"."""
        parser = self._parsers.setdefault(delta.index, ToolCallParser(self._syntax, self._names, self._holds))
        piece, reason = parser.push(delta.text), delta.finish_reason
        if reason is not None:
            rest = parser.finish()
            piece = Piece(piece.text + rest.text, piece.calls + rest.calls)
            reason = FINISH_TOOL_CALLS if reason == FINISH_STOP and parser.is_whole else reason
        return replace(delta, text=piece.text, tool_calls=piece.calls, finish_reason=reason)


class ToolCallParser:
    """Reads one answer.

    Args:
        names: the tools that exist; an object that names none of them is no call.
        holds: see `ToolCallReader`.

    Attributes:
        num_calls: calls begun so far.
    """

    def __init__(self, syntax: Syntax, names: Collection[str], holds: Held = "") -> None:
        self.num_calls = 0
        self._holds: Held = holds
        self._syntax = syntax
        self._names = names
        self._held = ""
        self._calls: list[ToolCallDelta] = []
        self._text: list[str] = []
        self._state = "text"
        self._json = _Balance()
        self._begun = False
        self._close = CLOSE  # what ends the call that is being read

    def push(self, text: str) -> Piece:
        """Take text; returns what is certain now."""
        self._held += text
        while self._step():
            pass
        return self._taken()

    def finish(self) -> Piece:
        """No more text: what was held back is a call after all, or text; behind a call, the head of one is nothing."""
        if self._state == "body":
            self._whole_call(self._held, self._held if self._syntax == "llama" else OPEN + self._held, at_end=True)
        elif self._state == "text" and not self._is_cut_call():
            self._show(self._held)
        self._held, self._state = "", "text" if self._state in ("text", "body") else self._state
        return self._taken()

    @property
    def is_whole(self) -> bool:
        """Whether there are calls, and the last of them has all of its arguments."""
        return self.num_calls > 0 and self._state != "arguments"

    def _is_cut_call(self) -> bool:
        """Whether what is held at the end can only be the head of a call that was cut off."""
        head = self._held.strip()
        return self._holds == "answer" or (
            OPEN.startswith(head) and (self.num_calls > 0 or (self._holds == "calls" and len(head) > 1))
        )

    def _taken(self) -> Piece:
        calls: list[ToolCallDelta] = []
        for call in self._calls:
            # One piece of each call at a time: clients that add up messages merge by index, but not within a message.
            if calls and calls[-1].index == call.index:
                calls[-1] = replace(calls[-1], arguments=calls[-1].arguments + call.arguments)
            else:
                calls.append(call)
        piece = Piece("".join(self._text), tuple(calls))
        self._text.clear()
        self._calls.clear()
        return piece

    def _step(self) -> bool:
        """Advance by one part of the answer; False when more text is needed."""
        if self._state == "text":
            return self._read_text()
        if self._state == "body":
            return self._read_body()
        if self._state == "arguments":
            return self._read_arguments()
        return self._read_tail()

    def _read_text(self) -> bool:
        if self._syntax == "llama":
            # The whole answer is a call, or none of it is.
            if self._begun or not self._held.strip():
                text, self._held = (self._held, "") if self._begun else ("", self._held)
                self._show(text)
                return False
            self._begun = True
            if self._held.lstrip().startswith("{"):
                self._state = "body"
                return True
            return bool(self._held)
        if not self._begun:
            if (bare := _BARE.match(self._held)) and bare[2] in self._names:
                self._begun, self._close = True, FENCE if bare[1] else "}"
                self._begin_call(bare[2], bare.end())
                return True
            if _BARE_BEGINNING.fullmatch(self._held):
                return False
            self._begun = True
        at = self._held.find(OPEN)
        if at >= 0:
            self._close = CLOSE
            # Line ends before a call only set it apart.
            self._show(self._held[:at].rstrip("\n") if not self.num_calls else self._held[:at].strip())
            self._held, self._state = self._held[at + len(OPEN) :], "body"
            return True
        keep = _undecided(self._held)
        self._show(self._held[: len(self._held) - keep])
        self._held = self._held[len(self._held) - keep :]
        return False

    def _read_body(self) -> bool:
        match = _HEAD.match(self._held)
        if match and match.group(1) in self._names:
            self._begin_call(match.group(1), match.end())
            return True
        end = self._held.find(CLOSE)
        if self._syntax == "hermes" and end >= 0:
            body, self._held = self._held[:end], self._held[end + len(CLOSE) :]
            self._state = "text"
            self._whole_call(body, f"{OPEN}{body}{CLOSE}")
            return True
        return False

    def _begin_call(self, name: str, arguments_at: int) -> None:
        self._calls.append(ToolCallDelta(self.num_calls, _new_call_id(), name, ""))
        self.num_calls += 1
        self._held, self._json, self._state = self._held[arguments_at:], _Balance(), "arguments"

    def _read_arguments(self) -> bool:
        taken = self._json.push(whole_escapes(self._held))
        if taken:
            self._calls.append(ToolCallDelta(self.num_calls - 1, None, None, self._held[:taken]))
        self._held = self._held[taken:]
        if not self._json.is_closed:
            return False
        self._state = "tail"
        return True

    def _read_tail(self) -> bool:
        """The brace that ends the call, and what closes it (Hermes) or the sign before another one (Llama)."""
        if self._syntax == "llama":
            at = self._held.find("{")
            if at < 0:
                return False
            self._held, self._state = self._held[at:], "body"
            return True
        end = self._held.find(self._close)
        if end < 0:
            return False
        self._held, self._state = self._held[end + len(self._close) :], "text"
        return True

    def _whole_call(self, body: str, text: str, *, at_end: bool = False) -> None:
        """A call that is not written as expected, all of it at hand; `text` is shown if it is none.

        `at_end`: nothing follows, so that it may be the head of a call only.
        """
        try:
            call = json.loads(body)
        except ValueError:
            call = None
        name = call.get("name") if isinstance(call, dict) else None
        arguments = call.get("arguments", call.get("parameters", {})) if isinstance(call, dict) else None
        if isinstance(arguments, str):
            try:
                arguments = json.loads(arguments)
            except ValueError:
                arguments = None
        if name not in self._names or not isinstance(arguments, dict):
            is_held = self._holds == "answer" or (self._holds == "calls" and self._syntax == "hermes")
            is_cut = at_end and (self.num_calls > 0 or is_held)
            self._show("" if is_cut else text)
            return
        written = json.dumps(arguments, ensure_ascii=False)
        self._calls.append(ToolCallDelta(self.num_calls, _new_call_id(), name, written))
        self.num_calls += 1

    def _show(self, text: str) -> None:
        # Between and behind calls only line ends are expected: they are no text to show.
        if text and not (self.num_calls and not text.strip()):
            self._text.append(text)


class _Balance:
    """Finds where a JSON object ends."""

    def __init__(self) -> None:
        self.is_closed = False
        self._depth = 0
        self._in_string = False
        self._escaped = False

    def push(self, text: str) -> int:
        """How many characters of the text belong to the object."""
        for index, character in enumerate(text):
            if self._escaped:
                self._escaped = False
            elif self._in_string:
                self._escaped = character == "\\"
                self._in_string = character != '"'
            elif character == '"':
                self._in_string = True
            elif character in "{[":
                self._depth += 1
            elif character in "}]":
                self._depth -= 1
                if self._depth == 0:
                    self.is_closed = True
                    return index + 1
        return len(text)


def _undecided(text: str) -> int:
    """Length of the longest tail that may be the head of a call: line ends, then a part of the opening tag."""
    for length in range(min(len(text), len(OPEN) - 1), -1, -1):
        head = text[len(text) - length :]
        if OPEN.startswith(head):
            before = text[: len(text) - length]
            return length + len(before) - len(before.rstrip("\n"))
    return 0


def _new_call_id() -> str:
    """Nine letters and digits: the only form that Mistral's templates take back, and enough for everyone."""
    return "".join(secrets.choice(string.ascii_letters + string.digits) for _ in range(9))
