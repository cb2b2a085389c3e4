"""The chat in a real browser before an API that is slow, refuses, breaks off or is gone."""

import asyncio
import re
import time
from pathlib import Path

import pytest
from playwright.async_api import BrowserContext, Route, expect

from app.errors import InputTooLongError
from tests.e2e.chat_page import PATIENCE_MS, ChatPage
from tests.e2e.timing import within
from tests.ui.fake_api import FakeApi, Script

pytestmark = [pytest.mark.browser, pytest.mark.asyncio(loop_scope="session")]

SLOW_S = 60.0
# The connection to the API must be closed this long after the tab; the engine then needs a moment of its own.
FREED_WITHIN_S = 1.0
PHASES = {
    "queued": Script(queued_s=SLOW_S),
    "searching": Script(before_sources_s=SLOW_S),
    "prefilling": Script(before_text_s=SLOW_S),
    "streaming": Script(pieces=["word "] * 2000, pause_s=0.03),
}


async def until_open(api: FakeApi, count: int) -> None:
    deadline = time.monotonic() + 30
    while api.num_open != count:
        assert time.monotonic() < deadline, f"{api.num_open} connections are open, not {count}"
        await asyncio.sleep(0.005)


@pytest.mark.parametrize("phase", list(PHASES))
async def test_closing_the_tab_closes_the_connection_within_a_second(
    context: BrowserContext, script: FakeApi, scripted_ui: str, phase: str
) -> None:
    async def seconds_until_closed() -> float:
        chat = await ChatPage.open(context, scripted_ui)
        script.script = PHASES[phase]
        await chat.ask("Why?")
        await until_open(script, 1)
        await chat.stop.wait_for()
        if phase == "streaming":
            await chat.wait_for_answer_text("word word")
        closed_at = time.monotonic()
        await chat.page.close()
        await until_open(script, 0)
        return script.closed_early_at[-1] - closed_at

    await within(FREED_WITHIN_S, seconds_until_closed)


async def test_answer_of_a_conversation_that_is_left_goes_on_unseen_and_is_there_on_return(
    scripted_chat: ChatPage, script: FakeApi
) -> None:
    script.script = Script(pieces=["word "] * 120, pause_s=0.05)
    await scripted_chat.ask("Why?")
    await scripted_chat.wait_for_answer_text("word word")
    await scripted_chat.press("New conversation")
    await expect(scripted_chat.page.get_by_role("heading", name="Ask your documents")).to_be_visible()
    script.script = Script(pieces=["fresh"])
    await scripted_chat.ask("And now?")
    assert "fresh" in await scripted_chat.answered()
    await expect(scripted_chat.answers).to_have_count(1)
    assert script.num_open == 1
    await scripted_chat.page.locator("#conversation-list").get_by_text("Why?").click()
    await scripted_chat.wait_for_answer_text("word word")
    assert (await scripted_chat.answered()).count("word") == 120
    assert script.asked[0][0] != script.asked[1][0]
    assert script.closed_early_at == []


async def test_too_long_question_is_refused_in_words_and_stays_in_the_box(
    scripted_chat: ChatPage, script: FakeApi
) -> None:
    error = InputTooLongError(given=24_000, limit=20_000, field="input.input")
    script.script = Script(refuse=(413, {"error": {"code": error.code, "message": str(error)}}))
    question = "a long question " * 1500
    await scripted_chat.ask(question)
    assert "24,000 characters; the server takes 20,000" in await scripted_chat.answered()
    await expect(scripted_chat.page.get_by_role("alert")).to_be_in_viewport(ratio=1)
    await expect(scripted_chat.question).to_have_value(question.strip())


async def test_answer_that_breaks_off_keeps_its_part(scripted_chat: ChatPage, script: FakeApi) -> None:
    script.script = Script(pieces=["the beginning"], breaks_off=True)
    await scripted_chat.ask("Why?")
    answer = await scripted_chat.answered()
    assert "the beginning" in answer
    assert "broke off" in answer


async def test_hostile_answer_and_sources_run_and_load_nothing(scripted_chat: ChatPage, script: FakeApi) -> None:
    requests: list[str] = []
    scripted_chat.page.on("request", lambda request: requests.append(request.url))
    hostile = '<img src="http://hostile.example/x.png" onerror="window.hit=1"><script>window.hit=1</script>'
    source = {"n": 1, "document_id": hostile, "title": hostile, "page": 1, "heading": hostile, "text": hostile}
    script.script = Script(pieces=[hostile, "\n\n![x](http://hostile.example/y.png)"], sources=[source])
    await scripted_chat.ask(hostile)
    answer = await scripted_chat.answered()
    assert hostile in answer
    assert "![x](http://hostile.example/y.png)" in answer
    await scripted_chat.sources.first.click()
    await expect(scripted_chat.sources.first.locator(".passage")).to_have_text(hostile)
    await scripted_chat.page.reload()
    await expect(scripted_chat.questions.last).to_contain_text(hostile, timeout=PATIENCE_MS)
    assert await scripted_chat.page.evaluate("window.hit") is None
    assert [url for url in requests if "hostile" in url] == []


async def test_page_asks_nothing_of_any_other_host(context: BrowserContext, script: FakeApi, scripted_ui: str) -> None:
    requests: list[str] = []
    context.on("request", lambda request: requests.append(request.url))
    chat = await ChatPage.open(context, scripted_ui)
    await chat.ask("Why?")
    await chat.answered()
    assert requests
    assert [url for url in requests if not url.startswith((scripted_ui, "data:", "blob:"))] == []


