"""The page's Gradio components and their events. What the handlers do is in `ui.chat`.

Gradio carries the chat: the question, the answer as it grows, stopping it. Everything else of the page is its own HTML
and script (`ui/static`) over the routes of `ui.routes`. The script starts events through two components that are never
seen: `command` for what makes an answer, `opening` for showing another conversation.
"""

import re
from collections.abc import AsyncGenerator
from contextlib import aclosing
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import gradio as gr

from ui.chat import Chat, Chats, Frame
from ui.icons import icon
from ui.options import chat_options
from ui.routes import key_of
from ui.tabs import Tabs

STATIC = Path(__file__).parent / "static"
STYLES = ("shell.css", "chat.css", "library.css")
SCRIPTS = ("core.js", "chat.js", "sidebar.js", "library.js", "viewer.js", "settings.js", "status.js")

Updates = dict[Any, Any]


@dataclass(frozen=True)
class _Page:
    """The components that handlers change or listen to."""

    session_id: Any
    options: Any
    command: Any
    opening: Any
    welcome: Any
    earlier: Any
    live: Any
    sources: Any
    question: Any
    send: Any
    stop: Any

    @property
    def chat_outputs(self) -> list[Any]:
        """Components that a Frame can change."""
        return [self.welcome, self.earlier, self.live, self.sources, self.question, self.send, self.stop]

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
        if frame.has_turns is not None:
            updates[self.welcome] = gr.update(visible=not frame.has_turns)
        # Gradio wants at least one update from a generator's step.
        return updates or {self.welcome: gr.skip()}


def build_blocks(chats: Chats) -> Any:
    """The page as Gradio Blocks, wired to `chats`."""
    with gr.Blocks(title="Ragstone", analytics_enabled=False, fill_width=True) as blocks:
        _wire(blocks, _lay_out(), chats)
    return blocks


def head() -> str:
    """Style and script of the page. Gradio's `css` option puts a prefix to every selector, which breaks some."""
    style = "\n".join((STATIC / name).read_text(encoding="utf-8") for name in STYLES)
    script = "\n".join((STATIC / name).read_text(encoding="utf-8") for name in SCRIPTS)
    return f"<style>{style}</style><script>{script}</script>"


def _lay_out() -> _Page:
    session_id = gr.Textbox(visible="hidden", label="Conversation id", elem_id="session-id")
    options = gr.Textbox(visible="hidden", label="Options", elem_id="options")
    command = _html("", elem_id="command", js_on_load="ragstone.wire('command', trigger)")
    opening = _html("", elem_id="opening", js_on_load="ragstone.wire('opening', trigger)")
    with gr.Row(elem_id="shell"):
        _html(_static("sidebar.html"), elem_id="sidebar")
        with gr.Column(elem_id="main", min_width=0):
            _html(_static("topbar.html"), elem_id="topbar")
            with gr.Column(elem_id="chat", min_width=0):
                with gr.Column(elem_id="transcript"):
                    welcome = _html(_static("welcome.html"), elem_id="welcome")
                    earlier = _html("", elem_id="earlier")
                    live = _html("", elem_id="live")
                    sources = _html("", elem_id="sources")
                with gr.Column(elem_id="composer", min_width=0):
                    question = gr.Textbox(
                        label="Your question",
                        show_label=False,
                        placeholder="Ask about your documents",
                        lines=1,
                        max_lines=8,
                        autofocus=True,
                        container=False,
                        elem_id="question",
                    )
                    with gr.Row(elem_id="composer-bar", equal_height=True):
                        _html(_static("composer.html"), elem_id="composer-options")
                        send = gr.Button("Send", variant="primary", elem_id="send", min_width=0, scale=0)
                        stop = gr.Button("Stop", variant="stop", visible=False, elem_id="stop", min_width=0, scale=0)
            _html(_static("documents.html"), elem_id="documents")
            _html(_static("status.html"), elem_id="status-view")
    _html(_static("dialogs.html"), elem_id="dialogs")
    return _Page(
        session_id=session_id,
        options=options,
        command=command,
        opening=opening,
        welcome=welcome,
        earlier=earlier,
        live=live,
        sources=sources,
        question=question,
        send=send,
        stop=stop,
    )


