import math

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from retrieval.fusion import best, fuse, min_max

FLOATS = st.floats(allow_nan=False, allow_infinity=False, width=32)
SCORES = st.dictionaries(st.integers(0, 30), FLOATS, max_size=15)


def test_known_lists_fuse_to_known_scores() -> None:
    vectors = {1: 0.9, 2: 0.5, 3: 0.1}
    keywords = {2: 12.0, 4: 4.0}
    fused = fuse([vectors, keywords])
    assert fused == {1: 0.5, 2: pytest.approx(0.25 + 0.5), 3: 0.0, 4: 0.0}
    assert best(fused, 2) == [(2, pytest.approx(0.75)), (1, 0.5)]


def test_an_empty_list_leaves_its_weight_to_the_others() -> None:
    assert fuse([{1: 3.0, 2: 1.0}, {}]) == {1: 1.0, 2: 0.0}
    assert fuse([{}, {}]) == {}
    assert fuse([]) == {}


def test_weights_shift_the_order() -> None:
    lists = [{1: 1.0, 2: 0.0}, {2: 1.0, 1: 0.0}]
    assert fuse(lists, [3, 1]) == {1: 0.75, 2: 0.25}
    assert fuse(lists, [0, 1]) == {1: 0.0, 2: 1.0}
    with pytest.raises(ValueError, match="2 lists but 1 weights"):
        fuse(lists, [1.0])


def test_equal_scores_all_count_as_best() -> None:
    assert min_max({1: 2.0, 2: 2.0}) == {1: 1.0, 2: 1.0}
    assert min_max({7: -3.0}) == {7: 1.0}
    assert min_max({}) == {}


def test_ties_are_ordered_by_key() -> None:
    assert best({3: 0.5, 1: 0.5, 2: 0.7}, 10) == [(2, 0.7), (1, 0.5), (3, 0.5)]


@settings(deadline=None)
@given(SCORES)
def test_scaling_keeps_the_order_and_stays_within_0_and_1(scores: dict[int, float]) -> None:
    scaled = min_max(scores)
    assert scaled.keys() == scores.keys()
    assert all(0 <= value <= 1 for value in scaled.values())
    for one in scores:
        for other in scores:
            if scores[one] <= scores[other]:
                assert scaled[one] <= scaled[other]
    if scores:
        assert max(scaled.values()) == 1


@settings(deadline=None)
@given(st.lists(SCORES, max_size=5))
def test_fused_scores_cover_every_hit_and_stay_within_0_and_1(lists: list[dict[int, float]]) -> None:
    fused = fuse(lists)
    assert fused.keys() == set().union(*lists)
    assert all(0 <= value <= 1 and math.isfinite(value) for value in fused.values())


@settings(deadline=None)
@given(st.lists(SCORES, min_size=2, max_size=4), st.randoms(use_true_random=False))
def test_the_order_of_the_lists_does_not_matter(lists: list[dict[int, float]], random: object) -> None:
    shuffled = list(lists)
    random.shuffle(shuffled)  # type: ignore[attr-defined]
    one, other = fuse(lists), fuse(shuffled)
    assert one.keys() == other.keys()
    assert all(one[key] == pytest.approx(other[key], abs=1e-9) for key in one)


@settings(deadline=None)
@given(SCORES)
def test_a_list_fused_with_itself_ranks_as_it_does_alone(scores: dict[int, float]) -> None:
    assert [key for key, _ in best(fuse([scores, scores]), 10)] == [key for key, _ in best(min_max(scores), 10)]


@settings(deadline=None)
@given(SCORES, st.integers(0, 10))
def test_best_returns_the_k_largest_in_order(scores: dict[int, float], k: int) -> None:
    top = best(scores, k)
    assert len(top) == min(k, len(scores))
    assert [score for _, score in top] == sorted(scores.values(), reverse=True)[:k]
