"""How well questions are answered from passages, and how surely others are refused: four ways in one run, and a table.

    python -m benchmarks.answers --data FOLDER [--model NAME] [--questions N] [--store FOLDER] [--json FILE]

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
import re
import tempfile
import time
from collections.abc import AsyncIterator, Callable, Iterable, Mapping, Sequence
from contextlib import aclosing
from dataclasses import dataclass, field
from pathlib import Path
from statistics import median
from typing import Any

import numpy as np
from langchain_core.runnables import Runnable, RunnableGenerator

from app import chains, models
from app.answering import Answering
from app.chat_model import ChatRagstone
from app.conversation import ConversationChain, ModelRoom, turn_writer
from app.engine_client import MESSAGE_OVERHEAD_TOKENS, InProcessEngineClient, RequestTimes, engine_config
from app.evaluation.scoring import is_refusal
from app.memory import MemoryRule
from app.services import TRUSTED_PARAMETERS
from app.settings import Settings
from app.sqlite_history import SQLiteConversationStore
from app.turn_lock import TurnLocks
from app.turn_prompt import PassageRule
from app.turn_statistics import AnswerRecord
from benchmarks.machine import describe_machine
from engine import AsyncEngine
from retrieval import Embedder, KnowledgeBase
from retrieval.embeddings import Vectors
from retrieval.evidence import ANSWERABLE, TermWeights, rank_sentences
from retrieval.keyword_index import KeywordIndex
from retrieval.metrics import Interval, contains_gold, exact_match, mean_interval, proportion, token_f1
from retrieval.records import Passage
from retrieval.sentences import split_sentences
from retrieval.words import terms

XQUAD_PASSAGES = 3
NUM_CONVERSATIONS = 8
THRESHOLDS = [round(0.5 + step / 50, 2) for step in range(40)]


@dataclass(frozen=True)
class Question:
    """A question with what was found for it; `earlier` are the user's questions before it."""

    text: str
    answers: tuple[str, ...]
    passages: tuple[Passage, ...]
    earlier: tuple[str, ...] = ()

    @property
    def forms(self) -> list[str]:
        return [self.text, f"{self.earlier[-1]} {self.text}"] if self.earlier else [self.text]


@dataclass
class Answer:
    """What one way made of a question."""

    text: str
    sentences: list[dict[str, Any]] = field(default_factory=list)
    refused: bool = False
    first_words_s: float | None = None
    first_sentence_s: float | None = None  # when the model had its first sentence ready, shown or not


class CachedEmbedder:
    """An embedder that embeds no text twice: the same passages are looked at in several ways."""

    def __init__(self, embedder: Embedder) -> None:
        self._embedder = embedder
        self._known: dict[str, Vectors] = {}

    def __call__(self, texts: Sequence[str]) -> Vectors:
        new = [text for text in dict.fromkeys(texts) if text not in self._known]
        self._known.update(zip(new, self._embedder.embed_passages(new), strict=True))
        return np.stack([self._known[text] for text in texts])


class Corpus:
    """Documents with a BM25 index over them; a long one is cut into pieces of about 1,000 characters at blank lines."""

    def __init__(self, folder: Path) -> None:
        self.documents = [
            entry | {"text": piece}
            for entry in read_lines(folder / "corpus.jsonl")
            for piece in pieces_of(entry["text"])
        ]
        self.queries = read_lines(folder / "queries.jsonl")
        self.relevant = read_grades(folder / "qrels.tsv")
        self.index = KeywordIndex.build([f"{entry['title']}\n{entry['text']}" for entry in self.documents])
        self.ids = np.array([entry["id"] for entry in self.documents])
        self.titles = np.array([entry["title"] for entry in self.documents])

    def search(self, question: str, k: int, mask: Any = None) -> tuple[Passage, ...]:
        rows, scores = self.index.search(question, k, mask)
        return tuple(
            Passage(str(self.ids[row]), str(self.ids[row]), str(self.titles[row]), "", None, None,
                    self.documents[row]["text"], float(score / scores[0]), "")
            for row, score in zip(rows, scores, strict=True)
        )  # fmt: skip

    def article_of(self, query_id: str) -> str:
        return str(self.titles[self.ids == next(iter(self.relevant[query_id]))][0])


