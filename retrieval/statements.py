"""What a passage states, sentence by sentence, as it reads: without markup, and a table's row with its columns' names.

As it reads it is ranked, compared and quoted. Headings, rules, fences, the header of a table and addresses that links
refer to state nothing.
"""

import re
from collections.abc import Iterator
from dataclasses import dataclass

from retrieval.sentences import Sentence, split_sentences, without_markup

_RULE = re.compile(r"\|?\s*:?-{2,}:?\s*(?:\||$)")
_NO_STATEMENT = re.compile(r"\s*(?:#{1,6}\s|```|~~~|!\[|\[[^\]\n]+\]:\s*<?\w+:)")
_CELL_BORDER = re.compile(r"(?<!\\)\|")


@dataclass(frozen=True)
class Statement:
    """A sentence as it reads, its place among the passage's sentences and its range in the passage's text.

    `is_row`: it is a table's row, "column: cell; column: cell".
    """

    index: int
    text: str
    start: int
    end: int
    is_row: bool = False


def statements(text: str) -> list[Statement]:
    """What `text` states, in order."""
    return [
        Statement(index, shown, sentence.start, sentence.end, sentence.text.startswith("|"))
        for index, (sentence, shown) in enumerate(_as_read(split_sentences(text)))
        if shown
    ]


def _as_read(sentences: list[Sentence]) -> Iterator[tuple[Sentence, str]]:
    """Each sentence, and how it reads; "" where it states nothing."""
    columns: list[str] = []
    for number, sentence in enumerate(sentences):
        following = sentences[number + 1].text if number + 1 < len(sentences) else ""
        if not sentence.text.startswith("|"):
            columns = []
            is_silent = _NO_STATEMENT.match(sentence.text) or _RULE.match(sentence.text)
            # A table may go without its outer borders; a rule without inner ones is no table's.
            is_header = "|" in following and _RULE.match(following)
            yield sentence, "" if is_silent or is_header else without_markup(sentence.text)
        elif _RULE.match(sentence.text):
            yield sentence, ""
        elif _RULE.match(following):
            columns = _cells(sentence.text)
            yield sentence, ""
        else:
            yield sentence, _row(_cells(sentence.text), columns)


def _cells(row: str) -> list[str]:
    inner = row.strip().removeprefix("|").removesuffix("|")
    return [without_markup(cell.replace("\\|", "|")) for cell in _CELL_BORDER.split(inner)]


def _row(cells: list[str], columns: list[str]) -> str:
    """ "Column: cell; column: cell", without empty cells."""
    names = columns + [""] * (len(cells) - len(columns))
    return "; ".join(f"{name}: {cell}" if name else cell for name, cell in zip(names, cells, strict=False) if cell)
