"""How many blocks of keys and values a GPU holds beside everything else: measured with a small pool, then computed."""

from __future__ import annotations

import logging
from collections.abc import Callable
from dataclasses import dataclass

log = logging.getLogger(__name__)

# Of what is free once all else is measured; the rest is for what the allocator cannot use.
KV_SHARE = 0.95


@dataclass(frozen=True)
class MeasuredPool:
    """
    Attributes:
        free_bytes: what is free while only the weights are there.
        step_bytes: the most that the largest step took beside them.
        graph_bytes: what recorded steps keep.
        block_bytes: keys and values of one block in all layers.
    """

    free_bytes: int
    step_bytes: int
    graph_bytes: int
    block_bytes: int

    @property
    def num_blocks(self) -> int:
        return max(0, int((self.free_bytes - self.step_bytes - self.graph_bytes) * KV_SHARE) // self.block_bytes)

    def __str__(self) -> str:
        return (
            f"({self.free_bytes:,} bytes free beside the weights − {self.step_bytes:,} of the largest step − "
            f"{self.graph_bytes:,} of graphs) × {KV_SHARE} / {self.block_bytes:,} bytes a block = "
            f"{self.num_blocks:,} blocks"
        )


def measure(
    block_bytes: int,
    free: Callable[[], int],
    peak_of: Callable[[Callable[[], object]], int],
    largest_step: Callable[[], object],
    record: Callable[[], object],
    free_with_graphs: Callable[[], int],
) -> MeasuredPool:
    """Run the largest step and record graphs, both over a small pool.

    free: bytes free on the device when pools and graphs are dropped; peak_of: the most bytes a call took at a time
    beside what was there before it; free_with_graphs: bytes free with the graphs, their small pool counted as free.
    """
    before = free()
    step_bytes = peak_of(largest_step)
    # What libraries took for themselves in their first step stays.
    with_libraries = free()
    record()
    graph_bytes = max(0, with_libraries - free_with_graphs())
    measured = MeasuredPool(min(before, with_libraries), step_bytes, graph_bytes, block_bytes)
    log.info("keys and values: %s", measured)
    return measured