def _html(value: str, **options: Any) -> Any:
    return gr.HTML(value, apply_default_css=False, **{"js_on_load": None, **options})


def _static(name: str) -> str:
    """A file of `ui/static` with its icons, written there as `{{name}}`, drawn."""
    text = (STATIC / name).read_text(encoding="utf-8")
    return re.sub(r"\{\{(\w+)\}\}", lambda match: icon(match[1]), text)


def _wire(blocks: Any, page: _Page, chats: Chats) -> None:
    tabs = Tabs()

    async def ask(question: str, session_id: str, options: str, request: gr.Request) -> AsyncGenerator[Updates]:
        frames = chats.of(key_of(request)).ask(question, session_id, chat_options(options))
        async with aclosing(tabs.showing(str(request.session_hash), session_id, frames)) as shown:
            async for frame in shown:
                yield page.updates(frame)

    async def command(event: gr.EventData, request: gr.Request) -> AsyncGenerator[Updates]:
        frames = _command(chats.of(key_of(request)), event)
        tab, is_watching = str(request.session_hash), event.kind == "watch"
        async with aclosing(tabs.showing(tab, str(event.session_id), frames, ends_when_left=is_watching)) as shown:
            async for frame in shown:
                yield page.updates(frame)

    async def open_page(session_id: str, request: gr.Request) -> Updates:
        frame = await chats.of(key_of(request)).restore(session_id)
        return {page.session_id: session_id, **page.updates(frame)}

    async def open_another(event: gr.EventData, request: gr.Request) -> Updates:
        leaving, session_id = str(event.leaving), str(event.session_id)
        if leaving != session_id:
            tabs.leave(str(request.session_hash), leaving)
        frame = await chats.of(key_of(request)).turn_to(session_id)
        return {page.session_id: session_id, **page.updates(frame)}

    def stop(session_id: str, request: gr.Request) -> None:
        chats.of(key_of(request)).stop(session_id)

    private = {"api_visibility": "private", "show_progress": "hidden"}
    # Nobody waits for anybody here: the engine does the queueing.
    making = {"outputs": page.chat_outputs, "show_progress": "hidden", "concurrency_limit": None}
    gr.on(
        [page.send.click, page.question.submit],
        ask,
        inputs=[page.question, page.session_id, page.options],
        js="ragstone.asking",
        # One of a conversation that was left may still be coming. That no question goes out twice the script sees to.
        trigger_mode="multiple",
        api_name="ask",
        **making,
    )
    page.command.click(command, trigger_mode="multiple", api_visibility="private", **making)
    page.stop.click(stop, inputs=[page.session_id], queue=False, js="ragstone.stopping", **private)
    opening = {"outputs": [page.session_id, *page.chat_outputs], "queue": False, **private}
    for opened in (
        blocks.load(open_page, inputs=[page.session_id], js="ragstone.conversation", **opening),
        page.opening.click(open_another, trigger_mode="multiple", **opening),
    ):
        # The script sees whether that is still the conversation that is wanted.
        opened.success(None, inputs=[page.session_id], js="ragstone.opened", **private)


def _command(chat: Chat, event: Any) -> AsyncGenerator[Frame]:
    """The frames of what the script asks for: `kind` is "ask", "edit", "retry", "continue" or "watch"."""
    session_id, options = str(event.session_id), chat_options(event.options)
    match str(event.kind):
        case "ask":
            return chat.ask(str(event.text), session_id, options)
        case "edit":
            return chat.edit(int(event.index), str(event.text), session_id, options)
        case "continue":
            return chat.go_on(session_id, options)
        case "watch":
            return chat.watch(session_id)
        case _:
            return chat.retry(session_id, options)
