"""PPTX: a slide is a page, its title the heading. Text, tables, groups and the speaker's notes are read.

Slides and shapes that are hidden, and text that is struck out, are left out; slides keep their numbers.
"""

import io
from collections.abc import Iterator
from typing import Any

import pptx
from pptx.oxml.ns import qn

from retrieval.loaders.archive import open_archive, reading
from retrieval.loaders.document import LoadedDocument, TextBuilder, chosen_title
from retrieval.loaders.encoding import clean
from retrieval.loaders.tables import add_table, cell_text

_RUNS = frozenset(qn(name) for name in ("a:r", "a:fld"))
_BREAK, _TEXT, _PROPERTIES = qn("a:br"), qn("a:t"), qn("a:rPr")
_STRUCK = ("sngStrike", "dblStrike")
_OFF = ("0", "false")


def load_pptx(data: bytes, fallback_title: str) -> LoadedDocument:
    """Reads a PowerPoint presentation. Title: the document's property, the first slide's title, or the file's name.

    Raises LoadError.
    """
    kind = "a PowerPoint presentation (.pptx)"
    open_archive(data, kind)
    builder = TextBuilder()
    first_title = ""
    with reading(kind):
        presentation = pptx.Presentation(io.BytesIO(data))
        for number, slide in enumerate(presentation.slides, 1):
            if slide._element.get("show", "1") in _OFF:
                continue
            title = _slide_title(slide)
            first_title = first_title or title
            _read_slide(builder, slide, number, title)
        given = clean(presentation.core_properties.title or "")
        num_slides = len(presentation.slides)
    return builder.build(chosen_title(given, first_title) or fallback_title, num_slides)


def _slide_title(slide: Any) -> str:
    shape = slide.shapes.title
    return cell_text(_frame_text(shape.text_frame)) if shape is not None else ""


def _frame_text(frame: Any) -> str:
    return "\n".join(_paragraph_text(paragraph) for paragraph in frame.paragraphs)


def _paragraph_text(paragraph: Any) -> str:
    """A paragraph's text without what is struck out."""
    pieces = []
    for child in paragraph._p:
        if child.tag == _BREAK:
            pieces.append("\n")
        elif child.tag in _RUNS:
            properties = child.find(_PROPERTIES)
            if properties is None or properties.get("strike") not in _STRUCK:
                pieces.append(child.findtext(_TEXT) or "")
    return clean("".join(pieces))


def _read_slide(builder: TextBuilder, slide: Any, number: int, title: str) -> None:
    headings = (title,) if title else ()
    title_id = slide.shapes.title.shape_id if slide.shapes.title is not None else None
    texts: list[str] = []
    tables: list[list[list[str]]] = []
    for shape in _shapes(slide.shapes):
        if getattr(shape, "has_table", False):
            tables.append(_rows(shape.table))
        elif shape.has_text_frame and shape.shape_id != title_id:
            lines = [cell_text(_paragraph_text(paragraph)) for paragraph in shape.text_frame.paragraphs]
            texts.append(_joined([line for line in lines if line], is_list=shape.is_placeholder))
    notes = slide.notes_slide.notes_text_frame if slide.has_notes_slide else None
    if notes is not None and (spoken := _frame_text(notes).strip()):
        texts.append(f"Notes: {spoken}")
    if not any(texts) and not tables:
        texts = [title]  # a slide of nothing but its title is found by it
    for text in texts:
        builder.add(text, "prose", headings, number)
    for rows in tables:
        add_table(builder, rows, headings, number)


def _joined(lines: list[str], *, is_list: bool) -> str:
    """The paragraphs of a shape: those of a placeholder are bullet points, those of a text box stand by themselves."""
    return "\n".join(f"- {line}" for line in lines) if is_list and len(lines) > 1 else "\n\n".join(lines)


def _rows(table: Any) -> list[list[str]]:
    """The cells' texts. A merged cell stands in every place that it covers."""
    rows = [[cell_text(_frame_text(cell.text_frame)) for cell in row.cells] for row in table.rows]
    for top, row in enumerate(table.rows):
        for left, cell in enumerate(row.cells):
            if cell.is_merge_origin:
                for covered in rows[top : top + cell.span_height]:
                    width = len(covered[left : left + cell.span_width])
                    covered[left : left + width] = [rows[top][left]] * width
    return rows


def _shapes(shapes: Any) -> Iterator[Any]:
    """All shapes, those in groups too, as they are stacked: PowerPoint's own reading order."""
    for shape in shapes:
        if shape._element._nvXxPr.cNvPr.get("hidden", "0") not in ("0", "false"):
            continue
        if hasattr(shape, "shapes"):
            yield from _shapes(shape.shapes)
        else:
            yield shape
