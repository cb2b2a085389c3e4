"""Plain text: paragraphs, no headings. The title is the file's name."""

import re

from retrieval.loaders.document import LoadedDocument, TextBuilder
from retrieval.loaders.encoding import decode

_PARAGRAPH_BREAK = re.compile(r"\n[ \t]*\n+|\f")


def load_text(data: bytes, fallback_title: str) -> LoadedDocument:
    """Reads plain text of any common encoding. Raises LoadError."""
    builder = TextBuilder()
    for paragraph in _PARAGRAPH_BREAK.split(decode(data)):
        builder.add(paragraph)
    return builder.build(fallback_title)
