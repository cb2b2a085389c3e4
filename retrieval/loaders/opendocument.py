"""ODT: paragraphs and lists under their headings, tables with their header rows."""

import io
from typing import Any

from defusedxml.ElementTree import fromstring
from odf import opendocument
from odf.namespaces import OFFICENS, TABLENS, TEXTNS

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
        reader = _Reader()
        reader.read(document.text)
        title = next((_text(node) for node in document.meta.childNodes if _name(node)[1] == "title"), "")
    return reader.builder.build(chosen_title(title, reader.first_heading) or fallback_title)


class _Reader:
    """Takes the elements of a text in order."""

    def __init__(self) -> None:
        self.builder = TextBuilder()
        self.first_heading = ""
        self._path: list[tuple[int, str]] = []

    def read(self, parent: Any) -> None:
        for node in parent.childNodes:
            name = _name(node)
            if name in _SKIPPED or name == _NO_NAME:
                continue
            if name == _HEADING:
                self._heading(node)
            elif name == _PARAGRAPH:
                self.builder.add(_text(node), "prose", self._headings)
            elif name == _LIST:
                lines = (f"- {text}" for item in _all(node, _PARAGRAPH, _HEADING) if (text := _text(item)))
                self.builder.add("\n".join(lines), "prose", self._headings)
            elif name == _TABLE:
                add_table(self.builder, _rows(node), self._headings)
            else:
                self.read(node)  # sections, frames, indexes

    @property
    def _headings(self) -> tuple[str, ...]:
        return tuple(text for _, text in self._path)

    def _heading(self, node: Any) -> None:
        text = cell_text(_text(node))
        if not text:
            return
        given = str(node.attributes.get((TEXTNS, "outline-level"), "1"))
        level = int(given) if given.isdigit() else 1
        while self._path and self._path[-1][0] >= level:
            self._path.pop()
        self._path.append((level, text))
        self.first_heading = self.first_heading or text


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


def _text(node: Any) -> str:
    return clean("".join(_pieces(node))).strip()


def _pieces(node: Any) -> list[str]:
    pieces: list[str] = []
    for child in node.childNodes:
        name = _name(child)
        if name == _NO_NAME:
            pieces.append(str(getattr(child, "data", "")))
        elif name in _SPACES:
            pieces.append(_SPACES[name])
        elif name not in _SKIPPED:
            pieces += _pieces(child)
    return pieces


def _rows(table: Any) -> list[list[str]]:
    """The cells' texts. A merged cell stands in every place that it covers to its right."""
    rows = []
    for row in _all(table, _ROW):
        cells: list[str] = []
        for cell in _all(row, _CELL, _COVERED):
            repeated = str(cell.attributes.get((TABLENS, "number-columns-repeated"), "1"))
            count = min(int(repeated) if repeated.isdigit() else 1, _MAX_REPEATED)
            if cell.qname == _CELL:
                cells += [cell_text(" ".join(_text(part) for part in _all(cell, _PARAGRAPH, _HEADING)))] * count
            elif cell.qname == _COVERED:
                cells += [cells[-1] if cells else ""] * count
        while cells and not cells[-1]:
            cells.pop()
        rows.append(cells)
    return rows
