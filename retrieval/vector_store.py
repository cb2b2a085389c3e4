"""A collection of the knowledge base as a LangChain vector store: texts in with ids, nearest texts out.

Search here is by vectors alone, as LangChain's interface has it; `retriever` searches by meaning and words together.
Each text is one document of the catalog, known by its id: the same id again replaces it. Nothing is pickled, a filter
is applied before the search and not after it, and an unknown option is refused.
"""

import json
import tempfile
import uuid
from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path, PurePath
from typing import Any

import numpy as np
from langchain_core.documents import Document
from langchain_core.embeddings import Embeddings
from langchain_core.vectorstores import VectorStore
from langchain_core.vectorstores.utils import maximal_marginal_relevance

from retrieval import records
from retrieval.catalog_reader import CatalogReader, ChunkRow
from retrieval.catalog_writer import NewVersion
from retrieval.chunking import Chunk
from retrieval.embeddings import LangChainEmbedder, LangChainView, Vectors, encodable, unit_vectors
from retrieval.errors import InvalidArgumentError
from retrieval.ingest import text_digest
from retrieval.knowledge_base import ATTEMPTS, KnowledgeBase, public_chunk_id
from retrieval.snapshot import Snapshot
from retrieval.vector_index import Mask

# Marks documents that were given as texts; those made from files carry the revision of their chunking.
_TEXT_REVISION = 0

Filter = Mapping[str, Any]


