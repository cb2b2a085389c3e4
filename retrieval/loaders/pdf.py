"""PDF: the text layer, a block a page, headings from the outline. Scanned pages are read where the extra `ocr` is."""

import io
import math
import re
import threading
from collections.abc import Sequence
from typing import Any

import numpy as np
import pypdfium2
from pypdfium2 import raw

from retrieval.errors import (
    CorruptDocumentError,
    EmptyDocumentError,
    EncryptedDocumentError,
    LoadError,
    NeedsOcrError,
)
from retrieval.loaders import ocr
from retrieval.loaders.document import LoadedDocument, TextBuilder, chosen_title
from retrieval.loaders.encoding import clean
from retrieval.loaders.pdf_layout import PageText, page_text, without_running_lines

# PDFium keeps global state: two threads inside it at once crash the process.
_PDFIUM = threading.Lock()
# PDFium writes U+FFFE (or U+0002) for a hyphen that only breaks a word at a line's end.
_SOFT_HYPHEN = re.compile(r"[\ufffe\x02\u00ad][ \t]*\n?[ \t]*")
_NO_TEXT = "no text found on any page; needs OCR (the pages are pictures)"
# What a PDF ends with; PDFium reads what there is of one that was cut off.
_END, _END_BYTES = b"%%EOF", 2048
_BLANK = "no text: all pages are blank"
# Pages are rendered for OCR at this resolution, posters at a lower one.
_DPI = 200
_MAX_PIXELS = 20_000_000


def load_pdf(data: bytes, fallback_title: str) -> LoadedDocument:
    """Reads a PDF's text, page by page. Raises LoadError: encrypted, damaged, or pictures only."""
    with _PDFIUM:
        document = _open(data)
        try:
            return _read(document, fallback_title, is_cut=_END not in data[-_END_BYTES:])
        except pypdfium2.PdfiumError as error:
            raise CorruptDocumentError(f"the PDF is damaged and cannot be read ({error})") from error
        finally:
            document.close()


def page_png(data: bytes, number: int, width: int) -> bytes | None:
    """A picture of page `number` (from 1), `width` pixels wide, as PNG; None where there is no such page.

    A page that is much higher than wide gets fewer pixels. Raises LoadError for a PDF that cannot be opened.
    """
    with _PDFIUM:
        document = _open(data)
        try:
            if not 1 <= number <= len(document):
                return None
            page = document[number - 1]
            try:
                wide, high = page.get_size()
                scale = min(width / max(1.0, wide), math.sqrt(_MAX_PIXELS / max(1.0, wide * high)))
                picture = page.render(scale=scale).to_pil()
            finally:
                page.close()
        except pypdfium2.PdfiumError as error:
            raise CorruptDocumentError(f"page {number} of the PDF cannot be drawn ({error})") from error
        finally:
            document.close()
    written = io.BytesIO()
    picture.save(written, "PNG")
    return written.getvalue()


def _open(data: bytes) -> Any:
    try:
        return pypdfium2.PdfDocument(data)
    except pypdfium2.PdfiumError as error:
        raise _why_not(data) from error


def _why_not(data: bytes) -> LoadError:
    """Asks PDFium itself: the error that the wrapper shows for a document without pages is the one before it."""
    handle = raw.FPDF_LoadMemDocument64(data, len(data), None)
    if handle:
        raw.FPDF_CloseDocument(handle)
        return CorruptDocumentError("the PDF has no pages")
    if raw.FPDF_GetLastError() == raw.FPDF_ERR_PASSWORD:
        return EncryptedDocumentError("the PDF is encrypted and opens with a password only: save a copy without one")
    return CorruptDocumentError("the PDF is damaged, or this is not a PDF: open and save it again")


def _read(document: Any, fallback_title: str, *, is_cut: bool) -> LoadedDocument:
    num_pages = len(document)
    headings = _outline_by_page(document, num_pages)
    builder = TextBuilder()
    pages = [_page_text(document, number) for number in range(num_pages)]
    pictures = [number for number, page in enumerate(pages) if not page.lines and _has_objects(document, number)]
    unread = pictures
    if ocr.available():
        for number in pictures:
            pages[number] = PageText(_recognised(document, number).splitlines())
        unread = [number for number in pictures if not pages[number].lines]
    for number, text in enumerate(without_running_lines(pages)):
        builder.add(_SOFT_HYPHEN.sub("", clean(text)), "prose", headings[number], number + 1)
    if builder.is_empty and not pictures:
        raise EmptyDocumentError(_BLANK)
    if builder.is_empty:
        raise NeedsOcrError(f"{_NO_TEXT}, and none could be read" if ocr.available() else f"{_NO_TEXT}: {ocr.HOW}")
    title = clean(str(document.get_metadata_dict().get("Title") or ""))
    return builder.build(chosen_title(title) or fallback_title, num_pages, notice=_notice(unread, num_pages, is_cut))


def _notice(unread: Sequence[int], num_pages: int, is_cut: bool) -> str | None:
    cut = f"the file breaks off before its end, {num_pages} pages could be read" if is_cut else None
    if not unread:
        return cut
    shown = ", ".join(str(number + 1) for number in unread[:10]) + (", …" if len(unread) > 10 else "")
    how = "no text could be read from them" if ocr.available() else f"reading them needs OCR: {ocr.HOW}"
    pictures = f"{len(unread)} of its pages are pictures without text ({shown}): {how}"
    return f"{cut}; {pictures}" if cut else pictures


def _has_objects(document: Any, number: int) -> bool:
    page = document[number]
    try:
        return next(iter(page.get_objects(max_depth=1)), None) is not None
    finally:
        page.close()


def _recognised(document: Any, number: int) -> str:
    """A page's text by OCR. Other documents are read meanwhile."""
    page = document[number]
    try:
        width, height = page.get_size()
        scale = min(_DPI / 72, math.sqrt(_MAX_PIXELS / max(1.0, width * height)))
        pixels = np.array(page.render(scale=scale, rev_byteorder=False).to_numpy()[:, :, :3])
    finally:
        page.close()
    _PDFIUM.release()
    try:
        return ocr.read_picture(pixels)
    finally:
        _PDFIUM.acquire()


def _page_text(document: Any, number: int) -> PageText:
    page = document[number]
    text_page = page.get_textpage()
    try:
        return page_text(text_page, page.get_height())
    finally:
        text_page.close()
        page.close()


def _outline_by_page(document: Any, num_pages: int) -> list[tuple[str, ...]]:
    """For each page, the path of the first outline entry that starts on it, else of the last one before it."""
    starts: dict[int, tuple[str, ...]] = {}
    last_on: dict[int, tuple[str, ...]] = {}
    path: list[str] = []
    try:
        for entry in document.get_toc(max_depth=6):
            title = clean(str(entry.get_title() or "")).strip()
            destination = entry.get_dest()
            index = destination.get_index() if destination is not None else None
            if not title or index is None or not 0 <= index < num_pages:
                continue
            path = [*path[: entry.level], title]
            starts.setdefault(index, tuple(path))
            last_on[index] = tuple(path)
    except (pypdfium2.PdfiumError, ValueError):
        return [()] * num_pages  # a broken outline is no reason to refuse the text
    by_page: list[tuple[str, ...]] = []
    current: tuple[str, ...] = ()
    for number in range(num_pages):
        by_page.append(starts.get(number, current))
        current = last_on.get(number, current)
    return by_page
