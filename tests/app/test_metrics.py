"""What Prometheus reads of the engine's counters."""

from app.metrics import ServerMetrics
from engine.outputs import EngineStats


def test_acceptance_is_shown_by_position_and_the_queue_by_class() -> None:
    stats = EngineStats(
        num_running=0,
        num_waiting=0,
        num_kv_blocks=10,
        num_free_blocks=10,
        num_pinned_blocks=0,
        num_steps=9,
        num_preemptions=0,
        num_prompt_tokens=5,
        num_generated_tokens=20,
        num_prefix_queries=0,
        num_prefix_hits=0,
        num_drafts=4,
        num_draft_tokens=12,
        num_accepted_tokens=7,
        num_accepted_by_position=(4, 2, 1),
        num_waiting_by_priority={"interactive": 0, "batch": 3},
    )
    metrics = ServerMetrics()
    metrics.watch("tiny", lambda: stats)
    lines = metrics.render().decode().splitlines()
    for name, value in (("num_drafts", 4), ("num_draft_tokens", 12), ("num_accepted_tokens", 7)):
        assert f'ragstone:spec_decode_{name}_total{{model_name="tiny"}} {value}.0' in lines
    for position, value in enumerate((4, 2, 1)):
        labels = f'model_name="tiny",position="{position}"'
        assert f"ragstone:spec_decode_num_accepted_tokens_per_pos_total{{{labels}}} {value}.0" in lines
    assert 'ragstone:num_requests_waiting_by_priority{model_name="tiny",priority="batch"} 3.0' in lines
