"""The pictures under docs/, taken from the real page where RAGSTONE_UPDATE_SCREENSHOTS=1 is set."""

import asyncio
import os
from pathlib import Path

import pytest
from fpdf import FPDF
from playwright.async_api import expect

from tests.e2e.chat_page import PATIENCE_MS, ChatPage
from tests.e2e.conftest import DESKTOP, PHONE, REPOSITORY

pytestmark = [
    pytest.mark.browser,
    pytest.mark.asyncio(loop_scope="session"),
    pytest.mark.skipif(os.environ.get("RAGSTONE_UPDATE_SCREENSHOTS") != "1", reason="pictures are renewed when asked"),
]

QUESTIONS = (
    "How does prefix caching save work?",
    "When should I use tensor parallelism?",
    "Why is decode limited by memory bandwidth?",
    "What does TTFT measure?",
)
# Until what moves has come to rest: the flash of a card, the light on a button.
SETTLED_S = 2.0


async def test_pictures_of_the_chat_and_the_documents(chat: ChatPage, tmp_path: Path) -> None:
    page = chat.page
    for question in QUESTIONS:
        await chat.press("New conversation")
        await chat.ask(question)
        await chat.answered()
    for name, size, scheme in (
        ("chat", DESKTOP, "light"),
        ("chat-dark", DESKTOP, "dark"),
        ("chat-phone", PHONE, "light"),
    ):
        await page.emulate_media(color_scheme=scheme)  # type: ignore[arg-type]
        await page.set_viewport_size(size)  # type: ignore[arg-type]
        await page.reload()
        await expect(chat.sources.first).to_be_visible(timeout=PATIENCE_MS)
        await asyncio.sleep(SETTLED_S)
        if size == DESKTOP:
            await page.get_by_role("link", name="Source 1:").first.click()
            await asyncio.sleep(SETTLED_S)
        await page.locator("#transcript").evaluate("transcript => transcript.scrollTo(0, 0)")
        await page.screenshot(path=REPOSITORY / "docs" / f"{name}.png")

    await page.emulate_media(color_scheme="light")
    await page.set_viewport_size(DESKTOP)  # type: ignore[arg-type]
    document = tmp_path / "harbour-fees.pdf"
    pdf = FPDF()
    pdf.set_font("helvetica", size=14)
    pdf.set_title("Harbour fees")
    for text in ("A berth costs 45 euros a day in summer.", "A berth costs 30 euros a day in winter."):
        pdf.add_page()
        pdf.multi_cell(0, 10, text)
    pdf.output(str(document))
    await chat.view("Documents")
    await page.get_by_label("Keep private").check()
    results = await chat.upload(document)
    await expect(results.first).to_contain_text("2 pages", timeout=PATIENCE_MS)
    await page.get_by_label("Keep private").uncheck()
    await page.mouse.click(0, 0)
    await asyncio.sleep(SETTLED_S)
    await page.screenshot(path=REPOSITORY / "docs" / "documents.png")
