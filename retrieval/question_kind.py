"""What a question asks for (a number, a time, a name, a reason), told by its question words, and where a text has such.

A short table for common languages: where no word is known, the kind is OTHER, and nothing is expected of the answer.
"""

import functools
import re
from collections.abc import Sequence
from enum import StrEnum

from bm25s import stopwords

from retrieval.definitions import subject_of
from retrieval.facts import Fact, names, numbers, reasons, times
from retrieval.words import UNSPACED, fold, terms


class QuestionKind(StrEnum):
    NUMBER = "number"
    TIME = "time"
    NAME = "name"
    REASON = "reason"
    OTHER = "other"


_WORDS: tuple[tuple[QuestionKind, tuple[str, ...]], ...] = (
    (
        QuestionKind.NUMBER,
        (
            r"\bhow (?:many|much|few|old|far|long|often|big|large|tall|high|fast|deep|wide|heavy)\b",
            r"\bhow \w+ (?:many|much)\b",
            r"\b(?:what|which) (?:\w+ )?(?:percent|percentage|number|amount|fraction|share|proportion|price|cost)\b",
            r"\bwhat (?:is|are|was|were) (?:the |our |my )?(?:\w+ )?(?:price|cost|fee|fare|rent|salary|wage)s?\b",
            r"\bwhat (?:do|does|did|will|would) .*\bcost\b|\bwas kostet\b|\bwas kosten\b",
            r"\bwie ?viele?\b|\bwie (?:lange|oft|hoch|gross)\b|\bcuant[oa]s?\b|\bcombien\b|\bquant[oiae]s?\b",
            r"\bhoeveel\b|\bсколько\b|多少|几个|幾個|几年|いくつ|いくら|何人|何個|얼마|몇|\bكم\b|\bbao nhieu\b|कितन",
        ),
    ),
    (
        QuestionKind.TIME,
        (
            r"\bwhen\b|\bhow (?:early|late|recently|soon)\b",
            r"\b(?:what|which) (?:year|date|day|month|decade|century|time|era|period)\b",
            r"\bwann\b|\bcuando\b|\bquand\b|\bquando\b|\bwanneer\b|\bкогда\b",
            r"什么时候|何时|哪一年|哪年|いつ|何年|언제|\bمتى\b|\bkhi nao\b|कब",
        ),
    ),
    (
        QuestionKind.NAME,
        (
            r"\bwho\b|\bwhom\b|\bwhose\b|\bwhere\b",
            r"\b(?:what|which) (?:\w+ )?(?:city|country|state|place|town|region|county|continent|island|nation)\b",
            r"\b(?:what|which) (?:\w+ )?(?:location|person|man|woman|company|team|name)\b",
            r"\bwer\b|\bwen\b|\bwo\b|\bquien(?:es)?\b|\bdonde\b|\bqui\b|\bou\b|\bchi\b|\bdove\b|\bquem\b|\bonde\b|\bwie\b",
            r"\bwaar\b|\bкто\b|\bгде\b|谁|誰|哪里|哪裡|だれ|どこ|누구|어디|\bمن هو\b|\bأين\b|कौन|कहाँ",
        ),
    ),
    (
        QuestionKind.REASON,
        (
            r"^(?:and |but |so )?why\b|\bhow come\b|\b(?:what|which) (?:is|are|was|were)? ?(?:the )?reasons?\b",
            r"\b(?:warum|wieso|weshalb)\b|\bpourquoi\b|\bpor que\b|\bperche\b|\bwaarom\b|\bпочему\b",
            r"为什么|為什麼|为何|なぜ|どうして|왜|لماذا|\btai sao\b|क्यों",
        ),
    ),
)
# "Do I get paid when I quit?" asks whether, and its "when" asks nothing.
_ASKS_WHETHER = re.compile(
    r"(?:(?:and|so|but|or|then|also) )*(?:do|does|did|can|could|may|might|is|are|was|were|will|would|should|shall|must|"
    r"have|has|had|am)(?:n['’]t)?\b(?! kostet?n?\b)"  # "Was kostet" is German
)
_ASKS_FOR_LIST = re.compile(
    r"(?:please |bitte )?(?:(?:list|name|enumerate|nenne|enumere|enumera|lista)\b|(?:what|which)\b.*\b(?:are|were)\b|"
    r"was sind\b|welche\b.*\bsind\b|quel(?:le)?s sont\b|cuales son\b|quali sono\b|quais sao\b)"
)
# Words that stand for something said before, and openings that go on from it; after folding.
_REFERS = re.compile(
    r"^(?:and|but|or|so|also|what about|how about|und|aber|auch|et|mais|y|pero|e|ma|mas|en|maar|а|и|но)\b|"
    r"\b(?:it|its|they|them|their|theirs|this|that|these|those|there|he|him|his|she|her|hers|one|ones|same|such|else|then|"
    r"er|sie|es|ihn|ihm|ihr|diese[rsnm]?|das|dies|davon|dafur|damit|dort|il|elle|ils|elles|ca|cela|ceci|celui|celle|eso|"
    r"esto|ese|esa|ello|ellos|ellas|questo|questa|quello|quella|isso|isto|ele|ela|eles|elas|dit|dat|deze|hij|zij|"
    r"он|она|оно|они|это|этот|эта)\b|^(?:那|它|这|這)|それ|これ|그것|이것"
)
_ENOUGH_TERMS = 3
# How much a question counts beside its wordings with the one before it, where it can be understood by itself.
STANDING_ALONE = 2 / 3
_UNSPACED = re.compile(f"[{UNSPACED}]")
# Asks to go on, and measures, beside the function words of many languages.
_GOING_ON = (
    "tell say explain elaborate clarify continue expand describe repeat rephrase summarize summarise mean "
    "meaning please ok okay thanks thank yes really exactly detail details information info example examples "
    "long often far big old else much many kind sort case reason why lange lang viel viele oft warum wieso "
    "weshalb erklare erklaren genauer mehr bitte beispiel longtemps combien souvent pourquoi expliquer explique "
    "exemple porque cuanto cuanta cuantos tiempo explica ejemplo perche quanto quanti tempo waarom go keep next "
    "weiter los continuez encore sigue continua avanti"
)
# Looked for in the folded question in this order: "how many years" asks for a number, "what year" for a time.
_PATTERNS = tuple((kind, re.compile("|".join(patterns))) for kind, patterns in _WORDS)


