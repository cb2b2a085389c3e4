"""`python benchmarks/gpu.py`: builds, checks and times the GPU path on one card, in under nine minutes.

Needs torch, triton, numpy, safetensors, tokenizers, jinja2 and transformers; makes its own random weights in the real
shapes. Prints a table and writes JSON. Every part can be left out: `--skip kernels,peer`. `--dry-run` runs every part
in Triton's interpreter on the CPU with sizes that mean nothing, so that the script is known to work; its figures are
neither printed nor kept.
"""

from __future__ import annotations

import argparse
import gc
import json
import os
import random
import sys
import time
import traceback
from collections.abc import Callable
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

PARTS = ("ceilings", "kernels", "equivalences", "decode", "offline", "peer", "prefix")
LIMIT_S = 9 * 60


class Bench:
    """What the parts share: the device, sizes for it, and what has been measured so far."""

    def __init__(self, dry_run: bool) -> None:
        import torch

        self.dry_run = dry_run
        self.device = torch.device("cpu" if dry_run else "cuda")
        self.dtype = torch.float16 if dry_run else torch.bfloat16
        self.results: dict[str, Any] = {}
        self.start = time.monotonic()

    def size(self, real: int, small: int) -> int:
        return small if self.dry_run else real

    def timed(self, run: Callable[[], object], repeats: int = 20) -> float:
        """Seconds a call takes on the device: the median of `repeats`, each behind a flushed L2 cache."""
        import torch

        if self.dry_run:
            start = time.perf_counter()
            run()
            return time.perf_counter() - start
        for _ in range(3):
            run()
        flush = torch.empty(256 << 20, dtype=torch.uint8, device=self.device)
        pairs = []
        for _ in range(repeats):
            flush.zero_()
            begin, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
            begin.record()
            run()
            end.record()
            pairs.append((begin, end))
        torch.cuda.synchronize()
        times = sorted(begin.elapsed_time(end) / 1e3 for begin, end in pairs)
        return times[len(times) // 2]

    def synchronize(self) -> None:
        import torch

        if not self.dry_run:
            torch.cuda.synchronize()

    def free(self) -> None:
        import torch

        gc.collect()
        if not self.dry_run:
            torch.cuda.empty_cache()

    def engine(self, fields: dict[str, Any], **settings: Any) -> Any:
        from benchmarks.random_model import SMALL, make_engine

        if self.dry_run:
            fields = {**fields, **SMALL}
            settings |= {"max_num_seqs": 2, "max_num_batched_tokens": 32, "num_kv_blocks": 64, "max_model_len": 128}
            settings["dtype"] = settings["dtype"] if settings["dtype"] in ("fp8", "int4") else "float32"
            settings["device"] = "cpu"
        else:
            settings["device"] = "cuda"
        return make_engine("random", fields, **settings)


def ceilings(bench: Bench) -> dict[str, float]:
    """GB/s of a large copy (bytes read and written) and TFLOP/s of a large bfloat16 product."""
    import torch

    source = torch.empty(bench.size(2 << 30, 1 << 10), dtype=torch.uint8, device=bench.device)
    target = torch.empty_like(source)
    seconds = bench.timed(lambda: target.copy_(source))
    side = bench.size(8192, 16)
    a, b = (torch.randn(side, side, device=bench.device, dtype=bench.dtype) for _ in range(2))
    product_s = bench.timed(lambda: a @ b)
    return {"copy_gb_s": 2 * source.numel() / seconds / 1e9, "product_tflop_s": 2 * side**3 / product_s / 1e12}


def kernels(bench: Bench) -> list[dict[str, Any]]:
    """Each kernel's relative error against float64 or its reference, and what it reaches of the ceilings."""
    from benchmarks.gpu_kernels import cases

    rows = []
    for case in cases(bench.device, bench.dtype, bench.dry_run):
        out, expected = case.run().double(), case.expected().double()
        error = float((out - expected).norm() / expected.norm().clamp(min=1e-30))
        seconds = bench.timed(case.run)
        row: dict[str, Any] = {
            "kernel": case.name,
            "error": error,
            "allowed_error": case.allowed_error,
            "seconds": seconds,
        }
        row["gb_s"] = case.num_bytes / seconds / 1e9
        if case.num_flops:
            row["tflop_s"] = case.num_flops / seconds / 1e12
        rows.append(row)
        if not error <= case.allowed_error:
            raise AssertionError(f"{case.name} errs by {error:.2e}; {case.allowed_error:.0e} is allowed")
    return rows


def _prompts(bench: Bench, count: int, least: int, most: int, vocab: int, seed: int = 0) -> list[list[int]]:
    draw = random.Random(seed)
    return [[draw.randrange(256, vocab - 1) for _ in range(draw.randint(least, most))] for _ in range(count)]


def equivalences(bench: Bench) -> dict[str, Any]:
    """Greedy tokens with graphs and without, with speculation and without, from a cold and a warm cache.

    In bfloat16 two ways of computing may break a near-tie in different ways, after which answers part: counted is how
    many agree in full, and the share of tokens before the first difference. The deterministic engine must agree to the
    token.
    """
    from benchmarks.random_model import QWEN3_600M
    from engine import SamplingParams

    vocab = bench.size(QWEN3_600M["vocab_size"], 320)
    length = bench.size(300, 8)
    prompts = [prompt * 2 for prompt in _prompts(bench, bench.size(16, 2), length // 4, length // 2, vocab)]
    params = SamplingParams(max_tokens=bench.size(64, 2), temperature=0, ignore_eos=True)
    answers: dict[str, list[list[int]]] = {}
    settings: dict[str, Any] = {
        "dtype": "bfloat16", "max_num_seqs": 16, "max_num_batched_tokens": 2048, "max_model_len": 4096,
    }  # fmt: skip

    def answer(engine: Any) -> list[list[int]]:
        return [output.token_ids for output in engine.generate(prompts, params)]

    engine = bench.engine(QWEN3_600M, speculation="off", **settings)
    decoder = engine.runner.decoder
    if bench.dry_run:
        decoder.record_graphs(
            engine.runner.num_blocks, 16, max_tokens=4, max_query_len=1, max_context_len=128, record=lambda run: run
        )
    answers["cold"] = answer(engine)
    answers["warm"] = answer(engine)
    replays = decoder.graphs.num_replays
    decoder.graphs = None
    answers["eager"] = answer(engine)
    del engine, decoder
    bench.free()
    answers["speculative"] = answer(bench.engine(QWEN3_600M, speculation="ngram", **settings))
    bench.free()
    exact = {
        kind: answer(bench.engine(QWEN3_600M, speculation=kind, deterministic=True, **settings))
        for kind in ("off", "ngram")
    }
    bench.free()
    if replays == 0:
        raise AssertionError("no step was replayed as a graph")
    if exact["off"] != exact["ngram"]:
        raise AssertionError("the deterministic engine gives other tokens with speculation than without")
    base = answers["cold"]
    return {"replays": replays} | {
        f"cold equals {name}": {
            "answers": sum(a == b for a, b in zip(base, other, strict=True)) / len(base),
            "tokens": sum(_common(a, b) for a, b in zip(base, other, strict=True)) / sum(map(len, base)),
        }
        for name, other in answers.items()
        if name != "cold"
    }


def _common(first: list[int], second: list[int]) -> int:
    return next((i for i, (a, b) in enumerate(zip(first, second, strict=True)) if a != b), len(first))


def decode(bench: Bench) -> list[dict[str, Any]]:
    """Llama-3.1-8B's shapes: tokens a second at several batches, time to the first token, share of the roofline."""
    from benchmarks.random_model import LLAMA_8B

    vocab = bench.size(LLAMA_8B["vocab_size"], 320)
    rows = []
    for dtype in ("bfloat16", "fp8", "int4"):
        engine = bench.engine(
            LLAMA_8B, dtype=dtype, max_num_seqs=256, max_num_batched_tokens=8192, max_model_len=16384,
            speculation="off",
        )  # fmt: skip
        read_bytes = _bytes_of(engine.runner.decoder)
        for batch in (1, 8, 64, 256) if not bench.dry_run else (1, 2):
            step_s, context, gap_s = _decode_step_s(bench, engine, batch, vocab)
            kv_bytes = batch * context * engine.runner.kv_bytes_per_token
            row = {
                "dtype": dtype, "batch": batch, "tokens_per_s": batch / step_s, "step_s": step_s,
                "gap_s": gap_s, "gb_s": (read_bytes + kv_bytes) / step_s / 1e9,
            }  # fmt: skip
            if "ceilings" in bench.results:
                row["share_of_copy"] = row["gb_s"] / bench.results["ceilings"]["copy_gb_s"]
            rows.append(row)
        for length in (bench.size(1024, 5), bench.size(8192, 9)):
            rows.append({"dtype": dtype, "prompt": length, "ttft_s": _ttft_s(bench, engine, length, vocab)})
        del engine
        bench.free()
    return rows


def _bytes_of(decoder: Any) -> int:
    """Bytes of weights that a decode step reads."""
    import torch

    def size(value: object) -> int:
        if isinstance(value, torch.Tensor):
            return value.numel() * value.element_size()
        return sum(size(part) for part in vars(value).values()) if hasattr(value, "__dict__") else 0

    layers = sum(size(part) for layer in decoder.layers for name, part in vars(layer).items() if name != "config")
    return layers + size(decoder.norm) + size(decoder.head)


def _decode_step_s(bench: Bench, engine: Any, batch: int, vocab: int) -> tuple[float, int, float]:
    """(median seconds of a step in which every sequence decodes, mean context, seconds beside the recorded layers)."""
    import torch

    from engine import SamplingParams

    steps = bench.size(48, 1)
    prompts = _prompts(bench, batch, bench.size(128, 4), bench.size(128, 4), vocab, seed=batch)
    params = SamplingParams(max_tokens=steps + 8, temperature=0, ignore_eos=True)
    for prompt in prompts:
        engine.add(engine.make_requests(prompt, params))
    while engine.scheduler.waiting or any(not request.is_decoding for request in engine.scheduler.running):
        _step(engine)
    _step(engine)
    times, replay_times = [], []
    for _ in range(steps):
        bench.synchronize()
        start = time.perf_counter()
        _step(engine)
        bench.synchronize()
        times.append(time.perf_counter() - start)
    context = sum(request.num_tokens for request in engine.scheduler.running) // max(1, len(engine.scheduler.running))
    graphs = engine.runner.decoder.graphs
    if not bench.dry_run and graphs is not None:
        # The recorded layers alone, again and again: the rest of a step is the head, sampling and the scheduler.
        bucket = next(size for size in graphs.buckets if size >= batch)
        for _ in range(10):
            begin, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
            begin.record()
            graphs._replays[1, bucket]()
            end.record()
            end.synchronize()
            replay_times.append(begin.elapsed_time(end) / 1e3)
    while engine.has_work:
        _step(engine)
    median = sorted(times)[len(times) // 2]
    return median, context, median - sorted(replay_times)[len(replay_times) // 2] if replay_times else 0.0


def _step(engine: Any) -> None:
    for delta in engine.step():
        if delta.error is not None:
            raise delta.error


def _ttft_s(bench: Bench, engine: Any, length: int, vocab: int, seed: int = 99) -> float:
    from engine import SamplingParams

    params = SamplingParams(max_tokens=1, temperature=0, ignore_eos=True)
    times = []
    for attempt in range(1 if bench.dry_run else 4):
        (prompt,) = _prompts(bench, 1, length, length, vocab, seed=seed + attempt)
        bench.synchronize()
        start = time.perf_counter()
        engine.generate(prompt, params)
        times.append(time.perf_counter() - start)
    return min(times)


def offline(bench: Bench) -> dict[str, float]:
    """nano-vllm's recipe on Qwen3-0.6B's shapes: 256 sequences, 100 to 1,024 random tokens in and out."""
    from benchmarks.random_model import QWEN3_600M
    from engine import SamplingParams

    vocab = bench.size(QWEN3_600M["vocab_size"], 320)
    count, least, most = bench.size(256, 3), bench.size(100, 2), bench.size(1024, 4)
    engine = bench.engine(
        QWEN3_600M, dtype="bfloat16", max_num_seqs=256, max_num_batched_tokens=16384, max_model_len=4096,
        speculation="off",
    )  # fmt: skip
    draw = random.Random(0)
    prompts = _prompts(bench, count, least, most, vocab)
    lengths = [draw.randint(least, most) for _ in prompts]
    engine.generate(prompts[0], SamplingParams(max_tokens=2, ignore_eos=True))
    for prompt, length in zip(prompts, lengths, strict=True):
        params = SamplingParams(max_tokens=length, temperature=0.6, seed=1, ignore_eos=True)
        engine.add(engine.make_requests(prompt, params))
    bench.synchronize()
    start = time.perf_counter()
    while engine.has_work:
        _step(engine)
    seconds = time.perf_counter() - start
    del engine
    bench.free()
    return {"output_tokens": sum(lengths), "seconds": seconds, "tokens_per_s": sum(lengths) / seconds}


def peer(bench: Bench) -> dict[str, float]:
    """transformers with a static cache and torch.compile: Qwen3-0.6B's shapes, 256 sequences decoding together."""
    import torch
    from transformers import Qwen3Config, Qwen3ForCausalLM, StaticCache

    from benchmarks.random_model import QWEN3_600M, SMALL

    fields = {**QWEN3_600M, **(SMALL if bench.dry_run else {})}
    config = Qwen3Config(**{key: value for key, value in fields.items() if key != "architectures"})
    batch, prompt_len, steps = bench.size(256, 2), bench.size(512, 4), bench.size(128, 2)
    dtype = torch.float32 if bench.dry_run else torch.bfloat16
    with torch.device(bench.device):
        model = Qwen3ForCausalLM(config).to(dtype).eval()
    cache = StaticCache(config=config, max_cache_len=prompt_len + steps + 8)
    ids = torch.randint(0, config.vocab_size, (batch, prompt_len), device=bench.device)
    forward = model.forward if bench.dry_run else torch.compile(model.forward, mode="reduce-overhead", fullgraph=True)
    with torch.inference_mode():
        # A few rows at a time would need caches of their own: prompts are read at once, without logits but the last.
        logits = model(ids, past_key_values=cache, logits_to_keep=1).logits
        token = logits[:, -1:].argmax(-1)
        position = prompt_len

        def step(token: torch.Tensor, position: int) -> torch.Tensor:
            place = torch.tensor([position], device=bench.device)
            out = forward(token, past_key_values=cache, position_ids=place[None].expand(batch, 1), cache_position=place)
            best: torch.Tensor = out.logits[:, -1:].argmax(-1).clone()
            return best

        for _ in range(1 if bench.dry_run else 4):  # compiles and records
            token = step(token, position)
            position += 1
        bench.synchronize()
        start = time.perf_counter()
        for _ in range(steps):
            token = step(token, position)
            position += 1
        bench.synchronize()
        seconds = time.perf_counter() - start
    return {"batch": batch, "tokens_per_s": batch * steps / seconds}


def prefix(bench: Bench) -> dict[str, float]:
    """Time to the first token of a prompt that the cache does not know, and of one it knows all but the end of."""
    from benchmarks.random_model import QWEN3_600M
    from engine import SamplingParams

    vocab, length = bench.size(QWEN3_600M["vocab_size"], 320), bench.size(8192, 20)
    engine = bench.engine(
        QWEN3_600M, dtype="bfloat16", max_num_seqs=8, max_num_batched_tokens=8192, max_model_len=16384,
        speculation="off",
    )  # fmt: skip
    miss = _ttft_s(bench, engine, length, vocab)
    (prompt,) = _prompts(bench, 1, length, length, vocab, seed=5)
    params = SamplingParams(max_tokens=1, temperature=0, ignore_eos=True)
    engine.generate(prompt, params)
    times = []
    for token in range(256, 256 + (1 if bench.dry_run else 4)):
        bench.synchronize()
        start = time.perf_counter()
        output = engine.generate([*prompt, token], params)
        times.append(time.perf_counter() - start)
    if output.num_cached_tokens < length - 16:
        raise AssertionError(f"{output.num_cached_tokens:,} of {length:,} tokens came from the cache")
    del engine
    bench.free()
    return {"prompt": length, "miss_s": miss, "hit_s": min(times)}


def show(name: str, result: Any) -> None:
    """Print a part's figures, one row a line."""
    print(f"\n{name}")
    for row in result if isinstance(result, list) else [result]:
        print("  " + "  ".join(f"{key} {_text(value)}" for key, value in row.items()))


def _text(value: Any) -> str:
    if isinstance(value, dict):
        return ", ".join(f"{key} {_text(part)}" for key, part in value.items())
    return f"{value:.4g}" if isinstance(value, float) else str(value)


def main() -> int:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--skip", default="", help=f"parts to leave out, with commas: {', '.join(PARTS)}")
    parser.add_argument("--only", default="", help="parts to run, with commas; all others are left out")
    parser.add_argument("--output", type=Path, help="JSON file; default: benchmarks/results/gpu-<card>.json")
    parser.add_argument("--dry-run", action="store_true", help="every part, tiny, on the CPU; measures nothing")
    arguments = parser.parse_args()
    skipped, chosen = ([part for part in text.split(",") if part] for text in (arguments.skip, arguments.only))
    unknown = [part for part in skipped + chosen if part not in PARTS]
    if unknown:
        parser.error(f"no part is called {', '.join(unknown)}; there are {', '.join(PARTS)}")
    if arguments.dry_run:
        # Before Triton is imported: what is jitted without them can not be interpreted.
        os.environ["TRITON_INTERPRET"], os.environ["RAGSTONE_KERNELS"] = "1", "triton"
    else:
        os.environ.pop("TRITON_INTERPRET", None)
    import torch

    from benchmarks.machine import describe_machine

    if not arguments.dry_run:
        if not torch.cuda.is_available():
            print("torch sees no CUDA device; --dry-run runs every part on the CPU", file=sys.stderr)
            return 2
        from kernels import why_no_triton

        reason = why_no_triton(torch.device("cuda"))
        if reason is not None:
            print(reason, file=sys.stderr)
            return 2
    bench = Bench(arguments.dry_run)
    failures = {}
    for part in PARTS:
        if part in skipped or (chosen and part not in chosen):
            continue
        if time.monotonic() - bench.start > LIMIT_S - 60:
            failures[part] = "left out: the nine minutes are nearly over"
            continue
        began = time.monotonic()
        try:
            bench.results[part] = globals()[part](bench)
        except Exception as error:
            traceback.print_exc()
            failures[part] = f"{type(error).__name__}: {error}"
            bench.free()
            continue
        if bench.dry_run:
            print(f"{part}: ran")
        else:
            show(f"{part} ({time.monotonic() - began:.0f} s)", bench.results[part])
    for part, failure in failures.items():
        print(f"{part} FAILED: {failure}", file=sys.stderr)
    if not arguments.dry_run:
        card = torch.cuda.get_device_name(0)
        name = "-".join(card.lower().split())
        output = arguments.output or Path(__file__).resolve().parent / "results" / f"gpu-{name}.json"
        record = {
            "card": card, "date": datetime.now(UTC).strftime("%Y-%m-%d"), "machine": describe_machine(),
            "results": bench.results, "failures": failures,
        }  # fmt: skip
        output.write_text(json.dumps(record, indent=1) + "\n", encoding="utf-8")
        print(f"\nwritten to {output}")
    return 1 if failures else 0


if __name__ == "__main__":
    sys.exit(main())
