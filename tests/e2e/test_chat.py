"""The chat in a real browser with the real server, model and handbook: what a person does, and what must not happen."""

import asyncio
import json
import re
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress
from pathlib import Path

import httpx
import pytest
from fpdf import FPDF
from playwright.async_api import Browser, BrowserContext, expect

from tests.e2e.chat_page import PATIENCE_MS, ChatPage
from tests.e2e.conftest import DESKTOP, WITHOUT_DOCUMENTS, Servers
from tests.e2e.timing import within

pytestmark = [pytest.mark.browser, pytest.mark.asyncio(loop_scope="session")]

FREED_WITHIN_S = 1.0
TTFT_PAGE = "Latency metrics: TTFT, TPOT, ITL and goodput"
HOSTILE = '<img src=x onerror="window.hit=1"><script>window.hit=1</script>'


async def turns_on_server(servers: Servers, chat: ChatPage) -> list[tuple[str, bool]]:
    """(question, interrupted) of each turn that the server keeps of this tab's conversation."""
    session_id = await chat.page.evaluate("ragstone.conversation()[0]")
    async with httpx.AsyncClient(base_url=servers.api, trust_env=False) as client:
        reply = await client.get(f"/api/v1/conversations/{session_id}")
    turns = reply.json()["turns"] if reply.status_code == 200 else []
    return [(turn["question"], turn["interrupted"]) for turn in turns]


async def until_written_down(servers: Servers, chat: ChatPage) -> None:
    """Wait until the server keeps the turn of this tab that was stopped."""
    deadline = time.monotonic() + 60
    while [is_interrupted for _, is_interrupted in await turns_on_server(servers, chat)] != [True]:
        assert time.monotonic() < deadline, "the server does not keep the turn as stopped"
        await asyncio.sleep(0.05)


async def test_answer_cites_the_sentence_it_quotes_and_leads_to_it_in_the_document(chat: ChatPage) -> None:
    await chat.ask("What does TTFT measure?")
    answer = await chat.answered()
    sentence = "measures the time from sending a request until the first token of the answer arrives"
    assert sentence in " ".join(answer.split())
    assert TTFT_PAGE in await chat.sources.locator(".title").all_inner_texts()
    await chat.page.get_by_role("link", name=f"Source 1: {TTFT_PAGE}").first.click()
    card = chat.sources.filter(has=chat.page.locator("mark")).first
    assert sentence in " ".join("".join(await card.locator("mark").all_inner_texts()).split())
    assert "time" in await card.locator("mark.word").all_inner_texts()
    await card.get_by_role("button", name="Open document").click()
    await expect(chat.viewer.get_by_role("heading", name=TTFT_PAGE).first).to_be_visible()
    marked = " ".join("".join(await chat.viewer.locator("mark").all_inner_texts()).split())
    assert sentence in marked
    await expect(chat.viewer.locator("mark").first).to_be_in_viewport()
    await chat.page.keyboard.press("Escape")
    await chat.page.get_by_text("What the engine did").click()
    await expect(chat.page.get_by_text("First token after")).to_be_visible()


async def test_what_the_documents_do_not_hold_is_said_with_the_nearest_passages(chat: ChatPage) -> None:
    await chat.ask("Who won the chess olympiad in Yerevan?")
    assert "not in your documents" in await chat.answered()
    await expect(chat.page.get_by_role("heading", name="Nearest passages")).to_be_visible()
    await chat.press("Bad answer")
    await chat.page.reload()
    await expect(chat.page.get_by_role("button", name="Bad answer")).to_have_attribute(
        "aria-pressed", "true", timeout=PATIENCE_MS
    )


async def test_example_question_is_asked_by_pressing_it(chat: ChatPage) -> None:
    await expect(chat.page.locator("[data-act=example]")).to_have_count(3)
    # Not by its name alone: an earlier conversation in the list may have this question for a title.
    await chat.page.locator("[data-act=example]", has_text="What does TTFT measure?").click()
    await expect(chat.questions.last).to_contain_text("What does TTFT measure?")
    await expect(chat.sources.filter(has_text=TTFT_PAGE).first).to_be_visible(timeout=PATIENCE_MS)
    await chat.cut_short()


