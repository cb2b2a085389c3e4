"""The chat without a mouse: everything can be reached, what has the focus shows it, and no action loses it."""

import asyncio
from pathlib import Path

import pytest
from playwright.async_api import FileChooser, expect

from tests.e2e.chat_page import ChatPage
from tests.e2e.conftest import PHONE
from tests.ui.fake_api import FakeApi, Script

pytestmark = [pytest.mark.browser, pytest.mark.asyncio(loop_scope="session")]

QUESTION = "Your question"
DOCUMENT = {"title": "Latency", "collection": "default", "content": "TTFT is a time."}
CARD = "Source 1: Latency: TTFT and TPOT"


async def test_question_is_asked_stopped_and_edited_and_its_source_opened_by_keyboard(
    scripted_chat: ChatPage, script: FakeApi
) -> None:
    chat, keys = scripted_chat, scripted_chat.page.keyboard
    await chat.has_focus(QUESTION)
    script.script = Script(pieces=["word "] * 2000, pause_s=0.03)
    await keys.type("Why?")
    await keys.press("Enter")
    await chat.wait_for_answer_text("word word")
    await chat.tab_to("Stop")
    await keys.press("Enter")
    assert "(stopped)" in await chat.answered()
    await chat.has_focus(QUESTION)

    script.script = Script()
    await chat.tab_to("Edit question", back=True)
    await keys.press("Enter")
    await chat.has_focus("Edited question")
    await keys.press("Escape")
    await chat.has_focus("Edit question")
    await keys.press("Enter")
    await keys.press("End")
    await keys.type(" Really?")
    await keys.press("Enter")
    await expect(chat.questions.last.locator(".bubble")).to_have_text("Why? Really?")
    await chat.answered()
    await chat.has_focus(QUESTION)

    await chat.tab_to(CARD, back=True)
    await keys.press("Enter")
    summary = chat.sources.first.locator("summary")
    await expect(summary).to_be_focused()
    await expect(chat.sources.first.locator(".passage")).to_be_visible()
    await chat.tab_to("Open document")
    script.documents["doc-ttft"] = {"document_id": "doc-ttft", **DOCUMENT}
    await keys.press("Enter")
    await chat.has_focus("Close document")
    await expect(chat.viewer).to_be_visible()
    await keys.press("Escape")
    await expect(chat.viewer).to_be_hidden()
    await chat.has_focus("Open document")
    await keys.press("Escape")
    await expect(chat.sources.first.locator(".passage")).to_be_hidden()
    await chat.has_focus(CARD)


async def test_conversation_is_renamed_deleted_and_brought_back_by_keyboard(
    scripted_chat: ChatPage, script: FakeApi
) -> None:
    chat, keys = scripted_chat, scripted_chat.page.keyboard
    await chat.ask("Why?")
    await chat.answered()
    entries = chat.conversations.get_by_role("listitem")
    await expect(entries).to_have_count(1)
    await chat.tab_to("Menu of Why?")
    await keys.press("Enter")
    await chat.has_focus("Rename")
    await keys.press("Escape")
    await chat.has_focus("Menu of Why?")
    await keys.press("Enter")
    await keys.press("Enter")
    await chat.has_focus("Title")
    await keys.press("Escape")
    await chat.has_focus("Menu of Why?")
    await keys.press("Enter")
    await keys.press("Enter")
    await keys.type("Because")
    await keys.press("Enter")
    await chat.has_focus("Menu of Because")
    await keys.press("Enter")
    await keys.press("ArrowUp")
    await chat.has_focus("Delete")
    await keys.press("Enter")
    await expect(entries).to_have_count(0)
    await expect(chat.page.get_by_role("button", name="Undo")).to_be_visible()
    await chat.tab_to("Undo")
    await keys.press("Enter")
    await expect(entries).to_have_count(1)
    await expect(chat.questions).to_have_count(1)


