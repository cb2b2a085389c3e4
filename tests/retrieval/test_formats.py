"""One real file of every format, with the page, slide, sheet, row or heading path at which a passage must stand."""

import contextlib
import io
import zipfile
from collections.abc import Callable
from datetime import date, datetime, time, timedelta
from email.message import EmailMessage

import docx
import openpyxl
import pptx
import pytest
from docx.enum.style import WD_STYLE_TYPE
from docx.oxml import OxmlElement
from odf import opendocument
from odf import style as odf_style
from odf import text as odf_text
from openpyxl.cell.rich_text import CellRichText, TextBlock
from openpyxl.cell.text import InlineFont
from openpyxl.styles import Font

from retrieval.chunking import chunk_document
from retrieval.errors import (
    CorruptDocumentError,
    DocumentTooLargeError,
    EncryptedDocumentError,
    LoadError,
    UnsupportedFormatError,
)
from retrieval.loaders import archive as archive_module
from retrieval.loaders import load
from tests.retrieval.office_files import (
    archive,
    book_file,
    saved,
    slides_file,
    text_document_file,
    with_member,
    word_file,
    workbook_file,
)

Found = list[tuple[str, tuple[str, ...], int | None]]


def found(name: str, data: bytes) -> Found:
    """Text, headings and page of every block."""
    document = load(name, data)
    return [(document.text[block.start : block.end], block.headings, block.page) for block in document.blocks]


def test_docx_headings_lists_and_a_merged_cell_in_every_row_it_covers() -> None:
    assert load("a.docx", word_file()).title == "Travel policy"
    assert found("a.docx", word_file()) == [
        (["Book economy.", "- window"][0], ("Flights",), None),
        ("- window", ("Flights",), None),
        (
            "| Country | City | Rate |\n| --- | --- | --- |\n| France | Paris | 90 |\n| France | Lyon | 70 |",
            ("Flights", "Per diem"),
            None,
        ),
        ("Second class.", ("Trains",), None),
    ]


def test_docx_text_in_insertions_and_content_controls_is_read_and_deletions_are_not() -> None:
    body = (
        '<w:p><w:r><w:t>kept </w:t></w:r><w:ins w:id="1" w:author="a"><w:r><w:t>added</w:t></w:r></w:ins>'
        '<w:del w:id="2" w:author="a"><w:r><w:delText>gone</w:delText></w:r></w:del></w:p>'
        "<w:sdt><w:sdtContent><w:p><w:r><w:t>controlled</w:t></w:r></w:p></w:sdtContent></w:sdt>"
    )
    xml = (
        '<w:document xmlns:w="http://schemas.openxmlformats.org/wordprocessingml/2006/main"><w:body>'
        f"{body}</w:body></w:document>"
    )
    data = with_member(word_file(), "word/document.xml", xml)
    assert [text for text, _, _ in found("a.docx", data)] == ["kept added", "controlled"]


def test_docx_what_is_struck_out_or_hidden_is_left_out() -> None:
    document = docx.Document()
    gone = document.styles.add_style("Gone", WD_STYLE_TYPE.CHARACTER)
    gone.font.strike = True
    document.styles.add_style("Gone too", WD_STYLE_TYPE.CHARACTER).base_style = gone
    old = document.styles.add_style("Old", WD_STYLE_TYPE.PARAGRAPH)
    old.font.hidden = True
    document.add_heading("Fees", 1).add_run(" of 2023").font.strike = True
    paragraph = document.add_paragraph("It costs ")
    paragraph.add_run("7 ").font.strike = True
    paragraph.add_run("8 ").font.double_strike = True
    paragraph.add_run("or nothing ").font.hidden = True
    paragraph.add_run("9, ", style="Gone too")
    paragraph.add_run("10 euros.", style="Gone too").font.strike = False
    document.add_paragraph("Parcels are free.", style="Old").add_run("Letters too.").font.hidden = False
    document.add_paragraph("none", style="List Bullet").runs[0].font.strike = True
    table = document.add_table(rows=3, cols=2)
    for row, cells in enumerate([("City", "Rate"), ("Paris", "90"), ("Lyon", "70")]):
        for column, text in enumerate(cells):
            table.cell(row, column).text = text
    table.cell(1, 1).paragraphs[0].runs[0].font.strike = True
    hidden = OxmlElement("w:hidden")
    table.rows[2]._tr.get_or_add_trPr().append(hidden)
    assert found("a.docx", saved(document)) == [
        ("It costs 10 euros.", ("Fees",), None),
        ("Letters too.", ("Fees",), None),
        ("| City | Rate |\n| --- | --- |\n| Paris |  |", ("Fees",), None),
    ]


