"""Small to big: from the passage that matched to the section around it, as much of it as fits a budget of tokens."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from itertools import pairwise

from retrieval.chunking import without_place

CountTokens = Callable[[str], int]


@dataclass(frozen=True)
class Part:
    """One chunk of a document's version. `text` ends with the document's `[start:end]`; before that stands what a cut
    table or record repeats."""

    ordinal: int
    text: str
    headings: tuple[str, ...]
    start: int
    end: int


def widened(parts: Sequence[Part], ordinal: int, max_tokens: int, count_tokens: CountTokens) -> str:
    """The part `ordinal` with its neighbours of the same section, by turns after and before it, up to `max_tokens`.

    `parts` are consecutive. It is never less than the part itself, even where that is over the budget.
    """
    first = last = next(index for index, part in enumerate(parts) if part.ordinal == ordinal)
    section = without_place(parts[first].headings)
    text = joined(parts[first : last + 1])
    steps = [1, -1]  # what follows a passage explains it more often than what precedes it
    while steps:
        step = steps.pop(0)
        new_first, new_last = (first, last + 1) if step > 0 else (first - 1, last)
        if new_first < 0 or new_last == len(parts):
            continue
        if without_place(parts[new_last if step > 0 else new_first].headings) != section:
            continue
        wider = joined(parts[new_first : new_last + 1])
        if count_tokens(wider) <= max_tokens:
            first, last, text = new_first, new_last, wider
            steps.append(step)
    return text


def joined(parts: Sequence[Part]) -> str:
    """Consecutive parts as one text: what a cut table repeats stands once, in front."""
    text = parts[0].text
    for before, part in pairwise(parts):
        repeated = len(part.text) - (part.end - part.start)
        gap = part.start - before.end
        border = "\n\n" if gap > 1 else "" if gap <= 0 else "\n" if repeated else " "
        text += border + part.text[max(0, repeated) :]
    return text
