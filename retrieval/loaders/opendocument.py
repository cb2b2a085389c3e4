"""ODT: paragraphs and lists under their headings, tables with their header rows.

What is struck out or hidden, by its style or as a section or row, is left out.
"""

import io
from collections.abc import Iterator, Mapping
from typing import Any

from defusedxml.ElementTree import fromstring
from odf import opendocument
from odf.namespaces import OFFICENS, STYLENS, TABLENS, TEXTNS

from retrieval.errors import CorruptDocumentError, EncryptedDocumentError
from retrieval.loaders.archive import open_archive, reading
from retrieval.loaders.document import LoadedDocument, TextBuilder, chosen_title
from retrieval.loaders.encoding import clean
from retrieval.loaders.tables import add_table, cell_text

_HEADING, _PARAGRAPH, _LIST = (TEXTNS, "h"), (TEXTNS, "p"), (TEXTNS, "list")
_TABLE, _ROW, _CELL = (TABLENS, "table"), (TABLENS, "table-row"), (TABLENS, "table-cell")
_COVERED = (TABLENS, "covered-table-cell")
_SPACES = {(TEXTNS, "tab"): "\t", (TEXTNS, "line-break"): "\n", (TEXTNS, "s"): " "}
# Deleted text of tracked changes, notes to the author, and generated lists of contents.
_SKIPPED = frozenset({(TEXTNS, "tracked-changes"), (OFFICENS, "annotation"), (TEXTNS, "table-of-content")})
_PARTS = {"content.xml", "styles.xml", "meta.xml", "settings.xml"}
_MAX_REPEATED = 64
_NO_NAME = ("", "")
_STYLE_NAME, _DISPLAY, _VISIBILITY = (TEXTNS, "style-name"), (TEXTNS, "display"), (TABLENS, "visibility")
# What of a style strikes its text out or hides it, and the value with which it does not.
_UNSAID = {
    (STYLENS, "text-line-through-style"): ("struck", "none"),
    (STYLENS, "text-line-through-type"): ("struck", "none"),
    _DISPLAY: ("hidden", "true"),
}
_FAMILIES = {_HEADING: "paragraph", _PARAGRAPH: "paragraph", (TEXTNS, "span"): "text"}
_MAX_STYLES = 20  # of one upon another

Marks = Mapping[str, bool]


def load_odt(data: bytes, fallback_title: str) -> LoadedDocument:
    """Reads an OpenDocument text. Title: its own, the first heading, or the file's name. Raises LoadError."""
    kind = "an OpenDocument text (.odt)"
    archive = open_archive(data, kind)
    with reading(kind):
        if b"encryption-data" in archive.read("META-INF/manifest.xml"):
            raise EncryptedDocumentError("the file opens with a password only: save a copy without one")
        for name in _PARTS & set(archive.namelist()):
            # Of a part that is not well-formed odfpy would take what comes before the fault, and print the rest.
            fromstring(archive.read(name))
        document = opendocument.load(io.BytesIO(data))
        if not hasattr(document, "text"):
            raise CorruptDocumentError(f"the file is not {kind}")
        texts = _Texts(document)
        reader = _Reader(texts)
        reader.read(document.text)
        title = next((texts.of(node) for node in document.meta.childNodes if _name(node)[1] == "title"), "")
    return reader.builder.build(chosen_title(title, reader.first_heading) or fallback_title)


