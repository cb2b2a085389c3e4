"""Sentences of any language, as they stand in the text."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from retrieval.sentences import split_sentences, without_markup, without_odd_marks


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("One. Two! Three? Four", ["One.", "Two!", "Three?", "Four"]),
        ("Dr. J. K. Smith left the U.S. The dog stayed.", ["Dr. J. K. Smith left the U.S.", "The dog stayed."]),
        ("Er verfällt am 31. März. Danach nicht.", ["Er verfällt am 31. März.", "Danach nicht."]),
        ("It closed in 1990. May came.", ["It closed in 1990.", "May came."]),
        ("It grew by 3.5 at 5 p.m. on Monday.", ["It grew by 3.5 at 5 p.m. on Monday."]),
        ('He said "Stop." Then he left.', ['He said "Stop."', "Then he left."]),
        ('"Stop!" he said. She went.', ['"Stop!" he said.', "She went."]),
        ("世界。“好吗？”是的！", ["世界。", "“好吗？”", "是的！"]),
        ("यह है। वह है।", ["यह है।", "वह है।"]),
        ("هل هذا؟ نعم.", ["هل هذا؟", "نعم."]),
        ("A paragraph that somebody has wrapped by hand at\nsixty characters. Next.",
         ["A paragraph that somebody has wrapped by hand at\nsixty characters.", "Next."]),
        ("# Title\nText.\n- one\n- two\n| a | b |\n| 1 | 2 |",
         ["# Title", "Text.", "- one", "- two", "| a | b |", "| 1 | 2 |"]),
        ("Name: Bob\nAge: 3", ["Name: Bob", "Age: 3"]),
        ("Do this:\n\n1. Send it. Wait.\n2. Go on.", ["Do this:", "1. Send it.", "Wait.", "2. Go on."]),
        ("No end\n\nhere", ["No end", "here"]),
        (" \n\t", []),
    ],
)  # fmt: skip
def test_sentences_end_where_a_reader_would_end_them(text, expected):
    assert [sentence.text for sentence in split_sentences(text)] == expected


@given(st.text(alphabet='aA1 .!?。\n#|-"”।', max_size=60))
def test_offsets_are_right_and_nothing_but_white_space_is_lost(text):
    sentences = split_sentences(text)
    assert all(text[sentence.start : sentence.end] == sentence.text for sentence in sentences)
    assert "".join("".join(sentence.text.split()) for sentence in sentences) == "".join(text.split())


@pytest.mark.parametrize(
    ("text", "shown"),
    [
        ("- Ask the [help desk](https://x.example/a_b#c) **first**.", "Ask the help desk first."),
        ('See ![a map](p.png "Title"), [leave]({% page "/a b/" %}): 3*4 of my_file.',
         "See a map, leave: 3*4 of my_file."),
        ("One line that\n  goes on.", "One line that goes on."),
        ("You need:\n- a pass\n- a photo", "You need:\n- a pass\n- a photo"),
        ("2. **_Note:_** it is `5`.", "Note: it is 5."),
        ("call \u200b\u200b1-800 at\u00ad once\ufeff", "call 1-800 at once"),
    ],
)  # fmt: skip
def test_what_is_quoted_reads_without_markup(text, shown):
    assert without_markup(text) == shown


@pytest.mark.parametrize(
    ("text", "whole"),
    [
        ('He said "Stop. Go.', "He said Stop. Go."),
        ('Stop. Go." He went.', "Stop. Go. He went."),
        ("“Stop, he said.", "Stop, he said."),
        ("Stop,” he said („Halt“).", "Stop, he said („Halt“)."),
        ("It is (or was [once) here.", "It is (or was once) here."),
        ("a) first, (second", "a) first, second"),
        ('A 5" disk and "two" more (6").', 'A 5" disk and "two" more (6").'),
        ("«Oui», dit-il: «Non", "«Oui», dit-il: Non"),
        ("Fine as it is.", "Fine as it is."),
        ("", ""),
    ],
)
def test_marks_without_a_partner_are_dropped(text, whole):
    assert without_odd_marks(text) == whole
