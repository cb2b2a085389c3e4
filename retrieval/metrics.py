"""Measures of rankings and answers, and intervals for them. Pure functions: they know no index, model or file format.

Rankings as BEIR and trec_eval measure them, answers as SQuAD does (Rajpurkar et al. 2016, arXiv 1606.05250), extended
to languages that put no spaces between words. All measures are shares in 0..1.
"""

import math
import re
import unicodedata
from collections import Counter
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from retrieval.words import UNSPACED

Z_95 = 1.959963984540054  # standard normal quantile of 0.975
NUM_RESAMPLES = 2000

_UNSPACED_CHARACTER = re.compile(f"([{UNSPACED}])")
_ARTICLES = frozenset(("a", "an", "the"))
# A point between digits stays: without it 3.5 would equal 35.
_DECIMAL_POINT = re.compile(r"(?<=\d)\.(?=\d)")
_POINT = "\ue000"  # stands for it meanwhile; private use, so neither punctuation nor symbol


# ── rankings ─────────────────────────────────────────────────────────────────────────────────────────────────────────


def ndcg(ranked: Sequence[str], relevant: Mapping[str, float], k: int = 10) -> float:
    """Normalised discounted cumulative gain of the first `k`, with the grade as gain and log2(rank + 1) as discount.

    `relevant` holds the grades of the documents that should be found; a document that is ranked twice counts once, at
    its better rank. As in trec_eval (Järvelin & Kekäläinen 2002). Raises ValueError when nothing is relevant.
    """
    _check_depth(k)
    grades = {document: grade for document, grade in relevant.items() if grade > 0}
    if not grades:
        raise ValueError("nothing is relevant to this question, so it has no nDCG: leave the question out")
    found = _gain(grades.get(document, 0.0) for document in _distinct(ranked, k))
    return found / _gain(sorted(grades.values(), reverse=True)[:k])


def recall(ranked: Sequence[str], relevant: Collection[str], k: int) -> float:
    """The share of the relevant documents that are among the first `k`. Raises ValueError when nothing is relevant."""
    _check_depth(k)
    wanted = set(relevant)
    if not wanted:
        raise ValueError("nothing is relevant to this question, so it has no recall: leave the question out")
    return len(wanted.intersection(_distinct(ranked, k))) / len(wanted)


def _gain(grades: Iterable[float]) -> float:
    return sum(grade / math.log2(rank + 1) for rank, grade in enumerate(grades, start=1))


def _distinct(ranked: Sequence[str], k: int) -> list[str]:
    return list(dict.fromkeys(ranked))[:k]


def _check_depth(k: int) -> None:
    if k < 1:
        raise ValueError(f"k is {k}: it is a number of ranks, at least 1")


# ── answers ──────────────────────────────────────────────────────────────────────────────────────────────────────────


def normalized(text: str) -> str:
    """Text as answers are compared: tokens joined by single spaces.

    SQuAD's rule: lower case, without punctuation, symbols and the articles a, an, the. Beyond it, for all of Unicode:
    compatibility forms are unified, every character of a script without spaces (Chinese, Japanese, Thai, ...) is a
    token of its own as in CMRC 2018, the point of a decimal number stays, and so does text that would vanish whole.
    """
    return " ".join(_tokens(text))


def exact_match(answer: str, golds: Sequence[str]) -> bool:
    """Whether the answer is one of the accepted ones, both normalised."""
    given = _tokens(answer)
    return any(given == gold for gold in _token_lists(golds))


def token_f1(answer: str, golds: Sequence[str]) -> float:
    """SQuAD's F1: harmonic mean of precision and recall over tokens, repeats counted, against the nearest gold."""
    given = _tokens(answer)
    return max((_overlap_f1(given, gold) for gold in _token_lists(golds)), default=0.0)


def contains_gold(answer: str, golds: Sequence[str]) -> bool:
    """Whether an accepted answer stands in the answer, as whole tokens in a row: "35" is not in "1350".

    Hyphens and slashes may join or separate: "German" is in "Franco-German", "pre-war" in "prewar".
    """
    return any(
        _contains(_tokens(answer, joint), gold) for joint in ("", " ") for gold in _token_lists(golds, joint) if gold
    )


def _tokens(text: str, joint: str = "") -> list[str]:
    """Normalised tokens; `joint` is what a punctuation mark becomes."""
    folded = unicodedata.normalize("NFKC", unicodedata.normalize("NFKC", text).casefold())
    pointed = _DECIMAL_POINT.sub(_POINT, folded)
    plain = "".join(joint if unicodedata.category(character)[0] in "PS" else character for character in pointed)
    words = _UNSPACED_CHARACTER.sub(r" \1 ", plain).replace(_POINT, ".").split()
    return [word for word in words if word not in _ARTICLES] or words or folded.split()


def _token_lists(golds: Sequence[str], joint: str = "") -> list[list[str]]:
    if isinstance(golds, str):
        raise TypeError(f"golds is the one string {golds!r}: give a list of accepted answers")
    return [_tokens(gold, joint) for gold in golds]


def _overlap_f1(given: Sequence[str], gold: Sequence[str]) -> float:
    common = (Counter(given) & Counter(gold)).total()
    return 2 * common / (len(given) + len(gold)) if common else 0.0


def _contains(tokens: Sequence[str], part: Sequence[str]) -> bool:
    return any(tokens[start : start + len(part)] == part for start in range(len(tokens) - len(part) + 1))


# ── intervals ────────────────────────────────────────────────────────────────────────────────────────────────────────


@dataclass(frozen=True)
class Interval:
    """An estimate and the ends of its 95 % confidence interval."""

    value: float
    low: float
    high: float

    def __str__(self) -> str:
        return f"{self.value:.3f} [{self.low:.3f}, {self.high:.3f}]"


def proportion(successes: int, total: int) -> Interval:
    """The share of successes with Wilson's score interval, which is never empty and never leaves 0..1 (Wilson 1927).

    Raises ValueError for no trials: their share is unknown, and whoever reports it has to say so.
    """
    if total < 1 or not 0 <= successes <= total:
        raise ValueError(
            f"{successes} successes in {total} trials: give at least one trial, and as many or fewer successes"
        )
    share = successes / total
    shrink = 1 + Z_95**2 / total
    centre = (share + Z_95**2 / (2 * total)) / shrink
    half = Z_95 / shrink * math.sqrt(share * (1 - share) / total + Z_95**2 / (4 * total**2))
    # Rounding may carry an end a hair past the share, which it reaches where nothing or everything succeeded.
    return Interval(share, max(0.0, min(share, centre - half)), min(1.0, max(share, centre + half)))


def mean_interval(values: Sequence[float], seed: int = 0) -> Interval:
    """The mean with its percentile bootstrap interval (Efron 1979): 2,000 resamples, the same for the same seed.

    For paired differences give the differences. For yes and no use `proportion`: resampling only yeses shows no doubt.
    Raises ValueError for no values or ones that are not finite.
    """
    sample = np.asarray(values, dtype=np.float64)
    if sample.ndim != 1 or sample.size == 0 or not np.isfinite(sample).all():
        raise ValueError(f"{sample.size} values, {int(np.isfinite(sample).sum())} of them finite: give finite numbers")
    random = np.random.default_rng(seed)
    means = [sample[random.integers(sample.size, size=sample.size)].mean() for _ in range(NUM_RESAMPLES)]
    low, high = np.quantile(means, (0.025, 0.975))
    return Interval(float(sample.mean()), float(low), float(high))
