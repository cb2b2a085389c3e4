"""The documents' tab in a real browser before the scripted API: adding, privacy, collections; and the status page."""

from pathlib import Path

import pytest
from playwright.async_api import expect

from tests.e2e.chat_page import PATIENCE_MS, ChatPage, violations
from tests.e2e.conftest import MAX_UPLOAD_BYTES
from tests.ui.fake_api import FakeApi

pytestmark = [pytest.mark.browser, pytest.mark.asyncio(loop_scope="session")]


async def test_documents_are_added_in_collections_with_a_result_for_each(
    scripted_chat: ChatPage, script: FakeApi, tmp_path: Path
) -> None:
    chat = scripted_chat
    hostile = "<img src=x onerror=hit()>"
    files = [tmp_path / name for name in ("a.md", "empty.txt", "large.txt")]
    files[0].write_text(f"{hostile} lighthouse")
    files[1].touch()
    files[2].write_text("x" * (MAX_UPLOAD_BYTES + 1))
    await chat.view("Documents")
    await expect(chat.page.get_by_text("No documents here yet")).to_be_visible()
    await chat.press("New collection")
    await chat.dialog.get_by_label("Name").fill("handbook")
    await chat.press("Make it")
    await expect(chat.dialog.get_by_role("alert")).to_contain_text("there is a collection 'handbook'")
    await chat.dialog.get_by_label("Name").fill(hostile)
    await chat.press("Make it")
    results = await chat.upload(*files)
    await expect(results.filter(has_text="a.md")).to_contain_text("Added: 1 passage", timeout=PATIENCE_MS)
    await expect(results.filter(has_text="empty.txt")).to_contain_text("Not added: the file is empty")
    await expect(results.filter(has_text="large.txt")).to_contain_text("and at most")
    assert script.documents["a.md"]["collection"] == hostile
    row = chat.page.get_by_role("row").filter(has_text="a.md")
    await expect(row).to_contain_text(hostile)
    await expect(row).not_to_contain_text("private")
    assert await violations(chat.page) == []
    async with chat.page.expect_download() as download:
        await row.get_by_role("button", name="Download a.md").click()
    assert (await download.value).suggested_filename == "a.md"
    await row.get_by_role("button", name="Read a.md again").click()
    await expect(chat.page.get_by_text("Read “a.md” again")).to_be_visible()
    await row.get_by_role("button", name="a.md", exact=True).click()
    await expect(chat.viewer).to_contain_text(f"{hostile} lighthouse")
    await chat.press("Close document")
    await chat.press("Delete collection")
    await chat.dialog.get_by_role("button", name="Delete", exact=True).click()
    await expect(chat.page.get_by_role("button", name=hostile)).to_have_count(0)

    await chat.view("Status")
    await expect(chat.page.get_by_role("figure").filter(has_text="KV cache")).to_contain_text("25.0 %")
    await expect(chat.page.get_by_role("figure").filter(has_text="Requests waiting")).to_contain_text("2")
    await expect(chat.page.get_by_role("figure").filter(has_text="Prefix cache hits")).to_contain_text("50 %")
    await expect(chat.page.get_by_role("figure").filter(has_text="Tokens a second")).to_contain_text("0 – 1, the last")
    await expect(chat.page.get_by_role("figure").filter(has_text="Time to first token")).to_contain_text("5 requests")
    assert await violations(chat.page) == []


