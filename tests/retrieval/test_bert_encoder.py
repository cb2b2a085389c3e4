"""The encoder of our own gives the vectors of sentence-transformers, and leaves to it what it does not recognise."""

import json
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from sentence_transformers import SentenceTransformer

from retrieval import Embedder
from retrieval.bert_encoder import BertEncoder
from retrieval.errors import EmbedderError

TEXTS = [
    "A cat sits on the mat.",
    "What does TTFT measure?",
    "",
    "naïve café, 北京, 🦙",
    "word " * 600,
    *(f"Sentence {index} " + "with some more words " * (index % 9) for index in range(30)),
]


def change_json(path: Path, change: Callable[[Any], Any]) -> None:
    path.write_text(json.dumps(change(json.loads(path.read_text()))))


@pytest.fixture
def folder(embedding_model_path: Path, tmp_path: Path) -> Path:
    copy = tmp_path / "model"
    shutil.copytree(embedding_model_path, copy)
    return copy


@pytest.mark.parametrize("mode", ["pooling_mode_mean_tokens", "pooling_mode_cls_token"])
def test_vectors_equal_those_of_sentence_transformers(folder: Path, mode: str) -> None:
    change_json(
        folder / "1_Pooling" / "config.json",
        lambda config: {key: key == mode if key.startswith("pooling_mode") else value for key, value in config.items()},
    )
    library = SentenceTransformer(str(folder), device="cpu", local_files_only=True)
    library.max_seq_length = 256
    expected = library.encode(TEXTS, normalize_embeddings=True)
    assert BertEncoder.read(folder, window=256, device="cpu") is not None
    ours = Embedder(folder).embed_passages(TEXTS)
    assert float((ours * expected).sum(1).min()) > 0.99999


@pytest.mark.parametrize(
    ("name", "change"),
    [
        ("config.json", lambda config: {**config, "model_type": "mpnet"}),
        ("config.json", lambda config: {**config, "hidden_act": "relu"}),
        ("config.json", lambda config: {**config, "position_embedding_type": "relative_key"}),
        ("modules.json", lambda modules: [*modules, {"idx": 3, "name": "3", "path": "3", "type": "x.Dense"}]),
        ("1_Pooling/config.json", lambda config: {**config, "pooling_mode_max_tokens": True}),
    ],
)
def test_what_it_does_not_recognise_is_left_to_the_library(
    folder: Path, name: str, change: Callable[[Any], Any]
) -> None:
    change_json(folder / name, change)
    assert BertEncoder.read(folder, window=256, device="cpu") is None


def test_the_library_serves_other_models(folder: Path) -> None:
    plain = Embedder(folder).embed_passages(TEXTS[:3])
    change_json(folder / "modules.json", lambda modules: [*modules, {**modules[2], "idx": 3, "name": "3"}])
    assert BertEncoder.read(folder, window=256, device="cpu") is None
    np.testing.assert_allclose(Embedder(folder).embed_passages(TEXTS[:3]), plain, atol=2e-5)


def test_broken_weights_are_named(folder: Path) -> None:
    weights = folder / "model.safetensors"
    weights.write_bytes(weights.read_bytes()[:1000])
    with pytest.raises(EmbedderError, match=r"cannot load the embedding model in .*model"):
        Embedder(folder).load()


def test_8_bits_give_vectors_near_the_others_as_another_model(folder: Path) -> None:
    ours, coarse = Embedder(folder), Embedder(folder, int8=True)
    assert coarse.name == "model:int8"
    assert coarse.fingerprint != ours.fingerprint
    assert 0.97 < float((ours.embed_passages(TEXTS) * coarse.embed_passages(TEXTS)).sum(1).mean()) < 0.9999
    change_json(folder / "config.json", lambda config: {**config, "model_type": "mpnet"})
    with pytest.raises(EmbedderError, match="no plain BERT model"):
        Embedder(folder, int8=True).load()
