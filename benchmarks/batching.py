"""No batching, static batching and continuous batching of the same requests, as table and JSON.

    python -m benchmarks.batching [--model GGUF] [--requests N] [--runs N] [--json FILE]

All requests are there at the start, with prompts and answers of very different lengths. *No batching* runs one at a
time; *static* takes as many as there are places, and the next ones when the last of them has finished; *continuous* is
the engine as it is. A place is wasted in a step when it stands empty, its request having finished, while others wait.
"""

import argparse
import json
import random
import statistics
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from benchmarks.engine_costs import VOCABULARY, default_model
from benchmarks.machine import describe_machine
from engine import Engine, EngineConfig, SamplingParams
from engine.request import Request

PLACES = 16
Work = list[tuple[list[int], int]]


class Clock:
    """Steps an engine and notes when each request ends and how many places stood idle while others waited."""

    def __init__(self, engine: Engine) -> None:
        self.engine = engine
        self.start = time.perf_counter()
        self.ends: list[float] = []
        self.places = self.idle = 0

    def run(self, requests: list[Request], places: int, num_waiting: int) -> None:
        """Run until all of these have finished; `num_waiting` more stand outside the engine."""
        for request in requests:
            self.engine.add([request])
        while self.engine.has_work:
            waiting = len(self.engine.scheduler.waiting) + num_waiting
            self.places += places
            self.idle += min(places - min(places, len(self.engine.scheduler.running)), waiting)
            for delta in self.engine.step():
                if delta.finish_reason is not None:
                    self.ends.append(time.perf_counter() - self.start)


def one_at_a_time(clock: Clock, requests: list[Request]) -> None:
    for index, request in enumerate(requests):
        clock.run([request], 1, len(requests) - index - 1)


def static(clock: Clock, requests: list[Request]) -> None:
    for index in range(0, len(requests), PLACES):
        clock.run(requests[index : index + PLACES], PLACES, max(0, len(requests) - index - PLACES))


def continuous(clock: Clock, requests: list[Request]) -> None:
    clock.run(requests, PLACES, 0)


POLICIES: dict[str, Callable[[Clock, list[Request]], None]] = {
    "no batching": one_at_a_time,
    "static": static,
    "continuous": continuous,
}


def main() -> None:
    """Measure, print, write."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--model", type=Path, help="a .gguf file or a model folder (default: the packaged model)")
    parser.add_argument("--requests", type=int, default=48)
    parser.add_argument("--runs", type=int, default=3)
    parser.add_argument("--json", type=Path, help="also write the figures to this file")
    options = parser.parse_args()
    model = options.model or default_model()
    engine = Engine(EngineConfig(model=model, max_num_seqs=PLACES, enable_prefix_caching=False, speculation="off"))
    rng = random.Random(0)
    work: Work = [
        (
            rng.choices(VOCABULARY, k=int(rng.lognormvariate(4.5, 0.7)) + 1),
            min(400, int(rng.lognormvariate(3.7, 0.8)) + 2),
        )
        for _ in range(options.requests)
    ]
    runs: dict[str, list[dict[str, float]]] = {name: [] for name in POLICIES}
    for _ in range(options.runs):
        for name, policy in POLICIES.items():
            runs[name].append(measure(engine, policy, work))
    figures = {
        name: {key: statistics.median(run[key] for run in results) for key in results[0]}
        for name, results in runs.items()
    }
    print(f"{'policy':14}{'tok/s':>8}{'P50 s':>9}{'P95 s':>9}{'places wasted':>15}")
    for name, row in figures.items():
        print(f"{name:14}{row['tokens_per_s']:>8.0f}{row['p50_s']:>9.2f}{row['p95_s']:>9.2f}{row['wasted']:>14.0%}")
    if options.json is not None:
        report = {"machine": describe_machine(), "model": model.name, "requests": options.requests, "policies": figures}
        options.json.write_text(json.dumps(report, indent=2) + "\n", encoding="utf-8")


def measure(engine: Engine, policy: Callable[[Clock, list[Request]], None], work: Work) -> dict[str, Any]:
    """Figures of one run."""
    requests = [
        engine.make_requests(prompt, SamplingParams(max_tokens=length, temperature=0.0, ignore_eos=True))[0]
        for prompt, length in work
    ]
    clock = Clock(engine)
    policy(clock, requests)
    total = time.perf_counter() - clock.start
    ordered = sorted(clock.ends)
    return {
        "tokens_per_s": sum(length for _, length in work) / total,
        "p50_s": statistics.median(ordered),
        "p95_s": ordered[int(0.95 * (len(ordered) - 1))],
        "wasted": clock.idle / clock.places if clock.places else 0.0,
    }


if __name__ == "__main__":
    main()
