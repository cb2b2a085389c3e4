"""The vector index at size: recall, time a query with and without filters, build and load times, as table and JSON.

    python -m benchmarks.index [--rows 1000000] [--format float32|float16|int8] [--json FILE]

Vectors are made here: clustered, of length one, seed 0. The truth is an exhaustive search; raw FAISS is an
`IndexIVFFlat` with the same lists that looks through as many of them. A filter is a bitmap of random rows. What a
search through the LangChain store adds is the cost of reading ten documents; it is measured on at most 5,000 texts.
"""

import argparse
import json
import os
import tempfile
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import faiss
import numpy as np
from langchain_core.embeddings import Embeddings

from benchmarks.machine import describe_machine
from retrieval import IndexOptions, KnowledgeBase, LangChainEmbedder
from retrieval.embeddings import Vectors
from retrieval.snapshot import checksum
from retrieval.vector_codes import FORMATS, Ids
from retrieval.vector_index import Mask, VectorIndex
from retrieval.vector_store import RagstoneVectorStore

DIMENSION = 384
K = 10
QUERIES = 200
FILTERS = (0.01, 0.1, 0.5)
# Above this an HNSW graph takes longer to build than all the rest; it is built only to show why the lists are used.
_HNSW_ROWS = 200_000
_STORE_TEXTS = 5_000
RESULTS = Path(__file__).parent / "results" / "index.json"

Search = Callable[[Vectors], Ids]


def main() -> None:
    """Measures and prints."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rows", type=int, default=1_000_000, help="number of vectors")
    parser.add_argument("--format", choices=FORMATS, default="float32", help="how the index keeps them")
    parser.add_argument("--json", type=Path, default=RESULTS, help="where the figures go")
    options = parser.parse_args()
    report = {"machine": {**describe_machine(), "load_average": os.getloadavg()[0]}} | measure(
        options.rows, options.format
    )
    print_table(report)
    options.json.parent.mkdir(parents=True, exist_ok=True)
    options.json.write_text(json.dumps(report, indent=2) + "\n", encoding="utf-8")


def clustered(rows: int, queries: int, seed: int = 0) -> tuple[Vectors, Vectors]:
    """Vectors [rows, dimension] and queries from the same clusters, one for every thousand rows; all of length one."""
    random = np.random.default_rng(seed)
    centres = random.standard_normal((max(10, rows // 1000), DIMENSION), dtype=np.float32)

    def drawn(num: int) -> Vectors:
        vectors = np.empty((num, DIMENSION), dtype=np.float32)
        for start in range(0, num, 65_536):
            part = vectors[start : start + 65_536]
            part[:] = random.standard_normal(part.shape, dtype=np.float32)
            part += centres[random.integers(0, len(centres), len(part))]
            part /= np.linalg.norm(part, axis=1, keepdims=True)
        return vectors

    return drawn(rows), drawn(queries)


def measure(rows: int, format: str = "float32") -> dict[str, Any]:
    """All figures for so many vectors."""
    vectors, queries = clustered(rows, QUERIES)
    masks = {share: np.random.default_rng(1).random(rows) < share for share in FILTERS}
    truth = {None: _truth(vectors, queries, None)} | {s: _truth(vectors, queries, mask) for s, mask in masks.items()}
    report: dict[str, Any] = {"rows": rows, "dimension": DIMENSION, "k": K, "queries": QUERIES, "format": format}
    # From 100,000 rows on the lists are what a store uses; below they are asked for, to be measured.
    options = IndexOptions(format, min(100_000, rows - 1))  # type: ignore[arg-type]
    index = VectorIndex(np.arange(rows), vectors, DIMENSION, options)
    report["flat"] = _searched(lambda query: index.search(query, K)[0], queries[:50], truth[None])
    started = time.perf_counter()
    index = index.compacted()
    report["build_s"] = time.perf_counter() - started
    report["kind"] = index.kind
    if rows <= _HNSW_ROWS:
        report["hnsw"] = _hnsw(vectors, queries, masks[0.01], truth)
    del vectors
    with tempfile.TemporaryDirectory() as folder:
        started = time.perf_counter()
        index.save(Path(folder))
        report["save_s"] = time.perf_counter() - started
        report["file_bytes"] = sum(path.stat().st_size for path in Path(folder).iterdir())
        started = time.perf_counter()
        for path in Path(folder).iterdir():
            checksum(path)
        report["checksum_s"] = time.perf_counter() - started
        started = time.perf_counter()
        index = VectorIndex.load(Path(folder), DIMENSION, options)
        report["map_s"] = time.perf_counter() - started
        report["search"] = _searched(lambda query: index.search(query, K)[0], queries, truth[None])
        report["filters"] = {
            str(share): _searched(lambda query, mask=mask: index.search(query, K, mask)[0], queries, truth[share])
            for share, mask in masks.items()
        }
        report["raw"] = _searched(_raw_faiss(index), queries, truth[None]) if format == "float32" else None
    report["documents_ms"] = _documents_ms(min(rows, _STORE_TEXTS))
    return report


def print_table(report: dict[str, Any]) -> None:
    """The figures beside what they are to be."""
    print(f"{report['rows']:,} x {report['dimension']} vectors, {report['format']}; {report['kind']}")
    print(
        f"built in {report['build_s']:.1f} s, saved in {report['save_s']:.1f} s, {report['file_bytes'] / 1e6:,.0f} MB"
    )
    loaded = report["checksum_s"] + report["map_s"]
    print(f"loaded in {loaded:.2f} s (checksum {report['checksum_s']:.2f}, map {report['map_s']:.2f}; to be <= 3)\n")
    print(f"{'search':<28}{'recall@10':>10}{'median ms':>11}{'95% ms':>9}")
    lines = {"flat, exhaustive": report["flat"], "index (>= 0.97, <= 5 ms)": report["search"]}
    if report["raw"] is not None:
        lines["raw FAISS, same lists"] = report["raw"]
    for share, figures in report["filters"].items():
        lines[f"index, {float(share):.0%} filter" + (" (1.0, <= 5)" if share == "0.01" else "")] = figures
    if "hnsw" in report:
        lines |= {"HNSW32, ef 64": report["hnsw"]["search"], "HNSW32, 1% filter": report["hnsw"]["filter"]}
    for name, figures in lines.items():
        print(f"{name:<28}{figures['recall']:>10.4f}{figures['median_ms']:>11.3f}{figures['p95_ms']:>9.3f}")
    if "hnsw" in report:
        print(f"(HNSW built in {report['hnsw']['build_s']:.1f} s)")
    if report["raw"] is not None:
        ours, raw = report["search"]["median_ms"], report["raw"]["median_ms"]
        print(f"\nours over raw FAISS: {ours / raw:.2f} x, {ours - raw:+.3f} ms (to be <= 1.15 x or +0.2 ms)")
    print(f"with ten documents: +{report['documents_ms']:.2f} ms (to be <= +1 ms)")
    print(f"load average at the start: {report['machine']['load_average']:.1f} on {report['machine']['cores']} cores")


def _truth(vectors: Vectors, queries: Vectors, mask: Mask | None) -> Ids:
    rows = None if mask is None else np.flatnonzero(mask)
    found: Ids = faiss.knn(queries, vectors if rows is None else vectors[rows], K, metric=faiss.METRIC_INNER_PRODUCT)[1]
    return found if rows is None else rows[found]


def _searched(search: Search, queries: Vectors, truth: Ids) -> dict[str, float]:
    """Recall against the truth, and times of single queries, the first ones not counted."""
    for query in queries[:5]:
        search(query)
    took, shares = [], []
    for query, true_rows in zip(queries, truth, strict=False):
        started = time.perf_counter()
        rows = search(query)
        took.append(1000 * (time.perf_counter() - started))
        shares.append(len(set(rows.tolist()) & set(true_rows.tolist())) / len(true_rows))
    return {
        "recall": float(np.mean(shares)),
        "median_ms": float(np.median(took)),
        "mean_ms": float(np.mean(took)),
        "p95_ms": float(np.quantile(took, 0.95)),
    }


def _raw_faiss(index: VectorIndex) -> Search:
    """FAISS's own inverted file with the lists of `index`, looking through as many lists as `index` does on average."""
    lists = index.lists
    assert lists is not None
    quantizer = faiss.IndexFlatIP(DIMENSION)
    quantizer.add(lists.centroids)
    raw = faiss.IndexIVFFlat(quantizer, DIMENSION, len(lists), faiss.METRIC_INNER_PRODUCT)
    for start in range(0, len(index), 65_536):
        rows = np.arange(start, min(start + 65_536, len(index)))
        raw.add(index.vectors_of(rows))
    raw.nprobe = max(1, round(lists.budget(K) / len(index) * len(lists)))

    def search(query: Vectors) -> Ids:
        rows: Ids = raw.search(query.reshape(1, -1), K)[1][0]
        return rows

    return search


