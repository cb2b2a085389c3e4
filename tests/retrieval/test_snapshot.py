import shutil
import time
from pathlib import Path

import pytest

from retrieval import KnowledgeBase
from retrieval import snapshot as snapshot_module
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
    vectors = folder / "vectors.faiss"
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
    monkeypatch.setattr(snapshot_module, "FORMAT", 2)
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


def test_a_large_snapshot_is_built_beside_the_searches(
    knowledge_base: KnowledgeBase, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    add(knowledge_base, tmp_path, "a.md", "A whale.")
    with KnowledgeBase.open(knowledge_base.folder, WordEmbedder()) as other:
        add(knowledge_base, tmp_path, "b.md", "Another whale.")
        monkeypatch.setattr(snapshot_module, "_INLINE_S", -1.0)  # every snapshot counts as a large one
        other.snapshots._next_refresh = 0.0
        assert texts(other) == ["A whale."]  # the old one answers at once
        deadline = time.monotonic() + 60
        while len(texts(other)) < 2 and time.monotonic() < deadline:
            time.sleep(0.01)
        assert sorted(texts(other)) == ["A whale.", "Another whale."]


def test_another_process_sees_a_change_at_its_next_search(knowledge_base: KnowledgeBase, tmp_path: Path) -> None:
    with KnowledgeBase.open(knowledge_base.folder, WordEmbedder()) as other:
        assert texts(other) == []
        other.snapshots._next_refresh = 0.0
        add(knowledge_base, tmp_path, "a.md", "A whale.")
        assert texts(other) == ["A whale."]
