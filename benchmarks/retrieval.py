"""How well passages are found: nDCG@10 and recall of the keyword leg, the vector leg and both fused, as table and JSON.

    python -m benchmarks.retrieval SET_FOLDER… [--model FOLDER] [--json FILE]

A set is a folder with `corpus.jsonl` {id, title, text}, `queries.jsonl` {id, text} and `qrels.tsv` (query, document,
grade), the form of BEIR. Documents are taken whole, so that figures compare with published ones; the sample handbook,
which is always measured too, is cut into chunks as a user's documents are.
"""

import argparse
import json
import math
import tempfile
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from benchmarks.machine import describe_machine
from retrieval import Embedder, KnowledgeBase
from retrieval.hybrid import QueryForm, hybrid_search
from retrieval.keyword_index import KeywordIndex
from retrieval.vector_index import VectorIndex

DATA = Path(__file__).resolve().parents[1] / "data"
METRICS = ("ndcg@10", "recall@5", "recall@10")
Grades = Mapping[str, float]


def main() -> None:
    """Measures every set that is named, and the handbook."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("sets", nargs="*", type=Path, metavar="SET_FOLDER")
    parser.add_argument("--model", type=Path, help="folder of the embedding model (default: the packaged one)")
    parser.add_argument("--json", type=Path, help="also write the figures to this file")
    options = parser.parse_args()
    embedder = Embedder(options.model or _default_model())
    report: dict[str, Any] = {"machine": describe_machine(), "embedder": embedder.name, "sets": {}}
    for folder in options.sets:
        report["sets"][folder.name] = figures = measure_set(folder, embedder)
        print(f"\n{folder.name}: {figures['documents']} documents, {figures['questions']} questions")
        for leg in ("keywords", "vectors", "fused"):
            print(f"  {leg:9}" + "".join(f"  {metric} {figures[leg][metric]:.3f}" for metric in METRICS))
        print(f"  {figures['embedded_per_s']:.0f} documents embedded a second, {figures['search_ms']:.1f} ms a search")
    report["handbook"] = figures = measure_handbook(embedder)
    print(f"\nhandbook: {figures['chunks']} chunks, {figures['questions']} questions, top {figures['k']} passages")
    print(f"  right page {figures['right_page']}, expected fact {figures['expected_fact']}")
    if options.json is not None:
        options.json.write_text(json.dumps(report, indent=2) + "\n", encoding="utf-8")


def measure_set(folder: Path, embedder: Embedder) -> dict[str, Any]:
    """Figures of one set, questions without a relevant document left out."""
    documents = _lines(folder / "corpus.jsonl")
    grades = _grades(folder / "qrels.tsv")
    questions = [question for question in _lines(folder / "queries.jsonl") if question["id"] in grades]
    texts = [f"{document['title']}\n{document['text']}".strip() for document in documents]
    started = time.perf_counter()
    passages = embedder.embed_passages(texts)
    embedding_s = time.perf_counter() - started
    vectors = VectorIndex(np.arange(len(texts)), passages, embedder.dimension)
    keywords = KeywordIndex.build(texts)
    queries = embedder.embed_passages([question["text"] for question in questions])
    forms = [QueryForm(question["text"], query) for question, query in zip(questions, queries, strict=True)]

    def fused(form: QueryForm) -> Iterable[int]:
        return [row for row, _ in hybrid_search(vectors, keywords, [form], 10)]

    legs: dict[str, Callable[[QueryForm], Iterable[int]]] = {
        "keywords": lambda form: keywords.search(form.text, 10)[0],
        "vectors": lambda form: vectors.search(form.vector, 10)[0],
        "fused": fused,
    }
    figures: dict[str, Any] = {"documents": len(documents), "questions": len(questions)}
    for leg, search in legs.items():
        started = time.perf_counter()
        rankings = [[documents[row]["id"] for row in search(form)] for form in forms]
        figures["search_ms"] = 1000 * (time.perf_counter() - started) / len(forms)
        scores = [
            _scores(ranking, grades[question["id"]]) for ranking, question in zip(rankings, questions, strict=True)
        ]
        figures[leg] = {metric: float(np.mean([score[metric] for score in scores])) for metric in METRICS}
    figures["embedded_per_s"] = len(texts) / embedding_s
    return figures


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


def _scores(ranking: Sequence[str], grades: Grades) -> dict[str, float]:
    def gain(values: Iterable[float]) -> float:
        return sum(value / math.log2(rank + 2) for rank, value in enumerate(values))

    def recall(depth: int) -> float:
        return len(set(ranking[:depth]) & grades.keys()) / len(grades)

    ideal = gain(sorted(grades.values(), reverse=True)[:10])
    found = gain(grades.get(document, 0.0) for document in ranking[:10])
    return {"ndcg@10": found / ideal, "recall@5": recall(5), "recall@10": recall(10)}


def _grades(path: Path) -> dict[str, dict[str, float]]:
    grades: dict[str, dict[str, float]] = {}
    for line in path.read_text(encoding="utf-8").splitlines()[1:]:
        question, document, grade = line.split("\t")
        if float(grade) > 0:
            grades.setdefault(question, {})[document] = float(grade)
    return grades


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
