"""HTML for what the chat page shows. Everything that came from a person, a document or the model is escaped here.

Two rules: questions, titles, headings and passages are plain text, shown letter for letter; an answer is Markdown in
which raw HTML is text, images are text and links lead only to http(s) and mailto. Page structure and styles are
elsewhere.
"""

from collections.abc import Sequence
from html import escape
from typing import Any

from markdown_it import MarkdownIt
from markdown_it.renderer import RendererHTML
from markdown_it.token import Token

from ui.client import Document, Health, UploadResult
from ui.conversation import Conversation, Source, Turn, TurnState

PREVIEW_CHARS = 180
NUM_LISTED_DOCUMENTS = 200
OWN_COLLECTION = "default"  # where uploads go
_LINK_SCHEMES = ("http://", "https://", "mailto:")


def _may_link(url: str) -> bool:
    return url.lower().startswith(_LINK_SCHEMES)


def _image_as_text(self: RendererHTML, tokens: Sequence[Token], index: int, options: Any, env: Any) -> str:
    # An image would be loaded as soon as it is shown, telling its server who reads what.
    token = tokens[index]
    return escape(f"![{token.content}]({token.attrs.get('src', '')})")


def _link_open(self: RendererHTML, tokens: Sequence[Token], index: int, options: Any, env: Any) -> str:
    tokens[index].attrs.update({"target": "_blank", "rel": "noopener noreferrer nofollow"})
    return self.renderToken(tokens, index, options, env)


def _markdown() -> MarkdownIt:
    markdown = MarkdownIt("commonmark", {"html": False, "breaks": True}).enable(["table", "strikethrough"])
    markdown.validateLink = _may_link  # type: ignore[method-assign]
    markdown.add_render_rule("image", _image_as_text)
    markdown.add_render_rule("link_open", _link_open)
    return markdown


_MARKDOWN = _markdown()


def _valid(text: str) -> str:
    """`text` with surrogate pairs joined and lone surrogates, which no page can hold, replaced by U+FFFD."""
    return text if text.isascii() else text.encode("utf-16", "surrogatepass").decode("utf-16", "replace")


def text_html(text: str) -> str:
    """`text` letter for letter, fit for an element and for a quoted attribute."""
    return escape(_valid(text))


def answer_html(markdown: str) -> str:
    """An answer's Markdown as HTML that cannot load or run anything."""
    return str(_MARKDOWN.render(_valid(markdown)))


def turns_html(turns: Sequence[Turn]) -> str:
    """Finished turns, each with its sources."""
    return "".join(f'<article class="turn">{turn_html(turn)}{sources_html(turn)}</article>' for turn in turns)


def turn_html(turn: Turn, waited_s: float = 0.0) -> str:
    """Question and answer of one turn, without its sources. `waited_s`: seconds since it was asked, while open."""
    return (
        '<div class="question" data-testid="user"><h3 class="sr-only">You</h3>'
        f'<div class="bubble" dir="auto">{text_html(turn.question)}</div></div>'
        f'<div class="answer" data-testid="bot" aria-busy="{str(turn.is_open).lower()}">'
        f'<h3 class="sr-only">Ragstone</h3>{_answer_body(turn, waited_s)}</div>'
    )


def _answer_body(turn: Turn, waited_s: float) -> str:
    parts = []
    if turn.answer:
        cursor = " streaming" if turn.state is TurnState.STREAMING else ""
        parts.append(f'<div class="text{cursor}" dir="auto">{answer_html(turn.answer)}</div>')
    if turn.is_open and not turn.answer:
        parts.append(
            f'<p class="waiting">{_waiting_text(turn, waited_s)}<span class="dots" aria-hidden="true"></span></p>'
        )
    if turn.state is TurnState.STOPPED:
        parts.append('<p class="mark">(stopped)</p>')
    if turn.error:
        parts.append(f'<p class="error" role="alert">{text_html(turn.error)}</p>')
    if turn.state is TurnState.DONE and not turn.answer.strip():
        parts.append('<p class="mark">(the model gave an empty answer)</p>')
    if turn.answer and not turn.is_open:
        parts.append('<div class="tools"><button type="button" data-copy>Copy answer</button></div>')
    return "".join(parts)


def _waiting_text(turn: Turn, waited_s: float) -> str:
    doing = "Searching your documents" if turn.sources is None else "Reading the passages"
    # Whole seconds only: the page is repainted far more often than the number changes.
    return f"{doing} ({int(waited_s)} s)" if waited_s >= 2 else doing


def sources_html(turn: Turn) -> str:
    """The sources under an answer: a card each, with title, page or heading, and the passage's text."""
    if turn.sources is None:
        return ""
    if not turn.sources:
        return "" if turn.is_open else '<p class="mark no-sources">No passage of your documents fits this question.</p>'
    cards = "".join(_source_html(source) for source in turn.sources)
    title = "Nearest passages" if turn.not_found else "Sources"
    return f'<section class="sources" aria-label="Sources"><h4>{title}</h4>{cards}</section>'


def _source_html(source: Source) -> str:
    locator = f'<span class="locator">{text_html(_locator(source))}</span>' if _locator(source) else ""
    score = "" if source.score is None else f' title="Match {source.score:.2f} of 1"'
    return (
        f'<details class="source" data-document="{text_html(source.document_id)}"><summary{score}>'
        f'<span class="number">{source.n}</span>'
        f'<span class="title" dir="auto">{text_html(source.title)}</span>{locator}'
        f'<span class="preview" dir="auto">{text_html(_preview(source.text))}</span></summary>'
        f'<div class="passage" dir="auto">{text_html(source.text)}</div></details>'
    )


