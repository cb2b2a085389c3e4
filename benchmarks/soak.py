"""Mixed load on one engine for a long time: does it leak blocks, memory, tasks or threads, and stay even?

    python -m benchmarks.soak --model path/to/model.gguf --minutes 20

Prints a line a minute and a table at the end, writes the figures as JSON, and exits with 1 if something leaked.
A kind of request is an entry of KINDS; add speculative or structured ones there.
"""

from __future__ import annotations

import argparse
import asyncio
import gc
import json
import os
import random
import threading
import time
from collections import Counter, deque
from collections.abc import Callable
from contextlib import aclosing
from dataclasses import asdict, dataclass, field
from pathlib import Path
from statistics import quantiles
from typing import Any

from benchmarks.engine_costs import default_model
from benchmarks.machine import describe_machine
from engine import AsyncEngine, EngineConfig, SamplingParams, errors
from engine.request import PRIORITIES

# Growth of resident memory, from the end of the first minute to the end, that counts as a leak.
LEAK_BYTES = 64 << 20
# Gaps that are kept, the newest; all of them would look like a leak.
NUM_GAPS = 100_000
NUM_TENANTS = 5
MOST_THREADS = 8 + (os.cpu_count() or 1)
FILLING_TOKENS = 1000
PAGE = os.sysconf("SC_PAGE_SIZE")


@dataclass(frozen=True)
class Order:
    """One request of the load. `abort_after` deltas it is given up; `deadline_s` is the engine's to keep."""

    prompt: list[int]
    params: SamplingParams
    abort_after: int | None = None
    deadline_s: float | None = None


@dataclass
class Figures:
    """What the run showed."""

    minutes: float = 0.0
    outcomes: Counter[str] = field(default_factory=Counter)
    num_tokens: int = 0
    gaps_s: deque[float] = field(default_factory=lambda: deque(maxlen=NUM_GAPS))
    rss_bytes: list[int] = field(default_factory=list)
    num_preemptions: int = 0
    leaks: list[str] = field(default_factory=list)


Kind = Callable[[random.Random, "Prompts"], Order]


