"""Parts of `benchmarks/gpu.py` that drive the engine over random weights."""

from __future__ import annotations

import random
import time
import warnings
from typing import TYPE_CHECKING, Any

from benchmarks.random_model import LLAMA_8B, QWEN3_600M
from engine import SamplingParams

if TYPE_CHECKING:
    from benchmarks.gpu import Bench


def _prompts(bench: Bench, count: int, least: int, most: int, vocab: int, seed: int = 0) -> list[list[int]]:
    draw = random.Random(seed)
    return [[draw.randrange(256, vocab - 1) for _ in range(draw.randint(least, most))] for _ in range(count)]


def equivalences(bench: Bench) -> dict[str, Any]:
    """Greedy tokens with graphs and without, with speculation and without, from a cold and a warm cache.

    In bfloat16 two ways of computing may break a near-tie in different ways, after which answers part: counted is how
    many agree in full, and the share of tokens before the first difference. The deterministic engine must agree to the
    token.
    """
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
    # Other numbers: how far answers go together says what float8 costs, no more.
    answers["float8 keys and values"] = answer(
        bench.engine(QWEN3_600M, speculation="off", kv_cache_dtype="fp8", **settings)
    )
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
    vocab = bench.size(LLAMA_8B["vocab_size"], 320)
    rows = []
    for dtype, kv_dtype in (("bfloat16", "auto"), ("fp8", "auto"), ("int4", "auto"), ("bfloat16", "fp8")):
        name = dtype if kv_dtype == "auto" else f"{dtype}, {kv_dtype} keys and values"
        if not bench.has_time(f"decode {name}"):
            continue
        engine = bench.engine(
            LLAMA_8B, dtype=dtype, kv_cache_dtype=kv_dtype, int4_group=128 if dtype == "int4" else None,
            max_num_seqs=256, max_num_batched_tokens=8192, max_model_len=16384, speculation="off",
        )  # fmt: skip
        read_bytes = _bytes_of(engine.runner.decoder)
        for batch in (1, 8, 64, 256) if not bench.dry_run else (1, 2):
            if not bench.has_time(f"decode {name} batch {batch}"):
                continue
            step_s, context, gap_s = _decode_step_s(bench, engine, batch, vocab)
            kv_bytes = batch * context * engine.runner.kv_bytes_per_token
            row = {
                "weights": name, "batch": batch, "tokens_per_s": batch / step_s, "step_s": step_s,
                "gap_s": gap_s, "gb_s": (read_bytes + kv_bytes) / step_s / 1e9,
            }  # fmt: skip
            if "ceilings" in bench.results:
                row["share_of_copy"] = row["gb_s"] / bench.results["ceilings"]["copy_gb_s"]
            rows.append(row)
        for length in (bench.size(1024, 5), bench.size(8192, 9)):
            if not bench.has_time(f"decode {name} prompt {length}"):
                continue
            ttft_s = _ttft_s(bench, engine, length, vocab)
            row = {"weights": name, "prompt": length, "ttft_s": ttft_s}
            if "ceilings" in bench.results:
                tflop_s = 2 * _layer_parameters(engine.runner.decoder) * length / ttft_s / 1e12
                row["share_of_product"] = tflop_s / bench.results["ceilings"]["product_tflop_s"]
            rows.append(row)
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


def _layer_parameters(decoder: Any) -> int:
    """Weights that every token of a prompt is multiplied with: all but the embeddings and the head."""
    config = decoder.config
    ends: int = config.vocab_size * config.hidden_size * (1 if config.tie_embeddings else 2)
    return int(decoder.num_parameters) - ends


