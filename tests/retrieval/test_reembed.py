from pathlib import Path

import pytest

from retrieval import KnowledgeBase
from retrieval.embeddings import Vectors
from retrieval.errors import EmbedderError, EmbedderMismatchError
from retrieval.reembed import reembed
from tests.retrieval.word_embedder import WordEmbedder

PAGES = {"leave.md": "# Leave\n\nAnnual leave is asked for two weeks ahead.", "laptop.md": "# Laptop\n\nGive it back."}


class Dying(WordEmbedder):
    """Embeds one batch and then fails."""

    def embed_passages(self, texts: list[str]) -> Vectors:
        if self.calls:
            raise EmbedderError("gone")
        return super().embed_passages(texts)


@pytest.fixture
def store(tmp_path: Path) -> Path:
    """A store of a few pages, made with a model called "words"."""
    with KnowledgeBase.open(tmp_path / "store", WordEmbedder()) as knowledge_base:
        for name, text in PAGES.items():
            (tmp_path / name).write_text(text)
        knowledge_base.ingest_paths([tmp_path / name for name in PAGES], relative_to=tmp_path)
    return tmp_path / "store"


@pytest.mark.parametrize("dimension", [64, 32])
def test_a_store_gets_another_models_vectors(store: Path, dimension: int) -> None:
    other = WordEmbedder("other", dimension)
    with pytest.raises(EmbedderMismatchError, match="ragstone reembed --embedding-model other"):
        KnowledgeBase.open(store, other)
    seen: list[tuple[int, int]] = []
    assert reembed(store, other, lambda done, total: seen.append((done, total))) == 2
    assert seen == [(2, 2)]
    with KnowledgeBase.open(store, other) as knowledge_base:
        passage = knowledge_base.search("annual leave", 1)[0]
        assert passage.source == "leave.md"
        vectors = knowledge_base.snapshots.refresh().vectors
        expected = other.embed_passages([f"Leave\n{passage.text}"])[0]
        assert vectors.search(expected, 1)[1][0] == pytest.approx(1, abs=1e-6)
    with pytest.raises(EmbedderMismatchError):
        KnowledgeBase.open(store, WordEmbedder())


def test_the_old_vectors_answer_until_the_new_are_whole_and_a_broken_run_goes_on(
    store: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("retrieval.reembed.EMBED_BATCH", 1)
    with pytest.raises(EmbedderError, match="gone"):
        reembed(store, Dying("other"))
    with KnowledgeBase.open(store, WordEmbedder()) as knowledge_base:
        assert knowledge_base.search("annual leave", 1)[0].source == "leave.md"
    again = WordEmbedder("other")
    assert reembed(store, again) == 2
    assert again.calls == 1


def test_who_has_the_store_open_with_the_old_model_is_told(store: Path, tmp_path: Path) -> None:
    with KnowledgeBase.open(store, WordEmbedder()) as knowledge_base:
        reembed(store, WordEmbedder("other"))
        with pytest.raises(EmbedderMismatchError, match="restart with embedding_model set to 'other'"):
            knowledge_base.search("annual leave", 1)
        (tmp_path / "new.md").write_text("# New\n\nA page.")
        with pytest.raises(EmbedderMismatchError):
            knowledge_base.ingest_file(tmp_path / "new.md")
    # Nothing of the old model has come in.
    with KnowledgeBase.open(store, WordEmbedder("other")) as knowledge_base:
        assert [document.source for document in knowledge_base.documents()] == ["laptop.md", "leave.md"]


def test_an_empty_store_only_changes_its_model(tmp_path: Path) -> None:
    KnowledgeBase.open(tmp_path / "store", WordEmbedder()).close()
    assert reembed(tmp_path / "store", WordEmbedder("other")) == 0
    KnowledgeBase.open(tmp_path / "store", WordEmbedder("other")).close()
