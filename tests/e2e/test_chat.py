"""The chat in a real browser with the real server, model and handbook: what a person does, and what must not happen."""

import asyncio
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress
from pathlib import Path

import httpx
import pytest
from playwright.async_api import Browser, BrowserContext, expect

from tests.e2e.chat_page import PATIENCE_MS, ChatPage
from tests.e2e.conftest import DESKTOP, REPOSITORY, UPDATES_SCREENSHOTS, Servers
from tests.e2e.timing import NUM_ATTEMPTS, within

pytestmark = [pytest.mark.browser, pytest.mark.asyncio(loop_scope="session")]

FREED_WITHIN_S = 1.0
TTFT_PAGE = "Latency metrics: TTFT, TPOT, ITL and goodput"
HOSTILE = '<img src=x onerror="window.hit=1"><script>window.hit=1</script>'


async def turns_on_server(servers: Servers, chat: ChatPage) -> list[tuple[str, bool]]:
    """(question, interrupted) of each turn that the server keeps of this tab's conversation."""
    session_id = await chat.page.evaluate("ragstone.conversation()[0]")
    async with httpx.AsyncClient(base_url=servers.api, trust_env=False) as client:
        reply = await client.get(f"/api/v1/conversations/{session_id}")
    return [(turn["question"], turn["interrupted"]) for turn in reply.json()["turns"]]


async def test_question_gets_a_streamed_answer_with_the_right_page_among_its_sources(chat: ChatPage) -> None:
    await chat.page.evaluate(
        """() => {
          window.paints = new Set();
          const text = () => document.querySelector('[data-testid=bot] .text')?.innerText ?? '';
          new MutationObserver(() => window.paints.add(text()))
            .observe(document.getElementById('transcript'), { childList: true, subtree: true, characterData: true });
        }"""
    )
    await chat.ask("What does TTFT measure?")
    answer = await chat.answered()
    assert len(answer.split()) > 5
    for _ in range(NUM_ATTEMPTS):
        # A browser that gets no time draws an answer all at once; one that gets some must show it growing.
        if await chat.page.evaluate("window.paints.size") >= 3:
            break
        await chat.retry.click()
        await expect(chat.stop).to_be_visible()
        await chat.answered()
    assert await chat.page.evaluate("window.paints.size") >= 3
    titles = await chat.sources.locator(".title").all_inner_texts()
    assert TTFT_PAGE in titles
    card = chat.sources.filter(has_text="TTFT: time to first token")
    await card.locator("summary").click()
    await expect(card.locator(".passage")).to_contain_text("measures the time from sending a request until the first")
    if UPDATES_SCREENSHOTS:
        await card.locator("summary").click()
        await chat.page.locator("#transcript").evaluate("transcript => transcript.scrollTo(0, 0)")
        await chat.page.screenshot(path=REPOSITORY / "docs" / "chat.png")


async def test_example_question_is_asked_by_pressing_it(chat: ChatPage) -> None:
    await chat.press("What does TTFT measure?")
    await expect(chat.questions.last).to_contain_text("What does TTFT measure?")
    await expect(chat.sources.filter(has_text=TTFT_PAGE).first).to_be_visible(timeout=PATIENCE_MS)
    await chat.cut_short()


async def test_stopped_answer_keeps_its_part_and_retry_puts_another_in_its_place(
    chat: ChatPage, servers: Servers
) -> None:
    await chat.ask("How does paged KV cache work?")
    await expect(chat.answers.last.locator(".text")).not_to_be_empty(timeout=PATIENCE_MS)
    await chat.stop.click()
    stopped = await chat.answered()
    part = stopped.removeprefix("Ragstone").split("(stopped)")[0].strip()
    assert part
    assert "(stopped)" in stopped
    await chat.retry.click()
    await expect(chat.stop).to_be_visible()
    whole = await chat.answered()
    assert "(stopped)" not in whole
    assert len(whole) > len(part)
    await expect(chat.questions).to_have_count(1)
    assert await turns_on_server(servers, chat) == [("How does paged KV cache work?", False)]