async def test_settings_and_documents_are_reached_by_keyboard(
    scripted_chat: ChatPage, script: FakeApi, tmp_path: Path
) -> None:
    chat, keys = scripted_chat, scripted_chat.page.keyboard
    chooser: asyncio.Future[FileChooser] = asyncio.get_running_loop().create_future()
    # From the beginning: a key would be faster than the browser's promise to hand choosers over.
    chat.page.once("filechooser", lambda shown: chooser.set_result(shown))
    await chat.tab_to("Settings")
    await keys.press("Enter")
    await chat.tab_to("Temperature")
    await keys.type("0.5")
    await keys.press("Enter")
    await expect(chat.dialog).to_have_count(0)
    await chat.has_focus("Settings")
    await keys.press("Enter")
    await expect(chat.dialog.get_by_label("Temperature")).to_have_value("0.5")
    await keys.press("Escape")
    await chat.has_focus("Settings")
    await chat.tab_to("All documents")
    await keys.press("Enter")
    await chat.has_focus("My documents")
    await keys.press("Space")
    await keys.press("Escape")
    await chat.has_focus("My documents")

    await chat.tab_to("Documents", back=True)
    await keys.press("Enter")
    file = tmp_path / "by keyboard.txt"
    file.write_text("text")
    await chat.tab_to("choose files")
    await keys.press("Enter")
    await (await asyncio.wait_for(chooser, 60)).set_files(str(file))
    results = chat.page.get_by_role("list", name="Upload results").get_by_role("listitem")
    await expect(results.first).to_contain_text("Added: 1 passage")
    await chat.tab_to("by keyboard.txt")
    await keys.press("Enter")
    await chat.has_focus("Close document")
    await keys.press("Escape")
    await chat.has_focus("by keyboard.txt")
    await chat.tab_to("Chat", back=True)
    await keys.press("Enter")
    await chat.tab_to("What does “by keyboard.txt” say?")
    await keys.press("Enter")
    await chat.answered()
    await chat.has_focus(QUESTION)
    await chat.tab_to("Documents", back=True)
    await keys.press("Enter")
    await chat.tab_to("Read by keyboard.txt again")
    await keys.press("Enter")
    await expect(chat.page.get_by_text("Read “by keyboard.txt” again")).to_be_visible()
    await chat.has_focus("Read by keyboard.txt again")
    await chat.tab_to("Delete by keyboard.txt")
    await keys.press("Enter")
    await chat.has_focus("Cancel")
    await keys.press("Tab")
    await chat.has_focus("Delete")
    await keys.press("Enter")
    await expect(chat.page.get_by_text("No documents here yet")).to_be_visible()
    await chat.has_focus("List of documents")


async def test_focus_comes_back_to_what_was_drawn_anew_meanwhile(scripted_chat: ChatPage, script: FakeApi) -> None:
    chat, keys = scripted_chat, scripted_chat.page.keyboard
    script.script = Script(pieces=["word "] * 100, pause_s=0.03)
    script.documents["doc-ttft"] = {"document_id": "doc-ttft", **DOCUMENT}
    await chat.ask("Why?")
    await chat.wait_for_answer_text("word word")
    await chat.sources.first.locator("summary").focus()
    await keys.press("Enter")
    await chat.tab_to("Open document")
    await keys.press("Enter")
    await chat.has_focus("Close document")
    await chat.answered()
    await keys.press("Escape")
    await expect(chat.viewer).to_be_hidden()
    await chat.has_focus("Open document")

    await chat.tab_to("Menu of Why?", back=True)
    await keys.press("Enter")
    await chat.has_focus("Rename")
    script.titles["another"] = "Asked in another tab"
    await chat.page.evaluate("ragstone.refreshConversations()")
    await expect(chat.conversations.get_by_role("listitem")).to_have_count(2)
    await keys.press("Escape")
    await chat.has_focus("Menu of Why?")
    await keys.press("Enter")
    await keys.press("Enter")
    await chat.has_focus("Title")
    script.titles["third"] = "Asked in a third tab"
    await chat.page.evaluate("ragstone.refreshConversations()")
    await expect(chat.conversations.get_by_role("listitem", include_hidden=True)).to_have_count(3)
    await keys.press("Escape")
    await chat.has_focus("Menu of Why?")