def test_odt_what_is_struck_out_or_hidden_is_left_out() -> None:
    document = opendocument.OpenDocumentText()

    def style(name: str, family: str, parent: str | None = None, **properties: str) -> None:
        made = odf_style.Style(name=name, family=family, **({"parentstylename": parent} if parent else {}))
        made.addElement(odf_style.TextProperties(**properties))
        document.automaticstyles.addElement(made)

    style("Gone", "text", textlinethroughstyle="solid", textlinethroughtype="single")
    style("GoneToo", "text", "Gone", color="#ff0000")
    style("Kept", "text", "Gone", textlinethroughstyle="none", textlinethroughtype="none")
    style("Unseen", "paragraph", display="none")
    paragraph = odf_text.P(text="It costs ")
    for name, text in (("Gone", "7 "), ("GoneToo", "8 "), ("Kept", "9 euros.")):
        paragraph.addElement(odf_text.Span(stylename=name, text=text))
    document.text.addElement(paragraph)
    document.text.addElement(odf_text.P(stylename="Unseen", text="Parcels are free."))
    section = odf_text.Section(name="s", display="none")
    section.addElement(odf_text.P(text="Letters too."))
    document.text.addElement(section)
    assert [text for text, _, _ in found("a.odt", saved(document))] == ["It costs 9 euros."]


def test_pptx_hidden_slides_and_shapes_and_what_is_struck_out_are_left_out() -> None:
    presentation = pptx.Presentation()
    for title in ("Old prices", "Prices"):
        slide = presentation.slides.add_slide(presentation.slide_layouts[1])
        slide.shapes.title.text = title
    presentation.slides[0]._element.set("show", "0")
    paragraph = slide.placeholders[1].text_frame.paragraphs[0]
    paragraph.add_run().text = "It costs "
    for mark, text in (("sngStrike", "7 "), ("noStrike", "9 euros.")):
        run = paragraph.add_run()
        run.text = text
        run._r.get_or_add_rPr().set("strike", mark)
    box = slide.shapes.add_textbox(0, 0, 9999, 9999)
    box.text_frame.text = "Parcels are free."
    box._element._nvXxPr.cNvPr.set("hidden", "1")
    assert found("a.pptx", saved(presentation)) == [("It costs 9 euros.", ("Prices",), 2)]


def test_docx_a_footnote_stands_where_it_is_referred_to() -> None:
    namespace = 'xmlns:w="http://schemas.openxmlformats.org/wordprocessingml/2006/main"'
    relations = "http://schemas.openxmlformats.org/officeDocument/2006/relationships"
    kind = "application/vnd.openxmlformats-officedocument.wordprocessingml.footnotes+xml"
    members = {
        "word/document.xml": f"<w:document {namespace}><w:body><w:p><w:r><w:t>The fee is 40</w:t></w:r>"
        '<w:r><w:footnoteReference w:id="2"/></w:r><w:r><w:t>a month.</w:t></w:r></w:p></w:body></w:document>',
        "word/footnotes.xml": f'<w:footnotes {namespace}><w:footnote w:id="2"><w:p><w:r><w:t>Without tax.</w:t></w:r>'
        "</w:p></w:footnote></w:footnotes>",
        "word/_rels/document.xml.rels": "<Relationships "
        'xmlns="http://schemas.openxmlformats.org/package/2006/relationships">'
        f'<Relationship Id="r1" Type="{relations}/footnotes" Target="footnotes.xml"/>'
        f'<Relationship Id="r2" Type="{relations}/styles" Target="styles.xml"/></Relationships>',
    }
    data = word_file()
    for name, content in members.items():
        data = with_member(data, name, content)
    with zipfile.ZipFile(io.BytesIO(data)) as file:
        types = file.read("[Content_Types].xml").decode()
    override = f'<Override PartName="/word/footnotes.xml" ContentType="{kind}"/></Types>'
    data = with_member(data, "[Content_Types].xml", types.replace("</Types>", override))
    assert [text for text, _, _ in found("a.docx", data)] == ["The fee is 40 (Without tax.) a month."]


