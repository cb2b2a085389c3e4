"""Two people with API keys of their own, each in a real browser before the real server."""

import re
from collections.abc import AsyncIterator, Iterator
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass
from pathlib import Path

import pytest
from playwright.async_api import Browser, expect

from app.api_keys import KeyStore
from app.settings import Settings
from tests.e2e.chat_page import PATIENCE_MS, ChatPage
from tests.e2e.conftest import DESKTOP, Servers, free_port, serving

pytestmark = [pytest.mark.browser, pytest.mark.asyncio(loop_scope="session")]

QUESTION = "Which number opens the safe of Brunhild?"
ENVIRONMENT = {"RAGSTONE_API_KEYS": "on", "RAGSTONE_SAMPLE_KB": "false", "RAGSTONE_MAX_TOKENS": "32"}


@dataclass(frozen=True)
class Users:
    """A server that asks for keys, the key of each of its users, and where keys are made and revoked."""

    servers: Servers
    ada: str
    bob: str
    keys: KeyStore


@pytest.fixture(scope="module")
def users(
    chat_model_path: Path, embedding_model_path: Path, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[Users]:
    folder = tmp_path_factory.mktemp("users")
    keys = KeyStore(Settings(data_dir=folder / "data").keys_path)
    ada, bob = (keys.create(name)[0] for name in ("ada", "bob"))
    with serving(folder, **ENVIRONMENT) as servers:
        yield Users(servers, ada, bob, keys)
    keys.close()


@asynccontextmanager
async def logged_in(browser: Browser, servers: Servers, key: str) -> AsyncIterator[ChatPage]:
    context = await browser.new_context(viewport=DESKTOP)
    try:
        chat = await ChatPage.open(context, servers.ui)
        await chat.dialog.get_by_label("API key").fill("wrong")
        await chat.press("Log in")
        await expect(chat.dialog.get_by_role("alert")).to_contain_text("This key is not valid")
        await chat.dialog.get_by_label("API key").fill(key)
        await chat.press("Log in")
        await expect(chat.dialog).to_have_count(0, timeout=PATIENCE_MS)
        await expect(chat.conversations).not_to_be_empty(timeout=PATIENCE_MS)
        yield chat
    finally:
        await context.close()


async def test_two_users_see_nothing_of_each_other_and_a_revoked_key_ends_it(
    browser: Browser, users: Users, tmp_path: Path
) -> None:
    document = tmp_path / "brunhild.txt"
    document.write_text("The safe of Brunhild opens with the number 4711.\n")
    servers = users.servers
    async with logged_in(browser, servers, users.ada) as ada, logged_in(browser, servers, users.bob) as bob:
        results = await ada.upload(document)
        await expect(results.first).to_contain_text("Added: 1 passage", timeout=PATIENCE_MS)
        await ada.view("Chat")
        await ada.ask(QUESTION)
        assert "4711" in await ada.answered()
        await expect(ada.conversations.get_by_role("listitem")).to_have_count(1)
        hers = await ada.page.evaluate("ragstone.conversation()[0]")
        card = await ada.sources.first.get_attribute("data-document")

        await bob.ask(QUESTION)
        assert "4711" not in await bob.answered()
        await expect(bob.sources).to_have_count(0)
        await expect(bob.conversations.get_by_role("listitem")).to_have_count(1)
        await bob.page.get_by_label("Search conversations").fill("4711")
        await expect(bob.conversations).to_contain_text("No conversation holds")
        await bob.page.evaluate("(id) => ragstone.show(id)", hers)
        await expect(bob.questions).to_have_count(0)
        await bob.view("Documents")
        await expect(bob.page.get_by_text("No documents here yet")).to_be_visible()
        for path in ("view", "original", "pages/1.png"):
            reply = await bob.page.request.get(f"{servers.ui}/page/documents/{card}/{path}")
            assert reply.status == 404
        await bob.view("Chat")

        users.keys.revoke("bob")
        await bob.question.fill("Am I still in?")
        await bob.question.press("Enter")
        await expect(bob.dialog).to_contain_text("This server asks for an API key")
        await expect(bob.conversations.get_by_role("listitem")).to_have_count(0)
        await expect(bob.question).to_have_value("Am I still in?")

        await ada.ask("And again: which number opens the safe of Brunhild?")
        assert "4711" in await ada.answered()
        await ada.press("Log out")
        await ada.dialog.get_by_role("button", name="Log out").click()
        await expect(ada.dialog.get_by_label("API key")).to_be_visible(timeout=PATIENCE_MS)
        await expect(ada.questions).to_have_count(0)
        await ada.dialog.get_by_label("API key").fill(users.ada)
        await ada.press("Log in")
        await ada.conversations.get_by_text(re.compile("^Which number")).click()
        await expect(ada.questions).to_have_count(2, timeout=PATIENCE_MS)


async def test_conversation_outlives_a_restart_under_an_open_page_and_is_there_in_another_browser(
    browser: Browser, chat_model_path: Path, embedding_model_path: Path, tmp_path: Path
) -> None:
    keys = KeyStore(Settings(data_dir=tmp_path / "data").keys_path)
    key = keys.create("ada")[0]
    keys.close()
    ports = free_port(), free_port()
    async with AsyncExitStack() as browsers:
        with serving(tmp_path, ports, **ENVIRONMENT) as servers:
            first = await browsers.enter_async_context(logged_in(browser, servers, key))
            await first.ask("Good morning!")
            answer = await first.answered()
            await first.question.fill("half a question")
        await expect(first.notice).to_contain_text("It will connect again by itself", timeout=PATIENCE_MS)
        with serving(tmp_path, ports, **ENVIRONMENT) as servers:
            await expect(first.notice).to_have_text("", timeout=PATIENCE_MS)
            await expect(first.question).to_have_value("half a question")
            second = await browsers.enter_async_context(logged_in(browser, servers, key))
            await second.conversations.get_by_text("Good morning!").click()
            await expect(second.answers).to_have_text(answer, use_inner_text=True, timeout=PATIENCE_MS)
            await first.question.press("Enter")
            await expect(first.questions).to_have_count(2, timeout=PATIENCE_MS)
            await first.answered()
            await expect(first.answers.first).to_have_text(answer, use_inner_text=True)