async def test_escape_closes_one_thing_at_a_time(scripted_chat: ChatPage, script: FakeApi) -> None:
    chat, keys = scripted_chat, scripted_chat.page.keyboard
    script.documents["doc-ttft"] = {"document_id": "doc-ttft", **DOCUMENT}
    await chat.ask("Why?")
    await chat.answered()
    await chat.sources.first.locator("summary").click()
    await chat.press("Open document")
    await expect(chat.viewer).to_be_visible()
    await chat.press("Menu of Why?")
    await expect(chat.page.get_by_role("menuitem", name="Rename")).to_be_focused()
    await keys.press("Escape")
    await expect(chat.page.get_by_role("button", name="Menu of Why?")).to_be_focused()
    await expect(chat.viewer).to_be_visible()
    picker = chat.page.get_by_role("group", name="Search in")
    await chat.press("All documents")
    await expect(picker).to_be_visible()
    await expect(picker.get_by_label("My documents")).to_be_focused()
    await keys.press("Escape")
    await expect(picker).to_be_hidden()
    await expect(chat.viewer).to_be_visible()
    await keys.press("Escape")
    await expect(chat.viewer).to_be_hidden()
    await expect(chat.sources.first.locator(".passage")).to_be_visible()

    await chat.page.set_viewport_size(PHONE)  # type: ignore[arg-type]
    await chat.press("Conversations")
    await chat.choose("Why?", "Rename")
    await keys.press("Escape")
    await expect(chat.dialog).to_have_count(0)
    await expect(chat.conversations).to_be_visible()
    await chat.conversations.get_by_role("button", name="Why?", exact=True).click()
    await expect(chat.conversations).to_be_hidden()
    await expect(chat.page.get_by_role("button", name="Conversations")).to_have_attribute("aria-expanded", "false")


async def test_focus_is_kept_where_what_had_it_goes(scripted_chat: ChatPage, script: FakeApi, tmp_path: Path) -> None:
    chat, keys = scripted_chat, scripted_chat.page.keyboard
    script.script = Script(pieces=["A line.\n\n" * 12])
    session_id = await chat.page.evaluate("ragstone.conversation()[0]")
    await chat.ask("Why?")
    await chat.answered()
    # As where the page comes over plain HTTP.
    await chat.page.evaluate("Object.defineProperty(navigator, 'clipboard', { value: undefined })")
    await chat.tab_to("Copy answer", back=True)
    await keys.press("Enter")
    await expect(chat.page.get_by_text("Copied")).to_be_visible()
    await chat.has_focus("Copy answer")

    (turn,) = script.turns[session_id]
    script.turns[session_id] = [{**turn, "index": index} for index in range(30)]
    await chat.press("New conversation")
    await expect(chat.questions).to_have_count(0)
    await chat.conversations.get_by_role("button", name="Why?", exact=True).click()
    older = chat.page.get_by_role("button", name="Earlier turns")
    await older.evaluate("older => older.focus({ preventScroll: true })")
    await keys.press("Enter")
    await chat.has_focus("Earlier turns (9)")

    script.job_lasts = True
    file = tmp_path / "long.txt"
    file.write_text("text")
    results = await chat.upload(file)
    await expect(results.first).to_contain_text("being read")
    await chat.tab_to("Cancel long.txt")
    await keys.press("Enter")
    await expect(results.first).to_contain_text("it was cancelled")
    await chat.has_focus("Dismiss results")
    await keys.press("Enter")
    await chat.has_focus("Find documents by name")
    script.job_lasts = False
    await chat.tab_to("New collection", back=True)
    await keys.press("Enter")
    await keys.type("shelf")
    await keys.press("Enter")
    await expect(chat.page.locator("#drop-target")).to_have_text("shelf")
    await chat.has_focus("New collection")
    await chat.tab_to("Delete collection")
    await keys.press("Enter")
    await chat.has_focus("Cancel")
    await keys.press("Tab")
    await keys.press("Enter")
    await expect(chat.page.locator("#drop-target")).to_have_text("My documents")
    await expect(chat.page.get_by_role("group", name="Collections").get_by_role("button").first).to_be_focused()
    await chat.view("Chat")
    async with chat.page.expect_file_chooser() as chooser:
        await chat.press("Add documents")
    await (await chooser.value).set_files(str(file))
    await chat.page.get_by_role("button", name="Back to the chat").focus()
    await keys.press("Enter")
    await chat.has_focus(QUESTION)
