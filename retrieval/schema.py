"""The catalog's tables and their migrations, in one place: nothing else creates or alters a table.

    collections 1─* documents 1─* versions 1─* chunks *─1 vectors

A document has one current version (`superseded_at IS NULL`). The one before it stays for a while, because a search that
began on an older snapshot may still answer from it. Chunk ids are never used twice, so that an index saved at any
earlier time can be brought up to date by comparing ids. Vectors are kept by the hash of the text they stand for: an
interrupted ingest resumes where it stopped, an edited document embeds only what changed, and the indexes can be rebuilt
without embedding anything.
"""

import sqlite3

from retrieval.errors import SchemaTooNewError

_INITIAL = """
CREATE TABLE settings (
    key TEXT PRIMARY KEY,
    value TEXT NOT NULL
) STRICT, WITHOUT ROWID;
INSERT INTO settings (key, value) VALUES ('generation', '0');

CREATE TABLE collections (
    id INTEGER PRIMARY KEY AUTOINCREMENT,
    owner TEXT NOT NULL,
    name TEXT NOT NULL,
    visibility TEXT NOT NULL CHECK (visibility IN ('private', 'shared')),
    UNIQUE (owner, name)
) STRICT;

CREATE TABLE documents (
    id INTEGER PRIMARY KEY AUTOINCREMENT,
    uid TEXT NOT NULL UNIQUE,
    collection_id INTEGER NOT NULL REFERENCES collections (id) ON DELETE CASCADE,
    source TEXT NOT NULL,
    UNIQUE (collection_id, source)
) STRICT;

CREATE TABLE versions (
    id INTEGER PRIMARY KEY AUTOINCREMENT,
    document_id INTEGER NOT NULL REFERENCES documents (id) ON DELETE CASCADE,
    number INTEGER NOT NULL,
    title TEXT NOT NULL,
    content_hash TEXT NOT NULL,
    revision INTEGER NOT NULL,
    size_bytes INTEGER NOT NULL,
    num_pages INTEGER NOT NULL,
    metadata TEXT NOT NULL,
    added_at REAL NOT NULL,
    superseded_at REAL
) STRICT;
CREATE UNIQUE INDEX current_version ON versions (document_id) WHERE superseded_at IS NULL;
CREATE INDEX versions_of_document ON versions (document_id);

CREATE TABLE vectors (
    id INTEGER PRIMARY KEY,
    digest BLOB NOT NULL UNIQUE,
    vector BLOB NOT NULL,
    created_at REAL NOT NULL
) STRICT;

CREATE TABLE chunks (
    id INTEGER PRIMARY KEY AUTOINCREMENT,
    version_id INTEGER NOT NULL REFERENCES versions (id) ON DELETE CASCADE,
    ordinal INTEGER NOT NULL,
    text TEXT NOT NULL,
    page INTEGER,
    headings TEXT NOT NULL,
    start_offset INTEGER NOT NULL,
    end_offset INTEGER NOT NULL,
    vector_id INTEGER NOT NULL REFERENCES vectors (id),
    UNIQUE (version_id, ordinal)
) STRICT;
CREATE INDEX chunks_of_vector ON chunks (vector_id);
"""

# The vectors of a text's sentences, beside the vector of the whole (`retrieval/sentence_vectors.py`). NULL where it has
# but one, or was embedded before they were kept.
_SENTENCES = "ALTER TABLE vectors ADD COLUMN sentences BLOB"

# Migration n brings a store from version n to n + 1. Entries are only ever appended.
_MIGRATIONS = (_INITIAL, _SENTENCES)
VERSION = len(_MIGRATIONS)


def migrate(connection: sqlite3.Connection, path: str) -> None:
    """Brings the store to `VERSION`, all or nothing. Raises SchemaTooNewError for one that is newer."""
    if _version(connection) == VERSION:
        return
    connection.execute("BEGIN IMMEDIATE")
    try:
        # Read again: another process may have migrated while we waited for the lock.
        version = _version(connection)
        if version > VERSION:
            raise SchemaTooNewError(
                f"{path} has schema version {version}; this Ragstone reads up to {VERSION}: "
                "upgrade Ragstone, or use another data folder"
            )
        for migration in _MIGRATIONS[version:]:
            for statement in _statements(migration):
                connection.execute(statement)
        connection.execute(f"PRAGMA user_version = {VERSION}")
        connection.execute("COMMIT")
    except BaseException:
        if connection.in_transaction:  # SQLite itself has gone back where the disk is full
            connection.execute("ROLLBACK")
        raise


def _version(connection: sqlite3.Connection) -> int:
    return int(connection.execute("PRAGMA user_version").fetchone()[0])


def _statements(script: str) -> list[str]:
    # executescript() would commit the transaction that makes a migration all or nothing.
    return [statement for statement in script.split(";\n") if statement.strip()]
