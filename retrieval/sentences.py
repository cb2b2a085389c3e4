"""Text into sentences, in any language: offsets into the text, so that whatever is quoted stands there as it is.

Rules, no model: end marks of the scripts that have them, not after abbreviations and initials; list items, table rows
and headings stand alone; a newline inside a paragraph is only a space (text that was wrapped by hand).
"""

import re
from collections.abc import Iterator
from dataclasses import dataclass
from itertools import pairwise

from retrieval.references import AFTER_SENTENCE, without_references


@dataclass(frozen=True)
class Sentence:
    """One sentence: `text` is the source's `[start:end]`, without white space around it."""

    text: str
    start: int
    end: int


_CLOSING = "\"'”’»)\\]）」』】*_"
_END = re.compile(
    rf"(?:[.!?…]+|[؟۔።])[{_CLOSING}]*{AFTER_SENTENCE}(?=\s|$)|"
    rf"[।॥။៕]+[{_CLOSING}]*|[。！？．]+[{_CLOSING}]*{AFTER_SENTENCE}"
)
# What begins a line that is not the paragraph's next line: list marks, headings, table rows, quotations, code fences.
_MARK = r"(?:[-*+•–]\s|\d{1,3}[.)]\s|[a-z][.)]\s|\#{1,6}\s|\||>|```|~~~)"
_BLOCK = re.compile(rf"\n[ \t]*\n|\n(?=[ \t]*{_MARK})")
_ALONE = re.compile(r"[ \t]*(?:\#{1,6}\s|\|)")
# A line that was ended by hand before this many characters was ended on purpose, where a capital or a digit follows.
_WRAPPED_CHARS = 50

_LINK = re.compile(r"!?\[([^\]\n]*)\]\((?:\{[{%].*?[%}]\}|[^()\s]*)(?:\s+\"[^\"\n]*\")?\)")
_EMPHASIS = re.compile(r"\*\*|__|`|(?<!\w)[*_](?=\w)|(?<=[\w.!?:,;])[*_](?!\w)")
# Zero-width space, word joiner, byte order mark, soft hyphen: copied along from web pages, and nobody sees them.
_UNSEEN = re.compile("[\u200b\u2060\ufeff\u00ad]")
_LEADING_MARK = re.compile(r"^\s*(?:[-*+•–>]\s+|\d{1,2}[.)]\s+)+")
_PARTNERS = {'"': '"', "“": "”", "„": "“”", "«": "»", "「": "」", "『": "』", "(": ")", "[": "]", "（": "）"}
_CLOSING_QUOTES = "”»」』"
_WRAP = re.compile(rf"[ \t]*\n[ \t]*(?!\n|[ \t]*{_MARK})")

# Words that a full stop mostly does not end a sentence after. Single letters (initials) are dealt with by rule.
_ABBREVIATIONS = frozenset(
    re.split(
        r"\s+",
        """mr mrs ms dr prof rev hon sen rep gov gen col capt lt sgt st mt ft jr sr vs etc cf eg ie al ca approx est fig
        figs no nos vol vols ch sec art para pp ed eds trans dept univ assn inc ltd co corp jan feb mar apr jun jul aug
        sep sept oct nov dec mon tue wed thu fri sat sun e.g i.e a.m p.m ph.d d.c z.b bzw usw bspw str nr abs mme mlle
        av bd sra srta ud uds pág tel min max resp""",
    )
)
# Of languages that put a full stop behind a day and begin months with a capital.
_MONTH = re.compile(
    r"(?:Januar|Jänner|Februar|März|April|Mai|Juni|Juli|August|September|Oktober|November|Dezember|"
    r"Jan|Feb|Mär|Apr|Jun|Jul|Aug|Sep|Sept|Okt|Nov|Dez)\b"
)
_LAST_WORD = re.compile(r"[^\W_]+(?:\.[^\W_]+)*$")
_MAX_ABBREVIATION = 12


def split_sentences(text: str) -> list[Sentence]:
    """The sentences of `text`, in order. White space alone gives none."""
    found = []
    for start, end in _blocks(text):
        for first, last in _sentences(text, start, end):
            inner = text[first:last]
            stripped = inner.strip()
            if stripped:
                begin = first + len(inner) - len(inner.lstrip())
                found.append(Sentence(stripped, begin, begin + len(stripped)))
    return found