def _locator(source: Source) -> str:
    page = "" if source.page is None else f"page {source.page}"
    return " · ".join(part for part in (page, source.heading or "") if part)


def _preview(text: str) -> str:
    flat = " ".join(text.split())
    return flat if len(flat) <= PREVIEW_CHARS else flat[:PREVIEW_CHARS].rsplit(" ", 1)[0] + " …"


def conversation_html(conversation: Conversation) -> tuple[str, str, str]:
    """(earlier turns, newest turn, its sources): apart, so that a repaint costs the same in a long conversation."""
    last = conversation.last
    if last is None:
        return "", "", ""
    return turns_html(conversation.turns[:-1]), turn_html(last), sources_html(last)


def health_html(health: Health) -> str:
    """The state of the server as a small mark in the page's head."""
    label = {"ready": "Ready", "starting": "Starting", "unhealthy": "Not well"}.get(health.status, "No connection")
    kind = health.status if health.status in ("ready", "starting") else "bad"
    return f'<span class="status {kind}" role="status"><span class="dot" aria-hidden="true"></span>{label}</span>'


def notice_html(health: Health) -> str:
    """What to say across the page while the server cannot answer; nothing when it can."""
    if health.is_ready:
        return ""
    headline = {
        "starting": "The server is starting. This page will be ready by itself.",
        "unhealthy": "The server is running but cannot answer at the moment.",
    }.get(health.status, "The server cannot be reached. This page will connect again by itself.")
    reason = f'<span class="reason">{text_html(health.reason)}</span>' if health.reason else ""
    kind = "starting" if health.status == "starting" else "bad"
    return f'<div class="notice {kind}" role="status"><strong>{headline}</strong>{reason}</div>'


def uploads_html(results: Sequence[UploadResult], pending: Sequence[str] = ()) -> str:
    """One line for each file of an upload: what became of it, then those still to come."""
    lines = [_upload_line(result) for result in results]
    lines += [
        f'<li class="pending"><b dir="auto">{text_html(name)}</b> <span>waiting</span></li>' for name in pending[1:]
    ]
    if pending:
        now = f'<li class="pending"><b dir="auto">{text_html(pending[0])}</b> <span>being read …</span></li>'
        lines.insert(len(results), now)
    if not lines:
        return ""
    return f'<div role="status"><ul class="uploads" aria-label="Upload results">{"".join(lines)}</ul></div>'


def _upload_line(result: UploadResult) -> str:
    name = f'<b dir="auto">{text_html(result.name)}</b>'
    if result.status == "failed":
        return f'<li class="failed">{name} <span>Not added: {text_html(result.reason or "no reason given")}</span></li>'
    said = {"added": "Added", "updated": "Updated", "unchanged": "Already there"}.get(result.status, result.status)
    counts = _counts(result.num_chunks, result.num_pages)
    line = f"{text_html(said)}: {counts}" if counts else text_html(said)
    if result.reason:  # taken in, but not all of it could be read
        line += f"; {text_html(result.reason)}"
    return f'<li class="{text_html(result.status)}">{name} <span>{line}</span></li>'


def documents_html(documents: Sequence[Document]) -> str:
    """The documents, each with a button to remove it: those that people added first, other collections folded away."""
    if not documents:
        return '<p class="mark">No documents yet. Add one above.</p>'
    own = [document for document in documents if document.collection == OWN_COLLECTION]
    names = sorted({document.collection for document in documents} - {OWN_COLLECTION})
    folded = [
        f'<details class="collection"><summary>{text_html(_collection_label(name))} ({len(group)})</summary>'
        f"{_document_list(_collection_label(name), group)}</details>"
        for name in names
        if (group := [document for document in documents if document.collection == name])
    ]
    return (_document_list("Added by you", own) if own else "") + "".join(folded)


def _collection_label(name: str) -> str:
    return {"handbook": "Sample handbook", OWN_COLLECTION: "Added by you"}.get(name, name)


def _document_list(label: str, documents: Sequence[Document]) -> str:
    items = "".join(_document_line(document) for document in documents[:NUM_LISTED_DOCUMENTS])
    if len(documents) > NUM_LISTED_DOCUMENTS:
        items += f"<li><span>and {len(documents) - NUM_LISTED_DOCUMENTS} more</span></li>"
    return f'<ul class="documents" aria-label="{text_html(label)}">{items}</ul>'


def _document_line(document: Document) -> str:
    title = text_html(document.title)
    return (
        f'<li><div><b dir="auto">{title}</b><span>{_document_facts(document)}</span></div>'
        f'<button type="button" class="remove" data-remove="{text_html(document.document_id)}" data-title="{title}" '
        f'aria-label="Remove {title}">Remove</button></li>'
    )


def _document_facts(document: Document) -> str:
    facts = [_counts(document.num_chunks, document.num_pages)]
    if document.source and document.source != document.title:
        facts.insert(0, text_html(document.source.replace("\\", "/").rsplit("/", 1)[-1]))
    return " · ".join(fact for fact in facts if fact)


def _counts(num_chunks: int, num_pages: int) -> str:
    passages = f"{num_chunks} passage{'' if num_chunks == 1 else 's'}" if num_chunks else ""
    pages = f"{num_pages} pages" if num_pages > 1 else ""
    return ", ".join(part for part in (passages, pages) if part)
