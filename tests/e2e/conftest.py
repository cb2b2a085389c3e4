"""Real servers and a real browser for the end-to-end tests.

The tests here are asynchronous and share one event loop for the session, as Playwright's objects belong to one loop.
"""

import os
import socket
import subprocess
import sys
import time
from collections.abc import AsyncIterator, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

import httpx
import pytest
import pytest_asyncio
from playwright.async_api import Browser, BrowserContext, Playwright, async_playwright

from tests.e2e.chat_page import ChatPage
from tests.ui.fake_api import FakeApi, fake_api

REPOSITORY = Path(__file__).resolve().parents[2]
CHROMIUM = os.environ.get("RAGSTONE_CHROMIUM", "/usr/bin/chromium")
CHROMIUM_ARGUMENTS = [
    "--headless",
    "--no-sandbox",
    "--disable-gpu",
    "--disable-quic",
    "--no-first-run",
    "--disable-background-networking",
    "--disable-component-update",
    "--disable-sync",
]
START_S = 420.0
DESKTOP = {"width": 1440, "height": 900}
PHONE = {"width": 390, "height": 844}
# Settings of a browser: the model's own words, as they come.
WITHOUT_DOCUMENTS = '{"retrieval": false, "max_tokens": 200}'
# Of the chat page before the scripted API.
MAX_UPLOAD_BYTES = 2000


@dataclass(frozen=True)
class Servers:
    """The addresses of a running API and its chat UI."""

    api: str
    ui: str


def free_port() -> int:
    with socket.create_server(("127.0.0.1", 0)) as listener:
        return int(listener.getsockname()[1])


@contextmanager
def running(command: list[str], log: Path, ready_url: str, **environment: str) -> Iterator[None]:
    """A server process, from when `ready_url` answers 200 until the end of the block. Its output goes to `log`."""
    with log.open("wb") as output:
        process = subprocess.Popen(
            [sys.executable, "-m", *command],
            cwd=REPOSITORY,
            env={**os.environ, **environment},
            stdout=output,
            stderr=subprocess.STDOUT,
        )
    try:
        deadline = time.monotonic() + START_S
        while not answers(ready_url):
            said = log.read_text(errors="replace")
            assert process.poll() is None, f"{command} ended with {process.returncode}:\n{said}"
            assert time.monotonic() < deadline, f"{command} is not ready after {START_S:.0f} s:\n{said}"
            time.sleep(0.1)
        yield
    finally:
        process.terminate()
        try:
            process.wait(timeout=20)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()


def answers(url: str) -> bool:
    try:
        return httpx.get(url, timeout=2, trust_env=False).status_code == 200
    except httpx.HTTPError:
        return False


@contextmanager
def running_ui(api_url: str, folder: Path) -> Iterator[str]:
    """The chat UI alone, speaking to the API at `api_url`; its address."""
    port = free_port()
    url = f"http://127.0.0.1:{port}"
    environment = {
        "RAGSTONE_API_URL": api_url,
        "RAGSTONE_UI_PORT": str(port),
        "RAGSTONE_UI_DATA": str(folder / "ui"),
        "RAGSTONE_MAX_UPLOAD_BYTES": str(MAX_UPLOAD_BYTES),
    }
    with running(["ui"], folder / "ui.log", url, **environment):
        yield url


@pytest.fixture(scope="session")
def servers(
    chat_model_path: Path, embedding_model_path: Path, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[Servers]:
    """`ragstone serve` with the real models and the sample handbook, in a data folder of its own.

    Answers are short, and two requests fill the engine, so that a third can be seen waiting. They are held to the
    sources, as this model's are by default; one that shall take its time is asked for WITHOUT_DOCUMENTS.
    """
    with serving(tmp_path_factory.mktemp("serve"), RAGSTONE_MAX_TOKENS="32", RAGSTONE_MAX_NUM_SEQS="2") as servers:
        yield servers


@contextmanager
def serving(folder: Path, ports: tuple[int, int] | None = None, **environment: str) -> Iterator[Servers]:
    """`ragstone serve` with the data folder `data` in `folder`, from when API and page answer.

    `ports` are those of the API and of the page; free ones where none are given.
    """
    port, ui_port = ports or (free_port(), free_port())
    api, ui = f"http://127.0.0.1:{port}", f"http://127.0.0.1:{ui_port}"
    command = ["app", "serve", "--port", str(port), "--ui-port", str(ui_port), "--data", str(folder / "data")]
    with running(command, folder / "serve.log", f"{api}/v1/health/ready", **environment):
        deadline = time.monotonic() + START_S
        while not answers(ui):
            assert time.monotonic() < deadline, (folder / "serve.log").read_text(errors="replace")
            time.sleep(0.1)
        yield Servers(api, ui)


@pytest.fixture(scope="session")
def scripted_api() -> Iterator[FakeApi]:
    with fake_api() as api:
        yield api


@pytest.fixture(scope="session")
def scripted_ui(scripted_api: FakeApi, tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """The real UI before an API that does as it is told: for faults and phases that a real one rarely shows."""
    with running_ui(scripted_api.url, tmp_path_factory.mktemp("scripted")) as url:
        yield url


@pytest.fixture
def script(scripted_api: FakeApi) -> FakeApi:
    """The scripted API, as new."""
    scripted_api.reset()
    return scripted_api


@pytest_asyncio.fixture(scope="session", loop_scope="session")
async def playwright() -> AsyncIterator[Playwright]:
    async with async_playwright() as playwright:
        yield playwright


@pytest_asyncio.fixture(scope="session", loop_scope="session")
async def browser(playwright: Playwright) -> AsyncIterator[Browser]:
    """One Chromium for all tests; each test has contexts (profiles) of its own in it."""
    browser = await playwright.chromium.launch(executable_path=CHROMIUM, args=CHROMIUM_ARGUMENTS)
    yield browser
    await browser.close()


@pytest_asyncio.fixture(scope="session", loop_scope="session")
async def profile(browser: Browser) -> AsyncIterator[BrowserContext]:
    """One profile for all tests, so that the page's files are loaded once."""
    profile = await browser.new_context(viewport=DESKTOP)
    yield profile
    await profile.close()


@pytest_asyncio.fixture(loop_scope="session")
async def context(profile: BrowserContext) -> AsyncIterator[BrowserContext]:
    """The profile with no tab open. A new tab is a new conversation."""
    yield profile
    for page in profile.pages:
        await page.close()


@pytest_asyncio.fixture(loop_scope="session")
async def chat(context: BrowserContext, servers: Servers) -> ChatPage:
    """A fresh tab of the real chat, ready for questions."""
    return await ChatPage.open(context, servers.ui)


@pytest_asyncio.fixture(loop_scope="session")
async def free_chat(context: BrowserContext, servers: Servers) -> ChatPage:
    """A fresh tab in which the model answers by itself."""
    return await ChatPage.open(context, servers.ui, settings=WITHOUT_DOCUMENTS)


@pytest_asyncio.fixture(loop_scope="session")
async def scripted_chat(context: BrowserContext, script: FakeApi, scripted_ui: str) -> ChatPage:
    """A fresh tab of the chat before the scripted API."""
    return await ChatPage.open(context, scripted_ui)
