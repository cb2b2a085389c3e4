"""HTML: the readable text under its headings, tables as pipe tables. Scripts, styles and navigation are left out.

What is struck out or hidden is not in the tree that is read (`html_tree`).
"""

import re
from itertools import zip_longest

from bs4.element import Comment, NavigableString, PageElement, PreformattedString, Tag

from retrieval.errors import CorruptDocumentError, DocumentTooLargeError
from retrieval.loaders.document import LoadedDocument, TextBuilder
from retrieval.loaders.encoding import clean, decode, decode_as, has_byte_order_mark
from retrieval.loaders.html_tree import HtmlTree
from retrieval.loaders.tables import add_table

MAX_HTML_BYTES = 20 * 1024 * 1024
# The tree takes about a kilobyte an element.
MAX_HTML_ELEMENTS = 500_000
_MAX_SPAN = 50
_MAX_COLUMNS = 200
_DECLARED = re.compile(
    rb"<(?:meta|\?xml)[^>]{0,300}?(?:charset|encoding)\s*=\s*[\"']?\s*([A-Za-z0-9_.:-]{2,40})", re.IGNORECASE
)
_DROPPED = frozenset(
    {"script", "style", "noscript", "template", "nav", "footer", "svg", "canvas", "iframe", "object", "head", "button",
     "select", "datalist", "audio", "video", "dialog"}
)  # fmt: skip
_HEADINGS = {f"h{level}": level for level in range(1, 7)}
_BLOCKS = frozenset(
    {"address", "article", "aside", "blockquote", "body", "center", "dd", "details", "div", "dl", "dt", "fieldset",
     "figcaption", "figure", "form", "header", "hgroup", "hr", "html", "legend", "li", "main", "menu", "ol", "p",
     "section", "summary", "td", "th", "tr", "tbody", "thead", "ul"}
)  # fmt: skip
_SPACE = re.compile(r"[ \t\n\r\f\v]+")
# What an item of a list begins with, and a definition.
_ITEM, _DEFINED = "\n- ", ": "
_BEGINNINGS = (_ITEM, _DEFINED, "\n")


def load_html(data: bytes, fallback_title: str) -> LoadedDocument:
    """Reads HTML. Title: `<title>`, else the first heading, else the file's name. Raises LoadError."""
    if len(data) > MAX_HTML_BYTES or data.count(b"<") > 2 * MAX_HTML_ELEMENTS:
        raise DocumentTooLargeError(
            f"the page is {len(data) / 2**20:.0f} MB; HTML is read up to {MAX_HTML_BYTES // 2**20} MB and "
            f"{MAX_HTML_ELEMENTS:,} elements: split it"
        )
    return html_document(decode_html(data), fallback_title)


def html_document(markup: str, fallback_title: str) -> LoadedDocument:
    """Reads HTML that is decoded already. Raises LoadError."""
    tree = HtmlTree(markup)
    walker = _read(tree)
    if walker.builder.is_empty:
        # A page that shows nothing at all is shown by a script.
        tree = HtmlTree(markup, with_hidden=True)
        walker = _read(tree)
    title = _SPACE.sub(" ", tree.title.get_text()).strip() if tree.title else ""
    if walker.builder.is_empty and title:
        walker.builder.add(title)
    return walker.builder.build(title or walker.first_heading or fallback_title, notice=tree.notice)


def _read(tree: HtmlTree) -> "HtmlReader":
    main = tree.find("main")
    walker = HtmlReader()
    walker.read(main if isinstance(main, Tag) and len(main.get_text(strip=True)) > 200 else tree)
    return walker


def decode_html(data: bytes) -> str:
    """The markup in `data`, in the encoding that it declares, else in the one it looks like. Raises LoadError."""
    if not has_byte_order_mark(data) and (declared := _DECLARED.search(data[:4096])):
        # A page that says UTF-16 in ASCII letters cannot be UTF-16.
        name = declared[1].decode("ascii")
        text = None if name.lower().startswith(("utf-16", "utf-32")) else decode_as(data, name)
        if text is not None:
            return text
    return decode(data)


