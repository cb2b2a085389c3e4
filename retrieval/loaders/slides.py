"""PPTX: a slide is a page, its title the heading. Text, tables, groups and the speaker's notes are read."""

import io
from collections.abc import Iterator
from typing import Any

import pptx

from retrieval.loaders.archive import open_archive, reading
from retrieval.loaders.document import LoadedDocument, TextBuilder, chosen_title
from retrieval.loaders.encoding import clean
from retrieval.loaders.tables import add_table, cell_text


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
            title = _slide_title(slide)
            first_title = first_title or title
            _read_slide(builder, slide, number, title)
        given = clean(presentation.core_properties.title or "")
        num_slides = len(presentation.slides)
    return builder.build(chosen_title(given, first_title) or fallback_title, num_slides)


def _slide_title(slide: Any) -> str:
    shape = slide.shapes.title
    return cell_text(clean(shape.text_frame.text)) if shape is not None else ""


def _read_slide(builder: TextBuilder, slide: Any, number: int, title: str) -> None:
    headings = (title,) if title else ()
    title_id = slide.shapes.title.shape_id if slide.shapes.title is not None else None
    texts: list[str] = []
    tables: list[list[list[str]]] = []
    for shape in _shapes(slide.shapes):
        if getattr(shape, "has_table", False):
            tables.append(_rows(shape.table))
        elif shape.has_text_frame and shape.shape_id != title_id:
            lines = (cell_text(clean(paragraph.text)) for paragraph in shape.text_frame.paragraphs)
            texts.append("\n".join(line for line in lines if line))
    notes = slide.notes_slide.notes_text_frame if slide.has_notes_slide else None
    if notes is not None and (spoken := clean(notes.text).strip()):
        texts.append(f"Notes: {spoken}")
    if not any(texts) and not tables:
        texts = [title]  # a slide of nothing but its title is found by it
    for text in texts:
        builder.add(text, "prose", headings, number)
    for rows in tables:
        add_table(builder, rows, headings, number)


def _rows(table: Any) -> list[list[str]]:
    """The cells' texts. A merged cell stands in every place that it covers."""
    rows = [[cell_text(clean(cell.text)) for cell in row.cells] for row in table.rows]
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
        if hasattr(shape, "shapes"):
            yield from _shapes(shape.shapes)
        else:
            yield shape
