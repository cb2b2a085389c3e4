"""Plain text: paragraphs, no headings. The title is the file's name."""

import re

from retrieval.loaders.document import LoadedDocument, TextBuilder
from retrieval.loaders.encoding import decode

_PARAGRAPH_BREAK = re.compile(r"\n[ \t]*\n+|\f")


def load_text(data: bytes, fallback_title: str) -> LoadedDocument:
    """Reads plain text of any common encoding. Raises LoadError."""
    builder = TextBuilder()
    add_paragraphs(builder, decode(data))
    return builder.build(fallback_title)


def add_paragraphs(builder: TextBuilder, text: str, headings: tuple[str, ...] = ()) -> None:
    """Adds `text` cut at blank lines."""
    for paragraph in _PARAGRAPH_BREAK.split(text):
        builder.add(paragraph, "prose", headings)
