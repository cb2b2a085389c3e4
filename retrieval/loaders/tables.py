"""Rows of cells into text that a search can find: small tables as pipe tables, others as one sentence a row.

    Model | memory | price          Model H100: memory 80 GB; price 30,000          row 2
    H100  | 80 GB  | 30,000    ─>   Model L4: memory 24 GB; price 2,500             row 3
    L4    | 24 GB  | 2,500

A row that carries its column headers is found by a question about it, where a chunk of many rows is not.
"""

import math
import re
from collections.abc import Iterable, Sequence

from retrieval.loaders.document import TextBuilder

# A table up to this long is shown as a table, in one chunk.
SMALL_TABLE_CHARS = 1000
# Up to so many rows of one table have a chunk each; a longer table has several rows a chunk.
MAX_RECORDS = 5000
# A lone cell up to this long is a title of the rows below it, a longer one is a note.
_MAX_TITLE_CHARS = 120
_MAX_TITLES = 4
_MAX_FIGURE_CHARS = 40
_SPACE = re.compile(r"\s+")
_FIGURE = re.compile(r"[-+(]?\s*[$€£¥]?\s*[\d.,'\u2009\u00a0 ]*\d[\d.,]*\s*[%)€£¥]?")
_DATE = re.compile(r"\d{1,4}[-/.]\d{1,2}[-/.]\d{1,4}.*")
_YEAR = re.compile(r"(19|20)\d\d")


def cell_text(value: object) -> str:
    """A cell's value on one line; None is empty."""
    return "" if value is None else _SPACE.sub(" ", str(value)).strip()


def add_table(
    builder: TextBuilder, rows: Sequence[Sequence[str]], headings: tuple[str, ...] = (), page: int | None = None
) -> None:
    """Adds a document's table: as a pipe table where it is small, else a sentence a row."""
    rows = [row for row in rows if any(row)]
    if not rows:
        return
    pipes = pipe_table(rows)
    if len(pipes) <= SMALL_TABLE_CHARS:
        builder.add(pipes, "table", headings, page)
        return
    reader = RowReader(builder, headings, page)
    for number, row in enumerate(rows, 1):
        reader.feed(number, row)
    reader.finish()


def pipe_table(rows: Sequence[Sequence[str]]) -> str:
    """Rows as Markdown's pipe table; the first is its header. All rows get the width of the widest."""
    width = max(len(row) for row in rows)
    lines = []
    for row in rows:
        cells = [cell.replace("|", "/") for cell in row] + [""] * (width - len(row))
        lines.append("| " + " | ".join(cells) + " |")
    return "\n".join([lines[0], "|" + " --- |" * width, *lines[1:]])


def record(header: Sequence[str], cells: Sequence[str]) -> str:
    """One row as a sentence: "row label: column header value; ..."; without a header just its values."""
    named = [
        f"{header[index]} {cell}" if index < len(header) and header[index] else cell
        for index, cell in enumerate(cells)
        if cell
    ]
    if len(named) < 2 or not cells[0]:
        return "; ".join(named)
    return f"{named[0]}: {'; '.join(named[1:])}"


def add_records(
    builder: TextBuilder,
    records: Sequence[tuple[int, str, tuple[str, ...]]],
    page: int | None = None,
    unit: str = "row",
) -> None:
    """Adds (number, sentence, headings) of rows: a block each, or a few neighbours together in a long table.

    The last heading of a block says which rows it holds: "row 17", "rows 17–20".
    """
    per_block = math.ceil(len(records) / MAX_RECORDS)
    start = 0
    while start < len(records):
        headings = records[start][2]
        end = start + 1
        length = len(records[start][1])
        while end < len(records) and end - start < per_block and records[end][2] == headings:
            length += len(records[end][1]) + 1
            if length > SMALL_TABLE_CHARS:  # a block is not cut later, so that its place is right
                break
            end += 1
        first, last = records[start][0], records[end - 1][0]
        place = f"{unit} {first}" if first == last else f"{unit}s {first}–{last}"
        builder.add("\n".join(text for _, text, _ in records[start:end]), "records", (*headings, place), page)
        start = end


