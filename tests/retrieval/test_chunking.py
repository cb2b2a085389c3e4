import re
from itertools import pairwise

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from retrieval import Embedder
from retrieval.chunking import Chunk, chunk_document, indexed_text
from retrieval.loaders import LoadedDocument, load
from retrieval.loaders.document import TextBuilder


def count_words(text: str) -> int:
    return len(text.split())


def count_chars(text: str) -> int:
    return len(text)


def prose(*paragraphs: str, headings: tuple[str, ...] = (), title: str = "") -> LoadedDocument:
    builder = TextBuilder()
    for paragraph in paragraphs:
        builder.add(paragraph, "prose", headings)
    return builder.build(title)


def test_a_chunk_never_joins_two_sections_and_carries_its_heading_path() -> None:
    document = load(
        "a.md", b"# Doc\n\nIntro.\n\n## One\n\nFirst.\n\nSecond.\n\n### Deep\n\nThird.\n\n## Two\n\nFourth."
    )
    chunks = chunk_document(document, count_words, 100)
    assert [(chunk.headings, chunk.text) for chunk in chunks] == [
        ((), "Intro."),
        (("One",), "First.\n\nSecond."),
        (("One", "Deep"), "Third."),
        (("Two",), "Fourth."),
    ]
    assert all(document.text[chunk.start : chunk.end] == chunk.text for chunk in chunks)


def test_title_and_heading_path_stand_in_front_of_the_indexed_text_only() -> None:
    assert indexed_text("Doc", ("Doc", "One", "Deep"), "Text.") == "Doc > One > Deep\nText."
    assert indexed_text("", (), "Text.") == "Text."
    assert indexed_text("", (), "see [the page](http://x.org/a?b) and ![alt](i.png)") == "see the page and alt"


def test_a_long_heading_path_is_shortened_from_the_middle() -> None:
    path = indexed_text("Title", ("a" * 100, "b" * 100, "last"), "").split("\n")[0]
    assert path == "Title > " + "b" * 100 + " > last"
    assert len(indexed_text("t" * 500, ("h" * 500,), "").split("\n")[0]) <= 160


def test_a_long_section_is_cut_at_sentences_into_even_parts() -> None:
    sentences = [f"Sentence number {index} says {index * 7}." for index in range(60)]
    document = prose(" ".join(sentences))
    chunks = chunk_document(document, count_words, 1000, max_chars=500)
    assert all(re.fullmatch(r"Sentence .*\.", chunk.text, re.DOTALL) for chunk in chunks)
    assert " ".join(chunk.text for chunk in chunks) == document.text
    lengths = [len(chunk.text) for chunk in chunks]
    assert max(lengths) <= 500
    assert min(lengths) > 300


def test_pages_are_never_joined() -> None:
    builder = TextBuilder()
    builder.add("Page one.", page=1)
    builder.add("Page two.", page=2)
    chunks = chunk_document(builder.build("t"), count_words, 100)
    assert [(chunk.page, chunk.text) for chunk in chunks] == [(1, "Page one."), (2, "Page two.")]


def test_a_cut_table_repeats_its_header_in_every_part() -> None:
    rows = "\n".join(f"| model-{index} | {index * 3} GB |" for index in range(80))
    document = load("a.md", f"| model | memory |\n|---|---|\n{rows}\n".encode())
    chunks = chunk_document(document, count_words, 1000, max_chars=400)
    assert len(chunks) > 4
    assert all(chunk.text.startswith("| model | memory |\n|---|---|\n| model-") for chunk in chunks)
    shown = [line for chunk in chunks for line in chunk.text.split("\n")[2:]]
    assert shown == rows.split("\n")
    assert all(chunk.text.endswith(document.text[chunk.start : chunk.end]) for chunk in chunks)


def test_a_small_table_stays_whole() -> None:
    table = "| a | b |\n|---|---|\n| 1 | 2 |\n| 3 | 4 |"
    chunks = chunk_document(load("a.md", f"Before.\n\n{table}\n\nAfter.".encode()), count_words, 100)
    assert [chunk.text for chunk in chunks] == [f"Before.\n\n{table}\n\nAfter."]


