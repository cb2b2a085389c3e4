"""The real model in float32 for exactness tests, and tiny random models that load in milliseconds."""

from collections.abc import Iterator
from pathlib import Path

import pytest

from engine import Engine, EngineConfig
from tests.engine.tiny_models import save_tiny_model

# What `make_tiny_engine` is given by the fixture `scheduling`.
SCHEDULING: dict[str, object] = {}


@pytest.fixture(scope="session")
def real_engine(chat_model_path: Path) -> Engine:
    """SmolLM2-135M in float32 with the block pool verified after every step."""
    return Engine(EngineConfig(model=chat_model_path, dtype="float32", num_kv_blocks=400, check_integrity=True))


@pytest.fixture(scope="session")
def tiny_folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A random Llama of 2 layers with a byte-level tokenizer of 300 tokens, as a Hugging Face folder."""
    folder = tmp_path_factory.mktemp("tiny-llama")
    save_tiny_model("llama", folder)
    return folder


@pytest.fixture
def tiny_engine(tiny_folder: Path) -> Engine:
    """A fresh engine on the tiny Llama: 16 blocks of 4 tokens, 8 tokens a step."""
    return make_tiny_engine(tiny_folder)


@pytest.fixture(params=["one by one", "overlapped"])
def scheduling(request: pytest.FixtureRequest) -> Iterator[dict[str, object]]:
    """Run the test twice; the second time tiny engines launch each step before the last one's tokens are known."""
    if request.param == "overlapped":
        # Where drafts may come, the step waits for them.
        SCHEDULING.update(overlap_scheduling=True, speculation="off")
    yield SCHEDULING
    SCHEDULING.clear()


def make_tiny_engine(folder: Path, **overrides: object) -> Engine:
    settings: dict[str, object] = {
        "model": folder,
        "dtype": "float32",
        "device": "cpu",
        "block_size": 4,
        "num_kv_blocks": 16,
        "max_num_batched_tokens": 8,
        "max_num_seqs": 4,
        "check_integrity": True,
    }
    return Engine(EngineConfig(**{**settings, **SCHEDULING, **overrides}))  # type: ignore[arg-type]
