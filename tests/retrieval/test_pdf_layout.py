"""What the layout of PDF pages comes to: columns in reading order, no running heads and feet, pages that count."""

import io

import pypdfium2
import pytest
from fpdf import FPDF

from retrieval.errors import CorruptDocumentError
from retrieval.loaders import LoadedDocument, load
from tests.retrieval.pdf_files import text_pdf

WORDS = ["alpha", "bravo", "charlie", "delta", "echo", "foxtrot", "golf", "hotel", "india", "juliet"]


def pages_of(document: LoadedDocument) -> dict[int | None, str]:
    return {block.page: document.text[block.start : block.end] for block in document.blocks}


def prose(start: int, step: int) -> str:
    return " ".join(WORDS[(start + step * index) % len(WORDS)] for index in range(7))


def report(num_pages: int = 5, rows: int = 20) -> bytes:
    """Two columns drawn line by line across the page, a title over both, a head, and a foot with the page's number."""
    pdf = FPDF()
    pdf.set_font("helvetica", size=10)
    for page in range(num_pages):
        pdf.add_page()
        pdf.text(80, 10, "Annual report 2025")
        pdf.text(
            20, 30, f"A title that runs over both columns and says what follows below it: {WORDS[page]} and others"
        )
        for row in range(rows):
            pdf.text(20, 40 + 5 * row, f"left {prose(row + page, 1)}")
            pdf.text(105, 40 + 5 * row, f"right {prose(row + page, 3)}")
        pdf.text(100, 290, f"Page {page + 1} of {num_pages}")
    return bytes(pdf.output())


def test_columns_drawn_across_are_read_one_after_the_other_without_heads_and_feet() -> None:
    pages = pages_of(load("report.pdf", report()))
    assert sorted(pages) == [1, 2, 3, 4, 5]
    for page, text in pages.items():
        assert page is not None
        title, *lines = text.split("\n")
        assert title.startswith("A title that runs over both")
        assert WORDS[page - 1] in title
        assert lines == [f"left {prose(row + page - 1, 1)}" for row in range(20)] + [
            f"right {prose(row + page - 1, 3)}" for row in range(20)
        ]


def test_a_table_is_not_taken_for_columns() -> None:
    pdf = FPDF()
    pdf.set_font("helvetica", size=10)
    pdf.add_page()
    for row in range(20):
        pdf.text(20, 30 + 5 * row, f"item {row}")
        pdf.text(105, 30 + 5 * row, f"{row * 7}.50")
    lines = load("t.pdf", bytes(pdf.output())).text.split("\n")
    assert [line.split() for line in lines] == [["item", str(row), f"{row * 7}.50"] for row in range(20)]


def test_lines_that_look_alike_and_say_different_things_stay() -> None:
    document = load("codes.pdf", text_pdf([f"Page {n}: the code is {n * 37}.\nMore text." for n in range(1, 13)]))
    assert pages_of(document)[7] == "Page 7: the code is 259.\nMore text."


def test_a_page_of_nothing_but_a_running_line_keeps_it() -> None:
    document = load("a.pdf", text_pdf([f"Chapter text of page {n}." for n in range(1, 6)]))
    assert pages_of(document)[3] == "Chapter text of page 3."


def test_rotated_pages_are_read() -> None:
    pdf = pypdfium2.PdfDocument(text_pdf(["Upright text.", "Turned text."]))
    pdf[1].set_rotation(90)
    stream = io.BytesIO()
    pdf.save(stream)
    assert pages_of(load("a.pdf", stream.getvalue())) == {1: "Upright text.", 2: "Turned text."}


def many_pages(count: int) -> bytes:
    """A PDF of one page's text, `count` times over."""
    base = pypdfium2.PdfDocument(text_pdf(["Same words on every page."]))
    whole = pypdfium2.PdfDocument.new()
    for _ in range(count // 100):
        whole.import_pages(base, pages=[0] * 100)
    stream = io.BytesIO()
    whole.save(stream)
    return stream.getvalue()


def test_a_pdf_of_10000_pages_is_read() -> None:
    document = load("long.pdf", many_pages(10_000))
    assert document.num_pages == 10_000
    assert (document.blocks[-1].page, len(document.blocks)) == (10_000, 10_000)


def test_a_truncated_pdf_gives_what_there_is_and_says_so_or_a_reason() -> None:
    data = report(2)
    assert load("whole.pdf", data).notice is None
    for size in range(1000, len(data) - 10, len(data) // 9):
        try:
            document = load("cut.pdf", data[:size])
        except CorruptDocumentError:
            continue
        assert "left alpha" in document.text
        assert (document.notice or "").startswith("the file breaks off before its end")


def test_a_blank_page_among_others_has_no_block() -> None:
    assert sorted(pages_of(load("a.pdf", text_pdf(["one", "", "three"]))), key=str) == [1, 3]
    with pytest.raises(CorruptDocumentError, match="not a PDF"):
        load("a.pdf", b"%PDF")