async def test_conversation_goes_on_after_a_reload_and_ends_with_a_new_one(chat: ChatPage, servers: Servers) -> None:
    await chat.ask("What is continuous batching?")
    await expect(chat.answers.last.locator(".text")).not_to_be_empty(timeout=PATIENCE_MS)
    await chat.answered()
    answer = await chat.answers.last.locator(".text").inner_text()
    await chat.page.reload()
    await expect(chat.questions).to_have_count(1, timeout=PATIENCE_MS)
    await expect(chat.questions.first).to_contain_text("What is continuous batching?")
    await expect(chat.answers.first.locator(".text")).to_have_text(answer, use_inner_text=True)
    await chat.ask("And static batching?")
    await expect(chat.questions).to_have_count(2)
    await chat.cut_short()
    assert [question for question, _ in await turns_on_server(servers, chat)] == [
        "What is continuous batching?",
        "And static batching?",
    ]
    await chat.press("New conversation")
    await expect(chat.questions).to_have_count(0)
    await expect(chat.page.get_by_role("heading", name="Ask your documents")).to_be_visible()


async def test_uploaded_document_is_listed_and_answers_a_question(chat: ChatPage, tmp_path: Path) -> None:
    document = tmp_path / "lighthouse.md"
    document.write_text("# The lighthouse of Skerry\n\nThe lighthouse of Skerry has 312 steps.\n", encoding="utf-8")
    empty = tmp_path / "nothing.txt"
    empty.touch()
    results = await chat.upload(document, empty)
    await expect(results.filter(has_text="lighthouse.md")).to_contain_text("Added: 1 passage", timeout=PATIENCE_MS)
    await expect(results.filter(has_text="nothing.txt")).to_contain_text("Not added", timeout=PATIENCE_MS)
    row = chat.page.get_by_role("row").filter(has_text="The lighthouse of Skerry")
    await expect(row).to_contain_text("My documents")
    await chat.view("Chat")
    await chat.ask("How many steps has the lighthouse of Skerry?")
    source = chat.sources.filter(has_text="The lighthouse of Skerry").first
    await expect(source).to_contain_text("312 steps", timeout=PATIENCE_MS)
    await chat.cut_short()
    await chat.view("Documents")
    await chat.press("Delete The lighthouse of Skerry")
    await chat.dialog.get_by_role("button", name="Delete", exact=True).click()
    await expect(row).to_have_count(0)


async def test_hostile_document_is_shown_as_text_and_runs_nothing(chat: ChatPage, tmp_path: Path) -> None:
    document = tmp_path / "hostile.md"
    document.write_text(f"# Zanzibar {HOSTILE}\n\nThe Zanzibar protocol says {HOSTILE} twice.\n", encoding="utf-8")
    results = await chat.upload(document)
    await expect(results.first).to_contain_text("Added", timeout=PATIENCE_MS)
    await chat.view("Chat")
    await chat.ask(f"What does the Zanzibar protocol say? {HOSTILE}")
    source = chat.sources.filter(has_text="Zanzibar protocol").first
    await expect(source).to_be_visible(timeout=PATIENCE_MS)
    await source.locator("summary").click()
    await expect(source.locator(".passage")).to_contain_text(HOSTILE)
    await chat.cut_short()
    await expect(chat.conversations).to_contain_text("<img src=x onerror")
    await chat.page.reload()
    await expect(chat.questions.first).to_contain_text(HOSTILE, timeout=PATIENCE_MS)
    await asyncio.sleep(0.5)
    assert await chat.page.evaluate("window.hit") is None


async def test_what_a_person_types_is_shown_letter_for_letter(chat: ChatPage) -> None:
    typed = "Is <test> $x$ **bold** `code` [a](b) <b>or</b> {brace} 日本語 😀 שלום?"
    await chat.ask(typed)
    await chat.cut_short()
    assert await chat.questions.last.locator(".bubble").inner_text() == typed


async def test_two_browsers_at_once_do_not_see_each_other(browser: Browser, servers: Servers) -> None:
    contexts = [await browser.new_context(viewport=DESKTOP) for _ in range(2)]
    try:
        first, second = [await ChatPage.open(context, servers.ui) for context in contexts]
        await asyncio.gather(first.ask("What is speculative decoding?"), second.ask("What is SmoothQuant?"))
        for chat in (first, second):
            await expect(chat.answers.last.locator(".text")).not_to_be_empty(timeout=PATIENCE_MS)
        await asyncio.gather(first.cut_short(), second.cut_short())
        await asyncio.gather(first.page.reload(), second.page.reload())
        await expect(first.questions).to_have_count(1, timeout=PATIENCE_MS)
        await expect(second.questions).to_have_count(1, timeout=PATIENCE_MS)
        await expect(first.questions.first).to_contain_text("What is speculative decoding?")
        await expect(second.questions.first).to_contain_text("What is SmoothQuant?")
    finally:
        for context in contexts:
            await context.close()


