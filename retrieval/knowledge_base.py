"""The face of this package: one store of documents, opened from a folder, ingested into and searched.

Synchronous and thread-safe. It joins the parts (catalog, ingest, snapshots, hybrid search) and decides nothing that one
of them could.
"""

import contextlib
import logging
import os
from collections.abc import Callable, Collection, Iterable, Sequence
from functools import partial
from itertools import groupby
from pathlib import Path, PurePosixPath
from types import TracebackType
from typing import Any, Self

from retrieval.catalog import Catalog
from retrieval.catalog_reader import ChunkRow
from retrieval.chunking import indexed_text
from retrieval.embeddings import PassageEmbedder
from retrieval.errors import InvalidArgumentError
from retrieval.hybrid import QueryForm, Reach, hybrid_search
from retrieval.ingest import Embedded, Ingestor, display_name, find_files, shown_path, source_of
from retrieval.loaders import SUPPORTED_EXTENSIONS
from retrieval.question_kind import wording_shares
from retrieval.records import CollectionInfo, DocumentInfo, Filter, IngestResult, Passage, Section, Visibility
from retrieval.reranker import DEPTH as RERANKED
from retrieval.reranker import Reranker, rerank
from retrieval.schema import VERSION
from retrieval.snapshot import SnapshotKeeper
from retrieval.surroundings import CountTokens, joined, widened
from retrieval.vector_index import IndexOptions

_log = logging.getLogger(__name__)
# A search that meets chunks deleted since its snapshot was made looks again, on a new one, at most this often.
ATTEMPTS = 3
# So many times k hits are read, so that repeats of one text (a file taken in twice) can give way to others.
_SPARE = 4
# How many chunks to either side of a passage its surroundings may reach.
_REACH = 40


