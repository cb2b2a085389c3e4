"""The page's own routes, before the scripted API: whose key goes with a call, what is refused, what is passed on."""

from collections.abc import AsyncIterator

import httpx
import pytest
from fastapi import FastAPI

from tests.ui.fake_api import METRICS, PNG, FakeApi
from ui.chat import Chats
from ui.client import ApiClient
from ui.metrics import readings
from ui.routes import install_routes

FROM_PAGE = {"X-Ragstone-Page": "1"}


@pytest.fixture
async def page(client: ApiClient) -> AsyncIterator[httpx.AsyncClient]:
    app = FastAPI()
    install_routes(app, client, Chats(client), max_upload_bytes=10)
    transport = httpx.ASGITransport(app)
    async with httpx.AsyncClient(transport=transport, base_url="http://page", headers=FROM_PAGE) as page:
        yield page


async def test_change_that_another_origins_page_may_send_is_refused(page: httpx.AsyncClient, api: FakeApi) -> None:
    del page.headers["X-Ragstone-Page"]
    api.turns["s"], api.titles["s"] = [], "kept"
    reply = await page.delete("/page/conversation?session_id=s")
    assert (reply.status_code, list(api.turns)) == (403, ["s"])
    assert (await page.get("/page/conversations")).status_code == 200


async def test_key_is_tried_kept_out_of_sight_of_scripts_and_forgotten(page: httpx.AsyncClient, api: FakeApi) -> None:
    api.key = "right"
    assert (await page.get("/page/conversations")).status_code == 401
    for key in ("wrong", "", "é"):
        reply = await page.post("/page/login", json={"key": key})
        assert (reply.status_code, "set-cookie" in reply.headers) == (401, False)
    reply = await page.post("/page/login", json={"key": " right "})
    assert "HttpOnly" in reply.headers["set-cookie"]
    assert "SameSite=strict" in reply.headers["set-cookie"]
    assert (await page.get("/page/conversations")).status_code == 200
    assert (await page.get("/page/session")).json() == {"has_key": True}
    await page.post("/page/logout")
    assert (await page.get("/page/conversations")).status_code == 401


async def test_refusal_of_the_api_keeps_its_status_and_words(page: httpx.AsyncClient, api: FakeApi) -> None:
    reply = await page.get("/page/documents/gone/view")
    assert (reply.status_code, reply.json()) == (404, {"error": "no such document"})
    api.stop()
    try:
        reply = await page.get("/page/conversations")
        assert reply.status_code == 502
        assert "cannot be reached" in reply.json()["error"]
        assert "No connection" in (await page.get("/page/health")).json()["status"]
    finally:
        api.start()


async def test_files_go_through_unchanged(page: httpx.AsyncClient, api: FakeApi) -> None:
    form = {"files": ("a b.pdf", b"content", "application/pdf")}
    reply = await page.post("/page/upload", files=form, data={"collection": "mine"})
    assert (await page.get(f"/page/jobs/{reply.json()['job_id']}")).json()["status"] == "running"
    assert api.documents["a b.pdf"]["collection"] == "mine"
    original = await page.get("/page/documents/a b.pdf/original")
    assert original.content == b"content"
    assert original.headers["content-disposition"] == 'attachment; filename="a b.pdf"'
    image = await page.get("/page/documents/a b.pdf/pages/1.png")
    assert (image.content, image.headers["content-type"]) == (PNG, "image/png")


async def test_conversation_whose_id_holds_slashes_is_renamed(page: httpx.AsyncClient, api: FakeApi) -> None:
    api.turns["a b"], api.titles["a b"] = [], "old"
    await page.patch("/page/conversation", params={"session_id": "a b"}, json={"title": "new"})
    assert api.titles["a b"] == "new"


def test_metrics_are_read_as_numbers_and_histograms_by_bucket() -> None:
    assert readings(METRICS) == {
        "num_running": 1.0,
        "num_waiting": 2.0,
        "kv_usage": 0.25,
        "num_output_tokens": 40.0,
        "num_prefix_queries": 200.0,
        "num_prefix_hits": 100.0,
        "first_token_s": [(0.1, 1.0), (1.0, 3.0), (None, 1.0)],
        "model": "tiny",
    }
    assert readings("") == {"model": ""}
