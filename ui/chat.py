"""What happens when a person asks, stops, retries or comes back: frames for the page, made from what the API streams.

Nothing here knows Gradio; `ui.app` turns frames into component updates.
"""

import asyncio
import contextlib
import logging
import time
from collections import OrderedDict
from collections.abc import AsyncGenerator
from contextlib import aclosing
from dataclasses import dataclass, field

from ui.client import ApiClient
from ui.conversation import Conversation, Turn, TurnState
from ui.errors import UIError
from ui.rendering import conversation_html, sources_html, turn_html

logger = logging.getLogger(__name__)

# A handler learns that its tab is gone only when it yields, and the engine must be free within a second of that.
HEARTBEAT_S = 0.15
# At most 15 repaints a second: smooth to the eye, and little work for browser and server.
REPAINT_S = 1 / 15
# A stopped turn is written down by the server a moment after the connection closes; a retry waits this long for it.
RECORDED_WITHIN_S = 1.5
NUM_CACHED_CONVERSATIONS = 1000


@dataclass(frozen=True)
class Frame:
    """What changes on the page; a field that is None stays as it is.

    earlier, live, sources: HTML of the earlier turns, the newest turn and its sources. question: text of the input box.
    is_busy: whether an answer is being made. has_turns: whether there is anything to show or to retry.
    """

    earlier: str | None = None
    live: str | None = None
    sources: str | None = None
    question: str | None = None
    is_busy: bool | None = None
    has_turns: bool | None = None


@dataclass
class _Work:
    """The making of one answer: `wake` is set whenever there is something to look at."""

    turn: Turn
    wake: asyncio.Event = field(default_factory=asyncio.Event)
    is_stopped: bool = False
    last_frame: Frame | None = None  # what to show at the end in place of the answer
    started_at: float = field(default_factory=time.monotonic)

    def stop(self) -> None:
        self.is_stopped = True
        self.wake.set()

    @property
    def waited_s(self) -> float:
        return time.monotonic() - self.started_at


