"""DOCX: paragraphs and lists under their headings, tables with their header rows.

Text is collected from the document's tree in its order, because python-docx's paragraphs leave out what stands in
content controls, tracked insertions and text boxes. What is deleted by a tracked change, struck out or hidden is left
out. A footnote stands where it is referred to, in brackets.
"""

import io
import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

import docx
from docx.oxml import parse_xml
from docx.oxml.ns import qn

from retrieval.loaders.archive import open_archive, reading
from retrieval.loaders.document import LoadedDocument, TextBuilder, chosen_title
from retrieval.loaders.encoding import clean
from retrieval.loaders.tables import add_table, cell_text
from retrieval.loaders.word_marks import Marks, Unsaid

_HEADING_STYLE = re.compile(r"(?:heading|überschrift|titre|título|titolo|标题|見出し)\s*(\d)", re.IGNORECASE)
_CONTAINERS = frozenset(
    qn(name) for name in ("w:sdt", "w:sdtContent", "w:ins", "w:moveTo", "w:customXml", "w:smartTag", "w:body")
)
_PARAGRAPH, _TABLE, _TEXT, _RUN = qn("w:p"), qn("w:tbl"), qn("w:t"), qn("w:r")
_ROW, _CELL = qn("w:tr"), qn("w:tc")
_MAX_SPAN = 63  # columns: Word's own limit
_BREAKS = {qn("w:tab"): "\t", qn("w:br"): "\n", qn("w:cr"): "\n", qn("w:noBreakHyphen"): "-"}
_REFERENCES = (qn("w:footnoteReference"), qn("w:endnoteReference"))
# The same drawing a second time for old readers, and text that a tracked change moved away.
_SKIPPED = frozenset(
    {"{http://schemas.openxmlformats.org/markup-compatibility/2006}Fallback", qn("w:del"), qn("w:moveFrom")}
)


def load_docx(data: bytes, fallback_title: str) -> LoadedDocument:
    """Reads a Word document. Title: the document's property, its Title paragraph, first heading, or the file's name.

    Raises LoadError.
    """
    kind = "a Word document (.docx)"
    open_archive(data, kind)
    with reading(kind):
        document = docx.Document(io.BytesIO(data))
        reader = _Reader(document)
        for element in _within(document.element.body, _PARAGRAPH, _TABLE):
            reader.feed(element)
        reader.finish()
        given = clean(document.core_properties.title or "")
    return reader.builder.build(chosen_title(given, reader.title, reader.first_heading) or fallback_title)


class _Reader:
    """Takes paragraphs and tables in order. List items gather in `_items`, so that a list is one block."""

    def __init__(self, document: Any) -> None:
        self.builder = TextBuilder()
        self.title = ""
        self.first_heading = ""
        self._levels = _heading_levels(document)
        self._unsaid = Unsaid(document.styles.element)
        self._notes = _notes(document, self._unsaid)
        self._path: list[tuple[int, str]] = []
        self._items: list[str] = []

    def feed(self, element: Any) -> None:
        if element.tag == _TABLE:
            self._flush()
            add_table(self.builder, self._rows(element), self._headings)
            return
        text = self._text(element)
        if not text:
            return
        level = self._level(element)
        if level == 0:
            self.title = self.title or cell_text(text)
        elif level is not None:
            self._flush()
            while self._path and self._path[-1][0] >= level:
                self._path.pop()
            self._path.append((level, cell_text(text)))
            self.first_heading = self.first_heading or cell_text(text)
        elif _is_list_item(element):
            self._items.append(f"- {text}")
        else:
            self._flush()
            self.builder.add(text, "prose", self._headings)

    def finish(self) -> None:
        self._flush()
        if self.builder.is_empty:
            self.builder.add("\n".join(filter(None, [self.title, *(text for _, text in self._path)])))

    @property
    def _headings(self) -> tuple[str, ...]:
        return tuple(text for _, text in self._path)

    def _text(self, element: Any) -> str:
        pieces = _Pieces(self._unsaid, self._notes).of(element, self._unsaid.paragraph(element))
        return clean("".join(pieces)).strip()

    def _rows(self, table: Any) -> list[list[str]]:
        """The cells' texts. A merged cell stands in every place that it covers, so that no row lacks its label."""
        rows: list[list[str]] = []
        above: list[str] = []
        for row in _within(table, _ROW):
            if self._unsaid.is_row_gone(row):
                continue
            cells: list[str] = []
            parts = list(_within(row, _CELL))
            for cell in parts:
                goes_on = cell.vMerge == "continue" and len(cells) < len(above)
                text = above[len(cells)] if goes_on else self._cell_text(cell)
                cells += [text] * min(cell.grid_span, _MAX_SPAN)
            above = cells
            rows.append(cells[:1] if len(parts) == 1 else cells)
        return rows

    def _cell_text(self, cell: Any) -> str:
        parts = [
            self._text(part) if part.tag == _PARAGRAPH else " ".join(" ".join(row) for row in self._rows(part))
            for part in _within(cell, _PARAGRAPH, _TABLE)
        ]
        return cell_text(" ".join(parts))

    def _flush(self) -> None:
        self.builder.add("\n".join(self._items), "prose", self._headings)
        self._items = []

    def _level(self, paragraph: Any) -> int | None:
        """Heading level from 1, 0 for the document's title, None for text."""
        properties = paragraph.pPr
        if properties is None:
            return None
        outline = properties.find(qn("w:outlineLvl"))
        if outline is not None and (value := outline.get(qn("w:val"), "")).isdigit() and int(value) < 9:
            return int(value) + 1
        return self._levels.get(paragraph.style or "")


