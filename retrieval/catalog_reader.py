"""What can be asked of the catalog within one transaction. Changes nothing."""

import json
import sqlite3
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any, cast

import numpy as np
import numpy.typing as npt

from retrieval.records import PRIVATE_KEY, CollectionInfo, DocumentInfo, Filter
from retrieval.surroundings import Part

_CURRENT = "JOIN versions v ON v.document_id = d.id AND v.superseded_at IS NULL"
_CHUNK_COLUMNS = (
    "c.id, d.uid, v.number, v.revision, c.ordinal, v.title, d.source, k.name, c.page, c.headings, c.text, v.metadata"
)
# SQLite's own limit on bound values is far higher; long lists are cut so that statements stay cacheable.
_BATCH = 500

Ids = npt.NDArray[np.int64]


@dataclass(frozen=True)
class ChunkRow:
    """One chunk with what is known of its document."""

    chunk_id: int
    document_id: str
    version: int
    revision: int
    ordinal: int
    title: str
    source: str
    collection: str
    page: int | None
    headings: tuple[str, ...]
    text: str
    metadata: Mapping[str, Any]


@dataclass(frozen=True)
class StoredVersion:
    """A document's current version, as far as an ingest compares it."""

    document_id: str
    content_hash: str
    revision: int
    num_chunks: int
    num_pages: int
    is_marked_private: bool


