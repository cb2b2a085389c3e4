"""How well questions are answered from passages, and how surely others are refused: four ways in one run, and a table.

    python -m benchmarks.answers --data FOLDER [--model NAME] [--mode MODE] [--questions N] [--store FOLDER]
        [--json FILE]

FOLDER holds the sets `xquad_en`, `handbook_18f`, `faq_covid` and `mtrag_multiturn`, each with
`corpus.jsonl` {id, title, text}, `queries.jsonl` {id, text, answers?, history?, answerable?, rewrite?} and `qrels.tsv`.
Sets that are missing are left out. The ways:

    plain         all passages and the question to the model, its answer as it comes
    one sentence  the best sentence by BM25 and cosine, quoted
    two           the best two
    strict        what the server does for a small model (`app/answering.py`); or `mark`, for a large one

Foreign questions are the same ones put with another article's passages; in the hard case only the right passage is
taken away. Intervals are of 95 %.
"""

import argparse
import asyncio
import json
import random
import tempfile
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from app import models
from app.answering import Answering
from app.settings import Settings
from benchmarks.abstention import measure_abstention
from benchmarks.answer_figures import figures, plain_value, quote_best, shown
from benchmarks.answer_product import Product
from benchmarks.answer_sets import Answer, CachedEmbedder, Corpus, Question, read_lines
from benchmarks.machine import describe_machine
from retrieval import Embedder, KnowledgeBase
from retrieval.metrics import Interval, contains_gold, proportion

XQUAD_PASSAGES = 3
NUM_CONVERSATIONS = 8


async def measure_xquad(folder: Path, product: Product, embed: CachedEmbedder, options: Any) -> dict[str, Any]:
    """Spans of articles: what answers hold, and what is refused of foreign questions and of the hard ones."""
    corpus = Corpus(folder)
    rng = random.Random(options.seed)
    queries = rng.sample(corpus.queries, min(options.questions, len(corpus.queries)))
    titles = sorted(set(corpus.titles))

    def put(mask: Callable[[dict[str, Any]], Any]) -> list[Question]:
        return [
            Question(query["text"], tuple(query["answers"]), corpus.search(query["text"], XQUAD_PASSAGES, mask(query)))
            for query in queries
        ]

    def foreign(query: dict[str, Any]) -> Any:
        return corpus.titles == rng.choice([title for title in titles if title != corpus.article_of(query["id"])])

    questions = put(lambda _: None)
    answering = Answering(product.mode, corpus.index.term_weights, embed)
    report = await measure_ways(questions, product, answering, options)
    for name, others in (
        ("foreign", put(foreign)),
        ("right passage removed", put(lambda query: ~np.isin(corpus.ids, list(corpus.relevant[query["id"]])))),
    ):
        report[name] = {
            "plain": await refusals(others[: options.plain], product, None),
            product.mode: await refusals(others, product, answering),
        }
        print(f"  refused, {name}: " + ", ".join(f"{way} {shown(rate)}" for way, rate in report[name].items()))
    return report


async def measure_handbook(
    folder: Path, product: Product, embedder: Embedder, embed: CachedEmbedder, options: Any
) -> Any:
    """A handbook in Markdown, ingested as a user's own, with follow-ups and questions that it does not answer."""
    with (
        tempfile.TemporaryDirectory() as temporary,
        KnowledgeBase.open(options.store or Path(temporary), embedder) as knowledge_base,
    ):
        results = knowledge_base.ingest_paths([folder / "md"])
        print(f"\nhandbook_18f: {len(results)} pages, {knowledge_base.stats()['chunks']} chunks")
        answering = Answering(product.mode, knowledge_base.term_weights, embed)
        answerable, others = [], []
        for query in read_lines(folder / "queries.jsonl"):
            earlier = tuple(turn[1] for turn in query.get("history") or [] if turn[0] == "user")
            question = Question(query["text"], tuple(query.get("answers") or ()), (), earlier)
            found = tuple(knowledge_base.search(question.forms, product.settings.num_passages))
            question = Question(question.text, question.answers, found, earlier)
            (answerable if query.get("answerable", True) else others).append(question)
        report = await measure_ways(answerable, product, answering, options)
        report["unanswerable"] = {
            "plain": await refusals(others, product, None),
            product.mode: await refusals(others, product, answering),
        }
        rates = ", ".join(f"{way} {shown(rate)}" for way, rate in report["unanswerable"].items())
        print(f"  refused, unanswerable: {rates}")
    return report


async def measure_ways(
    questions: Sequence[Question], product: Product, answering: Answering, options: Any
) -> dict[str, Any]:
    """The table over the same questions."""
    print(f"  {len(questions)} questions, plain: {min(options.plain, len(questions))}")
    held = sum(contains_gold(" ".join(p.text for p in question.passages), question.answers) for question in questions)
    print(f"  the passages hold the answer for {shown(proportion(held, len(questions)))}")
    embed = answering.embed
    assert isinstance(embed, CachedEmbedder)
    report: dict[str, Any] = {"questions": len(questions), "held by passages": held}
    plain = questions[: options.plain]
    ways: dict[str, tuple[Sequence[Question], list[Answer]]] = {
        "plain": (plain, [await product.ask(question, None) for question in plain]),
        "one sentence": (questions, [quote_best(question, 1, answering.weights, embed) for question in questions]),
        "two": (questions, [quote_best(question, 2, answering.weights, embed) for question in questions]),
        product.mode: (questions, [await product.ask(question, answering) for question in questions]),
    }
    for way, (asked, answers) in ways.items():
        report[way] = figures(asked, answers)
        print(f"  {way:13}" + "  ".join(f"{name} {shown(value)}" for name, value in report[way].items()))
    report["answers"] = [
        {"question": question.text, "gold": question.answers, "answer": answer.text, "sentences": answer.sentences}
        for question, answer in zip(*ways[product.mode], strict=True)
    ]
    return report


