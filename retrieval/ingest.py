"""Files into the catalog: found, read, cut, embedded, and then made visible in one transaction a document.

    read ─> load ─> chunk ─> embed, a batch a transaction (by hash of the text) ─> one transaction: the new version
                                └── broken off here: the vectors wait, the old version answers

A bad file gives a result with its reason and never stops its neighbours.
"""

import hashlib
import logging
import os
import re
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Literal

from retrieval.catalog import Catalog
from retrieval.catalog_reader import StoredVersion
from retrieval.catalog_writer import CatalogWriter, NewVersion, TextVectors
from retrieval.chunking import REVISION, chunk_document, indexed_text
from retrieval.embeddings import PassageEmbedder
from retrieval.errors import EmptyDocumentError, InvalidArgumentError, LoadError, StoreBusyError, StoreFullError
from retrieval.loaders import MAX_FILE_BYTES, load
from retrieval.records import PRIVATE_KEY, IngestResult
from retrieval.sentence_vectors import embed_sentences

# Texts embedded between two commits: what a broken-off ingest loses at most.
EMBED_BATCH = 128
_MAX_NAME_CHARS = 255
# What Python makes of bytes of a file's name that are not UTF-8, and what marks them.
_UNDECODED = re.compile("[\udc80-\udcff]")
_NO_TEXT = "\ufffd"

# Called with the number of texts embedded so far, and in all.
Embedded = Callable[[int, int], None]

_log = logging.getLogger(__name__)


@dataclass(frozen=True)
class FoundFile:
    """A file to ingest. `source` is its identity within the collection; `refused` says why it must not be read."""

    path: Path
    source: str
    refused: str | None = None


@dataclass(frozen=True)
class _Order:
    """Where a file goes, and how: see `Ingestor.ingest`."""

    collection: str
    owner: str
    embedded: Embedded | None
    private: bool | None
    again: bool = False


def find_files(paths: Iterable[Path], relative_to: Path | None = None) -> Iterator[FoundFile]:
    """The files that `paths` name, folders walked in order of names; each file once.

    Hidden files and folders inside a folder are passed over. Links inside a folder that lead out of it, to a file or
    a folder, are refused.
    Sources are absolute paths, so that two folders' `readme.md` stay two documents; relative ones where `relative_to`
    is given and the file lies below it.
    """
    seen: set[Path] = set()
    for path in paths:
        for file, refused in _walk(Path(path)):
            # A link that is refused does not stand for its target, which may be named itself.
            identity = _target(file) if refused is None else Path(os.path.abspath(file))
            if identity not in seen:
                seen.add(identity)
                yield FoundFile(file, source_of(file, relative_to), refused)


def _walk(path: Path) -> Iterator[tuple[Path, str | None]]:
    if not path.is_dir():
        yield path, None
        return
    root = path.resolve()
    for folder, folders, files in os.walk(path):
        folders[:] = sorted(name for name in folders if not name.startswith("."))
        # `os.walk` follows no link to a folder: what it leads to is taken in where it lies, or is not meant.
        links = [name for name in folders if os.path.islink(os.path.join(folder, name))]
        for name in (*links, *sorted(name for name in files if not name.startswith("."))):
            file = Path(folder, name)
            if file.is_symlink() and not _target(file).is_relative_to(root):
                yield file, f"a link out of the folder {shown_path(path)}: ingest its target itself if you mean it"
            elif name not in links:
                yield file, None


def _target(path: Path) -> Path:
    """Where a path leads; itself where links lead in a circle."""
    try:
        return path.resolve()
    except (OSError, RuntimeError):
        return Path(os.path.abspath(path))


def source_of(path: Path, relative_to: Path | None = None) -> str:
    """A file's identity: its absolute path, or its path below `relative_to`. Links are not resolved."""
    shown = Path(os.path.abspath(path))
    if relative_to is not None and shown.is_relative_to(base := Path(os.path.abspath(relative_to))):
        shown = shown.relative_to(base)
    return shown_path(shown.as_posix())


def shown_path(path: Path | str) -> str:
    """A path as text, another for each path. Names of files are bytes: what is not UTF-8 is marked, in hexadecimal.

    b"caf\\xe9" is "caf\ufffde9". A name that has the mark itself has it twice.
    """
    text = os.fspath(path).replace(_NO_TEXT, 2 * _NO_TEXT)
    return _UNDECODED.sub(lambda match: f"{_NO_TEXT}{ord(match[0]) - 0xDC00:02x}", text)


