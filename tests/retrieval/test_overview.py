"""Requests for an overview, and the sentences that give one."""

import pytest

from retrieval.evidence import quotes, rank_sentences
from retrieval.overview import overview_topic
from retrieval.records import Passage
from retrieval.words import terms
from tests.retrieval.word_embedder import WordEmbedder

MINUTES = """Minutes of the board meeting, 14 March 2025

Present: A. Okafor (chair), L. Brandt, S. Ito. Absent: P. Moreau.

The board approved the purchase of six kayaks. Ms Brandt voted against it.

Next steps:

The next meeting is on 12 June 2025. It takes place in the boathouse."""
PRICES = """| Boat | Day |
|---|---|
| Canoe | 75 € |
| Kayak | 45 € |

Children under 12 ride free. Dogs do not."""


def passage(document, text, title="", heading=None):
    return Passage(document, f"{document}-{len(text)}", title, f"{document}.md", None, heading, text, 1.0, "default")


BOTH = [
    passage("minutes", MINUTES),
    passage("rental", "Life jackets are mandatory for everybody. Bring shoes.", "Rental", "Safety"),
    passage("rental", PRICES, "Rental", "Prices"),
]


def rank(*questions, passages=BOTH):
    return rank_sentences(questions, passages, lambda words: dict.fromkeys(words, 1.0), WordEmbedder().embed_passages)


def told(*questions, passages=BOTH):
    ranking = rank(*questions, passages=passages)
    return [quote.text for quote in quotes(ranking, passages)] if ranking.is_answerable else []


@pytest.mark.parametrize(
    ("question", "topic"),
    [
        ("Summarize the minutes.", "minutes"),
        ("Can you please summarise the minutes for me?", "minutes"),
        ("Please give me a short summary of the rental prices", "rental prices"),
        ("What is the annual report about?", "annual report"),
        ("What's this document about?", ""),
        ("TL;DR", ""),
        ("What is in the staff handbook?", "staff handbook"),
        ("What does this contract say?", "contract"),
        ("What are the key points of the contract?", "contract"),
        ("Give me an overview of the safety rules", "safety rules"),
        ("Fasse das Protokoll bitte zusammen", "Protokoll"),
        ("Kannst du den Vertrag zusammenfassen?", "Vertrag"),
        ("Worum geht es in dem Vertrag?", "Vertrag"),
        ("Resume el contrato", "contrato"),
        ("Résume le contrat", "contrat"),
        ("De quoi parle ce document ?", ""),
        ("总结一下这份文件", ""),
    ],
)
def test_what_an_overview_is_asked_of(question, topic):
    assert overview_topic(question) == frozenset(terms(topic))


@pytest.mark.parametrize(
    "question",
    [
        "How do I summarize a report?",
        "What is the summary judgment fee?",
        "What was the fight about?",
        "What does the policy say about dogs?",
        "Wie viel kostet das zusammen?",
        "Resume the download",
        "Who wrote the summary of the minutes?",
    ],
)
def test_other_questions_ask_no_overview(question):
    assert overview_topic(question) is None


def test_overview_is_what_the_paragraphs_of_the_document_begin_with():
    assert told("Summarize the minutes.") == [
        "Present: A. Okafor (chair), L. Brandt, S. Ito.",
        "The board approved the purchase of six kayaks.",
        "The next meeting is on 12 June 2025.",
    ]


def test_overview_of_a_section_keeps_to_it():
    assert told("Give me an overview of the prices") == ["Boat: Canoe; Day: 75 €", "Children under 12 ride free."]


def test_overview_of_the_rest_of_a_document_takes_all_its_sections():
    assert told("Summarize the rental") == [
        "Life jackets are mandatory for everybody.",
        "Boat: Canoe; Day: 75 €",
        "Children under 12 ride free.",
    ]


def test_overview_of_what_no_document_is_about_is_refused():
    assert told("Can you summarize the French Revolution?") == []


def test_which_document_is_meant_must_be_clear():
    assert rank("Summarize this document").is_unclear
    assert not rank("Can you summarize the French Revolution?").is_unclear
    assert told("Summarize this document", passages=BOTH[1:]) == told("Summarize the rental")
    assert told("Summarize it", "How much is a canoe? Summarize it", passages=BOTH[1:] + BOTH[:1])[0].startswith("Life")


def test_a_kind_of_document_need_not_be_in_its_words():
    assert told("Summarize the report", passages=BOTH[1:]) == told("Summarize the rental")


def test_an_overview_keeps_the_order_of_the_document():
    def part(ordinal, text):
        return Passage("d", f"d-1-{ordinal}", "Contract", "c.md", None, None, text, 1.0, "default")

    passages = [part(7, "The fee is due every month."), part(0, "The term is two years long.")]
    assert told("Summarize the contract", passages=passages) == [
        "The term is two years long.",
        "The fee is due every month.",
    ]