def _hnsw(vectors: Vectors, queries: Vectors, mask: Mask, truth: dict[float | None, Ids]) -> dict[str, Any]:
    graph = faiss.IndexHNSWFlat(DIMENSION, 32, faiss.METRIC_INNER_PRODUCT)
    started = time.perf_counter()
    graph.add(vectors)
    build_s = time.perf_counter() - started
    bits = np.packbits(mask, bitorder="little")

    def parameters(selector: Any = None) -> Any:
        made = faiss.SearchParametersHNSW()
        made.efSearch = 64
        made.sel = selector
        return made

    plain, filtered = parameters(), parameters(faiss.IDSelectorBitmap(len(mask), faiss.swig_ptr(bits)))
    return {
        "build_s": build_s,
        "search": _searched(lambda query: graph.search(query[None], K, params=plain)[1][0], queries, truth[None]),
        "filter": _searched(lambda query: graph.search(query[None], K, params=filtered)[1][0], queries, truth[0.01]),
    }


class _Numbered(Embeddings):
    """Text n is vector n: embedding costs nothing."""

    def __init__(self, vectors: Vectors) -> None:
        self._vectors = vectors

    def embed_documents(self, texts: list[str]) -> list[list[float]]:
        return [self.embed_query(text) for text in texts]

    def embed_query(self, text: str) -> list[float]:
        vector: list[float] = self._vectors[int(text) if text.isdigit() else 0].tolist()
        return vector


def _documents_ms(texts: int) -> float:
    """What a search through the LangChain store takes longer than the index that it asks, median."""
    vectors, queries = clustered(texts, QUERIES)
    with (
        tempfile.TemporaryDirectory() as folder,
        KnowledgeBase.open(Path(folder), LangChainEmbedder(_Numbered(vectors))) as knowledge_base,
    ):
        store = RagstoneVectorStore(knowledge_base)
        store.add_texts([str(number) for number in range(texts)])
        with knowledge_base.catalog.reading() as reader:
            index = knowledge_base.snapshots.current(reader).vectors
        # In turn, so that what else the machine does falls on both.
        took: dict[str, list[float]] = {"plain": [], "whole": []}
        for query in queries:
            ways: dict[str, Callable[[], object]] = {
                "plain": partial(index.search, query, K),
                "whole": partial(store.similarity_search_by_vector, query.tolist(), K),
            }
            for way, search in ways.items():
                started = time.perf_counter()
                search()
                took[way].append(1000 * (time.perf_counter() - started))
    return float(np.median(took["whole"]) - np.median(took["plain"]))


if __name__ == "__main__":
    main()