def test_pptx_bullet_points_are_items_and_the_paragraphs_of_a_text_box_stand_by_themselves() -> None:
    presentation = pptx.Presentation()
    slide = presentation.slides.add_slide(presentation.slide_layouts[1])
    slide.shapes.title.text = "Outlook"
    slide.placeholders[1].text = "The route will run twice daily from April\nThe office in Oslo closes in September"
    box = slide.shapes.add_textbox(0, 0, 100, 100)
    box.text_frame.text = "Draft of May\nNot for release"
    assert found("a.pptx", saved(presentation)) == [
        ("- The route will run twice daily from April\n- The office in Oslo closes in September", ("Outlook",), 1),
        ("Draft of May\n\nNot for release", ("Outlook",), 1),
    ]


def test_pptx_a_slide_is_a_page() -> None:
    document = load("a.pptx", slides_file())
    assert (document.title, document.num_pages) == ("Quarterly review", 2)
    assert found("a.pptx", slides_file()) == [
        ("Numbers for everybody", ("Quarterly review",), 1),
        ("Notes: Mention the new shop.", ("Revenue",), 2),
        ("| Region | EUR |\n| --- | --- |\n| North | 412 |\n| North | 398 |", ("Revenue",), 2),
    ]


def test_xlsx_a_row_carries_its_headers_and_knows_its_sheet_and_number() -> None:
    assert found("plants.xlsx", workbook_file()) == [
        (
            "Plant Essen: 2025 Tons 1250.5; 2025 Share 25.0%; Opened 1999-05-01",
            ("Plants", "Output by plant", "row 5"),
            None,
        ),
        ("Plant Turin: 2025 Tons 980; 2025 Share 12.5%", ("Plants", "Output by plant", "row 6"), None),
    ]


def test_xlsx_numbers_and_moments_are_told_as_the_sheet_shows_them() -> None:
    moment = datetime(2025, 1, 31, 21, 5)
    shown = [
(1, "0%", "100%"), (2, "0%", "200%"), (0, "0%", "0%"), (0.5, "0%", "50%"), (0.1234, "0.0%", "12.3%"),
        (5, "0\\%", "5%"), (5, '0" %"', "5 %"), (0.05, '0.00"%"', "0.05%"), (30000, "#,##0", "30,000"),
        (1250.5, '#,##0.00\\ "€"', "1,250.50 €"), (-5, "[$€-407]#,##0.00", "-€5.00"),
        (-5, '"$"#,##0.00_);[Red]\\("$"#,##0.00\\)', "($5.00)"),
        (0, '_-* #,##0.00\\ "€"_-;-;_-* "-"??\\ "€"_-', "0.00 €"), (1250000, '0.0,,"M"', "1.3M"),
        (12, '0 "kg"', "12 kg"), (501, "00000", "00501"), (1 / 3, "0.00", "0.33"),
        (123456, "0.00E+00", "1.23E+05"), (1.5, "# ?/?", "1.5"), (1, '"Yes";"No";"No"', "Yes"),
        (0.1 + 0.2, "General", "0.3"), (0.5, '[<1]0.00" kg";0" t"', "0.50 kg"), (True, "General", "TRUE"),
        (moment, "yyyy-mm-dd", "2025-01-31"), (moment, "d/m/yy h:mm", "2025-01-31 21:05"),
        (moment, "mmm yyyy", "Jan 2025"), (moment, "yyyy", "2025"), (moment, "d mmmm", "31 January"),
        (moment, "h:mm AM/PM", "9:05 PM"), (moment, "dddd", "Friday"), (time(9, 5), "hh:mm", "09:05"),
        (timedelta(hours=26, minutes=30), "[h]:mm", "26:30"), (timedelta(minutes=90), '[m]" min"', "90 min"),
    ]  # fmt: skip
    workbook = openpyxl.Workbook()
    workbook.active.append(["Code", "Shown"])
    for row, (value, code, _) in enumerate(shown, 2):
        workbook.active.append([f"c{row}", value])
        workbook.active.cell(row, 2).number_format = code
    rows = [text for text, _, _ in found("a.xlsx", saved(workbook))]
    assert rows == [f"Code c{row}: Shown {text}" for row, (_, _, text) in enumerate(shown, 2)]


