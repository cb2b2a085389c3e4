"""The engine with Triton kernels, in the interpreter, gives the tokens that it gives with torch; with graphs too."""

from pathlib import Path

import pytest
import torch

from engine import Engine, SamplingParams
from engine.decoder import Decoder
from engine.step_batch import StepBatch
from engine.step_graphs import StepGraphs
from kernels import dispatch
from tests.engine.conftest import make_tiny_engine
from tests.engine.tiny_models import save_tiny_model

PROMPTS = [[5, 9, 200, 31, 7, 90], [40, 41, 42, 43, 40, 41, 42, 43, 40, 41]]
PARAMS = [
    SamplingParams(max_tokens=3, temperature=0, ignore_eos=True),
    SamplingParams(
        max_tokens=3,
        temperature=0.9,
        top_p=0.8,
        top_k=40,
        repetition_penalty=1.2,
        seed=3,
        ignore_eos=True,
        logit_bias={7: 3.0, 8: -9.0},
        min_tokens=2,
        stop_token_ids=range(0, 300, 3),
    ),
]


@pytest.fixture(scope="module")
def folder(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp(request.param)
    save_tiny_model(request.param, path)
    return path


def answers(engine: Engine) -> list[list[int]]:
    """Of a greedy and a drawn request, running together."""
    requests = [engine.make_requests(prompt, params) for prompt, params in zip(PROMPTS, PARAMS, strict=True)]
    for request in requests:
        engine.add(request)
    while engine.has_work:
        for delta in engine.step():
            assert delta.error is None, delta.error
    return [request.token_ids[request.num_prompt_tokens :] for (request,) in requests]


@pytest.fixture(scope="module")
def by_torch(folder: Path) -> list[list[int]]:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(dispatch, "forced", lambda: "torch")
        return answers(make_tiny_engine(folder, max_num_batched_tokens=12))


@pytest.mark.parametrize("folder", ["mistral-window"], indirect=True)
def test_triton_gives_the_tokens_of_torch(folder: Path, by_torch: list[list[int]]) -> None:
    engine = make_tiny_engine(folder, max_num_batched_tokens=12)
    assert answers(engine) == by_torch


@pytest.mark.parametrize("folder", ["qwen3"], indirect=True)
def test_recorded_steps_give_the_same_tokens_whatever_the_bucket(folder: Path, by_torch: list[list[int]]) -> None:
    """Recording is replaced by calling anew; buffers, padding and the choice of graphs are the real ones."""
    engine = make_tiny_engine(folder, max_num_batched_tokens=12)
    decoder = engine.runner.decoder
    assert isinstance(decoder, Decoder)
    decoder.record_graphs(
        engine.runner.num_blocks, 4, max_tokens=12, max_query_len=3, max_context_len=64, record=lambda run: run
    )
    for pool in decoder.pools:  # whatever is read but belongs to nobody shows
        pool.k[:-1].fill_(float("nan"))
        pool.v[:-1].fill_(float("nan"))
    assert answers(engine) == by_torch
    graphs = decoder.graphs
    assert graphs is not None
    assert graphs.num_replays > 1
    assert graphs.buckets == [1, 2, 4, 8, 12]
    for pool in decoder.pools:
        assert pool.k[-1].abs().max() == 0
        assert pool.v[-1].abs().max() == 0


@pytest.mark.parametrize("folder", ["qwen3"], indirect=True)
def test_overlapped_steps_give_the_same_tokens_with_and_without_graphs(folder: Path, by_torch: list[list[int]]) -> None:
    engine = make_tiny_engine(
        folder, max_num_batched_tokens=12, overlap_scheduling=True, speculation="off", enable_prefix_caching=False
    )  # new pools know nothing of old prefixes
    decoder = engine.runner.decoder
    assert isinstance(decoder, Decoder)
    assert answers(engine) == by_torch
    overlapped = engine.num_overlapped_steps
    decoder.record_graphs(
        engine.runner.num_blocks, 4, max_tokens=12, max_query_len=1, max_context_len=64, record=lambda run: run
    )
    assert answers(engine) == by_torch
    assert decoder.graphs is not None
    assert decoder.graphs.num_replays > 1
    assert engine.num_overlapped_steps > overlapped > 0


@pytest.mark.parametrize("folder", ["qwen3"], indirect=True)
def test_float8_keys_and_values_give_the_tokens_of_torch_with_and_without_graphs(folder: Path) -> None:
    settings = {
        "max_num_batched_tokens": 12, "kv_cache_dtype": "fp8", "max_model_len": 16, "enable_prefix_caching": False,
    }  # fmt: skip
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(dispatch, "forced", lambda: "torch")
        expected = answers(make_tiny_engine(folder, **settings))
    engine = make_tiny_engine(folder, **settings)
    decoder = engine.runner.decoder
    assert isinstance(decoder, Decoder)
    assert answers(engine) == expected
    decoder.record_graphs(
        engine.runner.num_blocks, 4, max_tokens=12, max_query_len=3, max_context_len=16, record=lambda run: run
    )
    assert decoder.pools[0].k.dtype == torch.float8_e4m3fn
    assert answers(engine) == expected
    assert decoder.graphs is not None
    assert decoder.graphs.num_replays > 1


def test_steps_that_no_graph_serves_are_computed_without(tmp_path: Path) -> None:
    save_tiny_model("llama", tmp_path)
    decoder = make_tiny_engine(tmp_path).runner.decoder
    assert isinstance(decoder, Decoder)
    decoder.record_graphs(16, 4, max_tokens=4, max_query_len=2, max_context_len=64, record=lambda run: run)
    graphs = decoder.graphs
    assert graphs is not None
    long, many = StepBatch(4), StepBatch(4)
    long.add([1, 2, 3], 0, [0])
    many.add([1, 2, 3, 4, 5], 0, [0, 1])
    assert graphs.replay(long) is None
    assert graphs.replay(many) is None


def test_a_graphs_block_tables_are_the_steps_whatever_was_in_the_buffers_before() -> None:
    graphs = StepGraphs(
        lambda inputs, rows: inputs.block_tables.clone(), lambda run: run, torch.device("cpu"), max_tokens=4,
        max_query_len=1, max_context_len=64, max_items=8, block_size=4, groups=1, dummy_block=99,
    )  # fmt: skip
    first, second = [7, 8, 9], [3]
    steps = [
        [(first, 11), (second, 2)],
        [(first, 12), (second, 3)],  # nothing new
        [([*first, 5, 6], 17), (second, 4), ([1, 2], 5)],  # wider
        [([*second, 11], 5)],  # another in the first row
        [([3, 12], 5)],  # preempted, and come back with other blocks
    ]
    for step in steps:
        batch = StepBatch(4)
        for table, context_len in step:
            batch.add([1], context_len - 1, table)
        tables = graphs.replay(batch)
        assert tables is not None
        for row, (table, context_len) in zip(tables.tolist(), step, strict=True):
            used = -(-context_len // 4)
            assert row[:used] == table[:used]
        if len(step) == 3:  # padded to four
            assert graphs.inputs.block_tables[3, 0] == 99
