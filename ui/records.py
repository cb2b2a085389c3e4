"""What the API tells of conversations, documents and itself, as values. How they are fetched is in `ui.client`."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

# As many are asked for at a time; the others are found by searching.
NUM_LISTED_CONVERSATIONS = 200


@dataclass(frozen=True)
class Health:
    """What the API says of itself: `status` is "ready", "starting", "unhealthy" or "unreachable"; `reason` says why."""

    status: str
    reason: str = ""

    @property
    def is_ready(self) -> bool:
        """Whether questions can be answered now."""
        return self.status == "ready"


@dataclass(frozen=True)
class ConversationEntry:
    """One line of the list of conversations. `snippet` shows where a search hit; `updated_at` is ISO 8601."""

    session_id: str
    title: str
    num_turns: int
    updated_at: str
    snippet: str = ""

    @classmethod
    def from_json(cls, value: Mapping[str, Any]) -> "ConversationEntry":
        """From an item of the API's `conversations`."""
        return cls(
            session_id=str(value["session_id"]),
            title=str(value.get("title") or "Untitled conversation"),
            num_turns=int(value.get("num_turns") or 0),
            updated_at=str(value.get("updated_at") or ""),
            snippet=str(value.get("snippet") or ""),
        )


@dataclass(frozen=True)
class Document:
    """One document of the knowledge base, as the table shows it. `added_at` is ISO 8601.

    `is_private`: models on other machines are never shown its text. `is_own`: the user may change it.
    """

    document_id: str
    title: str
    source: str
    collection: str
    num_chunks: int
    num_pages: int
    size_bytes: int
    added_at: str = ""
    status: str = "ready"
    is_private: bool = False
    is_own: bool = True

    @classmethod
    def from_json(cls, value: Mapping[str, Any]) -> "Document":
        """From an item of the API's `documents`."""
        return cls(
            document_id=str(value["document_id"]),
            title=str(value.get("title") or value.get("source") or "Untitled document"),
            source=str(value.get("source") or ""),
            collection=str(value.get("collection") or "default"),
            num_chunks=int(value.get("num_chunks") or 0),
            num_pages=int(value.get("num_pages") or 0),
            size_bytes=int(value.get("size_bytes") or 0),
            added_at=str(value.get("added_at") or ""),
            status=str(value.get("status") or "ready"),
            is_private=bool(value.get("is_private", False)),
            is_own=bool(value.get("is_own", True)),
        )

    @property
    def file_name(self) -> str:
        """The last part of where it came from."""
        return self.source.replace("\\", "/").rstrip("/").rsplit("/", 1)[-1]


@dataclass(frozen=True)
class Collection:
    """A named set of documents. `is_own`: the user may change it."""

    name: str
    is_own: bool
    num_documents: int

    @classmethod
    def from_json(cls, value: Mapping[str, Any]) -> "Collection":
        """From an item of the API's `collections`."""
        return cls(
            name=str(value["name"]),
            is_own=bool(value.get("is_own", True)),
            num_documents=int(value.get("num_documents") or 0),
        )


@dataclass(frozen=True)
class Section:
    """A piece of a document's text: a page, or what stands under `headings`."""

    page: int | None
    headings: tuple[str, ...]
    text: str

    @classmethod
    def from_json(cls, value: Mapping[str, Any]) -> "Section":
        """From an item of `pages` or `sections` of a document's text."""
        return cls(
            page=None if value.get("page") is None else int(value["page"]),
            headings=tuple(str(heading) for heading in value.get("headings") or ()),
            text=str(value.get("text") or ""),
        )