class RowReader:
    """Reads a sheet's rows in order and tells titles, column headers, rows and notes apart.

    A header is the first row of several cells that holds no figures (years and a series of dates aside); a second
    such row below it is taken with it where the first has gaps or merged cells. A lone short cell is a title. Blank
    rows may stand anywhere; titles after one begin another table. With `one_table`, as in files of data, everything
    below the header is a row.
    """

    def __init__(
        self,
        builder: TextBuilder,
        headings: tuple[str, ...] = (),
        page: int | None = None,
        *,
        one_table: bool = False,
    ) -> None:
        self._builder = builder
        self._headings = headings
        self._page = page
        self._one_table = one_table
        self._titles: list[str] = []
        self._titles_used = True
        self._header: list[str] | None = None
        self._in_body = False
        self._body_has_values = False
        self._after_blank = False
        self._records: list[tuple[int, str, tuple[str, ...]]] = []

    def feed(self, number: int, cells: Sequence[str], *, has_values: bool | None = None) -> None:
        """Takes the next row; `number` is what the file calls it.

        `has_values` says whether there are figures among the cells, where that is known better than by their looks.
        """
        filled = [cell for cell in cells if cell]
        if not filled:
            self._after_blank = not self._one_table
            return
        inside = self._header is not None and (self._one_table or (self._in_body and not self._after_blank))
        if len(filled) == 1 and not (inside and (self._one_table or cells[0] == "")):
            self._lone_cell(filled[0])
        else:
            self._row(number, cells, has_values=figures_among(filled) if has_values is None else has_values)
        self._after_blank = False

    def finish(self) -> None:
        """Hands the rest to the builder."""
        if self._header and not self._in_body:
            self._records.append((1, "; ".join(filter(None, self._header)), self._path))  # nothing but a header
        self._flush_titles()
        self._flush_records()

    @property
    def _path(self) -> tuple[str, ...]:
        return (*self._headings, *self._titles)

    def _lone_cell(self, text: str) -> None:
        if len(text) > _MAX_TITLE_CHARS:
            self._flush_records()
            self._builder.add(text, "prose", self._path, self._page)
            return
        if self._in_body and self._after_blank:
            self._header, self._in_body, self._body_has_values = None, False, False
        if self._titles_used:
            self._titles = []
        elif len(self._titles) == _MAX_TITLES:
            self._flush_titles()
        self._titles.append(text)
        self._titles_used = False

    def _row(self, number: int, cells: Sequence[str], *, has_values: bool) -> None:
        if self._after_blank and self._body_has_values and not has_values:
            self._header, self._in_body, self._body_has_values = None, False, False
        if self._header is None and not has_values:
            self._header = list(cells)
            return
        if self._header is not None and not self._in_body and not has_values and self._has_gap_above(cells):
            width = max(len(self._header), len(cells))
            both = zip(_padded(self._header, width), _padded(cells, width), strict=True)
            self._header = [above if above == below else f"{above} {below}".strip() for above, below in both]
            return
        self._in_body = True
        self._titles_used = True
        self._body_has_values |= has_values
        self._records.append((number, record(self._header or (), cells), self._path))

    def _has_gap_above(self, cells: Sequence[str]) -> bool:
        header = self._header or []
        if cells[0] not in ("", header[0]):
            return False
        before = ["", *header[:-1]]
        pairs = zip(before, header, cells, strict=False)
        return any(cell and cell != above and above in ("", left) for left, above, cell in pairs)

    def _flush_titles(self) -> None:
        """Titles that no row stands under are text."""
        if not self._titles_used and self._titles:
            self._flush_records()
            self._builder.add("\n".join(self._titles), "prose", self._headings, self._page)
            self._titles = []

    def _flush_records(self) -> None:
        add_records(self._builder, self._records, self._page)
        self._records = []


def _padded(cells: Iterable[str], width: int) -> list[str]:
    padded = list(cells)
    return padded + [""] * (width - len(padded))


def figures_among(cells: Sequence[str]) -> bool:
    """Whether a row holds figures. Years and several dates may be the names of columns, one date is a value."""
    dates = [cell for cell in cells if _DATE.fullmatch(cell)]
    short = (cell for cell in cells if len(cell) <= _MAX_FIGURE_CHARS and cell not in dates)
    return len(dates) == 1 or any(_FIGURE.fullmatch(cell) and not _YEAR.fullmatch(cell) for cell in short)