class RagstoneVectorStore(VectorStore):
    """One collection of a `KnowledgeBase`.

    A filter maps metadata keys to a value, or to a list of values of which one must match: `filter={"lang": "en"}`,
    `filter={"year": [2025, 2026]}`. It narrows the search itself: k hits come whenever k texts match.
    """

    def __init__(self, knowledge_base: KnowledgeBase, *, collection: str = "default", owner: str = "local") -> None:
        self.knowledge_base = knowledge_base
        self.collection = collection
        self.owner = owner
        self._folder: tempfile.TemporaryDirectory[str] | None = None

    @classmethod
    def from_texts(
        cls,
        texts: list[str],
        embedding: Embeddings,
        metadatas: list[dict[str, Any]] | None = None,
        *,
        ids: list[str] | None = None,
        folder: Path | str | None = None,
        collection: str = "default",
        **kwargs: Any,
    ) -> "RagstoneVectorStore":
        """A store in `folder` with these texts in it; without a folder, in one that vanishes with the object."""
        _refuse_unknown(kwargs)
        temporary = tempfile.TemporaryDirectory(prefix="ragstone-") if folder is None else None
        path = Path(temporary.name if temporary is not None else str(folder))
        store = cls(KnowledgeBase.open(path, LangChainEmbedder(embedding)), collection=collection)
        store._folder = temporary
        store.add_texts(texts, metadatas, ids=ids)
        return store

    @property
    def embeddings(self) -> Embeddings:
        embedder = self.knowledge_base.embedder
        return embedder.embeddings if isinstance(embedder, LangChainEmbedder) else LangChainView(embedder)

    def add_texts(
        self,
        texts: Iterable[str],
        metadatas: list[dict[str, Any]] | None = None,
        *,
        ids: Sequence[str | None] | None = None,
        **kwargs: Any,
    ) -> list[str]:
        """Adds texts, or replaces those whose id is there, all or none. Returns the ids in order.

        Metadata must be JSON: strings, numbers, booleans, None, lists and dicts of them. `title` and an integer `page`
        in it are shown with the passage.
        """
        _refuse_unknown(kwargs)
        texts = list(texts)
        _check_length("metadatas", metadatas, texts)
        _check_length("ids", ids, texts)
        given = list(ids) if ids is not None else [None] * len(texts)
        final_ids = [id_ or uuid.uuid4().hex for id_ in given]
        # Of a repeated id the last text counts, as if they had been added one after the other.
        versions = {
            id_: _version(id_, text, metadata)
            for id_, text, metadata in zip(final_ids, texts, metadatas or [{}] * len(texts), strict=True)
        }
        if versions:
            self.knowledge_base.ingestor.put(self.owner, self.collection, list(versions.values()), texts)
            self.knowledge_base.snapshots.refresh()
        return final_ids

    def delete(self, ids: list[str] | None = None, **kwargs: Any) -> bool:
        """Deletes texts by id; ids that are not there are no error. Without ids the whole collection is emptied."""
        _refuse_unknown(kwargs)
        with self.knowledge_base.catalog.writing() as writer:
            collection_id = writer.ensure_collection(self.owner, self.collection)
            if ids is None:
                ids = writer.sources(collection_id)
            writer.delete_sources(collection_id, ids)
        self.knowledge_base.snapshots.refresh()
        return True

    def get_by_ids(self, ids: Sequence[str], /) -> list[Document]:
        """The documents with these ids, in that order; ids that are not there are left out."""
        with self.knowledge_base.catalog.reading() as reader:
            collection_id = reader.collection_id(self.owner, self.collection)
            found = {} if collection_id is None else reader.chunks_of_sources(collection_id, list(ids))
        return [_document(found[id_]) for id_ in ids if id_ in found]

    def similarity_search(
        self, query: str, k: int = 4, *, filter: Filter | None = None, **kwargs: Any
    ) -> list[Document]:
        """The `k` texts nearest to `query`, nearest first."""
        return [document for document, _ in self.similarity_search_with_score(query, k, filter=filter, **kwargs)]

    def similarity_search_with_score(
        self, query: str, k: int = 4, *, filter: Filter | None = None, **kwargs: Any
    ) -> list[tuple[Document, float]]:
        """The same with the cosine similarity, from -1 to 1, higher is nearer."""
        _refuse_unknown(kwargs)
        return self._nearest(self.knowledge_base.embedder.embed_query(query), k, filter)

    def similarity_search_by_vector(
        self, embedding: list[float], k: int = 4, *, filter: Filter | None = None, **kwargs: Any
    ) -> list[Document]:
        """The `k` texts nearest to a vector. Raises InvalidVectorError for NaN or another dimension."""
        _refuse_unknown(kwargs)
        return [document for document, _ in self._nearest(self._unit(embedding), k, filter)]

    def max_marginal_relevance_search(
        self,
        query: str,
        k: int = 4,
        fetch_k: int = 20,
        lambda_mult: float = 0.5,
        *,
        filter: Filter | None = None,
        **kwargs: Any,
    ) -> list[Document]:
        """`k` of the `fetch_k` nearest texts, chosen to be near to the query and far from each other."""
        _refuse_unknown(kwargs)
        vector = self.knowledge_base.embedder.embed_query(query)
        return self._diverse(vector, k, fetch_k, lambda_mult, filter)

    def max_marginal_relevance_search_by_vector(
        self,
        embedding: list[float],
        k: int = 4,
        fetch_k: int = 20,
        lambda_mult: float = 0.5,
        *,
        filter: Filter | None = None,
        **kwargs: Any,
    ) -> list[Document]:
        """The same for a vector."""
        _refuse_unknown(kwargs)
        return self._diverse(self._unit(embedding), k, fetch_k, lambda_mult, filter)

    def _select_relevance_score_fn(self) -> Callable[[float], float]:
        # What points away from the query is as irrelevant as what has nothing to do with it.
        return lambda cosine: min(1.0, max(0.0, cosine))

    def _nearest(self, vector: Vectors, k: int, filter: Filter | None) -> list[tuple[Document, float]]:
        _, rows, scores, documents = self._search(vector, k, filter)
        return [(documents[row], score) for row, score in zip(rows, scores, strict=True) if row in documents]

    def _diverse(
        self, vector: Vectors, k: int, fetch_k: int, lambda_mult: float, filter: Filter | None
    ) -> list[Document]:
        snapshot, rows, _, documents = self._search(vector, max(k, fetch_k), filter)
        if not rows:
            return []
        chosen = maximal_marginal_relevance(vector, list(snapshot.vectors.vectors_of(np.array(rows))), lambda_mult, k)
        return [documents[rows[index]] for index in chosen if rows[index] in documents]

    def _search(
        self, vector: Vectors, k: int, filter: Filter | None
    ) -> tuple[Snapshot, list[int], list[float], dict[int, Document]]:
        """Snapshot, its nearest rows with their scores, and documents by row."""
        if k < 1:
            raise InvalidArgumentError("k", f"k is {k}; ask for at least 1 document")
        conditions = _conditions(filter or {})
        for _ in range(ATTEMPTS):
            with self.knowledge_base.catalog.reading() as reader:
                self.knowledge_base.catalog.require_embedder(reader, self.knowledge_base.embedder)
                snapshot = self.knowledge_base.snapshots.current(reader)
                collection_id = reader.collection_id(self.owner, self.collection)
                if collection_id is None:
                    return snapshot, [], [], {}
                found, scores = snapshot.vectors.search(vector, k, _mask(snapshot, reader, collection_id, conditions))
                row_of = dict(zip(snapshot.chunk_ids[found].tolist(), found.tolist(), strict=True))
                chunks = reader.chunks(list(row_of))
            if len(chunks) == len(row_of):
                break
            self.knowledge_base.snapshots.refresh()
        documents = {row_of[id_]: _document(chunk) for id_, chunk in chunks.items()}
        return snapshot, found.tolist(), scores.tolist(), documents

    def _unit(self, embedding: Sequence[float]) -> Vectors:
        vector: Vectors = unit_vectors(np.asarray([embedding]), self.knowledge_base.embedder.dimension)[0]
        return vector


