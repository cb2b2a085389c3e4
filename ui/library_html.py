"""HTML of the documents' tab: collections, the table of documents, and one document opened at a page or passage."""

from collections.abc import Sequence
from datetime import datetime

from ui.icons import icon, icon_button
from ui.markdown import text_html
from ui.records import Collection, Document, Section

NUM_LISTED_DOCUMENTS = 200
HANDBOOK = "handbook"  # the sample that comes with the server
HANDBOOK_QUESTIONS = (
    "What does TTFT measure?",
    "Why is decode limited by memory bandwidth?",
    "How does prefix caching save work?",
)
OWN_COLLECTION = "default"  # where uploads go, unless another is chosen
_PRIVATE = f'<span class="private" title="Shown to models on this machine only">{icon("lock")}private</span>'


def collection_label(name: str) -> str:
    """What people read in place of a collection's name."""
    return {"": "All", HANDBOOK: "Sample handbook", OWN_COLLECTION: "My documents"}.get(name, name)


def collections_html(collections: Sequence[Collection], chosen: str) -> str:
    """Tabs of the collections, "" standing for all."""
    total = sum(collection.num_documents for collection in collections)
    everything = Collection("", False, total)
    return "".join(_tab(collection, chosen) for collection in (everything, *collections))


def _tab(collection: Collection, chosen: str) -> str:
    name, label = collection.name, collection_label(collection.name)
    may_delete = collection.is_own and name != OWN_COLLECTION
    return (
        f'<button type="button" class="tab" data-act="choose-collection" data-collection="{text_html(name)}" '
        f'data-deletable="{str(may_delete).lower()}" aria-pressed="{str(name == chosen).lower()}">'
        f'<span dir="auto">{text_html(label)}</span> <span class="count">{collection.num_documents}</span></button>'
    )


def choices_html(collections: Sequence[Collection]) -> str:
    """The collections to choose from for a question."""
    return "".join(
        f'<label><input type="checkbox" name="collection" value="{text_html(collection.name)}">'
        f'<span dir="auto">{text_html(collection_label(collection.name))}</span>'
        f'<span class="count">{collection.num_documents}</span></label>'
        for collection in collections
    )


def welcome_html(documents: Sequence[Document]) -> str:
    """What there is to ask: three questions to try, on the sample handbook or on what else there is."""
    add = '<button type="button" class="link" data-act="view" data-view="documents">{}</button>'
    if not documents:
        return (
            "<p>There is nothing to ask yet: add a document first.</p>"
            '<button type="button" class="pill primary" data-act="view" data-view="documents">Add documents</button>'
        )
    if any(document.collection == HANDBOOK for document in documents):
        questions: tuple[str, ...] = HANDBOOK_QUESTIONS
        said = f"Try the sample handbook about serving language models, or {add.format('add your own documents')}."
    else:
        titles = dict.fromkeys(document.title for document in documents)
        questions = tuple(f"What does “{title}” say?" for title in titles)[: len(HANDBOOK_QUESTIONS)]
        number = "One document is" if len(documents) == 1 else f"{len(documents)} documents are"
        said = f"{number} there to ask. {add.format('Add more')} at any time."
    buttons = "".join(
        f'<button type="button" data-act="example" dir="auto">{text_html(question)}</button>' for question in questions
    )
    return f'<p>{said}</p><h3>Questions to try</h3><div class="examples">{buttons}</div>'


def documents_html(documents: Sequence[Document], query: str = "") -> str:
    """The table of documents whose title or source holds `query`."""
    wanted = query.casefold().strip()
    found = [item for item in documents if wanted in item.title.casefold() or wanted in item.source.casefold()]
    if not found:
        if documents:
            return f'<p class="empty">No document is called “{text_html(query)}”.</p>'
        return (
            f'<div class="empty big">{icon("document")}<strong>No documents here yet</strong>'
            "<p>Add files above. What you add is searched at once.</p></div>"
        )
    rows = "".join(_row(document) for document in found[:NUM_LISTED_DOCUMENTS])
    more = len(found) - NUM_LISTED_DOCUMENTS
    rest = f'<p class="empty">and {more} more: type part of a name to find them.</p>' if more > 0 else ""
    return (
        '<table class="documents"><caption class="sr-only">Documents</caption><thead><tr>'
        '<th scope="col">Document</th><th scope="col">Collection</th><th scope="col" class="number">Size</th>'
        '<th scope="col" class="number">Pages</th><th scope="col" class="number">Passages</th>'
        '<th scope="col">Added</th><th scope="col">Status</th><th scope="col"><span class="sr-only">Actions</span></th>'
        f"</tr></thead><tbody>{rows}</tbody></table>{rest}"
    )


