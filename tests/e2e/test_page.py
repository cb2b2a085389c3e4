"""All that the page offers besides asking, in a real browser before the scripted API."""

import asyncio
import re
from pathlib import Path

import pytest
from playwright.async_api import Browser, expect

from tests.e2e.chat_page import PATIENCE_MS, ChatPage, overflows, violations
from tests.e2e.conftest import PHONE
from tests.ui.fake_api import FakeApi, Script

pytestmark = [pytest.mark.browser, pytest.mark.asyncio(loop_scope="session")]

QUOTE = "TTFT is the time from the arrival of a request to its first output token."
GROUNDING = {
    "mode": "mark",
    "state": "answered",
    "sentences": [
        {
            "text": "It is a time.",
            "origin": "model",
            "supported": True,
            "n": 1,
            "quote": QUOTE,
            "span": [0, len(QUOTE)],
            "words": [[12, 16]],
            "reason": None,
        },
        {"text": "It is 42 ms.", "origin": "model", "supported": False, "n": 2, "quote": None, "reason": "numbers"},
    ],
    "left_out": [],
}
STATISTICS = {
    "model": "tiny",
    "time_to_first_token_s": 0.2,
    "tokens_per_s": 84.0,
    "num_prompt_tokens": 812,
    "num_turns_left_out": 2,
}
SCHEME = "getComputedStyle(document.body).colorScheme"
# What is shown over the mark of a sentence that no source supports.
EXPLAINED = "mark => getComputedStyle(mark, '::after').content"


async def test_conversations_are_listed_searched_renamed_exported_and_deleted_with_undo(
    scripted_chat: ChatPage, script: FakeApi
) -> None:
    chat = scripted_chat
    hostile = '<img src=x onerror="window.hit=1"> $x$ 日本語 😀 שלום'
    await chat.ask(hostile)
    await chat.answered()
    await chat.press("New conversation")
    script.script = Script(pieces=["A lighthouse has stairs."])
    await chat.ask("How high?")
    await chat.answered()
    entries = chat.conversations.get_by_role("listitem")
    await expect(entries).to_have_count(2)
    await expect(entries.nth(0).locator(".title")).to_have_text("How high?")
    await expect(entries.nth(1).locator(".title")).to_have_text(hostile)
    search = chat.page.get_by_label("Search conversations")
    await search.fill("lighthouse")
    await expect(entries).to_have_count(1)
    await expect(entries.first).to_contain_text("A lighthouse has stairs.")
    await search.fill("")
    await expect(entries).to_have_count(2)

    await chat.choose("How high?", "Rename")
    await chat.dialog.get_by_label("Title").fill("Stairs <b>")
    await chat.page.keyboard.press("Enter")
    await expect(entries.first.locator(".title")).to_have_text("Stairs <b>")
    await expect(chat.page.get_by_role("heading", name="Stairs <b>")).to_be_visible()
    async with chat.page.expect_download() as download:
        await chat.choose("Stairs <b>", "Export as Markdown")
    assert (await download.value).suggested_filename == "conversation.md"
    async with chat.page.expect_download() as download:
        await chat.choose("Stairs <b>", "Export as JSON")
    assert (await download.value).suggested_filename == "conversation.json"
    await chat.press("Menu of Stairs <b>")
    assert await violations(chat.page) == []
    await chat.page.keyboard.press("Escape")

    await chat.choose("Stairs <b>", "Delete")
    await expect(entries).to_have_count(1)
    await expect(chat.questions).to_have_count(0)
    await chat.press("Undo")
    await expect(entries).to_have_count(2)
    await expect(chat.questions.first).to_contain_text("How high?")
    await entries.nth(1).get_by_role("button").first.click()
    await expect(chat.questions.first.locator(".bubble")).to_have_text(hostile)
    assert await chat.page.evaluate("window.hit") is None


async def test_earlier_question_is_edited_and_later_turns_go_after_a_confirmation(
    scripted_chat: ChatPage, script: FakeApi
) -> None:
    chat = scripted_chat
    for question in ("first", "second", "third"):
        await chat.ask(question)
        await chat.answered()
    await chat.questions.nth(1).hover()
    await chat.questions.nth(1).get_by_role("button", name="Edit question").click()
    await chat.page.get_by_label("Edited question").fill("another second")
    await chat.page.keyboard.press("Enter")
    await expect(chat.dialog).to_contain_text("This drops the turn after it.")
    await chat.dialog.get_by_role("button", name="Cancel").click()
    await expect(chat.questions).to_have_count(3)
    await chat.page.get_by_role("button", name="Ask", exact=True).click()
    await chat.dialog.get_by_role("button", name="Ask again").click()
    await expect(chat.questions).to_have_count(2)
    await chat.answered()
    assert [turn["question"] for turn in next(iter(script.turns.values()))] == ["first", "another second"]