def display_name(name: str) -> str:
    """The last part of an uploaded file's name, without control characters: it is shown, and never used as a path.

    Raises InvalidArgumentError where nothing is left.
    """
    last = name.replace("\\", "/").rstrip("/").rpartition("/")[2]
    shown = "".join(char if char.isprintable() else " " for char in last).strip()
    if shown in ("", ".", ".."):
        raise InvalidArgumentError("name", f"{name!r} is not a file name: give one such as 'report.pdf'")
    stem, dot, extension = shown.rpartition(".")
    if len(shown) > _MAX_NAME_CHARS and dot and len(extension) < 16:
        return f"{stem[: _MAX_NAME_CHARS - len(extension) - 1]}.{extension}"
    return shown[:_MAX_NAME_CHARS]


class Ingestor:
    """Takes documents into one catalog. Thread-safe; searches go on meanwhile."""

    def __init__(self, catalog: Catalog, embedder: PassageEmbedder) -> None:
        self._catalog = catalog
        self._embedder = embedder

    def ingest(
        self,
        path: Path,
        source: str,
        *,
        collection: str,
        owner: str,
        embedded: Embedded | None = None,
        private: bool | None = None,
    ) -> IngestResult:
        """Takes one file in. What is wrong with the file, or a full disk, comes back as a failed result.

        `embedded` is called with the number of texts embedded so far and in all, after each batch. `private` marks the
        document (under PRIVATE_KEY in its metadata) or takes the mark away; None leaves it as it is.
        """
        shown = shown_path(path)

        def read() -> tuple[str, bytes]:
            return source.rpartition("/")[2], _read(path)

        return self._reported(shown, read, source, _Order(collection, owner, embedded, private))

    def ingest_bytes(
        self,
        data: bytes,
        name: str,
        source: str,
        *,
        collection: str,
        owner: str,
        embedded: Embedded | None = None,
        again: bool = False,
    ) -> IngestResult:
        """Takes in a file that is in memory. `name` gives its format, `source` is its identity.

        With `again` it is read anew also where nothing has changed.
        """
        order = _Order(collection, owner, embedded, None, again)
        return self._reported(source, lambda: (name, data), source, order)

    def _reported(self, shown: str, read: Callable[[], tuple[str, bytes]], source: str, order: _Order) -> IngestResult:
        try:
            name, data = read()
            result = self._ingest(name, data, shown, source, order)
        except (LoadError, StoreFullError, StoreBusyError) as error:
            result = IngestResult(shown, "failed", None, 0, 0, str(error))
        except OSError as error:
            result = IngestResult(shown, "failed", None, 0, 0, f"cannot be read: {error.strerror or error}")
        _log.info("ingest: status=%s chunks=%d pages=%d", result.status, result.num_chunks, result.num_pages)
        return result

    def _ingest(self, name: str, data: bytes, shown: str, source: str, order: _Order) -> IngestResult:
        content_hash = hashlib.sha256(data).hexdigest()
        with self._catalog.reading() as reader:
            stored = reader.stored_version(order.owner, order.collection, source)
        if stored is not None and _is_same(stored, content_hash, order):
            self._keep_original(content_hash, data)
            return _unchanged(shown, stored)
        document = load(name, data)
        chunks = chunk_document(document, self._embedder.count_tokens, self._embedder.max_tokens)
        if not chunks:
            raise EmptyDocumentError("no text: nothing is left to search after loading")
        texts = [indexed_text(document.title, chunk.headings, chunk.text) for chunk in chunks]
        new = NewVersion(
            source=source,
            title=document.title,
            content_hash=content_hash,
            revision=REVISION,
            size_bytes=len(data),
            num_pages=document.num_pages,
            chunks=chunks,
            digests=[text_digest(text) for text in texts],
            metadata=document.metadata,
        )
        with (
            self._catalog.originals.adding(content_hash, data) as keep,
            self._writing_with_vectors(texts, order.embedded) as writer,
        ):
            # Another writer may have put it in meanwhile.
            stored = writer.stored_version(order.owner, order.collection, source)
            if stored is not None and _is_same(stored, content_hash, order):
                return _unchanged(shown, stored)
            if _becomes_private(stored, order):
                new = replace(new, metadata={**new.metadata, PRIVATE_KEY: True})
            (document_id,) = self._put_all(writer, order.owner, order.collection, [new])
            keep()
        status: Literal["added", "updated"] = "added" if stored is None else "updated"
        return IngestResult(shown, status, document_id, len(chunks), new.num_pages, document.notice)

    def _keep_original(self, content_hash: str, data: bytes) -> None:
        """Keeps the file of a document that was taken in when files were not kept."""
        originals = self._catalog.originals
        if originals.path(content_hash) is None:
            with originals.adding(content_hash, data) as keep, self._catalog.writing():
                keep()

    def put(
        self,
        owner: str,
        collection: str,
        versions: Sequence[NewVersion],
        texts: Sequence[str],
    ) -> list[str]:
        """Stores new versions, all or none, and returns their documents' ids. `texts`: those of all their chunks."""
        with self._writing_with_vectors(texts, None) as writer:
            return self._put_all(writer, owner, collection, versions)

    @contextmanager
    def _writing_with_vectors(self, texts: Sequence[str], embedded: Embedded | None) -> Iterator[CatalogWriter]:
        """A write transaction in which the vectors of these texts are there.

        They are embedded first, in batches of their own, so that no other writer waits for the model.
        """
        by_digest = {text_digest(text): text for text in texts}
        while True:
            self._embed_missing(by_digest, embedded)
            with self._catalog.writing() as writer:
                self._catalog.require_embedder(writer, self._embedder)
                # Another writer may have deleted the last other user of a vector since.
                if len(writer.stored_vectors(list(by_digest))) == len(by_digest):
                    yield writer
                    return

    @staticmethod
    def _put_all(writer: CatalogWriter, owner: str, collection: str, versions: Sequence[NewVersion]) -> list[str]:
        collection_id = writer.ensure_collection(owner, collection)
        ids = [writer.put_document(collection_id, new) for new in versions]
        writer.sweep()
        return ids

    def _embed_missing(self, by_digest: dict[bytes, str], embedded: Embedded | None) -> None:
        with self._catalog.reading() as reader:
            stored = reader.stored_vectors(list(by_digest))
        missing = [(digest, text) for digest, text in by_digest.items() if digest not in stored]
        # Texts of like length share a batch: less padding, and the long ones come first, so that memory peaks early.
        missing.sort(key=lambda item: -len(item[1]))
        for start in range(0, len(missing), EMBED_BATCH):
            batch = missing[start : start + EMBED_BATCH]
            rows = text_vectors(self._embedder, batch)
            with self._catalog.writing() as writer:
                self._catalog.require_embedder(writer, self._embedder)
                writer.add_vectors(rows)
            if embedded is not None:
                embedded(start + len(batch), len(missing))


