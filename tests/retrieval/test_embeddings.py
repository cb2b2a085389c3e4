import json
import shutil
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import numpy as np
import pytest
from langchain_core.embeddings import DeterministicFakeEmbedding

from retrieval import Embedder, LangChainEmbedder
from retrieval.embeddings import unit_vectors
from retrieval.errors import EmbedderError, InvalidVectorError

TEXTS = ["A cat sits on the mat.", "Kittens are young cats.", "The stock market fell sharply."]


@pytest.fixture(scope="module")
def embedder(embedding_model_path: Path) -> Embedder:
    """One that has not embedded so much that OpenVINO, where it is installed, computes in its place."""
    return Embedder(embedding_model_path)


def test_vectors_are_float32_of_length_one_and_near_for_near_meanings(embedder: Embedder) -> None:
    vectors = embedder.embed_passages(TEXTS)
    assert vectors.dtype == np.float32
    assert vectors.shape == (3, 384)
    assert np.linalg.norm(vectors, axis=1) == pytest.approx([1, 1, 1], abs=1e-5)
    assert vectors[0] @ vectors[1] > vectors[0] @ vectors[2] + 0.2


def test_vectors_equal_those_of_plain_transformers(embedder: Embedder, embedding_model_path: Path) -> None:
    import torch
    from transformers import AutoModel, AutoTokenizer

    tokenizer = AutoTokenizer.from_pretrained(str(embedding_model_path), local_files_only=True)
    model = AutoModel.from_pretrained(str(embedding_model_path), local_files_only=True).eval()
    texts = [*TEXTS, "word " * 600]
    expected = []
    with torch.no_grad():
        for text in texts:
            inputs = tokenizer(text, truncation=True, max_length=256, return_tensors="pt")
            mean = model(**inputs).last_hidden_state[0].mean(dim=0)
            expected.append((mean / mean.norm()).numpy())
    np.testing.assert_allclose(embedder.embed_passages(texts), np.stack(expected), atol=2e-5)


def test_a_vector_does_not_depend_on_its_neighbours_in_the_batch(embedder: Embedder) -> None:
    texts = [f"Sentence {index} " + "with more words " * (index % 7) for index in range(40)]
    together = embedder.embed_passages(texts)
    np.testing.assert_allclose(together[7], embedder.embed_query(texts[7]), atol=2e-5)
    np.testing.assert_allclose(together[39], embedder.embed_query(texts[39]), atol=2e-5)


def test_what_the_store_asks_of_it(embedder: Embedder) -> None:
    assert embedder.name == "all-minilm-l6-v2"
    assert embedder.dimension == 384
    assert embedder.max_tokens == 254
    assert embedder.count_tokens("Tokenization of H100's cache.") == 9  # token ##ization of h ##100 ' s cache .
    assert len(embedder.fingerprint) == 64


def test_odd_texts_have_vectors_too(embedder: Embedder) -> None:
    vectors = embedder.embed_passages(["", "\ud800 lone surrogate", "\x00", "🦙" * 400])
    assert np.isfinite(vectors).all()
    assert embedder.embed_passages([]).shape == (0, 384)


def test_many_threads_may_embed_at_once(embedder: Embedder) -> None:
    expected = embedder.embed_passages(TEXTS)
    with ThreadPoolExecutor(8) as pool:
        for vectors in pool.map(embedder.embed_passages, [TEXTS] * 16):
            np.testing.assert_allclose(vectors, expected, atol=2e-5)


def test_it_is_a_langchain_embeddings(embedder: Embedder) -> None:
    view = embedder.as_langchain()
    assert view.embed_query(TEXTS[0]) == pytest.approx(embedder.embed_query(TEXTS[0]).tolist(), abs=2e-5)
    assert [len(vector) for vector in view.embed_documents(TEXTS)] == [384, 384, 384]


def test_the_fingerprint_is_of_the_weights_not_of_the_folder(embedding_model_path: Path, tmp_path: Path) -> None:
    copy = tmp_path / "renamed"
    shutil.copytree(embedding_model_path, copy)
    original = Embedder(embedding_model_path).fingerprint
    assert Embedder(copy).name == "renamed"
    assert Embedder(copy).fingerprint == original
    weights = bytearray((copy / "model.safetensors").read_bytes())
    weights[-1] ^= 1
    (copy / "model.safetensors").write_bytes(weights)
    assert Embedder(copy).fingerprint != original


