"""What every loader returns: a document's text, cut into blocks that know their heading path and page."""

import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Literal

from retrieval.errors import EmptyDocumentError

# Told of a document where more is left out for that than is read.
MOST_LEFT_OUT = "most of its text is commented out, struck out or hidden, and was left out"

BlockKind = Literal["prose", "table", "records", "code"]

# What programs write where no title was given: their own name, or a file's.
_ODD_TITLE = re.compile(
    r"\.(docx?|odt|rtf|txt|md|html?|pdf|tex|dvi|indd|pptx?|odp|xlsx?|ods|tmp)$|^(untitled|microsoft word)\b|"
    r"^(word document|document|(powerpoint )?presentation|slide 1|workbook|book1|sheet1)$|^\W*$",
    re.IGNORECASE,
)
# Where it was printed from: an address, or the path of a file. Those of one word; titles may begin with "/" or "A:".
_ADDRESS = re.compile(
    r"(about|data|file|blob):\S.*|[a-z][a-z0-9+.-]*://\S*|www\.\S*|[a-z]:[\\/].*|\\\\\S.*|/\S*|"
    r"(/private)?/(tmp|var|home|users)/.*|tmp\w{6,}",
    re.IGNORECASE,
)


@dataclass(frozen=True)
class Block:
    """A span `text[start:end]` of the document (a paragraph, list, table, code listing or page).

    `headings` is the path of headings above it, outermost first. `page` counts from 1; None where there are no pages.
    A table is in Markdown's pipe form, its first two lines being the header and the rule below it. Records are rows
    that stand for themselves, one a line: "label: header value; header value".
    """

    start: int
    end: int
    kind: BlockKind = "prose"
    headings: tuple[str, ...] = ()
    page: int | None = None


@dataclass(frozen=True)
class LoadedDocument:
    """A document as text. `num_pages` is 0 where there are no pages; `metadata` is what the file says of itself.

    `notice` tells a person what of it could not be read.
    """

    title: str
    text: str
    blocks: tuple[Block, ...]
    num_pages: int = 0
    metadata: Mapping[str, str] = field(default_factory=dict)
    notice: str | None = None


def chosen_title(*candidates: str) -> str:
    """The first title that says something, or "": programs fill in their own name, a file's, or an address."""
    plain = (" ".join(candidate.split()) for candidate in candidates)
    return next((title for title in plain if not _ODD_TITLE.search(title) and not _ADDRESS.fullmatch(title)), "")


class TextBuilder:
    """Collects blocks, one blank line apart, so that the offsets of blocks are right by construction."""

    def __init__(self) -> None:
        self._parts: list[str] = []
        self._blocks: list[Block] = []
        self._length = 0

    def add(
        self, text: str, kind: BlockKind = "prose", headings: tuple[str, ...] = (), page: int | None = None
    ) -> None:
        """Appends one block; text that is only whitespace is left out."""
        text = text.strip("\n") if kind == "code" else text.strip()
        if not text.strip():
            return
        if self._parts:
            self._parts.append("\n\n")
            self._length += 2
        self._blocks.append(Block(self._length, self._length + len(text), kind, headings, page))
        self._parts.append(text)
        self._length += len(text)

    @property
    def is_empty(self) -> bool:
        return not self._blocks

    def build(
        self,
        title: str,
        num_pages: int = 0,
        metadata: Mapping[str, str] | None = None,
        notice: str | None = None,
    ) -> LoadedDocument:
        """The document. Raises EmptyDocumentError when no block was added."""
        if self.is_empty:
            raise EmptyDocumentError("no text: the file has nothing but whitespace or markup")
        return LoadedDocument(title, "".join(self._parts), tuple(self._blocks), num_pages, metadata or {}, notice)