def _becomes_private(stored: StoredVersion | None, order: _Order) -> bool:
    return (stored is not None and stored.is_marked_private) if order.private is None else order.private


def _is_same(stored: StoredVersion, content_hash: str, order: _Order) -> bool:
    """Whether an ingest would change nothing of what is stored."""
    is_known = (stored.content_hash, stored.revision) == (content_hash, REVISION)
    return is_known and not order.again and _becomes_private(stored, order) == stored.is_marked_private


def _unchanged(shown: str, stored: StoredVersion) -> IngestResult:
    return IngestResult(shown, "unchanged", stored.document_id, stored.num_chunks, stored.num_pages, None)


def text_vectors(embedder: PassageEmbedder, texts: Sequence[tuple[bytes, str]]) -> dict[bytes, TextVectors]:
    """The vectors of texts as the catalog keeps them, by the digests that stand with the texts."""
    whole = embedder.embed_passages([text for _, text in texts]).astype("<f4")
    sentences = embed_sentences(embedder, [text for _, text in texts])
    return {
        digest: TextVectors(vector.tobytes(), kept)
        for (digest, _), vector, kept in zip(texts, whole, sentences, strict=True)
    }


def text_digest(text: str) -> bytes:
    """Under which a text's vector is stored."""
    return hashlib.sha256(text.encode("utf-8", "replace")).digest()


def _read(path: Path) -> bytes:
    """The file's bytes, up to one more than is allowed: `load` then says that it is too large."""
    if path.is_dir():
        raise IsADirectoryError(21, "it is a folder")
    if not path.exists():
        raise FileNotFoundError(2, "no such file")
    if not path.is_file():
        raise OSError(22, "not a regular file")
    with path.open("rb") as file:
        return file.read(MAX_FILE_BYTES + 1)
