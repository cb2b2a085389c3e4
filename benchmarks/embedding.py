"""How fast texts become vectors: ours beside plain `SentenceTransformer.encode`, in one run, as table and JSON.

    python -m benchmarks.embedding [--texts 512] [--model FOLDER] [--set FOLDER] [--json FILE]

The texts are the chunks of the sample handbook, repeated with a number in front until there are enough. The least
cosine between both ways' vectors says whether they agree. Where OpenVINO is installed, it runs ours of many texts.
Times are of the wall and, where others use the machine too, of the CPU. With a set (a folder in the form of BEIR, as
benchmarks.retrieval reads it), nDCG@10 of the vectors alone is printed for float32 and for the model's `:int8`.
"""

import argparse
import json
import tempfile
import time
from pathlib import Path
from typing import Any

import numpy as np

from benchmarks.machine import describe_machine
from benchmarks.retrieval import EvaluationSet
from retrieval import Embedder, KnowledgeBase
from retrieval.metrics import ndcg

HANDBOOK = Path(__file__).resolve().parents[1] / "data" / "handbook"
NUM_QUERIES = 50
WAYS = ("sentence-transformers", "ours", "ours, many texts", "ours, int8")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--texts", type=int, default=512)
    parser.add_argument("--model", type=Path, help="folder of the embedding model (default: the packaged one)")
    parser.add_argument("--set", type=Path, help="folder of a set: print what 8 bits lose on it")
    parser.add_argument("--json", type=Path, help="also write the figures to this file")
    options = parser.parse_args()
    folder = options.model or default_model()
    texts = _texts(folder, options.texts)
    report: dict[str, Any] = {"machine": describe_machine(), "texts": len(texts), **measure(folder, texts)}
    for way in WAYS:
        figures = report[way]
        print(
            f"{way:22} {figures['texts_per_s']:8.1f} texts a second  {figures['speed']:5.2f} × "
            f"({figures['cpu_speed']:.2f} × by CPU time)  least cosine {figures['least_cosine']:.6f}  "
            f"on {figures['device']}"
        )
    print(f"one query: {report['query_ms']:.1f} ms, at best {report['least_query_ms']:.1f} (median of {NUM_QUERIES})")
    if options.set is not None:
        report["ndcg@10"] = measured_loss(folder, options.set)
        exact, coarse = report["ndcg@10"]["float32"], report["ndcg@10"]["int8"]
        print(f"{options.set.name}: nDCG@10 {exact:.4f} in float32, {coarse:.4f} in int8 ({coarse - exact:+.4f})")
    if options.json is not None:
        options.json.write_text(json.dumps(report, indent=2) + "\n", encoding="utf-8")


def measure(folder: Path, texts: list[str]) -> dict[str, Any]:
    """Texts a second, speed beside sentence-transformers and least cosine to its vectors, of each way."""
    from sentence_transformers import SentenceTransformer

    embedder = Embedder(folder)
    embedder.load()
    library = SentenceTransformer(str(folder), device="cpu", local_files_only=True)
    library.max_seq_length = embedder.max_tokens + 2
    model = embedder._loaded()
    many = embedder._for_many(model)
    coarse = Embedder(folder, int8=True)._loaded()
    ways = {
        "sentence-transformers": (lambda batch: library.encode(batch, batch_size=32), "cpu"),
        "ours": (lambda batch: model.encode(batch, 32), model.device),
        "ours, many texts": (lambda batch: many.encode(batch, 32), many.device),
        "ours, int8": (lambda batch: coarse.encode(batch, 32), coarse.device),
    }
    report: dict[str, Any] = {}
    expected: np.ndarray | None = None
    for way, (encode, device) in ways.items():
        encode(texts[:32])
        started, used = time.perf_counter(), time.process_time()
        vectors = np.asarray(encode(texts))
        seconds, cpu_seconds = time.perf_counter() - started, time.process_time() - used
        vectors = vectors / np.linalg.norm(vectors, axis=1, keepdims=True)
        expected = vectors if expected is None else expected
        report[way] = {
            "device": str(device),
            "texts_per_s": len(texts) / seconds,
            "cpu_s": cpu_seconds,
            "least_cosine": float((vectors * expected).sum(1).min()),
        }
    for way in ways:
        report[way]["speed"] = report[way]["texts_per_s"] / report["sentence-transformers"]["texts_per_s"]
        report[way]["cpu_speed"] = report["sentence-transformers"]["cpu_s"] / report[way]["cpu_s"]
    times = []
    for number in range(NUM_QUERIES):
        started = time.perf_counter()
        embedder.embed_query(f"How many days of leave are there in year {number}?")
        times.append(time.perf_counter() - started)
    report["query_ms"] = 1000 * float(np.median(times))
    report["least_query_ms"] = 1000 * min(times)
    return report


def measured_loss(folder: Path, set_folder: Path) -> dict[str, float]:
    """nDCG@10 of the vectors alone, in float32 and in int8."""
    data = EvaluationSet.read(set_folder)
    found: dict[str, float] = {}
    for kind in ("float32", "int8"):
        embedder = Embedder(folder, int8=kind == "int8")
        passages = embedder.embed_passages(data.texts)
        queries = np.stack([embedder.embed_query(question["text"]) for question in data.questions])
        best = np.argsort(-(queries @ passages.T), axis=1)[:, :10]
        shares = [ndcg([data.ids[row] for row in rows], grades) for rows, grades in zip(best, data.grades, strict=True)]
        found[kind] = float(np.mean(shares))
    return found


def _texts(folder: Path, count: int) -> list[str]:
    with tempfile.TemporaryDirectory() as store, KnowledgeBase.open(Path(store), _Lengths(folder)) as knowledge_base:
        knowledge_base.ingest_paths([HANDBOOK], relative_to=HANDBOOK)
        found = knowledge_base.search("memory of a GPU", k=count)
    texts = [f"{passage.title}\n{passage.text}" for passage in found]
    return [f"{number // len(texts)} {texts[number % len(texts)]}" for number in range(count)]


class _Lengths(Embedder):
    """Counts tokens as the model does and embeds nothing: only the chunks are wanted."""

    def embed_passages(self, texts: Any) -> Any:
        return np.eye(1, self.dimension, dtype=np.float32).repeat(len(texts), axis=0)

    def embed_query(self, text: str) -> Any:
        return self.embed_passages([text])[0]


def default_model() -> Path:
    from app.models import resolve
    from app.settings import Settings

    return resolve("all-minilm-l6-v2", Settings())


if __name__ == "__main__":
    main()
