from concurrent.futures import ThreadPoolExecutor

import pytest

from retrieval.errors import CorruptDocumentError, EncryptedDocumentError, NeedsOcrError
from retrieval.loaders import load
from tests.retrieval.pdf_files import image_pdf, pageless_pdf, text_pdf


def test_every_page_is_a_block_that_knows_its_number() -> None:
    document = load("report.pdf", text_pdf(["First page text.", "", "Third page: 42 units."], title="Annual report"))
    assert document.title == "Annual report"
    assert document.num_pages == 3
    assert [(document.text[block.start : block.end], block.page) for block in document.blocks] == [
        ("First page text.", 1),
        ("Third page: 42 units.", 3),
    ]


def test_the_outline_gives_the_headings() -> None:
    pages = ["Opening.", "Chapter one begins.", "It goes on.", "Chapter two."]
    document = load("a.pdf", text_pdf(pages, outline={1: "One", 3: "Two"}))
    assert [block.headings for block in document.blocks] == [(), ("One",), ("One",), ("Two",)]


@pytest.mark.parametrize("title", [None, "Microsoft Word - draft.docx", "untitled", "  "])
def test_a_title_that_is_none_gives_way_to_the_file_name(title: str | None) -> None:
    assert load("annual report.pdf", text_pdf(["text"], title=title)).title == "annual report"


def test_a_scan_needs_ocr() -> None:
    with pytest.raises(NeedsOcrError, match="no text found on any page; needs OCR"):
        load("scan.pdf", image_pdf())


def test_an_encrypted_pdf_says_so() -> None:
    with pytest.raises(EncryptedDocumentError, match="is encrypted and opens with a password only"):
        load("secret.pdf", text_pdf(["secret"], password="hunter2"))


@pytest.mark.parametrize("data", [b"not a pdf at all", b"%PDF-1.7\n%broken", text_pdf(["text"])[:200]])
def test_a_damaged_pdf_says_so(data: bytes) -> None:
    with pytest.raises(CorruptDocumentError, match="damaged, or this is not a PDF"):
        load("a.pdf", data)


def test_a_pdf_without_pages_says_so() -> None:
    with pytest.raises(CorruptDocumentError, match="has no pages"):
        load("a.pdf", pageless_pdf())


def test_many_threads_may_read_pdfs_at_once() -> None:
    files = [text_pdf([f"Document {number} page {page}." for page in range(5)]) for number in range(8)]
    with ThreadPoolExecutor(8) as pool:
        documents = list(pool.map(lambda item: load(f"{item[0]}.pdf", item[1]), list(enumerate(files)) * 4))
    assert [document.text for document in documents] == [
        "\n\n".join(f"Document {number} page {page}." for page in range(5)) for number in range(8)
    ] * 4
