"""Documents in, passages out: loading, chunking, embedding, indexes, fusion and the LangChain retriever.

Start at `KnowledgeBase`. The LangChain classes are in `retrieval.vector_store` and `retrieval.retriever`.

What is named here is imported when it is first asked for: who needs the errors or the words of a text alone does not
wait for indexes and loaders.
"""

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from retrieval import errors
    from retrieval.embeddings import Embedder, LangChainEmbedder, PassageEmbedder
    from retrieval.knowledge_base import KnowledgeBase
    from retrieval.records import CollectionInfo, DocumentInfo, Filter, IngestResult, Passage
    from retrieval.vector_index import IndexOptions

__all__ = [
    "CollectionInfo",
    "DocumentInfo",
    "Embedder",
    "Filter",
    "IndexOptions",
    "IngestResult",
    "KnowledgeBase",
    "LangChainEmbedder",
    "Passage",
    "PassageEmbedder",
    "errors",
]

_MODULES = {
    "retrieval.embeddings": ("Embedder", "LangChainEmbedder", "PassageEmbedder"),
    "retrieval.knowledge_base": ("KnowledgeBase",),
    "retrieval.records": ("CollectionInfo", "DocumentInfo", "Filter", "IngestResult", "Passage"),
    "retrieval.vector_index": ("IndexOptions",),
}


def __getattr__(name: str) -> Any:
    for module, names in _MODULES.items():
        if name in names:
            return getattr(import_module(module), name)
    raise AttributeError(f"module 'retrieval' has no attribute {name!r}")
