"""Which sentences and clauses limit what stands before them."""

import pytest

from retrieval.qualifiers import limits, refers_back


@pytest.mark.parametrize(
    "text",
    [
        "However, interns get none.", "Interns, however, earn none.", "(except on Sundays)", "unless it was ordered.",
        "- Exceptions are listed below.", "Allerdings nur bis März.", "Es sei denn, der Urlaub war genehmigt.",
        "Toutefois, les stagiaires n'en ont pas.", "Sin embargo, los becarios no.",
        "但实习生除外。", "ただし、例外があります。", "Однако стажёры не получают.",
    ],
)  # fmt: skip
def test_a_limit_is_known_by_how_it_begins(text):
    assert limits(text)
    assert not refers_back(text)


@pytest.mark.parametrize(
    "text",
    [
        "This does not apply to interns.", "This rule doesn't apply in winter.", "It applies only to managers.",
        "Dies gilt nicht für Praktikanten.", "Cela ne s'applique pas aux stagiaires.", "Dit geldt niet voor stagiairs.",
    ],
)  # fmt: skip
def test_a_limit_may_need_what_it_limits(text):
    assert limits(text)
    assert refers_back(text)


@pytest.mark.parametrize(
    "text", ["Butter is yellow.", "Interns earn none.", "This applies to all.", "Exceptional work."]
)
def test_other_sentences_limit_nothing(text):
    assert not limits(text)
    assert not refers_back(text)
