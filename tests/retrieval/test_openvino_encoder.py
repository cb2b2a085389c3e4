"""OpenVINO gives the vectors of torch, where it is installed; without it torch embeds everything."""

import importlib.util
import sys

import numpy as np
import pytest

from retrieval import Embedder
from retrieval.openvino_encoder import OpenVinoEncoder

INSTALLED = importlib.util.find_spec("openvino") is not None
TEXTS = [
    "A cat sits on the mat.",
    "",
    "naïve café, 北京, 🦙",
    "word " * 600,
    *(f"Text {number}" for number in range(30)),
]


@pytest.mark.skipif(not INSTALLED, reason="openvino is an optional package")
def test_whoever_embeds_many_texts_gets_the_same_vectors_from_openvino(
    embedder: Embedder, monkeypatch: pytest.MonkeyPatch
) -> None:
    def told(*args: object, **options: object) -> None:
        raise AssertionError("OpenVINO tells its makers that it is used")

    monkeypatch.setattr("openvino.tools.ovc.telemetry_utils.init_telemetry_class", told)
    monkeypatch.setattr("retrieval.embeddings._MANY", 40)
    ours = Embedder(embedder._path, device="cpu")
    by_torch = ours.embed_passages(TEXTS)
    by_openvino = ours.embed_passages(TEXTS)
    assert isinstance(ours._compiled, OpenVinoEncoder)
    assert float((by_torch * by_openvino).sum(1).min()) > 0.999


def test_without_openvino_torch_embeds_many_texts_too(embedder: Embedder, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("retrieval.embeddings._MANY", 1)
    monkeypatch.setitem(sys.modules, "openvino", None)
    ours = Embedder(embedder._path, device="cpu")
    by_torch = np.stack([embedder.embed_query(text) for text in TEXTS[:3]])  # single texts stay with torch
    np.testing.assert_allclose(ours.embed_passages(TEXTS[:3]), by_torch, atol=1e-5)
    assert ours._compiled is ours._model
