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

# Scripts written without spaces between words, and Hangul, whose particles cling to the word; for a character class.
UNSPACED = (
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


MARKS = _mark_ranges()
"""Marks that combine with a letter before them, for a character class."""
_NUMBER = r"\d+(?:[.,]\d+)*(?![^\W_])"
_TOKEN = re.compile(rf"{_NUMBER}|(?:[^\W_]|[{MARKS}])+")
_ASCII_TOKEN = re.compile(rf"{_NUMBER}|[a-z0-9]+", re.ASCII)  # the same for ASCII text, several times faster
_UNSPACED_RUN = re.compile(rf"([{UNSPACED}]+)")
_GROUPED = re.compile(r"\d{1,3}(?:,\d{3})+(?:\.\d+)?")
_CONTRACTED = re.compile(r"(?<=\w)['’](?:s|t|d|m|ll|re|ve)\b")
_LATIN_MARKS = re.compile("[\u0300-\u036f]")
# Personal pronouns say who asks, not about what; documents have few, so that BM25 would take them for telling words.
# "us" is not among them: it may be a country.
_PRONOUNS = "i me my we our ours you your yours he him his she her hers its them"
_STOP_WORDS = frozenset((*STOPWORDS_EN, *_PRONOUNS.split()))
# A letter that stands alone is a symbol, and people ask for it by name: "α" is "alpha".
_GREEK = re.compile(r"GREEK SMALL LETTER (?:FINAL )?(\w+)$")
# Words whose stem is remembered: more than the default, which a large corpus turns over all the time.
_STEM_CACHE = 200_000
_stemmers = threading.local()  # a Stemmer must not be shared between threads


def terms(text: str) -> list[str]:
    """The index terms of `text`, in order, repeats kept."""
    folded = _CONTRACTED.sub("", fold(text))
    if folded.isascii():
        words = [_word(token) for token in _ASCII_TOKEN.findall(folded)]
    else:
        words = [word for token in _TOKEN.findall(folded) for word in _words(token)]
    stemmed: list[str] = _stemmer().stemWords([word for word in words if word not in _STOP_WORDS])
    return stemmed


def fold(text: str) -> str:
    """Lower case, compatibility forms unified, accents of Latin, Greek and Cyrillic letters dropped."""
    folded = unicodedata.normalize("NFKC", text).casefold()
    if folded.isascii():
        return folded
    return unicodedata.normalize("NFC", _LATIN_MARKS.sub("", unicodedata.normalize("NFD", folded)))


def _words(token: str) -> Iterator[str]:
    """A token's words: character pairs of the parts in unspaced scripts, the other parts as they are."""
    if token.isascii():
        yield _word(token)
        return
    # Splitting by a group gives the parts outside and inside it in turn.
    for index, part in enumerate(_UNSPACED_RUN.split(token)):
        if index % 2:
            yield from (part[start : start + 2] for start in range(max(1, len(part) - 1)))
        elif len(part) == 1 and (symbol := _GREEK.match(unicodedata.name(part, ""))):
            yield symbol[1].lower()
        elif part:
            yield _word(part)


def _word(token: str) -> str:
    return token.replace(",", "") if "," in token and _GROUPED.fullmatch(token) else token


def _stemmer() -> "Stemmer.Stemmer":
    if not hasattr(_stemmers, "english"):
        _stemmers.english = Stemmer.Stemmer("english", _STEM_CACHE)
    return _stemmers.english
