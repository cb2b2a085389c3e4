"""What belongs to an earlier state of the page and comes in a later one: a dialog's events, answers of the server."""

import asyncio
import json
import re
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager

import pytest
from playwright.async_api import Page, Request, Route, expect

from tests.e2e.chat_page import ChatPage
from tests.ui.fake_api import FakeApi, Script

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
async def held_back(page: Page, is_meant: Callable[[Request], bool]) -> AsyncIterator[asyncio.Event]:
    """The first request that is meant gets its answer only when the event is set.

    It reaches the server at once: what is answered is of then. The block is entered before the request is made.
    """
    release = asyncio.Event()
    is_first = True

    async def hold(route: Route) -> None:
        nonlocal is_first
        if not is_first or not is_meant(route.request):
            await route.fallback()
            return
        is_first = False
        response = await route.fetch()
        await release.wait()
        await route.fulfill(response=response)

    await page.route("**/*", hold)
    try:
        yield release
    finally:
        release.set()
        await page.unroute_all(behavior="wait")


def to(path: str, method: str = "GET") -> Callable[[Request], bool]:
    """Whether a request is one to the page's route `path`."""
    return lambda request: request.method == method and f"/page/{path}" in request.url


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
    async with held_back(chat.page, to("conversation?", "PATCH")) as rename:
        await chat.choose("Why?", "Rename")
        await keys.type("Because")
        async with chat.page.expect_request(to("conversation?", "PATCH")):
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
    async with held_back(chat.page, to("conversations?query=high")) as first:
        async with chat.page.expect_request(to("conversations?query=high")):
            await search.fill("high")
        await search.fill("why")
        await expect(entries).to_have_text(["Why?"])
        async with chat.page.expect_request_finished(to("conversations?query=high")):
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
    async with held_back(chat.page, to("documents/report.pdf/view")) as page:
        async with chat.page.expect_request(to("documents/report.pdf/view")):
            await report.click()
        await latency.click()
        await expect(chat.viewer).to_contain_text("TTFT is a time.")
        async with chat.page.expect_request_finished(to("documents/report.pdf/view")):
            page.set()
        await expect(chat.viewer).to_contain_text("TTFT is a time.")
    await report.click()
    await expect(chat.viewer).to_contain_text("Page 2 of 2")
    async with held_back(chat.page, to("documents/report.pdf/view")) as page:
        async with chat.page.expect_request(to("documents/report.pdf/view")):
            await chat.press("Previous page")
        await chat.page.keyboard.press("Escape")
        await expect(chat.viewer).to_be_hidden()
        async with chat.page.expect_request_finished(to("documents/report.pdf/view")):
            page.set()
        await expect(chat.viewer).to_be_hidden()


async def test_conversation_that_was_opened_last_is_the_one_that_is_shown(
    scripted_chat: ChatPage, script: FakeApi
) -> None:
    chat = scripted_chat
    for question in ("Why?", "How high?"):
        await chat.press("New conversation")
        await chat.ask(question)
        await chat.answered()
    await chat.press("New conversation")
    await expect(chat.questions).to_have_count(0)

    def opens(request: Request) -> bool:
        return '"leaving"' in (request.post_data or "")

    async with held_back(chat.page, opens) as first:
        async with chat.page.expect_request(opens):
            await chat.conversations.get_by_role("button", name="Why?", exact=True).click()
        await chat.conversations.get_by_role("button", name="How high?", exact=True).click()
        await expect(chat.questions.locator(".bubble")).to_have_text(["How high?"])
        async with chat.page.expect_request_finished(opens):
            first.set()
        await expect(chat.questions.locator(".bubble")).to_have_text(["How high?"])
    await chat.ask("And how wide?")
    await chat.answered()
    await expect(chat.questions.locator(".bubble")).to_have_text(["How high?", "And how wide?"])


