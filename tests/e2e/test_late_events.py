"""What belongs to an earlier state of the page and comes in a later one: a dialog's events, answers of the server."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import pytest
from playwright.async_api import Page, Route, expect

from tests.e2e.chat_page import ChatPage
from tests.ui.fake_api import FakeApi

pytestmark = [pytest.mark.browser, pytest.mark.asyncio(loop_scope="session")]

# Left and asked again before the browser has sent the first dialog's `close` event, as a quick hand does it.
ASK_TWICE = """() => {
  window.given = {};
  const ask = (name) => ragstone.ask({ title: name, field: 'Text' }).then((text) => { window.given[name] = text; });
  ask('first');
  document.getElementById('ask-dialog').close();
  ask('second');
}"""


@asynccontextmanager
async def held_back(page: Page, path: str, method: str = "GET") -> AsyncIterator[asyncio.Event]:
    """The first call to a route that begins with `path` is answered only when the event is set.

    It reaches the server at once: what is answered is of then. The block is entered before the call is made.
    """
    release = asyncio.Event()
    is_first = True

    async def hold(route: Route) -> None:
        nonlocal is_first
        if not is_first or route.request.method != method:
            await route.fallback()
            return
        is_first = False
        response = await route.fetch()
        await release.wait()
        await route.fulfill(response=response)

    await page.route(f"**/page/{path}*", hold)
    try:
        yield release
    finally:
        release.set()
        await page.unroute_all(behavior="wait")


async def test_question_that_is_asked_right_after_another_was_left_gets_its_own_answer(scripted_chat: ChatPage) -> None:
    chat = scripted_chat
    await chat.page.evaluate(ASK_TWICE)
    await expect(chat.dialog.get_by_role("heading", name="second")).to_be_visible()
    await chat.page.keyboard.type("text")
    await chat.page.keyboard.press("Enter")
    await expect(chat.dialog).to_have_count(0)
    assert await chat.page.evaluate("window.given") == {"first": None, "second": "text"}


async def test_rename_that_is_left_while_it_is_sent_is_listed_as_the_server_took_it(
    scripted_chat: ChatPage, script: FakeApi
) -> None:
    chat, keys = scripted_chat, scripted_chat.page.keyboard
    await chat.ask("Why?")
    await chat.answered()
    async with held_back(chat.page, "conversation?", "PATCH") as rename:
        await chat.choose("Why?", "Rename")
        await keys.type("Because")
        async with chat.page.expect_request(lambda request: request.method == "PATCH"):
            await keys.press("Enter")
        await keys.press("Enter")  # twice is once
        await keys.press("Escape")
        await expect(chat.dialog).to_have_count(0)
        await chat.choose("Why?", "Rename")
        rename.set()
        await expect(chat.conversations.get_by_role("listitem")).to_contain_text("Because")
    # The second question is still there for its own answer.
    await expect(chat.dialog.get_by_label("Title")).to_have_value("Why?")
    await keys.press("Escape")
    await chat.has_focus("Menu of Because")


async def test_list_that_was_asked_for_earlier_is_not_drawn_over_a_later_one(
    scripted_chat: ChatPage, script: FakeApi
) -> None:
    chat = scripted_chat
    for question in ("Why?", "How high?"):
        await chat.press("New conversation")
        await chat.ask(question)
        await chat.answered()
    entries = chat.conversations.get_by_role("listitem").locator(".title")
    await expect(entries).to_have_count(2)
    search = chat.page.get_by_label("Search conversations")
    async with held_back(chat.page, "conversations?query=high") as first:
        async with chat.page.expect_request("**/page/conversations?query=high"):
            await search.fill("high")
        await search.fill("why")
        await expect(entries).to_have_text(["Why?"])
        async with chat.page.expect_request_finished(lambda request: "query=high" in request.url):
            first.set()
        await expect(entries).to_have_text(["Why?"])
    await search.fill("")
    await expect(entries).to_have_count(2)


async def test_page_of_a_document_that_comes_after_the_document_was_closed_does_not_open_it(
    scripted_chat: ChatPage, script: FakeApi
) -> None:
    chat = scripted_chat
    script.documents["report.pdf"] = {
        "document_id": "report.pdf",
        "title": "Report",
        "source": "report.pdf",
        "num_pages": 2,
    }
    script.documents["doc-ttft"] = {"document_id": "doc-ttft", "title": "Latency", "content": "TTFT is a time."}
    script.script.sources[1]["document_id"] = "report.pdf"
    await chat.ask("Why?")
    await chat.answered()
    for number, summary in enumerate(await chat.sources.locator("summary").all()):
        await summary.click()
        await chat.sources.nth(number).get_by_role("button", name="Open document").wait_for()
    latency, report = await chat.sources.get_by_role("button", name="Open document").all()
    async with held_back(chat.page, "documents/report.pdf/view") as page:
        async with chat.page.expect_request("**/page/documents/report.pdf/view*"):
            await report.click()
        await latency.click()
        await expect(chat.viewer).to_contain_text("TTFT is a time.")
        async with chat.page.expect_request_finished(lambda request: "report.pdf" in request.url):
            page.set()
        await expect(chat.viewer).to_contain_text("TTFT is a time.")
    await report.click()
    await expect(chat.viewer).to_contain_text("Page 2 of 2")
    async with held_back(chat.page, "documents/report.pdf/view") as page:
        async with chat.page.expect_request("**/page/documents/report.pdf/view*"):
            await chat.press("Previous page")
        await chat.page.keyboard.press("Escape")
        await expect(chat.viewer).to_be_hidden()
        async with chat.page.expect_request_finished(lambda request: "report.pdf" in request.url):
            page.set()
        await expect(chat.viewer).to_be_hidden()