async def test_answer_streams_is_stopped_continued_and_asked_again(free_chat: ChatPage, servers: Servers) -> None:
    chat = free_chat
    await chat.page.evaluate(
        """() => {
          window.paints = new Set();
          const text = () => document.querySelector('[data-testid=bot] .text')?.innerText ?? '';
          new MutationObserver(() => window.paints.add(text()))
            .observe(document.getElementById('transcript'), { childList: true, subtree: true, characterData: true });
        }"""
    )
    question = "Tell a long story about a lighthouse."
    await chat.ask(question)
    await expect(chat.answers.last.locator(".text")).not_to_be_empty(timeout=PATIENCE_MS)
    await chat.stop.click()
    assert "(stopped)" in await chat.answered()
    part = (await chat.answers.last.locator(".text").inner_text()).strip()
    assert part
    assert await chat.page.evaluate("window.paints.size") >= 2
    await chat.page.get_by_text("What the engine did").click()
    await expect(chat.page.get_by_text("First token after")).to_be_visible()
    await until_written_down(servers, chat)
    await chat.page.reload()
    await chat.wait_for_answer_text("(stopped)")
    # The engine may have said a word more before it was told.
    kept = (await chat.answers.last.locator(".text").inner_text()).strip()
    assert kept.startswith(part)
    await chat.press("Continue")
    longer = re.compile(rf"^\s*{re.escape(kept)}.{{20}}", re.DOTALL)
    await expect(chat.answers.last.locator(".text")).to_have_text(longer, use_inner_text=True, timeout=PATIENCE_MS)
    await chat.cut_short()
    await chat.retry.click()
    await expect(chat.stop).to_be_visible()
    await chat.cut_short()
    assert [kept for kept, _ in await turns_on_server(servers, chat)] == [question]


async def test_answer_that_was_cut_by_its_longest_length_goes_on(context: BrowserContext, servers: Servers) -> None:
    chat = await ChatPage.open(context, servers.ui, settings='{"retrieval": false, "max_tokens": 8}')
    await chat.ask("Tell a long story about a lighthouse.")
    assert "The answer was cut at the longest length allowed." in await chat.answered()
    part = (await chat.answers.last.locator(".text").inner_text()).strip()
    await chat.press("Continue")
    longer = re.compile(rf"^\s*{re.escape(part)}.{{8}}", re.DOTALL)
    await expect(chat.answers.last.locator(".text")).to_have_text(longer, use_inner_text=True, timeout=PATIENCE_MS)
    await chat.answered()
    assert len(await turns_on_server(servers, chat)) == 1


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


async def test_new_user_adds_a_pdf_asks_opens_the_page_renames_and_exports(chat: ChatPage, tmp_path: Path) -> None:
    document, empty = tmp_path / "skerry.pdf", tmp_path / "nothing.txt"
    pdf = FPDF()
    pdf.set_font("helvetica", size=14)
    for text in ("The island of Skerry was first settled in 1790.", "The lighthouse of Skerry has 312 steps."):
        pdf.add_page()
        pdf.multi_cell(0, 10, text)
    pdf.output(str(document))
    empty.touch()
    await chat.view("Documents")
    await chat.page.get_by_label("Keep private").check()
    results = await chat.upload(document, empty)
    await expect(results.filter(has_text="skerry.pdf")).to_contain_text("2 pages", timeout=PATIENCE_MS)
    await expect(results.filter(has_text="nothing.txt")).to_contain_text("Not added", timeout=PATIENCE_MS)
    row = chat.page.get_by_role("row").filter(has_text="skerry")
    await expect(row).to_contain_text("My documents")
    await expect(row).to_contain_text("private")
    await chat.page.get_by_label("Keep private").uncheck()
    await chat.view("Chat")
    await chat.ask("How many steps has the lighthouse of Skerry?")
    assert "312 steps" in await chat.answered()
    await chat.ask("Wie viele Stufen hat der Leuchtturm von Skerry?")
    await chat.answered()
    card = chat.page.get_by_role("region", name="Sources").first.get_by_role("group").filter(has_text="312 steps").first
    await card.locator("summary").click()
    await card.get_by_role("button", name="Open document").click()
    await expect(chat.viewer.get_by_text("Page 2 of 2")).to_be_visible()
    image = chat.viewer.get_by_role("img")
    assert await image.evaluate("async (image) => { await image.decode(); return image.naturalWidth }") > 100
    await chat.press("Close document")

    await chat.choose("How many steps has the lighthouse of Skerry?", "Rename")
    await chat.dialog.get_by_label("Title").fill("Skerry 日本語")
    await chat.press("Rename")
    async with chat.page.expect_download() as download:
        await chat.choose("Skerry 日本語", "Export as Markdown")
    path = Path(await (await download.value).path())
    exported = await asyncio.to_thread(path.read_text, encoding="utf-8")
    assert "312 steps" in exported
    assert "Leuchtturm" in exported
    async with chat.page.expect_download() as download:
        await chat.choose("Skerry 日本語", "Export as JSON")
    path = Path(await (await download.value).path())
    turns = json.loads(await asyncio.to_thread(path.read_text, encoding="utf-8"))["turns"]
    assert ["lighthouse" in turns[0]["question"], "Leuchtturm" in turns[1]["question"]] == [True, True]
    await chat.choose("Skerry 日本語", "Delete")
    await expect(chat.conversations.get_by_text("Skerry 日本語")).to_have_count(0)
    await chat.press("Undo")
    await expect(chat.conversations.get_by_text("Skerry 日本語")).to_have_count(1)
    await expect(chat.questions).to_have_count(2)
    await chat.view("Documents")
    async with chat.page.expect_download() as download:
        await row.get_by_role("button", name="Download skerry").click()
    assert (await download.value).suggested_filename == "skerry.pdf"
    await row.get_by_role("button", name="Read skerry again").click()
    await expect(chat.page.get_by_text("Read “skerry” again")).to_be_visible()
    await expect(row).to_contain_text("private")
    await row.get_by_role("button", name=re.compile("^Delete")).click()
    await chat.dialog.get_by_role("button", name="Delete", exact=True).click()
    await expect(row).to_have_count(0)
    await chat.view("Status")
    await expect(chat.page.get_by_role("figure").filter(has_text="Time to first token")).to_contain_text("requests")


