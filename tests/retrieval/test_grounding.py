"""What a source supports and what it does not, and the reason given."""

import numpy as np
import pytest

from retrieval.grounding import LENIENT, STRICT, Bar, GroundingChecker
from retrieval.records import Passage
from tests.retrieval.word_embedder import WordEmbedder

TEXT = (
    "Full-time employees earn 6 hours of annual leave per pay period after three years. "
    "Interns do not earn annual leave. "
    "The Denver Broncos beat the Carolina Panthers by 24 points to 10. "
    "Alice has 3 dogs and Bob has 5 cats. "
    "Requests go to Jared Allen. He answers within 2 days. "
    "Ms Solheim is the safety officer. Her deputy is Tomasz Wilk."
)


def weights(terms):
    return dict.fromkeys(terms, 1.0)


def passage(text=TEXT, title="Leave", heading=None):
    return Passage("d", "c", title, "leave.md", None, heading, text, 1.0, "default")


def checker(*passages, bar=STRICT):
    return GroundingChecker(passages or [passage()], weights, WordEmbedder().embed_passages, bar)


@pytest.mark.parametrize(
    "claim",
    [
        "Full-time employees earn 6 hours of annual leave per pay period after three years.",
        "Interns do not earn annual leave.",
        "The Denver Broncos beat the Carolina Panthers by 24 points to 10.",
        "Alice has three dogs.",
        "The deputy of Ms Solheim is Tomasz Wilk.",
    ],
)
def test_what_the_source_says_is_supported(claim):
    support = checker().check(claim)
    assert (support.supported, support.reason, support.passage) == (True, None, 0), support


@pytest.mark.parametrize(
    ("claim", "reason"),
    [
        ("Full-time employees earn 8 hours of annual leave per pay period.", "numbers"),
        ("Employees earn 6 hours of annual leave after four years.", "numbers"),
        ("Requests go to Kony Allen.", "names"),
        ("Employees earn 6 hours of annual leave per pay period.", "left out"),
        ("Full-time employees earn 6 hours of annual leave per pay period.", "left out"),
        ("Interns earn annual leave.", "negation"),
        ("Full-time employees do not earn 6 hours of annual leave per pay period.", "negation"),
        ("The Carolina Panthers beat the Denver Broncos.", "order"),
        ("Alice has 5 cats.", "order"),
        ("Employees enjoy generous vacations every summer.", "wording"),
        ("Tomasz Wilk is the safety officer.", "wording"),
        ("Ms Solheim is deputy.", "wording"),
        ("Yes.", "wording"),
        ("", "nothing to check"),
    ],
)
def test_what_the_source_does_not_say_is_refused_with_the_reason(claim, reason):
    support = checker().check(claim)
    assert (support.supported, support.reason) == (False, reason), support


@pytest.mark.parametrize(
    "claim",
    [
        "Employees earn 6 hours of annual leave per pay period.",
        "The Denver Broncos beat the Carolina Panthers.",
        "Jared Allen answers requests within 2 days.",
        "Jared Allen answers in 2 days.",
    ],
)
def test_a_lenient_bar_lets_a_model_leave_out_what_it_likes_but_for_heads_and_limits(claim):
    assert not checker().check(claim).supported
    assert checker(bar=LENIENT).check(claim).reason is None


def test_a_pronoun_stands_for_the_only_name_of_the_sentence_before():
    assert checker(passage("We hired Bob Ek. He leads the office.")).check("Bob Ek leads the office.").supported
    assert not checker(passage("Ann hired Bob. He leads the office.")).check("Ann leads the office.").supported


@pytest.mark.parametrize(("claim", "supported"), [
    ("Employees: 6 hours of leave.", True), ("The hours of leave of employees: 6.", True),
    ("Employees: 4 hours of leave.", False), ("Employees: 6 hours of sick leave.", False), ("Employees: 6.", False),
])  # fmt: skip
def test_a_table_row_supports_a_cell_under_its_columns_name(claim, supported):
    table = "| who | hours of leave | days of sick leave |\n|---|---|---|\n| employees | 6 | 4 |"
    assert checker(passage(table)).check(claim).supported is supported


def test_the_supporting_passage_and_sentence_are_named():
    support = checker(passage("Nothing of the kind stands here."), passage()).check("Interns do not earn annual leave.")
    assert (support.passage, support.quote) == (1, "Interns do not earn annual leave.")


def test_title_and_headings_may_name_what_the_sentence_only_means():
    plain, headed = passage("It costs 20 dollars."), passage("It costs 20 dollars.", title="Zurich", heading="Badge")
    claim = "The Zurich badge costs 20 dollars."
    assert not checker(plain).check(claim).supported
    assert checker(headed).check(claim).supported


def test_a_lenient_bar_takes_other_words_but_no_other_numbers():
    claim = "Staff working full-time earn 6 hours of leave."
    lenient = checker(bar=Bar(wording=0.5, meaning=0.0))
    assert not checker().check(claim).supported
    assert lenient.check(claim).supported
    assert lenient.check(claim.replace("6", "7")).reason == "numbers"


def test_meaning_is_checked_where_the_words_are_the_same():
    opposite = np.array([[1.0, 0.0], [0.0, 1.0]], dtype=np.float32)
    strange = GroundingChecker([passage()], weights, lambda texts: opposite[: len(texts)])
    assert strange.check("Interns do not earn annual leave.").reason == "meaning"


def test_without_passages_nothing_is_supported():
    bare = GroundingChecker([], weights, WordEmbedder().embed_passages)
    assert bare.check("Anything at all.").reason == "nothing to check"
