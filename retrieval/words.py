"""Text to the terms of the keyword index: folded, stemmed words; character pairs in scripts that put no spaces.

English stop words and Snowball's English stemmer; words of other languages are folded only. Numbers stay whole
("131,072" and "131072" are one term, "3.35" another).
"""

import re
import threading
import unicodedata
from collections.abc import Iterator

import Stemmer
from bm25s.stopwords import STOPWORDS_EN

# Scripts written without spaces between words, and Hangul, whose particles cling to the word.
_UNSPACED = (
    "\u0e00-\u0eff"  # Thai, Lao
    "\u1000-\u109f"  # Myanmar
    "\u1100-\u11ff"  # Hangul letters
    "\u1780-\u17ff"  # Khmer
    "\u3005-\u3007\u3040-\u30ff\u31f0-\u31ff"  # Hiragana, Katakana
    "\u3400-\u4dbf\u4e00-\u9fff\uf900-\ufaff\U00020000-\U0003ffff"  # Han
    "\uac00-\ud7af"  # Hangul syllables
)


def _mark_ranges() -> str:
    """Combining marks as a character class: `\\w` lacks them and would cut Hindi or Tamil words at vowel signs."""
    marks = [code for code in range(0x300, 0x1D00) if unicodedata.category(chr(code)) in ("Mn", "Mc")]
    ranges: list[list[int]] = []
    for code in marks:
        if ranges and ranges[-1][1] == code - 1:
            ranges[-1][1] = code
        else:
            ranges.append([code, code])
    return "".join(f"{chr(low)}-{chr(high)}" for low, high in ranges)


_TERM = re.compile(
    rf"(?P<unspaced>[{_UNSPACED}]+)"
    r"|(?P<number>\d+(?:[.,]\d+)*(?![^\W_]))"
    rf"|(?P<word>(?:(?![_{_UNSPACED}])[\w{_mark_ranges()}])+)"
)
_GROUPED = re.compile(r"\d{1,3}(?:,\d{3})+(?:\.\d+)?")
_CONTRACTED = re.compile(r"(?<=\w)['’](?:s|t|d|m|ll|re|ve)\b")
_LATIN_MARKS = re.compile("[\u0300-\u036f]")
# Personal pronouns say who asks, not about what; documents have few, so that BM25 would take them for telling words.
# "us" is not among them: it may be a country.
_PRONOUNS = "i me my we our ours you your yours he him his she her hers its them"
_STOP_WORDS = frozenset((*STOPWORDS_EN, *_PRONOUNS.split()))
# A letter that stands alone is a symbol, and people ask for it by name: "α" is "alpha".
_GREEK = re.compile(r"GREEK SMALL LETTER (?:FINAL )?(\w+)$")
_stemmers = threading.local()  # a Stemmer must not be shared between threads


def terms(text: str) -> list[str]:
    """The index terms of `text`, in order, repeats kept."""
    return list(_terms(_CONTRACTED.sub("", fold(text)), _stemmer()))


def fold(text: str) -> str:
    """Lower case, compatibility forms unified, accents of Latin, Greek and Cyrillic letters dropped."""
    folded = unicodedata.normalize("NFKC", text).casefold()
    if folded.isascii():
        return folded
    return unicodedata.normalize("NFC", _LATIN_MARKS.sub("", unicodedata.normalize("NFD", folded)))


def _terms(text: str, stemmer: "Stemmer.Stemmer") -> Iterator[str]:
    for match in _TERM.finditer(text):
        kind, term = match.lastgroup, match.group()
        if kind == "unspaced":
            yield from (term[index : index + 2] for index in range(max(1, len(term) - 1)))
        elif kind == "number":
            yield term.replace(",", "") if _GROUPED.fullmatch(term) else term
        elif len(term) == 1 and (name := _GREEK.match(unicodedata.name(term, ""))):
            yield stemmer.stemWord(name[1].lower())
        elif term not in _STOP_WORDS:
            yield stemmer.stemWord(term) if term.isascii() else term


def _stemmer() -> "Stemmer.Stemmer":
    if not hasattr(_stemmers, "english"):
        _stemmers.english = Stemmer.Stemmer("english")
    return _stemmers.english
