"""What the engine costs beside its speed: first tokens, loading, memory, Python's share of a step, and quality.

    python -m benchmarks.engine_costs [--model GGUF] [--json FILE]

Part of `benchmarks.peers`, whose table it completes. Loading and memory are measured in fresh processes.
"""

import argparse
import json
import math
import os
import random
import resource
import shutil
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

from benchmarks.machine import describe_machine

ROOT = Path(__file__).resolve().parents[1]
VOCABULARY = range(1000, 40000)
# Text for the perplexity: chunks of the handbook.
CHUNK_TOKENS, NUM_CHUNKS = 500, 12


def default_model() -> Path:
    """The packaged chat model's file, fetched on first use."""
    from app.models import resolve
    from app.settings import Settings

    settings = Settings()
    return resolve(settings.model, settings)


def measure(model: Path, threads: int) -> dict[str, Any]:
    """All figures, each with what it must reach."""
    os.environ["OMP_NUM_THREADS"] = str(threads)
    with tempfile.TemporaryDirectory() as folder:
        # A copy, so that the first load finds no packed weights beside it.
        copy = Path(shutil.copy(model, folder))
        first_load = _seconds_to_ready(copy)
        second_load = statistics.median(_seconds_to_ready(copy) for _ in range(3))
    figures = _in_new_process("inner", model)
    figures |= _in_new_process("memory", model)
    return {
        "first token, warm 1,000-token prompt / cold": (figures["warm_over_cold"], 0.1),
        "load, first (s)": (first_load, 15.0),
        "load, from the second on (s)": (second_load, 3.0),
        "peak memory beyond weights and KV pool, 16 sequences (MB)": (figures["beyond_mb"], 700.0),
        "Python a step beside the tensor operations, 16 sequences (ms)": (figures["python_ms"], 1.5),
        "perplexity / float32's": (figures["perplexity"] / figures["float32_perplexity"], 1.01),
    }


def show(figures: dict[str, Any]) -> None:
    """Print the table."""
    print(f"\n{'cost':64}{'measured':>10}{'at most':>9}")
    for name, (value, most) in figures.items():
        print(f"{name:64}{value:>10.3f}{most:>9g}")


def _seconds_to_ready(model: Path) -> float:
    command = [sys.executable, "-m", "benchmarks.engine_costs", "--part", "ready", "--model", str(model)]
    start = time.perf_counter()
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True, cwd=ROOT) as child:
        assert child.stdout is not None
        child.stdout.readline()
        return time.perf_counter() - start


def _in_new_process(part: str, model: Path) -> dict[str, float]:
    figures: dict[str, float] = json.loads(_child(part, model).splitlines()[-1])
    return figures


def _child(part: str, model: Path) -> str:
    command = [sys.executable, "-m", "benchmarks.engine_costs", "--part", part, "--model", str(model)]
    return subprocess.run(command, check=True, capture_output=True, text=True, cwd=ROOT).stdout


def _inner(model: Path) -> dict[str, float]:
    from engine import Engine, EngineConfig

    engine = Engine(EngineConfig(model=model, speculation="off"))
    rng = random.Random(0)
    ratios = []
    for _ in range(5):
        system = rng.choices(VOCABULARY, k=1000)
        times = []
        for _ in range(2):
            times.append(_first_token_s(engine, [*system, *rng.choices(VOCABULARY, k=8)]))
        ratios.append(times[1] / times[0])
    figures = {"warm_over_cold": statistics.median(ratios), "python_ms": _python_ms(engine, rng)}
    return figures | _perplexities(engine, model)


def _first_token_s(engine: Any, prompt: list[int]) -> float:
    from engine import SamplingParams

    start = time.perf_counter()
    engine.generate(prompt, SamplingParams(max_tokens=1, temperature=0.0))
    return time.perf_counter() - start


