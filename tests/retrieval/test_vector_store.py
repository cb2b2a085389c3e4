from collections.abc import Iterator
from pathlib import Path

import pytest
from langchain_core.documents import Document
from langchain_core.embeddings import DeterministicFakeEmbedding
from langchain_core.vectorstores import VectorStore
from langchain_tests.integration_tests import VectorStoreIntegrationTests

from retrieval import IndexOptions, KnowledgeBase, LangChainEmbedder, vector_index
from retrieval.errors import InvalidArgumentError, InvalidVectorError
from retrieval.vector_store import RagstoneVectorStore
from tests.retrieval.word_embedder import WordEmbedder


class TestStandard(VectorStoreIntegrationTests):
    @pytest.fixture
    def vectorstore(self, tmp_path: Path) -> Iterator[VectorStore]:  # type: ignore[override]
        with KnowledgeBase.open(tmp_path, LangChainEmbedder(self.get_embeddings())) as knowledge_base:
            yield RagstoneVectorStore(knowledge_base)


class TestStandardInvertedLists(TestStandard):
    """The same over an index that is compacted into inverted lists whenever there is something in it."""

    @pytest.fixture
    def vectorstore(self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[VectorStore]:  # type: ignore[override]
        monkeypatch.setattr(vector_index, "_EXACT_COMPONENTS", 0)
        embedder = LangChainEmbedder(self.get_embeddings())
        with KnowledgeBase.open(tmp_path, embedder, index=IndexOptions(flat_limit=0)) as knowledge_base:
            yield RagstoneVectorStore(knowledge_base)


class TestStandardQdrant(TestStandard):
    """The same with the vectors in Qdrant, in its local mode."""

    @pytest.fixture
    def vectorstore(self, tmp_path: Path) -> Iterator[VectorStore]:  # type: ignore[override]
        embedder = LangChainEmbedder(self.get_embeddings())
        options = IndexOptions(qdrant=str(tmp_path / "qdrant"))
        with KnowledgeBase.open(tmp_path / "store", embedder, index=options) as knowledge_base:
            yield RagstoneVectorStore(knowledge_base)


@pytest.fixture(params=["flat", "ivf", "qdrant"])
def store(
    request: pytest.FixtureRequest, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> Iterator[RagstoneVectorStore]:
    """An empty store; everything below holds for every kind of index."""
    if request.param == "ivf":
        monkeypatch.setattr(vector_index, "_EXACT_COMPONENTS", 0)
    options = {
        "flat": IndexOptions(),
        "ivf": IndexOptions(flat_limit=0),
        "qdrant": IndexOptions(qdrant=str(tmp_path / "qdrant")),
    }[request.param]
    with KnowledgeBase.open(tmp_path / "store", WordEmbedder(), index=options) as knowledge_base:
        yield RagstoneVectorStore(knowledge_base)


def texts(documents: list[Document]) -> list[str]:
    return [document.page_content for document in documents]


def test_a_filter_that_matches_one_in_a_hundred_still_gives_k_hits(store: RagstoneVectorStore) -> None:
    metadatas = [{"rare": index % 100 == 0, "number": index} for index in range(500)]
    store.add_texts([f"whale number {index}" for index in range(500)], metadatas)
    store.knowledge_base.snapshots.wait_for_compaction()
    found = store.similarity_search("whale", k=4, filter={"rare": True})
    assert len(found) == 4
    assert {document.metadata["number"] % 100 for document in found} == {0}
    assert len(store.similarity_search("whale", k=10, filter={"rare": True})) == 5
    two = store.similarity_search("whale", k=10, filter={"number": [3, 4, 9999], "rare": False})
    assert sorted(document.metadata["number"] for document in two) == [3, 4]


def test_a_filter_sees_what_changed_since_it_was_last_used(store: RagstoneVectorStore) -> None:
    store.add_texts(["whale", "bread"], [{"n": 1}, {"n": 2}], ids=["a", "b"])
    assert texts(store.similarity_search("x", filter={"n": 1})) == ["whale"]
    assert texts(store.similarity_search("x", filter={"n": 1})) == ["whale"]
    store.add_texts(["whale song", "bread"], [{"n": 1}, {"n": 1}], ids=["c", "b"])
    assert sorted(texts(store.similarity_search("x", filter={"n": 1}))) == ["bread", "whale", "whale song"]
    store.delete(["a"])
    assert sorted(texts(store.similarity_search("x", filter={"n": [1]}))) == ["bread", "whale song"]
    assert texts(store.similarity_search("x", filter={"n": "1"})) == []


def test_filters_match_values_of_every_kind_and_keys_of_any_spelling(store: RagstoneVectorStore) -> None:
    metadatas = [
        {"lang": "en", 'odd "key".$[0]': 1.5, "none": None},
        {"lang": "de", 'odd "key".$[0]': 2},
        {"lang": "fr"},
    ]
    store.add_texts(["one", "two", "three"], metadatas)
    assert texts(store.similarity_search("x", filter={"lang": "de"})) == ["two"]
    assert texts(store.similarity_search("x", filter={'odd "key".$[0]': 1.5})) == ["one"]
    assert texts(store.similarity_search("x", filter={"none": None})) == ["one"]
    assert texts(store.similarity_search("x", filter={"lang": "it"})) == []
    assert texts(store.similarity_search("x", filter={"missing": 1})) == []
    assert len(store.similarity_search("x", filter={})) == 3
    with pytest.raises(InvalidArgumentError, match="give a string, number, boolean or None"):
        store.similarity_search("x", filter={"lang": {"$eq": "en"}})


def test_unknown_options_are_refused_and_not_ignored(store: RagstoneVectorStore) -> None:
    with pytest.raises(TypeError, match=r"unknown options \['where'\]"):
        store.similarity_search("x", where={"a": 1})
    with pytest.raises(TypeError, match="unknown options"):
        store.add_texts(["x"], batch_size=3)


def test_scores_are_cosines_and_relevance_stays_within_0_and_1(store: RagstoneVectorStore) -> None:
    store.add_texts(["whale song", "opposite matters", "bread"])
    (best, score), *others = store.similarity_search_with_score("whale song", k=3)
    assert best.page_content == "whale song"
    assert score == pytest.approx(1.0, abs=1e-5)
    assert all(-1 <= other < 0.9 for _, other in others)
    relevance = store.similarity_search_with_relevance_scores("whale song", k=3)
    assert all(0 <= value <= 1 for _, value in relevance)
    assert relevance[0][1] == pytest.approx(1.0, abs=1e-5)


def test_search_by_vector_refuses_nan_and_other_dimensions(store: RagstoneVectorStore) -> None:
    store.add_texts(["whale", "bread"])
    vector = store.embeddings.embed_query("whale")
    assert texts(store.similarity_search_by_vector(vector, k=1)) == ["whale"]
    with pytest.raises(InvalidVectorError, match="NaN"):
        store.similarity_search_by_vector([float("nan")] * 64)
    with pytest.raises(InvalidVectorError, match=r"\[1, 3\]"):
        store.similarity_search_by_vector([1.0, 2.0, 3.0])
    with pytest.raises(InvalidArgumentError, match="k is 0"):
        store.similarity_search("whale", k=0)


def test_diverse_results_prefer_what_is_new(store: RagstoneVectorStore) -> None:
    store.add_texts(["whale song sea", "whale song sea !", "whale ship"])
    assert texts(store.similarity_search("whale song sea", k=2)) == ["whale song sea", "whale song sea !"]
    found = store.max_marginal_relevance_search("whale song sea", k=2, fetch_k=3, lambda_mult=0.3)
    assert texts(found) == ["whale song sea", "whale ship"]


def test_documents_come_back_with_id_text_and_metadata(store: RagstoneVectorStore) -> None:
    metadata = {"title": "T", "page": 3, "tags": ["a", "b"], "deep": {"x": None}, "text": "{braces} <b> \ud800"}
    (id_,) = store.add_documents([Document(page_content="whale", metadata=metadata)])
    assert store.get_by_ids([id_, "unknown"]) == [Document(id=id_, page_content="whale", metadata=metadata)]
    passage = store.knowledge_base.search("whale")[0]
    assert (passage.title, passage.page, passage.source) == ("T", 3, id_)


def test_of_a_repeated_id_the_last_text_counts(store: RagstoneVectorStore) -> None:
    assert store.add_texts(["first", "second"], ids=["a", "a"]) == ["a", "a"]
    assert texts(store.get_by_ids(["a"])) == ["second"]
    assert len(store.similarity_search("first", k=9)) == 1


def test_what_cannot_be_stored_is_refused_and_nothing_goes_in(store: RagstoneVectorStore) -> None:
    with pytest.raises(InvalidArgumentError, match="is not JSON"):
        store.add_texts(["a", "b"], [{}, {"object": object()}])
    with pytest.raises(InvalidArgumentError, match="2 texts but 1 metadatas"):
        store.add_texts(["a", "b"], [{}])
    with pytest.raises(InvalidArgumentError, match="1 texts but 2 ids"):
        store.add_texts(["a"], ids=["1", "2"])
    assert store.similarity_search("a") == []
    assert store.add_texts([]) == []


def test_deleting_without_ids_empties_this_collection_only(knowledge_base: KnowledgeBase) -> None:
    one = RagstoneVectorStore(knowledge_base, collection="one")
    other = RagstoneVectorStore(knowledge_base, collection="other")
    one.add_texts(["whale", "bread"], ids=["1", "2"])
    other.add_texts(["whale"], ids=["1"])
    assert one.delete() is True
    assert one.similarity_search("whale") == []
    assert texts(other.similarity_search("whale")) == ["whale"]


def test_from_texts_makes_a_store_that_can_be_opened_again(tmp_path: Path) -> None:
    embedding = DeterministicFakeEmbedding(size=6)
    made = RagstoneVectorStore.from_texts(["a", "b"], embedding, [{"n": 1}, {"n": 2}], ids=["x", "y"], folder=tmp_path)
    assert made.embeddings is embedding
    made.knowledge_base.close()
    with KnowledgeBase.open(tmp_path, LangChainEmbedder(embedding)) as again:
        assert texts(RagstoneVectorStore(again).similarity_search("a", k=1)) == ["a"]
    temporary = RagstoneVectorStore.from_texts([], embedding)
    assert temporary.similarity_search("a") == []


def test_as_retriever_with_a_filter(store: RagstoneVectorStore) -> None:
    store.add_texts(["whale", "whale too", "bread"], [{"n": 1}, {"n": 2}, {"n": 2}])
    retriever = store.as_retriever(search_kwargs={"k": 3, "filter": {"n": 2}})
    assert texts(retriever.invoke("whale")) == ["whale too", "bread"]


def test_passages_of_files_are_found_too_and_say_where_they_stand(tmp_path: Path) -> None:
    (tmp_path / "page.md").write_text("# Page\n\n## Sea\n\nA whale.\n\n## Land\n\nBread.")
    with KnowledgeBase.open(tmp_path / "store", WordEmbedder()) as knowledge_base:
        result = knowledge_base.ingest_file(tmp_path / "page.md", name="page.md")
        (document,) = RagstoneVectorStore(knowledge_base).similarity_search("a whale", k=1)
    assert document.id == f"{result.document_id}-1-0"
    assert document.page_content == "A whale."
    assert document.metadata == {"title": "Page", "source": "page.md", "page": None, "heading": "Sea"}
