"""RTF: its text, paragraph by paragraph. Headings are not marked as such in RTF; table rows come as lines of bars."""

import re

from striprtf.striprtf import rtf_to_text

from retrieval.errors import CorruptDocumentError
from retrieval.loaders.archive import reading
from retrieval.loaders.document import LoadedDocument, TextBuilder
from retrieval.loaders.encoding import clean
from retrieval.loaders.tables import add_table, cell_text

# Pictures are hexadecimal digits, megabytes of them, which striprtf would look at one by one.
_PICTURE = re.compile(rb"(?<![0-9a-fA-F\s])[0-9a-fA-F\s]{2000,}")
_TITLE = re.compile(rb"{\\title ([^{}\\]{1,300})}")


def load_rtf(data: bytes, fallback_title: str) -> LoadedDocument:
    """Reads rich text. Title: the one in its information group, else the file's name. Raises LoadError."""
    if not data.lstrip().startswith(b"{\\rtf"):
        raise CorruptDocumentError("the file is not rich text (.rtf): open and save it again")
    with reading("rich text (.rtf)"):
        text = clean(rtf_to_text(_PICTURE.sub(b"", data).decode("latin-1"), errors="replace"))  # type: ignore[no-untyped-call]
    builder = TextBuilder()
    rows: list[list[str]] = []
    for line in text.split("\n"):
        if line.count("|") >= 2 and line.rstrip().endswith("|"):
            rows.append([cell_text(cell) for cell in line.rstrip().removesuffix("|").split("|")])
            continue
        add_table(builder, rows)
        rows = []
        builder.add(line)
    add_table(builder, rows)
    title = _TITLE.search(data)
    return builder.build(title[1].decode("latin-1").strip() if title else fallback_title)
