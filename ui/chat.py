"""What happens when a person asks, stops, retries, edits or comes back: frames for the page, from what the API streams.

Nothing here knows Gradio; `ui.app` turns frames into component updates.
"""

import asyncio
import contextlib
import logging
import time
from collections import OrderedDict
from collections.abc import AsyncGenerator, Mapping
from contextlib import aclosing
from dataclasses import dataclass, field, replace
from typing import Any

from ui.client import AnswerPart, ApiClient
from ui.conversation import Conversation, Feedback, Turn, TurnState
from ui.errors import LoginNeededError, UIError
from ui.turn_html import after_answer_html, conversation_html, earlier_html, turn_html

logger = logging.getLogger(__name__)

# A handler learns that its tab is gone only when it yields, and the engine must be free within a second of that.
HEARTBEAT_S = 0.15
# At most 15 repaints a second: smooth to the eye, and little work for browser and server.
REPAINT_S = 1 / 15
# A stopped turn is written down by the server a moment after the connection closes; a retry waits this long for it.
RECORDED_WITHIN_S = 1.5
WRITTEN_EVERY_S = 0.1
# How often the place in the engine's queue is asked for while nothing of an answer has come.
QUEUE_EVERY_S = 1.0
NUM_CACHED_CONVERSATIONS = 1000
NUM_CACHED_PEOPLE = 256

Options = Mapping[str, Any]
"""Further keys of `configurable`: model, temperature, collections, …"""


@dataclass(frozen=True)
class Frame:
    """What changes on the page; a field that is None stays as it is.

    earlier, live, sources: HTML of the earlier turns, the newest turn and what stands below it. question: text of the
    input box. is_busy: whether an answer is being made. has_turns: whether there is anything to show or to retry.
    """

    earlier: str | None = None
    live: str | None = None
    sources: str | None = None
    question: str | None = None
    is_busy: bool | None = None
    has_turns: bool | None = None


@dataclass
class _Work:
    """The making of the answer of turn `index`: `wake` is set whenever there is something to look at."""

    turn: Turn
    index: int
    options: Options = field(default_factory=dict)
    wake: asyncio.Event = field(default_factory=asyncio.Event)
    is_stopped: bool = False
    started_at: float = field(default_factory=time.monotonic)

    def stop(self) -> None:
        self.is_stopped = True
        self.wake.set()

    @property
    def waited_s(self) -> float:
        return time.monotonic() - self.started_at


class Chats:
    """The Chat of each person, told apart by the key that they logged in with ("" where none is needed)."""

    def __init__(self, client: ApiClient) -> None:
        self._client = client
        self._chats: OrderedDict[str, Chat] = OrderedDict()

    def of(self, key: str) -> "Chat":
        """The chat of whoever holds `key`."""
        chat = self._chats.setdefault(key, Chat(self._client.as_user(key)))
        self._chats.move_to_end(key)
        while len(self._chats) > NUM_CACHED_PEOPLE:
            self._chats.popitem(last=False)
        return chat


