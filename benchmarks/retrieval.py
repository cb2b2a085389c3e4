"""How well passages are found: nDCG@10 and recall of each leg, of known fusions and of ours, as tables and JSON.

    python -m benchmarks.retrieval [--data FOLDER] [SET_FOLDER…] [--model FOLDER] [--reranker FOLDER]
        [--cache FOLDER] [--json FILE]

A set is a folder with `corpus.jsonl` {id, title, text}, `queries.jsonl` {id, text, history?, rewrite?} and `qrels.tsv`
(query, document, grade), the form of BEIR; `--data` takes every set in a folder. Documents are taken whole, so that
figures compare with published ones; the sample handbook, which is always measured too, is cut into chunks as a user's
documents are. Titles that are not in the texts' language are left out (XQuAD's are English in every language).
Follow-ups are searched as they stand, as the product words them, and as people rewrote them, where a set has rewrites.
"""

import argparse
import hashlib
import json
import tempfile
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from app.chains import wordings
from benchmarks.machine import describe_machine
from retrieval import Embedder, KnowledgeBase
from retrieval.embeddings import Vectors
from retrieval.fusion import Scores, best, fuse
from retrieval.hybrid import DEPTH, QueryForm, Reach, hybrid_search
from retrieval.keyword_index import KeywordIndex
from retrieval.language import UNKNOWN, language_of, languages_of
from retrieval.metrics import Interval, mean_interval, ndcg, recall
from retrieval.question_kind import wording_shares
from retrieval.reranker import DEPTH as RERANKED
from retrieval.reranker import CrossEncoderReranker, Reranker, rerank
from retrieval.sentence_vectors import closest_sentences, embedded_sentences, encoded
from retrieval.vector_index import VectorIndex

DATA = Path(__file__).resolve().parents[1] / "data"
METRICS: Mapping[str, Callable[[Sequence[str], Mapping[str, float]], float]] = {
    "ndcg@10": ndcg,
    "recall@5": lambda ranked, grades: recall(ranked, grades, 5),
    "recall@10": lambda ranked, grades: recall(ranked, grades, 10),
}
# The constant of Cormack et al. 2009.
RRF_K = 60
Ranking = list[int]
Figures = dict[str, Any]