async def test_settings_that_the_server_has_yet_to_tell_the_choices_of_are_kept(
    scripted_chat: ChatPage, script: FakeApi
) -> None:
    chat = scripted_chat
    settings = json.dumps({"model": "large", "temperature": 0.5})
    await chat.page.evaluate("(settings) => localStorage.setItem('ragstone.settings', settings)", settings)
    await chat.page.reload()
    model = chat.dialog.get_by_role("combobox", name=re.compile("^Model"))
    temperature = chat.dialog.get_by_role("spinbutton", name=re.compile("^Temperature"))
    async with held_back(chat.page, to("options")) as options:
        async with chat.page.expect_request(to("options")):
            await chat.press("Settings")
        await expect(model).to_have_value("large")
        await temperature.fill("0.7")
        # Left and opened again before the browser has sent the dialog's `close` event.
        await chat.page.evaluate(
            """() => {
              document.getElementById('settings-dialog').close();
              document.querySelector('[data-act=settings]').click();
            }"""
        )
        await expect(temperature).to_have_value("0.7")
        await expect(model.get_by_role("option", name="tiny", exact=True)).to_have_count(1)
        await expect(model).to_have_value("large")
        await model.select_option("tiny")
        async with chat.page.expect_request_finished(to("options")):
            options.set()
        await expect(model).to_have_value("tiny")
    await chat.press("Done")
    assert json.loads(await chat.page.evaluate("ragstone.options()")) == {"model": "tiny", "temperature": 0.7}


async def test_thumb_that_is_pressed_twice_is_given_and_taken_back(scripted_chat: ChatPage, script: FakeApi) -> None:
    chat = scripted_chat
    await chat.ask("Why?")
    await chat.answered()
    async with held_back(chat.page, to("feedback", "PUT")) as rating:
        async with chat.page.expect_request(to("feedback", "PUT")):
            await chat.press("Good answer")
        await chat.press("Good answer")
        async with chat.page.expect_request(lambda request: '"rating":""' in (request.post_data or "")):
            rating.set()
        await expect(chat.page.get_by_role("button", name="Good answer")).to_have_attribute("aria-pressed", "false")
        await expect(chat.page.get_by_role("button", name="Add a comment")).to_be_hidden()
    assert [item["rating"] for item in script.feedback] == ["up", None]


async def test_earlier_turns_that_come_after_their_conversation_was_left_do_not_stop_the_next_from_being_followed(
    scripted_chat: ChatPage, script: FakeApi
) -> None:
    chat = scripted_chat
    script.script = Script(pieces=["A line.\n\n" * 12])
    session_id = await chat.page.evaluate("ragstone.conversation()[0]")
    await chat.ask("first")
    await chat.answered()
    (turn,) = script.turns[session_id]
    script.turns[session_id] = [{**turn, "index": index, "question": f"question {index}"} for index in range(30)]
    await chat.press("New conversation")
    await expect(chat.questions).to_have_count(0)
    await chat.conversations.get_by_role("button", name="first", exact=True).click()
    await expect(chat.questions).to_have_count(11)
    async with held_back(chat.page, to("conversation/earlier")) as earlier:
        async with chat.page.expect_request(to("conversation/earlier")):
            await chat.page.get_by_role("button", name="Earlier turns").click()
        await chat.press("New conversation")
        await expect(chat.questions).to_have_count(0)
        script.script = Script(pieces=["A line.\n\n"] * 60, pause_s=0.03)
        await chat.ask("second")
        async with chat.page.expect_request_finished(to("conversation/earlier")):
            earlier.set()
        await chat.answered()
    await expect(chat.page.get_by_role("button", name="To the end of the answer")).to_be_hidden()


async def test_end_that_moves_away_as_the_box_grows_is_followed_though_the_reader_has_just_scrolled(
    scripted_chat: ChatPage, script: FakeApi
) -> None:
    chat = scripted_chat
    script.script = Script(pieces=["A line.\n\n" * 60])
    await chat.ask("Why?")
    await chat.answered()
    newest = chat.page.get_by_role("button", name="To the end of the answer")
    await expect(newest).to_be_hidden()
    # Both before the browser has told of either.
    await chat.page.evaluate(
        """() => {
          document.getElementById('transcript').scrollTop -= 5;
          document.querySelector('#question textarea').style.minHeight = '300px';
        }"""
    )
    await expect(chat.question).to_have_css("min-height", "300px")
    await asyncio.sleep(0.3)
    await expect(newest).to_be_hidden()


