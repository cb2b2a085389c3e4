"""Fixtures of the retrieval tests: the real embedder once a session, and empty stores with a fast one."""

from collections.abc import Iterator
from pathlib import Path

import pytest

from retrieval import Embedder, KnowledgeBase
from tests.retrieval.word_embedder import WordEmbedder


@pytest.fixture(scope="session")
def embedder(embedding_model_path: Path) -> Embedder:
    """The real MiniLM."""
    return Embedder(embedding_model_path)


@pytest.fixture
def knowledge_base(tmp_path: Path) -> Iterator[KnowledgeBase]:
    """An empty store with a fast embedder that knows words, not meaning."""
    with KnowledgeBase.open(tmp_path / "store", WordEmbedder()) as opened:
        yield opened