def _version(id_: str, text: str, metadata: Mapping[str, Any]) -> NewVersion:
    text = encodable(text)
    try:
        json.dumps(metadata, allow_nan=False)
    except (TypeError, ValueError, RecursionError) as error:
        raise InvalidArgumentError(
            "metadatas",
            f"the metadata of {id_!r} is not JSON ({error}): use strings, numbers, booleans, None, lists, dicts",
        ) from error
    page = metadata.get("page")
    title = metadata.get("title") or PurePath(str(metadata.get("source") or "")).name
    chunk = Chunk(text, 0, len(text), (), page if isinstance(page, int) and not isinstance(page, bool) else None)
    digest = text_digest(text)
    return NewVersion(
        source=id_,
        title=str(title),
        content_hash=digest.hex(),
        revision=_TEXT_REVISION,
        size_bytes=len(text.encode("utf-8", "replace")),
        num_pages=0,
        chunks=[chunk],
        digests=[digest],
        metadata=metadata,
    )


def _document(chunk: ChunkRow) -> Document:
    """Texts come back as they were given; a passage of a file gets its own id and says where it stands."""
    if chunk.revision == _TEXT_REVISION:
        return Document(id=chunk.source, page_content=chunk.text, metadata=dict(chunk.metadata))
    place = {"title": chunk.title, "source": chunk.source, "page": chunk.page, "heading": " > ".join(chunk.headings)}
    return Document(id=public_chunk_id(chunk), page_content=chunk.text, metadata={**chunk.metadata, **place})


def _conditions(filter: Filter) -> dict[str, list[Any]]:
    """For each key of the metadata the values of which one must be there. Raises InvalidArgumentError."""
    conditions = {}
    for key, wanted in filter.items():
        values = list(wanted) if isinstance(wanted, (list, tuple, set, frozenset)) else [wanted]
        odd = [value for value in values if value is not None and not isinstance(value, (str, int, float))]
        if odd:
            raise InvalidArgumentError(
                "filter", f"filter[{key!r}] is {wanted!r}: give a string, number, boolean or None, or a list of them"
            )
        conditions[key] = values
    return conditions


def _mask(
    snapshot: Snapshot, reader: CatalogReader, collection_id: int, conditions: Mapping[str, Sequence[Any]]
) -> Mask:
    """Which rows of the snapshot lie in the collection and meet the conditions."""
    if not conditions:
        return snapshot.mask([collection_id])

    def matching() -> Mask:
        return snapshot.mask(
            [collection_id], reader.documents_passing(records.Filter(metadata=conditions), collection_id)
        )

    if reader.generation() != snapshot.generation:
        return matching()  # the catalog has moved on: not to be remembered as this snapshot's
    return snapshot.remembered((collection_id, json.dumps(conditions, sort_keys=True)), matching)


def _check_length(name: str, given: Sequence[Any] | None, texts: Sequence[str]) -> None:
    if given is not None and len(given) != len(texts):
        raise InvalidArgumentError(name, f"{len(texts)} texts but {len(given)} {name}: give one a text, or none at all")


def _refuse_unknown(kwargs: Mapping[str, Any]) -> None:
    if kwargs:
        raise TypeError(f"unknown options {sorted(kwargs)}: this store would ignore them")