def _decode_step_s(bench: Bench, engine: Any, batch: int, vocab: int) -> tuple[float, int, float]:
    """(median seconds of a step in which every sequence decodes, mean context, seconds beside the recorded layers)."""
    steps = bench.size(48, 1)
    prompts = _prompts(bench, batch, bench.size(128, 4), bench.size(128, 4), vocab, seed=batch)
    params = SamplingParams(max_tokens=steps + 8, temperature=0, ignore_eos=True)
    for prompt in prompts:
        engine.add(engine.make_requests(prompt, params))
    _read_prompts(engine)
    _step(engine)
    times = []
    for _ in range(steps):
        bench.synchronize()
        start = time.perf_counter()
        _step(engine)
        bench.synchronize()
        times.append(time.perf_counter() - start)
    context = sum(request.num_tokens for request in engine.scheduler.running) // max(1, len(engine.scheduler.running))
    median, replay_s = sorted(times)[len(times) // 2], _replay_s(bench, engine, batch)
    while engine.has_work:
        _step(engine)
    return median, context, median - replay_s if replay_s else 0.0


def _read_prompts(engine: Any) -> None:
    while engine.scheduler.waiting or any(not request.is_decoding for request in engine.scheduler.running):
        _step(engine)


def _replay_s(bench: Bench, engine: Any, batch: int) -> float:
    """Seconds of the recorded layers alone, again and again; the rest of a step is the head, sampling, the scheduler.

    0 where nothing is recorded.
    """
    import torch

    graphs = engine.runner.decoder.graphs
    if bench.dry_run or graphs is None:
        return 0.0
    bucket = next(size for size in graphs.buckets if size >= batch)
    times = []
    for _ in range(10):
        begin, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
        begin.record()
        graphs._replays[1, bucket]()
        end.record()
        end.synchronize()
        times.append(begin.elapsed_time(end) / 1e3)
    return sorted(times)[len(times) // 2]


def overlap(bench: Bench) -> list[dict[str, Any]]:
    """Qwen3-0.6B's shapes, decoding with overlapped scheduling and without: tokens a second, seconds between replays.

    Requests are greedy, drawn, penalised, biased and kept from ending in turn; both ways must give the same tokens.
    """
    vocab, steps = bench.size(QWEN3_600M["vocab_size"], 320), bench.size(128, 2)
    engine = bench.engine(
        QWEN3_600M, dtype="bfloat16", max_num_seqs=256, max_num_batched_tokens=16384, max_model_len=4096,
        speculation="off", enable_prefix_caching=False, overlap_scheduling=True,
    )  # fmt: skip
    rows = []
    for batch in (1, 64, 256) if not bench.dry_run else (2,):
        if not bench.has_time(f"overlap batch {batch}"):
            continue
        # Prompts that are read in one step, so that both ways compute the same steps.
        prompts = _prompts(bench, batch, bench.size(64, 4), bench.size(64, 4), vocab, seed=batch)
        row: dict[str, Any] = {"batch": batch}
        answers = {}
        for name, overlaps in (("one by one", False), ("overlapped", True)):
            engine.launcher.overlaps, before = overlaps, engine.num_overlapped_steps
            answers[name], step_s, gap_s = _decode_together(bench, engine, prompts, steps)
            if (engine.num_overlapped_steps > before) != overlaps:
                raise AssertionError(f"{engine.num_overlapped_steps - before} steps were overlapped ({name})")
            row[name] = {"tokens_per_s": batch / step_s, "gap_s": gap_s}
        if answers["one by one"] != answers["overlapped"]:
            raise AssertionError(f"overlapped scheduling gives other tokens at batch {batch}")
        row["waits_per_step"] = _waits_per_step(bench, engine, prompts, steps)
        rows.append(row)
    del engine
    bench.free()
    return rows


def _decode_together(
    bench: Bench, engine: Any, prompts: list[list[int]], steps: int
) -> tuple[list[list[int]], float, float]:
    """(answers, mean seconds of a step in which all decode, those beside the recorded layers).

    The device is not waited for between steps, other than the engine does by itself.
    """
    requests = _begin(engine, prompts, steps)
    bench.synchronize()
    start = time.perf_counter()
    for _ in range(steps):
        _step(engine)
    bench.synchronize()
    step_s = (time.perf_counter() - start) / steps
    while engine.has_work:
        _step(engine)
    replay_s = _replay_s(bench, engine, len(prompts))
    return [request.output_token_ids for request in requests], step_s, step_s - replay_s if replay_s else 0.0


def _begin(engine: Any, prompts: list[list[int]], steps: int) -> list[Any]:
    """Requests of every kind that a GPU chooses tokens for, all of them decoding."""
    kinds: list[dict[str, Any]] = [
        {"temperature": 0}, {"top_p": 0.95}, {"frequency_penalty": 0.3}, {"logit_bias": {300: 5.0}, "logprobs": 2},
        {"min_tokens": steps, "stop_token_ids": [301, 302]},
    ]  # fmt: skip
    requests = []
    for index, prompt in enumerate(prompts):
        params = SamplingParams(max_tokens=steps + 8, seed=index, ignore_eos=True, **kinds[index % len(kinds)])
        requests += engine.make_requests(prompt, params)
        engine.add(requests[-1:])
    _read_prompts(engine)
    _step(engine)
    return requests


def _waits_per_step(bench: Bench, engine: Any, prompts: list[list[int]], steps: int) -> float:
    """How often in a step torch waits for the device by itself, beside the copy of the tokens: 0 is wanted."""
    import torch

    _begin(engine, prompts, steps)
    with warnings.catch_warnings(record=True) as seen:
        warnings.simplefilter("always")
        if not bench.dry_run:
            torch.cuda.set_sync_debug_mode("warn")
        for _ in range(steps // 2):
            _step(engine)
        if not bench.dry_run:
            torch.cuda.set_sync_debug_mode("default")
    while engine.has_work:
        _step(engine)
    return sum("synchroniz" in str(warning.message) for warning in seen) / (steps // 2)


def _step(engine: Any) -> None:
    for delta in engine.step():
        if delta.error is not None:
            raise delta.error


def _ttft_s(bench: Bench, engine: Any, length: int, vocab: int, seed: int = 99) -> float:

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


def prefix(bench: Bench) -> dict[str, float]:
    """Time to the first token of a prompt that the cache does not know, and of one it knows all but the end of."""
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
