"""Sentences and clauses that limit what stands before them ("However, …", "…, except …"), or hold on some days only.

To quote a rule without its exception is to say something else, and Friday's hours are no answer about Monday. Told by
short tables for common languages; what they do not know limits nothing.
"""

import re
from itertools import pairwise

from retrieval.words import fold

# After folding: no capitals, no accents.
_OPENINGS = (
    r"(?:however|but|except|excepting|excluding|unless|provided that|with the exception|nevertheless|that said|only if|"
    r"only when|only for|not for|exceptions?)\b",
    r"(?:allerdings|jedoch|aber|ausser|ausgenommen|es sei denn|sofern|nur wenn|nur fur|nicht fur|ausnahmen?|"
    r"eine ausnahme)\b",
    r"(?:toutefois|cependant|mais|sauf|hormis|excepte|neanmoins|a l['’ ]exception|a moins que|exceptions?)\b",
    r"(?:sin embargo|pero|excepto|salvo|no obstante|a menos que|con excepcion|excepciones)\b",
    r"(?:tuttavia|pero|ma|salvo|eccetto|tranne|a meno che|eccezioni)\b|(?:no entanto|porem|mas|exceto|a menos que)\b",
    r"(?:echter|maar|behalve|tenzij|uitgezonderd)\b|(?:однако|но|кроме|за исключением|если только не)\b",
    r"但|然而|不过|不過|除非|ただし|但し|しかし|다만|단,|하지만|그러나",
)
# What a sentence says of the one before it, which it cannot be understood without.
_REFERRING = (
    r"(?:this|that|these|those|it|they|the (?:above|rule|same|limit))\b[^.]{0,30}?\b(?:(?:do|does|did)(?: not|n['’]t) "
    r"(?:apply|hold|include|cover)|(?:applies|apply|holds|hold) only|"
    r"(?:is|are)(?: not|n['’]t) (?:the case|true|valid))\b",
    r"(?:dies|das|diese regel|sie|davon)\b[^.]{0,30}?\b(?:gilt|gelten)\b[^.]{0,20}?\b(?:nicht|nur)\b|"
    r"davon ausgenommen\b",
    r"(?:cela|ceci|cette regle)\b[^.]{0,20}? ne s['’ ]appliquen?t? pas\b|(?:esto|esta regla) no se aplica\b",
    r"(?:questo|cio) non (?:si applica|vale)\b|isto nao se aplica\b|dit geldt niet\b|这不适用|本规定不适用",
)
# "Interns, however, earn none."
_INSIDE = r"[^,.;]{1,40}, (?:however|jedoch|toutefois|cependant|sin embargo|tuttavia|porem|echter),"
_DAYS = (
    r"mondays?|montags?|lundis?|lunes|luned[iy]|maandags?|segundas?(?:-feiras?)?",
    r"tuesdays?|dienstags?|mardis?|martes|martedi|dinsdags?|tercas?(?:-feiras?)?",
    r"wednesdays?|mittwochs?|mercredis?|miercoles|mercoledi|woensdags?|quartas?-feiras?",
    r"thursdays?|donnerstags?|jeudis?|jueves|giovedi|donderdags?|quintas?-feiras?",
    r"fridays?|freitags?|vendredis?|viernes|venerdi|vrijdags?|sextas?-feiras?",
    r"saturdays?|samstags?|samedis?|sabados?|sabato|zaterdags?",
    r"sundays?|sonntags?|dimanches?|domingos?|domenica|zondags?",
)
_WORKDAYS = (
    r"weekdays?|working days?|workdays?|werktags?|werktagen?|wochentags?|jours ouvrables|dias laborables|werkdagen"
)
_WEEKEND = r"weekends?|week-ends?|wochenenden?|fins? de semana|fine settimana"
_DAY_NAMES = tuple(re.compile(rf"\b(?:{names})\b") for names in _DAYS)
_DAY_GROUPS = (
    (re.compile(rf"\b(?:{_WORKDAYS})\b"), frozenset(range(5))),
    (re.compile(rf"\b(?:{_WEEKEND})\b"), frozenset((5, 6))),
)
# Between two days, those between are meant too: "Monday to Friday", "von Montag bis Freitag", "de lunes a viernes".
_UP_TO = re.compile(r"\s*(?:to|through|thru|until|till|bis|au|al?|ate|tot(?: en met)?|t/m|[-–—])\s*")
# Of these the days that are named say when it does not hold.
_EXCEPTING = re.compile(
    r"\b(?:except|excepting|excluding|but not|not on|ausser|ausgenommen|nicht am|sauf|hormis|excepte|excepto|salvo|"
    r"eccetto|tranne|exceto|behalve)\b"
)
_LEADING = " \t\n-*+•(（\"'“«"
_LIMITS = re.compile("|".join((*_OPENINGS, *_REFERRING, _INSIDE)))
_REFERS_BACK = re.compile("|".join(_REFERRING))


def limits(text: str) -> bool:
    """Whether a sentence or clause limits what stands before it."""
    return _LIMITS.match(fold(text).lstrip(_LEADING)) is not None


def refers_back(text: str) -> bool:
    """Whether a sentence limits one that must be read with it: "This does not apply to interns."."""
    return _REFERS_BACK.match(fold(text).lstrip(_LEADING)) is not None


def speaks_of_other_days(text: str, question: str) -> bool:
    """Whether both name days of the week, and none that they share: "On Fridays …" to a question about Mondays.

    A text that names days to except them speaks of all others too.
    """
    asked, told = _days(question), _days(text)
    return bool(asked) and bool(told) and asked.isdisjoint(told) and not _EXCEPTING.search(fold(text))


def speaks_of_the_day(text: str, question: str) -> bool:
    """Whether `text` names a day that `question` names, and not only among a range or a group of days.

    What is said of Saturdays goes before what is said of "Tuesday to Saturday".
    """
    folded = fold(text)
    named = _named_days(folded)
    in_ranges = {
        place
        for place, ((_, end, _), (start, _, _)) in enumerate(pairwise(named))
        if _UP_TO.fullmatch(folded, end, start)
    }
    alone = {day for place, (_, _, day) in enumerate(named) if not {place - 1, place} & in_ranges}
    return bool(alone & {day for _, _, day in _named_days(fold(question))})


def names_days(text: str) -> bool:
    """Whether `text` names a day of the week."""
    return bool(_days(text))


def _days(text: str) -> frozenset[int]:
    """The days of the week that `text` names, from 0 for Monday; "weekdays" and "Monday to Friday" are five of them."""
    folded = fold(text)
    named = _named_days(folded)
    days = {day for _, _, day in named}
    for (_, end, first), (start, _, last) in pairwise(named):
        if _UP_TO.fullmatch(folded, end, start):
            days.update((first + offset) % 7 for offset in range((last - first) % 7))
    return frozenset(days).union(*(group for name, group in _DAY_GROUPS if name.search(folded)))


def _named_days(folded: str) -> list[tuple[int, int, int]]:
    """(from, to, day) of each day of the week that is named, in order."""
    return sorted(
        (match.start(), match.end(), day) for day, name in enumerate(_DAY_NAMES) for match in name.finditer(folded)
    )
