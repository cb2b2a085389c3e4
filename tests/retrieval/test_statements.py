"""What a passage states, as it reads."""

import pytest

from retrieval.statements import statements

TABLE = "Sizes:\n\n| model | memory | **note** |\n|---|:--:|---|\n| 8B | 16 GB | |\n| 70B | 140 GB | a \\| b |\n\nDone."


def test_a_row_reads_with_its_columns_names_and_without_its_pipes():
    assert [statement.text for statement in statements(TABLE)] == [
        "Sizes:", "model: 8B; memory: 16 GB", "model: 70B; memory: 140 GB; note: a | b", "Done.",
    ]  # fmt: skip


def test_a_row_without_a_header_reads_as_its_cells():
    assert [statement.text for statement in statements("| 8B | 16 GB |\n| 70B | 140 GB |")] == [
        "8B; 16 GB",
        "70B; 140 GB",
    ]


def test_a_row_with_more_cells_than_columns_keeps_them():
    assert [statement.text for statement in statements("| a |\n|---|\n| 1 | 2 |")] == ["a: 1; 2"]


@pytest.mark.parametrize(
    ("text", "told"),
    [
        ("# Title\nText.", ["Text."]),
        ("Text before a rule.\n\n---\n\nAfter.", ["Text before a rule.", "After."]),
        ("![a map](m.png)\n\n```\n\nText.", ["Text."]),
        ("", []),
    ],
)
def test_headings_rules_pictures_and_fences_state_nothing(text, told):
    assert [statement.text for statement in statements(text)] == told


def test_a_statement_knows_where_it_stands():
    for statement in statements(TABLE):
        assert TABLE[statement.start : statement.end].strip("| ").startswith(statement.text.split(": ")[-1][:2]) or (
            statement.text.startswith("model: ")
        )
