"""The pool of keys and values on a GPU: measured, then computed; and a card that is too small."""

import logging
from pathlib import Path

import pytest
import torch

from engine import Engine, EngineConfig, model_runner
from engine.gpu_memory import MeasuredPool, measure
from engine.step_graphs import buckets_up_to


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
    with caplog.at_level(logging.WARNING):
        engine = Engine(EngineConfig(model=tiny_folder, num_kv_blocks=8, dtype="float32"))
    assert engine.runner.device.type == "cpu"
    assert "the GPU has 1,000 bytes free and the model needs" in caplog.text
    assert len(engine.generate([1, 2, 3]).token_ids) > 0