async def refusals(questions: Sequence[Question], product: Product, answering: Answering | None) -> Interval:
    """The share of questions that are refused."""
    answers = [await product.ask(question, answering) for question in questions]
    return proportion(sum(answer.refused for answer in answers), len(answers))


async def measure_prefix_cache(folder: Path, product: Product, embed: CachedEmbedder, options: Any) -> dict[str, Any]:
    """The share of prompt tokens that the cache serves from a conversation's second turn on."""
    corpus = Corpus(folder)
    rng = random.Random(options.seed)
    talks = [[turn[1] for turn in query["history"] if turn[0] == "user"] + [query["text"]] for query in corpus.queries
             if len(query.get("history") or []) >= 4]  # fmt: skip
    report: dict[str, Any] = {}
    for mode in ("strict", "mark"):
        answering = Answering(mode, corpus.index.term_weights, embed)
        cached = prompt = turns = 0
        for talk in rng.sample(talks, min(NUM_CONVERSATIONS, len(talks))):
            chain = product.chain(lambda queries, k, **_: list(corpus.search(queries[-1], k)), answering)
            session = product.new_session()
            for number, text in enumerate(talk[:5]):
                product.requests.clear()
                await product.take_turn(chain, text, session)
                if number:
                    cached += sum(request.num_cached_tokens for request in product.requests)
                    prompt += sum(request.num_prompt_tokens for request in product.requests)
                    turns += len(product.requests)
        report[mode] = {"turns": turns, "prompt tokens": prompt, "cached": cached / prompt if prompt else None}
        print(
            f"  {mode}: {turns} turns after the first, {prompt} prompt tokens, {cached / max(1, prompt):.2f} from cache"
        )
    return report


def main() -> None:
    """Measures every set that is there."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--data", type=Path, required=True, help="folder of the sets")
    parser.add_argument("--model", help="chat model (default: the packaged one)")
    parser.add_argument(
        "--mode", choices=("strict", "mark"), help="how answers are checked (default: by the model's size)"
    )
    parser.add_argument("--questions", type=int, default=100, help="questions of a set, at most (default: 100)")
    parser.add_argument("--plain", type=int, default=100, help="of these, put to the plain chain (default: 100)")
    parser.add_argument("--seed", type=int, default=0, help="which questions are drawn (default: 0)")
    parser.add_argument("--store", type=Path, help="keep the handbook's index in this folder, for the next run")
    parser.add_argument(
        "--only", nargs="*", choices=("xquad", "handbook", "abstention", "cache"), help="these parts only"
    )
    parser.add_argument("--json", type=Path, help="also write the figures to this file")
    asyncio.run(run(parser.parse_args()))


async def run(options: Any) -> None:
    """All parts that are asked for, and the report."""
    settings = Settings(**({"model": options.model} if options.model else {}))
    embedder = Embedder(models.resolve(settings.embedding_model, settings))
    embed = CachedEmbedder(embedder)
    parts = options.only or ("xquad", "handbook", "abstention", "cache")
    report: dict[str, Any] = {"machine": describe_machine(), "model": settings.model, "embedder": embedder.name}
    if set(parts) != {"abstention"}:
        await measure_answers(settings, parts, options, embedder, embed, report)
    if "abstention" in parts:
        report["abstention"] = measure_abstention(options.data, embed, options)
    if options.json is not None:
        options.json.write_text(json.dumps(report, indent=2, default=plain_value) + "\n", encoding="utf-8")


async def measure_answers(
    settings: Settings, parts: Sequence[str], options: Any, embedder: Embedder, embed: CachedEmbedder, report: Any
) -> None:
    """The parts that need a model in this process."""
    with tempfile.TemporaryDirectory() as folder:
        product = Product(settings, Path(folder), options.mode)
        try:
            if "xquad" in parts and (options.data / "xquad_en").is_dir():
                print(f"\nxquad_en, {settings.model}")
                report["xquad_en"] = await measure_xquad(options.data / "xquad_en", product, embed, options)
            if "handbook" in parts and (options.data / "handbook_18f").is_dir():
                path = options.data / "handbook_18f"
                report["handbook_18f"] = await measure_handbook(path, product, embedder, embed, options)
            if "cache" in parts and (options.data / "mtrag_multiturn").is_dir():
                print("\nprefix cache, mtrag_multiturn")
                path = options.data / "mtrag_multiturn"
                report["prefix_cache"] = await measure_prefix_cache(path, product, embed, options)
        finally:
            product.engine.drain(5.0)
            product.store.close()


if __name__ == "__main__":
    main()
