"""Documents in, passages out: loading, chunking, embedding, indexes, fusion and the LangChain retriever.

Start at `KnowledgeBase`. The LangChain classes are in `retrieval.vector_store` and `retrieval.retriever`.
"""

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
