from pathlib import Path
from typing import Any

import pytest
from langchain_core.documents import Document
from langchain_tests.integration_tests import RetrieversIntegrationTests

from retrieval import KnowledgeBase
from retrieval.retriever import RagstoneRetriever


def fill(knowledge_base: KnowledgeBase, folder: Path) -> None:
    for number in range(5):
        (folder / f"{number}.md").write_text(f"# Page {number}\n\n## Part\n\nWhale number {number}.")
        collection = "odd" if number % 2 else "even"
        assert knowledge_base.ingest_file(folder / f"{number}.md", name=f"{number}.md", collection=collection)


class TestStandard(RetrieversIntegrationTests):
    @pytest.fixture(autouse=True)
    def _filled(self, knowledge_base: KnowledgeBase, tmp_path: Path) -> None:
        fill(knowledge_base, tmp_path)
        self.knowledge_base = knowledge_base

    @property
    def retriever_constructor(self) -> type[RagstoneRetriever]:
        return RagstoneRetriever

    @property
    def retriever_constructor_params(self) -> dict[str, Any]:
        return {"knowledge_base": self.knowledge_base}

    @property
    def retriever_query_example(self) -> str:
        return "whale number"


def test_documents_carry_the_passages_metadata(knowledge_base: KnowledgeBase, tmp_path: Path) -> None:
    fill(knowledge_base, tmp_path)
    (document,) = RagstoneRetriever(knowledge_base=knowledge_base, k=1).invoke("whale number 3")
    (passage,) = knowledge_base.search("whale number 3", k=1)
    assert document == Document(
        id=passage.chunk_id,
        page_content="Whale number 3.",
        metadata={
            "document_id": passage.document_id,
            "chunk_id": passage.chunk_id,
            "title": "Page 3",
            "source": "3.md",
            "page": None,
            "heading": "Part",
            "score": passage.score,
            "collection": "odd",
        },
    )


def test_collections_and_documents_narrow_it_by_field_or_by_call(knowledge_base: KnowledgeBase, tmp_path: Path) -> None:
    fill(knowledge_base, tmp_path)
    retriever = RagstoneRetriever(knowledge_base=knowledge_base, k=9, collections=["even"])
    assert sorted(document.metadata["source"] for document in retriever.invoke("whale")) == ["0.md", "2.md", "4.md"]
    called = retriever.invoke("whale", collections=["odd"])
    assert sorted(document.metadata["source"] for document in called) == ["1.md", "3.md"]
    ids = [info.document_id for info in knowledge_base.documents("even")][:1]
    assert len(retriever.invoke("whale", document_ids=ids)) == 1


def test_unknown_options_are_refused(knowledge_base: KnowledgeBase) -> None:
    with pytest.raises(TypeError, match=r"unknown options \['top_k'\]; known: collections, document_ids, k"):
        RagstoneRetriever(knowledge_base=knowledge_base).invoke("whale", top_k=3)