async def test_cut_answer_goes_on_and_the_text_being_typed_survives_a_reload(
    scripted_chat: ChatPage, script: FakeApi
) -> None:
    chat = scripted_chat
    script.script = Script(pieces=["One and "], finish_reason="length", queued_s=8, position=3)
    await chat.ask("Count.")
    await expect(chat.answers.last).to_contain_text("number 3 in the queue", timeout=PATIENCE_MS)
    assert "was cut at the longest length" in await chat.answered()
    script.script = Script(pieces=["two."], finish_reason="stop")
    await chat.press("Continue")
    await chat.wait_for_answer_text("One and two.")
    await expect(chat.page.get_by_role("button", name="Continue")).to_have_count(0)
    assert script.options[-1] == {"continue_turn": True}
    await expect(chat.questions).to_have_count(1)
    await chat.question.fill("half a question")
    await chat.page.wait_for_function("sessionStorage.getItem('ragstone.draft') === 'half a question'")
    await chat.page.reload()
    await expect(chat.question).to_have_value("half a question", timeout=PATIENCE_MS)
    await expect(chat.answers.last).to_contain_text("One and two.")


async def test_citation_opens_its_source_and_the_document_at_its_page(
    scripted_chat: ChatPage, script: FakeApi, tmp_path: Path
) -> None:
    chat = scripted_chat
    document = tmp_path / "report.pdf"
    document.write_text("steps")
    results = await chat.upload(document)
    await expect(results.first).to_contain_text("Added: 1 passage", timeout=PATIENCE_MS)
    await chat.view("Chat")
    sources = [
        {
            "n": 1,
            "document_id": "report.pdf",
            "title": "Report",
            "page": 2,
            "heading": None,
            "text": QUOTE,
            "score": 0.9,
        },
        {"n": 2, "document_id": "gone", "title": "Gone", "page": None, "heading": "H", "text": "x", "score": 0.1},
    ]
    script.script = Script(
        pieces=["It is a time [1]. ", "It is 42 ms [?]."], sources=sources, grounding=GROUNDING, statistics=STATISTICS
    )
    await chat.ask("What is it?")
    await chat.answered()
    await chat.page.context.grant_permissions(["clipboard-read"])
    await chat.press("Copy answer")
    await expect(chat.page.get_by_text("Copied")).to_be_visible()
    assert await chat.page.evaluate("navigator.clipboard.readText()") == "It is a time [1]. It is 42 ms [?]."
    await chat.page.get_by_role("link", name="Source 1: Report").click()
    card = chat.sources.first
    assert "".join(await card.locator("mark").all_inner_texts()) == QUOTE
    await expect(card.locator("mark.word")).to_have_text("time")
    await expect(card.locator("summary")).to_have_attribute("title", "Match 0.90 of 1")
    unsupported = chat.page.get_by_role("button", name="Not supported.")
    explanation = "A number in it does not stand in the sources."
    assert await unsupported.evaluate(EXPLAINED) == "none"
    await unsupported.click()
    assert await unsupported.evaluate(EXPLAINED) == f'"{explanation}"'
    await expect(chat.page.get_by_text("no longer reads its 2 oldest turns")).to_be_visible()
    await chat.page.get_by_text("What the engine did").click()
    await expect(chat.page.get_by_text("84 tokens/s")).to_be_in_viewport()
    await expect(chat.page.get_by_text("tiny", exact=True)).to_be_visible()
    assert await violations(chat.page) == []

    await card.get_by_role("button", name="Open document").click()
    await expect(chat.viewer.get_by_text("Page 2 of 2")).to_be_visible()
    image = chat.viewer.get_by_role("img", name="Page 2 of report.pdf")
    await expect(image).to_be_visible()
    assert await image.evaluate("async (image) => { await image.decode(); return image.naturalWidth }") == 1
    await chat.press("Previous page")
    await expect(chat.viewer.get_by_text("Page 1 of 2")).to_be_visible()
    assert await violations(chat.page) == []
    await chat.page.keyboard.press("Escape")
    await expect(chat.viewer).to_be_hidden()
    await chat.sources.nth(1).locator("summary").click()
    await chat.sources.nth(1).get_by_role("button", name="Open document").click()
    await expect(chat.page.get_by_text("no such document")).to_be_visible()
    assert await chat.page.evaluate("window.hit") is None


