"""The chat page as a person uses it: by labels and texts, not by the structure of the page."""

from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

from playwright.async_api import BrowserContext, Locator, Page, expect
from playwright.async_api import Error as PlaywrightError

PATIENCE_MS = 180_000


@dataclass(frozen=True)
class ChatPage:
    """One tab. All waits are generous; a test's own claim about time is made in the test."""

    page: Page

    @classmethod
    async def open(cls, context: BrowserContext, url: str, *, ready: bool = True) -> "ChatPage":
        """Open a tab and wait until it says that questions can be answered (unless `ready` is False)."""
        page = await context.new_page()
        page.set_default_timeout(PATIENCE_MS)
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

    async def upload(self, *paths: Path) -> None:
        """Choose files in the document panel; does not wait for the result."""
        async with self.page.expect_file_chooser() as chooser:
            await self.page.get_by_role("button", name="Click to upload or drop files").click()
        await (await chooser.value).set_files([str(path) for path in paths])

    async def wait_for_answer_text(self, text: str) -> None:
        """Wait until the newest answer holds `text`."""
        await expect(self.answers.last).to_contain_text(text, timeout=PATIENCE_MS)
