"""Loading and closing: the sample handbook, which condensing a model gets, and the engine client of a process."""

from pathlib import Path

import pytest

from app import sample_handbook
from app.engines.in_process import engine_config, local_client
from app.engines.request import EngineRequest
from app.engines.routing import Route
from app.errors import DataFolderError, ModelNotFoundError, NotReadyError
from app.sample_handbook import HANDBOOK
from app.services import Services
from app.settings import Settings
from engine.errors import InvalidParameterError, PromptTooLongError, UnsupportedParameterError
from tests.app.scripted import ScriptedBackend, ScriptedEngineClient

MODEL = "smollm2-135m-instruct"


@pytest.fixture
def handbook(tmp_path, monkeypatch):
    folder = tmp_path / "handbook"
    folder.mkdir()
    (folder / "one.md").write_text("# One\n\nThe first page.\n")
    (folder / "two.md").write_text("# Two\n\nThe second page.\n")
    monkeypatch.setattr(sample_handbook, "HANDBOOK", folder)
    return folder


def load_knowledge_base(data: Path, **settings) -> Services:
    services = Services(Settings(data_dir=data, **settings))
    services._load_knowledge_base()
    return services


def titles(services: Services) -> list[str]:
    return sorted(document.title for document in services._knowledge_base.documents("handbook", "local"))


def test_the_handbook_goes_in_once_and_again_when_it_has_changed(handbook, tmp_path, embedding_model_path):
    data = tmp_path / "data"
    first = load_knowledge_base(data)
    assert titles(first) == ["One", "Two"]
    shared = [entry for entry in first._knowledge_base.collections("somebody else") if entry.name == "handbook"]
    assert [entry.visibility for entry in shared] == ["shared"]

    # A page that its reader has deleted stays deleted ...
    (one,) = [document for document in first._knowledge_base.documents("handbook", "local") if document.title == "One"]
    first._knowledge_base.delete_document(one.document_id)
    first._close()
    second = load_knowledge_base(data)
    assert titles(second) == ["Two"]
    second._close()

    # ... until another version of the handbook comes.
    (handbook / "two.md").write_text("# Two, revised\n\nThe second page.\n")
    third = load_knowledge_base(data)
    assert titles(third) == ["One", "Two, revised"]
    third._close()


def test_the_handbook_can_be_left_out(handbook, tmp_path, embedding_model_path):
    services = load_knowledge_base(tmp_path / "data", sample_kb=False)
    assert titles(services) == []
    services._close()


def test_the_repository_has_the_handbook_where_the_server_looks():
    assert len(list(HANDBOOK.glob("*.md"))) >= 25


def test_a_part_that_is_not_loaded_is_refused_with_the_reason(tmp_path):
    services = Services(Settings(data_dir=tmp_path))
    services._step("loading the chat model")
    for part in ("engine", "knowledge_base", "chat", "llm"):
        with pytest.raises(NotReadyError, match="the server is starting: loading the chat model"):
            getattr(services, part)
    services._close()


def test_a_data_folder_that_cannot_be_written_is_named(tmp_path):
    (tmp_path / "file").write_text("")
    with pytest.raises(DataFolderError, match="file"):
        Services(Settings(data_dir=tmp_path / "file"))


@pytest.mark.parametrize(
    ("parameters", "condense", "queries"),
    [
        (135_000_000, True, ["And?", "What is TTFT? And?"]),
        (135_000_000, False, ["And?"]),
        (8_000_000_000, True, ["And?", "Rewritten"]),
    ],
)
async def test_large_models_rewrite_a_follow_up_and_small_ones_do_not(tmp_path, parameters, condense, queries):
    services = Services(Settings(data_dir=tmp_path, model="scripted", condense_question=condense))
    client = ScriptedEngineClient(["Rewritten"])
    client.num_parameters = parameters
    services.pool.put("scripted", ScriptedBackend(client))
    services._build_chains()
    route = Route(("scripted",), "default")
    condenser = services._answerers._condenser(services._answerers.model(route), client)
    state = {
        "input": "And?",
        "questions": ["What is TTFT?"],
        "history": [("human", "What is TTFT?"), ("ai", "A time.")],
    }
    assert await condenser.ainvoke(state) == queries
    services._close()


def test_settings_reach_the_engines_configuration():
    settings = Settings(
        max_num_seqs=3, block_size=32, num_kv_blocks=77, max_model_len=512, dtype="float32", device="cpu"
    )
    config = engine_config(settings, Path("m.gguf"))
    assert (config.model, config.max_num_seqs, config.block_size, config.num_kv_blocks) == (Path("m.gguf"), 3, 32, 77)
    assert (config.max_model_len, config.dtype, config.device) == (512, "float32", "cpu")


# ── the engine client of a process ───────────────────────────────────────────────────────────────────────────────────


def test_two_names_of_one_model_share_an_engine(chat_model_path):
    by_name, by_path = local_client(MODEL), local_client(str(chat_model_path))
    assert by_name.engine is by_path.engine
    assert (by_name.model_name, by_path.model_name) == (MODEL, str(chat_model_path))
    assert by_name.num_parameters == pytest.approx(135e6, rel=0.01)
    assert by_name.check_health() == "ready"


def test_a_model_that_is_nowhere_is_refused(monkeypatch):
    monkeypatch.setenv("HF_HUB_OFFLINE", "1")
    with pytest.raises(ModelNotFoundError, match="no-such-model"):
        local_client("no-such-model")


async def test_a_request_that_cannot_be_served_is_refused_before_the_first_delta(chat_model_path):
    client = local_client(MODEL)
    messages = [{"role": "user", "content": "hi"}]
    for params, error in (
        ({"best_of": 2}, UnsupportedParameterError),
        ({"top_p": 7}, InvalidParameterError),
        ({"max_tokens": 9000}, PromptTooLongError),
    ):
        with pytest.raises(error):
            await anext(client.stream(EngineRequest(messages=messages, params=params)))
        with pytest.raises(error):
            next(client.stream_sync(EngineRequest(messages=messages, params=params)))


async def test_times_of_every_request_are_told_however_it_ends(chat_model_path):
    seen = []
    client = local_client(MODEL)
    client._on_end = seen.append
    messages = [{"role": "user", "content": "Name the capital of Italy."}]
    short = EngineRequest(messages=messages, params={"max_tokens": 2, "temperature": 0})
    _ = [delta async for delta in client.stream(short)]
    stream = client.stream_sync(EngineRequest(messages=messages, params={"max_tokens": 200, "ignore_eos": True}))
    next(stream)
    stream.close()
    finished, left = seen
    assert (finished.finish_reason, finished.num_prompt_tokens, finished.num_output_tokens) == ("length", 36, 2)
    assert finished.started <= finished.first_token <= finished.ended
    assert (left.finish_reason, left.max_tokens) == ("abort", 200)