class _Reader:
    """Takes the elements of a text in order."""

    def __init__(self, texts: "_Texts") -> None:
        self._texts = texts
        self.builder = TextBuilder()
        self.first_heading = ""
        self._path: list[tuple[int, str]] = []

    def read(self, parent: Any) -> None:
        for node in parent.childNodes:
            name = _name(node)
            if name in _SKIPPED or name == _NO_NAME or node.attributes.get(_DISPLAY) == "none":
                continue
            if name == _HEADING:
                self._heading(node)
            elif name == _PARAGRAPH:
                self.builder.add(self._texts.of(node), "prose", self._headings)
            elif name == _LIST:
                lines = (f"- {text}" for item in _all(node, _PARAGRAPH, _HEADING) if (text := self._texts.of(item)))
                self.builder.add("\n".join(lines), "prose", self._headings)
            elif name == _TABLE:
                add_table(self.builder, self._rows(node), self._headings)
            else:
                self.read(node)  # sections, frames, indexes

    @property
    def _headings(self) -> tuple[str, ...]:
        return tuple(text for _, text in self._path)

    def _heading(self, node: Any) -> None:
        text = cell_text(self._texts.of(node))
        if not text:
            return
        given = str(node.attributes.get((TEXTNS, "outline-level"), "1"))
        level = int(given) if given.isdigit() else 1
        while self._path and self._path[-1][0] >= level:
            self._path.pop()
        self._path.append((level, text))
        self.first_heading = self.first_heading or text

    def _rows(self, table: Any) -> list[list[str]]:
        """The cells' texts. A merged cell stands in every place that it covers to its right."""
        rows = []
        for row in _all(table, _ROW):
            if row.attributes.get(_VISIBILITY, "visible") != "visible":
                continue
            cells: list[str] = []
            for cell in _all(row, _CELL, _COVERED):
                repeated = str(cell.attributes.get((TABLENS, "number-columns-repeated"), "1"))
                count = min(int(repeated) if repeated.isdigit() else 1, _MAX_REPEATED)
                if cell.qname == _CELL:
                    cells += [
                        cell_text(" ".join(self._texts.of(part) for part in _all(cell, _PARAGRAPH, _HEADING)))
                    ] * count
                elif cell.qname == _COVERED:
                    cells += [cells[-1] if cells else ""] * count
            while cells and not cells[-1]:
                cells.pop()
            rows.append(cells)
        return rows


def _name(node: Any) -> tuple[str, str]:
    """Namespace and name of an element; empty for text."""
    namespace, name = getattr(node, "qname", _NO_NAME)
    return str(namespace), str(name)


def _all(node: Any, *names: tuple[str, str]) -> list[Any]:
    """The outermost elements of these names below `node`, in order."""
    found = []
    for child in node.childNodes:
        if _name(child) in names:
            found.append(child)
        elif hasattr(child, "childNodes"):
            found += _all(child, *names)
    return found


class _Texts:
    """The texts of a document's elements, without what its styles strike out or hide."""

    def __init__(self, document: Any) -> None:
        self._styles = {
            (str(node.attributes.get((STYLENS, "family"))), str(node.attributes.get((STYLENS, "name")))): node
            for part in (document.styles, document.automaticstyles)
            for node in part.childNodes
            if _name(node) == (STYLENS, "style")
        }
        self._known: dict[tuple[str, str], Marks] = {}

    def of(self, node: Any) -> str:
        return clean("".join(self._pieces(node, self._marks(node)))).strip()

    def _pieces(self, node: Any, marks: Marks) -> Iterator[str]:
        is_said = not any(marks.values())
        for child in node.childNodes:
            name = _name(child)
            if name == _NO_NAME:
                if is_said:
                    yield str(getattr(child, "data", ""))
            elif name in _SPACES:
                if is_said:
                    yield _SPACES[name]
            elif name not in _SKIPPED:
                yield from self._pieces(child, {**marks, **self._marks(child)})

    def _marks(self, node: Any) -> Marks:
        family = _FAMILIES.get(_name(node))
        if family is None:
            return {}
        key = (family, str(node.attributes.get(_STYLE_NAME, "")))
        if key not in self._known:
            self._known[key] = self._resolved(*key)
        return self._known[key]

    def _resolved(self, family: str, name: str) -> Marks:
        """What a style says, with what it takes from those that it is based on."""
        marks: dict[str, bool] = {}
        for _ in range(_MAX_STYLES):
            if (style := self._styles.get((family, name))) is None:
                break
            marks = {**_given(style), **marks}
            name = str(style.attributes.get((STYLENS, "parent-style-name"), ""))
        return marks


def _given(style: Any) -> Marks:
    marks: dict[str, bool] = {}
    for properties in style.childNodes:
        if _name(properties) == (STYLENS, "text-properties"):
            for attribute, (mark, said) in _UNSAID.items():
                if (value := properties.attributes.get(attribute)) is not None:
                    marks[mark] = marks.get(mark, False) or str(value) != said
    return marks
