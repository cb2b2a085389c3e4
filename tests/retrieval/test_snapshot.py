import os
import shutil
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import numpy as np
import pytest

from retrieval import IndexOptions, KnowledgeBase, vector_index
from retrieval import snapshot as snapshot_module
from retrieval.catalog_reader import CatalogReader
from retrieval.snapshot import SavedIndex, Snapshot, saved_index
from tests.retrieval.word_embedder import WordEmbedder


def add(knowledge_base: KnowledgeBase, tmp_path: Path, name: str, text: str) -> None:
    path = tmp_path / name
    path.write_text(text)
    assert knowledge_base.ingest_file(path).status in ("added", "updated")


def texts(knowledge_base: KnowledgeBase, query: str = "whale") -> list[str]:
    return [passage.text for passage in knowledge_base.search(query, k=20)]


def saved(folder: Path) -> list[str]:
    return sorted(path.name for path in (folder / "index").iterdir())


def test_closing_saves_one_snapshot_and_opening_reads_it(
    knowledge_base: KnowledgeBase, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    add(knowledge_base, tmp_path, "a.md", "A whale.")
    knowledge_base.snapshots.save()
    add(knowledge_base, tmp_path, "b.md", "Another whale.")
    knowledge_base.close()
    assert saved(knowledge_base.folder) == ["000000000002"]
    assert not list(knowledge_base.folder.rglob("*.pkl"))
    # What was saved is used as it is: nothing is built from the catalog.
    monkeypatch.setattr(snapshot_module, "indexed_text", None)
    with KnowledgeBase.open(knowledge_base.folder, WordEmbedder()) as again:
        assert sorted(texts(again)) == ["A whale.", "Another whale."]


def test_a_snapshot_that_was_saved_earlier_is_brought_up_to_date(knowledge_base: KnowledgeBase, tmp_path: Path) -> None:
    add(knowledge_base, tmp_path, "a.md", "First whale.")
    add(knowledge_base, tmp_path, "b.md", "Second whale.")
    knowledge_base.snapshots.save()
    add(knowledge_base, tmp_path, "c.md", "Third whale.")
    add(knowledge_base, tmp_path, "a.md", "First whale, changed.")
    knowledge_base.delete_document(next(i.document_id for i in knowledge_base.documents() if i.title == "b"))
    expected = sorted(texts(knowledge_base))
    knowledge_base.catalog.close()  # as if the process had been killed: nothing more is saved
    with KnowledgeBase.open(knowledge_base.folder, WordEmbedder()) as again:
        assert sorted(texts(again)) == expected == ["First whale, changed.", "Third whale."]


@pytest.mark.parametrize("damage", ["truncated", "flipped", "missing", "manifest", "empty"])
def test_a_damaged_index_is_built_anew_from_the_catalog_without_embedding(
    damage: str, knowledge_base: KnowledgeBase, tmp_path: Path
) -> None:
    for index in range(5):
        add(knowledge_base, tmp_path, f"{index}.md", f"Whale number {index}.")
    knowledge_base.close()
    folder = knowledge_base.folder / "index" / "000000000005"
    vectors = folder / "vectors" / "codes.npy"
    content = vectors.read_bytes()
    if damage == "truncated":
        vectors.write_bytes(content[:100])
    elif damage == "flipped":
        vectors.write_bytes(content[:-8] + bytes([content[-8] ^ 255]) + content[-7:])
    elif damage == "missing":
        vectors.unlink()
    elif damage == "manifest":
        (folder / "manifest.json").write_text("{not json")
    else:
        shutil.rmtree(folder)
        folder.mkdir()
    embedder = WordEmbedder()
    with KnowledgeBase.open(knowledge_base.folder, embedder) as again:
        assert len(texts(again)) == 5
    assert embedder.calls == 0


def test_an_index_of_another_format_is_not_used(
    knowledge_base: KnowledgeBase, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    add(knowledge_base, tmp_path, "a.md", "A whale.")
    knowledge_base.close()
    monkeypatch.setattr(snapshot_module, "FORMAT", snapshot_module.FORMAT + 1)
    with KnowledgeBase.open(knowledge_base.folder, WordEmbedder()) as again:
        assert texts(again) == ["A whale."]


def test_an_index_that_cannot_be_saved_is_no_error(knowledge_base: KnowledgeBase, tmp_path: Path) -> None:
    add(knowledge_base, tmp_path, "a.md", "A whale.")
    (knowledge_base.folder / "index").write_text("a file where the folder should be")
    knowledge_base.close()
    with KnowledgeBase.open(knowledge_base.folder, WordEmbedder()) as again:
        assert texts(again) == ["A whale."]


def test_a_search_on_an_old_snapshot_answers_from_the_old_version(
    knowledge_base: KnowledgeBase, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    add(knowledge_base, tmp_path, "a.md", "The old whale.\n\n## More\n\nOld whale again.")
    monkeypatch.setattr(knowledge_base.snapshots, "_next_refresh", float("inf"))  # no new snapshot is due
    path = tmp_path / "a.md"
    path.write_text("The new whale.")
    ingestor = knowledge_base.ingestor
    assert ingestor.ingest(path, str(path), collection="default", owner="local").status == "updated"
    assert texts(knowledge_base) == ["The old whale.", "Old whale again."]
    knowledge_base.snapshots.refresh()
    assert texts(knowledge_base) == ["The new whale."]


def test_a_document_deleted_by_another_process_is_gone_although_no_snapshot_is_due(
    knowledge_base: KnowledgeBase, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    add(knowledge_base, tmp_path, "a.md", "A whale to delete.")
    add(knowledge_base, tmp_path, "b.md", "A whale that stays.")
    monkeypatch.setattr(knowledge_base.snapshots, "_next_refresh", float("inf"))
    with KnowledgeBase.open(knowledge_base.folder, WordEmbedder()) as other:
        other.delete_document(next(i.document_id for i in other.documents() if i.title == "a"))
    assert texts(knowledge_base) == ["A whale that stays."]


def test_a_snapshot_that_takes_long_is_built_beside_the_searches(
    knowledge_base: KnowledgeBase, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    add(knowledge_base, tmp_path, "a.md", "A whale.")
    with KnowledgeBase.open(knowledge_base.folder, WordEmbedder()) as other:
        add(knowledge_base, tmp_path, "b.md", "Another whale.")
        may_end, advance = threading.Event(), other.snapshots._advance

        def slowly(reader: CatalogReader) -> Snapshot:
            assert may_end.wait(60)
            return advance(reader)

        monkeypatch.setattr(snapshot_module, "_WAIT_S", 0.1)
        monkeypatch.setattr(other.snapshots, "_advance", slowly)
        other.snapshots._next_refresh = 0.0
        assert texts(other) == ["A whale."]  # the old one answers
        may_end.set()
        deadline = time.monotonic() + 60
        while len(texts(other)) < 2 and time.monotonic() < deadline:
            time.sleep(0.01)
        assert sorted(texts(other)) == ["A whale.", "Another whale."]


def test_another_process_sees_a_change_at_its_next_search(
    knowledge_base: KnowledgeBase, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(snapshot_module, "_WAIT_S", 60.0)  # the machine may be busy
    with KnowledgeBase.open(knowledge_base.folder, WordEmbedder()) as other:
        assert texts(other) == []
        other.snapshots._next_refresh = 0.0
        add(knowledge_base, tmp_path, "a.md", "A whale.")
        assert texts(other) == ["A whale."]


def large(folder: Path, options: IndexOptions) -> KnowledgeBase:
    return KnowledgeBase.open(folder, WordEmbedder(), index=options)


def filled(folder: Path, tmp_path: Path, options: IndexOptions) -> KnowledgeBase:
    """A store with 60 documents whose index has become what its size asks for."""
    knowledge_base = large(folder, options)
    pages = tmp_path / "pages"
    pages.mkdir()
    for number in range(60):
        (pages / f"{number}.md").write_text(f"Whale number{number} of the sea.")
    knowledge_base.ingest_paths([pages])
    knowledge_base.snapshots.wait_for_compaction()
    return knowledge_base


def test_an_index_that_outgrew_its_kind_is_compacted_and_said_in_the_stats(tmp_path: Path) -> None:
    options = IndexOptions(flat_limit=50)
    with filled(tmp_path / "store", tmp_path, options) as knowledge_base:
        assert knowledge_base.stats()["index"].startswith("IVF (15 lists, ")
        (best, *_) = knowledge_base.search("number37", k=3)
        assert best.text == "Whale number37 of the sea."
        (folder,) = saved(knowledge_base.folder)
        assert folder in ("000000000060", "000000000060.001"), "before the compaction was done, or after it only"
        assert saved_index(knowledge_base.folder) == SavedIndex(f"60 chunks, {knowledge_base.stats()['index']}", None)


def test_the_index_is_told_as_large_as_it_is_and_not_as_it_was_saved(tmp_path: Path) -> None:
    assert saved_index(tmp_path / "none") is None
    (tmp_path / "one.md").write_text("# One\n\nA whale.")
    (tmp_path / "two.md").write_text("# Two\n\nA bat.")
    with large(tmp_path / "store", IndexOptions()) as knowledge_base:
        knowledge_base.ingest_file(tmp_path / "one.md")
        assert saved_index(knowledge_base.folder) == SavedIndex("1 chunks, not saved yet", None)
        knowledge_base.snapshots.save()
        knowledge_base.ingest_file(tmp_path / "two.md")
        assert saved_index(knowledge_base.folder) == SavedIndex("2 chunks, flat (exact)", None)


def test_inverted_lists_are_read_again_at_the_next_start(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    options = IndexOptions(flat_limit=50)
    filled(tmp_path / "store", tmp_path, options).close()
    monkeypatch.setattr(vector_index, "train", None)  # nothing is trained again
    with large(tmp_path / "store", options) as again:
        assert again.stats()["index"].startswith("IVF (15 lists, ")
        assert again.search("number8", k=1)[0].text == "Whale number8 of the sea."


def test_changes_of_a_large_index_are_found_at_once_and_kept(tmp_path: Path) -> None:
    options = IndexOptions(flat_limit=50)
    knowledge_base = filled(tmp_path / "store", tmp_path, options)
    add(knowledge_base, tmp_path, "late.md", "A late whale comes.")
    gone = next(info for info in knowledge_base.documents() if "number8 " in _text(knowledge_base, info.document_id))
    knowledge_base.delete_document(gone.document_id)
    for opened in (knowledge_base, large(tmp_path / "store", options)):
        with opened:
            found = texts(opened, "late number8 whale")
            assert found[0] == "A late whale comes."
            assert "Whale number8 of the sea." not in found


def test_a_large_index_that_was_damaged_is_made_anew(tmp_path: Path) -> None:
    options = IndexOptions(flat_limit=50)
    filled(tmp_path / "store", tmp_path, options).close()
    (codes,) = (tmp_path / "store" / "index").rglob("codes.npy")
    content = bytearray(codes.read_bytes())
    content[-1000] ^= 1
    codes.write_bytes(content)
    with large(tmp_path / "store", options) as again:
        again.snapshots.wait_for_compaction()
        assert again.stats()["index"].startswith("IVF (15 lists, ")
        assert again.search("number8", k=1)[0].text == "Whale number8 of the sea."


def test_another_vector_format_is_made_from_the_catalog_and_not_from_the_old_format(tmp_path: Path) -> None:
    filled(tmp_path / "store", tmp_path, IndexOptions("int8")).close()
    with large(tmp_path / "store", IndexOptions()) as exact, exact.catalog.reading() as reader:
        snapshot = exact.snapshots.current(reader)
        vectors = snapshot.vectors.vectors_of(np.arange(60))
        stored = {row[0]: np.frombuffer(row[4], "<f4") for row in reader.chunk_inputs(snapshot.chunk_ids.tolist())}
    np.testing.assert_array_equal(vectors, [stored[id_] for id_ in snapshot.chunk_ids.tolist()])


def test_a_compaction_that_fails_leaves_the_old_index_answering(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(*_: object) -> None:
        raise MemoryError("no room")

    monkeypatch.setattr(vector_index, "measured_budgets", fail)
    with filled(tmp_path / "store", tmp_path, IndexOptions(flat_limit=50)) as knowledge_base:
        assert knowledge_base.stats()["index"] == "flat (exact)"
        assert knowledge_base.search("number8", k=1)[0].text == "Whale number8 of the sea."


def test_searches_go_on_while_documents_come_and_the_index_is_compacted(tmp_path: Path) -> None:
    for number in range(30):
        (tmp_path / f"{number}.md").write_text(f"Whale number{number} of the sea.")
    kinds: set[str] = set()
    with large(tmp_path / "store", IndexOptions(flat_limit=10)) as knowledge_base:
        add(knowledge_base, tmp_path, "first.md", "The first whale.")
        done = threading.Event()

        def search_until_done() -> int:
            num = 0
            while not done.is_set():
                assert texts(knowledge_base, "first")[0] == "The first whale."
                kinds.add(knowledge_base.stats()["index"].partition(" ")[0])
                num += 1
            return num

        with ThreadPoolExecutor(3) as threads:
            searches = [threads.submit(search_until_done) for _ in range(3)]
            try:
                for number in range(30):
                    knowledge_base.ingest_file(tmp_path / f"{number}.md")
                knowledge_base.snapshots.wait_for_compaction()
            finally:
                done.set()
        assert all(search.result() for search in searches)
        assert kinds <= {"flat", "IVF"}
        assert knowledge_base.stats()["index"].startswith("IVF")
        assert len(knowledge_base.search("whale", k=40)) == 31


def test_files_that_a_killed_process_left_are_removed(knowledge_base: KnowledgeBase, tmp_path: Path) -> None:
    index = knowledge_base.folder / "index"
    for name in (".000000000001.99.tmp", ".000000000002.99.tmp"):
        (index / name).mkdir(parents=True)
    os.utime(index / ".000000000001.99.tmp", (0, 0))
    add(knowledge_base, tmp_path, "a.md", "A whale.")
    knowledge_base.snapshots.save()
    assert saved(knowledge_base.folder) == [".000000000002.99.tmp", "000000000001"]


def _text(knowledge_base: KnowledgeBase, document_id: str) -> str:
    return knowledge_base.search("whale", k=1, document_ids=[document_id])[0].text
