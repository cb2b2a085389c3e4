"""A sentence in the pieces that commas, dashes, brackets, colons, semicolons and "and" make of it; words to compare by.

Brackets hold one piece each. Connectives ("However,") are no pieces; they stay in the text of the next.
"""

import re
from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import Literal

from retrieval import closed_classes as classes
from retrieval.facts import negations, numbers
from retrieval.qualifiers import limits
from retrieval.words import MARKS, UNSPACED, fold, terms

Opened = Literal["start", "comma", "bracket", "resumed", "colon", "semicolon", "and"]

_LETTER = rf"(?:(?![{UNSPACED}])(?:[^\W_]|[{MARKS}]))"
_TOKEN = re.compile(
    r"(?P<number>\d+(?:[.,]\d+)*(?![^\W_]))"
    rf"|(?P<unspaced>[{UNSPACED}])"
    r"|(?P<elided>\b(?:l|d|qu|n|s|c|j|m|t|jusqu|lorsqu|puisqu)['’](?=\w))"
    r"|(?P<possessive>(?<=\w)['’]s\b)"
    r"|(?P<denied>(?<=\w)n['’]t\b)"
    rf"|(?P<word>{_LETTER}+?(?=n['’]t\b)|{_LETTER}+)"
    r"|(?P<symbol>[%$€£¥°+<>=≤≥±×/&]|(?<!\S)[-−](?=\d))"
    r"|(?P<mark>[,;:()\[\]—–，、；：（）]|\s-\s)",
    re.IGNORECASE,
)
_OPENING: tuple[tuple[str, Opened], ...] = (
    (",—–-，、", "comma"),
    ("([（", "bracket"),
    (")]）", "resumed"),
    (":：", "colon"),
    (";；", "semicolon"),
)
_MARKS = {mark: opened for marks, opened in _OPENING for mark in marks}
_ALIKE = {"%": "percent", "ca": "can", "wo": "will", "sha": "shall", "−": "-"}
QUESTION_MARKS = ("?", "？", "؟")
_TENSED = ("ed", "ing")


@dataclass(frozen=True)
class Token:
    """A word, figure or symbol. `key` is what it is compared by, "" if it says nothing."""

    key: str
    folded: str
    shown: str

    @property
    def counts(self) -> bool:
        """Whether it says something: articles and connectives do not."""
        return self.key != ""


@dataclass(frozen=True)
class Piece:
    """What stands between two marks. `opened` is the mark before it; "resumed" where that closes a bracket."""

    opened: Opened
    tokens: tuple[Token, ...]
    text: str

    @property
    def keys(self) -> tuple[str, ...]:
        """Those of the tokens that count."""
        return tuple(token.key for token in self.tokens if token.counts)

    @property
    def is_connective(self) -> bool:
        """Whether it only joins the sentence to the one before it."""
        words = " ".join(token.folded for token in self.tokens)
        return words in classes.CONNECTIVES or words in classes.CONNECTIVE_PHRASES

    @property
    def is_limiting(self) -> bool:
        """Whether it makes less of what it stands beside, or somebody's."""
        words = {token.folded for token in self.tokens}
        return bool(
            not words.isdisjoint(classes.LIMITERS)
            or negations(self.text)
            or limits(self.text)
            or classes.UNSPACED_LIMITERS.search(self.text)
        )


def pieces_of(text: str) -> list[Piece]:
    """The pieces of a sentence, in order; none that holds no word."""
    found: list[Piece] = []
    opened: Opened = "start"
    tokens: list[Token] = []
    start = 0

    def close(end: int) -> None:
        if tokens:
            found.append(Piece(opened, tuple(tokens), text[start:end]))
            tokens.clear()

    for match in _tokens(text):
        if match.lastgroup == "mark":
            mark = _MARKS[match.group().strip()]
            if opened == "bracket" and tokens and mark != "resumed":
                continue  # what stands in brackets is one piece
            close(match.start())
            # ", (" opens a bracket, ")," goes on as after a comma; with nothing before it, it is still the start.
            if found:
                opened = mark
            start = match.end()
            continue
        made = list(_token(match))
        if made[0].folded in classes.AND and opened != "bracket":
            close(match.start())
            if found and opened != "semicolon":
                opened, start = "and", match.start()
        tokens.extend(made)
    close(len(text))
    return [replace(piece, tokens=_without_articles(piece.tokens)) for piece in _without_connectives(found)]


def _without_connectives(pieces: list[Piece]) -> Iterator[Piece]:
    """The pieces but for those that only connect; the next one is opened as they were, and its text says so."""
    waiting: Piece | None = None
    for piece in pieces:
        if waiting is not None:
            piece = replace(piece, opened=waiting.opened, text=f"{waiting.text}, {piece.text}")
        waiting = piece if piece.is_connective else None
        if waiting is None:
            yield piece


def _tokens(text: str) -> Iterator["re.Match[str]"]:
    """Tokens in order; a number in words, "twenty-seven", is one."""
    spelled = {
        fact.start: re.compile(re.escape(text[fact.start : fact.end]))
        for fact in numbers(text)
        if not text[fact.start].isdigit()
    }
    place = 0
    while place < len(text):
        pattern = spelled.get(place)
        match = pattern.match(text, place) if pattern else _TOKEN.match(text, place)
        if match is None:
            place += 1
            continue
        yield match
        place = match.end()


def _token(match: "re.Match[str]") -> Iterator[Token]:
    shown = match.group()
    if match.lastgroup is None or match.lastgroup == "number":  # in words, or in figures
        yield Token(numbers(shown)[0].key, fold(shown), shown)
    elif match.lastgroup == "possessive":
        yield Token("'s", "'s", shown)
    elif match.lastgroup == "denied":
        yield Token("not", "not", shown)
    else:
        folded = fold(shown).replace("’", "'")
        if folded == "cannot":
            yield Token("can", "can", shown)
            yield Token("not", "not", shown)
            return
        folded = _ALIKE.get(folded, folded)
        yield Token("" if folded in classes.CONNECTIVES else _key(folded), folded, shown)


def _key(folded: str) -> str:
    """The stem, with its tense: "earn" is "earns", and not "earned"."""
    stems = terms(folded)
    if len(stems) != 1 or stems[0] == folded:
        return folded
    tense = next((ending for ending in _TENSED if folded.endswith(ending)), "")
    return f"{stems[0]}+{tense}" if tense else stems[0]


def _without_articles(tokens: tuple[Token, ...]) -> tuple[Token, ...]:
    """The same, in which articles do not count."""
    following = [*(token.folded for token in tokens[1:]), ""]
    return tuple(
        replace(token, key="") if token.folded in classes.ARTICLES and after not in classes.AFTER_ARTICLE else token
        for token, after in zip(tokens, following, strict=True)
    )
