import sqlite3
from pathlib import Path

import pytest

from retrieval import DocumentInfo, KnowledgeBase
from retrieval.catalog import FILE_NAME, Catalog
from retrieval.catalog_writer import NewVersion, TextVectors
from retrieval.chunking import Chunk
from retrieval.errors import (
    EmbedderMismatchError,
    SchemaTooNewError,
    StoreBusyError,
    StoreClosedError,
    StoreDamagedError,
    StoreFullError,
    StoreUnavailableError,
)
from tests.retrieval.word_embedder import WordEmbedder


def version(source: str, text: str, digest: bytes = b"d") -> NewVersion:
    return NewVersion(source, source, "hash", 1, len(text), 0, [Chunk(text, 0, len(text), (), None)], [digest])


def put(catalog: Catalog, source: str, text: str, digest: bytes = b"d") -> str:
    with catalog.writing() as writer:
        writer.add_vectors({digest: TextVectors(b"\0" * 4)})
        return writer.put_document(writer.ensure_collection("local", "default"), version(source, text, digest))


def texts(catalog: Catalog) -> list[str]:
    with catalog.reading() as reader:
        ids = reader.live_chunks()[0].tolist()
        return [chunk.text for _, chunk in sorted(reader.chunks(ids).items())]


def test_a_new_version_takes_the_place_of_the_old_one(tmp_path: Path) -> None:
    catalog = Catalog(tmp_path)
    uid = put(catalog, "a.md", "old")
    assert put(catalog, "a.md", "new") == uid
    assert texts(catalog) == ["new"]
    (info,) = listing(catalog)
    assert (info.version, info.num_chunks, info.document_id) == (2, 1, uid)


def listing(catalog: Catalog) -> list[DocumentInfo]:
    with catalog.reading() as reader:
        return reader.documents("local", None)


def test_a_transaction_that_raises_changes_nothing(tmp_path: Path) -> None:
    catalog = Catalog(tmp_path)
    put(catalog, "a.md", "old")

    def broken_off() -> None:
        with catalog.writing() as writer:
            writer.add_vectors({b"e": TextVectors(b"\0" * 4)})
            writer.put_document(writer.ensure_collection("local", "default"), version("a.md", "new", b"e"))
            raise RuntimeError("power failed")

    with pytest.raises(RuntimeError, match="power failed"):
        broken_off()
    assert texts(catalog) == ["old"]
    with catalog.reading() as reader:
        assert reader.num_vectors() == 1


def test_a_reader_sees_one_state_while_others_write(tmp_path: Path) -> None:
    catalog = Catalog(tmp_path)
    put(catalog, "a.md", "old")
    with catalog.reading() as reader:
        before = reader.generation()
        put(catalog, "b.md", "other")
        assert reader.generation() == before
        assert len(reader.live_chunks()[0]) == 1
    assert texts(catalog) == ["old", "other"]


