"""`python benchmarks/gpu.py`: builds, checks and times the GPU path on one card, in under nine minutes.

Needs torch, triton, numpy, safetensors, tokenizers, jinja2 and transformers; makes its own random weights in the real
shapes. Prints a table and writes JSON. Every part can be left out: `--skip kernels,peer`. Every part has so many
seconds, and what the parts before it did not use; a part that needs more measures less and says what it left out.
`--dry-run` runs every part in Triton's interpreter on the CPU with sizes that mean nothing, so that the script is known
to work; its figures are neither printed nor kept.
"""

from __future__ import annotations

import argparse
import gc
import json
import os
import signal
import sys
import time
import traceback
from collections.abc import Callable
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

# Seconds that each may take. The peer goes last, since its compiler cannot be told to be quick.
PARTS = {
    "ceilings": 10, "kernels": 90, "equivalences": 70, "decode": 150, "overlap": 30, "offline": 50, "prefix": 20,
    "peer": 105,
}  # fmt: skip
LIMIT_S = 530


class OutOfTimeError(Exception):
    """The nine minutes are over."""


class Bench:
    """What the parts share: the device, sizes for it, and what has been measured so far."""

    def __init__(self, dry_run: bool) -> None:
        import torch

        self.dry_run = dry_run
        self.device = torch.device("cpu" if dry_run else "cuda")
        self.dtype = torch.float16 if dry_run else torch.bfloat16
        self.results: dict[str, Any] = {}
        self.left_out: list[str] = []
        self.start = time.monotonic()
        self.deadline = self.start

    def has_time(self, what: str) -> bool:
        """Whether the part may still begin to measure `what`; notes what it may not."""
        if self.dry_run or time.monotonic() < self.deadline:
            return True
        self.left_out.append(what)
        return False

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

    def engine(self, fields: dict[str, Any], *, int4_group: int | None = None, **settings: Any) -> Any:
        """An engine over random weights, stored in 4 bits as AWQ and GPTQ do where there is an `int4_group`."""
        from benchmarks.random_model import SMALL, make_engine

        if self.dry_run:
            fields = {**fields, **SMALL}
            settings |= {"max_num_seqs": 2, "max_num_batched_tokens": 32, "num_kv_blocks": 64, "max_model_len": 128}
            settings["dtype"] = settings["dtype"] if settings["dtype"] in ("fp8", "int4") else "float32"
            settings["device"] = "cpu"
            int4_group = 32 if int4_group else None
        else:
            settings["device"] = "cuda"
        return make_engine("random", fields, int4_group=int4_group, **settings)


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
        if not bench.has_time(case.name):
            continue
        out, expected = case.result().double(), case.expected().double()
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


def show(name: str, result: Any) -> None:
    """Print a part's figures, one row a line."""
    print(f"\n{name}")
    for row in result if isinstance(result, list) else [result]:
        print("  " + "  ".join(f"{key} {_text(value)}" for key, value in row.items()))


def _text(value: Any) -> str:
    if isinstance(value, dict):
        return ", ".join(f"{key} {_text(part)}" for key, part in value.items())
    return f"{value:.4g}" if isinstance(value, float) else str(value)


def run_parts(bench: Bench, parts: list[str]) -> dict[str, str]:
    """Run and show the parts, each within its time; returns what went wrong, by part."""

    def stop(*_: object) -> None:
        raise OutOfTimeError(f"the {LIMIT_S} seconds of all parts are over")

    from benchmarks import gpu_engine

    failures = {}
    if not bench.dry_run:
        signal.signal(signal.SIGALRM, stop)
        signal.alarm(LIMIT_S)
        print("time budget: " + ", ".join(f"{part} {PARTS[part]} s" for part in parts) + f"; {LIMIT_S} s in all")
    for part in parts:
        began = time.monotonic()
        bench.deadline += PARTS[part]
        if not bench.has_time(part):
            continue
        try:
            bench.results[part] = (globals().get(part) or getattr(gpu_engine, part))(bench)
        except Exception as error:
            traceback.print_exc()
            failures[part] = f"{type(error).__name__}: {error}"
            bench.free()
            continue
        if bench.dry_run:
            print(f"{part}: ran")
        else:
            show(f"{part} ({time.monotonic() - began:.0f} of {PARTS[part]} s)", bench.results[part])
    signal.alarm(0)
    for what in bench.left_out:
        print(f"left out for want of time: {what}")
    for part, failure in failures.items():
        print(f"{part} FAILED: {failure}", file=sys.stderr)
    return failures


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

    from benchmarks.gpu_targets import targets
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
    parts = [part for part in PARTS if part not in skipped and (not chosen or part in chosen)]
    failures = run_parts(bench, parts)
    reached = targets(bench.results)
    if not arguments.dry_run:
        show("targets on an H200", reached)
        card = torch.cuda.get_device_name(0)
        name = "-".join(card.lower().split())
        output = arguments.output or Path(__file__).resolve().parent / "results" / f"gpu-{name}.json"
        record = {
            "card": card, "date": datetime.now(UTC).strftime("%Y-%m-%d"), "machine": describe_machine(),
            "results": bench.results, "targets": reached, "failures": failures, "left_out": bench.left_out,
        }  # fmt: skip
        output.write_text(json.dumps(record, indent=1) + "\n", encoding="utf-8")
        print(f"\nwritten to {output}")
    return 1 if failures else 0


if __name__ == "__main__":
    sys.exit(main())