async def test_quote_that_markdown_writes_otherwise_is_marked_and_a_picture_of_elsewhere_is_named(
    scripted_chat: ChatPage, script: FakeApi, tmp_path: Path
) -> None:
    chat = scripted_chat
    document = tmp_path / "lamp.html"
    document.write_text(
        "<p><img alt='A lamp' title='https://example.org/lamp.png'></p><ol><li>Wait.</li>"
        "<li>Hold the <em>red</em> button &amp; wait.</li></ol>"
    )
    results = await chat.upload(document)
    await expect(results).to_contain_text("Added: 1 passage", timeout=PATIENCE_MS)
    await chat.view("Chat")
    written = "2. Hold the *red* [button](https://example.org/b) &amp; wait."
    source = {
        "n": 1,
        "document_id": "lamp.html",
        "title": "Lamp",
        "page": None,
        "heading": None,
        "text": written,
        "score": 0.9,
    }
    script.script = Script(pieces=["Hold it."], sources=[source])
    await chat.ask("How is it reset?")
    await chat.answered()
    await chat.sources.first.locator("summary").click()
    await chat.press("Open document")
    await expect(chat.viewer.locator("mark").first).to_be_in_viewport()
    assert "".join(await chat.viewer.locator("mark").all_inner_texts()) == "Hold theredbutton & wait"
    await expect(chat.viewer.get_by_text("[Picture: A lamp: https://example.org/lamp.png]")).to_be_visible()
    await expect(chat.viewer.get_by_role("img")).to_have_count(0)


async def test_what_the_documents_do_not_hold_is_a_state_of_its_own_and_can_be_rated(
    scripted_chat: ChatPage, script: FakeApi
) -> None:
    chat = scripted_chat
    script.script = Script(
        pieces=["This is not in your documents."], grounding={"mode": "strict", "state": "not_found", "sentences": []}
    )
    await chat.ask("Who won?")
    await chat.answered()
    await expect(chat.page.locator(".not-found")).to_contain_text("add a document that tells it")
    await expect(chat.page.get_by_role("heading", name="Nearest passages")).to_be_visible()
    await chat.press("Bad answer")
    await expect(chat.page.get_by_role("button", name="Bad answer")).to_have_attribute("aria-pressed", "true")
    await chat.press("Add a comment")
    await chat.dialog.get_by_label("Comment").fill("It is in the appendix.")
    await chat.press("Save")
    await expect(chat.dialog).to_have_count(0)
    assert [(item["rating"], item["comment"]) for item in script.feedback] == [
        ("down", ""),
        ("down", "It is in the appendix."),
    ]
    await chat.page.reload()
    await expect(chat.page.get_by_role("button", name="Bad answer")).to_have_attribute("aria-pressed", "true")
    await chat.press("Change your comment")
    await expect(chat.dialog.get_by_label("Comment")).to_have_value("It is in the appendix.")
    await chat.dialog.get_by_label("Comment").fill("It is on page 3.")
    await chat.press("Save")
    await expect(chat.dialog).to_have_count(0)
    assert script.feedback[-1]["comment"] == "It is on page 3."
    await chat.press("Bad answer")
    await expect(chat.page.get_by_role("button", name="your comment")).to_have_count(0)


async def test_question_is_edited_in_sight_at_the_end_of_the_page_and_dropping_turns_takes_more_than_enter(
    scripted_chat: ChatPage, script: FakeApi
) -> None:
    chat = scripted_chat
    script.script = Script(pieces=["A line.\n\n" * 12])
    for question in ("first", "second"):
        await chat.ask(question)
        await chat.answered()
    await chat.page.get_by_role("button", name="Edit question").last.click()
    await expect(chat.page.get_by_label("Edited question")).to_be_in_viewport(ratio=1)
    await chat.page.keyboard.press("Escape")
    await chat.page.get_by_role("button", name="Edit question").first.click()
    await chat.page.get_by_label("Edited question").fill("another")
    await chat.page.keyboard.press("Enter")
    await expect(chat.dialog.get_by_role("button", name="Cancel")).to_be_focused()
    await chat.page.keyboard.press("Enter")
    await expect(chat.dialog).to_have_count(0)
    await expect(chat.answers).to_have_count(2)