def without_markup(text: str) -> str:
    """A sentence or list as it reads: links without their targets, no emphasis marks, wrapped lines joined.

    A document's own reference marks go too: see `without_references`.

    What is quoted is shown like this, and what is compared is compared like this.
    """
    shown = _EMPHASIS.sub("", _LINK.sub(r"\1", without_references(_UNSEEN.sub("", text))))
    return _WRAP.sub(" ", _LEADING_MARK.sub("", shown)).strip()


def without_odd_marks(text: str) -> str:
    """`text` without quotation marks and open brackets that have no partner in it: it was cut from a longer one."""
    waiting: list[int] = []
    odd: set[int] = set()
    for place, mark in enumerate(text):
        partner = next(
            (index for index in reversed(range(len(waiting))) if mark in _PARTNERS[text[waiting[index]]]), None
        )
        if partner is not None:
            odd.update(waiting[partner + 1 :])
            del waiting[partner:]
        elif mark == '"' and text[place - 1 : place].isdigit():
            continue  # inches
        elif mark in _PARTNERS:
            waiting.append(place)
        elif mark in _CLOSING_QUOTES:
            odd.add(place)
    odd.update(waiting)
    return "".join(mark for place, mark in enumerate(text) if place not in odd).strip() if odd else text


def _blocks(text: str) -> Iterator[tuple[int, int]]:
    """Ranges that no sentence crosses: paragraphs, list items, headings, table rows."""
    borders = {match.end() if match.group().strip(" \t\n") else match.start() for match in _BLOCK.finditer(text)}
    borders |= set(_short_lines(text))
    edges = [0, *sorted(borders), len(text)]
    yield from ((start, end) for start, end in pairwise(edges) if end > start)


def _short_lines(text: str) -> Iterator[int]:
    """Newlines after headings and table rows, and after lines too short to have been wrapped."""
    start = 0
    while (newline := text.find("\n", start)) >= 0:
        line, following = text[start:newline], text[newline + 1 : newline + 2]
        ended = len(line.strip()) < _WRAPPED_CHARS and (following.isupper() or following.isdigit())
        if _ALONE.match(line) or (line.strip() and ended and not line.rstrip().endswith((",", "-"))):
            yield newline
        start = newline + 1


def _sentences(text: str, start: int, end: int) -> Iterator[tuple[int, int]]:
    for match in _END.finditer(text, start, end):
        if match.end() >= end or _is_border(text, match.start(), match.end(), end):
            yield start, match.end()
            start = match.end()
    if start < end:
        yield start, end


def _is_border(text: str, mark: int, after: int, end: int) -> bool:
    """Whether the end marks at `mark` end a sentence, by the words around them."""
    marks = text[mark:after]
    if not marks.startswith("."):
        following = text[after:end].lstrip()
        # "Stop!" he said: what goes on in small letters is the same sentence.
        return not (marks[0] in "!?…" and following[:1].islower())
    following = text[after:end].lstrip().lstrip("\"'“‘«([*_")
    if following[:1].islower():
        return False
    word = _LAST_WORD.search(text, max(0, mark - _MAX_ABBREVIATION), mark)
    if word is None:
        return True
    last = word.group()
    if len(last) == 1 and last.isalpha() and last != "I":
        return False  # an initial: "J. Smith", and "U.S" is in the list below
    line = text.rfind("\n", 0, mark) + 1
    if last.isdigit() and len(last) <= 2 and not text[line : word.start()].strip(" \t#*-"):
        return False  # "1. First"
    if last.isdigit() and len(last) <= 2 and _MONTH.match(following):
        return False  # "am 31. März"
    if last.casefold() not in _ABBREVIATIONS and not re.fullmatch(r"(?:[A-Za-z]\.)+[A-Za-z]", last):
        return True
    # "No." and "U.S." may also end one: then what follows begins with a word that no name or number begins with.
    return bool(re.match(r"(?:The|This|It|In|He|She|They|However|A|An|But|And|We|You|If|For|At|On|As)\b", following))
