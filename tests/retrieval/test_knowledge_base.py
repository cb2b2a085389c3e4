from pathlib import Path
from typing import Any

import pytest

from retrieval import Filter, KnowledgeBase, Passage
from retrieval.errors import InvalidArgumentError
from retrieval.snapshot import saved_index
from retrieval.vector_store import RagstoneVectorStore
from tests.retrieval.word_embedder import WordEmbedder

PAGE = """# Caches

Intro to caches.

## Blocks

The cache is cut into blocks of sixteen tokens.

### Eviction

The oldest block is evicted first.
"""


@pytest.fixture
def filled(knowledge_base: KnowledgeBase, tmp_path: Path) -> KnowledgeBase:
    (tmp_path / "caches.md").write_text(PAGE)
    for index in range(12):
        (tmp_path / f"filler-{index}.txt").write_text(f"Filler text number {index} about gardens and bread.")
    knowledge_base.ingest_paths([tmp_path / "caches.md"], collection="manual", relative_to=tmp_path)
    knowledge_base.ingest_paths(sorted(tmp_path.glob("filler-*.txt")), collection="fillers", relative_to=tmp_path)
    return knowledge_base


def test_a_passage_says_where_it_stands(filled: KnowledgeBase) -> None:
    best = filled.search("Which block is evicted first?")[0]
    (document,) = filled.documents("manual")
    assert best == Passage(
        document_id=document.document_id,
        chunk_id=f"{document.document_id}-1-2",
        title="Caches",
        source="caches.md",
        page=None,
        heading="Blocks > Eviction",
        text="The oldest block is evicted first.",
        score=best.score,
        collection="manual",
    )
    assert best.score == pytest.approx(1.0)


def test_what_a_search_may_find_is_told_before_it_is_made(filled: KnowledgeBase) -> None:
    private = Filter(metadata={"private": ("true", "True")})

    def may_find(*marked: str, collections: list[str] | None = None, user: str = "local") -> bool:
        return filled.may_find(marked, private, collections=collections, user=user)

    assert may_find("manual")
    assert may_find("manual", collections=["fillers", "manual"])
    assert not may_find("manual", collections=["fillers"])
    assert not may_find("manual", user="somebody-else")
    assert not may_find("absent")
    filled.ingest_bytes(b"---\nprivate: true\n---\nThe safe opens at nine.", "safe.md", "safe.md", collection="notes")
    assert may_find()
    assert may_find(collections=["notes"])
    assert not may_find(collections=["fillers", "manual"])


@pytest.mark.parametrize("version", [3.2, "3.2", (3.1, 3.2)])
def test_a_filter_finds_what_a_file_says_of_itself_as_number_or_text(filled: KnowledgeBase, version: Any) -> None:
    filled.ingest_bytes(b"---\nversion: 3.2\n---\nThe pump runs at night.", "pump.md", "pump.md", collection="notes")
    found = filled.search("pump", where=Filter(metadata={"version": version}))
    assert [passage.text for passage in found] == ["The pump runs at night."]
    assert filled.search("pump", where=Filter(metadata={"version": 3})) == []


def test_scores_fall_and_stay_within_0_and_1(filled: KnowledgeBase) -> None:
    scores = [passage.score for passage in filled.search("cache blocks", k=15)]
    assert len(scores) == 15
    assert scores == sorted(scores, reverse=True)
    assert all(0 <= score <= 1 for score in scores)


def test_several_wordings_are_fused(filled: KnowledgeBase) -> None:
    found = filled.search(["oldest eviction", "sixteen tokens", "oldest eviction"], k=2)
    assert {passage.text for passage in found} == {
        "The oldest block is evicted first.",
        "The cache is cut into blocks of sixteen tokens.",
    }


def test_filters_give_k_hits_whenever_k_exist(filled: KnowledgeBase) -> None:
    assert len(filled.search("cache blocks", k=12, collections=["fillers"])) == 12
    assert {passage.collection for passage in filled.search("cache", k=50, collections=["manual"])} == {"manual"}
    ids = [info.document_id for info in filled.documents("fillers")][:2]
    found = filled.search("cache blocks", k=5, document_ids=ids)
    assert sorted(passage.document_id for passage in found) == sorted(ids)
    assert filled.search("cache", document_ids=[]) == []
    assert filled.search("cache", collections=["unknown"], document_ids=["unknown"]) == []