class KnowledgeBase:
    """A store of documents. Get one with `KnowledgeBase.open`; close it, or use it as a context manager.

    Every collection has an owner and a visibility. A user searches own collections and shared ones. Until there are
    accounts everything belongs to the user "local".
    """

    def __init__(
        self,
        folder: Path,
        catalog: Catalog,
        embedder: PassageEmbedder,
        index: IndexOptions | None = None,
        reranker: Reranker | None = None,
    ) -> None:
        self.folder = folder
        self.catalog = catalog
        self.embedder = embedder
        self.reranker = reranker
        self.ingestor = Ingestor(catalog, embedder)
        self.snapshots = SnapshotKeeper(catalog, folder / "index", embedder, index)

    @classmethod
    def open(
        cls,
        folder: Path,
        embedder: PassageEmbedder,
        *,
        index: IndexOptions | None = None,
        reranker: Reranker | None = None,
    ) -> "KnowledgeBase":
        """Opens the store in `folder`, creating it where there is none. `index` says how vectors are kept and searched.

        With a reranker, searches end with it.

        Raises StoreUnavailableError, StoreDamagedError, SchemaTooNewError, or EmbedderMismatchError where the store
        holds another model's vectors. Several processes may have one store open; their writes take turns.
        """
        folder = Path(folder)
        catalog = Catalog(folder)
        try:
            catalog.bind_embedder(embedder)
            with catalog.writing() as writer:
                writer.sweep()
                writer.sweep_orphans()
                catalog.originals.sweep(writer.contents)
            return cls(folder, catalog, embedder, index, reranker)
        except BaseException:
            catalog.close()
            raise

    def close(self) -> None:
        """Saves the indexes and closes the catalog. Harmless when done twice."""
        self.snapshots.close()
        self.catalog.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    @staticmethod
    def check_collection(name: str) -> None:
        """Raises InvalidArgumentError for what no collection may be called."""
        _checked_collection(name)

    def ensure_collection(self, name: str, *, owner: str = "local", visibility: Visibility = "private") -> None:
        """Creates the collection, or sets the visibility of the one that is there."""
        with self.catalog.writing() as writer:
            writer.ensure_collection(owner, _checked_collection(name), visibility)

    def collections(self, user: str = "local") -> list[CollectionInfo]:
        """The collections that `user` may search."""
        with self.catalog.reading() as reader:
            return reader.collections(user)

    def visible_collections(self, user: str = "local") -> set[str]:
        """Names of the collections that `user` may search."""
        with self.catalog.reading() as reader:
            return set(reader.visible_collection_names(user, None))

    def has_collection(self, name: str, *, owner: str = "local") -> bool:
        """Whether `owner` has a collection of that name."""
        with self.catalog.reading() as reader:
            return reader.collection_id(owner, name) is not None

    def create_collection(self, name: str, *, owner: str = "local") -> bool:
        """Creates a private collection; False where the owner has one of that name."""
        with self.catalog.writing() as writer:
            if writer.collection_id(owner, _checked_collection(name)) is not None:
                return False
            writer.ensure_collection(owner, name)
        return True

    def delete_collection(self, name: str, *, owner: str = "local") -> bool:
        """Deletes a collection with all its documents; False where the owner has none of that name."""
        with self.catalog.writing() as writer:
            was_there = writer.delete_collection(owner, name)
        if was_there:
            self.snapshots.refresh()
        return was_there

    def ingest_file(
        self,
        path: Path | str,
        *,
        name: str | None = None,
        collection: str = "default",
        owner: str = "local",
        embedded: Embedded | None = None,
        private: bool | None = None,
    ) -> IngestResult:
        """Takes one file in; it can be searched when this returns.

        `name` is an uploaded file's own name: shown, and with the collection the document's identity; only its last
        part is used. Without it the file's absolute path is the identity. `embedded` and `private` are as for
        `Ingestor.ingest`. The same bytes again change nothing but that mark, other
        bytes under the same identity replace the document. What is wrong with the file is told in the result.
        """
        path = Path(path)
        _checked_collection(collection)
        if name is None:
            source = source_of(path)
        else:
            try:
                source = display_name(name)
            except InvalidArgumentError as error:
                return IngestResult(str(path), "failed", None, 0, 0, str(error))
        result = self.ingestor.ingest(
            path, source, collection=collection, owner=owner, embedded=embedded, private=private
        )
        if result.status in ("added", "updated"):
            self.snapshots.refresh()
        return result

    def ingest_bytes(
        self,
        data: bytes,
        name: str,
        source: str,
        *,
        collection: str = "default",
        owner: str = "local",
        embedded: Embedded | None = None,
    ) -> IngestResult:
        """Takes in a file that is in memory, known by `source`. The extension of `name` says what it is."""
        result = self.ingestor.ingest_bytes(
            data, name, source, collection=_checked_collection(collection), owner=owner, embedded=embedded
        )
        if result.status in ("added", "updated"):
            self.snapshots.refresh()
        return result

    def ingest_paths(
        self,
        paths: Iterable[Path | str],
        *,
        collection: str = "default",
        owner: str = "local",
        progress: Callable[[IngestResult], None] | None = None,
        embedding: Callable[[Path, int, int], None] | None = None,
        relative_to: Path | None = None,
    ) -> list[IngestResult]:
        """Takes in files and folders (walked), one transaction a document, in order.

        `progress` is called after each file, `embedding` within one after each batch of its chunks: path, how many are
        embedded, how many there are to embed. With `relative_to`, files below that folder are known by their path
        relative to it, so that the folder may move without its documents being taken in again.
        """
        _checked_collection(collection)
        results = []
        try:
            for found in find_files([Path(path) for path in paths], relative_to):
                if found.refused is not None:
                    result = IngestResult(shown_path(found.path), "failed", None, 0, 0, found.refused)
                else:
                    embedded = None if embedding is None else partial(embedding, found.path)
                    result = self.ingestor.ingest(
                        found.path, found.source, collection=collection, owner=owner, embedded=embedded
                    )
                results.append(result)
                if progress is not None:
                    progress(result)
        finally:
            self.snapshots.refresh()
            self.snapshots.save()
        return results

    def search(
        self,
        query: str | Sequence[str],
        k: int = 4,
        *,
        collections: Sequence[str] | None = None,
        user: str = "local",
        document_ids: Sequence[str] | None = None,
        where: Filter | None = None,
    ) -> list[Passage]:
        """The `k` best passages, best first: by meaning and by words, fused.

        Several wordings of one question may be given; they are fused. `collections`, `document_ids` and `where` narrow
        the search, names and ids that are unknown (or not `user`'s to see) match nothing; k passages come whenever k
        are allowed. Raises InvalidArgumentError for k below 1.
        """
        if k < 1:
            raise InvalidArgumentError("k", f"k is {k}; ask for at least 1 passage")
        wordings = [text for text in ([query] if isinstance(query, str) else query) if text.strip()]
        if not wordings:
            return []
        shares = wording_shares(wordings)
        forms = [QueryForm(text, self.embedder.embed_query(text), share) for text, share in shares.items()]
        depth = k if self.reranker is None else max(k, RERANKED)
        for _ in range(ATTEMPTS):
            with self.catalog.reading() as reader:
                self.catalog.require_embedder(reader, self.embedder)
                snapshot = self.snapshots.current(reader)
                allowed = reader.visible_collection_ids(user, collections)
                documents = None if document_ids is None else reader.document_ids(document_ids)
                if where is not None:
                    passing = reader.documents_passing(where)
                    documents = passing if documents is None else sorted({*documents}.intersection(passing))
                mask = snapshot.mask(allowed, documents)
                hits = hybrid_search(
                    snapshot.vectors,
                    snapshot.keywords,
                    forms,
                    _SPARE * depth,
                    mask,
                    Reach.of(self.embedder),
                    partial(snapshot.closest_sentences, reader),
                )
                scores = {int(snapshot.chunk_ids[row]): score for row, score in hits}
                chunks = reader.chunks(list(scores))
            if len(chunks) == len(scores):
                break
            self.snapshots.refresh()
        found = [(chunks[chunk_id], score) for chunk_id, score in scores.items() if chunk_id in chunks]
        if self.reranker is None:
            return [_passage(chunk, score) for chunk, score in _distinct(found, k)]
        # The last wording is the one that stands best without the conversation.
        return _reranked(self.reranker, forms[-1].text, _distinct(found, depth))[:k]

    def term_weights(self, terms: Collection[str]) -> dict[str, float]:
        """How telling each term is: its inverse document frequency over all chunks, the highest for one in none."""
        return self.snapshots.latest.keywords.term_weights(terms)

    def surroundings(self, passage: Passage, max_tokens: int, count_tokens: CountTokens) -> str:
        """The section around a passage that `search` found, up to `max_tokens` as `count_tokens` counts.

        Never less than the passage itself; just that where its document has been deleted since.
        """
        document_id, version, ordinal = passage.chunk_id.rsplit("-", 2)
        with self.catalog.reading() as reader:
            parts = reader.parts_around(document_id, int(version), int(ordinal), _REACH)
        if not any(part.ordinal == int(ordinal) for part in parts):
            return passage.text
        return widened(parts, int(ordinal), max_tokens, count_tokens)

    def advice(self) -> str | None:
        """What to do about an embedding model that most of the documents are foreign to; None where it knows them."""
        return self.snapshots.advice

    def may_find(
        self, marked: Collection[str], condition: Filter, *, collections: Sequence[str] | None, user: str
    ) -> bool:
        """Whether a search of `user` could come upon a collection of these names, or a document that passes a filter.

        `collections`: those that it is narrowed to; None: all that the user may search.
        """
        with self.catalog.reading() as reader:
            if set(marked) & set(reader.visible_collection_names(user, collections)):
                return True
            visible = reader.visible_collection_ids(user, collections)
            return any(reader.documents_passing(condition, collection_id) for collection_id in visible)

    def documents(self, collection: str | None = None, user: str = "local") -> list[DocumentInfo]:
        """The documents that `user` may search, of one collection or of all."""
        with self.catalog.reading() as reader:
            return reader.documents(user, collection)

    def document(self, document_id: str, user: str = "local") -> DocumentInfo | None:
        """One document that `user` may search; None where there is none such."""
        with self.catalog.reading() as reader:
            return next(iter(reader.documents(user, None, document_id)), None)

    def sections(self, document_id: str) -> list[Section]:
        """A document's text as it is searched, in order, cut where page or headings change."""
        with self.catalog.reading() as reader:
            placed = reader.placed_parts(document_id)
        grouped = groupby(placed, key=lambda entry: (entry[0], entry[1].headings))
        return [Section(page, headings, joined([part for _, part in group])) for (page, headings), group in grouped]

    def original(self, document: DocumentInfo) -> Path | None:
        """The file that a document was made of; None where it is not kept."""
        return self.catalog.originals.path(document.content_hash)

    @staticmethod
    def file_name(document: DocumentInfo) -> str:
        """The name of a document's file, whose extension says what it is. A web page's address may have none."""
        name = document.source.rpartition("/")[2]
        is_page = document.source.startswith(("http://", "https://"))
        return f"{name}.html" if is_page and PurePosixPath(name).suffix.lower() not in SUPPORTED_EXTENSIONS else name

    def reingest(self, document: DocumentInfo, owner: str = "local") -> IngestResult | None:
        """Reads a document of `owner` anew from its original; None where that is not kept."""
        path = self.original(document)
        if path is None:
            return None
        result = self.ingestor.ingest_bytes(
            path.read_bytes(),
            self.file_name(document),
            document.source,
            collection=document.collection,
            owner=owner,
            again=True,
        )
        if result.status == "updated":
            self.snapshots.refresh()
        return result

    def delete_document(self, document_id: str, user: str = "local") -> bool:
        """Deletes a document of a collection that `user` owns. False where there is none such."""
        return bool(self.delete_documents([document_id], user))

    def delete_documents(self, document_ids: Iterable[str], user: str = "local") -> set[str]:
        """Deletes documents of collections that `user` owns, all at once; returns which there were."""
        with self.catalog.writing() as writer:
            owned = {document_id for document_id in document_ids if writer.owner_of(document_id) == user}
            writer.delete_documents(list(owned))
        if owned:
            self.snapshots.refresh()
        return owned

    def stats(self) -> dict[str, Any]:
        """Numbers and names for a status page: counts, index kind, embedder, schema version, bytes on disk."""
        with self.catalog.reading() as reader:
            counts, generation = reader.counts(), reader.generation()
        return {
            **counts,
            "generation": generation,
            "index": self.snapshots.kind,
            "embedder": self.embedder.name,
            "dimension": self.embedder.dimension,
            "schema_version": VERSION,
            "size_bytes": _size(self.folder),
            "folder": str(self.folder),
        }