class HtmlReader:
    """Visits a tree in document order; inline text gathers in `_inline` until a block element begins or ends."""

    def __init__(self, builder: TextBuilder | None = None) -> None:
        self.builder = builder or TextBuilder()
        self.first_heading: str | None = None
        self._path: list[tuple[int, str]] = []
        self._inline: list[str] = []
        self._list_depth = 0
        self._is_term = False  # whether a term of a list has been read, and no definition of it

    def read(self, root: Tag) -> None:
        """Adds what stands below `root`, under the headings that were open before. Raises CorruptDocumentError."""
        try:
            self._visit(root)
        except RecursionError:
            raise CorruptDocumentError("the page's elements are nested too deeply to read") from None
        self._flush()

    def _visit(self, node: PageElement) -> None:
        if isinstance(node, NavigableString):
            if not isinstance(node, (Comment, PreformattedString)):
                self._inline.append(_SPACE.sub(" ", str(node)))
            return
        if not isinstance(node, Tag) or node.name in _DROPPED:
            return
        if node.name in _HEADINGS:
            self._heading(node, _HEADINGS[node.name])
        elif node.name == "table" and _is_data_table(node):
            self._flush()
            if isinstance(caption := node.find("caption"), Tag):
                self.builder.add(_SPACE.sub(" ", caption.get_text(" ")), "prose", self._headings)
            add_table(self.builder, _rows(node), self._headings)
        elif node.name == "pre":
            self._flush()
            self.builder.add(clean(node.get_text()), "code", self._headings)
        elif node.name == "br":
            self._inline.append("\n")
        elif node.name in ("ul", "ol", "dl") and self._list_depth == 0:
            self._list(node)
        elif node.name in _BLOCKS or node.name == "table":
            self._block(node)
        else:
            for child in node.children:
                self._visit(child)

    @property
    def _headings(self) -> tuple[str, ...]:
        return tuple(text for _, text in self._path)

    def _heading(self, node: Tag, level: int) -> None:
        self._flush()
        text = _SPACE.sub(" ", node.get_text(" ")).strip()
        if not text:
            return
        while self._path and self._path[-1][0] >= level:
            self._path.pop()
        self._path.append((level, text))
        self.first_heading = self.first_heading or text

    def _block(self, node: Tag) -> None:
        """A block element: a paragraph of its own, or a line of the list it stands in ("term: definition")."""
        if self._list_depth:
            begins = next((piece for piece in reversed(self._inline) if piece != " "), "\n") in _BEGINNINGS
            if node.name in ("li", "dt"):
                self._inline.append(_ITEM)
            elif node.name == "dd" and self._is_term:
                while self._inline[-1:] == [" "]:
                    self._inline.pop()
                self._inline.append(_DEFINED)
            elif not begins:
                self._inline.append("\n")
            self._is_term = node.name == "dt" or (self._is_term and node.name not in ("dd", "li"))
        else:
            self._flush()
        for child in node.children:
            self._visit(child)
        if not self._list_depth:
            self._flush()

    def _list(self, node: Tag) -> None:
        """A whole list is one block, so that its items stay together."""
        self._flush()
        self._list_depth += 1
        for child in node.children:
            self._visit(child)
        self._list_depth -= 1
        self._flush()

    def _flush(self) -> None:
        text, self._inline = "".join(self._inline), []
        lines = (_SPACE.sub(" ", line).strip() for line in text.split("\n"))
        self.builder.add("\n".join(line for line in lines if line not in ("", "-")), "prose", self._headings)


def _is_data_table(node: Tag) -> bool:
    """A table of figures, not one that lays out the page: no block of text, table or heading inside a cell."""
    row = node.find("tr")
    # The parser puts a row whose end tag is left out around all that follow it: each would hold the whole rest.
    if not isinstance(row, Tag) or row.find("tr") is not None:
        return False
    return node.find(["table", "h1", "h2", "h3", "ul", "ol", "pre", "form"]) is None


def _rows(node: Tag) -> list[list[str]]:
    """The cells' texts, header rows as one. A cell that spans columns or rows stands in every place that it covers.

    Rows are cut at `_MAX_COLUMNS`: spans within spans make millions of cells out of a small page.
    """
    heads: list[list[str]] = []
    rows: list[list[str]] = []
    hanging: dict[int, tuple[int, str]] = {}  # by column: rows still to come, and the text
    for row in node.find_all("tr"):
        cells: list[str] = []
        for cell in row.find_all(["td", "th"]):
            _hang(cells, hanging)
            text = _SPACE.sub(" ", cell.get_text(" ")).strip()
            for _ in range(min(_span(cell, "colspan"), _MAX_COLUMNS - len(cells))):
                if (down := _span(cell, "rowspan")) > 1:
                    hanging[len(cells)] = (down - 1, text)
                cells.append(text)
        _hang(cells, hanging)
        if any(cells):
            (rows if rows or not _is_head(row) else heads).append(cells)
    return [*_one_head(heads), *rows]


def _is_head(row: Tag) -> bool:
    return row.find_parent("thead") is not None or row.find("td") is None


def _one_head(heads: list[list[str]]) -> list[list[str]]:
    """Header rows above each other as one: "2023" over "Revenue" is "2023 – Revenue"."""
    columns = zip_longest(*heads, fillvalue="")
    return [[" – ".join(dict.fromkeys(text for text in column if text)) for column in columns]] if heads else []


def _hang(cells: list[str], hanging: dict[int, tuple[int, str]]) -> None:
    """Appends what hangs down from the rows above at this place."""
    while len(cells) in hanging:
        left, text = hanging.pop(len(cells))
        if left > 1:
            hanging[len(cells)] = (left - 1, text)
        cells.append(text)


def _span(cell: Tag, name: str) -> int:
    given = str(cell.get(name, "1")).strip()
    return min(max(1, int(given)), _MAX_SPAN) if given.isascii() and given.isdigit() else 1