def _row(document: Document) -> str:
    title, identity = text_html(document.title), text_html(document.document_id)
    source = text_html(document.source) if document.source != document.title else ""
    private = _PRIVATE if document.is_private else ""
    status = "Ready" if document.status in ("ready", "added", "updated", "unchanged") else document.status.capitalize()
    cells = (
        ("Collection", "", f'<span dir="auto">{text_html(collection_label(document.collection))}</span>'),
        ("Size", "number", size_text(document.size_bytes)),
        ("Pages", "number", str(document.num_pages) if document.num_pages else "–"),
        ("Passages", "number", f"{document.num_chunks:,}"),
        ("Added", "", _date_html(document.added_at)),
        ("Status", "", f'<span class="state {text_html(document.status)}">{text_html(status)}</span>'),
    )
    return (
        f'<tr data-document="{identity}" data-title="{title}"><th scope="row">'
        f'<button type="button" class="name" data-act="open-document" dir="auto">{title}</button>'
        f'<span class="source" dir="auto">{source}</span>{private}</th>'
        + "".join(f'<td class="{kind}" data-label="{label}">{value}</td>' for label, kind, value in cells)
        + '<td class="actions">'
        + icon_button("download", f"Download {title}", "download-document")
        + (_changes_html(title) if document.is_own else "")
        + "</td></tr>"
    )


def _changes_html(title: str) -> str:
    again = icon_button("retry", f"Read {title} again", "reingest-document")
    return again + icon_button("delete", f"Delete {title}", "delete-document")


def size_text(size_bytes: int) -> str:
    """A size for people: "812 B", "4.2 KB", "13 MB"."""
    size, unit = float(size_bytes), "B"
    for unit in ("B", "KB", "MB", "GB"):
        if size < 1000 or unit == "GB":
            break
        size /= 1000
    return f"{size:.0f} {unit}" if unit == "B" or size >= 10 else f"{size:.1f} {unit}"


def _date_html(iso: str) -> str:
    try:
        when = datetime.fromisoformat(iso)
    except ValueError:
        return ""
    return f'<time datetime="{text_html(iso)}">{when.day} {when:%b} {when.year}</time>'


# ── one document ─────────────────────────────────────────────────────────────────────────────────────────────────────


def viewer_html(
    document: Document, sections: Sequence[Section], page: int | None, rendered: str | None = None, quote: str = ""
) -> str:
    """A document opened: `rendered` where the API gives it as HTML, a PDF as the image of page `page`, else as text.

    Where its text is wanted (`quote`), the page's script marks it. `rendered` is shown as it is: the API has made it
    safe, and the page's policy (`ui.security`) forbids it to run or load anything.
    """
    name = document.file_name or document.title
    facts = " · ".join(part for part in (text_html(name), size_text(document.size_bytes)) if part)
    head = f'<p class="facts">{facts}</p>'
    if rendered is not None:
        return f'{head}<div class="sheet rendered" dir="auto">{rendered}</div>'
    if name.lower().endswith(".pdf") and document.num_pages:
        return head + _pdf_html(document, sections, min(max(page or 1, 1), document.num_pages), bool(quote))
    return head + f'<div class="sheet plain">{_sections_html(sections)}</div>'


def _pdf_html(document: Document, sections: Sequence[Section], page: int, has_open_text: bool) -> str:
    text = "\n\n".join(section.text for section in sections if section.page == page)
    identity = text_html(document.document_id)
    back, forth = ("disabled" if page <= 1 else ""), ("disabled" if page >= document.num_pages else "")
    turning = 'data-document="{0}" data-page="{1}" {2}'
    return (
        '<div class="pager">'
        + icon_button("previous", "Previous page", "turn-page", turning.format(identity, page - 1, back))
        + f"<span>Page {page} of {document.num_pages}</span>"
        + icon_button("next", "Next page", "turn-page", turning.format(identity, page + 1, forth))
        + f'</div><img class="page" src="page/documents/{identity}/pages/{page}.png" '
        f'alt="Page {page} of {text_html(document.title)}">'
        + (
            f'<details class="page-text" {"open" if has_open_text else ""}><summary>Text of this page</summary>'
            f'<div class="sheet plain" dir="auto">{text_html(text)}</div></details>'
            if text
            else ""
        )
    )


def _sections_html(sections: Sequence[Section]) -> str:
    parts: list[str] = []
    shown: tuple[str, ...] = ()
    for section in sections:
        if section.headings and section.headings != shown:
            shown = section.headings
            level = min(len(shown) + 2, 6)
            parts.append(f'<h{level} dir="auto">{text_html(shown[-1])}</h{level}>')
        elif section.page is not None:
            parts.append(f'<p class="page-number">Page {section.page}</p>')
        parts.append(f'<div dir="auto">{text_html(section.text)}</div>')
    return "".join(parts) or '<p class="empty">There is no text to show.</p>'
