"""Which tab shows which conversation: what comes of one that it has left is not painted over the one that it shows."""

from collections.abc import AsyncGenerator
from contextlib import aclosing
from dataclasses import dataclass

from ui.chat import Frame


@dataclass(eq=False)
class _Visit:
    session_id: str
    is_over: bool = False


class Tabs:
    """The visits of open tabs to conversations, for as long as frames of them may come. A tab is known by a name."""

    def __init__(self) -> None:
        self._visits: dict[str, list[_Visit]] = {}

    async def showing(
        self, tab: str, session_id: str, frames: AsyncGenerator[Frame], *, ends_when_left: bool = False
    ) -> AsyncGenerator[Frame]:
        """`frames` of a conversation while the tab shows it.

        Once it was left they are empty, to the end: a handler learns only from what it yields whether its tab is still
        there. Where `ends_when_left`, they end then. Who comes back to the conversation visits it anew.
        """
        visit = _Visit(session_id)
        self._visits.setdefault(tab, []).append(visit)
        try:
            async with aclosing(frames):
                async for frame in frames:
                    if visit.is_over and ends_when_left:
                        return
                    yield Frame() if visit.is_over else frame
        finally:
            self._visits[tab].remove(visit)
            if not self._visits[tab]:
                del self._visits[tab]

    def leave(self, tab: str, session_id: str) -> None:
        """The tab does not show this conversation any more."""
        for visit in self._visits.get(tab, ()):
            visit.is_over = visit.is_over or visit.session_id == session_id