class Chat:
    """All conversations that a person's open tabs show, by session id. The truth is the server's; this is a cache."""

    def __init__(self, client: ApiClient) -> None:
        self._client = client
        self._conversations: OrderedDict[str, Conversation] = OrderedDict()
        self._work: dict[str, _Work] = {}

    async def restore(self, session_id: str) -> Frame:
        """The page of a conversation as it stands, for a tab that has just been (re)loaded or that turns to it.

        It may show an answer that is being made, which `watch` follows. What the server has not written down of the
        newest turn is shown as it is known here. Nothing changes while the server cannot be asked and nothing is known.
        """
        known = self._conversations.get(session_id)
        if known is not None and session_id in self._work:
            return _whole_page(known, question=None)
        self._conversations.pop(session_id, None)
        try:
            conversation = Conversation(session_id, await self._client.turns(session_id))
            _keep_unwritten(known, conversation)
            self._keep(conversation)
        except LoginNeededError:
            conversation = Conversation(session_id)  # nothing is shown to a key that is no longer valid
        except UIError:
            # The page's notice says what is wrong with the server; what is known is the right thing to show below it.
            if known is None:
                return Frame(is_busy=False)
            conversation = known
        return _whole_page(conversation, question=None)

    async def watch(self, session_id: str) -> AsyncGenerator[Frame]:
        """Frames of an answer that a tab shows but did not ask for, to its end.

        It is another tab's, or this one's from before it was loaded again, in which case it ends in a moment and can be
        continued.
        """
        work, conversation = self._work.get(session_id), self._conversations.get(session_id)
        while work is not None and self._work.get(session_id) is work:
            yield Frame(
                live=turn_html(work.turn, work.index, work.waited_s),
                sources=after_answer_html(work.turn, work.index),
            )
            await asyncio.sleep(HEARTBEAT_S)
        # With another answer in the making, if there is one by now: the page watches that.
        yield await self.restore(session_id) if conversation is None else _whole_page(conversation, question=None)

    async def earlier(self, session_id: str, before: int) -> str:
        """HTML of the turns before turn `before`, as many as are shown at a time."""
        # Asked of the server, who knows whether the key still holds.
        return earlier_html((await self._client.turns(session_id))[: max(before, 0)])

    async def ask(self, question: str, session_id: str, options: Options | None = None) -> AsyncGenerator[Frame]:
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
        async with aclosing(self._answer(conversation, question, options)) as frames:
            async for frame in frames:
                yield frame

    async def retry(self, session_id: str, options: Options | None = None) -> AsyncGenerator[Frame]:
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
            yield Frame(live=turn_html(last, len(conversation.turns) - 1), is_busy=False)
            return
        async with aclosing(self._answer(conversation, last.question, options)) as frames:
            async for frame in frames:
                yield frame

    async def edit(
        self, index: int, question: str, session_id: str, options: Options | None = None
    ) -> AsyncGenerator[Frame]:
        """Ask `question` in place of that of turn `index`; it and all later turns are dropped."""
        question = question.strip()
        try:
            conversation = await self._conversation(session_id)
            if not question or not 0 <= index < len(conversation.turns):
                yield Frame()
                return
            yield Frame(is_busy=True)
            await self._client.drop_turns_from(session_id, index)
        except UIError as error:
            yield self._failed(session_id, error)
            return
        del conversation.turns[index:]
        async with aclosing(self._answer(conversation, question, options)) as frames:
            async for frame in frames:
                yield frame

    async def go_on(self, session_id: str, options: Options | None = None) -> AsyncGenerator[Frame]:
        """Go on with the last answer where it was cut or stopped."""
        try:
            conversation = await self._conversation(session_id)
        except UIError as error:
            yield self._failed(session_id, error)
            return
        last = conversation.last
        if last is None or not last.can_continue:
            yield Frame()
            return
        last.state, last.error, last.finish_reason = TurnState.STREAMING, "", ""
        async with aclosing(self._run(conversation, last, {**(options or {}), "continue_turn": True})) as frames:
            async for frame in frames:
                yield frame

    def rated(self, session_id: str, index: int, feedback: Feedback | None) -> None:
        """Remember what the person thinks of an answer, as the server does."""
        conversation = self._conversations.get(session_id)
        if conversation is not None and 0 <= index < len(conversation.turns):
            conversation.turns[index].feedback = feedback

    def forget(self, session_id: str) -> None:
        """Read the conversation from the server when it is next shown."""
        self._conversations.pop(session_id, None)

    def stop(self, session_id: str) -> None:
        """Stop the answer that is being made, if there is one; what has arrived of it stays."""
        work = self._work.get(session_id)
        if work is not None:
            work.stop()

    async def turn_to(self, session_id: str) -> Frame:
        """The page of a conversation, for a tab that shows another one.

        An answer that the tab waits for there goes on while the tab is open, and is shown to whoever comes back.
        """
        page = await self.restore(session_id)
        # Where nothing can be had of the conversation, nothing of the other one is shown under its name.
        return _whole_page(Conversation(session_id), question=None) if page.live is None else page

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
            await asyncio.sleep(WRITTEN_EVERY_S)
        conversation.turns.remove(turn)

    def _failed(self, session_id: str, error: UIError) -> Frame:
        """The newest turn with what went wrong."""
        conversation = self._conversations.get(session_id)
        if conversation is None or conversation.last is None:
            return Frame(is_busy=False)
        conversation.last.error = str(error)
        return Frame(live=turn_html(conversation.last, len(conversation.turns) - 1), is_busy=False)

    async def _answer(
        self, conversation: Conversation, question: str, options: Options | None
    ) -> AsyncGenerator[Frame]:
        chosen = options or {}
        searches = chosen.get("retrieval", True) and chosen.get("num_passages") != 0
        turn = Turn(question, sources=None if searches else [])
        conversation.turns.append(turn)
        async with aclosing(self._run(conversation, turn, options or {})) as frames:
            async for frame in frames:
                yield frame

    async def _run(self, conversation: Conversation, turn: Turn, options: Options) -> AsyncGenerator[Frame]:
        """Let the newest turn be answered, or its answer be continued."""
        session_id, is_new = conversation.session_id, not turn.answer
        comes_after_open = any(earlier.is_open for earlier in conversation.turns[:-1])
        work = _Work(turn, len(conversation.turns) - 1, options)
        self._work[session_id] = work
        reader = asyncio.create_task(self._read(work, session_id))
        reader.add_done_callback(lambda _: work.wake.set())
        watcher = asyncio.create_task(self._watch_queue(work, session_id))
        try:
            yield _whole_page(conversation, question="" if is_new else None)
            async with aclosing(_progress(work, reader)) as frames:
                async for frame in frames:
                    yield frame
        finally:
            # Also reached when the tab is closed. Cancelling the reader closes its connection, which frees the engine.
            reader.cancel()
            watcher.cancel()
            await asyncio.gather(reader, watcher, return_exceptions=True)
            if turn.is_open:
                turn.state = TurnState.STOPPED
            if self._work.get(session_id) is work:
                del self._work[session_id]
        if comes_after_open or conversation.last is not turn:
            # Another tab asked at the same time: its turn has gone on or come since this page was painted.
            yield _whole_page(conversation, question=None)
            return
        # A question that the server did not take goes back into the box, to be mended or sent again.
        is_refused = turn.state is TurnState.FAILED and not turn.is_accepted
        yield Frame(
            live=turn_html(turn, work.index),
            sources=after_answer_html(turn, work.index, is_last=True),
            question=turn.question if is_refused else None,
            is_busy=False,
        )
        if turn.state is not TurnState.DONE and not is_refused and await self._take_recorded(conversation, work.index):
            yield Frame(
                live=turn_html(conversation.turns[work.index], work.index),
                sources=after_answer_html(conversation.turns[work.index], work.index, is_last=True),
            )

    async def _take_recorded(self, conversation: Conversation, index: int) -> bool:
        """Take the newest turn, which ended early, as the server wrote it down: to the last word, with what it took.

        False: the server does not have it in time, or the person has gone on meanwhile, and another frame is right.
        """
        ended, deadline = conversation.turns[index], time.monotonic() + RECORDED_WITHIN_S
        with contextlib.suppress(UIError):
            while time.monotonic() < deadline:
                await asyncio.sleep(WRITTEN_EVERY_S)
                kept = await self._client.turns(conversation.session_id)
                if conversation.session_id in self._work or conversation.last is not ended:
                    return False
                # A turn has no end until it is written down; one that went on still has that of before.
                is_written = len(kept) == index + 1 and kept[index].finish_reason
                if is_written and len(kept[index].answer) >= len(ended.answer):
                    conversation.turns[index] = replace(
                        kept[index], state=ended.state, error=ended.error, error_code=ended.error_code
                    )
                    return True
        return False

    async def _watch_queue(self, work: _Work, session_id: str) -> None:
        """Keep the turn's place in the queue up to date until something of the answer has come."""
        with contextlib.suppress(UIError):
            while True:
                await asyncio.sleep(QUEUE_EVERY_S)
                if work.turn.state is not TurnState.WAITING:
                    return
                work.turn.position = await self._client.queue_position(session_id)
                work.wake.set()

    async def _read(self, work: _Work, session_id: str) -> None:
        """Take the answer into the turn as it arrives; the turn's state says how it ended."""
        turn = work.turn
        try:
            async with aclosing(self._client.stream_answer(turn.question, session_id, work.options)) as parts:
                async for part in parts:
                    _take(part, turn)
                    work.wake.set()
            turn.is_accepted = True
            turn.state = TurnState.DONE
        except UIError as error:
            turn.error = str(error)
            turn.error_code = "login" if isinstance(error, LoginNeededError) else ""
            turn.state = TurnState.FAILED
        except Exception:
            logger.exception("the answer could not be read")
            turn.error = "Something went wrong in the chat page; the log of the UI process says more."
            turn.state = TurnState.FAILED