async def test_what_opens_late_takes_no_focus_from_what_is_typed_meanwhile(
    scripted_chat: ChatPage, script: FakeApi
) -> None:
    chat, keys = scripted_chat, scripted_chat.page.keyboard
    document = {"title": "Latency", "collection": "default", "content": "TTFT is a time."}
    script.documents["doc-ttft"] = {"document_id": "doc-ttft", **document}
    await chat.ask("Why?")
    await chat.answered()
    await chat.sources.first.locator("summary").click()
    async with held_back(chat.page, to("documents/doc-ttft/view")) as view:
        async with chat.page.expect_request(to("documents/doc-ttft/view")):
            await chat.press("Open document")
        await chat.question.click()
        await keys.type("And ")
        view.set()
        await expect(chat.viewer).to_contain_text("TTFT is a time.")
        await keys.type("then?")
    await expect(chat.question).to_have_value("And then?")
    async with held_back(chat.page, to("collections")) as collections:
        async with chat.page.expect_request(to("collections")):
            await chat.press("All documents")
        await chat.question.click()
        async with chat.page.expect_request_finished(to("collections")):
            collections.set()
        await keys.type(" Why?")
    await expect(chat.page.get_by_role("group", name="Search in")).to_be_hidden()
    await expect(chat.question).to_have_value("And then? Why?")


async def test_example_that_is_pressed_twice_is_asked_once(scripted_chat: ChatPage, script: FakeApi) -> None:
    chat = scripted_chat
    script.documents["a"] = {"document_id": "a", "title": "Lamps", "collection": "default", "content": ""}
    await chat.page.reload()
    await chat.page.get_by_role("button", name="Lamps").dblclick()
    await chat.answered()
    await expect(chat.questions).to_have_count(1)
    await chat.retry.dblclick()
    await asyncio.sleep(0.3)
    await chat.answered()
    await expect(chat.questions).to_have_count(1)
    assert len(script.asked) == 2


async def test_earlier_question_is_not_asked_anew_while_an_answer_is_being_made(
    scripted_chat: ChatPage, script: FakeApi
) -> None:
    chat, keys = scripted_chat, scripted_chat.page.keyboard
    await chat.ask("first")
    await chat.answered()
    script.script = Script(pieces=["word "] * 2000, pause_s=0.03)
    await chat.ask("second")
    await chat.wait_for_answer_text("word word")
    await chat.page.get_by_role("button", name="Edit question").first.click()
    await keys.type(" again")
    await keys.press("Enter")
    await expect(chat.page.get_by_text("Stop the answer that is being made first.")).to_be_visible()
    await expect(chat.page.get_by_label("Edited question")).to_have_value("first again")
    script.script = Script()
    await chat.stop.click()
    await chat.answered()
    await chat.page.get_by_label("Edited question").press("Enter")
    await chat.dialog.get_by_role("button", name="Ask again").click()
    await expect(chat.questions.locator(".bubble")).to_have_text(["first again"])
    await chat.answered()


@pytest.mark.parametrize("loser", ["what is disabled", "a dialog that is closed"])
async def test_focus_that_the_browser_has_yet_to_take_away_is_given_on(scripted_chat: ChatPage, loser: str) -> None:
    """A browser does so when it next draws."""
    kept = await scripted_chat.page.evaluate(
        """async (loser) => {
          const button = Object.assign(document.createElement('button'), { textContent: 'Gone' });
          const dialog = Object.assign(document.createElement('dialog'), { innerHTML: '<input>' });
          document.body.append(button, dialog);
          button.focus();
          if (loser.includes('dialog')) dialog.showModal();
          const had = document.activeElement;
          if (loser.includes('dialog')) { button.remove(); dialog.close(); } else button.disabled = true;
          const hasItYet = had === document.activeElement;
          ragstone.keepFocus(() => document.querySelector('#question textarea'));
          await new Promise((resolve) => setTimeout(resolve));
          return [hasItYet, document.activeElement.getAttribute('data-testid')];
        }""",
        loser,
    )
    assert kept == [True, "textbox"]
