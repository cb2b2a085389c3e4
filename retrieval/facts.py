"""What a sentence must not get wrong: numbers, dates, names, and whether it denies something. Rules, no model.

Dates need no kind of their own: a year and a day are numbers, a month and a weekday are names.
"""

import re
from dataclasses import dataclass
from typing import Literal

from retrieval.words import fold, terms

_UNITS = (
    "zero one two three four five six seven eight nine ten eleven twelve thirteen fourteen fifteen sixteen seventeen "
    "eighteen nineteen"
)
_TENS = "twenty thirty forty fifty sixty seventy eighty ninety"
_POWERS = {"hundred": 100, "thousand": 1000, "million": 10**6, "billion": 10**9}
_VALUES = (
    {word: value for value, word in enumerate(_UNITS.split(" "))}
    | {word: 10 * tens for tens, word in enumerate(_TENS.split(" "), start=2)}
    | _POWERS
)
_WORD = re.compile(r"[^\W_]+(?:['’.\-][^\W_]+)*")
_NUMBER = re.compile(r"\d+(?:[.,]\d+)*")
_NUMBER_IN_WORDS = re.compile(
    rf"(?<![^\W_])(?:(?:{'|'.join(_TENS.split())})-(?:{'|'.join(_UNITS.split()[1:10])})|(?:{'|'.join(_VALUES)}))(?![^\W_])",
    re.IGNORECASE,
)
_GROUPED = re.compile(r"\d{1,3}(?:,\d{3})+(?:\.\d+)?")
_MONTHS_AND_DAYS = (
    "january|february|march|april|may|june|july|august|september|october|november|december|"
    "monday|tuesday|wednesday|thursday|friday|saturday|sunday|"
    "januar|februar|märz|mai|juni|juli|oktober|dezember|montag|dienstag|mittwoch|donnerstag|freitag|samstag|sonntag|"
    "janvier|février|avril|juin|juillet|août|septembre|octobre|novembre|décembre|"
    "enero|febrero|abril|mayo|junio|julio|septiembre|octubre|noviembre|diciembre|"
    "gennaio|febbraio|aprile|maggio|giugno|luglio|settembre|ottobre|dicembre|janeiro|fevereiro|março|maio|junho|julho"
)
# Words that begin with a capital wherever they stand and name nothing.
_NO_NAMES = frozenset(("i", "i'm", "i've", "i'll", "i'd", "ok"))
_SENTENCE_OPENERS = frozenset("\"'“‘«(*_")

# Words that deny, of the languages that documents are often written in. A claim and its source are of one language, and
# are compared by the same words, so that a word which is harmless in another language counts on both sides.
_NEGATIONS = frozenset(
    word
    for language in (
        "not no never none neither nor nobody nothing nowhere without cannot",
        "nicht kein keine keinen keinem keiner nie niemals ohne weder",
        "nunca jamás jamas ningún ninguna ninguno tampoco sin",
        "ne pas jamais sans aucun aucune",
        "non mai senza nessun nessuno",
        "não nao sem nenhum nenhuma",
        "niet geen nooit zonder",
        "не нет никогда без ни",
        "لا لم لن ليس ليست بدون",
        "नहीं मत ना không chưa",
    )
    for word in language.split()
)
_NEGATION_MARKS = re.compile(r"n['’]t\b|[不没沒無无未非勿]|ない|ません|なかっ|않|없|못")

_REASONS = re.compile(
    r"\b(?:because|since(?! +\d)|due to|owing to|thanks to|so that|in order to|therefore|as a result|"
    r"caus(?:e[sd]?|ing)|reasons?|"
    r"weil|denn|damit|wegen|aufgrund|deshalb|daher|gr(?:und|ünde)|"
    r"parce qu|afin|en raison|à cause|grâce|raisons?|"
    r"porque|debido|ya que|razón|razones|causa|perché|poiché|siccome|omdat|reden|"
    r"потому|так как|из-за|причин\w*)\b|"
    r"因为|因為|由于|由於|所以|原因|ため|から|때문|لأن|क्योंकि",
    re.IGNORECASE,
)


@dataclass(frozen=True)
class Fact:
    """A number, a name, or a word for a time or a reason in a text.

    `key` is its form for comparing, `start` and `end` its place.
    """

    kind: Literal["number", "name", "time", "reason"]
    key: str
    start: int
    end: int


