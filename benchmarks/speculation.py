"""What n-gram speculation brings: tokens a second with and without it, prompt by prompt, as table and JSON.

    python -m benchmarks.speculation [--runs 7] [--prompts N] [--max-tokens 128] [--json FILE]
    python -m benchmarks.speculation --write-prompts

The prompts are those of `data/eval/speculation.jsonl`: questions with passages as the app lays them out, the same with
a request to quote, and tasks without passages. One engine answers each prompt with speculation switched on and off in
turn, greedily, from a warm prefix cache, so that what is timed is decoding. `--write-prompts` makes the file anew.
"""

import argparse
import json
import statistics
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from benchmarks.machine import describe_machine
from engine import Engine, EngineConfig, SamplingParams
from engine.outputs import RequestOutput

DATA = Path(__file__).resolve().parents[1] / "data"
PROMPTS = DATA / "eval" / "speculation.jsonl"
KINDS = ("rag", "quote", "open")
NUM_PASSAGES, PASSAGE_TOKENS = 4, 1024
LEAST = {"quote mean_ratio": 2.0, "all worst_ratio": 0.9, "all mean_ratio": 0.98}

QUOTE_REQUESTS = (
    "Repeat passage [1] word for word.",
    "Copy the last passage above exactly as it stands, and add nothing.",
    "Quote the first passage in full, word for word, between quotation marks.",
    "Write out passage [2] again, exactly, word for word.",
    "Quote the sentences that answer this, word for word: {question}",
)
OPEN_TASKS = (
    "Write a short story about a lighthouse keeper who finds a letter in a bottle.",
    "Explain to a child of eight why the sky is blue.",
    "Give me a recipe for a vegetable soup for four people.",
    "Write a polite email to my landlord about a heating that does not work.",
    "What should I look at on a first visit to Rome?",
    "Write a poem of three stanzas about autumn.",
    "Describe how a bicycle stays upright.",
    "Suggest five names for a small bakery and say why each one fits.",
    "Write a dialogue between a cat and a dog who share a sofa.",
    "How do I prepare for a job interview as a nurse?",
)


