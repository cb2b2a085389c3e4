import math

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from retrieval.metrics import (
    Interval,
    contains_gold,
    exact_match,
    mean_interval,
    ndcg,
    normalized,
    proportion,
    recall,
    token_f1,
)

LOG2_3 = math.log2(3)

# ── rankings ─────────────────────────────────────────────────────────────────────────────────────────────────────────


@pytest.mark.parametrize(
    ("ranked", "relevant", "k", "expected"),
    [
        (["a", "b", "c"], {"a": 1}, 10, 1.0),
        (["b", "a", "c"], {"a": 1}, 10, 1 / LOG2_3),  # rank 2: 1 / log2(3)
        (["b", "c", "a"], {"a": 1}, 10, 0.5),  # rank 3: 1 / log2(4)
        (["b", "c", "a"], {"a": 1}, 2, 0.0),
        (["x", "b", "a"], {"a": 2, "b": 1}, 10, (1 / LOG2_3 + 2 / 2) / (2 + 1 / LOG2_3)),
        (["a", "b"], {"a": 1, "b": 1, "c": 1}, 1, 1.0),  # the ideal is cut at k too
        (["a"], {"a": 1, "b": 1}, 10, 1 / (1 + 1 / LOG2_3)),
        (["b", "b", "a"], {"a": 1, "z": 0}, 10, 1 / LOG2_3),  # b counts once; grade 0 is not relevant
        ([], {"a": 1}, 10, 0.0),
    ],
)
def test_ndcg_discounts_by_the_logarithm_of_the_rank(
    ranked: list[str], relevant: dict[str, float], k: int, expected: float
) -> None:
    assert ndcg(ranked, relevant, k) == pytest.approx(expected, abs=1e-12)


@pytest.mark.parametrize(
    ("ranked", "relevant", "k", "expected"),
    [
        (["a", "x", "b"], ["a", "b"], 3, 1.0),
        (["a", "x", "b"], ["a", "b"], 2, 0.5),
        (["a", "a", "b"], ["a", "b"], 2, 1.0),  # two documents, one of them found twice
        (["x"], ["a", "b", "c"], 5, 0.0),
    ],
)
def test_recall_is_the_share_of_the_relevant_that_was_found(
    ranked: list[str], relevant: list[str], k: int, expected: float
) -> None:
    assert recall(ranked, relevant, k) == expected


def test_rankings_without_a_relevant_document_or_a_depth_are_refused() -> None:
    with pytest.raises(ValueError, match="leave the question out"):
        ndcg(["a"], {"a": 0})
    with pytest.raises(ValueError, match="leave the question out"):
        recall(["a"], [], 5)
    with pytest.raises(ValueError, match="k is 0"):
        ndcg(["a"], {"a": 1}, 0)
    with pytest.raises(ValueError, match="k is -1"):
        recall(["a"], ["a"], -1)


# ── answers ──────────────────────────────────────────────────────────────────────────────────────────────────────────


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("The  Eiffel-Tower, in\nParis!", "eiffeltower in paris"),
        ("An apple a day", "apple day"),
        ("“Ärzte” – don’t", "ärzte dont"),
        ("$1,000.50 or 3.5.", "1000.50 or 3.5"),
        ("ＦＰ８ ﬁne", "fp8 fine"),
        ("于2015年获胜。", "于 2015 年 获 胜"),
        ("東京タワー（Tokyo Tower）", "東 京 タ ワ ー tokyo tower"),
        ("สวัสดี", "ส ว ั ส ด ี"),
        ("The", "the"),  # nothing would be left
        ("C++?", "c"),
        (" % ", "%"),
        ("", ""),
    ],
)
def test_answers_are_normalised_as_squad_does_and_by_character_without_spaces(text: str, expected: str) -> None:
    assert normalized(text) == expected


def test_exact_match_is_with_any_accepted_answer() -> None:
    assert exact_match("the Denver Broncos.", ["Carolina Panthers", "Denver Broncos"])
    assert exact_match("２０１５年", ["2015 年"])
    assert not exact_match("Denver", ["Denver Broncos"])
    assert not exact_match("35", ["3.5"])
    assert not exact_match("", ["a", "%"])
    assert not exact_match("x", [])


