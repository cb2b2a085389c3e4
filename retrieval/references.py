"""A document's own reference marks ("It lasts 27 months.[1]"), which are no citations of an answer that quotes it.

They are dropped where they only point somewhere; where they are part of what is said ("in [3]", "[0, 1]", code) they
are set apart, "[ 3 ]", so that "[n]" in an answer is always one of its own sources.
"""

import re

from retrieval.closed_classes import PREPOSITIONS
from retrieval.words import fold

AFTER_SENTENCE = r"(?:\[\^?\d{1,3}\])*"
"""A pattern for those that stand behind a sentence's end."""

_NUMBERS = r"\d+(?:\s*[,;–-]\s*\d+)*"
# `[text][1]` is a link like any other, "[1][2]" two marks.
_LINK = re.compile(r"\[(?!\^?\d+\])([^\[\]\n]+)\]\[[^\[\]\n]*\]")
_REFERENCE = re.compile(
    r"(?P<code>(?P<ticks>`+)[^`\n]*(?P=ticks))"
    r"|\[\^[^\[\]\s]{1,20}\]:?"  # a footnote
    r"|\[\\?\[[\w ]{1,20}\\?\]\]\([^()\s]*\)|\[\d+\]\(#[^()\s]*\)"  # a link to a note
    rf"|(?P<space>(?<![ \t])[ \t]*)(?P<marks>(?:\[(?:\?|{_NUMBERS})\])+)(?P<index>\s*=|\.[a-z_]|\()?"
)
_MARK = re.compile(rf"\[(\?|{_NUMBERS})\]")
_LAST_WORD = re.compile(r"\w+$")
_SEE = frozenset(("see", "ref", "refs", "cf", "eq", "siehe", "vgl", "vease", "ver", "voir"))
_ENDS = frozenset(".,;:!?…)]\"'”’»。！？，、；：）")
_MOST_WORD_CHARS = 40


def without_references(text: str) -> str:
    """`text` as it reads without them."""
    if "[" not in text:
        return text
    return _REFERENCE.sub(_as_read, _LINK.sub(r"\1", text)).lstrip(" ")


def _as_read(match: "re.Match[str]") -> str:
    if match["code"]:
        return _set_apart(match["code"])
    if match["marks"] is None:
        return ""
    after = match["index"] or ""
    return f"{match['space']}{_set_apart(match['marks'])}{after}" if _is_said(match) else after


def _set_apart(marks: str) -> str:
    return _MARK.sub(r"[ \1 ]", marks)


def _is_said(match: "re.Match[str]") -> bool:
    """Whether marks are part of what is said: an index, an interval, a year, or what a preposition needs."""
    numbers = re.findall(r"\d+", match["marks"])
    before = match.string[max(0, match.start() - _MOST_WORD_CHARS) : match.start()]
    if match["index"] or "0" in numbers or any(len(number) > 3 for number in numbers):
        return True
    if not before.strip() or before.endswith("\n"):
        return False  # an entry of a list of sources
    word = _LAST_WORD.search(before)
    if match["space"]:
        if word is None:
            return before[-1] not in _ENDS
        return fold(word.group()) in PREPOSITIONS | _SEE or (len(numbers) > 1 and "][" not in match["marks"])
    return word is not None and _is_variable(word.group())


def _is_variable(word: str) -> bool:
    """Whether a word looks like one of code: "x", "row_2"."""
    is_mixed = word[0].isalpha() and any(not character.isalpha() for character in word)
    return word.isascii() and (is_mixed or (len(word) == 1 and word.isalpha()))
