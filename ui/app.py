"""The ASGI app of the chat page: its own routes, and the Gradio page at `/`."""

import contextlib
from collections.abc import AsyncIterator

import gradio as gr
from fastapi import FastAPI

from ui.chat import Chats
from ui.client import ApiClient
from ui.page import STATIC, build_blocks, head
from ui.routes import install_routes
from ui.security import SecurityHeaders
from ui.settings import UISettings
from ui.theme import ragstone_theme


def create_app(settings: UISettings) -> FastAPI:
    """The page as an ASGI app. Set the environment of Gradio (see `ui.__main__`) before this module is imported."""
    client = ApiClient(settings.api_url)
    chats = Chats(client)

    @contextlib.asynccontextmanager
    async def lifespan(_: FastAPI) -> AsyncIterator[None]:
        yield
        await client.aclose()

    app = FastAPI(lifespan=lifespan, openapi_url=None, docs_url=None, redoc_url=None)
    app.add_middleware(SecurityHeaders)
    install_routes(app, client, chats, settings.max_upload_bytes)
    gr.mount_gradio_app(
        app,
        build_blocks(chats).queue(default_concurrency_limit=None),
        path="/",
        theme=ragstone_theme(),
        head=head(),
        favicon_path=str(STATIC / "favicon.png"),
        footer_links=[],
        run_history=False,
        show_error=False,
        ssr_mode=False,
        pwa=False,
        mcp_server=False,
        enable_monitoring=False,
        max_file_size=settings.max_upload_bytes,
    )
    return app
