import io
from concurrent.futures import ThreadPoolExecutor

import pypdfium2
import pytest

from retrieval.errors import CorruptDocumentError, EmptyDocumentError, EncryptedDocumentError, NeedsOcrError
from retrieval.loaders import load, ocr
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


@pytest.mark.parametrize(
    "title",
    [None, "Microsoft Word - draft.docx", "untitled", "  ", "about:blank", "https://example.org/report?id=7",
     "www.a.org/b", "file:///C:/My files/a.htm", "C:\\Temp\\~a 1.tmp", "\\\\server\\share\\a b", "/tmp/print job",
     "/srv/a/b", "tmpx8a_1k2z", "index.html"],
)  # fmt: skip
def test_a_title_that_is_none_gives_way_to_the_file_name(title: str | None) -> None:
    assert load("annual report.pdf", text_pdf(["text"], title=title)).title == "annual report"


@pytest.mark.parametrize(
    "title",
    ["About: a novel", "Data: what it is", "https://a.org explained", "/dev/null considered harmful", "Temple"],
)  # fmt: skip
def test_a_title_that_only_resembles_an_address_is_kept(title: str) -> None:
    assert load("a.pdf", text_pdf(["text"], title=title)).title == title


def test_a_scan_needs_ocr_and_says_how_to_get_it(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(ocr, "available", lambda: False)
    with pytest.raises(NeedsOcrError, match=r"no text found on any page; needs OCR.*install rapidocr-onnxruntime"):
        load("scan.pdf", image_pdf())


def test_pages_that_are_pictures_among_pages_of_text_are_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(ocr, "available", lambda: False)
    document = load("mixed.pdf", joined(text_pdf(["Text of page one.", ""]), image_pdf(2)))
    assert [block.page for block in document.blocks] == [1]
    assert (document.notice or "").startswith("2 of its pages are pictures without text (3, 4): reading them needs OCR")


def test_recognised_pieces_are_put_in_reading_order_and_noise_is_left_out() -> None:
    def piece(x: float, y: float, text: str, score: float = 0.9) -> tuple[list[list[float]], str, float]:
        return [[x, y], [x + 200, y], [x + 200, y + 30], [x, y + 30]], text, score

    pieces = [piece(500, 102, "world"), piece(100, 200, "below"), piece(100, 100, "Hello"), piece(100, 300, "~%", 0.2)]
    assert ocr.in_reading_order(pieces) == "Hello world\nbelow"


def test_pictures_of_text_are_read_where_the_extra_is() -> None:
    pytest.importorskip("rapidocr_onnxruntime", reason="the extra `ocr` is not installed")
    document = load("scan.pdf", image_pdf(2))
    assert [(document.text[block.start : block.end], block.page) for block in document.blocks] == [
        ("Scanned page 1", 1),
        ("Scanned page 2", 2),
    ]
    assert document.notice is None


def test_blank_pages_are_no_scan() -> None:
    with pytest.raises(EmptyDocumentError, match="all pages are blank"):
        load("blank.pdf", text_pdf(["", ""]))


def joined(*files: bytes) -> bytes:
    """One PDF of the pages of several."""
    whole = pypdfium2.PdfDocument.new()
    for data in files:
        whole.import_pages(pypdfium2.PdfDocument(data))
    stream = io.BytesIO()
    whole.save(stream)
    return stream.getvalue()


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