def test_superseded_versions_and_their_vectors_go_later(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    catalog = Catalog(tmp_path)
    put(catalog, "a.md", "old", b"old")
    with catalog.reading() as reader:
        old_id = int(reader.live_chunks()[0][0])
    put(catalog, "a.md", "new", b"new")
    with catalog.writing() as writer:
        writer.sweep()
    with catalog.reading() as reader:
        assert reader.chunks([old_id])[old_id].text == "old"  # a search that began earlier may still want it
    monkeypatch.setattr("retrieval.catalog_writer.SUPERSEDED_KEPT_S", -1.0)
    with catalog.writing() as writer:
        writer.sweep()
    with catalog.reading() as reader:
        assert reader.chunks([old_id]) == {}
        assert list(reader.stored_vectors([b"old", b"new"])) == [b"new"]


def test_deleting_a_document_leaves_vectors_that_others_use(tmp_path: Path) -> None:
    catalog = Catalog(tmp_path)
    first = put(catalog, "a.md", "same", b"same")
    second = put(catalog, "b.md", "same", b"same")
    with catalog.writing() as writer:
        assert writer.delete_documents([first, "unknown"]) == 1
    with catalog.reading() as reader:
        assert list(reader.stored_vectors([b"same"])) == [b"same"]
    with catalog.writing() as writer:
        assert writer.delete_documents([second]) == 1
    with catalog.reading() as reader:
        assert reader.num_vectors() == 0


def test_a_store_of_a_newer_version_is_refused_with_both_numbers(tmp_path: Path) -> None:
    Catalog(tmp_path).close()
    with sqlite3.connect(tmp_path / FILE_NAME) as raw:
        raw.execute("PRAGMA user_version = 99")
    with pytest.raises(SchemaTooNewError, match="has schema version 99; this Ragstone reads up to 2: upgrade"):
        Catalog(tmp_path)


def test_another_embedder_is_refused_with_what_to_do(tmp_path: Path) -> None:
    with KnowledgeBase.open(tmp_path, WordEmbedder("first")) as opened:
        put(opened.catalog, "a.md", "text")
    with pytest.raises(EmbedderMismatchError, match=r"'first' \(64 dimensions.*'second' \(64.*use 'first' again, or"):
        KnowledgeBase.open(tmp_path, WordEmbedder("second"))
    with pytest.raises(EmbedderMismatchError, match="32 dimensions"):
        KnowledgeBase.open(tmp_path, WordEmbedder("first", dimension=32))


def test_an_empty_store_takes_another_embedder_and_a_renamed_one_is_the_same(tmp_path: Path) -> None:
    KnowledgeBase.open(tmp_path, WordEmbedder("first")).close()
    with (
        KnowledgeBase.open(tmp_path, WordEmbedder("second", dimension=32)) as opened,
        opened.catalog.writing() as writer,
    ):
        writer.add_vectors({b"d": TextVectors(b"\0" * 128)})
    renamed = WordEmbedder("second", dimension=32)
    renamed.name = "renamed"
    with KnowledgeBase.open(tmp_path, renamed) as opened, opened.catalog.reading() as reader:
        assert reader.embedder() == ("renamed", "second-32", 32)


def test_a_file_that_is_no_catalog_is_refused(tmp_path: Path) -> None:
    (tmp_path / FILE_NAME).write_bytes(b"this is not a database " * 100)
    with pytest.raises(StoreDamagedError, match="is damaged or is not a catalog"):
        Catalog(tmp_path)


def test_a_folder_that_cannot_be_made_says_where(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("x")
    with pytest.raises(StoreUnavailableError, match=r"cannot create the data folder .*file/store.*choose another"):
        Catalog(tmp_path / "file" / "store")


def test_a_catalog_that_is_a_folder_says_where(tmp_path: Path) -> None:
    (tmp_path / FILE_NAME).mkdir()
    with pytest.raises(StoreUnavailableError, match="cannot read and write"):
        Catalog(tmp_path)


def test_a_full_disk_is_named_and_loses_nothing(tmp_path: Path) -> None:
    catalog = Catalog(tmp_path)
    put(catalog, "a.md", "old")
    with catalog.writing() as writer:
        pages = writer._db.execute("PRAGMA page_count").fetchone()[0]
        # Stands for a disk without space: SQLite reports both alike.
        writer._db.execute(f"PRAGMA max_page_count = {pages + 2}")
    with pytest.raises(StoreFullError, match="no space left in"):
        put(catalog, "b.md", "x" * 100_000)
    assert texts(catalog) == ["old"]


def test_a_writer_that_waits_too_long_says_so(tmp_path: Path) -> None:
    patient, other = Catalog(tmp_path, write_wait_s=0.1), Catalog(tmp_path)
    with other.writing():
        with pytest.raises(StoreBusyError, match="another process has been writing"):
            put(patient, "a.md", "text")
        assert texts(patient) == []  # reading goes on
    put(patient, "a.md", "text")
    assert texts(other) == ["text"]


def test_a_closed_catalog_says_so_and_closes_twice(tmp_path: Path) -> None:
    catalog = Catalog(tmp_path)
    catalog.close()
    catalog.close()
    with pytest.raises(StoreClosedError, match="is closed"), catalog.reading():
        pass


def test_names_and_texts_of_any_kind_are_kept(tmp_path: Path) -> None:
    catalog = Catalog(tmp_path)
    odd = "'; DROP TABLE documents; -- 名前 🦙"
    put(catalog, odd, odd)
    assert texts(catalog) == [odd]
    assert [info.source for info in listing(catalog)] == [odd]