def _is_list_item(paragraph: Any) -> bool:
    numbered = paragraph.pPr is not None and paragraph.pPr.numPr is not None
    return numbered or (paragraph.style or "").startswith("List")


def _heading_levels(document: Any) -> dict[str, int]:
    """Heading level by style id, 0 for titles; styles that are based on a heading style are headings too."""
    levels: dict[str, int] = {}
    for style in document.styles:
        base, seen = style, 0
        while base is not None and seen < 20:
            name = base.name or ""
            outline = base.element.find(f"{qn('w:pPr')}/{qn('w:outlineLvl')}")
            if name.lower() == "title":
                levels[style.style_id] = 0
                break
            if match := _HEADING_STYLE.match(name):
                levels[style.style_id] = int(match[1])
                break
            if outline is not None and outline.get(qn("w:val"), "9") in tuple("012345678"):
                levels[style.style_id] = int(outline.get(qn("w:val"))) + 1
                break
            base, seen = getattr(base, "base_style", None), seen + 1
    return levels


def _within(element: Any, *tags: str) -> Iterator[Any]:
    """The children of these tags, also those in content controls and tracked insertions."""
    for child in element:
        if child.tag in tags:
            yield child
        elif child.tag in _CONTAINERS:
            yield from _within(child, *tags)


def _notes(document: Any, unsaid: Unsaid) -> dict[str, str]:
    """Footnotes and endnotes by the reference's tag and id."""
    notes = {}
    for relation in document.part.rels.values():
        kind = relation.reltype.rpartition("/")[2]
        if kind in ("footnotes", "endnotes") and not relation.is_external:
            name = kind.removesuffix("s")
            for note in parse_xml(relation.target_part.blob).iter(qn(f"w:{name}")):
                text = " ".join("".join(_Pieces(unsaid, {}).of(note, {})).split())
                if text:
                    notes[f"{qn(f'w:{name}Reference')} {note.get(qn('w:id'))}"] = text
    return notes


@dataclass(frozen=True)
class _Pieces:
    """The texts within an element, in order. `notes` are the footnotes, which stand where they are referred to."""

    unsaid: Unsaid
    notes: Mapping[str, str]

    def of(self, element: Any, paragraph: Marks) -> Iterator[str]:
        """`paragraph`: what the style of the paragraph around says of its text."""
        for child in element:
            if child.tag == _TEXT:
                yield child.text or ""
            elif child.tag in _BREAKS:
                yield _BREAKS[child.tag]
            elif child.tag in _REFERENCES:
                if note := self.notes.get(f"{child.tag} {child.get(qn('w:id'))}"):
                    yield f" ({note}) "
            elif child.tag == _PARAGRAPH:  # of a text box
                yield from self.of(child, self.unsaid.paragraph(child))
                yield "\n"
            elif child.tag not in _SKIPPED and not (child.tag == _RUN and self.unsaid.is_unsaid(child, paragraph)):
                yield from self.of(child, paragraph)
