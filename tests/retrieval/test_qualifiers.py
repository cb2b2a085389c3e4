"""Which sentences and clauses limit what stands before them, or hold on other days than are asked for."""

import pytest

from retrieval.qualifiers import limits, refers_back, speaks_of_other_days, speaks_of_the_day


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


@pytest.mark.parametrize(
    ("text", "question", "expected"),
    [
        ("On Fridays it closes at 13:30.", "When does it close on Mondays?", True),
        ("On weekends it opens at 9.", "When does it open on weekdays?", True),
        ("Open on weekdays from 6.", "When does it open on Tuesday?", False),
        ("Open on Saturdays only.", "Is it open on weekends?", False),
        ("From Monday to Friday it opens at 6.", "When does it open on Fridays?", False),
        ("From Monday to Friday it opens at 6.", "When does it open on Wednesdays?", False),
        ("From Monday to Friday it opens at 6.", "When does it open on Sundays?", True),
        ("Von Freitag bis Montag ist zu.", "Ist am Sonntag zu?", False),
        ("De lunes a viernes abre a las 6.", "¿Cuándo abre el miércoles?", False),
        ("Open on Mondays and Fridays.", "Is it open on Wednesdays?", True),
        ("It opens at 6 every day except Sundays.", "When does it open on Mondays?", False),
        ("It opens at 6.", "When does it open on Fridays?", False),
        ("On Fridays it closes at 13:30.", "When does it close?", False),
        ("Freitags schließt sie um 13:30 Uhr.", "Wann schließt sie am Montag?", True),
        ("Le vendredi, elle ferme à 13 h 30.", "When does it close on Fridays?", False),
    ],
)  # fmt: skip
def test_a_sentence_may_speak_of_other_days_than_the_question(text, question, expected):
    assert speaks_of_other_days(text, question) is expected


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("On Saturdays it closes at 14:00.", True),
        ("Samstags schließt sie um 14 Uhr.", True),
        ("On Fridays and Saturdays it closes at 14:00.", True),
        ("Open from Tuesday to Saturday, on Saturdays until 14:00.", True),
        ("Open from Tuesday to Saturday.", False),
        ("On weekends it is closed.", False),
        ("On Fridays it closes at 13:30.", False),
    ],
)
def test_a_sentence_may_speak_of_the_very_day(text, expected):
    assert speaks_of_the_day(text, "When does it close on Saturdays?") is expected