def test_xlsx_what_is_hidden_or_struck_out_is_left_out_and_what_is_filtered_stays() -> None:
    workbook = openpyxl.Workbook()
    sheet = workbook.active
    birds = [("Puffin", 7, "a"), ("Heron", 8, "b"), ("Gull", 9, ""), ("Tern", 6, "d")]
    for row in [("Id", "Bird", "Fee", "Note"), *((number, *bird) for number, bird in enumerate(birds, 1))]:
        sheet.append(row)
    sheet["C2"].font = Font(strike=True)
    sheet["E5"], sheet["E5"].number_format = 12, ";;;"
    sheet.row_dimensions[3].hidden = True
    sheet.column_dimensions["A"].hidden = True
    sheet.row_dimensions.group(5, 5, hidden=True)

    sheet["D4"] = CellRichText(
        "old", TextBlock(InlineFont(strike=True), " cheap"), TextBlock(InlineFont(b=True), " new")
    )

    def rows() -> list[str]:
        return load("a.xlsx", saved(workbook)).text.split("\n\n")

    assert rows() == ["Bird Puffin: Note a", "Bird Gull: Fee 9; Note old new", "Bird Tern: Fee 6; Note d"]
    sheet.auto_filter.ref = "A1:D5"
    sheet.auto_filter.add_filter_column(1, ["Puffin", "Gull", "Tern"])
    assert "Bird Heron: Fee 8; Note b" in rows()


def test_xlsx_units_do_not_make_headers_of_rows() -> None:
    workbook = openpyxl.Workbook()
    workbook.active.append(["Puffin", 12])
    workbook.active.append(["Gull", 13])
    for cell in workbook.active["B"]:
        cell.number_format = '0" kilograms"'
    assert load("a.xlsx", saved(workbook)).text == "Puffin: 12 kilograms\n\nGull: 13 kilograms"


def test_xlsx_dates_may_be_column_headers_and_formulas_without_results_are_told() -> None:
    workbook = openpyxl.Workbook()
    sheet = workbook.active
    sheet.append(["Account", date(2025, 1, 31), date(2025, 2, 28)])
    sheet.append(["Rent", 1200, 1250])
    sheet.append(["Sum", "=B2", 1250])
    document = load("costs.xlsx", saved(workbook))
    assert document.text == "Account Rent: 2025-01-31 1200; 2025-02-28 1250\n\nAccount Sum: 2025-02-28 1250"
    assert document.notice == "1 formulas have no result in the file: open it in Excel or LibreOffice and save it"


