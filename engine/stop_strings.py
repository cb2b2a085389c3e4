"""Text up to the first of some stop strings, while it is being written."""

from collections.abc import Sequence

from engine.errors import InvalidParameterError


class StopStrings:
    """Passes text on until a stop string is complete; holds back the tail that could still become one.

    Raises InvalidParameterError for an empty stop string. `found` is the one that was seen.
    """

    def __init__(self, stop: Sequence[str], *, include_stop: bool = False) -> None:
        if isinstance(stop, str) or any(not isinstance(text, str) or not text for text in stop):
            raise InvalidParameterError("stop", f"{stop!r} given; a list of texts that are not empty is needed")
        self._stops = tuple(stop)
        self._include_stop = include_stop
        self._longest = max(map(len, self._stops), default=0)
        self._held = ""
        self.found: str | None = None

    def push(self, text: str, may_stop: bool = True) -> str:
        """What of the text is certain now; without `may_stop` a stop string that it completes does not count."""
        if self.found is not None or not text:
            return ""
        if not self._stops:
            return text
        known, text = len(self._held), self._held + text
        if may_stop:
            # A stop string that was complete in the text held back did not count then and does not now.
            places = [(text.find(stop, max(0, known - len(stop) + 1)), stop) for stop in self._stops]
            matches = [(at + len(stop), at, stop) for at, stop in places if at >= 0]
            if matches:
                end, start, self.found = min(matches)
                self._held = ""
                return text[: end if self._include_stop else start]
        keep = self._undecided(text)
        self._held = text[len(text) - keep :]
        return text[: len(text) - keep]

    def finish(self) -> str:
        """No more text: what was held back."""
        held, self._held = self._held, ""
        return held

    def _undecided(self, text: str) -> int:
        """Length of the longest tail that is the beginning of a stop string."""
        for length in range(min(len(text), self._longest - 1), 0, -1):
            if any(stop.startswith(text[-length:]) for stop in self._stops):
                return length
        return 0