class Product:
    """The server's own chain over a model in this process, with passages that are given instead of searched for."""

    def __init__(self, settings: Settings, folder: Path) -> None:
        self.settings = settings
        engine = AsyncEngine(engine_config(settings, models.resolve(settings.model, settings)))
        engine.start()
        self.engine = engine
        self.requests: list[RequestTimes] = []
        self.client = InProcessEngineClient(engine, model_name=settings.model, on_end=self.requests.append)
        self.client.pin_system_prompt(settings.system_prompt)
        self.store = SQLiteConversationStore(folder / "history.sqlite3")
        self.mode: Any = "strict" if engine.num_parameters < TRUSTED_PARAMETERS else "mark"
        self._num_sessions = 0
        self._deltas: list[tuple[float, str]] = []

    def chain(self, find: Callable[..., Sequence[Passage]], answering: Answering | None) -> ConversationChain:
        """The conversation chain, its model's words noted with the time at which they came."""
        settings, client = self.settings, self.client
        model = ChatRagstone(
            model=settings.model,
            client=client,
            temperature=0.0,
            frequency_penalty=settings.frequency_penalty,
            max_tokens=settings.max_tokens,
        )
        rule = PassageRule(settings.num_passages, settings.max_passage_tokens)

        async def noted(deltas: AsyncIterator[str]) -> AsyncIterator[str]:
            async for delta in deltas:
                self._deltas.append((time.perf_counter(), delta))
                yield delta

        make = chains.answers_of(model, settings.system_prompt)

        def answer(options: Mapping[str, Any], record: AnswerRecord) -> Runnable[Any, str]:
            return make(options, record) | RunnableGenerator(noted)

        return ConversationChain(
            retrieval=chains.retrieval_chain(
                chains.condense_by_context(), find, turn_writer(rule, client.count_tokens, answering)
            ),
            answer=answer,
            store=self.store,
            locks=TurnLocks(),
            memory=MemoryRule(settings.memory_kind, settings.memory_turns, settings.memory_tokens),
            passages=rule,
            room=ModelRoom(
                client.max_model_len,
                settings.max_tokens,
                client.count_tokens(settings.system_prompt) + MESSAGE_OVERHEAD_TOKENS,
            ),
            count_tokens=client.count_tokens,
            answering=answering,
        )

    async def ask(self, question: Question, answering: Answering | None) -> Answer:
        """One question in a conversation of its own; the questions before it are known, not answered."""
        chain = self.chain(lambda *_, **__: list(question.passages), answering)
        session = self.new_session()
        for earlier in question.earlier:
            self.store.begin_turn("local", session, earlier)
        return await self.take_turn(chain, question.text, session)

    async def take_turn(self, chain: ConversationChain, text: str, session: str) -> Answer:
        self._deltas.clear()
        answer = Answer("")
        started = time.perf_counter()
        async with aclosing(chain.astream({"input": text}, {"configurable": {"session_id": session}})) as chunks:
            async for chunk in chunks:
                if chunk.get("answer") and answer.first_words_s is None:
                    answer.first_words_s = time.perf_counter() - started
                answer.text += chunk.get("answer", "")
                if grounding := chunk.get("grounding"):
                    answer.sentences = grounding["sentences"]
                    answer.refused = grounding["state"] == "not_found"
        answer.refused = answer.refused or (not answer.sentences and is_refusal(answer.text))
        answer.first_sentence_s = self._first_sentence(started)
        return answer

    def new_session(self) -> str:
        self._num_sessions += 1
        return f"benchmark-{self._num_sessions}"

    def _first_sentence(self, started: float) -> float | None:
        """Seconds from the question to the delta after which the model's first sentence was known to be whole."""
        text = ""
        for at, delta in self._deltas:
            text += delta
            if len(split_sentences(text)) > 1:
                return at - started
        return self._deltas[-1][0] - started if self._deltas else None


# ── what is measured of answers ──────────────────────────────────────────────────────────────────────────────────────

_MARK = re.compile(r'\s*\[(?:\d+|\?)\]|"')
_NUMBER = re.compile(r"\d+(?:[.,]\d+)*")
_NAME = re.compile(r"(?<=[a-z,] )[A-Z]\w+")


def bare(answer: str) -> str:
    """An answer without citations and quotation marks."""
    return _MARK.sub("", answer)


def is_backed(text: str, sources: str) -> bool:
    """Whether all numbers and names of `text`, and nine in ten of its words, stand in `sources`: a check of its own."""
    words = re.findall(r"\w+", text.casefold())
    known = set(re.findall(r"\w+", sources.casefold()))
    share = sum(word in known for word in words) / max(1, len(words))
    return share >= 0.9 and not strange_facts(text, sources)