def _whole_page(conversation: Conversation, question: str | None) -> Frame:
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


def _keep_unwritten(known: Conversation | None, kept: Conversation) -> None:
    """Put what is known here of the newest turn, which ended early, in the place of less that the server has of it.

    It may not have written it down yet, or never will, where it was killed.
    """
    last = None if known is None else known.last
    if known is None or last is None or not last.is_accepted or last.state not in (TurnState.STOPPED, TurnState.FAILED):
        return
    if len(kept.turns) == len(known.turns) - 1:
        kept.turns.append(last)
    elif len(kept.turns) == len(known.turns):
        newest = kept.turns[-1]
        if newest.question == last.question and newest.state is TurnState.UNFINISHED and last.answer:
            kept.turns[-1] = last


async def _progress(work: _Work, reader: "asyncio.Task[None]") -> AsyncGenerator[Frame]:
    """Frames while an answer is being made: at once on news, but REPAINT_S apart, and at least every HEARTBEAT_S."""
    turn, shown_sources = work.turn, None
    while True:
        with contextlib.suppress(TimeoutError):
            await asyncio.wait_for(work.wake.wait(), HEARTBEAT_S)
        work.wake.clear()
        if reader.done() or work.is_stopped:
            return
        has_new_sources = turn.sources is not shown_sources
        shown_sources = turn.sources
        yield Frame(
            live=turn_html(turn, work.index, work.waited_s),
            sources=after_answer_html(turn, work.index) if has_new_sources else None,
        )
        await asyncio.sleep(REPAINT_S)


def _take(part: AnswerPart, turn: Turn) -> None:
    """Put what has arrived into the turn."""
    turn.is_accepted = True
    if part.sources is not None:
        turn.sources = part.sources
    if part.grounding is not None:
        turn.grounding = part.grounding
    if part.statistics is not None:
        turn.statistics, turn.model = part.statistics, part.model
    turn.finish_reason = part.finish_reason or turn.finish_reason
    if part.text:
        turn.answer += part.text
        turn.state, turn.position = TurnState.STREAMING, None


def _drop_refused_turn(conversation: Conversation) -> None:
    """A question that the server never took disappears when the next one is asked; the person has seen why."""
    last = conversation.last
    if last is not None and last.state is TurnState.FAILED and not last.is_accepted:
        conversation.turns.pop()
