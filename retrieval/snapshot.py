"""What a search runs on: an immutable snapshot of both indexes, and the keeper that replaces it as the catalog changes.

The catalog is the truth. A snapshot is made from the one before it by comparing chunk ids, so that a change costs what
changed (and a rebuild of the BM25 scores), never an embedding. Searches take the reference that is current when they
begin; nobody waits for a new snapshot except who builds it. A vector index that has outgrown its kind, or gathered much
that was added or deleted, is compacted in a thread and swapped in when it is done.

On disk, `index/<generation>/` holds the newest saved snapshot. It only saves time at the next start: missing, stale or
damaged, it is brought up to date or made anew from the catalog. Vectors are mapped from there, once their checksum is
seen to be right.
"""

import contextlib
import json
import logging
import os
import shutil
import sqlite3
import threading
import time
from collections.abc import Callable, Hashable, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path

import faiss
import numpy as np
import numpy.typing as npt
import xxhash

from retrieval.catalog import FILE_NAME, Catalog
from retrieval.catalog_reader import CatalogReader
from retrieval.chunking import indexed_text
from retrieval.embeddings import PassageEmbedder, Vectors
from retrieval.errors import StoreDamagedError, StoreError
from retrieval.gpu_index import GpuVectorIndex, check_gpu
from retrieval.keyword_index import KeywordIndex
from retrieval.language import advice
from retrieval.qdrant_index import QdrantIndex, QdrantPoints
from retrieval.sentence_vectors import closest_sentences
from retrieval.vector_codes import Ids
from retrieval.vector_index import AnyVectorIndex, IndexOptions, Mask, VectorIndex

# Raised when words are cut or texts composed differently, or files hold something else: saved indexes of another format
# are not used.
FORMAT = 3
# While another process ingests without pause, at most this share of the time goes into new snapshots.
_REFRESH_SHARE = 0.2
# So long the search that finds the catalog changed waits for its new snapshot. One that takes longer is finished beside
# the searches, which the old one answers meanwhile.
_WAIT_S = 1.0
# Checksums are computed over so many bytes at a time.
_HASHED_BYTES = 1 << 24
_VECTORS = "vectors"
# Masks that a snapshot remembers.
_MASKS_KEPT = 16
# Files of a process that was killed while it wrote are removed after so long.
_LEFTOVERS_KEPT_S = 3600.0

_log = logging.getLogger(__name__)


@dataclass(frozen=True)
class Snapshot:
    """Row i is the same chunk in both indexes and in the id arrays. Rows are in the order of chunk ids."""

    generation: int
    document_ids: Ids
    collection_ids: Ids
    vectors: AnyVectorIndex
    keywords: KeywordIndex
    _masks: dict[Hashable, Mask] = field(default_factory=dict, repr=False, compare=False)

    def __post_init__(self) -> None:
        sizes = {len(self.document_ids), len(self.collection_ids), len(self.vectors), len(self.keywords)}
        assert len(sizes) == 1, f"rows must be the same everywhere, got {sizes}"

    @property
    def chunk_ids(self) -> Ids:
        return self.vectors.ids

    def mask(self, collection_ids: Sequence[int], document_ids: Sequence[int] | None = None) -> Mask:
        """Which rows [n] lie in these collections, and in these documents where some are given. Not to be written."""
        key = tuple(sorted(collection_ids))
        mask = self.remembered(key, lambda: np.isin(self.collection_ids, np.asarray(key, dtype=np.int64)))
        if document_ids is not None:
            mask = mask & np.isin(self.document_ids, np.asarray(document_ids, dtype=np.int64))
        return mask

    def closest_sentences(self, reader: CatalogReader, rows: Sequence[int], query: Vectors) -> dict[int, float]:
        """The cosine of the best sentence of each of these rows; those whose sentences have no vectors are left out."""
        row_of = {int(self.chunk_ids[row]): row for row in rows}
        kept = reader.sentence_vectors(list(row_of))
        return closest_sentences(query, {row_of[chunk_id]: sentences for chunk_id, sentences in kept.items()})

    def remembered(self, key: Hashable, made: Callable[[], Mask]) -> Mask:
        """The mask [n] that was made for `key`: most searches ask for the same few, which take long to make."""
        mask = self._masks.get(key)
        if mask is None:
            if len(self._masks) >= _MASKS_KEPT:
                self._masks.clear()
            mask = self._masks[key] = made()
        return mask


