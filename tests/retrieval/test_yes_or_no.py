"""Questions that ask whether are answered with yes or no where a sentence says so for certain, and only there."""

import pytest

from retrieval.yes_or_no import verdict, yes_or_no


@pytest.mark.parametrize(
    ("question", "sentence"),
    [
        ("Are dogs allowed in the office?", "Dogs are allowed in the office."),
        ("Do interns earn leave?", "Interns earn leave."),
        ("And can I carry over unused leave?", "Employees can carry over unused leave."),
        ("Must I wear a badge?", "You must wear a badge."),
        ("Is TPOT the time per token?", "TPOT is the time per token."),
        ("Was the museum opened in 1887?", "The museum was opened in 1887."),
    ],
)
def test_yes(question, sentence):
    assert verdict(question, sentence) is True


@pytest.mark.parametrize(
    ("question", "sentence"),
    [
        ("Are dogs allowed in the office?", "Dogs are not allowed in the office."),
        ("Can employees work remotely?", "Employees can't work remotely."),
        ("Can we carry over unused leave?", "You cannot carry over unused leave."),
        ("Do interns earn leave?", "Interns do not earn leave."),
    ],
)
def test_no(question, sentence):
    assert verdict(question, sentence) is False


@pytest.mark.parametrize(
    ("question", "sentence"),
    [
        ("What is allowed in the office?", "Dogs are allowed in the office."),  # asks no whether
        ("Are dogs not allowed in the office?", "Dogs are not allowed in the office."),  # yes, or no?
        ("Are cats or dogs allowed in the office?", "Dogs are allowed in the office."),
        ("Are all dogs allowed in the office?", "Dogs are allowed in the office."),
        ("Are dogs allowed in the office?", "Small dogs are allowed in the office."),
        ("Are dogs allowed in the office?", "Dogs are allowed in the office on Fridays."),
        ("Are dogs allowed in the office?", "Dogs are allowed in the office, except in kitchens."),
        ("Are dogs allowed in the office?", "Dogs are not only allowed in the office but loved."),
        ("Are dogs allowed in the office?", "Some say that dogs are allowed in the office."),
        ("Is Berlin the capital of France?", "Berlin is the capital of Germany."),
        ("Does the cat chase the dog?", "The dog chases the cat."),
        ("Must I wear a badge?", "You may wear a badge."),  # what is allowed is no duty
        ("Can I work from abroad?", "You must work from abroad."),
        ("Is the museum open?", "The museum was opened."),  # another tense
        ("Do interns earn leave?", "Interns earned leave."),
        ("Is the fee paid by the tenant?", "The fee is paid for the tenant."),
        ("Do employees get three weeks of leave?", "Employees get two weeks of leave."),
        ("Do managers carry over leave?", "Employees carry over leave."),
        ("Can anybody carry over leave?", "Employees can carry over leave."),  # not said of anybody
        ("Is it allowed?", "Dogs are allowed in the office."),
    ],
)
def test_neither_for_certain(question, sentence):
    assert verdict(question, sentence) is None


def test_nothing_is_certain_where_the_next_best_says_otherwise():
    question, allowed = "Are dogs allowed in the office?", "Dogs are allowed in the office."
    assert yes_or_no(question, [allowed, "The office has a garden."]) is True
    assert yes_or_no(question, [allowed, "Dogs are not allowed in the office."]) is None
    assert yes_or_no(question, ["The office has a garden.", allowed]) is None
    assert yes_or_no(question, []) is None


@pytest.mark.parametrize(
    ("place", "around"),
    [
        ("Rules until 2019 (no longer in force)", []),
        ("House > Proposal of 2023 (rejected)", []),
        ("Common misconceptions", []),
        ("House", ["This applies to bookings made last year."]),
        ("House", ["Only one child per room sleeps free."]),
        ("House", ["None of the above is true."]),
        ("House", ["On Tuesdays the kitchen is closed."]),
    ],
)
def test_nothing_is_certain_that_may_be_taken_back_where_it_stands(place, around):
    question, sentence = "Do children sleep free?", "Children sleep free."
    assert yes_or_no(question, [sentence], "House > Rooms", ["The room has a bath."]) is True
    assert yes_or_no(question, [sentence], place, around) is None
