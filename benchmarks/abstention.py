"""How far one threshold of answerability carries: each set at the fixed one, and at the best one of the other sets."""

import random
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from benchmarks.answer_figures import shown
from benchmarks.answer_sets import CachedEmbedder, Corpus, stand_alone
from retrieval.evidence import ANSWERABLE, rank_sentences
from retrieval.metrics import Interval, proportion

SETS = ("xquad_en", "faq_covid", "mtrag_multiturn", "handbook_18f")
THRESHOLDS = [round(0.5 + step / 50, 2) for step in range(40)]


def measure_abstention(data: Path, embed: CachedEmbedder, options: Any) -> dict[str, Any]:
    """How far one threshold carries: each set at the fixed one, and at the best one of the other sets."""
    strengths: dict[str, dict[str, list[float]]] = {}
    sets = [data / name for name in SETS if (data / name).is_dir()]
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
