"""An engine's answers and errors as lines of JSON, for the border between the app and an engine of another process.

OpenAI's format leaves out what the app needs of its own engine: token ids, running totals, which error it was. One line
is one delta, or the error that ends the stream.
"""

import base64
from collections.abc import Iterator, Mapping
from dataclasses import fields
from typing import Any

import orjson

from engine import errors
from engine.outputs import EngineStats, OutputDelta, TokenLogprob, ToolCallDelta

_KINDS: dict[str, type[errors.EngineError]] = {
    kind.code: kind for kind in vars(errors).values() if isinstance(kind, type) and issubclass(kind, errors.EngineError)
}
_DEFAULTS = {field.name: field.default for field in fields(OutputDelta)}


def write_delta(delta: OutputDelta) -> bytes:
    """The line of a delta; what has its default value is left out."""
    entry = {name: value for name, default in _DEFAULTS.items() if (value := getattr(delta, name)) != default}
    return orjson.dumps(entry, default=_plain) + b"\n"


def write_error(error: errors.EngineError) -> bytes:
    """The line of an error, which ends a stream."""
    return orjson.dumps({"error": error_body(error)}, default=_plain) + b"\n"


def error_body(error: errors.EngineError) -> dict[str, Any]:
    """What an error is rebuilt from."""
    return {"code": error.code, "message": str(error), "attributes": vars(error)}


class DeltaReader:
    """The deltas of a body that comes in pieces, which may end anywhere in a line."""

    def __init__(self) -> None:
        self._rest = b""

    def feed(self, piece: bytes) -> Iterator[OutputDelta]:
        """Those that are whole with this piece. Raises as `read_line`."""
        *lines, self._rest = (self._rest + piece).split(b"\n")
        return map(read_line, lines)

    def close(self) -> Iterator[OutputDelta]:
        """None: every line is whole by itself."""
        return iter(())


def read_line(line: bytes) -> OutputDelta:
    """The delta of a line. Raises the error that a line holds, as the class it had there."""
    entry = orjson.loads(line)
    if (error := entry.get("error")) is not None:
        raise read_error(error)
    if entry.get("logprobs") is not None:
        entry["logprobs"] = tuple(_logprob(given) for given in entry["logprobs"])
    if "tool_calls" in entry:
        entry["tool_calls"] = tuple(ToolCallDelta(**call) for call in entry["tool_calls"])
    entry.setdefault("logprobs", None)
    entry["token_ids"] = tuple(entry["token_ids"])
    return OutputDelta(**entry)


def read_error(body: Mapping[str, Any]) -> errors.EngineError:
    """An error of the class whose code it carries, with the attributes it had."""
    kind = _KINDS.get(body["code"], errors.EngineError)
    error = kind.__new__(kind)
    Exception.__init__(error, body["message"])
    vars(error).update(body.get("attributes") or {})
    return error


def write_stats(stats: EngineStats) -> dict[str, Any]:
    """Statistics as JSON has them."""
    written: dict[str, Any] = orjson.loads(orjson.dumps(stats, default=_plain))
    return written


def read_stats(entry: Mapping[str, Any]) -> EngineStats:
    """Statistics as they were; what an engine of another version adds is left out."""
    known = {field.name for field in fields(EngineStats)}
    return EngineStats(**{name: _frozen(value) for name, value in entry.items() if name in known})


def _plain(value: Any) -> Any:
    if isinstance(value, bytes):
        return base64.b64encode(value).decode()
    if isinstance(value, Mapping):
        return dict(value)
    return str(value)


def _frozen(value: Any) -> Any:
    return tuple(value) if isinstance(value, list) else value


def _logprob(entry: dict[str, Any]) -> TokenLogprob:
    top = tuple(_logprob(other) for other in entry.pop("top", ()))
    return TokenLogprob(**{**entry, "bytes": base64.b64decode(entry["bytes"]), "top": top})