def test_a_text_taken_in_twice_takes_one_place_unless_nothing_else_is_left(
    filled: KnowledgeBase, tmp_path: Path
) -> None:
    for copy in range(3):
        assert filled.ingest_file(tmp_path / "caches.md", name=f"copy-{copy}.md", collection="copies").status == "added"
    question = "Which block is evicted first?"
    texts = [passage.text for passage in filled.search(question, k=4)]
    assert len(set(texts)) == 4
    only_copies = filled.search(question, k=9, collections=["copies"])
    assert len(only_copies) == 9
    assert [passage.text for passage in only_copies[:3]] == ["The oldest block is evicted first."] * 3


def test_what_users_may_see(knowledge_base: KnowledgeBase, tmp_path: Path) -> None:
    path = tmp_path / "a.md"
    path.write_text("A text about whales.")
    knowledge_base.ensure_collection("handbook", visibility="shared")
    knowledge_base.ingest_file(path, collection="handbook")
    knowledge_base.ingest_file(path, collection="diary", owner="ada")
    knowledge_base.ingest_file(path, collection="diary", owner="bob")
    seen = {user: [info.collection for info in knowledge_base.documents(user=user)] for user in ("ada", "bob", "local")}
    assert seen == {"ada": ["diary", "handbook"], "bob": ["diary", "handbook"], "local": ["handbook"]}
    assert len(knowledge_base.search("whales", k=9, user="ada")) == 2
    assert len(knowledge_base.search("whales", k=9, user="ada", collections=["diary"])) == 1
    assert [passage.collection for passage in knowledge_base.search("whales", k=9)] == ["handbook"]
    (theirs,) = knowledge_base.documents("diary", user="bob")
    assert knowledge_base.search("whales", user="ada", document_ids=[theirs.document_id]) == []
    assert knowledge_base.delete_document(theirs.document_id, user="ada") is False
    assert knowledge_base.delete_document(theirs.document_id, user="bob") is True
    assert [(info.name, info.owner, info.visibility) for info in knowledge_base.collections("ada")] == [
        ("diary", "ada", "private"),
        ("handbook", "local", "shared"),
    ]
    knowledge_base.ensure_collection("handbook", visibility="private")
    assert len(knowledge_base.search("whales", k=9, user="ada")) == 1


def test_a_deleted_document_is_gone_at_once(filled: KnowledgeBase) -> None:
    (document,) = filled.documents("manual")
    assert filled.delete_document(document.document_id) is True
    assert filled.delete_document(document.document_id) is False
    assert filled.documents("manual") == []
    assert all(passage.collection == "fillers" for passage in filled.search("cache blocks", k=20))
    assert len(filled.search("cache blocks", k=12)) == 12


def test_odd_questions_are_answered_or_refused_clearly(filled: KnowledgeBase) -> None:
    assert filled.search("") == []
    assert filled.search([" ", "\n"]) == []
    assert len(filled.search("the of is")) == 4
    assert len(filled.search("x" * 50_000)) == 4
    assert len(filled.search("\ud800 {braces} <script> <|im_end|>")) == 4
    with pytest.raises(InvalidArgumentError, match="k is 0; ask for at least 1"):
        filled.search("cache", k=0)
    with pytest.raises(InvalidArgumentError, match="is not a collection's name"):
        filled.ingest_file("a.md", collection=" ")


def test_an_empty_store_answers_with_nothing(knowledge_base: KnowledgeBase) -> None:
    assert knowledge_base.search("anything") == []
    assert knowledge_base.documents() == []


def test_a_store_opened_again_answers_the_same_without_embedding(filled: KnowledgeBase) -> None:
    expected = filled.search("cache blocks", k=10)
    filled.close()
    embedder = WordEmbedder()
    with KnowledgeBase.open(filled.folder, embedder) as again:
        assert again.search("cache blocks", k=10) == expected
    assert embedder.calls == 0