class SnapshotKeeper:
    """Holds the current snapshot of a catalog and replaces it. Thread-safe."""

    def __init__(
        self, catalog: Catalog, folder: Path, embedder: PassageEmbedder, options: IndexOptions | None = None
    ) -> None:
        self._catalog = catalog
        self._folder = folder
        self._embedder = embedder
        self._dimension = embedder.dimension
        self._options = options or IndexOptions()
        self._building = threading.Lock()
        self._compaction: threading.Thread | None = None
        self._closed = False
        self._next_refresh = 0.0
        self._saved: Snapshot | None = None
        self._points = (
            QdrantPoints(self._options.qdrant, folder.parent, self._dimension, self._options.format)
            if self._options.qdrant is not None
            else None
        )
        self._kind = VectorIndex
        if self._options.gpu:
            check_gpu()
            self._kind = GpuVectorIndex
        self._snapshot = self._load()
        self.refresh()
        with self._building:
            self._compact_if_due()

    @property
    def kind(self) -> str:
        """What kind of vector index answers, for people."""
        return self._snapshot.vectors.kind

    @property
    def latest(self) -> Snapshot:
        """The snapshot at hand, without a look at whether the catalog has moved on."""
        return self._snapshot

    @property
    def advice(self) -> str | None:
        """What to do about an embedding model that most chunks are foreign to."""
        return advice(self._embedder.name, self._embedder.languages, self._snapshot.keywords.facts.languages)

    def current(self, reader: CatalogReader) -> Snapshot:
        """The snapshot to search. Where the catalog has moved on, a new one is built, if that is due.

        It is waited for, but not long: then the old one answers.
        """
        snapshot = self._snapshot
        if snapshot.generation >= reader.generation() or time.monotonic() < self._next_refresh:
            return snapshot
        if not self._building.acquire(blocking=False):
            return snapshot  # somebody is at it; until then the old one answers
        building = threading.Thread(target=self._advance_beside, name="snapshot", daemon=True)
        building.start()
        building.join(_WAIT_S)
        return self._snapshot

    def _advance_beside(self) -> None:
        """Builds the next snapshot in a thread of its own, which takes over `_building` and releases it."""
        try:
            with self._catalog.reading() as reader:
                self._advance(reader)
        except StoreError as error:
            _log.warning("no new snapshot, the old one answers: %s", error)
        finally:
            self._building.release()

    def refresh(self) -> Snapshot:
        """Waits for a snapshot that holds everything committed before this call."""
        with self._building, self._catalog.reading() as reader:
            return self._advance(reader)

    def save(self) -> None:
        """Writes the current snapshot, so that the next start need not build it."""
        with self._building:
            snapshot = self._snapshot
            if snapshot is self._saved:
                return
            try:
                saved = _write(self._folder, snapshot, self.advice)
                self._saved = self._snapshot = replace(snapshot, vectors=snapshot.vectors.mapped(saved / _VECTORS))
            except (OSError, ValueError) as error:
                _log.warning("index not saved, the next start builds it: folder=%s error=%s", self._folder, error)

    def close(self) -> None:
        """Saves, and stops what goes on beside the searches from changing anything more."""
        self.save()
        self._closed = True
        if self._points is not None:
            self._points.close()

    def wait_for_compaction(self) -> None:
        """Returns when the vector index has the kind that its size asks for."""
        while (compaction := self._compaction) is not None:
            compaction.join()

    def _advance(self, reader: CatalogReader) -> Snapshot:
        """Builds and publishes the snapshot of the reader's state. The caller holds `_building`."""
        old, generation = self._snapshot, reader.generation()
        if old.generation >= generation:
            return old
        started = time.monotonic()
        chunk_ids, document_ids, collection_ids = reader.live_chunks()
        kept_rows = np.flatnonzero(np.isin(old.chunk_ids, chunk_ids))
        new_ids = chunk_ids[~np.isin(chunk_ids, old.chunk_ids)]
        texts, vectors = self._inputs(reader, new_ids)
        self._snapshot = Snapshot(
            generation,
            document_ids,
            collection_ids,
            old.vectors.updated(kept_rows, new_ids, vectors),
            old.keywords.updated(kept_rows, texts),
        )
        assert np.array_equal(self._snapshot.chunk_ids, chunk_ids), "chunk ids only grow"
        took = time.monotonic() - started
        self._next_refresh = time.monotonic() + took / _REFRESH_SHARE
        _log.info(
            "snapshot: generation=%d chunks=%d new=%d took_s=%.3f", generation, len(chunk_ids), len(new_ids), took
        )
        self._compact_if_due()
        return self._snapshot

    def _compact_if_due(self) -> None:
        """Starts a compaction beside the searches, if it is due and none is going on. The caller holds `_building`."""
        if self._compaction is None and self._snapshot.vectors.needs_compaction:
            self._compaction = threading.Thread(target=self._compact, name="compaction", daemon=True)
            self._compaction.start()

    def _compact(self) -> None:
        started = time.monotonic()
        # Counts for this thread only. The other half of the cores is for searches.
        faiss.omp_set_num_threads(max(1, (os.cpu_count() or 1) // 2))
        try:
            compacted = self._snapshot.vectors.compacted()
        except (MemoryError, RuntimeError, ValueError, AssertionError) as error:  # FAISS raises all of these
            _log.warning("index not compacted, searches go on in the old one: %s", error)
            self._compaction = None
            return
        with self._building:
            if self._closed:
                self._compaction = None
                return
            current = self._snapshot
            self._snapshot = replace(current, vectors=compacted.caught_up(current.vectors))
        _log.info("index compacted: kind=%r took_s=%.1f", compacted.kind, time.monotonic() - started)
        self.save()
        with self._building:
            self._compaction = None
            self._compact_if_due()  # much may have come in meanwhile

    def _inputs(self, reader: CatalogReader, chunk_ids: Ids) -> tuple[list[str], npt.NDArray[np.float32]]:
        """Indexed texts and vectors of chunks, in the order of `chunk_ids`."""
        row_of = {int(chunk_id): row for row, chunk_id in enumerate(chunk_ids)}
        texts = [""] * len(row_of)
        vectors = np.full((len(row_of), self._dimension), np.nan, dtype=np.float32)
        for chunk_id, title, headings, text, vector in reader.chunk_inputs(list(row_of)):
            if len(vector) != 4 * self._dimension:
                raise StoreDamagedError(
                    f"the catalog's vector of chunk {chunk_id} has {len(vector)} bytes: ingest again"
                )
            texts[row_of[chunk_id]] = indexed_text(title, headings, text)
            vectors[row_of[chunk_id]] = np.frombuffer(vector, dtype="<f4")
        return texts, vectors

    def _load(self) -> Snapshot:
        for folder in sorted(self._folder.glob("[0-9]*"), key=lambda path: path.name, reverse=True):
            try:
                snapshot = self._read(folder)
            except (OSError, ValueError, KeyError, AssertionError) as error:
                _log.warning("saved index not usable, building anew: folder=%s error=%s", folder, error)
                continue
            self._saved = snapshot
            return snapshot
        none = np.zeros(0, dtype=np.int64)
        empty: AnyVectorIndex = (
            self._kind(none, np.zeros((0, self._dimension), dtype=np.float32), self._dimension, self._options)
            if self._points is None
            else QdrantIndex(self._points, none, self._dimension)
        )
        return Snapshot(-1, none, none, empty, KeywordIndex.build([]))

    def _read(self, folder: Path) -> Snapshot:
        manifest = json.loads((folder / "manifest.json").read_text(encoding="ascii"))
        if manifest["format"] != FORMAT:
            raise ValueError(f"written in format {manifest['format']}, {FORMAT} expected")
        for name, digest in manifest["files"].items():
            if checksum(folder / name) != digest:
                raise ValueError(f"{name} is damaged")
        document_ids, collection_ids = np.load(folder / "owners.npy", allow_pickle=False)
        vectors: AnyVectorIndex = (
            self._kind.load(folder / _VECTORS, self._dimension, self._options)
            if self._points is None
            else QdrantIndex.load(folder / _VECTORS, self._points, self._dimension)
        )
        return Snapshot(manifest["generation"], document_ids, collection_ids, vectors, KeywordIndex.load(folder))


@dataclass(frozen=True)
class SavedIndex:
    """What index a store has, in words for people, and what is advised about its embedding model."""

    text: str
    advice: str | None


def saved_index(store: Path) -> SavedIndex | None:
    """The index of the store in a folder; None where there is neither an index nor a chunk.

    How many chunks there are now is counted in the catalogue, which a server may be writing; of what kind the index is
    stands in the one last saved. Nothing else is opened, and nothing is changed.
    """
    num_chunks = _count_chunks(store / FILE_NAME)
    for folder in sorted((store / "index").glob("[0-9]*"), key=lambda path: path.name, reverse=True):
        with contextlib.suppress(OSError, ValueError, KeyError):
            manifest = json.loads((folder / "manifest.json").read_text(encoding="ascii"))
            count = manifest["chunks"] if num_chunks is None else num_chunks
            return SavedIndex(f"{count:,} chunks, {manifest['kind']}", manifest["advice"])
    return SavedIndex(f"{num_chunks:,} chunks, not saved yet", None) if num_chunks else None


def _count_chunks(catalog: Path) -> int | None:
    """Chunks of the current versions; None where the catalogue cannot be read."""
    with (
        contextlib.suppress(sqlite3.Error),
        contextlib.closing(sqlite3.connect(f"{catalog.absolute().as_uri()}?mode=ro", uri=True)) as opened,
    ):
        return CatalogReader(opened).counts()["chunks"]
    return None


def _write(folder: Path, snapshot: Snapshot, told: str | None) -> Path:
    """Writes beside and renames: a reader sees a whole snapshot or none. Returns where it lies.

    Snapshots of one generation differ only in how their vectors are arranged; the later one counts.
    """
    folder.mkdir(parents=True, exist_ok=True)
    _remove_leftovers(folder)
    same = sorted(folder.glob(f"{snapshot.generation:012d}*"))
    target = folder / (f"{snapshot.generation:012d}" + (f".{_revision(same[-1]) + 1:03d}" if same else ""))
    temporary = folder / f".{target.name}.{os.getpid()}.tmp"
    shutil.rmtree(temporary, ignore_errors=True)
    try:
        temporary.mkdir()
        (temporary / _VECTORS).mkdir()
        snapshot.vectors.save(temporary / _VECTORS)
        snapshot.keywords.save(temporary)
        np.save(
            temporary / "owners.npy", np.stack([snapshot.document_ids, snapshot.collection_ids]), allow_pickle=False
        )
        files = sorted(path for path in temporary.rglob("*") if path.is_file())
        manifest = {
            "format": FORMAT,
            "generation": snapshot.generation,
            "kind": snapshot.vectors.kind,
            "chunks": len(snapshot.vectors),
            "advice": told,
            "files": {path.relative_to(temporary).as_posix(): checksum(path) for path in files},
        }
        (temporary / "manifest.json").write_text(json.dumps(manifest, indent=1), encoding="ascii")
        for path in (*files, temporary / "manifest.json", temporary):
            _sync(path)
        temporary.rename(target)
        _sync(folder)
    finally:
        shutil.rmtree(temporary, ignore_errors=True)
    for other in folder.glob("[0-9]*"):
        if other.name < target.name:
            shutil.rmtree(other, ignore_errors=True)
    return target


def _remove_leftovers(folder: Path) -> None:
    for path in folder.glob(".*.tmp"):
        if time.time() - path.stat().st_mtime > _LEFTOVERS_KEPT_S:
            shutil.rmtree(path, ignore_errors=True)


def _revision(folder: Path) -> int:
    return int(folder.suffix[1:] or 0)


def checksum(path: Path) -> str:
    """XXH3, 128 bits: finds what disks and broken writes do to a file at the speed of reading it."""
    digest = xxhash.xxh3_128()
    with path.open("rb") as file:
        while block := file.read(_HASHED_BYTES):
            digest.update(block)
    return digest.hexdigest()


def _sync(path: Path) -> None:
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
