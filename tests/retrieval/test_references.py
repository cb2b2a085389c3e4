"""A document's own reference marks are no citations: what is left of them in a text as it reads."""

import pytest

from retrieval.references import without_references
from retrieval.sentences import split_sentences
from retrieval.statements import statements


@pytest.mark.parametrize(
    ("text", "read"),
    [
        ("It lasts 27 months.[1]", "It lasts 27 months."),
        ("It lasts[1] 27 months[2][3], they say [12].", "It lasts 27 months, they say."),
        ("It lasts 27 months.[^1] And [^note].", "It lasts 27 months. And ."),
        ("Ask the [help desk][1] or [me][].", "Ask the help desk or me."),
        ("It lasts.[[1]](#cite_note-1) Really.[\\[2\\]](#cite_note-2)", "It lasts. Really."),
        ("[1] Smith, Lamps, 1999.", "Smith, Lamps, 1999."),
        ("灯的保修期为27个月。[1]灯[2]很亮。", "灯的保修期为27个月。灯很亮。"),
        ("It is doubted [?].", "It is doubted."),
        # What is said with them stays, and looks like no citation.
        ("As [3] shows, and as shown in [4], it lasts.", "As [ 3 ] shows, and as shown in [ 4 ], it lasts."),
        ("A share lies in [0, 1].", "A share lies in [ 0, 1 ]."),
        ("Set `argv[1]` and x[2] = 5.", "Set `argv[ 1 ]` and x[ 2 ] = 5."),
        ("The first is a[0][1].", "The first is a[ 0 ][ 1 ]."),
        ("He left [in 2019] and [2020] for good.", "He left [in 2019] and [ 2020 ] for good."),
        ("No marks at all.", "No marks at all."),
    ],
)
def test_what_points_elsewhere_goes_and_what_is_said_is_set_apart(text, read):
    assert without_references(text) == read


def test_a_sentence_ends_before_its_reference_marks():
    text = "It lasts 27 months.[1][2] It costs 20 dollars.[3]"
    assert [sentence.text for sentence in split_sentences(text)] == [
        "It lasts 27 months.[1][2]",
        "It costs 20 dollars.[3]",
    ]
    assert [statement.text for statement in statements(text)] == ["It lasts 27 months.", "It costs 20 dollars."]


def test_addresses_that_links_refer_to_state_nothing():
    text = "See [the shop][1].\n\n[1]: https://shop.example/lamps\n"
    assert [statement.text for statement in statements(text)] == ["See the shop."]