def strange_facts(text: str, sources: str) -> list[str]:
    """Numbers, and capitalised words within a sentence, that stand nowhere in `sources`."""
    folded = sources.casefold()
    return [fact for fact in [*_NUMBER.findall(text), *_NAME.findall(text)] if fact.casefold() not in folded]


def quote_best(question: Question, count: int, weights: TermWeights, embed: CachedEmbedder) -> Answer:
    """The best `count` sentences of the passages by BM25 (scaled by the question's own weight) and cosine."""
    texts = [sentence.text for passage in question.passages for sentence in split_sentences(passage.text)]
    asked = weights(frozenset(terms(question.text)))
    length = np.mean([len(terms(text)) for text in texts])

    def bm25(text: str) -> float:
        found = terms(text)
        norm = 1.2 * (0.25 + 0.75 * len(found) / length)
        counts = {term: found.count(term) for term in asked}
        return sum(asked[term] * count * 2.2 / (count + norm) for term, count in counts.items() if count)

    vectors = embed([question.text, *texts])
    total = sum(asked.values()) or 1.0
    scores = np.array([bm25(text) / total for text in texts]) + vectors[1:] @ vectors[0]
    return Answer(" ".join(texts[row] for row in np.argsort(-scores, kind="stable")[:count]))


def figures(questions: Sequence[Question], answers: Sequence[Answer]) -> dict[str, Any]:
    """The table's row for one way."""
    texts = [bare(answer.text) for answer in answers]
    pairs = list(zip(texts, questions, strict=True))
    sources = [
        f"{question.text} " + " ".join(f"{p.title} {p.heading or ''} {p.text}" for p in question.passages)
        for question in questions
    ]
    row: dict[str, Any] = {
        "gold": proportion(sum(contains_gold(text, question.answers) for text, question in pairs), len(pairs)),
        "exact": proportion(sum(exact_match(text, question.answers) for text, question in pairs), len(pairs)),
        "f1": mean_interval([token_f1(text, question.answers) for text, question in pairs]),
        "words": median(len(text.split()) for text in texts),
        "strange": proportion(
            sum(bool(strange_facts(text, known)) for text, known in zip(texts, sources, strict=True)), len(texts)
        ),
        "kept": proportion(sum(not answer.refused for answer in answers), len(answers)),
    }
    sentences = [
        (sentence, next((p for n, p in numbered(question) if n == sentence["n"]), None))
        for question, answer in zip(questions, answers, strict=True)
        for sentence in answer.sentences
    ]
    if sentences:
        cited = [(sentence, passage) for sentence, passage in sentences if sentence["supported"]]
        right = sum(
            passage is not None
            and is_backed(sentence["text"], f"{passage.title} {passage.heading or ''} {passage.text}")
            for sentence, passage in cited
        )
        row["citations"] = proportion(right, len(cited))
        row["by model"] = proportion(sum(sentence["origin"] == "model" for sentence, _ in sentences), len(sentences))
    timed = [
        answer.first_words_s / answer.first_sentence_s
        for answer in answers
        if answer.first_words_s and answer.first_sentence_s
    ]
    if timed:
        row["first words"] = median(timed)
    return row


def numbered(question: Question) -> Iterable[tuple[int, Passage]]:
    """Passages with the numbers they have in a conversation's first turn."""
    return enumerate(question.passages, start=1)


# ── the sets ─────────────────────────────────────────────────────────────────────────────────────────────────────────


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


