"""Whether a sentence answers a question that asks whether: yes, no, or neither for certain.

Certain is little: the sentence says in the same order, tense and mood what the question asks, and nothing more than
whom it is said to; nothing in it limits it. Everything else is left to the reader of the quotation. English only.
"""

import re
from collections.abc import Sequence

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


def yes_or_no(question: str, sentences: Sequence[str]) -> bool | None:
    """What the first of `sentences`, best first, says for certain, where none of the next ones says otherwise."""
    heard = [verdict(question, sentence) for sentence in sentences[:_NUM_HEARD]]
    return heard[0] if heard and (not heard[0]) not in heard[1:] else None


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
