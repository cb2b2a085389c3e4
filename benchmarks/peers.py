"""The engine beside llama.cpp and OpenVINO GenAI on this machine, all three on the same GGUF, as table and JSON.

    python -m benchmarks.peers [--model GGUF] [--runs N] [--only WORK …] [--json FILE]

Behind the comparison come the engine's own costs and what speculation brings (`benchmarks.engine_costs` and
`benchmarks.speculation`, which also run alone), so that one command prints all that is promised of speed.

The peers are installed from the package index into `.venv-peers` on the first run (llama.cpp compiles for minutes).
Every figure is the median of interleaved runs: in each round each engine does each piece of work once, so that whatever
else the machine does hits all alike; ratios are medians over the rounds too. Run it with nothing else running.
"""

import argparse
import json
import os
import random
import statistics
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

from benchmarks import engine_costs, speculation
from benchmarks.machine import describe_machine

ROOT = Path(__file__).resolve().parents[1]
VENV = ROOT / ".venv-peers"
PACKAGES = ("llama-cpp-python==0.3.36", "openvino-genai==2026.4.1.0")
PEERS = ("llama.cpp", "openvino")
VOCABULARY = range(1000, 40000)


class Worker:
    """One engine in a child process."""

    def __init__(self, name: str, model: Path, threads: int) -> None:
        python = sys.executable if name == "ragstone" else str(VENV / "bin" / "python")
        environment = {**os.environ, "OMP_NUM_THREADS": str(threads), "PYTHONPATH": str(ROOT)}
        if name == "ragstone":
            environment["OMP_WAIT_POLICY"] = "PASSIVE"  # as its server sets it
        self.name = name
        self.process = subprocess.Popen(
            [python, str(ROOT / "benchmarks" / "peer_worker.py"), name, str(model), str(threads)],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            text=True,
            env=environment,
            cwd=ROOT,
        )
        self._answer()

    def run(self, task: str, **arguments: Any) -> Any:
        """The figure of one piece of work; None if the engine can not do it."""
        assert self.process.stdin is not None
        self.process.stdin.write(json.dumps({"task": task, **arguments}) + "\n")
        self.process.stdin.flush()
        answer = self._answer()
        if "error" in answer:
            print(f"{self.name} can not do {task}: {answer['error']}", file=sys.stderr)
        return answer.get("value")

    def stop(self) -> None:
        """End the process."""
        assert self.process.stdin is not None
        self.process.stdin.close()
        self.process.wait()

    def _answer(self) -> dict[str, Any]:
        assert self.process.stdout is not None
        for line in self.process.stdout:
            if line.startswith("{"):
                answer: dict[str, Any] = json.loads(line)
                return answer
        raise SystemExit(f"error: the {self.name} process ended (exit code {self.process.wait()}) without an answer")


def works(text: list[int], rng: random.Random) -> dict[str, tuple[str, str, float, Callable[[], dict[str, Any]]]]:
    """Name → (task, unit, least ratio to the faster peer, arguments of a fresh run)."""

    def ids(count: int) -> list[int]:
        return rng.choices(VOCABULARY, k=count)

    def sharing(count: int) -> dict[str, Any]:
        prefix = ids(600)
        return {"prompts": [[*prefix, *ids(40)] for _ in range(count)], "num_tokens": 64}

    def repeating() -> dict[str, Any]:
        start = rng.randrange(0, len(text) - 160)
        passage = text[start : start + 150]
        return {"prompt": [*passage, *passage, *passage[:20]], "num_tokens": 100}

    return {
        "decode, context 64": ("decode", "tok/s", 0.85, lambda: {"prompt": ids(64), "num_tokens": 64}),
        "decode, context 1,000": ("decode", "tok/s", 0.85, lambda: {"prompt": ids(1000), "num_tokens": 64}),
        "prefill, 1,000 tokens": ("prefill", "tok/s", 1.0, lambda: {"prompt": ids(1000)}),
        "4 requests sharing 600 tokens": ("shared", "tok/s", 1.3, lambda: sharing(4)),
        "16 requests sharing 600 tokens": ("shared", "tok/s", 1.3, lambda: sharing(16)),
        "prompt look-up, repeating text": ("lookup", "tok/s", 1.2, repeating),
    }


