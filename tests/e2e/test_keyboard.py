"""The chat without a mouse: everything can be reached, what has the focus shows it, and no action loses it."""

import asyncio
from pathlib import Path

import pytest
from playwright.async_api import FileChooser, expect

from tests.e2e.chat_page import ChatPage
from tests.ui.fake_api import FakeApi, Script

pytestmark = [pytest.mark.browser, pytest.mark.asyncio(loop_scope="session")]

QUESTION = "Your question"
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
    script.documents["doc-ttft"] = {"document_id": "doc-ttft", "title": "Latency", "content": "TTFT is a time."}
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
    await chat.tab_to("Delete by keyboard.txt")
    await keys.press("Enter")
    await chat.has_focus("Cancel")
    await keys.press("Tab")
    await chat.has_focus("Delete")
    await keys.press("Enter")
    await expect(chat.page.get_by_text("No documents here yet")).to_be_visible()
