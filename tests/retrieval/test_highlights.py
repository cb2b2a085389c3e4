"""Where the words of a passage stand that support a claim."""

import pytest

from retrieval.highlights import highlights

SENTENCE = "TTFT measures the time until the 3 first tokens arrive."
TEXT = f"# Latency\n\nIntro. **TTFT**{SENTENCE[4:]}\n\n| metric | unit |\n|---|---|\n| TPOT | ms |\n"


def shown(text, sentence, claim):
    """The sentence as it stands in `text`, and the words that are marked."""
    found = highlights(text, sentence, claim)
    assert found is not None
    return text[slice(*found.sentence)], [text[start:end] for start, end in found.words]


@pytest.mark.parametrize(
    ("claim", "words"),
    [
        ("TTFT is the time until tokens arrive.", ["TTFT", "time", "until", "tokens", "arrive"]),
        ("The measured time, for three tokens.", ["measures", "time", "3", "tokens"]),
        ("Nothing of that is there: 30 of them.", []),
    ],
)
def test_words_and_numbers_of_the_claim_are_found_in_the_sentence_whatever_their_form(claim, words):
    assert shown(TEXT, SENTENCE, claim) == (f"**TTFT**{SENTENCE[4:]}", words)


def test_a_row_of_a_table_is_found_by_how_it_reads():
    assert shown(TEXT, "metric: TPOT; unit: ms", "TPOT is in ms.") == ("| TPOT | ms |", ["TPOT", "ms"])


def test_scripts_without_spaces_are_compared_by_pairs_of_characters():
    sentence = "東京の人口は千四百万人です。"
    assert shown(f"{sentence}大阪は別です。", sentence, "東京は千四百万人。") == (sentence, ["東京", "は千四百万人"])


def test_a_sentence_that_is_not_in_the_text_has_no_place():
    assert highlights(TEXT, "It stands elsewhere.", "It stands elsewhere.") is None
