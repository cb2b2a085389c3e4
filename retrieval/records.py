"""The values that retrieval hands out: passages, document listings and ingest results. No behaviour."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime
from typing import Any, Literal

Visibility = Literal["private", "shared"]
Scalar = str | int | float | bool | None

# In a document's metadata: the text that its file says of itself, or True where whoever put it in has marked it.
PRIVATE_KEY = "private"


@dataclass(frozen=True)
class Passage:
    """One chunk found by a search.

    `score` orders the passages of one search, from 0 to 1; it is relative to that search and says nothing about
    whether the best passage is good. `heading` is the heading path below the title, joined by " > ".
    """

    document_id: str
    chunk_id: str
    title: str
    source: str
    page: int | None
    heading: str | None
    text: str
    score: float
    collection: str

    @property
    def place(self) -> str:
        """Where it stands: title and path of headings."""
        return " > ".join(part for part in (self.title, self.heading) if part)

    @property
    def ordinal(self) -> int:
        """How many chunks of its document stand before it, which its id ends with; 0 where that does not tell."""
        number = self.chunk_id.rpartition("-")[2]
        return int(number) if number.isdecimal() else 0


@dataclass(frozen=True)
class Filter:
    """Which documents a search may find; all conditions that are given must hold.

    `source` is a pattern as of file names (`*` any characters, `?` one, `[…]` one of these), matched
    with case. `added_after` and `added_before` bound when the current version went in, both exclusive;
    times without a zone are UTC. `metadata` gives for each key the one value that it must have, or the values of which
    it must have one.
    """

    source: str | None = None
    added_after: datetime | None = None
    added_before: datetime | None = None
    metadata: Mapping[str, Scalar | Sequence[Scalar]] = field(default_factory=dict)


@dataclass(frozen=True)
class DocumentInfo:
    """One document of the catalog, in its current version. `added_at` is when that version went in (UTC).

    `is_own`: it is in a collection of the user who asked, not in one that somebody else shares.
    """

    document_id: str
    title: str
    source: str
    collection: str
    content_hash: str
    num_chunks: int
    num_pages: int
    size_bytes: int
    added_at: datetime
    status: Literal["ready"]
    version: int
    is_own: bool
    metadata: Mapping[str, Any] = field(default_factory=dict)


@dataclass(frozen=True)
class Section:
    """A part of a document's text with one place: its page (from 1), the path of headings above it."""

    page: int | None
    headings: tuple[str, ...]
    text: str


@dataclass(frozen=True)
class CollectionInfo:
    """One collection: who owns it and who may search it."""

    name: str
    owner: str
    visibility: Visibility
    num_documents: int
    num_chunks: int = 0


@dataclass(frozen=True)
class IngestResult:
    """What became of one file or address. `reason` is for a person: why it failed, or what of it could not be read.

    "removed" is a document whose file or page has vanished.

    A failed update leaves the old version answering; `document_id` then names that document.
    """

    path: str
    status: Literal["added", "updated", "unchanged", "removed", "failed"]
    document_id: str | None
    num_chunks: int
    num_pages: int
    reason: str | None
