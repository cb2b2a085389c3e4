"""A conversation of fifty turns in a real browser, and an answer that a reload breaks off, before the scripted API."""

from statistics import median
from typing import Any

import pytest
from playwright.async_api import BrowserContext, expect

from tests.e2e.chat_page import PATIENCE_MS, ChatPage
from tests.ui.fake_api import FakeApi, Script

pytestmark = [pytest.mark.browser, pytest.mark.asyncio(loop_scope="session")]

MOST_REPAINTS_A_SECOND = 20


async def test_fifty_turns_cost_no_more_each_than_ten_and_older_ones_load_when_scrolled_to(
    context: BrowserContext, script: FakeApi, scripted_ui: str
) -> None:
    chat = await ChatPage.open(context, scripted_ui)
    num_bytes = 0

    def count(event: dict[str, Any]) -> None:
        nonlocal num_bytes
        num_bytes += event["dataLength"]

    network = await context.new_cdp_session(chat.page)
    await network.send("Network.enable")
    network.on("Network.dataReceived", count)
    await chat.page.evaluate(
        """() => {
          window.drawn = 0;
          new MutationObserver((changes) => {
            for (const change of changes) {
              for (const node of change.addedNodes) window.drawn += 1 + (node.querySelectorAll?.('*').length ?? 0);
            }
          }).observe(document.getElementById('transcript'), { childList: true, subtree: true, characterData: true });
        }"""
    )
    sent, drawn = [], []
    for index in range(50):
        script.script = Script(pieces=[f"answer {index}."])
        num_bytes = await chat.page.evaluate("window.drawn = 0")
        await chat.ask(f"question {index}.")
        await chat.wait_for_answer_text(f"answer {index}.")
        await chat.answered()
        sent.append(num_bytes)
        drawn.append(await chat.page.evaluate("window.drawn"))
    for cost in (sent, drawn):
        # Repaints while an answer comes are more or fewer, by chance.
        assert median(cost[40:]) < 1.3 * median(cost[12:22]), cost

    script.script = Script(pieces=["word "] * 200, pause_s=0.01)
    await chat.ask("one more")
    await chat.wait_for_answer_text("word word")
    await chat.page.evaluate(
        """() => {
          window.redrawn = 0;
          window.paints = new Map();
          new MutationObserver(() => {
            const { length } = document.querySelector('#live .text').textContent;
            if (!window.paints.has(length)) window.paints.set(length, performance.now());
          }).observe(document.getElementById('live'), { childList: true, subtree: true, characterData: true });
          new MutationObserver((changes) => { window.redrawn += changes.length })
            .observe(document.getElementById('earlier'), { childList: true, subtree: true, characterData: true });
        }"""
    )
    await chat.answered()
    assert await chat.page.evaluate("window.redrawn") == 0
    painted_at = await chat.page.evaluate("[...window.paints.values()]")
    assert 5 <= len(painted_at) <= MOST_REPAINTS_A_SECOND * (painted_at[-1] - painted_at[0]) / 1000 + 2

    await expect(chat.questions).to_have_count(11)
    transcript = chat.page.locator("#transcript")
    for shown in (21, 31, 41, 51):
        await transcript.hover()
        await chat.page.mouse.wheel(0, -100_000)
        await expect(chat.questions).to_have_count(shown)
    await expect(chat.page.get_by_role("button", name="Earlier turns")).to_have_count(0)
    await chat.press("To the end of the answer")
    await expect(chat.answers.last).to_be_in_viewport()
    await expect(chat.page.get_by_role("button", name="To the end of the answer")).to_be_hidden()
    texts = await chat.questions.locator(".bubble").all_inner_texts()
    assert texts == [*(f"question {index}." for index in range(50)), "one more"]
    await chat.questions.nth(3).hover()
    await chat.questions.nth(3).get_by_role("button", name="Edit question").click()
    await chat.page.keyboard.press("Enter")
    await expect(chat.dialog).to_contain_text("This drops the 47 turns after it.")
    await chat.dialog.get_by_role("button", name="Ask again").click()
    await expect(chat.questions).to_have_count(4)
    await chat.answered()


async def test_reload_in_mid_answer_keeps_its_part_and_offers_to_continue(
    scripted_chat: ChatPage, script: FakeApi
) -> None:
    chat = scripted_chat
    script.script = Script(pieces=["word "] * 2000, pause_s=0.03)
    await chat.ask("Why?")
    await chat.wait_for_answer_text("word word")
    await chat.page.reload()
    await expect(chat.answers.last).to_contain_text("word word", timeout=PATIENCE_MS)
    await expect(chat.answers.last).to_contain_text("(stopped)")
    script.script = Script(pieces=["and so on."])
    await chat.press("Continue")
    await chat.wait_for_answer_text("and so on.")
    await expect(chat.questions).to_have_count(1)
    assert script.options[-1] == {"continue_turn": True}
