"""Passages about something like what is asked for: a name that they lack, another year, another row of the table."""

import difflib
import re
from collections.abc import Collection, Sequence
from dataclasses import dataclass

from retrieval.facts import name_keys, names
from retrieval.question_kind import topic_terms
from retrieval.records import Passage
from retrieval.words import terms

# What a spelling must share with another to be meant by it: "Maastrich", "Maastricht".
_ALIKE = 0.75
_LEAST_CHARS = 4
# As long a beginning makes two words of one stem: "Californian", "California".
_STEM_CHARS = 4
_ENDING_CHARS = 3
_CAPITALS = re.compile(r"\b[A-Z]\w+(?: (?:of |for |and )?[A-Z]\w+)+")
_YEAR = re.compile(r"(?<!\w)(?<!\d[.,])(?<![^\W\d]-)(?:1[5-9]|20)\d\d(?!\w|[.,]\d)")


@dataclass(frozen=True)
class NearMisses:
    """What one question asks about, as far as it tells a sentence about something else.

    `topic` are the terms that say what it is about, `years` those that it names, `unknown` its names that stand in no
    passage; `absent` those that do not stand in each passage, and `told` the terms of each.
    """

    question: str
    topic: frozenset[str]
    years: frozenset[int]
    unknown: Sequence[str]
    absent: Sequence[Sequence[str]]
    told: Sequence[frozenset[str]]

    @classmethod
    def of(cls, question: str, topic: frozenset[str], passages: Sequence[Passage]) -> "NearMisses":
        """Of a question without `topic` (one in another language) only years tell."""
        return cls(
            question,
            topic,
            years(question),
            unknown_names(question, passages) if topic else (),
            [unknown_names(question, [passage]) if topic else () for passage in passages],
            [frozenset(terms(f"{passage.place} {passage.text}")) for passage in passages],
        )

    def is_missed(self, text: str, place: str, passage: int, *, is_row: bool) -> bool:
        """Whether a sentence, or a table's row, of passage number `passage` is about something else.

        `place` is its title and headings.
        """
        return (
            speaks_of_other_years(text, place, self.years)
            or (is_row and is_row_of_another(text, self.topic, self.told[passage]))
            or is_said_of_another(text, self.question, self.topic, self.absent[passage])
        )


def unknown_names(question: str, passages: Sequence[Passage]) -> list[str]:
    """The names in the question that stand nowhere in the passages, their titles and headings, however inflected."""
    texts = [f"{part.title} {part.heading or ''} {part.text}" for part in passages]
    known = set[str]().union(*(name_keys(text) for text in texts), *(_acronyms(text) for text in texts))
    stems = frozenset(term for key in known for term in terms(key))
    return [
        name.key
        for name in names(question)
        if name.key not in known
        and topic_terms(name.key)  # "WHy", and the "What" of "What South African"
        and not all(_is_meant(part, known, stems) for part in name.key.split("-"))
    ]


def _acronyms(text: str) -> set[str]:
    """What words with capitals that follow each other may be called: "American Automobile Association", "aaa"."""
    initials = (
        "".join(word[0] for word in match.group().split() if word[0].isupper()) for match in _CAPITALS.finditer(text)
    )
    return {name.casefold() for letters in initials for name in (letters, letters[1:])}  # without "The"


def _is_meant(name: str, known: Collection[str], stems: frozenset[str]) -> bool:
    own = frozenset(terms(name))
    if name in known or (own and own <= stems):
        return True
    beginning = name[: max(_STEM_CHARS, len(name) - _ENDING_CHARS)]
    if any(key.startswith(beginning) or (len(key) >= _STEM_CHARS and name.startswith(key)) for key in known):
        return True
    return len(name) >= _LEAST_CHARS and bool(difflib.get_close_matches(name, known, 1, _ALIKE))


def is_said_of_another(text: str, question: str, topic: frozenset[str], unknown: Sequence[str]) -> bool:
    """Whether a sentence says of another name all that is asked of one that its passage does not know.

    `topic` are the question's terms that say what it is about, `unknown` its names that do not stand in the passage.
    """
    rest = topic - frozenset(term for name in unknown for term in terms(name))
    if not unknown or not rest or not rest <= frozenset(terms(text)):
        return False
    return not {name.key for name in names(text)} <= {name.key for name in names(question)}


def years(text: str) -> frozenset[int]:
    """The years that a text names, from 1500 on: earlier ones look like any number."""
    return frozenset(int(match.group()) for match in _YEAR.finditer(text))


def speaks_of_other_years(text: str, place: str, asked: frozenset[int]) -> bool:
    """Whether a text speaks of other years than those that are asked for; of none, then its place (title, headings).

    Between two years, those between are meant too.
    """
    if not asked or asked & (years(text) | years(place)):
        return False
    told = years(text) or years(place)
    return bool(told) and not (len(told) > 1 and any(min(told) < year < max(told) for year in asked))


def is_row_of_another(row: str, question: frozenset[str], told: Collection[str]) -> bool:
    """Whether a table's row ("column: cell; column: cell") has only columns in common with a question that asks for
    something else.

    `question` are its terms that say what it is about, `told` those of the row's passage: where one of the question's
    stands nowhere in it, the row must have one of the others in a cell.
    """
    if not question or question <= frozenset(told):
        return False
    cells = frozenset(term for cell in row.split("; ") for term in terms(cell.partition(": ")[2] or cell))
    return question.isdisjoint(cells)