def test_stats_give_the_numbers_of_a_status_page(filled: KnowledgeBase) -> None:
    stats = filled.stats()
    size = stats.pop("size_bytes")
    assert stats == {
        "collections": 2,
        "documents": 13,
        "chunks": 15,
        "generation": 13,
        "index": "flat (exact)",
        "embedder": "words",
        "dimension": 64,
        "schema_version": 2,
        "folder": str(filled.folder),
    }
    assert size > 10_000


def test_filters_leave_k_hits_whenever_k_are_allowed(knowledge_base: KnowledgeBase, tmp_path: Path) -> None:
    (tmp_path / "hr").mkdir()
    for number in range(30):
        (tmp_path / f"page{number}.md").write_text("# Leave\n\nAnnual leave, annual leave, annual leave.")
        knowledge_base.ingest_file(tmp_path / f"page{number}.md", name=f"page{number}.md")
    for name in ("rules.md", "forms.md"):
        (tmp_path / "hr" / name).write_text("# Else\n\nNothing that is asked for.")
    knowledge_base.ingest_paths([tmp_path / "hr"], relative_to=tmp_path)

    def sources(where: Filter) -> list[str]:
        return sorted(passage.source for passage in knowledge_base.search("annual leave", 2, where=where))

    added = {document.source: document.added_at for document in knowledge_base.documents()}
    assert sources(Filter(source="hr/*")) == ["hr/forms.md", "hr/rules.md"]
    assert sources(Filter(source="hr/r*")) == ["hr/rules.md"]
    assert sources(Filter(added_after=added["page29.md"])) == ["hr/forms.md", "hr/rules.md"]
    assert sources(Filter(added_before=added["page1.md"].replace(tzinfo=None))) == ["page0.md"]
    assert sources(Filter(source="hr/*", added_before=added["page1.md"])) == []
    for name, moment in added.items():
        assert (
            sources(Filter(source=name, added_before=moment)) == [] == sources(Filter(source=name, added_after=moment))
        )


def test_metadata_filters(knowledge_base: KnowledgeBase) -> None:
    store = RagstoneVectorStore(knowledge_base)
    metadata = [{"year": 2024, "team": "a"}, {"year": 2025, "team": "a"}, {"year": 2025, "team": "b"}, {}]
    store.add_texts(["one", "two", "three", "four"], metadata)

    def texts(**wanted: Any) -> list[str]:
        found = knowledge_base.search("one two three four", 4, where=Filter(metadata=wanted))
        return sorted(passage.text for passage in found)

    assert texts(year=2025) == ["three", "two"]
    assert texts(year=2025, team="b") == ["three"]
    assert texts(year=[2024, 2025], team=["a"]) == ["one", "two"]
    assert texts(year="2025") == []
    assert texts(colour=None) == []


def test_another_embedding_model_is_offered_where_most_documents_are_foreign_to_it(tmp_path: Path) -> None:
    embedder = WordEmbedder()
    embedder.languages = frozenset({"en"})
    pages = [
        "年假须提前两周申请，并由主管批准。",
        "笔记本电脑在最后一天归还给公司。",
        "Leave is asked for two weeks ahead of the time.",
    ]
    with KnowledgeBase.open(tmp_path / "store", embedder) as knowledge_base:
        assert knowledge_base.advice() is None
        for number, page in reversed(list(enumerate(pages))):
            (tmp_path / f"{number}.md").write_text(page)
            knowledge_base.ingest_file(tmp_path / f"{number}.md")
            assert (knowledge_base.advice() is None) == (number > 0)
        advice = knowledge_base.advice()
        assert advice is not None
        assert advice.startswith(
            "2 of 3 chunks are in languages that the embedding model words does not know (most in zh)"
        )
        knowledge_base.snapshots.save()
        saved = saved_index(knowledge_base.folder)
        assert saved is not None
        assert saved.advice == advice  # what `ragstone status` shows
        embedder.languages = None
        assert knowledge_base.advice() is None