@pytest.mark.parametrize(
    ("name", "data"),
    [
        ("a.csv", b"City,Inhabitants\nBern,134591\n\nThun,43476\n"),
        ("a.csv", b"City;Inhabitants\nBern;134591\n\nThun;43476\n"),
        ("a.csv", "City\tInhabitants\r\nBern\t134591\r\n\r\nThun\t43476".encode("utf-16")),
        ("a.tsv", b"City\tInhabitants\nBern\t134591\n\nThun\t43476\n"),
    ],
)
def test_csv_and_tsv_rows(name: str, data: bytes) -> None:
    assert found(name, data) == [
        ("City Bern: Inhabitants 134591", ("row 2",), None),
        ("City Thun: Inhabitants 43476", ("row 4",), None),
    ]


def test_a_csv_of_nothing_but_texts_keeps_every_row_and_quoted_line_ends() -> None:
    data = b'name,role,note\nAnn,engineer,"two\nlines"\n,,orphan\nBob,,\n'
    assert [text for text, _, _ in found("a.csv", data)] == [
        "name Ann: role engineer; note two lines",
        "note orphan",
        "name Bob",
    ]


def test_a_cell_of_many_digits_takes_no_time() -> None:
    digits = "7" * 200_000 + "x"
    assert found("a.csv", f"name,number\nAnn,{digits}\n".encode()) == [(f"name Ann: number {digits}", ("row 2",), None)]


def test_json_objects_are_sentences_under_their_path() -> None:
    data = b'{"title": "Fleet", "owner": "Ann", "cars": [{"id": 1.10, "at": {"city": "Rome"}}, '
    data += b'{"id": 2, "tags": ["a", "b"]}]}'
    assert load("fleet.json", data).title == "Fleet"
    assert found("fleet.json", data) == [
        ("title Fleet: owner Ann", (), None),
        ("id 1.10: at.city Rome", ("cars", "item 1"), None),
        ("id 2: tags a, b", ("cars", "item 2"), None),
    ]


def test_json_lists_of_lists_are_rows() -> None:
    assert found("t.json", b'{"table": [["city", "people"], ["Bern", 134591], ["Thun", null]]}') == [
        ("city Bern: people 134591", ("table", "row 2"), None),
        ("city Thun", ("table", "row 3"), None),
    ]


def test_jsonl_lines_keep_their_numbers() -> None:
    assert found("log.jsonl", b'{"level": "info", "n": 1}\n\n{"level": "error", "n": 2}\n') == [
        ("level info: n 1", ("line 1",), None),
        ("level error: n 2", ("line 3",), None),
    ]


def test_xml_elements_are_sentences_under_their_path() -> None:
    data = (
        b'<?xml version="1.0" encoding="iso-8859-1"?><shop><item sku="7"><name>T\xe9</name><price unit="EUR">4</price>'
        b"</item><about>Open <b>daily</b>.</about></shop>"
    )
    assert found("shop.xml", data) == [
        ("sku 7: name Té; price 4; price unit EUR", ("shop", "item"), None),
        ("Open daily.", ("shop", "about"), None),
    ]


def test_eml_head_text_and_names_of_attachments() -> None:
    message = EmailMessage()
    message["From"], message["To"], message["Subject"] = "ann@example.org", "bob@example.org", "Übergabe am Montag"
    message.set_content("Der Schlüssel liegt unten.\n\nGruß")
    message.add_attachment(b"%PDF", maintype="application", subtype="pdf", filename="plan.pdf")
    assert load("a.eml", message.as_bytes()).title == "Übergabe am Montag"
    headings = ("Übergabe am Montag",)
    assert found("a.eml", message.as_bytes()) == [
        ("From: ann@example.org\nTo: bob@example.org", headings, None),
        ("Der Schlüssel liegt unten.", headings, None),
        ("Gruß", headings, None),
        ("Attachment: plan.pdf", headings, None),
    ]


