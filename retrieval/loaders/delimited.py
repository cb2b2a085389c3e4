"""CSV and TSV: a sentence a row, with the column headers in it."""

import csv
import io
import sys

from retrieval.errors import CorruptDocumentError
from retrieval.loaders.document import LoadedDocument, TextBuilder
from retrieval.loaders.encoding import decode
from retrieval.loaders.tables import RowReader, cell_text

_DELIMITERS = ",;\t|"
_SNIFFED_CHARS = 16_000


def load_csv(data: bytes, fallback_title: str) -> LoadedDocument:
    """Reads comma-separated values; semicolons, tabs and bars are told by the first lines. Raises LoadError."""
    text = decode(data)
    return _load(text, _delimiter(text), fallback_title)


def load_tsv(data: bytes, fallback_title: str) -> LoadedDocument:
    """Reads tab-separated values. Raises LoadError."""
    return _load(decode(data), "\t", fallback_title)


def _load(text: str, delimiter: str, title: str) -> LoadedDocument:
    builder = TextBuilder()
    reader = RowReader(builder, one_table=True)
    csv.field_size_limit(min(sys.maxsize, 2**31 - 1))
    rows = csv.reader(io.StringIO(text, newline=""), delimiter=delimiter)
    try:
        for number, row in enumerate(rows, 1):
            reader.feed(number, [cell_text(cell) for cell in row])
    except csv.Error as error:
        raise CorruptDocumentError(f"line {rows.line_num} is not comma-separated values ({error})") from error
    reader.finish()
    return builder.build(title)


def _delimiter(text: str) -> str:
    """The delimiter that cuts most of the first lines into the same number of cells, more than one."""
    lines = list(io.StringIO(text[:_SNIFFED_CHARS]))[:50]

    def steadiness(delimiter: str) -> tuple[int, int]:
        try:
            widths = [len(row) for row in csv.reader(lines, delimiter=delimiter) if row]
        except csv.Error:
            return (0, 0)
        common = max(set(widths), key=widths.count, default=1)
        return (widths.count(common) if common > 1 else 0, common)

    return max(_DELIMITERS, key=steadiness)
