"""The chat page itself: Gradio components, their wiring, and the ASGI app that serves them.

What the handlers do is in `ui.chat` and `ui.documents`, how things look in `ui/static`, how text becomes HTML in
`ui.rendering`.
"""

import contextlib
from collections.abc import AsyncGenerator, AsyncIterator
from contextlib import aclosing
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import gradio as gr
from fastapi import FastAPI

from ui.chat import Chat, Frame
from ui.client import ApiClient, Health
from ui.documents import Library
from ui.rendering import health_html, notice_html
from ui.security import SecurityHeaders
from ui.settings import UISettings
from ui.theme import ragstone_theme

STATIC = Path(__file__).parent / "static"
HEALTH_EVERY_S = 3.0
# Uploaded files are deleted as soon as they have been sent on; this sweeps up after crashes (seconds).
DELETE_CACHE = (3600, 24 * 3600)

EXAMPLE_QUESTIONS = (
    "What does TTFT measure?",
    "Why is decode limited by memory bandwidth?",
    "How does prefix caching save work?",
)

_HEADER = (STATIC / "header.html").read_text(encoding="utf-8")
_WELCOME = (STATIC / "welcome.html").read_text(encoding="utf-8")
_DOCUMENTS_HEAD = (
    "<h2>Documents</h2><p class='hint'>PDF, Office, e-books, mail, web pages, tables, text and code. "
    "What you add is searched at once.</p>"
)
_REMOVE_CLICK = """
element.addEventListener('click', (event) => {
  const button = event.target.closest('[data-remove]');
  if (button && window.confirm(`Remove “${button.dataset.title}” from your documents?`)) {
    trigger('click', { document_id: button.dataset.remove });
  }
});
"""

Updates = dict[Any, Any]


@dataclass(frozen=True)
class _Page:
    """The components that handlers change."""

    status: Any
    notice: Any
    session_id: Any
    welcome: Any
    examples: list[Any]
    earlier: Any
    live: Any
    sources: Any
    retry: Any
    question: Any
    send: Any
    stop: Any
    new: Any
    uploads: Any
    upload_results: Any
    documents: Any

    @property
    def chat_outputs(self) -> list[Any]:
        """Components that a Frame can change."""
        return [
            self.welcome,
            self.earlier,
            self.live,
            self.sources,
            self.retry,
            self.question,
            self.send,
            self.stop,
        ]

    def updates(self, frame: Frame) -> Updates:
        """A frame as component updates; components that are not named stay as they are."""
        updates: Updates = {
            component: value
            for component, value in (
                (self.earlier, frame.earlier),
                (self.live, frame.live),
                (self.sources, frame.sources),
                (self.question, frame.question),
            )
            if value is not None
        }
        if frame.is_busy is not None:
            updates[self.send] = gr.update(visible=not frame.is_busy)
            updates[self.stop] = gr.update(visible=frame.is_busy)
            updates[self.retry] = gr.update(visible=not frame.is_busy)
        if frame.has_turns is not None:
            updates[self.welcome] = gr.update(visible=not frame.has_turns)
            if not frame.has_turns:
                updates[self.retry] = gr.update(visible=False)
        # Gradio wants at least one update from a generator's step.
        return updates or {self.welcome: gr.skip()}


def build_blocks(client: ApiClient) -> Any:
    """The page as Gradio Blocks, wired to `client`."""
    with gr.Blocks(title="Ragstone", analytics_enabled=False, delete_cache=DELETE_CACHE, fill_width=True) as blocks:
        page = _lay_out()
        _wire_chat(blocks, page, Chat(client))
        _wire_library(blocks, page, Library(client))
        _wire_health(blocks, page, client)
    return blocks


def _lay_out() -> _Page:
    with gr.Row(elem_id="header", equal_height=True):
        _html(_HEADER, elem_id="brand")
        status = _html("", elem_id="status")
        gr.Button("Documents", size="sm", elem_id="documents-toggle", min_width=0).click(
            None, js="ragstone.toggleDocuments"
        )
        new = gr.Button("New conversation", size="sm", elem_id="new", min_width=0)
    notice = _html("", elem_id="notice")
    session_id = gr.Textbox(visible="hidden", label="Conversation id", elem_id="session-id")
    with gr.Row(elem_id="columns"):
        with gr.Column(elem_id="chat", min_width=0):
            with gr.Column(elem_id="transcript"):
                with gr.Column(elem_id="welcome") as welcome:
                    _html(_WELCOME)
                    examples = [gr.Button(text, elem_classes="example") for text in EXAMPLE_QUESTIONS]
                earlier = _html("", elem_id="earlier")
                live = _html("", elem_id="live")
                sources = _html("", elem_id="sources")
                retry = gr.Button("Retry", size="sm", visible=False, elem_id="retry", min_width=0)
            with gr.Row(elem_id="composer", equal_height=True):
                question = gr.Textbox(
                    label="Your question",
                    show_label=False,
                    placeholder="Ask about your documents",
                    lines=1,
                    max_lines=8,
                    autofocus=True,
                    container=False,
                    elem_id="question",
                    scale=1,
                )
                send = gr.Button("Send", variant="primary", elem_id="send", min_width=0, scale=0)
                stop = gr.Button("Stop", variant="stop", visible=False, elem_id="stop", min_width=0, scale=0)
        with gr.Column(elem_id="documents", min_width=0):
            _html(_DOCUMENTS_HEAD)
            uploads = gr.File(label="Add documents", file_count="multiple", elem_id="uploads", height=132)
            upload_results = _html("", elem_id="upload-results")
            documents = _html("", elem_id="document-list", js_on_load=_REMOVE_CLICK)
    return _Page(
        status=status,
        notice=notice,
        session_id=session_id,
        welcome=welcome,
        examples=examples,
        earlier=earlier,
        live=live,
        sources=sources,
        retry=retry,
        question=question,
        send=send,
        stop=stop,
        new=new,
        uploads=uploads,
        upload_results=upload_results,
        documents=documents,
    )


