"""An incremental decoder of server-sent events; it knows neither HTTP nor what the events mean.

Format: https://html.spec.whatwg.org/multipage/server-sent-events.html#parsing-an-event-stream. Lines end in LF, CRLF or
CR and in nothing else: U+2028 and U+0085 are text, which is where `str.splitlines` (and with it many clients) goes
wrong.
"""

import codecs
from collections.abc import Iterator
from dataclasses import dataclass


@dataclass(frozen=True)
class ServerSentEvent:
    """One event: its name ("message" where the stream gave none) and its data lines joined by LF."""

    event: str
    data: str


class SSEDecoder:
    """Bytes in, in pieces of any size; whole events out. Comments (pings) are dropped."""

    def __init__(self) -> None:
        self._utf8 = codecs.getincrementaldecoder("utf-8")(errors="replace")
        self._line = ""
        self._after_cr = False
        self._event = ""
        self._data: list[str] = []

    def feed(self, chunk: bytes) -> Iterator[ServerSentEvent]:
        """The events that `chunk` completes, in order. An event left unfinished at the end is never given."""
        text = self._utf8.decode(chunk)
        if self._after_cr and text:
            # The LF of a CRLF that was cut in two: its line has already been taken.
            text = text.removeprefix("\n")
            self._after_cr = False
        self._after_cr = text.endswith("\r") or (self._after_cr and not text)
        lines = (self._line + text).replace("\r\n", "\n").replace("\r", "\n").split("\n")
        self._line = lines.pop()
        for line in lines:
            event = self._take_line(line)
            if event is not None:
                yield event

    def _take_line(self, line: str) -> ServerSentEvent | None:
        if not line:
            return self._dispatch()
        field, _, value = line.partition(":")
        value = value.removeprefix(" ")
        if field == "event":
            self._event = value
        elif field == "data":
            self._data.append(value)
        return None

    def _dispatch(self) -> ServerSentEvent | None:
        event, data = self._event or "message", self._data
        self._event, self._data = "", []
        # The standard drops an event without data; LangServe's `end` has none and matters, so a named one is kept.
        if not data and event == "message":
            return None
        return ServerSentEvent(event, "\n".join(data))
