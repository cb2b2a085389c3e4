"""Passages about something like what is asked for, which answer nothing."""

import pytest

from retrieval.evidence import quotes, rank_sentences
from retrieval.near_misses import is_row_of_another, speaks_of_other_years, unknown_names, years
from retrieval.question_kind import topic_terms
from retrieval.records import Passage
from retrieval.words import terms
from tests.retrieval.word_embedder import WordEmbedder

LIMITS = """| Substance | Limit | Since |
|---|---|---|
| Silica dust | 0.1 | 2018 |
| Benzene | 3.25 | 2016 |"""
REVENUE = "Revenue was 4.2 million euros in 2023. In 2024 the revenue was 4.9 million euros. The gate closes at ten."
GATE = "The gate closes at ten because the guard leaves. Ada Berg guards the hall. She has been there since 2014."


def weights(words):
    """Words that say little weigh little, as they do in any store."""
    return {word: 1.0 if word in topic_terms(word) else 0.1 for word in words}


def passage(text, title="Handbook", heading=None):
    return Passage("d", f"c{len(text)}", title, "h.md", None, heading, text, 1.0, "default")


def told(*questions, text, heading=None):
    passages = [passage(text, heading=heading)]
    ranking = rank_sentences(questions, passages, weights, WordEmbedder().embed_passages)
    return [quote.text for quote in quotes(ranking, passages)] if ranking.is_answerable else []


# ── other rows ───────────────────────────────────────────────────────────────────────────────────────────────────────


def test_a_row_about_something_else_is_no_answer():
    assert told("What is the limit for benzene?", text=LIMITS) == ["Substance: Benzene; Limit: 3.25; Since: 2016"]
    assert told("What is the limit for asbestos?", text=LIMITS) == []


def test_rows_are_not_compared_so_that_none_is_the_highest():
    assert told("Which substance has the highest limit?", text=LIMITS) == []


@pytest.mark.parametrize(
    ("question", "is_another"),
    [("limit asbestos", True), ("limit benzene", False), ("limit substance", False), ("highest limit benzene", False)],
)
def test_only_what_stands_nowhere_asks_for_another_row(question, is_another):
    row = "Substance: Benzene; Limit: 3.25"
    assert is_row_of_another(row, frozenset(terms(question)), frozenset(terms(row))) == is_another


def test_what_stands_in_another_document_does_not_make_a_row_the_right_one():
    passages = [passage(LIMITS), passage("Asbestos is removed by specialists only.", title="Renovation")]
    ranking = rank_sentences(["What is the limit of asbestos?"], passages, weights, WordEmbedder().embed_passages)
    assert not ranking.ranked[0].text.startswith("Substance")


def test_the_same_said_of_another_name_is_no_answer_though_the_name_stands_elsewhere():
    passages = [
        passage("The office in Oslo closes in September.", title="Outlook"),
        passage("Lost property is kept in Bergen.", title="Conditions"),
    ]
    for town, expected in (("Bergen", False), ("Oslo", True)):
        asked = f"When does the {town} office close?"
        ranking = rank_sentences([asked], passages, weights, WordEmbedder().embed_passages)
        assert (ranking.ranked[0].text == "The office in Oslo closes in September.") == expected


# ── other years ──────────────────────────────────────────────────────────────────────────────────────────────────────


def test_a_figure_of_another_year_is_no_answer():
    assert told("What was the revenue in 2024?", text=REVENUE) == ["In 2024 the revenue was 4.9 million euros."]
    assert told("What was the revenue in 2022?", text=REVENUE) == []
    assert told("And in 2022?", "What was the revenue in 2024? And in 2022?", text=REVENUE) == []


@pytest.mark.parametrize(
    ("text", "place", "speaks"),
    [
        ("Revenue was 5 in 2023.", "", True),
        ("Revenue was 5.", "Report 2023", True),
        ("Revenue was 5.", "Report 2022", False),
        ("It rose from 4 in 2021.", "Report 2022", False),
        ("From 2020 to 2024 it was 5.", "", False),
        ("It was 5 in 2022 and 6 in 2023.", "", False),
        ("It was 5 in all.", "", False),
        ("In 2019-2023 it was 5.", "", False),
        ("Revenue was 2,023 euros, by order INV-2023-7.", "", False),
    ],
)
def test_whose_year_it_is(text, place, speaks):
    assert speaks_of_other_years(text, place, years("What was the revenue in 2022?")) == speaks


# ── other names ──────────────────────────────────────────────────────────────────────────────────────────────────────


@pytest.mark.parametrize(
    ("question", "unknown"),
    [
        ("What does the Berlin office pay?", ["berlin"]),
        ("What does the Hamburger office pay?", []),
        ("When was the Maastrich Treaty signed?", []),
        ("Were the Normans and Catholic towns there?", []),
        ("What percentage did the AAA report, and the BBC?", ["bbc"]),
        ("WHy did the Norman towns sign?", []),
        ("What Norman towns signed?", []),
    ],
)
def test_names_are_known_however_they_are_inflected_or_misspelt(question, unknown):
    text = "The Hamburg office signed the Maastricht treaty. Norman towns had Catholics. "
    text += "The American Automobile Association was there."
    assert unknown_names(question, [passage(text)]) == unknown


def test_the_same_said_of_another_name_is_no_answer():
    text = "The Hamburg office pays 120 euros for each parking space."
    assert told("What does the Hamburg office pay for a parking space?", text=text) == [text]
    assert told("What does the Berlin office pay for a parking space?", text=text) == []


# ── other kinds ──────────────────────────────────────────────────────────────────────────────────────────────────────


def test_a_question_for_more_is_answered_by_what_has_it_or_not_at_all():
    asked = "When does the gate close?"
    assert told("Why?", f"{asked} Why?", text=GATE) == ["The gate closes at ten because the guard leaves."]
    assert told("Why?", "Who guards the hall? Why?", text="Ada Berg guards the hall since 2014.") == []
    assert told("Since when?", "Who guards the hall? Since when?", text="Ada Berg guards the hall.") == []


def test_a_title_gives_way_to_a_sentence():
    text = "Minutes of the board meeting, 14 March 2025\n\nThe next board meeting is on 12 June.\n\nAll were there."
    assert told("When is the board meeting?", text=text)[0] == "The next board meeting is on 12 June."
