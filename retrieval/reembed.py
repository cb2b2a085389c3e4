"""Gives a store the vectors of another embedding model: all at once, when the last of them is made.

Until then the old vectors answer. The new ones wait in the catalog under digests of their own, so that a run that was
broken off goes on where it stopped; a document that comes in meanwhile is embedded too before the change is made.
"""

import hashlib
import logging
from collections.abc import Callable, Iterator
from pathlib import Path

from retrieval.catalog import Catalog
from retrieval.chunking import indexed_text
from retrieval.embeddings import PassageEmbedder
from retrieval.ingest import EMBED_BATCH, text_vectors

_log = logging.getLogger(__name__)

Progress = Callable[[int, int], None]
"""Called with how many texts are embedded, and of how many."""


def reembed(folder: Path, embedder: PassageEmbedder, progress: Progress | None = None) -> int:
    """Embeds everything in the store with `embedder` and makes it the store's. Returns how many texts there are.

    Raises what opening the store and embedding raise; the store is then as it was.
    """
    catalog = Catalog(folder)
    try:
        while True:
            missing, total = _missing(catalog, embedder.fingerprint)
            for done, batch in enumerate(_batches(missing)):
                rows = text_vectors(embedder, batch)
                with catalog.writing() as writer:
                    writer.add_vectors(rows)
                if progress is not None:
                    progress(total - len(missing) + done * EMBED_BATCH + len(batch), total)
            with catalog.writing() as writer:
                digests = {digest: staged_digest(embedder.fingerprint, digest) for digest in writer.digests_in_use()}
                if writer.adopt_vectors(digests):
                    writer.record_embedder(embedder.name, embedder.fingerprint, embedder.dimension)
                    _log.info("store has new vectors: embedder=%s texts=%d", embedder.name, len(digests))
                    return len(digests)
    finally:
        catalog.close()


def staged_digest(fingerprint: str, digest: bytes) -> bytes:
    """Under which the vector that the embedder with this fingerprint made of a text waits."""
    return hashlib.sha256(fingerprint.encode() + digest).digest()


def _missing(catalog: Catalog, fingerprint: str) -> tuple[list[tuple[bytes, str]], int]:
    """The digests and texts that have no new vector yet, longest first, and the number of all."""
    with catalog.reading() as reader:
        digests = {staged_digest(fingerprint, digest): digest for digest in reader.digests_in_use()}
        stored = reader.stored_vectors(list(digests))
        wanted = {digest: staged for staged, digest in digests.items() if staged not in stored}
        texts = [
            (wanted[digest], indexed_text(title, headings, text))
            for digest, title, headings, text in reader.embedded_texts()
            if digest in wanted
        ]
    return sorted(texts, key=lambda item: -len(item[1])), len(digests)


def _batches(items: list[tuple[bytes, str]]) -> Iterator[list[tuple[bytes, str]]]:
    for start in range(0, len(items), EMBED_BATCH):
        yield items[start : start + EMBED_BATCH]
