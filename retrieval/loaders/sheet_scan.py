"""What openpyxl does not tell of a sheet that it streams: merged cells, what is hidden, formulas without a result."""

import re
import zipfile
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from openpyxl.utils.cell import range_boundaries

# One of these, or a formula without a result.
_MARK = re.compile(
    rb"<(?:\w+:)?(?:"
    rb'mergeCell\s[^>]*?\bref="(?P<merged>[A-Z]+\d+:[A-Z]+\d+)"'
    rb'|row\s(?P<row>[^>]*?\bhidden="(?:1|true)"[^>]*)>'
    rb'|col\s(?P<column>[^>]*?\bhidden="(?:1|true)"[^>]*)>'
    rb'|autoFilter\s[^>]*?\bref="(?P<filter>[^"]+)"'
    rb"|(?P<criterion>filterColumn)\s"
    rb")"
    rb"|</f>(?:<v\s*/>|<v></v>)?</c>|<f\s[^>]*/>(?:<v\s*/>)?</c>"
)
_NUMBER = rb'\b%s="(\d+)"'
_ROW, _FIRST, _LAST, _LEVEL = (re.compile(_NUMBER % name) for name in (b"r", b"min", b"max", b"outlineLevel"))
_READ_BYTES = 1024 * 1024
# A mark is no longer; so much is looked at again with what follows.
_OVERLAP = 1000

Range = tuple[int, int, int, int]
"""Left, top, right, bottom, from 1."""


@dataclass(frozen=True)
class SheetScan:
    """`hidden_rows` and `hidden_columns` (first and last of each run) are those that somebody has hidden as such.

    Rows that a filter leaves out, and rows and columns of a group that is folded, are one click away: not hidden.
    """

    merged: Sequence[Range]
    hidden_rows: frozenset[int]
    hidden_columns: Sequence[tuple[int, int]]
    uncomputed: int

    def is_hidden_column(self, column: int) -> bool:
        return any(first <= column <= last for first, last in self.hidden_columns)

    @classmethod
    def of(cls, archive: zipfile.ZipFile, path: str, filtered: Sequence[Range] = ()) -> "SheetScan":
        """Reads the sheet at `path`. `filtered`: ranges of which a filter leaves rows out (see `filtered_tables`)."""
        found: dict[str, list[bytes]] = {name: [] for name in _MARK.groupindex}
        uncomputed = 0
        for match in _marks(archive, path):
            if match.lastgroup is None:
                uncomputed += 1
            else:
                found[match.lastgroup].append(match[match.lastgroup])
        ranges = [*filtered, *(map(_range, found["filter"]) if found["criterion"] else ())]
        rows = {int(row[1]) for given in found["row"] if (row := _ROW.search(given)) and not _LEVEL.search(given)}
        columns = [
            (int(first[1]), int(last[1]))
            for given in found["column"]
            if (first := _FIRST.search(given)) and (last := _LAST.search(given)) and not _LEVEL.search(given)
        ]
        hidden = {row for row in rows if not any(top <= row <= bottom for _, top, _, bottom in ranges)}
        return cls([_range(area) for area in found["merged"]], frozenset(hidden), columns, uncomputed)


def filtered_tables(archive: zipfile.ZipFile) -> list[Range]:
    """The ranges of tables with a filter that leaves rows out, of whatever sheet."""
    ranges = []
    for name in archive.namelist():
        if name.startswith("xl/tables/") and name.endswith(".xml"):
            marks = {match.lastgroup: match[match.lastgroup] for match in _marks(archive, name) if match.lastgroup}
            if "filter" in marks and "criterion" in marks:
                ranges.append(_range(marks["filter"]))
    return ranges


def _marks(archive: zipfile.ZipFile, path: str) -> Iterator[re.Match[bytes]]:
    rest = b""
    with archive.open(path.removeprefix("/")) as file:
        while block := file.read(_READ_BYTES):
            text = rest + block
            last = 0
            for match in _MARK.finditer(text):
                last = match.end()
                yield match
            rest = text[max(last, len(text) - _OVERLAP) :]


def _range(given: bytes) -> Range:
    left, top, right, bottom = range_boundaries(given.decode())
    return int(left or 1), int(top or 1), int(right or 1), int(bottom or 1)