class CatalogReader:
    """Queries. Get one from `Catalog.reading()`; valid until that block ends."""

    def __init__(self, connection: sqlite3.Connection) -> None:
        self._db = connection

    def generation(self) -> int:
        """Counts the changes that a search can notice."""
        return int(self._setting("generation") or 0)

    def embedder(self) -> tuple[str, str, int] | None:
        """Name, fingerprint and dimension of the embedder whose vectors these are; None while unknown."""
        found = dict(self._db.execute("SELECT key, value FROM settings WHERE key GLOB 'embedder_*'"))
        name, fingerprint, dimension = (found.get(f"embedder_{key}") for key in ("name", "fingerprint", "dimension"))
        return (name, fingerprint, int(dimension)) if name and fingerprint and dimension else None

    def num_vectors(self) -> int:
        return self._count("SELECT count(*) FROM vectors")

    def counts(self) -> dict[str, int]:
        """Numbers of collections, documents and chunks (current versions only)."""
        return {
            "collections": self._count("SELECT count(*) FROM collections"),
            "documents": self._count("SELECT count(*) FROM documents"),
            "chunks": self._count(
                "SELECT count(*) FROM chunks c JOIN versions v ON v.id = c.version_id AND v.superseded_at IS NULL"
            ),
        }

    def collections(self, user: str) -> list[CollectionInfo]:
        """The collections that `user` may search: own and shared ones."""
        rows = self._db.execute(
            "SELECT name, owner, visibility, (SELECT count(*) FROM documents WHERE collection_id = c.id), "
            f"(SELECT count(*) FROM documents d {_CURRENT} JOIN chunks k ON k.version_id = v.id "
            "WHERE d.collection_id = c.id) FROM collections c "
            "WHERE owner = ? OR visibility = 'shared' ORDER BY name, owner",
            (user,),
        )
        return [CollectionInfo(*row) for row in rows]

    def visible_collection_ids(self, user: str, names: Sequence[str] | None) -> list[int]:
        """Ids of the collections that `user` may search, of these names only where names are given."""
        rows = self._db.execute("SELECT id, name FROM collections WHERE owner = ? OR visibility = 'shared'", (user,))
        return [id_ for id_, name in rows if names is None or name in names]

    def visible_collection_names(self, user: str, names: Sequence[str] | None) -> list[str]:
        """Names of the collections that `user` may search, of these only where names are given."""
        visible = {collection.name for collection in self.collections(user)}
        return sorted(visible if names is None else visible & set(names))

    def collection_id(self, owner: str, name: str) -> int | None:
        row = self._db.execute("SELECT id FROM collections WHERE owner = ? AND name = ?", (owner, name)).fetchone()
        return None if row is None else int(row[0])

    def documents(self, user: str, collection: str | None, uid: str | None = None) -> list[DocumentInfo]:
        """Documents that `user` may search, by collection and source; with `uid`, that one of them."""
        rows = self._db.execute(
            "SELECT d.uid, v.title, d.source, c.name, v.content_hash, "
            "(SELECT count(*) FROM chunks WHERE version_id = v.id), v.num_pages, v.size_bytes, v.added_at, v.number, "
            f"v.metadata, c.owner = ?1 FROM documents d {_CURRENT} JOIN collections c ON c.id = d.collection_id "
            "WHERE (c.owner = ?1 OR c.visibility = 'shared') AND (?2 IS NULL OR c.name = ?2) "
            "AND (?3 IS NULL OR d.uid = ?3) ORDER BY c.name, d.source",
            (user, collection, uid),
        )
        return [
            DocumentInfo(
                document_id=row[0],
                title=row[1],
                source=row[2],
                collection=row[3],
                content_hash=row[4],
                num_chunks=row[5],
                num_pages=row[6],
                size_bytes=row[7],
                added_at=datetime.fromtimestamp(row[8], UTC),
                status="ready",
                version=row[9],
                metadata=json.loads(row[10]),
                is_own=bool(row[11]),
            )
            for row in rows
        ]

    def placed_parts(self, uid: str) -> list[tuple[int | None, Part]]:
        """All chunks of a document's current version, in order, each with its page."""
        rows = self._db.execute(
            "SELECT c.page, c.ordinal, c.text, c.headings, c.start_offset, c.end_offset "
            f"FROM documents d {_CURRENT} JOIN chunks c ON c.version_id = v.id WHERE d.uid = ? ORDER BY c.ordinal",
            (uid,),
        )
        return [
            (page, Part(number, text, tuple(json.loads(headings)), *span))
            for page, number, text, headings, *span in rows
        ]

    def owner_of(self, uid: str) -> str | None:
        """Who owns the collection that the document is in; None where there is no such document."""
        row = self._db.execute(
            "SELECT c.owner FROM documents d JOIN collections c ON c.id = d.collection_id WHERE d.uid = ?", (uid,)
        ).fetchone()
        return None if row is None else str(row[0])

    def contents(self) -> set[str]:
        """The hashes of all contents that a version was made of."""
        return {str(row[0]) for row in self._db.execute("SELECT DISTINCT content_hash FROM versions")}

    def stored_version(self, owner: str, collection: str, source: str) -> StoredVersion | None:
        """The current version of the document with this identity."""
        row = self._db.execute(
            "SELECT d.uid, v.content_hash, v.revision, (SELECT count(*) FROM chunks WHERE version_id = v.id), "
            f"v.num_pages, v.metadata FROM documents d {_CURRENT} JOIN collections c ON c.id = d.collection_id "
            "WHERE c.owner = ? AND c.name = ? AND d.source = ?",
            (owner, collection, source),
        ).fetchone()
        if row is None:
            return None
        fields = (*row[:-1], json.loads(row[-1]).get(PRIVATE_KEY) is True)
        return StoredVersion(*fields)

    def document_ids(self, uids: Iterable[str]) -> list[int]:
        """Internal ids of documents; unknown ones are left out."""
        return [int(row[0]) for row in self._in("SELECT id FROM documents WHERE uid IN ({})", list(uids))]

    def sources(self, collection_id: int) -> list[str]:
        """The sources of all documents of a collection."""
        return [
            str(row[0])
            for row in self._db.execute("SELECT source FROM documents WHERE collection_id = ?", (collection_id,))
        ]

    def documents_passing(self, condition: Filter, collection_id: int | None = None) -> list[int]:
        """Internal ids of the documents, of one collection or of whatever collection, that a filter lets pass."""
        clauses, values = ["TRUE"], list[Any]()
        if collection_id is not None:
            clauses.append("d.collection_id = ?")
            values.append(collection_id)
        for comparison, moment in ((">", condition.added_after), ("<", condition.added_before)):
            if moment is not None:
                clauses.append(f"v.added_at {comparison} ?")
                values.append(_seconds(moment))
        if condition.source is not None:
            clauses.append("d.source GLOB ?")
            values.append(condition.source)
        for key, wanted in condition.metadata.items():
            clause, bound = _metadata_clause(key, [wanted] if _is_scalar(wanted) else list(cast(Any, wanted)))
            clauses.append(clause)
            values += bound
        where = " AND ".join(clauses)
        rows = self._db.execute(f"SELECT d.id FROM documents d {_CURRENT} WHERE {where}", values)
        return [int(row[0]) for row in rows]

    def live_chunks(self) -> tuple[Ids, Ids, Ids]:
        """Chunk, document and collection ids of all current chunks, by chunk id."""
        rows = self._db.execute(
            f"SELECT c.id, d.id, d.collection_id FROM documents d {_CURRENT} JOIN chunks c ON c.version_id = v.id "
            "ORDER BY c.id"
        ).fetchall()
        table = np.array(rows, dtype=np.int64).reshape(-1, 3)
        return table[:, 0].copy(), table[:, 1].copy(), table[:, 2].copy()

    def chunk_inputs(self, chunk_ids: Sequence[int]) -> Iterator[tuple[int, str, tuple[str, ...], str, bytes]]:
        """Id, title, heading path, text and vector of chunks: what the indexes are made of. In no order."""
        for row in self._in(
            "SELECT c.id, v.title, c.headings, c.text, e.vector FROM chunks c JOIN versions v ON v.id = c.version_id "
            "JOIN vectors e ON e.id = c.vector_id WHERE c.id IN ({})",
            chunk_ids,
        ):
            yield row[0], row[1], tuple(json.loads(row[2])), row[3], row[4]

    def chunks(self, chunk_ids: Sequence[int]) -> dict[int, ChunkRow]:
        """Chunks by id, also of superseded versions. Those of deleted documents are not there."""
        found = self._in(
            f"SELECT {_CHUNK_COLUMNS} FROM chunks c JOIN versions v ON v.id = c.version_id "
            "JOIN documents d ON d.id = v.document_id JOIN collections k ON k.id = d.collection_id WHERE c.id IN ({})",
            chunk_ids,
        )
        return {row[0]: _chunk_row(row) for row in found}

    def parts_around(self, uid: str, version: int, ordinal: int, reach: int) -> list[Part]:
        """The chunks of one version of a document from `ordinal - reach` to `ordinal + reach`, in order."""
        rows = self._db.execute(
            "SELECT c.ordinal, c.text, c.headings, c.start_offset, c.end_offset FROM chunks c "
            "JOIN versions v ON v.id = c.version_id JOIN documents d ON d.id = v.document_id "
            "WHERE d.uid = ? AND v.number = ? AND c.ordinal BETWEEN ? AND ? ORDER BY c.ordinal",
            (uid, version, ordinal - reach, ordinal + reach),
        )
        return [Part(number, text, tuple(json.loads(headings)), *span) for number, text, headings, *span in rows]

    def chunks_of_sources(self, collection_id: int, sources: Sequence[str]) -> dict[str, ChunkRow]:
        """The first current chunk of each document, by source."""
        found = self._in(
            f"SELECT {_CHUNK_COLUMNS} FROM documents d {_CURRENT} "
            "JOIN chunks c ON c.version_id = v.id AND c.ordinal = 0 "
            "JOIN collections k ON k.id = d.collection_id WHERE d.source IN ({}) AND d.collection_id = ?",
            sources,
            (collection_id,),
        )
        return {row[6]: _chunk_row(row) for row in found}

    def stored_vectors(self, digests: Sequence[bytes]) -> dict[bytes, int]:
        """Ids of the vectors already there, by the hash of their text."""
        return dict(self._in("SELECT digest, id FROM vectors WHERE digest IN ({})", digests))

    def sentence_vectors(self, chunk_ids: Sequence[int]) -> dict[int, bytes]:
        """The vectors of the sentences of chunks, by chunk id, as they are kept; chunks that have none are left out."""
        return dict(
            self._in(
                "SELECT c.id, e.sentences FROM chunks c JOIN vectors e ON e.id = c.vector_id "
                "WHERE c.id IN ({}) AND e.sentences IS NOT NULL",
                chunk_ids,
            )
        )

    def digests_in_use(self) -> list[bytes]:
        """The hashes of all embedded texts that a chunk stands for."""
        rows = self._db.execute("SELECT digest FROM vectors WHERE id IN (SELECT vector_id FROM chunks)")
        return [bytes(row[0]) for row in rows]

    def embedded_texts(self) -> Iterator[tuple[bytes, str, tuple[str, ...], str]]:
        """Hash, title, heading path and text of one chunk for each vector in use. In no order."""
        for row in self._db.execute(
            "SELECT e.digest, v.title, c.headings, c.text FROM vectors e JOIN chunks c ON c.vector_id = e.id "
            "JOIN versions v ON v.id = c.version_id GROUP BY e.id"
        ):
            yield row[0], row[1], tuple(json.loads(row[2])), row[3]

    def _in(self, sql: str, values: Sequence[Any], more: Sequence[Any] = ()) -> Iterator[Any]:
        for start in range(0, len(values), _BATCH):
            batch = values[start : start + _BATCH]
            yield from self._db.execute(sql.format(",".join("?" * len(batch))), [*batch, *more])

    def _setting(self, key: str) -> str | None:
        row = self._db.execute("SELECT value FROM settings WHERE key = ?", (key,)).fetchone()
        return None if row is None else str(row[0])

    def _count(self, sql: str) -> int:
        return int(self._db.execute(sql).fetchone()[0])


def _metadata_clause(key: str, allowed: Sequence[Any]) -> tuple[str, list[Any]]:
    """SQL, and what is bound in it, for: the version's metadata has, under `key`, one of these values."""
    # What a file says of itself is kept as text: 3.2 is "3.2" there, and true is "true".
    wanted = [*allowed, *(json.dumps(value) for value in allowed if isinstance(value, bool | int | float))]
    # json_each rather than a JSON path: a key may hold any character.
    options = " OR ".join("value IS ?" for _ in wanted) or "FALSE"
    return f"EXISTS (SELECT 1 FROM json_each(v.metadata) WHERE key = ? AND ({options}))", [key, *wanted]


def _is_scalar(value: object) -> bool:
    return value is None or isinstance(value, str | int | float)


def _seconds(moment: datetime) -> float:
    return (moment if moment.tzinfo is not None else moment.replace(tzinfo=UTC)).timestamp()


def _chunk_row(row: Any) -> ChunkRow:
    *_, headings, text, metadata = row
    # Most have none, and reading that as JSON would take a good part of a search's time.
    path = () if headings == "[]" else tuple(json.loads(headings))
    fields = (*row[:-3], path, text, {} if metadata == "{}" else json.loads(metadata))
    return ChunkRow(*fields)