def main() -> None:
    """Install the peers where they are absent, measure, print, write."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--model", type=Path, help="a .gguf file (default: the packaged model)")
    parser.add_argument("--runs", type=int, default=7, help="rounds (default: 7)")
    parser.add_argument("--threads", type=int, default=os.cpu_count() or 1, help="threads of each engine")
    parser.add_argument("--only", nargs="*", metavar="WORK", help="pieces of work whose name contains one of these")
    parser.add_argument("--json", type=Path, help="also write the figures to this file")
    options = parser.parse_args()
    install_peers()
    model = options.model or engine_costs.default_model()
    report = {"machine": describe_machine(), "model": model.name, "threads": options.threads, "runs": options.runs}
    report["works"] = compare(model, options.threads, options.runs, options.only)
    if not options.only:
        report["costs"] = engine_costs.measure(model, options.threads)
        report["speculation"] = speculation.measure(model, options.runs)
        engine_costs.show(report["costs"])
    if options.json is not None:
        options.json.write_text(json.dumps(report, indent=2) + "\n", encoding="utf-8")


def install_peers() -> None:
    """Make `.venv-peers` with the peers at their pinned versions."""
    stamp = VENV / "peers.json"
    if stamp.is_file() and json.loads(stamp.read_text(encoding="utf-8")) == list(PACKAGES):
        return
    print(f"installing {' and '.join(PACKAGES)} into {VENV.name} (minutes)", flush=True)
    subprocess.run([sys.executable, "-m", "venv", VENV], check=True)
    subprocess.run([VENV / "bin" / "pip", "install", "--quiet", *PACKAGES], check=True)
    stamp.write_text(json.dumps(list(PACKAGES)), encoding="utf-8")


def compare(model: Path, threads: int, runs: int, only: list[str] | None) -> dict[str, Any]:
    """Run every piece of work `runs` times in each engine, in turns; one unmeasured round goes before."""
    from engine.weights import open_checkpoint

    handbook = "\n\n".join(path.read_text(encoding="utf-8") for path in sorted((ROOT / "data/handbook").glob("*.md")))
    text = open_checkpoint(model).tokenizer.encode(handbook)
    rng = random.Random(0)
    chosen = {name: work for name, work in works(text, rng).items() if not only or any(part in name for part in only)}
    workers = [Worker(name, model, threads) for name in ("ragstone", *PEERS)]
    rounds: dict[str, list[dict[str, float]]] = {name: [] for name in chosen}
    for attempt in range(runs + 1):
        for name, (task, _, _, arguments) in chosen.items():
            given = arguments()
            figures = {worker.name: worker.run(task, **given) for worker in workers}
            if attempt:
                rounds[name].append({engine: value for engine, value in figures.items() if value is not None})
    for worker in workers:
        worker.stop()
    results = {name: _summary(rounds[name], chosen[name][1], chosen[name][2]) for name in chosen}
    print(f"\n{describe_machine()['cpu']}, {threads} threads, medians of {runs} rounds\n")
    print(f"{'work':34}{'ragstone':>10}{'llama.cpp':>11}{'openvino':>10}{'ratio':>8}{'least':>7}")
    for name, result in results.items():
        cells = "".join(
            f"{result['medians'].get(engine, float('nan')):>{width}.0f}"
            for engine, width in (("ragstone", 10), ("llama.cpp", 11), ("openvino", 10))
        )
        print(f"{name:34}{cells}{result['ratio']:>8.2f}{result['least']:>7.2f}")
    return results


def _summary(rounds: list[dict[str, float]], unit: str, least: float) -> dict[str, Any]:
    engines = [name for name in ("ragstone", *PEERS) if all(name in figures for figures in rounds)]
    medians = {name: statistics.median(figures[name] for figures in rounds) for name in engines}
    faster = max((name for name in engines if name != "ragstone"), key=lambda name: medians[name])
    ratio = statistics.median(figures["ragstone"] / figures[faster] for figures in rounds)
    return {
        "unit": unit,
        "medians": medians,
        "faster_peer": faster,
        "ratio": ratio,
        "least": least,
        "holds": ratio >= least,
        "rounds": rounds,
    }


if __name__ == "__main__":
    main()
