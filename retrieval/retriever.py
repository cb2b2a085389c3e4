"""The knowledge base as a LangChain retriever: a question in, documents with the passages' metadata out."""

from collections.abc import Sequence
from typing import Any

from langchain_core.callbacks import CallbackManagerForRetrieverRun
from langchain_core.documents import Document
from langchain_core.retrievers import BaseRetriever
from pydantic import ConfigDict, Field

from retrieval.knowledge_base import KnowledgeBase
from retrieval.records import Passage


class RagstoneRetriever(BaseRetriever):
    """Hybrid search as a runnable: `RagstoneRetriever(knowledge_base=kb, k=4).invoke("What does TTFT measure?")`.

    `k`, `collections` and `document_ids` may also be given for one call: `invoke(question, k=2)`.
    """

    model_config = ConfigDict(arbitrary_types_allowed=True)

    knowledge_base: KnowledgeBase
    k: int = Field(default=4, ge=1)
    collections: Sequence[str] | None = None
    document_ids: Sequence[str] | None = None
    user: str = "local"

    def _get_relevant_documents(
        self,
        query: str,
        *,
        run_manager: CallbackManagerForRetrieverRun,
        k: int | None = None,
        collections: Sequence[str] | None = None,
        document_ids: Sequence[str] | None = None,
        **unknown: Any,
    ) -> list[Document]:
        if unknown:
            # BaseRetriever passes on whatever it is given; an option ignored in silence would look as if it worked.
            raise TypeError(f"unknown options {sorted(unknown)}; known: collections, document_ids, k")
        passages = self.knowledge_base.search(
            query,
            self.k if k is None else k,
            collections=self.collections if collections is None else collections,
            document_ids=self.document_ids if document_ids is None else document_ids,
            user=self.user,
        )
        return [passage_document(passage) for passage in passages]


def passage_document(passage: Passage) -> Document:
    """A passage as a LangChain document; all fields but the text become metadata."""
    return Document(
        id=passage.chunk_id,
        page_content=passage.text,
        metadata={
            "document_id": passage.document_id,
            "chunk_id": passage.chunk_id,
            "title": passage.title,
            "source": passage.source,
            "page": passage.page,
            "heading": passage.heading,
            "score": passage.score,
            "collection": passage.collection,
        },
    )