def test_rtf_paragraphs_and_table_rows() -> None:
    data = (
        rb"{\rtf1\ansi\ansicpg1252{\info{\title Rules}}\pard First caf\'e9.\par Second.\par"
        rb"\trowd\cellx100\cellx200\pard\intbl Name\cell Room\cell\row"
        rb"\trowd\cellx100\cellx200\pard\intbl Ann\cell 12\cell\row}"
    )
    assert load("a.rtf", data).title == "Rules"
    assert [text for text, _, _ in found("a.rtf", data)] == [
        "First café.",
        "Second.",
        "| Name | Room |\n| --- | --- |\n| Ann | 12 |",
    ]


def test_odt_headings_lists_and_tables() -> None:
    assert found("a.odt", text_document_file()) == [
        ("Keep it dry.", ("Storage",), None),
        ("- boxes\n- shelves", ("Storage",), None),
        ("| Good | Shelf |\n| --- | --- |\n| Salt | B4 |", ("Storage",), None),
    ]


def test_odt_that_breaks_off_is_refused_and_not_read_by_half(capfd: pytest.CaptureFixture[str]) -> None:
    with zipfile.ZipFile(io.BytesIO(text_document_file())) as file:
        content = file.read("content.xml")
    cut = content[: content.index(b"shelves")]
    with pytest.raises(CorruptDocumentError, match="damaged, or is not an OpenDocument text"):
        load("a.odt", with_member(text_document_file(), "content.xml", cut))
    assert capfd.readouterr() == ("", "")


def test_epub_chapters_come_in_reading_order() -> None:
    assert load("a.epub", book_file()).title == "The Lighthouse"
    assert found("a.epub", book_file()) == [
        ("The lamp was lit.", ("One",), None),
        ("Waves rose.", ("Two", "Storm"), None),
    ]
    assert load("a.epub", book_file()).notice is None
    with zipfile.ZipFile(io.BytesIO(book_file())) as file:
        members = {name: file.read(name) for name in file.namelist() if not name.endswith("a.xhtml")}
    assert load("a.epub", archive(members)).notice == "1 of its 2 chapters are missing in the file"
    with pytest.raises(EncryptedDocumentError, match="copy-protected"):
        load("a.epub", book_file(encryption="OEBPS/a.xhtml"))
    assert load("a.epub", book_file(encryption="OEBPS/font.otf")).title == "The Lighthouse"


def test_code_stands_under_its_declarations() -> None:
    source = (
        b"import os\n\n# Counts.\nclass Counter:\n    def add(self):\n        return 1\n\nasync def main():\n    pass\n"
    )
    assert load("count.py", source).title == "count.py"
    assert found("count.py", source) == [
        ("import os", (), None),
        ("# Counts.\nclass Counter:", ("class Counter",), None),
        ("    def add(self):\n        return 1", ("class Counter", "def add"), None),
        ("async def main():\n    pass", ("def main",), None),
    ]
    go = b"package main\n\nfunc (s *Server) Run(port int) error {\n\treturn nil\n}\n"
    assert [headings for _, headings, _ in found("a.go", go)] == [(), ("func Run",)]


@pytest.mark.parametrize(
    ("markup", "text"),
    [
        (b"<dl><dt>E03</dt><dd>Blocked.</dd><dt>E07</dt><dd><p>Too hot.</p><p>Wait.</p></dd></dl>",
         "- E03: Blocked.\n- E07: Too hot.\nWait."),
        (b"<dl><dt>A<dd>one<dt>B<dd>two<dd>three</dl>", "- A: one\n- B: two\nthree"),
        (b"<dl><div><dt>A</dt>\n<dd>one</dd></div><dt>B</dt> <dt>C</dt><dd>two<ul><li>x</li></ul></dd></dl>",
         "- A: one\n- B\n- C: two\n- x"),
        (b"<ul><li><p>a</p></li>\n<li><p>b</p><p>c</p></li></ul>", "- a\n- b\nc"),
        (b"<dl><dd>indented</dd></dl>", "indented"),
    ],
)  # fmt: skip
def test_html_a_term_and_its_definition_are_one_item(markup: bytes, text: str) -> None:
    assert found("a.html", markup) == [(text, (), None)]


