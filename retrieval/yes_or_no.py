"""Whether a sentence answers a question that asks whether: yes, no, or neither for certain.

Certain is little: the sentence says in the same order, tense and mood what the question asks, and nothing more than
whom it is said to; nothing in it limits it. Everything else is left to the reader of the quotation. English only.
"""

import re
from collections.abc import Sequence

from retrieval.qualifiers import names_days
from retrieval.words import fold, terms

_ASKS = re.compile(
    r"(?:(?:and|so|but|then) )?"
    r"(?P<verb>do|does|did|can|could|may|might|is|are|was|were|will|must|shall|should|have|has)\s"
)
# Of one kind: what is allowed says nothing of what is asked for by duty.
_MOODS = {
    **dict.fromkeys(("can", "cannot", "could", "may", "might"), "may"),
    **dict.fromkeys(("must", "shall", "should"), "must"),
    "will": "will",
}
_MODAL = re.compile(
    r"\b(can|cannot|could|may|might|must|shall|should|will|would|need to|needs to|has to|have to|ought)\b"
)
_DENIAL = re.compile(r"\b(?:is|are|was|were|do|does|did|can|may|will|have|has) not\b|n['’]t\b|\bcannot\b")
_NEGATIVE = re.compile(
    r"\b(?:not|no|never|none|neither|nor|nobody|nothing|without|cannot|hardly|rarely|seldom|barely|fails?)\b|n['’]t\b"
)
# Words that make less of a statement than it says, or that put it in somebody's mouth.
_HEDGES = re.compile(
    r"\b(?:if|unless|except|only|but|however|although|though|until|till|when|whenever|while|before|after|once|during|some|"
    r"most|mostly|many|few|several|sometimes|usually|often|generally|normally|typically|partly|almost|nearly|or|other|"
    r"than|as|perhaps|maybe|probably|likely|said|says|say|claims?|claimed|believe[sd]?|think|thought|alleged|supposed|"
    r"myth|rumou?r|either|each|any more|anymore|longer|yet|still|first|up to)\b|[?;:]"
)
# Headings of what is not, not yet or no longer so, and of what somebody else said.
_SET_APART = re.compile(
    rf"{_NEGATIVE.pattern}|\b(?:former(?:ly)?|previous(?:ly)?|past|old|obsolete|deprecated|history|archived?|withdrawn|"
    r"proposals?|proposed|drafts?|planned|plans?|rejected|misconceptions?|myths?|rumou?rs?|wrong|false|mistakes?|errors?|"
    r"examples?|quotes?|quotations?|opinions?|letters?|until|till|before|since|from|as of|(?:19|20)\d\d)\b"
)
# What says under which conditions something else holds.
_REFERS = re.compile(
    r"\b(?:this|that|these|those|the (?:above|rule|same|following)|appl(?:y|ies)|valid|subject to|must)\b"
)
_UNSAFE_IN_QUESTION = re.compile(r"\b(?:or|not|only|always|ever|never|all|every|still|yet|already|than)\b|n['’]t\b")
# Whom a rule is said to, where the question says "I" or "we".
_ADDRESSED = frozenset(terms("employees everyone everybody staff people users customers members"))
_SPEAKS_OF_ONESELF = re.compile(r"\b(?:i|we|you)\b")
# Small words that change who does what to whom; they are no terms.
_DIRECTIONS = re.compile(r"\b(?:at|by|for|in|into|of|on|to|with|without)\b")
# What a sentence must have of the verb that the question begins with.
_SAME_TENSE = {
    **dict.fromkeys(("is", "are"), re.compile(r"\b(?:is|are)\b")),
    **dict.fromkeys(("was", "were"), re.compile(r"\b(?:was|were)\b")),
    **dict.fromkeys(("have", "has"), re.compile(r"\b(?:have|has)\b")),
}
_AUXILIARIES = frozenset(terms("can cannot could may might must shall should will would do does did"))
_PAST = re.compile(r"\w+ed\b")
_MOST_WORDS = 25
# How many of the best sentences must not say otherwise.
_NUM_HEARD = 8


def yes_or_no(question: str, sentences: Sequence[str], place: str = "", around: Sequence[str] = ()) -> bool | None:
    """What the first of `sentences`, best first, says for certain, where none of the next ones says otherwise.

    `place` are the headings that it stands under, `around` the sentences beside it: under "Rules until 2019", or before
    "This applies to …" or "On Tuesdays it is closed", it is certain no more.
    """
    heard = [verdict(question, sentence) for sentence in sentences[:_NUM_HEARD]]
    if not heard or (not heard[0]) in heard[1:] or _SET_APART.search(fold(place)):
        return None
    return None if any(_may_take_back(fold(text)) for text in around) else heard[0]


def _may_take_back(text: str) -> bool:
    return bool(_NEGATIVE.search(text) or _HEDGES.search(text) or _REFERS.search(text) or names_days(text))


def verdict(question: str, sentence: str) -> bool | None:
    """True for yes, False for no, None where `sentence` does not say for certain, or nothing is asked whether."""
    asked, told = fold(question).strip(" ¿?.!"), fold(sentence).strip().rstrip(".!")
    opening = _ASKS.match(asked)
    if opening is None or _UNSAFE_IN_QUESTION.search(asked) or asked.count("?"):
        return None
    if len(told.split()) > _MOST_WORDS or _HEDGES.search(told):
        return None
    denials = len(_DENIAL.findall(told))
    if len(_NEGATIVE.findall(told)) != denials or denials > 1:
        return None
    mood = _MOODS.get(opening["verb"], "")
    if any(_MOODS.get(modal, "other") != mood for modal in _MODAL.findall(told)) or (mood and not _MODAL.search(told)):
        return None
    return not denials if _says_the_same(asked[opening.end() :], told, opening["verb"]) else None


def _says_the_same(asked: str, told: str, verb: str) -> bool:
    """Whether a sentence has the words of a question after its first verb, in that order and tense, and no others."""
    wanted, said = ([term for term in terms(text) if term not in _AUXILIARIES] for text in (asked, told))
    if len(wanted) < 2 or not _in_order(wanted, said):
        return False
    if not set(said) - set(wanted) <= (_ADDRESSED if _SPEAKS_OF_ONESELF.search(asked) else frozenset()):
        return False
    if {*_DIRECTIONS.findall(asked)} != {*_DIRECTIONS.findall(told)}:
        return False
    if verb in _SAME_TENSE and not _SAME_TENSE[verb].search(told):
        return False
    return verb == "did" or {*_PAST.findall(told)} <= {*_PAST.findall(asked)}


def _in_order(wanted: list[str], said: list[str]) -> bool:
    """Whether `said` holds all of `wanted`, in that order."""
    rest = iter(said)
    return all(term in rest for term in wanted)
