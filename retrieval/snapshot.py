"""What a search runs on: an immutable snapshot of both indexes, and the keeper that replaces it as the catalog changes.

The catalog is the truth. A snapshot is made from the one before it by comparing chunk ids, so that a change costs what
changed (and a rebuild of the BM25 scores), never an embedding. Searches take the reference that is current when they
begin; nobody waits for a new snapshot except who builds it.

On disk, `index/<generation>/` holds the newest saved snapshot. It only saves time at the next start: missing, stale or
damaged, it is brought up to date or made anew from the catalog.
"""

import hashlib
import json
import logging
import os
import shutil
import threading
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import numpy.typing as npt

from retrieval.catalog import Catalog
from retrieval.catalog_reader import CatalogReader
from retrieval.chunking import indexed_text
from retrieval.errors import StoreDamagedError, StoreError
from retrieval.keyword_index import KeywordIndex
from retrieval.vector_index import Ids, Mask, VectorIndex

# Raised when words are cut or texts composed differently: saved keyword indexes of another format are not used.
FORMAT = 1
# While another process ingests without pause, at most this share of the time goes into new snapshots.
_REFRESH_SHARE = 0.2
# A search builds a new snapshot itself where the last one took no longer; else it is built beside the searches.
_INLINE_S = 0.5

_log = logging.getLogger(__name__)


@dataclass(frozen=True)
class Snapshot:
    """Row i is the same chunk in both indexes and in the id arrays. Rows are in the order of chunk ids."""

    generation: int
    document_ids: Ids
    collection_ids: Ids
    vectors: VectorIndex
    keywords: KeywordIndex

    def __post_init__(self) -> None:
        sizes = {len(self.document_ids), len(self.collection_ids), len(self.vectors), len(self.keywords)}
        assert len(sizes) == 1, f"rows must be the same everywhere, got {sizes}"

    @property
    def chunk_ids(self) -> Ids:
        return self.vectors.ids

    def mask(self, collection_ids: Sequence[int], document_ids: Sequence[int] | None = None) -> Mask:
        """Which rows [n] lie in these collections, and in these documents where some are given."""
        mask: Mask = np.isin(self.collection_ids, np.asarray(collection_ids, dtype=np.int64))
        if document_ids is not None:
            mask &= np.isin(self.document_ids, np.asarray(document_ids, dtype=np.int64))
        return mask


class SnapshotKeeper:
    """Holds the current snapshot of a catalog and replaces it. Thread-safe."""

    def __init__(self, catalog: Catalog, folder: Path, dimension: int) -> None:
        self._catalog = catalog
        self._folder = folder
        self._dimension = dimension
        self._building = threading.Lock()
        self._next_refresh = 0.0
        self._build_s = 0.0
        self._saved_generation = -1
        self._snapshot = self._load()
        self.refresh()

    @property
    def latest(self) -> Snapshot:
        """The snapshot at hand, without a look at whether the catalog has moved on."""
        return self._snapshot

    def current(self, reader: CatalogReader) -> Snapshot:
        """The snapshot to search. Where the catalog has moved on, a new one is built, if that is due.

        A small one is built at once and returned; a large one is built in a thread while the old one answers.
        """
        snapshot = self._snapshot
        if snapshot.generation >= reader.generation() or time.monotonic() < self._next_refresh:
            return snapshot
        if not self._building.acquire(blocking=False):
            return snapshot  # somebody is at it; until then the old one answers
        if self._build_s > _INLINE_S:
            threading.Thread(target=self._advance_beside, name="snapshot", daemon=True).start()
            return snapshot
        try:
            return self._advance(reader)
        finally:
            self._building.release()

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
            if snapshot.generation == self._saved_generation:
                return
            try:
                _write(self._folder, snapshot)
                self._saved_generation = snapshot.generation
            except OSError as error:
                _log.warning("index not saved, the next start builds it: folder=%s error=%s", self._folder, error)

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
        self._build_s = took = time.monotonic() - started
        self._next_refresh = time.monotonic() + took / _REFRESH_SHARE
        _log.info(
            "snapshot: generation=%d chunks=%d new=%d took_s=%.3f", generation, len(chunk_ids), len(new_ids), took
        )
        return self._snapshot

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
                snapshot = _read(folder, self._dimension)
            except (OSError, ValueError, KeyError, AssertionError) as error:
                _log.warning("saved index not usable, building anew: folder=%s error=%s", folder, error)
                continue
            self._saved_generation = snapshot.generation
            return snapshot
        none = np.zeros(0, dtype=np.int64)
        empty = VectorIndex(none, np.zeros((0, self._dimension), dtype=np.float32), self._dimension)
        return Snapshot(-1, none, none, empty, KeywordIndex.build([]))


def _write(folder: Path, snapshot: Snapshot) -> None:
    """Writes beside and renames: a reader sees a whole snapshot or none."""
    folder.mkdir(parents=True, exist_ok=True)
    target = folder / f"{snapshot.generation:012d}"
    temporary = folder / f".{target.name}.{os.getpid()}.tmp"
    shutil.rmtree(temporary, ignore_errors=True)
    try:
        temporary.mkdir()
        snapshot.vectors.save(temporary / "vectors.faiss")
        snapshot.keywords.save(temporary)
        np.save(
            temporary / "owners.npy", np.stack([snapshot.document_ids, snapshot.collection_ids]), allow_pickle=False
        )
        files = sorted(path for path in temporary.rglob("*") if path.is_file())
        manifest = {
            "format": FORMAT,
            "generation": snapshot.generation,
            "files": {path.relative_to(temporary).as_posix(): _sha256(path) for path in files},
        }
        (temporary / "manifest.json").write_text(json.dumps(manifest, indent=1), encoding="ascii")
        for path in (*files, temporary / "manifest.json", temporary):
            _sync(path)
        if not target.exists():
            temporary.rename(target)
            _sync(folder)
    finally:
        shutil.rmtree(temporary, ignore_errors=True)
    for other in folder.glob("[0-9]*"):
        if other.name < target.name:
            shutil.rmtree(other, ignore_errors=True)


def _read(folder: Path, dimension: int) -> Snapshot:
    manifest = json.loads((folder / "manifest.json").read_text(encoding="ascii"))
    if manifest["format"] != FORMAT:
        raise ValueError(f"written in format {manifest['format']}, {FORMAT} expected")
    for name, digest in manifest["files"].items():
        if _sha256(folder / name) != digest:
            raise ValueError(f"{name} is damaged")
    document_ids, collection_ids = np.load(folder / "owners.npy", allow_pickle=False)
    vectors = VectorIndex.load(folder / "vectors.faiss", dimension)
    return Snapshot(manifest["generation"], document_ids, collection_ids, vectors, KeywordIndex.load(folder))


def _sha256(path: Path) -> str:
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def _sync(path: Path) -> None:
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
