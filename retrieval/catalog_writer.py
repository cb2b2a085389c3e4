"""How the catalog is changed, within one transaction. What to store is decided by the callers."""

import json
import sqlite3
import uuid
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple

from retrieval.catalog_reader import CatalogReader
from retrieval.chunking import Chunk
from retrieval.records import Visibility

# How long a superseded version stays readable for searches that began before it was replaced.
SUPERSEDED_KEPT_S = 600.0
# Vectors of an ingest that was broken off wait this long for it to be tried again.
ORPHANS_KEPT_S = 7 * 24 * 3600.0


class TextVectors(NamedTuple):
    """The vector of a text (float32, little-endian), and those of its sentences (see `retrieval.sentence_vectors`)."""

    vector: bytes
    sentences: bytes | None = None


@dataclass(frozen=True)
class NewVersion:
    """A document as it is to be stored. `digests[i]` is the hash under which the vector of `chunks[i]` is stored."""

    source: str
    title: str
    content_hash: str
    revision: int
    size_bytes: int
    num_pages: int
    chunks: Sequence[Chunk]
    digests: Sequence[bytes]
    metadata: Mapping[str, Any] = field(default_factory=dict)


class CatalogWriter(CatalogReader):
    """Changes. Get one from `Catalog.writing()`; valid until that block ends. `now` is the time in seconds."""

    def __init__(self, connection: sqlite3.Connection, now: float) -> None:
        super().__init__(connection)
        self._now = now
        self._dropped_contents: set[str] = set()

    def record_embedder(self, name: str, fingerprint: str, dimension: int) -> None:
        values = [
            ("embedder_name", name),
            ("embedder_fingerprint", fingerprint),
            ("embedder_dimension", str(dimension)),
        ]
        self._db.executemany("INSERT OR REPLACE INTO settings (key, value) VALUES (?, ?)", values)

    def ensure_collection(self, owner: str, name: str, visibility: Visibility | None = None) -> int:
        """The collection's id; it is created (private) where there is none. A visibility given here is set."""
        self._db.execute(
            "INSERT INTO collections (owner, name, visibility) VALUES (?, ?, ?) ON CONFLICT DO NOTHING",
            (owner, name, visibility or "private"),
        )
        if visibility is not None:
            self._db.execute(
                "UPDATE collections SET visibility = ? WHERE owner = ? AND name = ?", (visibility, owner, name)
            )
        row = self._db.execute("SELECT id FROM collections WHERE owner = ? AND name = ?", (owner, name)).fetchone()
        return int(row[0])

    def add_vectors(self, vectors: Mapping[bytes, TextVectors]) -> None:
        """Stores vectors by the hash of their text; those already there stay."""
        self._db.executemany(
            "INSERT INTO vectors (digest, vector, sentences, created_at) VALUES (?, ?, ?, ?) ON CONFLICT DO NOTHING",
            [(digest, *stored, self._now) for digest, stored in vectors.items()],
        )

    def adopt_vectors(self, digests: Mapping[bytes, bytes]) -> bool:
        """Replaces the vector of every text by the one stored under another hash, all or none; False where one lacks.

        `digests` gives the other hash for each hash in use. Vectors that nothing uses go, as they are of the model
        before. Chunks get new ids, for a chunk id stands for one vector in every index that was ever made.
        """
        stored = self.stored_vectors(list(digests.values()))
        if len(stored) < len(digests):
            return False
        self._db.executemany(
            "UPDATE vectors SET (vector, sentences) = (SELECT vector, sentences FROM vectors WHERE id = ?) "
            "WHERE digest = ?",
            [(stored[other], digest) for digest, other in digests.items()],
        )
        self._db.execute("DELETE FROM vectors WHERE id NOT IN (SELECT vector_id FROM chunks)")
        last = self._count("SELECT coalesce(max(seq), 0) FROM sqlite_sequence WHERE name = 'chunks'")
        self._db.execute("UPDATE chunks SET id = id + ?", (last,))
        self._db.execute(
            "UPDATE sqlite_sequence SET seq = (SELECT coalesce(max(id), seq) FROM chunks) WHERE name = 'chunks'"
        )
        self._changed()
        return True

    def put_document(self, collection_id: int, new: NewVersion) -> str:
        """Makes `new` the current version of the document (collection, source) and returns the document's id.

        All vectors must be there (`stored_vectors`), else KeyError.
        """
        vector_ids = self.stored_vectors(list(new.digests))
        uid, document_id, number = self._supersede(collection_id, new.source)
        version_id = self._db.execute(
            "INSERT INTO versions (document_id, number, title, content_hash, revision, size_bytes, num_pages, "
            "metadata, added_at) VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?)",
            (document_id, number, new.title, new.content_hash, new.revision, new.size_bytes, new.num_pages,
             json.dumps(dict(new.metadata), allow_nan=False), self._now),
        ).lastrowid  # fmt: skip
        self._db.executemany(
            "INSERT INTO chunks (version_id, ordinal, text, page, headings, start_offset, end_offset, vector_id) "
            "VALUES (?, ?, ?, ?, ?, ?, ?, ?)",
            [
                (version_id, ordinal, chunk.text, chunk.page, json.dumps(chunk.headings, ensure_ascii=False),
                 chunk.start, chunk.end, vector_ids[digest])
                for ordinal, (chunk, digest) in enumerate(zip(new.chunks, new.digests, strict=True))
            ],
        )  # fmt: skip
        self._changed()
        return uid

    def delete_documents(self, uids: Sequence[str]) -> int:
        """Deletes documents with all their versions; returns how many there were."""
        return self._delete("uid", uids)

    def delete_sources(self, collection_id: int, sources: Sequence[str]) -> int:
        """Deletes documents of one collection by source; returns how many there were."""
        return self._delete("source", sources, collection_id)

    def delete_collection(self, owner: str, name: str) -> bool:
        """Deletes a collection with its documents; False where the owner has none of that name."""
        collection_id = self.collection_id(owner, name)
        if collection_id is None:
            return False
        self.delete_sources(collection_id, self.sources(collection_id))
        self._db.execute("DELETE FROM collections WHERE id = ?", (collection_id,))
        return True

    def contents_without_use(self) -> set[str]:
        """Hashes of the contents that this transaction took the last document of."""
        hashes = list(self._dropped_contents)
        used = {str(row[0]) for row in self._in("SELECT content_hash FROM versions WHERE content_hash IN ({})", hashes)}
        return self._dropped_contents - used

    def sweep(self) -> None:
        """Drops superseded versions and vectors that nothing has used for long."""
        old = self._db.execute(
            "SELECT id FROM versions WHERE superseded_at < ?", (self._now - SUPERSEDED_KEPT_S,)
        ).fetchall()
        self._note_contents([version_id for (version_id,) in old], "id")
        for (version_id,) in old:
            vectors = self._vectors_of("c.version_id = ?", version_id)
            self._db.execute("DELETE FROM versions WHERE id = ?", (version_id,))
            self._drop_unused(vectors)

    def sweep_orphans(self) -> None:
        """Drops vectors of ingests that were broken off long ago."""
        self._db.execute(
            "DELETE FROM vectors WHERE created_at < ? "
            "AND NOT EXISTS (SELECT 1 FROM chunks WHERE vector_id = vectors.id)",
            (self._now - ORPHANS_KEPT_S,),
        )

    def _supersede(self, collection_id: int, source: str) -> tuple[str, int, int]:
        """Public id, internal id and next version number of a document; its current version becomes superseded."""
        row = self._db.execute(
            "SELECT uid, id FROM documents WHERE collection_id = ? AND source = ?", (collection_id, source)
        ).fetchone()
        if row is None:
            uid = uuid.uuid4().hex
            inserted = self._db.execute(
                "INSERT INTO documents (uid, collection_id, source) VALUES (?, ?, ?)", (uid, collection_id, source)
            )
            return uid, int(inserted.lastrowid or 0), 1
        uid, document_id = row
        number = self._count(f"SELECT max(number) FROM versions WHERE document_id = {int(document_id)}")
        self._db.execute(
            "UPDATE versions SET superseded_at = ? WHERE document_id = ? AND superseded_at IS NULL",
            (self._now, document_id),
        )
        return uid, document_id, number + 1

    def _delete(self, column: str, keys: Sequence[str], collection_id: int | None = None) -> int:
        sql = f"SELECT id FROM documents WHERE {column} IN ({{}}) AND (? IS NULL OR collection_id = ?)"
        ids = [int(row[0]) for row in self._in(sql, keys, (collection_id, collection_id))]
        self._note_contents(ids, "document_id")
        for document_id in ids:
            vectors = self._vectors_of("v.document_id = ?", document_id)
            self._db.execute("DELETE FROM documents WHERE id = ?", (document_id,))
            self._drop_unused(vectors)
        if ids:
            self._changed()
        return len(ids)

    def _note_contents(self, ids: Sequence[int], column: str) -> None:
        rows = self._in(f"SELECT content_hash FROM versions WHERE {column} IN ({{}})", ids)
        self._dropped_contents.update(str(row[0]) for row in rows)

    def _vectors_of(self, where: str, value: int) -> list[tuple[int]]:
        sql = f"SELECT DISTINCT c.vector_id FROM chunks c JOIN versions v ON v.id = c.version_id WHERE {where}"
        return self._db.execute(sql, (value,)).fetchall()

    def _drop_unused(self, vectors: list[tuple[int]]) -> None:
        self._db.executemany(
            "DELETE FROM vectors WHERE id = ? AND NOT EXISTS (SELECT 1 FROM chunks WHERE vector_id = vectors.id)",
            vectors,
        )

    def _changed(self) -> None:
        self._db.execute("UPDATE settings SET value = CAST(value AS INTEGER) + 1 WHERE key = 'generation'")