def _python_ms(engine: Any, rng: random.Random) -> float:
    """Median of (step − decoder − arg max) over decoding steps of 16 sequences."""
    import torch

    from engine import SamplingParams

    forward, spent = engine.runner.decoder.forward, []

    def timed(*arguments: Any, **named: Any) -> Any:
        start = time.perf_counter()
        logits = forward(*arguments, **named)
        torch.argmax(logits, -1)
        spent.append(time.perf_counter() - start)
        return logits

    params = SamplingParams(max_tokens=64, temperature=0.0, ignore_eos=True)
    for _ in range(16):
        engine.add(engine.make_requests(rng.choices(VOCABULARY, k=100), params))
    while any(request.num_output_tokens == 0 for request in engine.scheduler.running) or engine.scheduler.waiting:
        engine.step()
    engine.runner.decoder.forward = timed
    outside = []
    while engine.has_work:
        start = time.perf_counter()
        engine.step()
        outside.append(time.perf_counter() - start - spent[-1])
    engine.runner.decoder.forward = forward
    return statistics.median(outside) * 1000


def _perplexities(engine: Any, model: Path) -> dict[str, float]:
    import torch

    from engine.decoder import Decoder
    from engine.weights import open_checkpoint

    checkpoint = open_checkpoint(model)
    reference = Decoder(
        checkpoint.config,
        checkpoint.tensors(torch.float32, torch.device("cpu")),
        max_position=CHUNK_TOKENS,
        rope_divisors=checkpoint.rope_divisors,
    )
    reference.allocate(CHUNK_TOKENS // 16 + 1, 16)
    text = "\n\n".join(path.read_text(encoding="utf-8") for path in sorted((ROOT / "data/handbook").glob("*.md")))
    token_ids = checkpoint.tokenizer.encode(text)
    return {
        "perplexity": _perplexity(engine.runner.decoder, token_ids),
        "float32_perplexity": _perplexity(reference, token_ids),
    }


def _perplexity(decoder: Any, token_ids: list[int]) -> float:
    import torch

    from engine.step_batch import StepBatch

    losses = []
    stride = len(token_ids) // NUM_CHUNKS
    for start in range(0, stride * NUM_CHUNKS, stride):
        chunk = token_ids[start : start + CHUNK_TOKENS]
        batch = StepBatch(16)
        batch.add(chunk, 0, list(range(-(-len(chunk) // 16))))
        batch.rows = list(range(len(chunk) - 1))
        logits = decoder.forward(batch)
        losses.append(torch.nn.functional.cross_entropy(logits, torch.tensor(chunk[1:])).item())
    return math.exp(statistics.fmean(losses))


def _memory(model: Path) -> dict[str, float]:
    from engine import Engine, EngineConfig, SamplingParams

    engine = Engine(EngineConfig(model=model))
    rng = random.Random(0)
    prompts = [rng.choices(VOCABULARY, k=300) for _ in range(16)]
    engine.generate(prompts, SamplingParams(max_tokens=64, temperature=0.7, seed=0, ignore_eos=True))
    pool = engine.runner.kv_bytes_per_token * engine.runner.num_blocks * engine.runner.block_size
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024
    # The pool's pages are mapped when first written; what was never written is not in the peak either.
    used = engine.runner.kv_bytes_per_token * 16 * 364
    return {"beyond_mb": (peak - model.stat().st_size - min(pool, used)) / 1e6}


def main() -> None:
    """Measure and print; `--part` is for the child processes."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--model", type=Path, help="a .gguf file (default: the packaged model)")
    parser.add_argument("--threads", type=int, default=os.cpu_count() or 1)
    parser.add_argument("--part", choices=("ready", "inner", "memory"), help=argparse.SUPPRESS)
    parser.add_argument("--json", type=Path, help="also write the figures to this file")
    options = parser.parse_args()
    model = options.model or default_model()
    if options.part == "ready":
        from engine import Engine, EngineConfig

        Engine(EngineConfig(model=model))
        print("ready", flush=True)
    elif options.part is not None:
        print(json.dumps(_inner(model) if options.part == "inner" else _memory(model)))
    else:
        figures = measure(model, options.threads)
        show(figures)
        if options.json is not None:
            report = {"machine": describe_machine(), "model": model.name, "costs": figures}
            options.json.write_text(json.dumps(report, indent=2) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