async def test_settings_and_collections_go_with_the_question_and_are_remembered(
    scripted_chat: ChatPage, script: FakeApi
) -> None:
    chat = scripted_chat
    await chat.press("Settings")
    model = chat.dialog.get_by_role("combobox", name=re.compile("^Model"))
    await expect(model.locator("option").first).to_have_text("Default: tiny")
    await expect(chat.dialog.get_by_role("spinbutton", name=re.compile("^Top p"))).to_have_attribute(
        "placeholder", "0.9"
    )
    await expect(chat.dialog.get_by_role("combobox", name=re.compile("^Memory"))).to_contain_text(
        "Default: The last few turns"
    )
    await model.select_option("large")
    await chat.dialog.get_by_role("spinbutton", name=re.compile("^Temperature")).fill("0.7")
    await chat.dialog.get_by_role("spinbutton", name=re.compile("^Passages")).fill("2")
    await chat.dialog.get_by_role("combobox", name=re.compile("^Memory")).select_option("window")
    assert await chat.page.evaluate(SCHEME) == "light"
    await chat.dialog.get_by_role("combobox", name="Appearance").select_option("Dark")
    assert await chat.page.evaluate(SCHEME) == "dark"
    assert await violations(chat.page) == []
    await chat.press("Done")
    await chat.press("All documents")
    await chat.page.get_by_label("Sample handbook").check()
    await chat.page.keyboard.press("Escape")
    await chat.page.reload()
    await expect(chat.page.get_by_role("button", name="Sample handbook")).to_be_visible(timeout=PATIENCE_MS)
    assert await chat.page.evaluate(SCHEME) == "dark"
    await chat.ask("With all of it?")
    await chat.answered()
    chosen = {"model": "large", "temperature": 0.7, "num_passages": 2, "memory": "window", "collections": ["handbook"]}
    assert script.options == [chosen]
    await chat.press("Settings")
    await chat.dialog.get_by_role("checkbox", name=re.compile("^Search my documents")).uncheck()
    await chat.press("Done")
    script.script = Script(pieces=["By itself."])
    await chat.press("Retry")
    await chat.wait_for_answer_text("By itself.")
    await expect(chat.page.get_by_role("button", name="No documents")).to_be_visible()
    assert script.options[-1] == {**chosen, "retrieval": False}
    await chat.press("Settings")
    temperature = chat.dialog.get_by_role("spinbutton", name=re.compile("^Temperature"))
    await expect(temperature).to_have_value("0.7")
    await chat.press("Reset")
    await expect(temperature).to_have_value("")
    await expect(temperature).to_have_attribute("placeholder", "0")
    assert await chat.page.evaluate(SCHEME) == "light"
    await chat.press("Done")
    await chat.page.reload()
    script.script = Script(pieces=["As at first."])
    await chat.press("Retry")
    await chat.wait_for_answer_text("As at first.")
    assert script.options[-1] == {}


async def test_key_is_asked_for_and_kept_where_the_server_wants_one(
    browser: Browser, script: FakeApi, scripted_ui: str
) -> None:
    context = await browser.new_context()
    try:
        script.key = "right"
        chat = await ChatPage.open(context, scripted_ui)
        await chat.dialog.get_by_label("API key").fill("wrong")
        await chat.press("Log in")
        await expect(chat.dialog.get_by_role("alert")).to_contain_text("asks for a key")
        await chat.dialog.get_by_label("API key").fill("right")
        await chat.press("Log in")
        await expect(chat.conversations).to_contain_text("will be listed here", timeout=PATIENCE_MS)
        await chat.ask("Am I in?")
        assert "time to first token" in await chat.answered()
        assert await chat.page.evaluate("document.cookie") == ""
    finally:
        await context.close()


async def test_phone_has_one_column_with_the_list_behind_a_button_and_dark_has_contrast(
    browser: Browser, script: FakeApi, scripted_ui: str
) -> None:
    context = await browser.new_context(viewport=PHONE, color_scheme="dark")
    try:
        chat = await ChatPage.open(context, scripted_ui)
        wide = f"\n\n| {' | '.join('abcdefgh' * 9)} |\n|{'-|' * 72}\n\n```\n{'code ' * 99}\n```\n"
        script.script = Script(pieces=["It is a time [1]. ", "It is 42 ms [?].", wide], grounding=GROUNDING)
        await expect(chat.conversations).to_be_hidden()
        await chat.page.set_viewport_size({"width": 320, "height": 568})
        await chat.page.locator("#transcript").evaluate("transcript => transcript.scrollTo(0, 5)")
        await asyncio.sleep(0.3)
        await expect(chat.page.locator("#newest")).to_be_hidden()
        await chat.page.set_viewport_size(PHONE)  # type: ignore[arg-type]
        await chat.ask("What does TTFT measure?")
        await chat.answered()
        assert not await overflows(chat.page)
        assert await violations(chat.page) == []
        await chat.ask("Supercalifragilisticexpialidocious" * 6)
        await chat.answered()
        assert not await overflows(chat.page)
        await chat.press("Conversations")
        await expect(chat.conversations.get_by_role("listitem")).to_have_count(1)
        assert await violations(chat.page) == []
        await chat.page.keyboard.press("Escape")
        await expect(chat.conversations).to_be_hidden()
        for view in ("Documents", "Status"):
            await chat.view(view)
            assert not await overflows(chat.page)
            assert await violations(chat.page) == []
        await chat.page.set_viewport_size({"width": 375, "height": 812})
        await chat.press("Settings")
        label = chat.dialog.get_by_text("Top p", exact=False)
        fields = chat.dialog.locator("select, input[type=number]")
        boxes = [box for field in await fields.all() if (box := await field.bounding_box())]
        assert {round(box["width"]) for box in boxes} == {round((await label.bounding_box() or {})["width"])}
        assert not await overflows(chat.page)
    finally:
        await context.close()
