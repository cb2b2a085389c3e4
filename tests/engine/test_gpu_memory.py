"""The pool of keys and values on a GPU: measured, then computed; and a card that is too small."""

import logging
from pathlib import Path

import pytest
import torch

from engine import Engine, EngineConfig, SamplingParams, model_config, model_runner, step_memory
from engine.gpu_memory import MeasuredPool, measure
from engine.step_graphs import buckets_up_to
from tests.engine.conftest import make_tiny_engine


def test_the_pool_is_what_the_largest_step_and_the_graphs_leave() -> None:
    free = iter([1000, 960])
    order: list[str] = []
    pool = measure(
        10,
        lambda: next(free),
        lambda call: (call(), 200)[1],
        lambda: order.append("step"),
        lambda: order.append("graphs"),
        lambda: 900,
    )
    assert order == ["step", "graphs"]
    assert pool == MeasuredPool(free_bytes=960, step_bytes=200, graph_bytes=60, block_bytes=10)
    assert pool.num_blocks == 66
    assert "(960 bytes free beside the weights − 200 of the largest step − 60 of graphs) × 0.95 / 10" in str(pool)
    assert MeasuredPool(100, 200, 60, 10).num_blocks == 0


@pytest.mark.parametrize("most", [1, 2, 3, 4, 5, 16, 256])
def test_every_number_of_tokens_has_a_bucket_not_much_larger(most: int) -> None:
    buckets = buckets_up_to(most)
    assert buckets[-1] == most
    for tokens in range(1, most + 1):
        assert next(size for size in buckets if size >= tokens) <= max(2 * tokens, tokens + 7)


def test_a_gpu_without_room_leaves_the_model_to_the_cpu(
    tiny_folder: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    def available(device: torch.device) -> int:
        return 1000 if device.type == "cuda" else 1 << 34

    # The plan is made, and refused, before anything touches the device.
    monkeypatch.setattr(model_runner, "pick_device", lambda name: torch.device("cuda" if name == "auto" else name))
    monkeypatch.setattr(model_runner, "available_bytes", available)
    monkeypatch.setattr(torch.cuda, "get_device_capability", lambda device: (9, 0))
    monkeypatch.setattr(step_memory, "runs_triton", lambda device: device.type == "cuda")
    with caplog.at_level(logging.WARNING):
        engine = Engine(EngineConfig(model=tiny_folder, num_kv_blocks=8, dtype="float32"))
    assert engine.runner.device.type == "cpu"
    assert "the GPU has 1,000 bytes free and the model needs" in caplog.text
    assert len(engine.generate([1, 2, 3]).token_ids) > 0


@pytest.mark.parametrize(
    ("available", "expected"),
    # Llama-3.1-8B in bfloat16 with its context of 131,072 tokens: on an H200, on cards of 24 and of 8 GiB.
    [(140 << 30, (256, 8192)), (24 << 30, (128, 4096)), (8 << 30, (16, 512))],
)
def test_steps_are_as_large_as_a_cards_memory_allows(
    monkeypatch: pytest.MonkeyPatch, available: int, expected: tuple[int, int]
) -> None:
    monkeypatch.setattr(step_memory, "runs_triton", lambda device: True)
    model = model_config.from_dict(
        {
            "architectures": ["LlamaForCausalLM"], "vocab_size": 128256, "hidden_size": 4096,
            "intermediate_size": 14336, "num_hidden_layers": 32, "num_attention_heads": 32, "num_key_value_heads": 8,
            "max_position_embeddings": 131072,
        },
        "test",
    )  # fmt: skip
    card, shapes = torch.device("cuda"), [(model, "bfloat16")]
    size = step_memory.step_size(EngineConfig(model="m"), card, available, shapes, 131072)
    assert (size.max_num_seqs, size.max_num_batched_tokens, size.prefill_share) == (*expected, expected[1] // 4)
    asked = EngineConfig(model="m", max_num_seqs=7, max_num_batched_tokens=100)
    assert step_memory.step_size(asked, card, available, shapes, 131072) == step_memory.StepSize(7, 100, 32, 25)
    on_cpu = step_memory.step_size(EngineConfig(model="m"), torch.device("cpu"), available, shapes, 131072)
    assert on_cpu == step_memory.StepSize(16, 256, 32, 64)
    # Scores are never written there, so that the context costs nothing but its keys and values.
    assert step_memory.step_memory(model, "bfloat16", size, card).bytes_per_context_token == 0


def test_what_is_computed_to_have_kernels_compiled_leaves_no_trace_in_answers(tiny_folder: Path) -> None:
    cold, warm = make_tiny_engine(tiny_folder), make_tiny_engine(tiny_folder)
    warm.runner._warm_up()
    params = SamplingParams(max_tokens=9, temperature=0.8, seed=4, repetition_penalty=1.2)
    assert warm.generate([5, 6, 7], params).token_ids == cold.generate([5, 6, 7], params).token_ids
