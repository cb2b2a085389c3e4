"""PDF files made for the tests."""

import io

import pypdfium2
from fpdf import FPDF
from PIL import Image, ImageDraw


def text_pdf(
    pages: list[str], title: str | None = None, outline: dict[int, str] | None = None, password: str | None = None
) -> bytes:
    """A PDF with a text layer; `outline` gives chapters by page (from 0)."""
    pdf = FPDF()
    pdf.set_font("helvetica", size=12)
    if title is not None:
        pdf.set_title(title)
    if password is not None:
        pdf.set_encryption(owner_password="owner", user_password=password)
    for index, text in enumerate(pages):
        pdf.add_page()
        if outline and index in outline:
            pdf.start_section(outline[index])
        pdf.multi_cell(0, text=text)
    return bytes(pdf.output())


def image_pdf(num_pages: int = 2) -> bytes:
    """A PDF whose pages are pictures of text."""
    pdf = FPDF()
    for number in range(num_pages):
        picture = Image.new("RGB", (400, 100), "white")
        ImageDraw.Draw(picture).text((10, 40), f"Scanned page {number + 1}", fill="black")
        stream = io.BytesIO()
        picture.save(stream, "PNG")
        pdf.add_page()
        pdf.image(stream, x=10, y=10, w=150)
    return bytes(pdf.output())


def pageless_pdf() -> bytes:
    """A PDF that is valid and has no pages."""
    document = pypdfium2.PdfDocument.new()
    stream = io.BytesIO()
    document.save(stream)
    return stream.getvalue()
