"""Which sentence answers a question, whether any does, and what is quoted of it."""

import numpy as np
import pytest

from retrieval.evidence import quotes, rank_sentences, trimmed
from retrieval.question_kind import QuestionKind, candidates, question_kind
from retrieval.records import Passage
from tests.retrieval.word_embedder import WordEmbedder

TEXT = (
    "The museum stands on the river. It was opened in 1887 by Ada Berg. "
    "Tickets cost 12 dollars. You need two things:\n- a passport\n- a photo of yourself\n\nOpening hours vary."
)


def weights(terms):
    return dict.fromkeys(terms, 1.0)


def passage(text=TEXT, title="Museum", score=1.0):
    return Passage("d", "c", title, "m.md", None, None, text, score, "default")


def rank(*questions, passages=None, embed=None):
    passages = [passage()] if passages is None else passages
    return rank_sentences(questions, passages, weights, embed or WordEmbedder().embed_passages)


def no_help(texts):
    return np.zeros((len(texts), 1), dtype=np.float32)


@pytest.mark.parametrize(
    ("question", "expected"),
    [
        ("When was the museum opened?", "It was opened in 1887 by Ada Berg."),
        ("How much do tickets cost?", "Tickets cost 12 dollars."),
        ("Where does the museum stand?", "The museum stands on the river."),
    ],
)
def test_the_sentence_that_answers_comes_first(question, expected):
    ranking = rank(question)
    assert ranking.ranked[0].text == expected
    assert ranking.is_answerable


def test_a_question_about_something_else_is_not_answerable():
    assert not rank("Which algorithm sorts integers fastest?").is_answerable
    assert not rank("Is it?").is_answerable
    assert not rank("When was the museum opened?", passages=[]).is_answerable


def test_a_follow_up_is_understood_with_the_question_before_it():
    alone, together = rank("And how much?"), rank("And how much?", "What do tickets cost? And how much?")
    assert not alone.is_answerable
    assert together.is_answerable
    assert together.ranked[0].text == "Tickets cost 12 dollars."


def test_an_embedder_that_finds_everything_alike_makes_nothing_answerable():
    def crowded(texts):  # cosines of 0.7 and more between any two, as the E5 family gives them
        vectors = 0.4 * WordEmbedder().embed_passages(texts) + np.full((len(texts), 64), 0.1, dtype=np.float32)
        return vectors / np.linalg.norm(vectors, axis=1, keepdims=True)

    assert not rank("Which algorithm sorts integers fastest?", embed=crowded).is_answerable
    assert rank("When was the museum opened?", embed=crowded).is_answerable


def test_headings_and_table_rules_are_not_quoted():
    ranking = rank("What do tickets cost?", passages=[passage("# Tickets cost\n\n|---|\n\nTickets cost 12 dollars.")])
    assert [evidence.text for evidence in ranking.ranked] == ["Tickets cost 12 dollars."]


def test_an_introduction_is_quoted_with_its_list():
    best = quotes(rank("Which two things do you need?"), [passage()])[0]
    assert best.text == "You need two things:\n- a passport\n- a photo of yourself"


def test_a_second_sentence_is_quoted_only_where_it_is_nearly_as_good():
    both = passage("Tickets cost 12 dollars. Season tickets cost 40 dollars. Dogs stay outside.")
    ranking = rank("What do tickets cost?", passages=[both], embed=no_help)
    assert [quote.text for quote in quotes(ranking, [both])] == [
        "Tickets cost 12 dollars.",
        "Season tickets cost 40 dollars.",
    ]
    assert [quote.text for quote in quotes(rank("Do dogs stay outside?", passages=[both]), [both])] == [
        "Dogs stay outside."
    ]


def test_a_long_sentence_loses_clauses_that_the_question_does_not_touch():
    sentence = (
        "After a winter in which nothing at all was done about the roof, and against the advice of all, the museum "
        "was opened in 1887, to the joy of the whole town, which had waited, as people said."
    )
    question = "What was opened?"
    assert trimmed(sentence, question, QuestionKind.OTHER) == (
        "... and against the advice of all, the museum was opened in 1887, to the joy of the whole town ..."
    )
    assert trimmed(sentence, "When was it opened?", QuestionKind.TIME) == "... the museum was opened in 1887 ..."
    assert trimmed(sentence, "Whom did nobody ask?", QuestionKind.NAME) == sentence
    assert trimmed("Short, it stays.", question, QuestionKind.OTHER) == "Short, it stays."


@pytest.mark.parametrize(
    ("question", "kind"),
    [
        ("How many days?", "number"), ("What year was it?", "time"), ("When?", "time"), ("Who is it?", "name"),
        ("In which city?", "name"), ("Wie viele Tage?", "number"), ("¿Cuándo?", "time"), ("谁写的？", "name"),
        ("有多少人？", "number"), ("What is a slot?", "other"),
    ],
)  # fmt: skip
def test_question_words_tell_what_is_asked_for(question, kind):
    assert question_kind(question) == kind


def test_what_the_question_holds_is_no_answer_to_it():
    found = candidates(QuestionKind.NUMBER, "In 2015 there were 31 teams.", "How many teams were there in 2015?")
    assert [fact.key for fact in found] == ["31"]
    found = candidates(QuestionKind.NAME, "Yesterday the player Jared Allen met Kony Ealy.", "Who met Kony Ealy?")
    assert [fact.key for fact in found] == ["jared", "allen"]


def test_the_header_of_a_table_is_no_answer():
    table = "| block size | waste |\n|---|---|\n| 16 | 8 tokens |\n"
    texts = [evidence.text for evidence in rank("What is the block size?", passages=[passage(table)]).ranked]
    assert len(texts) == 1
    assert "16" in texts[0]
