"""Office files, books and archives made for the tests."""

import io
import zipfile
from datetime import date

import docx
import openpyxl
import pptx
from odf import opendocument
from odf import table as odf_table
from odf import text as odf_text


def saved(document: object) -> bytes:
    """The bytes that a library's document saves."""
    stream = io.BytesIO()
    document.save(stream)  # type: ignore[attr-defined]
    return stream.getvalue()


def word_file() -> bytes:
    """Headings, a list, and a table whose first column is merged over two rows."""
    document = docx.Document()
    document.core_properties.title = "Travel policy"
    document.add_heading("Flights", 1)
    document.add_paragraph("Book economy.")
    document.add_paragraph("window", style="List Bullet")
    document.add_heading("Per diem", 2)
    table = document.add_table(rows=3, cols=3)
    for row, cells in enumerate([("Country", "City", "Rate"), ("France", "Paris", "90"), ("", "Lyon", "70")]):
        for column, text in enumerate(cells):
            table.cell(row, column).text = text
    table.cell(1, 0).merge(table.cell(2, 0))
    document.add_heading("Trains", 1)
    document.add_paragraph("Second class.")
    return saved(document)


def slides_file() -> bytes:
    """Two slides; the second has a table, with a cell merged over two rows, and notes."""
    presentation = pptx.Presentation()
    first = presentation.slides.add_slide(presentation.slide_layouts[0])
    first.shapes.title.text = "Quarterly review"
    first.placeholders[1].text = "Numbers for everybody"
    second = presentation.slides.add_slide(presentation.slide_layouts[5])
    second.shapes.title.text = "Revenue"
    table = second.shapes.add_table(3, 2, 0, 0, 914400, 914400).table
    for row, cells in enumerate([("Region", "EUR"), ("North", "412"), ("", "398")]):
        for column, text in enumerate(cells):
            table.cell(row, column).text = text
    table.cell(1, 0).merge(table.cell(2, 0))
    second.notes_slide.notes_text_frame.text = "Mention the new shop."
    return saved(presentation)


def workbook_file() -> bytes:
    """A sheet with a merged title, a header of two rows (merged above), percentages and dates; one sheet is hidden."""
    workbook = openpyxl.Workbook()
    sheet = workbook.active
    sheet.title = "Plants"
    rows = [
        ("Output by plant", None, None, None),
        (None, None, None, None),
        ("Plant", "2025", None, "Opened"),
        (None, "Tons", "Share", None),
        ("Essen", 1250.5, 0.25, None),
        ("Turin", 980, 0.125, None),
    ]
    for row in rows:
        sheet.append(row)
    sheet["D5"] = date(1999, 5, 1)
    sheet["C5"].number_format = sheet["C6"].number_format = "0.0%"
    sheet.merge_cells("A1:D1")
    sheet.merge_cells("B3:C3")
    hidden = workbook.create_sheet("Secret")
    hidden.append(("not", "shown"))
    hidden.sheet_state = "hidden"
    return saved(workbook)


def text_document_file() -> bytes:
    """An ODT with a heading, a list and a table."""
    document = opendocument.OpenDocumentText()
    document.text.addElement(odf_text.H(outlinelevel=1, text="Storage"))
    document.text.addElement(odf_text.P(text="Keep it dry."))
    items = odf_text.List()
    for text in ("boxes", "shelves"):
        item = odf_text.ListItem()
        item.addElement(odf_text.P(text=text))
        items.addElement(item)
    document.text.addElement(items)
    table = odf_table.Table(name="t")
    for cells in (("Good", "Shelf"), ("Salt", "B4")):
        row = odf_table.TableRow()
        for text in cells:
            cell = odf_table.TableCell()
            cell.addElement(odf_text.P(text=text))
            row.addElement(cell)
        table.addElement(row)
    document.text.addElement(table)
    return saved(document)


def archive(members: dict[str, str | bytes]) -> bytes:
    """A ZIP file."""
    stream = io.BytesIO()
    with zipfile.ZipFile(stream, "w", zipfile.ZIP_DEFLATED) as file:
        for name, content in members.items():
            file.writestr(name, content)
    return stream.getvalue()


def with_member(data: bytes, name: str, content: str | bytes) -> bytes:
    """The ZIP file `data` with one member replaced."""
    with zipfile.ZipFile(io.BytesIO(data)) as file:
        members = {member: file.read(member) for member in file.namelist()}
    return archive({**members, name: content})


def book_file(encryption: str = "") -> bytes:
    """An EPUB of two chapters whose reading order is not that of their names."""
    container = (
        '<container xmlns="urn:oasis:names:tc:opendocument:xmlns:container" version="1.0"><rootfiles>'
        '<rootfile full-path="OEBPS/book.opf" media-type="application/oebps-package+xml"/></rootfiles></container>'
    )
    package = (
        '<package xmlns="http://www.idpf.org/2007/opf"><metadata xmlns:dc="http://purl.org/dc/elements/1.1/">'
        "<dc:title>The Lighthouse</dc:title></metadata><manifest>"
        '<item id="nav" href="nav.xhtml" media-type="application/xhtml+xml" properties="nav"/>'
        '<item id="b" href="b%20one.xhtml" media-type="application/xhtml+xml"/>'
        '<item id="a" href="a.xhtml" media-type="application/xhtml+xml"/></manifest>'
        '<spine><itemref idref="nav"/><itemref idref="b"/><itemref idref="a"/></spine></package>'
    )
    page = '<?xml version="1.0"?><!DOCTYPE html><html xmlns="http://www.w3.org/1999/xhtml"><body>{}</body></html>'
    members: dict[str, str | bytes] = {
        "mimetype": "application/epub+zip",
        "META-INF/container.xml": container,
        "OEBPS/book.opf": package,
        "OEBPS/nav.xhtml": page.format("<p>Contents</p>"),
        "OEBPS/b one.xhtml": page.format("<h1>One</h1><p>The lamp was lit.</p>"),
        "OEBPS/a.xhtml": page.format("<h1>Two</h1><h2>Storm</h2><p>Waves rose.</p>"),
    }
    if encryption:
        members["META-INF/encryption.xml"] = f'<encryption><CipherReference URI="{encryption}"/></encryption>'
    return archive(members)
