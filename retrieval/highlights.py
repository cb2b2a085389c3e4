"""Where in a passage the words stand that support a claim, so that a reader sees them at a glance. Decides nothing."""

import re
from collections.abc import Iterator
from dataclasses import dataclass

from retrieval.facts import number_keys, numbers
from retrieval.statements import statements
from retrieval.words import UNSPACED, terms

Span = tuple[int, int]
"""From (included) and to (not included), in characters of the passage's text."""

_WORD = re.compile(rf"[{UNSPACED}]+|(?:(?![{UNSPACED}])[^\W_])+(?:['’.,\-](?:(?![{UNSPACED}])[^\W_])+)*")
_UNSPACED = re.compile(rf"[{UNSPACED}]")


@dataclass(frozen=True)
class Highlights:
    """`sentence` is the place of the supporting sentence, `words` those of its words that the claim has too, in order.

    Words that say nothing by themselves ("the", "of") are none of them.
    """

    sentence: Span
    words: tuple[Span, ...]


def highlights(text: str, sentence: str, claim: str) -> Highlights | None:
    """The highlights for `claim` in a passage's `text`, of which `sentence` is a statement as it reads.

    None where it is no statement of that text.
    """
    found = next((statement for statement in statements(text) if statement.text == sentence), None)
    if found is None:
        return None
    said, counted = frozenset(terms(claim)), number_keys(claim)
    return Highlights((found.start, found.end), tuple(_shared(text, (found.start, found.end), said, counted)))


def _shared(text: str, within: Span, said: frozenset[str], counted: set[str]) -> Iterator[Span]:
    for match in _WORD.finditer(text, *within):
        if _UNSPACED.match(match.group()):
            yield from _shared_pairs(match.group(), match.start(), said)
        elif _is_said(match.group(), said, counted):
            yield match.span()


def _is_said(word: str, said: frozenset[str], counted: set[str]) -> bool:
    figures = [fact.key for fact in numbers(word)]
    if figures:
        return any(key in counted for key in figures)
    return not said.isdisjoint(terms(word))


def _shared_pairs(run: str, start: int, said: frozenset[str]) -> Iterator[Span]:
    """In scripts without spaces a term is a pair of characters; pairs that touch are one span."""
    begin = end = None
    for index in range(max(1, len(run) - 1)):
        pair = run[index : index + 2]
        if said.isdisjoint(terms(pair)):
            continue
        if end is None or begin is None or start + index > end:
            if begin is not None and end is not None:
                yield begin, end
            begin = start + index
        end = start + index + len(pair)
    if begin is not None and end is not None:
        yield begin, end
