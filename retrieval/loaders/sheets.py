"""XLSX: a sentence a row, with the column headers in it, under the sheet's name. Formulas are not run."""

import io
import re
import zipfile
from collections.abc import Iterator, Sequence
from datetime import datetime, time
from typing import Any

import openpyxl
from openpyxl.utils.cell import range_boundaries

from retrieval.loaders.archive import open_archive, reading
from retrieval.loaders.document import LoadedDocument, TextBuilder, chosen_title
from retrieval.loaders.encoding import clean
from retrieval.loaders.tables import RowReader, cell_text

_MERGED_OR_UNCOMPUTED = re.compile(
    rb'<(?:\w+:)?mergeCell\s[^>]*?ref="([A-Z]+\d+:[A-Z]+\d+)"|</f>(?:<v\s*/>|<v></v>)?</c>|<f\s[^>]*/>(?:<v\s*/>)?</c>'
)
_READ_BYTES = 1024 * 1024

Range = tuple[int, int, int, int]


def load_xlsx(data: bytes, fallback_title: str) -> LoadedDocument:
    """Reads an Excel workbook. Title: the workbook's property or the file's name. Hidden sheets are left out.

    Raises LoadError.
    """
    kind = "an Excel workbook (.xlsx)"
    archive = open_archive(data, kind, streamed="xl/worksheets/")
    builder = TextBuilder()
    uncomputed = 0
    with reading(kind):
        workbook = openpyxl.load_workbook(io.BytesIO(data), read_only=True, data_only=True)
        for sheet in workbook.worksheets:
            if sheet.sheet_state == "visible":
                uncomputed += _read_sheet(builder, sheet, archive)
        given = clean(workbook.properties.title or "")
        workbook.close()
    notice = f"{uncomputed} formulas have no result in the file: open it in Excel or LibreOffice and save it"
    return builder.build(chosen_title(given) or fallback_title, notice=notice if uncomputed else None)


def _read_sheet(builder: TextBuilder, sheet: Any, archive: zipfile.ZipFile) -> int:
    """Adds a sheet's rows; returns how many of its formulas have no result, since no program has computed them."""
    # What a sheet says of its size may be wrong, and a far lone cell would make a million wide empty rows of it.
    sheet.reset_dimensions()
    reader = RowReader(builder, (cell_text(clean(sheet.title)),))
    merged, uncomputed = _scanned(archive, sheet._worksheet_path)
    for number, row in enumerate(_filled(sheet, merged), 1):
        reader.feed(number, row)
    reader.finish()
    return uncomputed


def _filled(sheet: Any, merged: Sequence[Range]) -> Iterator[list[str]]:
    """The rows' texts. A merged cell stands in every place that it covers, but a title across a row stands once."""
    starts: dict[int, list[Range]] = {}
    for area in merged:
        starts.setdefault(area[1], []).append(area)
    open_areas: list[tuple[Range, str]] = []
    percentages: dict[int, bool] = {}
    for number, row in enumerate(sheet.iter_rows(), 1):
        cells = [_shown(cell, percentages) for cell in row]
        alone = sum(map(bool, cells)) == 1
        open_areas = [(area, text) for area, text in open_areas if area[3] >= number]
        for area in starts.pop(number, ()):
            if area[0] <= len(cells) and (text := cells[area[0] - 1]) and not (alone and area[1] == area[3]):
                open_areas.append((area, text))
        for (left, _, right, _), text in open_areas:
            # The range may reach beyond the last cell that is stored.
            cells += [""] * (min(right, left + 255) - len(cells))
            cells[left - 1 : right] = [text] * len(cells[left - 1 : right])
        yield cells


def _shown(cell: Any, percentages: dict[int, bool]) -> str:
    """A cell's value as a person would write it: percentages as such, dates without a midnight."""
    value = cell.value
    if isinstance(value, float):
        if _is_percentage(cell, percentages):
            return f"{value * 100:.10g}%"
        return f"{value:.15g}"
    if isinstance(value, datetime):
        return value.date().isoformat() if value.time() == time() else value.isoformat(" ", "minutes")
    return clean(cell_text(value))


def _is_percentage(cell: Any, known: dict[int, bool]) -> bool:
    """Whether the cell is shown as a percentage. `known` keeps the answer by style: openpyxl takes long over it."""
    if cell._style_id not in known:
        known[cell._style_id] = "%" in str(cell.number_format)
    return known[cell._style_id]


def _scanned(archive: zipfile.ZipFile, path: str) -> tuple[list[Range], int]:
    """A sheet's merged cells as (left, top, right, bottom), from 1, and its formulas without a result.

    openpyxl tells neither while streaming.
    """
    merged: list[Range] = []
    uncomputed = 0
    rest = b""
    with archive.open(path.removeprefix("/")) as file:
        while block := file.read(_READ_BYTES):
            text = rest + block
            last = 0
            for match in _MERGED_OR_UNCOMPUTED.finditer(text):
                last = match.end()
                if match[1] is None:
                    uncomputed += 1
                    continue
                left, top, right, bottom = range_boundaries(match[1].decode())
                merged.append((int(left or 1), int(top or 1), int(right or 1), int(bottom or 1)))
            rest = text[max(last, len(text) - 200) :]
    return merged, uncomputed