def test_code_is_cut_between_lines() -> None:
    lines = [f"call_{index}(x. y)" for index in range(100)]
    document = load("a.md", ("```\n" + "\n".join(lines) + "\n```").encode())
    chunks = chunk_document(document, count_words, 1000, max_chars=300)
    assert "\n".join(chunk.text for chunk in chunks) == document.text


def test_chinese_without_spaces_is_cut_at_its_full_stops_and_a_wall_of_letters_anywhere() -> None:
    chinese = "今天天气很好，我们去公园散步吧。" * 40
    chunks = chunk_document(prose(chinese), count_chars, 100)
    assert "".join(chunk.text for chunk in chunks) == chinese
    assert all(chunk.text.endswith("。") and len(chunk.text) <= 100 for chunk in chunks)
    wall = "x" * 5000
    parts = chunk_document(prose(wall), count_chars, 200)
    assert "".join(chunk.text for chunk in parts) == wall
    assert max(len(chunk.text) for chunk in parts) <= 200


def test_a_letter_is_not_cut_from_its_marks() -> None:
    word = "e\u0301" * 400
    chunks = chunk_document(prose(word), count_chars, 100)
    assert all(chunk.text[0] == "e" and chunk.text[-1] == "\u0301" for chunk in chunks)


def test_no_chunk_is_longer_than_minilm_reads(embedder: Embedder) -> None:
    numbers = "3.14159 2.71828 131,072 0xFFEE " * 120
    table = "| a | b |\n|---|---|\n" + "\n".join(f"| {index}.{index} | 🦙🔥 {index} |" for index in range(200))
    text = f"# Zahlen\n\n{numbers}\n\n## 漢字\n\n{'漢字仮名交じり文' * 300}\n\n{table}"
    document = load("dense.md", text.encode())
    chunks = chunk_document(document, embedder.count_tokens, embedder.max_tokens)
    counts = [embedder.count_tokens(indexed_text(document.title, chunk.headings, chunk.text)) for chunk in chunks]
    assert embedder.max_tokens == 254
    assert 200 < max(counts) <= 254


def squeezed(text: str) -> str:
    return re.sub(r"\s+", "", text)


WORDS = st.text(st.characters(codec="utf-8", exclude_characters="\x00"), max_size=40)


@settings(max_examples=200, deadline=None)
@given(st.lists(st.tuples(st.sampled_from(["A", "B"]), WORDS), max_size=12), st.integers(20, 60))
def test_chunks_cover_the_text_in_order_and_within_the_limits(parts: list[tuple[str, str]], limit: int) -> None:
    builder = TextBuilder()
    for heading, text in parts:
        builder.add(text, "prose", (heading,))
    if builder.is_empty:
        return
    document = builder.build("")
    chunks: list[Chunk] = chunk_document(document, count_chars, 1000, max_chars=limit)
    assert squeezed("".join(chunk.text for chunk in chunks)) == squeezed(document.text)
    for chunk in chunks:
        assert document.text[chunk.start : chunk.end] == chunk.text
        assert 0 < len(chunk.text) <= limit
        assert chunk.text.strip() == chunk.text
    assert all(before.end <= after.start for before, after in pairwise(chunks))


@pytest.mark.parametrize("num_columns", [2, 60])
def test_a_table_with_one_enormous_row_is_still_cut(num_columns: int) -> None:
    header = "| " + " | ".join(f"column {index}" for index in range(num_columns)) + " |"
    rule = "|" + "---|" * num_columns
    row = "| " + "word " * 400 + "|"
    document = load("a.md", "\n".join([header, rule, row, row]).encode())
    chunks = chunk_document(document, count_words, 254)
    assert max(len(chunk.text) for chunk in chunks) <= 1000
    assert sum(chunk.text.count("word") for chunk in chunks) == 800
