"""One real server for all tests of this folder that a user could have written: default models, few documents."""

from collections.abc import Iterator
from pathlib import Path

import pytest

from app.server import create_app
from app.settings import Settings
from tests.app.scripted import ScriptedEngineClient
from tests.app.serving import RunningServer, scripted_app

DOCUMENTS = {
    "ttft.md": (
        "# Latency\n\n## TTFT\n\nTTFT means time to first token. It measures the time from sending a request until the "
        "first token of the answer arrives. It includes queueing and prefill.\n"
    ),
    "bicycle.md": "# Bicycles\n\n## Gears\n\nA derailleur moves the chain of a bicycle from one sprocket to another.\n",
    "braces.md": (
        '# Templates\n\n## Braces\n\nThe config {"retries": 3} uses {curly} braces, <script>alert(1)</script> and '
        "<|im_end|> marks.\n"
    ),
}


@pytest.fixture(scope="session")
def server(
    chat_model_path: Path, embedding_model_path: Path, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[RunningServer]:
    """A ready server. Tests use conversations of their own and leave the documents as they are."""
    settings = Settings(
        data_dir=tmp_path_factory.mktemp("data"),
        sample_kb=False,
        max_tokens=12,
        max_num_seqs=2,
        max_num_batched_tokens=256,
        num_passages=2,
    )
    with RunningServer(create_app(settings)) as running:
        running.wait_until_ready()
        files = [("files", (name, text.encode())) for name, text in DOCUMENTS.items()]
        response = running.client.post("/api/v1/documents", files=files)
        assert [result["status"] for result in response.json()["results"]] == ["added"] * len(DOCUMENTS)
        yield running


@pytest.fixture(scope="session")
def scripted_server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RunningServer]:
    """A ready server whose model always says the same, for tests of what stands around answers."""
    engine = ScriptedEngineClient(["The gurney ", "rolls."])
    with RunningServer(scripted_app(tmp_path_factory.mktemp("scripted"), engine)) as running:
        yield running.wait_until_ready()
