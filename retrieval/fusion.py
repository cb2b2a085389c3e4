"""Fusing ranked lists: min-max scaled scores, weighted and averaged. Pure functions; they know no index.

Scaled scores beat reciprocal ranks because they keep how far apart two hits are (Bruch et al. 2022, arXiv 2210.11934).
"""

from collections.abc import Mapping, Sequence

Scores = Mapping[int, float]


def min_max(scores: Scores) -> dict[int, float]:
    """Scores scaled so that the best is 1 and the worst 0. All equal: all 1, for each was as good as the best."""
    if not scores:
        return {}
    low, high = min(scores.values()), max(scores.values())
    spread = high - low
    # A spread that float arithmetic cannot divide by is no spread.
    if spread <= 0 or not spread < float("inf") or 1.0 / spread == float("inf"):
        return dict.fromkeys(scores, 1.0)
    return {key: (score - low) / spread for key, score in scores.items()}


def fuse(lists: Sequence[Scores], weights: Sequence[float] | None = None) -> dict[int, float]:
    """The weighted mean of the lists' scaled scores, in 0..1; a hit that a list lacks has 0 there.

    An empty list has nothing to say and takes no part, so its weight goes to the others. `weights` are non-negative
    and default to equal ones. Raises ValueError when their number differs from the lists'.
    """
    weights = [1.0] * len(lists) if weights is None else list(weights)
    if len(weights) != len(lists):
        raise ValueError(f"{len(lists)} lists but {len(weights)} weights: give one weight a list")
    total = sum(weight for scores, weight in zip(lists, weights, strict=True) if scores)
    fused: dict[int, float] = {}
    for scores, weight in zip(lists, weights, strict=True):
        for key, score in min_max(scores).items():
            fused[key] = fused.get(key, 0.0) + (weight / total * score if total > 0 else 0.0)
    # Rounding may carry a sum of shares a hair past 1.
    return {key: min(1.0, score) for key, score in fused.items()}


def best(scores: Scores, k: int) -> list[tuple[int, float]]:
    """The `k` best, best first; ties by key, so that the order never depends on how the scores came together."""
    return sorted(scores.items(), key=lambda item: (-item[1], item[0]))[:k]