def test_html_cells_that_span_stand_in_every_place_they_cover() -> None:
    page = (
        b"<table><tr><th>Zone</th><th colspan=2>Price</th></tr><tr><td rowspan=2>A</td><td>1</td><td>2</td></tr>"
        b"<tr><td>3</td><td>4</td></tr></table>"
    )
    assert found("a.html", page)[0][0].split("\n") == [
        "| Zone | Price | Price |",
        "| --- | --- | --- |",
        "| A | 1 | 2 |",
        "| A | 3 | 4 |",
    ]


@pytest.mark.parametrize("marked", [b"<thead>%s</thead><tbody>%s</tbody>", b"%s%s"])
def test_html_header_rows_above_each_other_are_one(marked: bytes) -> None:
    head = b"<tr><th rowspan=2>Region</th><th colspan=2>2023</th></tr><tr><th>Revenue</th><th>Staff</th></tr>"
    page = b"<table>" + marked % (head, b"<tr><th>North</th><td>5</td><td>9</td></tr>") + b"</table>"
    assert found("a.html", page)[0][0].split("\n") == [
        "| Region | 2023 \u2013 Revenue | 2023 \u2013 Staff |",
        "| --- | --- | --- |",
        "| North | 5 | 9 |",
    ]


def test_html_tables_of_spans_within_spans_take_no_time() -> None:
    bomb = b"<table>" + b"<tr><td rowspan=50 colspan=50>x</td></tr>" * 500 + b"</table>"
    assert found("a.html", bomb)
    with pytest.raises(CorruptDocumentError, match="nested too deeply"):
        load("b.html", b"<table>" + b"<tr><td>x" * 2000)


def test_a_record_too_long_for_a_chunk_repeats_its_label() -> None:
    header = ",".join(["id", *(f"column{number}" for number in range(60))])
    row = ",".join(["K-9", *(f"value number {number}" for number in range(60))])
    chunks = chunk_document(load("wide.csv", f"{header}\n{row}\n".encode()), len, 400)
    assert len(chunks) > 3
    assert all(chunk.text.startswith("id K-9: column") and len(chunk.text) <= 400 for chunk in chunks)
    fields = [field.rstrip(";") for chunk in chunks for field in chunk.text.removeprefix("id K-9: ").split("; ")]
    assert fields == [f"column{number} value number {number}" for number in range(60)]


ENTITIES = (
    '<!DOCTYPE x [<!ENTITY a "ha"><!ENTITY b "&a;&a;&a;&a;&a;&a;&a;&a;">]>'
    '<w:document xmlns:w="http://schemas.openxmlformats.org/wordprocessingml/2006/main"><w:body><w:p><w:r><w:t>&b;'
    "</w:t></w:r></w:p></w:body></w:document>"
)


