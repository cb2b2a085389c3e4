"""LangServe's playground in a real browser, behind nginx under a path prefix."""

import shutil
from collections.abc import Iterator
from pathlib import Path

import pytest
from playwright.async_api import BrowserContext, expect

from tests.app.scripted import ScriptedEngineClient
from tests.app.serving import RunningServer, scripted_app
from tests.app.test_reverse_proxy import nginx
from tests.e2e.chat_page import PATIENCE_MS

pytestmark = [
    pytest.mark.browser,
    pytest.mark.asyncio(loop_scope="session"),
    pytest.mark.skipif(shutil.which("nginx") is None, reason="nginx is not installed (apt: nginx-light)"),
]


@pytest.fixture
def address(tmp_path: Path) -> Iterator[str]:
    engine = ScriptedEngineClient(["The gurney ", "<b>rolls</b>."])
    with RunningServer(scripted_app(tmp_path / "data", engine, root_path="/rag")) as server:
        server.wait_until_ready()
        with nginx(tmp_path, server.port, "/") as address:
            yield address


@pytest.mark.parametrize("chain", ["chat", "llm", "retrieve"])
async def test_playground_shows_the_answer_to_what_is_typed(context: BrowserContext, address: str, chain: str) -> None:
    """[langserve#719, #732: nothing was shown; #639, #578: not found under a prefix]"""
    page = await context.new_page()
    await page.goto(f"{address}/{chain}/playground/")
    if chain == "chat":
        await page.get_by_label("Session").fill("playground")
    await page.get_by_label("Input").last.fill("Does it roll?")
    await expect(page.get_by_text("Validation Errors")).to_have_count(0)
    await page.get_by_role("button", name="Start").click()
    answer = {
        "chat": "<b>rolls</b>.",
        "llm": "The gurney <b>rolls</b>.",
        "retrieve": "TTFT is the time to the first token.",
    }[chain]
    await expect(page.get_by_text(answer).first).to_be_visible(timeout=PATIENCE_MS)
