"""The chat page as a person uses it: by labels and texts, not by the structure of the page."""

import json
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from axe_playwright_python.base import AXE_FILE_PATH
from playwright.async_api import BrowserContext, Locator, Page, expect
from playwright.async_api import Error as PlaywrightError

PATIENCE_MS = 180_000
MOST_TABS = 80
AXE = Path(AXE_FILE_PATH).read_text(encoding="utf-8")
FOCUS_NAME = """() => {
  const element = document.activeElement;
  if (!element || element === document.body) return '';
  const label = element.labels?.[0]?.querySelector('span') ?? element.labels?.[0];
  return (element.getAttribute('aria-label') ?? label?.firstChild?.textContent ?? element.textContent).trim();
}"""
# Its own outline, or the border of the box around it.
SHOWS_FOCUS = """() => {
  const element = document.activeElement;
  const outlined = getComputedStyle(element);
  if (outlined.outlineStyle !== 'none' && parseFloat(outlined.outlineWidth) >= 1) return true;
  const colour = (of) => of && getComputedStyle(of).borderColor;
  const box = element.closest('#composer');
  return Boolean(box) && colour(box) !== colour(document.querySelector('.sidebar .new'));
}"""


async def violations(page: Page) -> list[str]:
    """What axe-core finds that is serious or worse, contrast included."""
    # Evaluated rather than loaded: the page's policy forbids scripts of other origins, and this is none of its own.
    await page.evaluate(AXE)
    found: dict[str, Any] = await page.evaluate("axe.run(document, { resultTypes: ['violations'] })")
    return [
        f"{item['id']}: {node['html'][:200]} {node['failureSummary']}"
        for item in found["violations"]
        if item["impact"] in ("serious", "critical")
        for node in item["nodes"]
    ]


async def overflows(page: Page) -> bool:
    """Whether the page is wider than its window."""
    return bool(await page.evaluate("document.documentElement.scrollWidth > innerWidth"))


@dataclass(frozen=True)
class ChatPage:
    """One tab. All waits are generous; a test's own claim about time is made in the test."""

    page: Page

    @classmethod
    async def open(cls, context: BrowserContext, url: str, *, ready: bool = True, settings: str = "{}") -> "ChatPage":
        """Open a tab and wait until it says that questions can be answered (unless `ready` is False).

        `settings` are those of the browser, as JSON.
        """
        page = await context.new_page()
        page.set_default_timeout(PATIENCE_MS)
        # A tab's first load; what a test sets afterwards stays over its reloads.
        await page.add_init_script(
            "if (!sessionStorage.getItem('ragstone.conversation')) "
            f"localStorage.setItem('ragstone.settings', {json.dumps(settings)});"
        )
        await page.goto(url)
        chat = cls(page)
        await chat.question.wait_for()
        if ready:
            await expect(page.get_by_text("Ready", exact=True)).to_be_attached(timeout=PATIENCE_MS)
        return chat

    @property
    def question(self) -> Locator:
        """The box for the question."""
        return self.page.get_by_label("Your question")

    @property
    def answers(self) -> Locator:
        """All answers on the page, oldest first."""
        return self.page.get_by_test_id("bot")

    @property
    def questions(self) -> Locator:
        """All questions on the page, oldest first."""
        return self.page.get_by_test_id("user")

    @property
    def sources(self) -> Locator:
        """The sources under the newest answer."""
        return self.page.get_by_role("region", name="Sources").last.get_by_role("group")

    @property
    def conversations(self) -> Locator:
        """The list of conversations."""
        return self.page.get_by_role("region", name="List of conversations")

    @property
    def dialog(self) -> Locator:
        """The question that the page asks."""
        return self.page.get_by_role("dialog")

    @property
    def viewer(self) -> Locator:
        """The document that is open."""
        return self.page.locator("#viewer")

    @property
    def stop(self) -> Locator:
        """The button that stops an answer; there only while one is made."""
        return self.page.get_by_role("button", name="Stop", exact=True)

    @property
    def retry(self) -> Locator:
        """The button that asks the last question again."""
        return self.page.get_by_role("button", name="Retry", exact=True)

    @property
    def notice(self) -> Locator:
        """What the page says of a server that cannot answer."""
        return self.page.locator("#notice")

    async def ask(self, question: str) -> None:
        """Type a question and send it with Enter; does not wait for the answer."""
        await self.question.fill(question)
        await self.question.press("Enter")
        await expect(self.questions.last).to_contain_text(question, timeout=PATIENCE_MS)

    async def press(self, name: str) -> None:
        """Press the button with this name."""
        await self.page.get_by_role("button", name=name, exact=True).click()

    async def answered(self) -> str:
        """Wait until no answer is being made; the text of the newest."""
        await expect(self.page.get_by_role("button", name="Send", exact=True)).to_be_visible(timeout=PATIENCE_MS)
        await expect(self.answers.last).to_have_attribute("aria-busy", "false", timeout=PATIENCE_MS)
        return await self.answers.last.inner_text()

    async def cut_short(self) -> str:
        """Stop the answer if it is still being made; the text of the newest answer."""
        if await self.stop.is_visible():
            # It may end by itself at this very moment.
            with suppress(PlaywrightError):
                await self.stop.click(timeout=2_000)
        return await self.answered()

    async def view(self, name: str) -> None:
        """Show the chat, the documents or the status."""
        await self.page.get_by_role("group", name="Views").get_by_role("button", name=name, exact=True).click()

    async def upload(self, *paths: Path) -> Locator:
        """Choose files in the documents' tab; the lines of their results, which come later."""
        await self.view("Documents")
        async with self.page.expect_file_chooser() as chooser:
            await self.page.get_by_role("button", name="choose files").click()
        await (await chooser.value).set_files([str(path) for path in paths])
        return self.page.get_by_role("list", name="Upload results").get_by_role("listitem")

    async def choose(self, conversation: str, item: str) -> None:
        """Press an item of a conversation's menu."""
        await self.conversations.get_by_role("button", name=f"Menu of {conversation}", exact=True).click()
        await self.page.get_by_role("menuitem", name=item, exact=True).click()

    async def tab_to(self, name: str, *, back: bool = False) -> Locator:
        """Press Tab (or Shift+Tab) until what is called `name` has the focus, which must then be seen to have it."""
        passed: list[str] = []
        while name not in passed:
            assert len(passed) < MOST_TABS, f"{name!r} is not among {passed}"
            await self.page.keyboard.press("Shift+Tab" if back else "Tab")
            passed.append(await self.focus_name())
        await self.has_focus(name)
        return self.page.locator(":focus")

    async def has_focus(self, name: str) -> None:
        """Wait until what is called `name` has the focus, and see that the page shows so."""
        with suppress(PlaywrightError):
            await self.page.wait_for_function(f"({FOCUS_NAME})() === {json.dumps(name)}", timeout=10_000)
        assert await self.focus_name() == name
        assert await self.page.evaluate(SHOWS_FOCUS), f"nothing shows that {name!r} has the focus"

    async def focus_name(self) -> str:
        """The name of what has the focus, "" for nothing."""
        return str(await self.page.evaluate(FOCUS_NAME))

    async def wait_for_answer_text(self, text: str) -> None:
        """Wait until the newest answer holds `text`."""
        await expect(self.answers.last).to_contain_text(text, timeout=PATIENCE_MS)