def numbers(text: str) -> list[Fact]:
    """Numbers in figures and English words, in order. "1,300" and "1300" are one, "27" and "twenty-seven" too.

    The word "one" is left out: mostly it is a pronoun.
    """
    found = [Fact("number", _number_key(match.group()), match.start(), match.end()) for match in _NUMBER.finditer(text)]
    for match in _NUMBER_IN_WORDS.finditer(text):
        value = sum(_VALUES[word] for word in match.group().lower().split("-"))
        if value != 1:
            found.append(Fact("number", str(value), match.start(), match.end()))
    return sorted(found, key=lambda fact: fact.start)


def names(text: str, *, openers: bool = False) -> list[Fact]:
    """Words written as names, in order, in scripts with capitals: one fact a word, `key` folded.

    A word that begins a sentence is taken for one only where its own writing says so ("NASA", "iPhone", "R2D2") or
    where the next word is a name too ("Jared Allen"), for all others begin with a capital there; with `openers`
    wherever it has a meaning of its own ("Alice", but "Interns" too).
    """
    words = list(_WORD.finditer(text))
    found = []
    for index, match in enumerate(words):
        word = match.group()
        if not any(character.isupper() for character in word) or word.casefold().replace("’", "'") in _NO_NAMES:
            continue
        inner = any(character.isupper() for character in word[1:])
        if not inner and _begins_sentence(text, match.start()):
            following = words[index + 1] if index + 1 < len(words) else None
            adjoins = following is not None and text[match.end() : following.start()] == " "
            named = adjoins and following is not None and following.group()[:1].isupper()
            if not (named or openers) or not terms(word):
                continue
        found.append(Fact("name", _name_key(word), match.start(), match.end()))
    return found


def facts(text: str, *, openers: bool = False) -> list[Fact]:
    """Numbers and names in order; a word that is both ("Five guests") is a number."""
    found = {fact.start: fact for fact in names(text, openers=openers)} | {fact.start: fact for fact in numbers(text)}
    return [found[start] for start in sorted(found)]


def times(text: str) -> list[Fact]:
    """What answers "when": years, and numbers or names beside a month, a weekday or a word for a time."""
    found = [fact for fact in numbers(text) if re.fullmatch(r"1\d{3}|20\d{2}", fact.key)]
    for match in re.finditer(
        rf"\b(?:{_MONTHS_AND_DAYS}|century|centuries|decade|noon|midnight|bce?|a\.?d|[ap]\.?m|today|tomorrow|"
        r"yesterday|daily|weekly|monthly|annually|quarterly|days?|weeks?|months?|years?|hours?|minutes?|"
        r"tagen?|wochen?|monate?n?|jahre?s?n?|stunden?|jours?|semaines?|mois|années?|heures?|días?|semanas?|años?|"
        r"meses|horas?|giorni|settimane|mesi|anni|dias)\b",
        text,
        re.IGNORECASE,
    ):
        found.append(Fact("time", fold(match.group()), match.start(), match.end()))
    return sorted(found, key=lambda fact: fact.start)


def reasons(text: str) -> list[Fact]:
    """What answers "why": words that begin a reason or a purpose, or say that there is one."""
    return [Fact("reason", fold(match.group()), match.start(), match.end()) for match in _REASONS.finditer(text)]


def number_keys(text: str) -> set[str]:
    """Forms by which the numbers of a claim may be found in `text`."""
    return {fact.key for fact in numbers(text)} | ({"1"} if re.search(r"\bone\b", text, re.IGNORECASE) else set())


def name_keys(text: str) -> set[str]:
    """Forms by which the names of a claim may be found in `text`: those of all its words, however they are written."""
    return {_name_key(match.group()) for match in _WORD.finditer(text)} | {
        _name_key(part) for match in _WORD.finditer(text) for part in re.split(r"[\-.'’]", match.group()) if part
    }


def negations(text: str) -> list[int]:
    """Places in `text` of words that deny."""
    found = [match.start() for match in _NEGATION_MARKS.finditer(text)]
    found += [match.start() for match in _WORD.finditer(text) if match.group().casefold() in _NEGATIONS]
    return sorted(found)


def _number_key(number: str) -> str:
    return number.replace(",", "") if _GROUPED.fullmatch(number) else number


def _name_key(word: str) -> str:
    """Folded, without a possessive: "Allen's" is "Allen"."""
    return re.sub(r"['’]s?$", "", fold(word)).replace(".", "")


def _begins_sentence(text: str, start: int) -> bool:
    before = text[:start].rstrip(" \t").rstrip("".join(_SENTENCE_OPENERS)).rstrip(" \t")
    return not before or before[-1] in ".!?…:;\n。！？|#>"
