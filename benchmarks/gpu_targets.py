"""What `benchmarks/gpu.py` should reach on an H200, beside what it has reached in the same run."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

# Shares of the ceilings that were measured in the same run.
DECODE = {"bfloat16": 0.85, "fp8": 0.75, "int4": 0.75}
ATTENTION = 0.85
PREFILL = 0.65
TIMES_PEER = 5.0
GAP_S = 100e-6


def targets(results: dict[str, Any]) -> list[dict[str, Any]]:
    """One row a target whose parts were run: what was reached, what was wanted, and whether it is met."""
    return [
        {"target": name, "reached": reached, "wanted": wanted, "met": reached <= wanted if below else reached >= wanted}
        for name, reached, wanted, below in _targets(results)
    ]


def _targets(results: dict[str, Any]) -> Iterator[tuple[str, float, float, bool]]:
    """(name, reached, wanted, whether less is better)."""
    ceilings, rows = results.get("ceilings"), results.get("decode", ())
    for row in rows:
        wanted = DECODE.get(row["weights"])
        if wanted is not None and row.get("batch") == 1 and "share_of_copy" in row:
            yield f"decode {row['weights']}, batch 1: share of copy", row["share_of_copy"], wanted, False
    for row in results.get("kernels", ()):
        if ceilings and row["kernel"] == "paged_attention decode":
            yield "paged attention, decode: share of copy", row["gb_s"] / ceilings["copy_gb_s"], ATTENTION, False
    prefills = [row["share_of_product"] for row in rows if row["weights"] == "bfloat16" and "share_of_product" in row]
    if prefills:
        yield "prefill bfloat16: share of product", max(prefills), PREFILL, False
    if "offline" in results and "peer" in results:
        times = results["offline"]["tokens_per_s"] / results["peer"]["tokens_per_s"]
        yield "256 sequences: times transformers", times, TIMES_PEER, False
    gaps = [row["overlapped"]["gap_s"] for row in results.get("overlap", ()) if row["overlapped"]["gap_s"]]
    if gaps:
        yield "seconds between replays, overlapped", min(gaps), GAP_S, True