@pytest.mark.parametrize(
    ("answer", "golds", "expected"),
    [
        ("Denver Broncos", ["the Denver Broncos"], 1.0),
        ("the Broncos won in Denver", ["Denver Broncos"], 2 * 2 / (4 + 2)),  # precision 2/4, recall 2/2
        ("very very good", ["very good"], 2 * 2 / (3 + 2)),  # repeats count as often as both have them
        ("Denver", ["Panthers", "Denver Broncos"], 2 * 1 / (1 + 2)),  # the nearest gold counts
        ("北京市", ["北京"], 2 * 2 / (3 + 2)),
        ("", ["Denver"], 0.0),
        ("Denver", [], 0.0),
    ],
)
def test_token_f1_against_the_nearest_gold(answer: str, golds: list[str], expected: float) -> None:
    assert token_f1(answer, golds) == pytest.approx(expected, abs=1e-12)


@pytest.mark.parametrize(
    ("answer", "gold", "expected"),
    [
        ("It was won by the Denver Broncos.", "Denver Broncos", True),
        ("Denver's Broncos", "Denver Broncos", False),
        ("about 1350 tokens", "35", False),
        ("a 3.5 GB file", "35", False),
        ("the Franco-German border", "German", True),
        ("a prewar house", "pre-war", True),
        ("a pre-war house", "prewar", True),
        ("1,000 tokens", "1000", True),
        ("比赛于2015年在丹佛举行", "2015年", True),
        ("比赛于2015年在丹佛举行", "丹佛", True),
        ("", "x", False),
        ("x", "", False),
    ],
)
def test_an_answer_contains_the_gold_as_whole_tokens(answer: str, gold: str, expected: bool) -> None:
    assert contains_gold(answer, ["something else", gold]) is expected


def test_a_single_string_of_golds_is_refused() -> None:
    with pytest.raises(TypeError, match="give a list of accepted answers"):
        token_f1("Denver", "Denver")


@settings(max_examples=30)
@given(st.text(), st.text())
def test_measures_of_any_text_agree_with_each_other(answer: str, gold: str) -> None:
    assert normalized(normalized(gold)) == normalized(gold)
    assert 0.0 <= token_f1(answer, [gold]) <= 1.0
    if exact_match(answer, [gold]) and normalized(gold):
        assert token_f1(answer, [gold]) == 1.0
        assert contains_gold(answer, [gold])


# ── intervals ────────────────────────────────────────────────────────────────────────────────────────────────────────


@pytest.mark.parametrize(
    ("successes", "total", "low", "high"),
    [
        (8, 10, 0.490162, 0.943318),  # (0.8 + z²/20 ∓ z √(0.016 + z²/400)) / (1 + z²/10), z = 1.959964
        (0, 10, 0.0, 0.277533),  # high = z² / (10 + z²)
        (10, 10, 0.722467, 1.0),
        (50, 100, 0.403832, 0.596168),
    ],
)
def test_wilsons_interval_of_a_share(successes: int, total: int, low: float, high: float) -> None:
    interval = proportion(successes, total)
    assert interval.value == successes / total
    assert (interval.low, interval.high) == pytest.approx((low, high), abs=1e-6)


@given(st.integers(1, 10_000).flatmap(lambda total: st.tuples(st.integers(0, total), st.just(total))))
def test_a_share_lies_in_its_interval_and_the_interval_in_0_to_1(counts: tuple[int, int]) -> None:
    interval = proportion(*counts)
    assert 0.0 <= interval.low <= interval.value <= interval.high <= 1.0
    assert interval.low < interval.high


@pytest.mark.parametrize(("successes", "total"), [(0, 0), (-1, 3), (4, 3)])
def test_impossible_counts_are_refused(successes: int, total: int) -> None:
    with pytest.raises(ValueError, match=f"{successes} successes in {total} trials"):
        proportion(successes, total)


def test_the_bootstrap_interval_is_that_of_the_seed_and_near_the_normal_one() -> None:
    values = [float(value) for value in range(100)]  # mean 49.5, standard deviation √833.25
    interval = mean_interval(values)
    assert interval == mean_interval(values, seed=0) != mean_interval(values, seed=1)
    half = 1.96 * math.sqrt(833.25 / 100)
    assert interval.value == 49.5
    assert (interval.low, interval.high) == pytest.approx((49.5 - half, 49.5 + half), abs=0.6)
    assert mean_interval([0.25] * 7) == Interval(0.25, 0.25, 0.25)


@pytest.mark.parametrize("values", [[], [1.0, math.nan], [math.inf]])
def test_a_mean_of_nothing_or_of_no_numbers_is_refused(values: list[float]) -> None:
    with pytest.raises(ValueError, match="give finite numbers"):
        mean_interval(values)


def test_an_interval_prints_its_ends() -> None:
    assert str(Interval(0.8, 0.49016, 0.94332)) == "0.800 [0.490, 0.943]"