async def test_inline_event_handlers_are_forbidden_by_policy(scripted_chat: ChatPage) -> None:
    """The wall behind the escaping: even markup that slipped through could not run its handlers."""
    await scripted_chat.page.evaluate(
        """() => { document.body.insertAdjacentHTML('beforeend', '<img src="data:," onerror="window.hit = 1">') }"""
    )
    await asyncio.sleep(0.5)
    assert await scripted_chat.page.evaluate("window.hit") is None


async def test_opened_source_stays_open_while_the_page_is_repainted(scripted_chat: ChatPage, script: FakeApi) -> None:
    script.script = Script(pieces=["word "] * 200, pause_s=0.02)
    await scripted_chat.ask("Why?")
    await scripted_chat.wait_for_answer_text("word word")
    await scripted_chat.sources.first.locator("summary").click()
    await scripted_chat.answered()
    passage = scripted_chat.page.locator(".passage").first
    await expect(passage).to_be_visible()
    script.script = Script()
    await scripted_chat.ask("And then?")
    await scripted_chat.answered()
    await expect(passage).to_be_visible()
    await expect(scripted_chat.page.locator(".passage:visible")).to_have_count(1)


async def test_server_that_is_still_starting_is_said_and_works_once_ready(
    context: BrowserContext, script: FakeApi, scripted_ui: str
) -> None:
    starting = {"status": "starting", "reason": "loading the model"}
    script.script = Script(health=(503, starting), refuse=(503, starting))
    chat = await ChatPage.open(context, scripted_ui, ready=False)
    await expect(chat.notice).to_contain_text("The server is starting")
    await expect(chat.notice).to_contain_text("loading the model")
    await chat.ask("Too early?")
    assert "loading the model" in await chat.answered()
    await expect(chat.question).to_have_value("Too early?")
    script.script = Script()
    await expect(chat.page.get_by_text("Ready", exact=True)).to_be_attached(timeout=PATIENCE_MS)
    await expect(chat.notice).to_have_text("")
    await chat.question.press("Enter")
    await chat.wait_for_answer_text("time to first token")


async def test_server_that_is_gone_is_said_and_found_again(scripted_chat: ChatPage, script: FakeApi) -> None:
    script.script = Script(pieces=["word "] * 2000, pause_s=0.03)
    await scripted_chat.ask("Why?")
    await scripted_chat.wait_for_answer_text("word word")
    script.stop()
    try:
        assert re.search("broke off|failed while it answered", await scripted_chat.answered())
        await expect(scripted_chat.notice).to_contain_text("The server cannot be reached", timeout=PATIENCE_MS)
        await expect(scripted_chat.notice).to_contain_text(f"Nothing answers at {script.url}")
        await scripted_chat.ask("Is anybody there?")
        await scripted_chat.wait_for_answer_text("cannot be reached")
        await expect(scripted_chat.question).to_have_value("Is anybody there?")
    finally:
        script.start()
    script.script = Script(pieces=["I am back"])
    await expect(scripted_chat.notice).to_have_text("", timeout=PATIENCE_MS)
    await scripted_chat.press("Retry")
    await scripted_chat.wait_for_answer_text("I am back")


async def test_two_people_do_not_wait_for_each_other(
    context: BrowserContext, script: FakeApi, scripted_ui: str
) -> None:
    first = await ChatPage.open(context, scripted_ui)
    second = await ChatPage.open(context, scripted_ui)
    script.script = PHASES["prefilling"]
    await first.ask("slow")
    await until_open(script, 1)
    script.script = Script(pieces=["quick answer"])
    await second.ask("quick")
    assert "quick answer" in await second.answered()
    await expect(first.stop).to_be_visible()


async def test_what_could_not_be_done_is_said_and_nothing_is_shown_as_if_it_had_been(
    scripted_chat: ChatPage, script: FakeApi, tmp_path: Path
) -> None:
    chat = scripted_chat
    file = tmp_path / "kept.txt"
    file.write_text("text")
    is_cut = True

    async def cut_once(route: Route) -> None:
        nonlocal is_cut
        if is_cut:
            is_cut = False
            await route.abort()
        else:
            await route.fallback()

    await chat.page.route("**/page/jobs/*", cut_once)
    results = await chat.upload(file)
    await expect(results).to_contain_text("Added: 1 passage", timeout=PATIENCE_MS)
    assert not is_cut

    await chat.press("New collection")
    await chat.dialog.get_by_label("Name").fill("shelf")
    await chat.press("Make it")
    target = chat.page.locator("#drop-target")
    await expect(target).to_have_text("shelf")
    no_connection = chat.page.locator("#toasts").get_by_text("The page has no connection to its server.")
    await chat.page.route("**/page/collections?*", lambda route: route.abort())
    await chat.press("Delete collection")
    await chat.dialog.get_by_role("button", name="Delete", exact=True).click()
    await expect(no_connection).to_be_visible()
    await expect(target).to_have_text("shelf")

    await chat.view("Chat")
    await expect(no_connection).to_have_count(0)
    await chat.page.route("**/page/session", lambda route: route.abort())
    await chat.page.locator("#key-button").evaluate("button => { button.hidden = false; button.click(); }")
    await expect(no_connection).to_be_visible()
