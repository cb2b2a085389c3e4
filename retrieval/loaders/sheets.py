"""XLSX: a sentence a row, with the column headers in it, under the sheet's name. Formulas are not run.

Values are told as the sheet shows them (`number_format`). What is hidden or struck out is left out; rows that a filter
or a folded group hides are there.
"""

import io
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from datetime import date, time, timedelta
from functools import cached_property
from typing import Any

import openpyxl
from openpyxl.cell.rich_text import CellRichText
from openpyxl.worksheet._reader import WorkSheetParser

from retrieval.loaders.archive import open_archive, reading
from retrieval.loaders.document import MOST_LEFT_OUT, LoadedDocument, TextBuilder, chosen_title
from retrieval.loaders.encoding import clean
from retrieval.loaders.number_format import NumberFormat, plain_number
from retrieval.loaders.sheet_scan import Range, SheetScan, filtered_tables
from retrieval.loaders.tables import RowReader, cell_text, figures_among


def load_xlsx(data: bytes, fallback_title: str) -> LoadedDocument:
    """Reads an Excel workbook. Title: the workbook's property or the file's name. Hidden sheets are left out.

    Raises LoadError.
    """
    kind = "an Excel workbook (.xlsx)"
    archive = open_archive(data, kind, streamed="xl/worksheets/")
    builder = TextBuilder()
    uncomputed = hidden = shown = 0
    with reading(kind):
        workbook = openpyxl.load_workbook(io.BytesIO(data), read_only=True, data_only=True, rich_text=True)
        styles = _Styles(workbook)
        tables = filtered_tables(archive)
        for sheet in workbook.worksheets:
            if sheet.sheet_state == "visible":
                scan = SheetScan.of(archive, sheet._worksheet_path, tables)  # type: ignore[attr-defined]
                shown += _read_sheet(builder, sheet, scan, styles)
                hidden += len(scan.hidden_rows)
                uncomputed += scan.uncomputed
        given = clean(workbook.properties.title or "")
        workbook.close()
    notices = [
        f"{uncomputed} formulas have no result in the file: open it in Excel or LibreOffice and save it"
        if uncomputed
        else "",
        MOST_LEFT_OUT if hidden > shown else "",
    ]
    return builder.build(chosen_title(given) or fallback_title, notice="; ".join(filter(None, notices)) or None)


@dataclass(frozen=True)
class _Row:
    """A row's texts, as they are shown; `has_values` says whether a number or date is among them."""

    number: int
    cells: list[str]
    has_values: bool


def _read_sheet(builder: TextBuilder, sheet: Any, scan: SheetScan, styles: "_Styles") -> int:
    """Adds a sheet's rows; returns how many there are."""
    reader = RowReader(builder, (cell_text(clean(sheet.title)),))
    count = 0
    for row in _filled(sheet, scan, styles):
        reader.feed(row.number, row.cells, has_values=row.has_values)
        count += any(row.cells)
    reader.finish()
    return count


def _filled(sheet: Any, scan: SheetScan, styles: "_Styles") -> Iterator[_Row]:
    """The rows. A merged cell stands in every place that it covers, but a title across a row stands once."""
    starts: dict[int, list[Range]] = {}
    for area in scan.merged:
        starts.setdefault(area[1], []).append(area)
    open_areas: list[tuple[Range, str]] = []
    last = 0
    for number, row in _rows(sheet):
        if number > last + 1:
            yield _Row(last + 1, [], False)  # one blank row parts tables as well as many
        last = number
        cells = [styles.of(cell).shown(cell.value) if cell.value is not None else "" for cell in row]
        alone = sum(map(bool, cells)) == 1
        open_areas = [(area, text) for area, text in open_areas if area[3] >= number]
        for area in starts.pop(number, ()):
            if area[0] <= len(cells) and (text := cells[area[0] - 1]) and not (alone and area[1] == area[3]):
                open_areas.append((area, text))
        for (left, _, right, _), text in open_areas:
            # The range may reach beyond the last cell that is stored.
            cells += [""] * (min(right, left + 255) - len(cells))
            cells[left - 1 : right] = [text] * len(cells[left - 1 : right])
        if number not in scan.hidden_rows:
            if scan.hidden_columns:
                cells = [text for column, text in enumerate(cells, 1) if not scan.is_hidden_column(column)]
            stored = [_stored(cell.value) for cell in row if cell.value is not None]
            yield _Row(number, cells, figures_among(stored))


def _rows(sheet: Any) -> Iterator[tuple[int, Sequence[Any]]]:
    """The rows that are stored, with their numbers. `sheet.iter_rows` would lose the fonts of parts of cells."""
    workbook = sheet.parent
    with sheet._get_source() as source:
        parser = WorkSheetParser(
            source,
            sheet._shared_strings,
            data_only=True,
            epoch=workbook.epoch,
            date_formats=workbook._date_formats,
            timedelta_formats=workbook._timedelta_formats,
            rich_text=True,
        )
        for number, row in parser.parse():
            yield number, sheet._get_row(row)


def _stored(value: object) -> str:
    """A value whatever its format, to judge what kind it is."""
    if isinstance(value, float):
        return plain_number(value)
    return value.isoformat() if isinstance(value, date) else cell_text(value)


@dataclass(frozen=True)
class _Style:
    """How cells of one style show what they hold."""

    code: str
    is_struck: bool

    @cached_property
    def _format(self) -> NumberFormat:
        return NumberFormat(self.code)

    def shown(self, value: Any) -> str:
        if isinstance(value, CellRichText):
            return self._format.text(clean(cell_text("".join(self._said(value)))))
        if self.is_struck:
            return ""
        if isinstance(value, bool):
            return str(value).upper()
        if isinstance(value, int | float):
            return self._format.number(value)
        if isinstance(value, date | time | timedelta):
            return self._format.moment(value)
        return self._format.text(clean(cell_text(value)))

    def _said(self, value: CellRichText) -> Iterator[str]:
        """The runs that are not struck out, each by its own font, else by the cell's."""
        for run in value:
            is_struck = self.is_struck if isinstance(run, str) else bool(run.font.strike)
            yield "" if is_struck else str(run)


class _Styles:
    """The styles of one workbook. openpyxl takes long over each, so that they are kept by their number."""

    def __init__(self, workbook: Any) -> None:
        self._workbook = workbook
        self._known: dict[int, _Style] = {}

    def of(self, cell: Any) -> _Style:
        if cell._style_id not in self._known:
            self._known[cell._style_id] = _Style(str(cell.number_format or "General"), bool(cell.font.strike))
        return self._known[cell._style_id]