def test_a_folder_that_is_no_model_is_refused_with_what_is_missing(tmp_path: Path) -> None:
    with pytest.raises(EmbedderError, match=r"cannot read config\.json"):
        Embedder(tmp_path / "missing")
    (tmp_path / "config.json").write_text(json.dumps({"hidden_size": 8}))
    with pytest.raises(EmbedderError, match=r"give a folder with config\.json, tokenizer\.json and model\.safetensors"):
        Embedder(tmp_path)
    (tmp_path / "model.safetensors").write_bytes(b"x")
    with pytest.raises(EmbedderError, match=r"tokenizer\.json"):
        Embedder(tmp_path)


def test_langchain_embeddings_serve_as_an_embedder() -> None:
    adapted = LangChainEmbedder(DeterministicFakeEmbedding(size=6))
    assert (adapted.name, adapted.dimension) == ("DeterministicFakeEmbedding", 6)
    assert np.linalg.norm(adapted.embed_passages(["a", "b"]), axis=1) == pytest.approx([1, 1], abs=1e-5)
    assert LangChainEmbedder(DeterministicFakeEmbedding(size=6), name="other").fingerprint != adapted.fingerprint


def test_unit_vectors_refuse_what_is_not_a_vector() -> None:
    assert unit_vectors([[3.0, 4.0], [0.0, 0.0]], 2).tolist() == [[pytest.approx(0.6), pytest.approx(0.8)], [0.0, 0.0]]
    with pytest.raises(InvalidVectorError, match="NaN"):
        unit_vectors([[float("nan"), 1.0]], 2)
    with pytest.raises(InvalidVectorError, match=r"\[1, 3\]"):
        unit_vectors([[1.0, 2.0, 3.0]], 2)


def test_an_embedder_says_which_languages_it_knows(embedder: Embedder, tmp_path: Path) -> None:
    assert embedder.languages == {"en"}
    folder = tmp_path / "model"
    shutil.copytree(embedder._path, folder)
    card = folder / "README.md"
    card.unlink(missing_ok=True)  # what the package index has comes without one
    assert Embedder(folder).languages == {"en"}  # from its vocabulary
    card.write_text("---\nlanguage:\n- de\n- en\n---\n# Model\n")
    assert Embedder(folder).languages == {"de", "en"}
    card.write_text("---\nlanguage: multilingual\n---\n")
    assert Embedder(folder).languages is None
    assert LangChainEmbedder(DeterministicFakeEmbedding(size=8)).languages is None


@pytest.mark.parametrize(
    ("name", "config", "query", "passage"),
    [
        ("model", {"prompts": {"query": "ask: ", "document": "text: "}}, "ask: cats", "text: cats"),
        ("multilingual-e5-small", {}, "query: cats", "passage: cats"),
        ("multilingual-e5-small", {"prompts": {"query": "q: ", "passage": "p: "}}, "q: cats", "p: cats"),
        ("bge-small-en-v1.5", {}, "Represent this sentence for searching relevant passages: cats", "cats"),
        ("model", {}, "cats", "cats"),
    ],
)
def test_prefixes_are_those_of_the_model(
    embedding_model_path: Path, tmp_path: Path, name: str, config: dict, query: str, passage: str
) -> None:
    folder = tmp_path / name
    shutil.copytree(embedding_model_path, folder)
    (folder / "config_sentence_transformers.json").write_text(json.dumps(config))
    plain, prefixed = Embedder(embedding_model_path), Embedder(folder)
    np.testing.assert_allclose(prefixed.embed_query("cats"), plain.embed_query(query), atol=1e-6)
    np.testing.assert_allclose(prefixed.embed_passages(["cats"])[0], plain.embed_query(passage), atol=1e-6)
    # Vectors made with a prefix are not those made without it.
    assert (prefixed.fingerprint == plain.fingerprint) == (query == passage == "cats")


def test_queries_of_many_threads_are_embedded_together(embedder: Embedder) -> None:
    embedder.load()
    texts = [f"What is {number} plus {number}?" for number in range(24)]
    with ThreadPoolExecutor(24) as pool:
        together = list(pool.map(embedder.embed_query, texts))
    np.testing.assert_allclose(together, embedder.embed_passages(texts), atol=2e-5)