def measure_abstention(data: Path, embed: CachedEmbedder, options: Any) -> dict[str, Any]:
    """How far one threshold carries: each set at the fixed one, and at the best one of the other sets."""
    strengths: dict[str, dict[str, list[float]]] = {}
    sets = [
        data / name for name in ("xquad_en", "faq_covid", "mtrag_multiturn", "handbook_18f") if (data / name).is_dir()
    ]
    standing = {folder.name: stand_alone(folder) for folder in sets}
    for folder in sets:
        corpus, rng = Corpus(folder), random.Random(options.seed)
        own = [query for query in standing[folder.name] if query["id"] in corpus.relevant]
        own = rng.sample(own, min(options.questions, len(own)))
        others = [query for name, queries in standing.items() if name != folder.name for query in queries]
        others = rng.sample(others, min(len(own), len(others)))

        def strength(query: Mapping[str, Any], mask: Any = None, corpus: Corpus = corpus) -> float:
            passages = corpus.search(query["text"], 4, mask)
            return rank_sentences([query["text"]], passages, corpus.index.term_weights, embed).strength

        strengths[folder.name] = {
            "answerable": [strength(query) for query in own],
            "foreign": [strength(query) for query in others],
            "removed": [strength(query, ~np.isin(corpus.ids, list(corpus.relevant[query["id"]]))) for query in own],
        }
    report = {}
    print("\nabstention: answerable kept / foreign refused / refused without the right passage")
    for name, own_strengths in strengths.items():
        learnt = best_threshold([other for set_name, other in strengths.items() if set_name != name])
        report[name] = {
            label: rates_at(own_strengths, threshold)
            for label, threshold in (("fixed", ANSWERABLE), ("learnt", learnt))
        } | {"learnt threshold": learnt}
        for label, threshold in (("fixed", ANSWERABLE), ("learnt", learnt)):
            rates = " / ".join(shown(rate) for rate in report[name][label].values())
            print(f"  {name:16} {label:6} {threshold:.2f}  {rates}")
    return report


def best_threshold(sets: Sequence[Mapping[str, Sequence[float]]]) -> float:
    """The threshold at which the least of kept and refused rates over `sets` is highest."""

    def least(threshold: float) -> float:
        kept = min(np.mean(np.array(entry["answerable"]) >= threshold) for entry in sets)
        return float(min(kept, *(np.mean(np.array(entry["foreign"]) < threshold) for entry in sets)))

    return max(THRESHOLDS, key=least)


def rates_at(strengths: Mapping[str, Sequence[float]], threshold: float) -> dict[str, Interval]:
    """Answerable questions kept, foreign and hard ones refused."""
    return {
        name: proportion(sum((value >= threshold) == (name == "answerable") for value in values), len(values))
        for name, values in strengths.items()
    }


def stand_alone(folder: Path) -> list[dict[str, Any]]:
    """The questions of a set that can be understood alone: without a history, or rewritten by a person."""
    queries = read_lines(folder / "queries.jsonl")
    alone = [query | {"text": query.get("rewrite") or query["text"]} for query in queries]
    return [
        query
        for query in alone
        if (not query.get("history") or query.get("rewrite")) and query.get("answerable", True) in (True, "ANSWERABLE")
    ]


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


# ── the run ──────────────────────────────────────────────────────────────────────────────────────────────────────────


def main() -> None:
    """Measures every set that is there."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--data", type=Path, required=True, help="folder of the sets")
    parser.add_argument("--model", help="chat model (default: the packaged one)")
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
        product = Product(settings, Path(folder))
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


def shown(value: Any) -> str:
    """A figure as the table shows it, an interval with its ends."""
    if isinstance(value, Interval):
        return f"{value.value:.3f} [{value.low:.2f} {value.high:.2f}]"
    return f"{value:.3g}"


def plain_value(value: Any) -> Any:
    """Intervals for JSON."""
    if isinstance(value, Interval):
        return {"value": value.value, "low": value.low, "high": value.high}
    raise TypeError(f"{type(value).__name__} is no value of a report")


def read_lines(path: Path) -> list[dict[str, Any]]:
    """Objects of a JSON Lines file."""
    return [json.loads(line) for line in path.read_text(encoding="utf-8").splitlines() if line.strip()]


def pieces_of(text: str, most: int = 1000) -> list[str]:
    """The text, or where it is longer than twice `most` characters, paragraphs joined up to that length."""
    if len(text) <= 2 * most:
        return [text]
    pieces = [""]
    for paragraph in re.split(r"\n\s*\n", text):
        if pieces[-1] and len(pieces[-1]) + len(paragraph) > most:
            pieces.append("")
        pieces[-1] += f"\n\n{paragraph}" if pieces[-1] else paragraph
    return pieces


def read_grades(path: Path) -> dict[str, set[str]]:
    """The relevant documents of each question."""
    relevant: dict[str, set[str]] = {}
    for line in path.read_text(encoding="utf-8").splitlines()[1:]:
        question, document, grade = line.split("\t")
        if float(grade) > 0:
            relevant.setdefault(question, set()).add(document)
    return relevant


if __name__ == "__main__":
    main()