def _html(value: str, **options: Any) -> Any:
    return gr.HTML(value, apply_default_css=False, **{"js_on_load": None, **options})


def _wire_chat(blocks: Any, page: _Page, chat: Chat) -> None:
    async def ask(question: str, session_id: str) -> AsyncGenerator[Updates]:
        async with aclosing(chat.ask(question, session_id)) as frames:
            async for frame in frames:
                yield page.updates(frame)

    async def retry(session_id: str) -> AsyncGenerator[Updates]:
        async with aclosing(chat.retry(session_id)) as frames:
            async for frame in frames:
                yield page.updates(frame)

    async def ask_example(question: str, session_id: str) -> AsyncGenerator[Updates]:
        async with aclosing(ask(question, session_id)) as updates:
            async for update in updates:
                yield update

    async def open_page(session_id: str) -> Updates:
        return {page.session_id: session_id, **page.updates(await chat.restore(session_id))}

    async def start_new(session_id: str, new_session_id: str) -> Updates:
        return {page.session_id: new_session_id, **page.updates(await chat.leave(session_id, new_session_id))}

    def stop(session_id: str) -> None:
        chat.stop(session_id)

    # Nobody waits for anybody here: the engine does the queueing.
    options = {"outputs": page.chat_outputs, "show_progress": "hidden", "concurrency_limit": None}
    private = {"api_visibility": "private", "show_progress": "hidden"}
    asking = [page.send.click, page.question.submit]
    gr.on(asking, ask, inputs=[page.question, page.session_id], api_name="ask", **options)
    page.retry.click(retry, inputs=[page.session_id], api_visibility="private", **options)
    for button, question in zip(page.examples, EXAMPLE_QUESTIONS, strict=True):
        handler = partial(ask_example, question)
        button.click(handler, inputs=[page.session_id], api_visibility="private", **options)
    page.stop.click(stop, inputs=[page.session_id], queue=False, **private)
    opening = {"outputs": [page.session_id, *page.chat_outputs], "queue": False, **private}
    blocks.load(open_page, inputs=[page.session_id], js="ragstone.conversation", **opening)
    page.new.click(start_new, inputs=[page.session_id, page.session_id], js="ragstone.newConversation", **opening)


def _wire_library(blocks: Any, page: _Page, library: Library) -> None:
    private = {"api_visibility": "private", "show_progress": "hidden", "concurrency_limit": None}

    async def upload(paths: list[str] | None) -> AsyncGenerator[Updates]:
        async with aclosing(library.upload([Path(path) for path in paths or []])) as steps:
            async for step in steps:
                updates: Updates = {page.upload_results: step.results}
                if step.documents is not None:
                    updates |= {page.documents: step.documents, page.uploads: None}
                yield updates

    async def remove(event: gr.EventData) -> str:
        return await library.remove(str(event.document_id))

    outputs = [page.upload_results, page.documents, page.uploads]
    page.uploads.upload(upload, inputs=[page.uploads], outputs=outputs, **private)
    page.documents.click(remove, outputs=[page.documents], **private)


def _wire_health(blocks: Any, page: _Page, client: ApiClient) -> None:
    seen = gr.State(None)
    library = Library(client)

    async def look(previous: Health | None) -> Updates:
        health = await client.health()
        if health == previous:
            return {seen: gr.skip()}
        updates: Updates = {seen: health, page.status: health_html(health), page.notice: notice_html(health)}
        if health.is_ready:
            updates[page.documents] = await library.listing()
        return updates

    options = {
        "inputs": [seen],
        "outputs": [seen, page.status, page.notice, page.documents],
        "queue": False,
        "show_progress": "hidden",
        "api_visibility": "private",
    }
    blocks.load(look, **options)
    gr.Timer(HEALTH_EVERY_S).tick(look, **options)


def _head() -> str:
    """Style and script of the page. Gradio's `css` option puts a prefix to every selector, which breaks some."""
    style = (STATIC / "style.css").read_text(encoding="utf-8")
    script = (STATIC / "chat.js").read_text(encoding="utf-8")
    return f"<style>{style}</style><script>{script}</script>"


def create_app(settings: UISettings) -> FastAPI:
    """The page as an ASGI app. Set the environment of Gradio (see `ui.__main__`) before this module is imported."""
    client = ApiClient(settings.api_url)

    @contextlib.asynccontextmanager
    async def lifespan(_: FastAPI) -> AsyncIterator[None]:
        yield
        await client.aclose()

    app = FastAPI(lifespan=lifespan, openapi_url=None, docs_url=None, redoc_url=None)
    app.add_middleware(SecurityHeaders)
    blocks = build_blocks(client).queue(default_concurrency_limit=None)
    gr.mount_gradio_app(
        app,
        blocks,
        path="/",
        theme=ragstone_theme(),
        head=_head(),
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