def _size(folder: Path) -> int:
    total = 0
    for parent, _, names in os.walk(folder):  # passes over folders that vanish meanwhile
        for name in names:
            with contextlib.suppress(OSError):  # files are being replaced beside us
                total += os.stat(os.path.join(parent, name)).st_size
    return total


def _checked_collection(name: str) -> str:
    if not name.strip() or len(name) > 200 or not name.isprintable():
        raise InvalidArgumentError(
            "collection", f"{name!r} is not a collection's name: give 1 to 200 printable characters"
        )
    return name


def _distinct(found: list[tuple[ChunkRow, float]], k: int) -> list[tuple[ChunkRow, float]]:
    """The first `k` hits, best first; a text that is already among them comes in only where nothing else is left."""
    seen: set[str] = set()
    firsts: list[tuple[ChunkRow, float]] = []
    repeats: list[tuple[ChunkRow, float]] = []
    for hit in found:
        (repeats if hit[0].text in seen else firsts).append(hit)
        seen.add(hit[0].text)
    return sorted((firsts + repeats)[:k], key=lambda hit: -hit[1])


def _reranked(reranker: Reranker, query: str, found: list[tuple[ChunkRow, float]]) -> list[Passage]:
    texts = [indexed_text(chunk.title, chunk.headings, chunk.text) for chunk, _ in found]
    return [_passage(found[index][0], score) for index, score in rerank(reranker, query, texts)]


def _passage(chunk: ChunkRow, score: float) -> Passage:
    return Passage(
        document_id=chunk.document_id,
        chunk_id=public_chunk_id(chunk),
        title=chunk.title,
        source=chunk.source,
        page=chunk.page,
        heading=" > ".join(chunk.headings) or None,
        text=chunk.text,
        score=score,
        collection=chunk.collection,
    )


def public_chunk_id(chunk: ChunkRow) -> str:
    """A chunk's id as others see it: document, version and place in it."""
    return f"{chunk.document_id}-{chunk.version}-{chunk.ordinal}"