def main() -> None:
    """Measures, or writes the prompts."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--model", type=Path, help="chat model (default: the packaged one)")
    parser.add_argument("--runs", type=int, default=7, help="timed runs of each prompt in each mode")
    parser.add_argument("--prompts", type=int, help="only so many prompts, taken evenly from all kinds")
    parser.add_argument("--max-tokens", type=int, default=128, help="longest answer")
    parser.add_argument("--json", type=Path, help="also write the figures to this file")
    parser.add_argument("--write-prompts", action="store_true", help="write data/eval/speculation.jsonl and stop")
    options = parser.parse_args()
    model = options.model or _packaged("smollm2-135m-instruct")
    if options.write_prompts:
        lines = [json.dumps(prompt, ensure_ascii=False) for prompt in make_prompts(Engine(EngineConfig(model=model)))]
        PROMPTS.write_text("\n".join(lines) + "\n", encoding="utf-8")
        return
    figures = measure(model, options.runs, options.prompts, options.max_tokens)
    if options.json is not None:
        options.json.write_text(
            json.dumps({"machine": describe_machine(), **figures}, indent=2) + "\n", encoding="utf-8"
        )


def measure(model: Path, runs: int, num_prompts: int | None = None, max_tokens: int = 128) -> dict[str, Any]:
    """Measures the prompts and prints them, a line each, and the table by kind."""
    engine = Engine(EngineConfig(model=model, speculation="ngram"))
    params = SamplingParams(max_tokens=max_tokens, temperature=0)
    results = []
    for prompt in choose(read_prompts(), num_prompts):
        results.append(measure_prompt(engine, prompt, params, runs))
        print(row(results[-1]), flush=True)
    summary = {kind: summarise([r for r in results if r["kind"] == kind]) for kind in KINDS}
    summary["all"] = summarise(results)
    print_summary(summary)
    for name, least in LEAST.items():
        kind, figure = name.split(" ")
        if summary[kind]["prompts"]:
            print(f"{name:18} {summary[kind][figure]:.2f}, at least {least:.2f}")
    return {"runs": runs, "summary": summary, "prompts": results}


def measure_prompt(engine: Engine, prompt: dict[str, Any], params: SamplingParams, runs: int) -> dict[str, Any]:
    """Medians of `runs` interleaved runs of one prompt, and what came of its drafts in the timed ones."""
    token_ids = engine.render_chat(prompt["messages"])
    speculator = engine.speculator
    speeds: dict[str, list[float]] = {"plain": [], "ngram": []}
    answers: dict[str, list[int]] = {}
    counts: dict[str, int] = {"steps": 0, "tokens": 0, "drafts": 0, "drafted": 0, "accepted": 0}
    for turn in range(runs + 1):
        # Whoever runs second finds caches warm: the order changes from run to run.
        for mode in ("plain", "ngram") if turn % 2 else ("ngram", "plain"):
            engine.speculator = speculator if mode == "ngram" else None
            before = engine.stats()
            output, seconds = _timed(engine, token_ids, params)
            answers[mode] = output.token_ids
            if turn == 0:
                continue  # fills the prefix cache
            speeds[mode].append(len(output.token_ids) / seconds)
            if mode == "ngram":
                after = engine.stats()
                counts["steps"] += after.num_steps - before.num_steps
                counts["tokens"] += len(output.token_ids)
                counts["drafts"] += after.num_drafts - before.num_drafts
                counts["drafted"] += after.num_draft_tokens - before.num_draft_tokens
                counts["accepted"] += after.num_accepted_tokens - before.num_accepted_tokens
    engine.speculator = speculator
    plain, ngram = (statistics.median(speeds[mode]) for mode in ("plain", "ngram"))
    return {
        "id": prompt["id"],
        "kind": prompt["kind"],
        "num_prompt_tokens": len(token_ids),
        "plain_tokens_per_s": plain,
        "ngram_tokens_per_s": ngram,
        "ratio": ngram / plain,
        "same_tokens": answers["plain"] == answers["ngram"],
        **counts,
    }


def summarise(results: list[dict[str, Any]]) -> dict[str, Any]:
    """Mean and worst ratio, acceptance, and tokens of a step, over some prompts."""
    if not results:
        return {"prompts": 0}
    total = {name: sum(result[name] for result in results) for name in ("steps", "tokens", "drafted", "accepted")}
    return {
        "prompts": len(results),
        "mean_ratio": statistics.mean(result["ratio"] for result in results),
        "worst_ratio": min(result["ratio"] for result in results),
        "best_ratio": max(result["ratio"] for result in results),
        "acceptance": total["accepted"] / total["drafted"] if total["drafted"] else None,
        "tokens_per_step": total["tokens"] / total["steps"],
        "same_tokens": sum(result["same_tokens"] for result in results),
    }


def row(result: dict[str, Any]) -> str:
    """One prompt as a line of the table."""
    return (
        f"{result['id']:5} {result['kind']:6} {result['num_prompt_tokens']:5} prompt tokens   "
        f"plain {result['plain_tokens_per_s']:6.1f}   ngram {result['ngram_tokens_per_s']:6.1f} tok/s   "
        f"x{result['ratio']:.2f}   accepted {result['accepted']} of {result['drafted']}   "
        f"{result['tokens'] / result['steps']:.2f} tokens a step"
    )


def print_summary(summary: dict[str, dict[str, Any]]) -> None:
    """The table by kind of prompt."""
    print("\nkind   prompts   mean ratio   worst    best   acceptance   tokens a step   same tokens")
    for kind, figures in summary.items():
        if not figures["prompts"]:
            continue
        acceptance = "-" if figures["acceptance"] is None else f"{figures['acceptance']:.2f}"
        print(
            f"{kind:6} {figures['prompts']:7} {figures['mean_ratio']:12.2f} {figures['worst_ratio']:7.2f} "
            f"{figures['best_ratio']:7.2f} {acceptance:>12} {figures['tokens_per_step']:15.2f} "
            f"{figures['same_tokens']:>6} of {figures['prompts']}"
        )


def read_prompts() -> list[dict[str, Any]]:
    """All prompts: {id, kind, messages}."""
    return [json.loads(line) for line in PROMPTS.read_text(encoding="utf-8").splitlines()]


def choose(prompts: list[dict[str, Any]], count: int | None) -> list[dict[str, Any]]:
    """`count` prompts that stand evenly in the file, so that each kind has its share; None takes all."""
    if count is None or count >= len(prompts):
        return prompts
    return [prompts[int((i + 0.5) * len(prompts) / count)] for i in range(count)]


def make_prompts(engine: Engine) -> Iterator[dict[str, Any]]:
    """30 questions about the sample handbook with the passages found for them, 10 requests to quote, 10 open tasks."""
    from app.settings import DEFAULT_SYSTEM_PROMPT
    from app.turn_prompt import write_turn
    from retrieval import Embedder, KnowledgeBase

    lines = (DATA / "eval" / "handbook.jsonl").read_text(encoding="utf-8").splitlines()
    questions = [entry for entry in map(json.loads, lines) if entry["answerable"]]
    with (
        tempfile.TemporaryDirectory() as folder,
        KnowledgeBase.open(Path(folder), Embedder(_packaged("all-minilm-l6-v2"))) as knowledge_base,
    ):
        knowledge_base.ingest_paths([DATA / "handbook"], relative_to=DATA / "handbook")

        def turn(asked: str, request: str) -> list[dict[str, str]]:
            draft = write_turn(
                request,
                knowledge_base.search(asked, NUM_PASSAGES),
                known={},
                next_number=1,
                max_tokens=PASSAGE_TOKENS,
                min_score=0.0,
                count_tokens=lambda text: len(engine.tokenizer.encode(text)),
            )
            return [
                {"role": "system", "content": DEFAULT_SYSTEM_PROMPT},
                {"role": "user", "content": draft.prompt},
            ]

        # Every other answerable question, so that all pages have their share; the ones between are asked to quote.
        for index, entry in enumerate(questions[::2][:30]):
            yield {"id": f"r{index + 1:02}", "kind": "rag", "messages": turn(entry["question"], entry["question"])}
        for index, entry in enumerate(questions[1::6][:10]):
            request = QUOTE_REQUESTS[index % len(QUOTE_REQUESTS)].format(question=entry["question"])
            yield {"id": f"q{index + 1:02}", "kind": "quote", "messages": turn(entry["question"], request)}
    for index, task in enumerate(OPEN_TASKS):
        yield {"id": f"o{index + 1:02}", "kind": "open", "messages": [{"role": "user", "content": task}]}


def _timed(engine: Engine, token_ids: list[int], params: SamplingParams) -> tuple[RequestOutput, float]:
    started = time.perf_counter()
    output = engine.generate(token_ids, params)
    return output, time.perf_counter() - started


def _packaged(name: str) -> Path:
    from app.models import resolve
    from app.settings import Settings

    return resolve(name, Settings())


if __name__ == "__main__":
    main()