async def test_hostile_document_is_shown_as_text_and_runs_nothing(chat: ChatPage, tmp_path: Path) -> None:
    document, page = tmp_path / "hostile.md", tmp_path / "hostile.html"
    document.write_text(f"# Zanzibar {HOSTILE}\n\nThe Zanzibar protocol says {HOSTILE} twice.\n", encoding="utf-8")
    page.write_text(
        f"<h1>Quagga</h1>{HOSTILE}{'<p>Filler.</p>' * 200}<h2>Stripes</h2><p>Only <b>half</b> a quagga.</p>"
    )
    results = await chat.upload(document, page)
    for result in await results.all():
        await expect(result).to_contain_text("Added", timeout=PATIENCE_MS)
    await chat.page.get_by_role("button", name="Quagga", exact=True).click()
    await expect(chat.viewer.get_by_role("heading", name="Stripes")).to_be_visible()
    await expect(chat.viewer.locator("img[src], script")).to_have_count(0)
    await chat.page.keyboard.press("Escape")
    await chat.view("Chat")
    await chat.ask(f"What does the Zanzibar protocol say? {HOSTILE}")
    source = chat.sources.filter(has_text="Zanzibar protocol").first
    await expect(source).to_be_visible(timeout=PATIENCE_MS)
    await source.locator("summary").click()
    await expect(source.locator(".passage")).to_contain_text(HOSTILE)
    await source.get_by_role("button", name="Open document").click()
    await expect(chat.viewer.locator("p").last).to_contain_text(HOSTILE)
    await chat.page.keyboard.press("Escape")
    await chat.cut_short()
    await expect(chat.conversations).to_contain_text("<img src=x")
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


@pytest.mark.parametrize("way", ["closed tab", "stop"])
@pytest.mark.parametrize("phase", ["queued", "prefilling", "streaming"])
async def test_closing_the_tab_or_stopping_frees_the_engine_within_a_second(
    context: BrowserContext, servers: Servers, phase: str, way: str
) -> None:
    num_others = 2 if phase == "queued" else 0
    # More than a thousand tokens of prompt, which take seconds to prefill on a CPU.
    question = "token " * 1200 if phase == "prefilling" else "Tell a long story about a lighthouse."

    async with httpx.AsyncClient(base_url=servers.api, timeout=60, trust_env=False) as client:

        async def seconds_until_free() -> float:
            chat = await ChatPage.open(context, servers.ui, settings=WITHOUT_DOCUMENTS)
            await until_engine(client, 0, 0)
            async with occupied_engine(servers, num_others):
                await chat.question.fill(question)
                await chat.question.press("Enter")
                await until_engine(client, *((2, 1) if phase == "queued" else (1, 0)))
                if phase == "queued":
                    await chat.wait_for_answer_text("Waiting for the engine: number 1 in the queue")
                if phase == "streaming":
                    await expect(chat.answers.last.locator(".text")).not_to_be_empty(timeout=PATIENCE_MS)
                else:
                    await expect(chat.answers.last.locator(".text")).to_have_count(0)
                left_at = time.monotonic()
                await (chat.page.close() if way == "closed tab" else chat.stop.click())
                await until_engine(client, num_others, 0)
                return time.monotonic() - left_at

        await within(FREED_WITHIN_S, seconds_until_free)