def question_kind(question: str) -> QuestionKind:
    """What kind of answer `question` asks for."""
    folded = fold(question)
    if _ASKS_WHETHER.match(folded.strip(" ¿")):
        return QuestionKind.OTHER
    return next((kind for kind, pattern in _PATTERNS if pattern.search(folded)), QuestionKind.OTHER)


def asks_for_list(question: str) -> bool:
    """Whether more than one thing is asked for: "List …", "What are …"."""
    return _ASKS_FOR_LIST.match(fold(question).strip(" ¿")) is not None


def stands_alone(question: str) -> bool:
    """Whether a question can be understood without the one before it.

    It refers to nothing ("it", "and …"), has words enough of its own and one that says what it is about, or asks what
    something means.
    """
    if subject_of(question):
        return True
    if _REFERS.search(fold(question)) or len(set(terms(question))) < _ENOUGH_TERMS:
        return False
    return bool(topic_terms(question) or _UNSPACED.search(question))


def wording_shares(wordings: Sequence[str]) -> dict[str, float]:
    """Wordings of one question -> how much each counts; the shares sum to 1.

    The first is the question as it was asked, the others tell it with what went before. They count the same, but for a
    question that stands alone, which counts more than the one before it, and one without a topic ("why?", "tell me
    more"), whose words would find "why" and "more": that one is left out. Raises ValueError where there are none.
    """
    distinct = list(dict.fromkeys(wordings))
    if not distinct:
        raise ValueError("no question: give at least one form of it")
    asked, *others = distinct
    if not others:
        return {asked: 1.0}
    if stands_alone(asked):
        return {asked: STANDING_ALONE} | dict.fromkeys(others, (1 - STANDING_ALONE) / len(others))
    if not topic_terms(asked) and not _UNSPACED.search(asked):
        return dict.fromkeys(others, 1 / len(others))
    return dict.fromkeys(distinct, 1 / len(distinct))


def topic_terms(question: str) -> frozenset[str]:
    """The terms of a question that say what it is about: not "why?" or "tell me more", nor "and how much?".

    Empty, too, for scripts without spaces, whose terms are no words.
    """
    if _UNSPACED.search(question):
        return frozenset()
    return frozenset(terms(question)) - _function_terms()


@functools.cache
def _function_terms() -> frozenset[str]:
    lists = [getattr(stopwords, name) for name in dir(stopwords) if name.startswith("STOPWORDS_")]
    return frozenset(terms(" ".join([_GOING_ON, *(word for words in lists for word in words)])))


_FINDERS = {
    QuestionKind.NUMBER: numbers,
    QuestionKind.TIME: times,
    QuestionKind.NAME: names,
    QuestionKind.REASON: reasons,
}


def candidates(kind: QuestionKind, text: str, question: str = "") -> list[Fact]:
    """Places in `text` that could answer a question of that kind; what the question itself holds is no answer to it."""
    if kind is QuestionKind.OTHER:
        return []
    find = _FINDERS[kind]
    known = {fact.key for fact in find(question)} | ({fold(word) for word in question.split()} if question else set())
    return [fact for fact in find(text) if fact.key not in known]