class Chat:
    """All conversations that open tabs show, by session id. The truth is the server's; this is a cache of it."""

    def __init__(self, client: ApiClient) -> None:
        self._client = client
        self._conversations: OrderedDict[str, Conversation] = OrderedDict()
        self._work: dict[str, _Work] = {}

    async def restore(self, session_id: str) -> Frame:
        """The page of a conversation as it stands, for a tab that has just been (re)loaded."""
        self._conversations.pop(session_id, None)
        try:
            conversation = await self._conversation(session_id)
        except UIError:
            # The page's notice says what is wrong with the server; an empty chat is the right thing to show below it.
            conversation = Conversation(session_id)
        return self._whole_page(conversation, question=None)

    async def ask(self, question: str, session_id: str) -> AsyncGenerator[Frame]:
        """Ask in the conversation `session_id`; the frames of the answer. Closing the iterator abandons the answer."""
        question = question.strip()
        if not question:
            yield Frame()
            return
        try:
            conversation = await self._conversation(session_id)
        except UIError:
            conversation = self._keep(Conversation(session_id))
        _drop_refused_turn(conversation)
        async with aclosing(self._answer(conversation, question)) as frames:
            async for frame in frames:
                yield frame

    async def retry(self, session_id: str) -> AsyncGenerator[Frame]:
        """Ask the last question again, in place of its turn; the frames of the new answer."""
        try:
            conversation = await self._conversation(session_id)
        except UIError:
            # The page's notice says what is wrong with the server.
            yield Frame()
            return
        last = conversation.last
        if last is None:
            yield Frame()
            return
        yield Frame(is_busy=True)
        try:
            await self._forget_last(conversation, last)
        except UIError as error:
            last.error = str(error)
            yield Frame(live=turn_html(last), is_busy=False)
            return
        async with aclosing(self._answer(conversation, last.question)) as frames:
            async for frame in frames:
                yield frame

    def stop(self, session_id: str) -> None:
        """Stop the answer that is being made, if there is one; what has arrived of it stays."""
        work = self._work.get(session_id)
        if work is not None:
            work.stop()

    async def leave(self, session_id: str, new_session_id: str) -> Frame:
        """Abandon the conversation `session_id` for a new one; its empty page.

        An answer that is being made ends with that same page, so that the page is right whichever frame comes last.
        """
        page = await self.restore(new_session_id)
        work = self._work.get(session_id)
        if work is not None:
            work.last_frame = page
            work.stop()
        return page

    async def _conversation(self, session_id: str) -> Conversation:
        conversation = self._conversations.get(session_id)
        if conversation is not None:
            self._conversations.move_to_end(session_id)
            return conversation
        return self._keep(Conversation(session_id, await self._client.turns(session_id)))

    def _keep(self, conversation: Conversation) -> Conversation:
        self._conversations[conversation.session_id] = conversation
        while len(self._conversations) > NUM_CACHED_CONVERSATIONS:
            self._conversations.popitem(last=False)
        return conversation

    async def _forget_last(self, conversation: Conversation, turn: Turn) -> None:
        """Take the last turn out of the conversation, on the server and then here."""
        deadline = time.monotonic() + RECORDED_WITHIN_S
        while turn.is_accepted:
            kept = await self._client.turns(conversation.session_id)
            if kept and kept[-1].question.strip() == turn.question:
                await self._client.drop_turns_from(conversation.session_id, len(kept) - 1)
                break
            if turn.state is TurnState.DONE or time.monotonic() > deadline:
                break
            await asyncio.sleep(0.1)
        conversation.turns.remove(turn)

    async def _answer(self, conversation: Conversation, question: str) -> AsyncGenerator[Frame]:
        turn = Turn(question)
        conversation.turns.append(turn)
        work = _Work(turn)
        self._work[conversation.session_id] = work
        reader = asyncio.create_task(self._read(work, conversation.session_id))
        reader.add_done_callback(lambda _: work.wake.set())
        try:
            yield self._whole_page(conversation, question="")
            async with aclosing(_progress(work, reader)) as frames:
                async for frame in frames:
                    yield frame
        finally:
            # Also reached when the tab is closed. Cancelling the reader closes its connection, which frees the engine.
            reader.cancel()
            await asyncio.gather(reader, return_exceptions=True)
            if turn.is_open:
                turn.state = TurnState.STOPPED
            if self._work.get(conversation.session_id) is work:
                del self._work[conversation.session_id]
        if work.last_frame is not None:
            yield work.last_frame
            return
        # A question that the server did not take goes back into the box, to be mended or sent again.
        is_refused = turn.state is TurnState.FAILED and not turn.is_accepted
        yield Frame(
            live=turn_html(turn),
            sources=sources_html(turn),
            question=question if is_refused else None,
            is_busy=False,
        )

    async def _read(self, work: _Work, session_id: str) -> None:
        """Take the answer into the turn as it arrives; the turn's state says how it ended."""
        turn = work.turn
        try:
            async with aclosing(self._client.stream_answer(turn.question, session_id)) as parts:
                async for part in parts:
                    turn.is_accepted = True
                    if part.sources is not None:
                        turn.sources = part.sources
                    turn.not_found = turn.not_found or part.not_found
                    if part.text:
                        turn.answer += part.text
                        turn.state = TurnState.STREAMING
                    work.wake.set()
            turn.is_accepted = True
            turn.state = TurnState.DONE
        except UIError as error:
            turn.error = str(error)
            turn.state = TurnState.FAILED
        except Exception:
            logger.exception("the answer could not be read")
            turn.error = "Something went wrong in the chat page; the log of the UI process says more."
            turn.state = TurnState.FAILED

    def _whole_page(self, conversation: Conversation, question: str | None) -> Frame:
        earlier, live, sources = conversation_html(conversation)
        last = conversation.last
        return Frame(
            earlier=earlier,
            live=live,
            sources=sources,
            question=question,
            is_busy=last is not None and last.is_open,
            has_turns=last is not None,
        )


async def _progress(work: _Work, reader: "asyncio.Task[None]") -> AsyncGenerator[Frame]:
    """Frames while an answer is being made: at once on news, but REPAINT_S apart, and at least every HEARTBEAT_S."""
    turn, shown_sources = work.turn, None
    while True:
        with contextlib.suppress(TimeoutError):
            await asyncio.wait_for(work.wake.wait(), HEARTBEAT_S)
        work.wake.clear()
        if reader.done() or work.is_stopped:
            return
        changed_sources = sources_html(turn) if turn.sources is not shown_sources else None
        shown_sources = turn.sources
        yield Frame(live=turn_html(turn, work.waited_s), sources=changed_sources)
        await asyncio.sleep(REPAINT_S)


def _drop_refused_turn(conversation: Conversation) -> None:
    """A question that the server never took disappears when the next one is asked; the person has seen why."""
    last = conversation.last
    if last is not None and last.state is TurnState.FAILED and not last.is_accepted:
        conversation.turns.pop()
