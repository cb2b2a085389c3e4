"""Tabs that ask in, watch and leave conversations: each is shown what it shows, and nobody's answer ends by that."""

import asyncio
from collections.abc import AsyncGenerator

import pytest

from tests.ui.fake_api import FakeApi, Script
from tests.ui.test_chat import begun, frames_of, page_of, until
from ui.chat import Chat, Frame
from ui.tabs import Tabs


@pytest.fixture
def tabs() -> Tabs:
    return Tabs()


async def test_another_tab_shows_the_answer_as_it_grows_and_may_leave_without_ending_it(
    chat: Chat, api: FakeApi, tabs: Tabs
) -> None:
    api.script = Script(pieces=["word "] * 60, pause_s=0.02)
    asking = tabs.showing("first", "s", chat.ask("q", "s"))
    await begun(asking)
    watching, leaving = (tabs.showing(tab, "s", chat.watch("s"), ends_when_left=True) for tab in ("other", "third"))
    for frames in (watching, leaving):
        await anext(frames)
    tabs.leave("third", "s")
    tabs.leave("one that only showed it", "s")
    page = await chat.turn_to("new")
    assert (page.live, page.has_turns) == ("", False)
    assert await frames_of(leaving) == []
    finished, watched = await asyncio.gather(frames_of(asking), frames_of(watching))
    assert page_of(watched).live == page_of(finished).live
    assert "word " * 59 in (page_of(watched).live or "")
    assert "(stopped)" not in (page_of(watched).live or "")
    assert api.closed_early_at == []


async def test_answer_that_its_tab_has_left_goes_on_and_paints_nothing(chat: Chat, api: FakeApi, tabs: Tabs) -> None:
    api.script = Script(pieces=["word "] * 60, pause_s=0.02)
    asking = tabs.showing("tab", "s", chat.ask("q", "s"))
    await begun(asking)
    tabs.leave("tab", "s")
    assert (await chat.turn_to("new")).live == ""
    rest = asyncio.create_task(frames_of(asking))
    page = await chat.turn_to("s")
    assert page.is_busy is True
    assert "word" in (page.live or "")
    watched = page_of(await frames_of(tabs.showing("tab", "s", chat.watch("s"), ends_when_left=True)))
    assert "word " * 59 in (watched.live or "")
    assert set(await rest) == {Frame()}
    assert api.closed_early_at == []


async def test_answer_of_a_conversation_that_was_left_before_it_began_paints_nothing(tabs: Tabs) -> None:
    waits = asyncio.Event()

    async def slow_to_begin() -> AsyncGenerator[Frame]:
        await waits.wait()
        yield Frame(live="the beginning", is_busy=True)

    shown = asyncio.create_task(frames_of(tabs.showing("tab", "s", slow_to_begin())))
    await asyncio.sleep(0)
    tabs.leave("tab", "s")
    waits.set()
    assert await shown == [Frame()]


async def test_closing_the_tab_ends_an_answer_that_it_had_left(chat: Chat, api: FakeApi, tabs: Tabs) -> None:
    api.script = Script(pieces=["word "] * 1000, pause_s=0.02)
    asking = tabs.showing("tab", "s", chat.ask("q", "s"))
    await begun(asking)
    tabs.leave("tab", "s")
    assert await anext(asking) == Frame()
    await asking.aclose()
    await until(lambda: api.num_open == 0, "the connection is still open")