def main() -> None:
    """Measures every set that is named, and the handbook."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("sets", nargs="*", type=Path, metavar="SET_FOLDER")
    parser.add_argument("--data", type=Path, help="folder of sets")
    parser.add_argument("--model", type=Path, help="folder of the embedding model (default: the packaged one)")
    parser.add_argument("--reranker", type=Path, help="folder of a cross-encoder: also measure ours reranked by it")
    parser.add_argument("--cache", type=Path, help="folder in which vectors are kept for the next run")
    parser.add_argument("--json", type=Path, help="also write the figures to this file")
    options = parser.parse_args()
    found = [] if options.data is None else sorted(path.parent for path in options.data.glob("*/qrels.tsv"))
    if options.data is not None and not found:
        parser.error(f"--data {options.data} holds no folder with corpus.jsonl, queries.jsonl and qrels.tsv")
    embedder = Embedder(options.model or _default_model())
    vectors = VectorCache(embedder, options.cache)
    reranker = None if options.reranker is None else CrossEncoderReranker(options.reranker)
    report: Figures = {"machine": describe_machine(), "embedder": embedder.name, "sets": {}}
    for folder in [*options.sets, *found]:
        report["sets"][folder.name] = figures = measure_set(EvaluationSet.read(folder), vectors, reranker)
        print_set(folder.name, figures)
    if report["sets"]:
        report["english"] = english = summary(report["sets"])
        print(f"\nmean nDCG@10 over {english['sets']} English sets: " + _line(english["ndcg@10"]))
    report["handbook"] = figures = measure_handbook(embedder)
    print(f"\nhandbook: {figures['chunks']} chunks, {figures['questions']} questions, top {figures['k']} passages")
    print(f"  right page {figures['right_page']}, expected fact {figures['expected_fact']}")
    if options.json is not None:
        options.json.write_text(json.dumps(report, indent=2) + "\n", encoding="utf-8")


# ── sets and their vectors ───────────────────────────────────────────────────────────────────────────────────────────


@dataclass(frozen=True)
class EvaluationSet:
    """Texts to be found and the questions that have something to find; `grades[i]` belongs to `questions[i]`."""

    name: str
    ids: list[str]
    texts: list[str]
    questions: list[dict[str, Any]]
    grades: list[dict[str, float]]

    @classmethod
    def read(cls, folder: Path) -> "EvaluationSet":
        documents = _lines(folder / "corpus.jsonl")
        grades: dict[str, dict[str, float]] = {}
        for line in (folder / "qrels.tsv").read_text(encoding="utf-8").splitlines()[1:]:
            question_id, document, grade = line.split("\t")
            if float(grade) > 0:
                grades.setdefault(question_id, {})[document] = float(grade)
        questions = [question for question in _lines(folder / "queries.jsonl") if question["id"] in grades]
        bodies, titles = (
            [document["text"] for document in documents],
            [document.get("title", "") for document in documents],
        )
        language = _language(bodies)
        titled = language in ("en", language_of(" ".join(dict.fromkeys(titles))))
        texts = [f"{title}\n{body}".strip() if titled else body for title, body in zip(titles, bodies, strict=True)]
        ids = [document["id"] for document in documents]
        return cls(folder.name, ids, texts, questions, [grades[question["id"]] for question in questions])


class VectorCache:
    """An embedder whose vectors of a list of texts are kept in a folder, by model and texts."""

    def __init__(self, embedder: Embedder, folder: Path | None) -> None:
        self.embedder = embedder
        self._folder = folder

    def passages(self, texts: Sequence[str]) -> np.ndarray:
        return self._kept("passages", texts, self.embedder.embed_passages)

    def queries(self, texts: Sequence[str]) -> np.ndarray:
        return self._kept("queries", texts, lambda texts: np.stack([self.embedder.embed_query(text) for text in texts]))

    def _kept(self, kind: str, texts: Sequence[str], embed: Callable[[Sequence[str]], np.ndarray]) -> np.ndarray:
        if self._folder is None:
            return embed(texts)
        digest = hashlib.sha256(json.dumps([self.embedder.fingerprint, kind, *texts]).encode()).hexdigest()
        path = self._folder / f"{kind}-{digest[:32]}.npy"
        if not path.is_file():
            self._folder.mkdir(parents=True, exist_ok=True)
            np.save(path, embed(texts), allow_pickle=False)
        kept: np.ndarray = np.load(path, allow_pickle=False)
        return kept


# ── measuring ────────────────────────────────────────────────────────────────────────────────────────────────────────


class Search:
    """The indexes of one set, and every way of asking them that is compared."""

    def __init__(self, texts: Sequence[str], cache: VectorCache, reranker: Reranker | None) -> None:
        self._texts = texts
        self._reranker = reranker
        self._vectors = VectorIndex(np.arange(len(texts)), cache.passages(texts), cache.embedder.dimension)
        self.keywords = KeywordIndex.build(texts)
        self._reach = Reach.of(cache.embedder)
        self._sentences = sentences_of(texts, cache)

    def legs(self) -> dict[str, Callable[[QueryForm], Ranking]]:
        """Rankings of one question, by their names in the table."""
        ways: dict[str, Callable[[QueryForm], Ranking]] = {
            "keywords": lambda form: list(self._by_words(form))[:10],
            "vectors": lambda form: list(self._by_meaning(form))[:10],
            "RRF": lambda form: self._reciprocal_ranks(form),
            "min-max": lambda form: _rows(fuse([self._by_meaning(form), self._by_words(form)])),
            "ours": lambda form: self.ours([form]),
        }
        if self._reranker is not None:
            ways["reranked"] = self._reranked
        return ways

    def ours(self, forms: Sequence[QueryForm], k: int = 10) -> Ranking:
        """As the product searches."""
        found = hybrid_search(self._vectors, self.keywords, forms, k, reach=self._reach, closest=self._closest)
        return [row for row, _ in found]

    def _closest(self, rows: Sequence[int], query: Vectors) -> Mapping[int, float]:
        return closest_sentences(query, {row: self._sentences[row] for row in rows if row in self._sentences})

    def _reranked(self, form: QueryForm) -> Ranking:
        assert self._reranker is not None
        rows = self.ours([form], RERANKED)
        order = rerank(self._reranker, form.text, [self._texts[row] for row in rows])
        return [rows[index] for index, _ in order][:10]

    def _reciprocal_ranks(self, form: QueryForm) -> Ranking:
        sums: dict[int, float] = {}
        for scores in (self._by_meaning(form), self._by_words(form)):
            for rank, row in enumerate(scores, start=1):
                sums[row] = sums.get(row, 0.0) + 1 / (RRF_K + rank)
        return _rows(sums)

    def _by_meaning(self, form: QueryForm) -> Scores:
        rows, scores = self._vectors.search(form.vector, DEPTH)
        return dict(zip(rows.tolist(), scores.tolist(), strict=True))

    def _by_words(self, form: QueryForm) -> Scores:
        rows, scores = self.keywords.search(form.text, DEPTH)
        return dict(zip(rows.tolist(), scores.tolist(), strict=True))


def sentences_of(texts: Sequence[str], cache: VectorCache) -> dict[int, bytes]:
    """The vectors of the sentences of each text, as the product keeps them."""
    sentences = [embedded_sentences(text) for text in texts]
    distinct = list(dict.fromkeys(sentence for some in sentences for sentence in some))
    coded = dict(zip(distinct, encoded(cache.passages(distinct)), strict=True)) if distinct else {}
    return {row: b"".join(coded[sentence] for sentence in some) for row, some in enumerate(sentences) if some}


def measure_set(data: EvaluationSet, cache: VectorCache, reranker: Reranker | None) -> Figures:
    """Figures of one set: of every leg and fusion, and of follow-ups where there are any."""
    started = time.perf_counter()
    search = Search(data.texts, cache, reranker)
    build_s = time.perf_counter() - started
    texts = [question["text"] for question in data.questions]
    forms = [QueryForm(text, vector) for text, vector in zip(texts, cache.queries(texts), strict=True)]
    language = _language(data.texts)
    figures: Figures = {"documents": len(data.texts), "questions": len(forms), "language": language, "build_s": build_s}
    scores: dict[str, list[float]] = {}
    for leg, rank in search.legs().items():
        started = time.perf_counter()
        rankings = [[data.ids[row] for row in rank(form)] for form in forms]
        search_ms = 1000 * (time.perf_counter() - started) / len(forms)
        figures[leg] = {**_measures(rankings, data.grades), "search_ms": search_ms}
        scores[leg] = [ndcg(ranking, grades) for ranking, grades in zip(rankings, data.grades, strict=True)]
    for other in ("keywords", "vectors", "min-max"):
        gains = np.subtract(scores["ours"], scores[other])
        figures[f"ours - {other}"] = _interval(mean_interval(gains.tolist()))
    figures["follow_ups"] = measure_follow_ups(data, search, cache)
    return figures


def measure_follow_ups(data: EvaluationSet, search: Search, cache: VectorCache) -> Figures:
    """Follow-ups as they stand, as the product words them, and as people rewrote them, where all have a rewrite."""
    asked = [index for index, question in enumerate(data.questions) if question.get("history")]
    rewritten = [index for index in asked if data.questions[index].get("rewrite")]
    ways: dict[str, Callable[[dict[str, Any]], list[str]]] = {
        "last turn": lambda question: [question["text"]],
        "ours": lambda question: wordings(question["text"], _user_turns(question)),
        "rewrite": lambda question: [question["rewrite"]],
    }
    figures: Figures = {}
    for name, chosen in (("all", asked), ("rewritten", rewritten)):
        if not chosen:
            continue
        questions, grades = [data.questions[index] for index in chosen], [data.grades[index] for index in chosen]
        figures[name] = {"questions": len(chosen)}
        for way in ways if name == "rewritten" else list(ways)[:2]:
            wordings_of = [wording_shares(ways[way](question)) for question in questions]
            vectors = iter(cache.queries([text for shares in wordings_of for text in shares]))
            forms = [
                [QueryForm(text, next(vectors), share) for text, share in shares.items()] for shares in wordings_of
            ]
            figures[name][way] = _measures([[data.ids[row] for row in search.ours(form)] for form in forms], grades)
    return figures


def _user_turns(question: Mapping[str, Any]) -> list[str]:
    return [text for speaker, text in question["history"] if speaker == "user"]


def summary(sets: Mapping[str, Figures]) -> Figures:
    """Means over the sets whose texts are in English."""
    english = [figures for figures in sets.values() if figures["language"] == "en"]
    legs = ("keywords", "vectors", "RRF", "min-max", "ours")
    means = {leg: float(np.mean([figures[leg]["ndcg@10"] for figures in english])) if english else 0.0 for leg in legs}
    return {"sets": len(english), "ndcg@10": means}


def print_set(name: str, figures: Figures) -> None:
    print(f"\n{name}: {figures['documents']} documents ({figures['language']}), {figures['questions']} questions")
    for leg in ("keywords", "vectors", "RRF", "min-max", "ours", *(["reranked"] if "reranked" in figures else [])):
        print(f"  {leg:9}" + "".join(f"  {metric} {figures[leg][metric]:.3f}" for metric in METRICS))
    for other in ("keywords", "vectors", "min-max"):
        gain = figures[f"ours - {other}"]
        print(f"  ours - {other}: nDCG@10 {gain['value']:+.4f} [{gain['low']:+.4f}, {gain['high']:+.4f}]")
    for name, ways in figures["follow_ups"].items():
        print(f"  follow-ups, {name} ({ways['questions']})")
        for way in ("last turn", "ours", "rewrite"):
            if way in ways:
                print(f"    {way:9}" + "".join(f"  {metric} {ways[way][metric]:.3f}" for metric in METRICS))


def _measures(rankings: Sequence[Sequence[str]], grades: Sequence[Mapping[str, float]]) -> dict[str, float]:
    return {
        name: float(np.mean([measure(ranking, grade) for ranking, grade in zip(rankings, grades, strict=True)]))
        for name, measure in METRICS.items()
    }


def _rows(scores: Scores) -> Ranking:
    return [row for row, _ in best(scores, 10)]


def _interval(interval: Interval) -> dict[str, float]:
    return {"value": interval.value, "low": interval.low, "high": interval.high}


def _language(texts: Sequence[str]) -> str:
    """The language of most texts."""
    codes, counts = np.unique(languages_of([text for text in texts if text.strip()][:500]), return_counts=True)
    return str(codes[np.argmax(counts)]) if len(codes) else UNKNOWN


def _line(values: Mapping[str, float]) -> str:
    return ", ".join(f"{name} {value:.4f}" for name, value in values.items())


def measure_handbook(embedder: Embedder, k: int = 4) -> dict[str, Any]:
    """For how many of the handbook's questions the top `k` passages hold the right page, and the expected fact."""
    questions = [question for question in _lines(DATA / "eval" / "handbook.jsonl") if question["answerable"]]
    pages, facts = 0, 0
    with tempfile.TemporaryDirectory() as folder, KnowledgeBase.open(Path(folder), embedder) as knowledge_base:
        knowledge_base.ingest_paths([DATA / "handbook"], relative_to=DATA / "handbook")
        for question in questions:
            passages = knowledge_base.search(question["question"], k)
            pages += any(passage.source == question["page"] for passage in passages)
            facts += _plain(question["fact"]) in _plain(" ".join(passage.text for passage in passages))
        chunks = knowledge_base.stats()["chunks"]
    return {"chunks": chunks, "questions": len(questions), "k": k, "right_page": pages, "expected_fact": facts}


def _lines(path: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in path.read_text(encoding="utf-8").split("\n") if line.strip()]


def _plain(text: str) -> str:
    return " ".join(text.translate(dict.fromkeys(map(ord, "*_`"))).casefold().split())


def _default_model() -> Path:
    from app.models import resolve
    from app.settings import Settings

    return resolve("all-minilm-l6-v2", Settings())


if __name__ == "__main__":
    main()