async def test_files_are_dropped_on_the_chat_or_chosen_there_and_may_be_kept_private(
    scripted_chat: ChatPage, script: FakeApi, tmp_path: Path
) -> None:
    chat = scripted_chat
    names = ["one.txt", "two.txt", "three.txt"]
    dropped = await chat.page.evaluate_handle(
        """(names) => {
          const dropped = new DataTransfer();
          for (const name of names) dropped.items.add(new File([name], name));
          return dropped;
        }""",
        names,
    )
    for event in ("dragenter", "dragover", "drop"):
        await chat.page.dispatch_event("#transcript", event, {"dataTransfer": dropped})
    results = chat.page.get_by_role("list", name="Upload results").get_by_role("listitem")
    await expect(results).to_have_count(3)
    for result in await results.all():
        await expect(result).to_contain_text("Added: 1 passage")
    await chat.page.get_by_label("Keep private").check()
    await chat.press("Back to the chat")
    await chat.page.reload()
    await expect(chat.page.get_by_label("Keep private")).to_be_checked()
    file = tmp_path / "secret.txt"
    file.write_text("secret")
    async with chat.page.expect_file_chooser() as chooser:
        await chat.press("Add documents")
    await (await chooser.value).set_files(str(file))
    await expect(results).to_contain_text("Added: 1 passage")
    rows = chat.page.get_by_role("row")
    await expect(rows.filter(has_text="secret.txt")).to_contain_text("private")
    await expect(rows.filter(has_text="private")).to_have_count(1)
    assert {name: item["is_private"] for name, item in script.documents.items()} == {
        **dict.fromkeys(names, False),
        "secret.txt": True,
    }
    assert await violations(chat.page) == []
    await chat.page.get_by_label("Keep private").uncheck()


async def test_results_go_with_their_collection_once_seen_and_toasts_with_their_view(
    scripted_chat: ChatPage, script: FakeApi, tmp_path: Path
) -> None:
    chat = scripted_chat
    collections = chat.page.get_by_role("group", name="Collections")
    files = [tmp_path / name for name in ("one.txt", "two.txt", "three.txt")]
    for file in files:
        file.write_text("text")
    results = await chat.upload(files[0])
    await expect(results).to_contain_text("Added: 1 passage")
    await chat.press("Dismiss results")
    await expect(results).to_have_count(0)
    await expect(chat.page.get_by_role("button", name="Dismiss results")).to_be_hidden()

    await collections.get_by_role("button", name="Sample handbook").click()
    await expect(chat.page.locator("#drop-target")).to_have_text("Sample handbook")
    script.job_lasts = True
    await chat.upload(*files[1:])
    await expect(results.first).to_contain_text("being read")
    await collections.get_by_role("button", name="My documents").click()
    await chat.view("Chat")
    script.job_lasts = False
    await expect(chat.page.locator("#uploads .added")).to_have_count(2, timeout=PATIENCE_MS)  # out of sight
    assert {name: item["collection"] for name, item in script.documents.items()} == {
        "one.txt": "default",
        "two.txt": "handbook",
        "three.txt": "handbook",
    }
    await chat.view("Documents")
    await expect(results.last).to_be_visible()
    await collections.get_by_role("button", name="All").click()
    await expect(results).to_have_count(0)

    await chat.page.get_by_role("button", name="Read one.txt again").click()
    said = chat.page.get_by_text("Read “one.txt” again")
    heading = await chat.page.get_by_role("heading", name="Documents").bounding_box()
    box = await said.bounding_box()
    assert heading
    assert box
    assert box["y"] >= heading["y"] + heading["height"]
    await chat.view("Status")
    await expect(said).to_have_count(0)


async def test_upload_is_cancelled_and_feedback_saved(scripted_chat: ChatPage, script: FakeApi, tmp_path: Path) -> None:
    chat = scripted_chat
    script.job_lasts = True
    files = [tmp_path / name for name in ("long.txt", "never.txt")]
    for file in files:
        file.write_text("text")
    results = await chat.upload(*files)
    await expect(results.first).to_contain_text("being read")
    await chat.press("Cancel all")
    await expect(results.first).to_contain_text("Not added: it was cancelled")
    await expect(results.nth(1)).to_contain_text("Not added: it was cancelled")
    await expect(chat.page.get_by_role("button", name="Cancel all")).to_be_hidden()
    assert list(script.documents) == ["long.txt"]  # the other one was never sent
    await chat.press("Settings")
    async with chat.page.expect_download() as download:
        await chat.press("Export feedback")
    assert (await download.value).suggested_filename == "feedback.jsonl"