async def test_every_control_has_an_accessible_name(chat: ChatPage) -> None:
    await chat.ask("What does TTFT measure?")
    await expect(chat.sources.first).to_be_visible(timeout=PATIENCE_MS)
    await chat.cut_short()
    session = await chat.page.context.new_cdp_session(chat.page)
    nodes = (await session.send("Accessibility.getFullAXTree"))["nodes"]
    roles = {"button", "textbox", "link", "checkbox", "combobox", "listbox", "slider", "tab", "DisclosureTriangle"}
    controls = [
        (node["role"]["value"], node.get("name", {}).get("value", "").strip())
        for node in nodes
        if not node["ignored"] and node["role"]["value"] in roles
    ]
    assert len(controls) > 8
    assert [control for control in controls if not control[1]] == []


async def requests_in_engine(client: httpx.AsyncClient) -> tuple[float, float]:
    """(running, waiting) as the server's metrics say."""
    text = (await client.get("/metrics")).text
    values = {line.split("{")[0]: float(line.split()[-1]) for line in text.splitlines() if line.startswith("ragstone:")}
    return values["ragstone:num_requests_running"], values["ragstone:num_requests_waiting"]


async def until_engine(client: httpx.AsyncClient, running: float, waiting: float) -> None:
    deadline = time.monotonic() + 60
    while (seen := await requests_in_engine(client)) != (running, waiting):
        assert time.monotonic() < deadline, f"{seen} requests are running and waiting, not {(running, waiting)}"
        await asyncio.sleep(0.02)


@asynccontextmanager
async def occupied_engine(servers: Servers, count: int) -> AsyncIterator[None]:
    """`count` long answers being made for someone else until the end of the block."""

    async def occupy(client: httpx.AsyncClient, started: asyncio.Event) -> None:
        body = {"model": "smollm2-135m-instruct", "stream": True, "max_tokens": 4000, "ignore_eos": True}
        body["messages"] = [{"role": "user", "content": "Count."}]
        async with client.stream("POST", "/v1/chat/completions", json=body) as response:
            async for _ in response.aiter_bytes():
                started.set()

    async with httpx.AsyncClient(base_url=servers.api, timeout=None, trust_env=False) as client:
        events = [asyncio.Event() for _ in range(count)]
        tasks = [asyncio.create_task(occupy(client, event)) for event in events]
        try:
            async with asyncio.timeout(60):
                await asyncio.gather(*(event.wait() for event in events))
            yield
        finally:
            for task in tasks:
                task.cancel()
            with suppress(asyncio.CancelledError):
                await asyncio.gather(*tasks, return_exceptions=True)


@pytest.mark.parametrize("phase", ["queued", "prefilling", "streaming"])
async def test_closing_the_tab_frees_the_engine_within_a_second(
    context: BrowserContext, servers: Servers, phase: str
) -> None:
    num_others = 2 if phase == "queued" else 0
    # More than a thousand tokens of prompt, which take seconds to prefill on a CPU.
    question = "token " * 1200 if phase == "prefilling" else "What is tensor parallelism?"

    async with httpx.AsyncClient(base_url=servers.api, timeout=60, trust_env=False) as client:

        async def seconds_until_free() -> float:
            chat = await ChatPage.open(context, servers.ui)
            await until_engine(client, 0, 0)
            async with occupied_engine(servers, num_others):
                await chat.question.fill(question)
                await chat.question.press("Enter")
                await until_engine(client, *((2, 1) if phase == "queued" else (1, 0)))
                if phase == "streaming":
                    await expect(chat.answers.last.locator(".text")).not_to_be_empty(timeout=PATIENCE_MS)
                else:
                    await expect(chat.answers.last.locator(".text")).to_have_count(0)
                closed_at = time.monotonic()
                await chat.page.close()
                await until_engine(client, num_others, 0)
                return time.monotonic() - closed_at

        await within(FREED_WITHIN_S, seconds_until_free)