class Prompts:
    """Prompts of random tokens, some of which begin alike."""

    def __init__(self, engine: AsyncEngine, rng: random.Random) -> None:
        self.vocab_size = engine.vocab_size
        self.longest = engine.max_model_len // 2
        self.prefixes = [self.fresh(rng, 200) for _ in range(4)]

    def fresh(self, rng: random.Random, length: int) -> list[int]:
        low = min(100, self.vocab_size // 2)
        return [rng.randrange(low, self.vocab_size) for _ in range(min(length, self.longest))]


def short(rng: random.Random, prompts: Prompts) -> Order:
    """A few tokens in, a few out."""
    return Order(prompts.fresh(rng, rng.randint(1, 60)), SamplingParams(max_tokens=rng.randint(1, 40), temperature=0))


def shared(rng: random.Random, prompts: Prompts) -> Order:
    """Begins like others do, and is sampled with a seed."""
    prompt = rng.choice(prompts.prefixes) + prompts.fresh(rng, rng.randint(1, 80))
    return Order(prompt[: prompts.longest], SamplingParams(max_tokens=32, temperature=1.0, seed=rng.randint(0, 9)))


def long(rng: random.Random, prompts: Prompts) -> Order:
    """A long prompt and a short answer."""
    return Order(prompts.fresh(rng, rng.randint(500, 2000)), SamplingParams(max_tokens=8, temperature=0.7))


def many(rng: random.Random, prompts: Prompts) -> Order:
    """Several answers to one prompt, with stop strings."""
    params = SamplingParams(max_tokens=24, n=3, temperature=1.0, stop=("the", "\n\n"))
    return Order(prompts.fresh(rng, 40), params)


def aborted(rng: random.Random, prompts: Prompts) -> Order:
    """Given up by its reader, perhaps before the first token."""
    params = SamplingParams(max_tokens=64, ignore_eos=True)
    return Order(prompts.fresh(rng, rng.randint(10, 400)), params, abort_after=rng.randint(0, 10))


def late(rng: random.Random, prompts: Prompts) -> Order:
    """With a deadline that it often misses."""
    params = SamplingParams(max_tokens=64, ignore_eos=True)
    return Order(prompts.fresh(rng, 100), params, deadline_s=rng.uniform(0.05, 3.0))


def refused(rng: random.Random, prompts: Prompts) -> Order:
    """Can never fit."""
    return Order([5] * (2 * prompts.longest + 1), SamplingParams(max_tokens=1))


def repeating(rng: random.Random, prompts: Prompts) -> Order:
    """Repeats itself, so that n-grams draft it."""
    passage = prompts.fresh(rng, 40)
    return Order(passage * 3, SamplingParams(max_tokens=48, temperature=0, ignore_eos=True))


def structured(rng: random.Random, prompts: Prompts) -> Order:
    """Held to a schema."""
    params = SamplingParams(max_tokens=48, temperature=1.0, json_schema=SCHEMA)
    return Order(prompts.fresh(rng, 30), params)


SCHEMA = {
    "type": "object",
    "properties": {"name": {"type": "string", "maxLength": 12}, "count": {"type": "integer"}},
    "required": ["name", "count"],
    "additionalProperties": False,
}
# Kinds of requests with their weights.
KINDS: list[tuple[Kind, int]] = [
    (short, 8),
    (shared, 6),
    (long, 2),
    (many, 2),
    (aborted, 3),
    (late, 3),
    (refused, 1),
    (repeating, 3),
    (structured, 2),
]


async def serve(engine: AsyncEngine, order: Order, rng: random.Random, figures: Figures) -> str:
    """Read one request to its end, and say how it ended."""
    seen, last = 0, None
    stream = engine.stream(
        order.prompt,
        order.params,
        tenant=f"tenant-{rng.randrange(NUM_TENANTS)}",
        priority=rng.choice(PRIORITIES),
        deadline_s=order.deadline_s,
    )
    try:
        if order.abort_after == 0:
            # Given up while it waits or reads its prompt.
            await asyncio.wait_for(anext(stream), timeout=0.02)
        async with aclosing(stream) as deltas:  # type: ignore[type-var]
            async for delta in deltas:
                now = time.monotonic()
                if last is not None and order.params.n == 1:
                    figures.gaps_s.append(now - last)
                last, seen = now, seen + 1
                figures.num_tokens += len(delta.token_ids)
                if order.abort_after is not None and seen >= order.abort_after:
                    return "aborted"
    except TimeoutError:
        return "aborted"
    except errors.EngineError as error:
        return error.code
    return "finished"


async def client(engine: AsyncEngine, prompts: Prompts, seed: int, until: float, figures: Figures) -> None:
    """One user after another until the time is over."""
    rng = random.Random(seed)
    kinds, weights = zip(*KINDS, strict=True)
    while time.monotonic() < until:
        kind: Kind = rng.choices(kinds, weights)[0]
        outcome = await serve(engine, kind(rng, prompts), rng, figures)
        figures.outcomes[outcome] += 1
        await asyncio.sleep(rng.expovariate(5.0))


async def watch(engine: AsyncEngine, until: float, figures: Figures) -> None:
    """Note memory once a minute; without it the run would say only how it ended."""
    while (left := until - time.monotonic()) > 0:
        await asyncio.sleep(min(60.0, left))
        figures.rss_bytes.append(rss())
        stats = engine.stats()
        print(
            f"{len(figures.rss_bytes) - 1:4} min  {figures.rss_bytes[-1] >> 20:6,} MB  {figures.num_tokens:9,} tokens  "
            f"running {stats.num_running}, waiting {stats.num_waiting}, preempted {stats.num_preemptions}  "
            f"{engine.check_health()}",
            flush=True,
        )


async def soak(engine: AsyncEngine, minutes: float, num_clients: int, seed: int) -> Figures:
    """Run the load, let the engine come to rest, and look for what did not come back."""
    figures = Figures(minutes=minutes)
    prompts = Prompts(engine, random.Random(seed))
    await fill_pool(engine, prompts, random.Random(seed))
    num_tasks = len(asyncio.all_tasks())
    figures.rss_bytes.append(rss())
    until = time.monotonic() + 60 * minutes
    await asyncio.gather(
        watch(engine, until, figures),
        *(client(engine, prompts, seed + 1 + number, until, figures) for number in range(num_clients)),
    )
    await rest(engine)
    gc.collect()
    figures.rss_bytes.append(rss())
    stats = engine.stats()
    figures.num_preemptions = stats.num_preemptions
    checks = {
        "blocks": (stats.num_free_blocks + stats.num_pinned_blocks, stats.num_kv_blocks),
        "requests": (stats.num_running + stats.num_waiting, 0),
        "tasks": (len(asyncio.all_tasks()), num_tasks),
    }
    figures.leaks += [f"{name}: {now}, expected {then}" for name, (now, then) in checks.items() if now != then]
    # Threads are made with the first request of a kind and kept; a leak has one for each of many requests.
    if threading.active_count() > MOST_THREADS:
        figures.leaks.append(f"threads: {threading.active_count()}, expected at most {MOST_THREADS}")
    # The first minute fills caches.
    grown = figures.rss_bytes[-1] - figures.rss_bytes[min(1, len(figures.rss_bytes) - 1)]
    if grown > LEAK_BYTES:
        figures.leaks.append(f"memory: grew by {grown >> 20:,} MB after the first minute")
    if engine.check_health() != "ready":
        figures.leaks.append(f"health: {engine.check_health()}")
    return figures


async def fill_pool(engine: AsyncEngine, prompts: Prompts, rng: random.Random) -> None:
    """Have every block written once: a pool's pages are mapped as they are first used, which would look like a leak."""
    left = engine.stats().num_kv_blocks * engine.engine.config.block_size
    while left > 0:
        output = await engine.generate(
            prompts.fresh(rng, min(FILLING_TOKENS, engine.max_model_len // 2)), SamplingParams(max_tokens=1)
        )
        left -= len(output.prompt_token_ids)


async def rest(engine: AsyncEngine) -> None:
    """Wait until the engine is idle; aborts are still on their way to it."""
    for _ in range(600):
        stats = engine.stats()
        if stats.num_running + stats.num_waiting == 0:
            return
        await asyncio.sleep(0.1)


def rss() -> int:
    """Resident memory of this process in bytes."""
    return int(Path("/proc/self/statm").read_text().split()[1]) * PAGE


def report(figures: Figures) -> dict[str, Any]:
    """The figures as they are written, after printing them as a table."""
    gaps = quantiles(figures.gaps_s, n=100) if len(figures.gaps_s) > 1 else [0.0] * 99
    result = asdict(figures) | {
        "outcomes": dict(figures.outcomes),  # which `asdict` cannot copy
        "gaps_s": {"p50": gaps[49], "p95": gaps[94]},
        "tokens_per_s": figures.num_tokens / (60 * figures.minutes),
        "machine": describe_machine(),
    }
    rows = [
        ("minutes", f"{figures.minutes:g}"),
        ("requests", ", ".join(f"{name} {number:,}" for name, number in sorted(figures.outcomes.items()))),
        ("tokens/s", f"{result['tokens_per_s']:,.1f}"),
        ("gap p50 / p95", f"{gaps[49] * 1000:.1f} / {gaps[94] * 1000:.1f} ms"),
        ("memory start / after 1 min / end", " / ".join(f"{figures.rss_bytes[i] >> 20:,} MB" for i in (0, 1, -1))),
        ("preemptions", f"{figures.num_preemptions:,}"),
        ("leaks", "; ".join(figures.leaks) or "none"),
        ("machine", result["machine"]),
    ]
    for name, value in rows:
        print(f"{name:34} {value}")
    return result


def main() -> int:
    """Parse the command line, run, and say by the exit status whether anything leaked."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--model", help="a GGUF file or a folder of safetensors (default: the packaged model)")
    parser.add_argument("--minutes", type=float, default=20.0)
    parser.add_argument("--clients", type=int, default=12)
    parser.add_argument("--num-kv-blocks", type=int, help="a small pool makes requests preempt each other")
    parser.add_argument("--max-queue-size", type=int, default=8)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--json", type=Path, help="where to write the figures")
    args = parser.parse_args()
    config = EngineConfig(
        model=args.model or default_model(),
        num_kv_blocks=args.num_kv_blocks,
        max_num_seqs=6,
        max_queue_size=args.max_queue_size,
    )
    engine = AsyncEngine(config)
    engine.start()
    figures = asyncio.run(soak(engine, args.minutes, args.clients, args.seed))
    if not engine.drain(10.0):
        figures.leaks.append("draining: requests were left")
    result = report(figures)
    if args.json is not None:
        args.json.write_text(json.dumps(result, indent=2) + "\n")
    return 1 if figures.leaks else 0


if __name__ == "__main__":
    raise SystemExit(main())