@pytest.mark.parametrize(
    ("name", "data", "kind", "reason"),
    [
        ("a.doc", b"\xd0\xcf\x11\xe0", UnsupportedFormatError, ".doc files are not supported: save it as .docx"),
        ("a.xls", b"\xd0\xcf\x11\xe0", UnsupportedFormatError, ".xls files are not supported: save it as .xlsx"),
        ("a.ppt", b"\xd0\xcf\x11\xe0", UnsupportedFormatError, ".ppt files are not supported: save it as .pptx"),
        ("a.docx", b"\xd0\xcf\x11\xe0\xa1\xb1\x1a\xe1" + bytes(99), UnsupportedFormatError, "old binary format"),
        (
            "a.docx",
            b"\xd0\xcf\x11\xe0\xa1\xb1\x1a\xe1" + "EncryptedPackage".encode("utf-16-le"),
            EncryptedDocumentError,
            "opens with a password only",
        ),
        ("a.docx", b"plain text", CorruptDocumentError, "damaged, or is not a Word document"),
        ("a.docx", word_file()[:3000], CorruptDocumentError, "damaged, or is not a Word document"),
        ("a.docx", slides_file(), CorruptDocumentError, "damaged, or is not a Word document"),
        ("a.pptx", workbook_file(), CorruptDocumentError, "damaged, or is not a PowerPoint presentation"),
        ("a.xlsx", archive({"a.txt": "x"}), CorruptDocumentError, "damaged, or is not an Excel workbook"),
        ("a.epub", archive({"a.txt": "x"}), CorruptDocumentError, "damaged, or is not an e-book"),
        ("a.odt", archive({"a.txt": "x"}), CorruptDocumentError, "damaged, or is not an OpenDocument text"),
        ("a.rtf", b"no rich text", CorruptDocumentError, "not rich text"),
        ("a.json", b'{"a": }', CorruptDocumentError, "is not JSON: .* line 1, column 7"),
        ("a.jsonl", b'{"a": 1}\n{"b"\n', CorruptDocumentError, "line 2 is not JSON"),
        ("a.json", b"[" * 100_000, CorruptDocumentError, "nested too deeply"),
        ("a.xml", b"<a><b></a>", CorruptDocumentError, "not well-formed XML"),
        ("a.xml", ENTITIES.encode(), CorruptDocumentError, "declares XML entities"),
        ("a.xml", ENTITIES.encode("utf-16"), CorruptDocumentError, "declares XML entities"),
        ("a.docx", with_member(word_file(), "word/document.xml", ENTITIES), CorruptDocumentError, "XML entities"),
        ("a.csv", b"\x89PNG\r\n\x1a\n" + bytes(100), CorruptDocumentError, "does not look like text"),
        ("a.json", b"\x7fELF" + bytes(range(256)) * 9, CorruptDocumentError, "does not look like text"),
        ("a.eml", b"\x7fELF" + bytes(range(256)) * 9, CorruptDocumentError, "does not look like text"),
        ("a.zip", b"PK", UnsupportedFormatError, "files of type '.zip' are not supported; supported: .md"),
    ],
)  # fmt: skip
def test_what_cannot_be_read_says_why(name: str, data: bytes, kind: type[LoadError], reason: str) -> None:
    with pytest.raises(kind, match=reason):
        load(name, data)


def test_an_archive_that_unpacks_to_too_much_is_refused_before_it_is_unpacked(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(archive_module, "MAX_EXPANDED_BYTES", 1024 * 1024)
    for make, name in ((word_file, "a.docx"), (workbook_file, "a.xlsx"), (text_document_file, "a.odt")):
        bomb = with_member(make(), "media/picture.bin", bytes(2 * 1024 * 1024))
        with pytest.raises(DocumentTooLargeError, match=r"unpacked it would be [23] MB in \d+ parts; up to 1 MB"):
            load(name, bomb)


def test_a_part_too_large_to_be_read_as_a_tree_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(archive_module, "MAX_TREE_BYTES", 1024 * 1024)
    spaces = b" " * (2 * 1024 * 1024)
    with pytest.raises(DocumentTooLargeError, match=r"its part 'word/document.xml' would be 2 MB unpacked; up to 1 MB"):
        load("a.docx", with_member(word_file(), "word/document.xml", spaces))
    with pytest.raises(DocumentTooLargeError, match=r"its part 'xl/sharedStrings.xml'"):
        load("a.xlsx", with_member(workbook_file(), "xl/sharedStrings.xml", spaces))


@pytest.mark.parametrize("make", [word_file, slides_file, workbook_file, text_document_file, book_file])
def test_a_damaged_archive_gives_its_text_or_a_reason(make: Callable[[], bytes]) -> None:
    name = {word_file: "a.docx", slides_file: "a.pptx", workbook_file: "a.xlsx", text_document_file: "a.odt"}
    data = make()
    for position in range(60, len(data), len(data) // 12):
        damaged = data[:position] + bytes(24) + data[position + 24 :]
        with contextlib.suppress(LoadError):
            load(name.get(make, "a.epub"), damaged)
