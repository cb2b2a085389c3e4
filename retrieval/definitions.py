"""Questions for a meaning ("What is X?", "What does X stand for?"), and sentences that tell one.

Short tables for common languages, as in `question_kind`: what they do not know is no question for a meaning.
"""

import re

from retrieval.words import fold, terms

_ARTICLE = r"(?:(?:an?|the|eine?|der|die|das|une?|les?|la|el|los|las|il|lo|gli|un[oa]?|os?|as?)\s+)?"
# After folding: no capitals, no accents. The subject is what stands between.
_QUESTIONS = tuple(
    re.compile(rf"{head}\s*{_ARTICLE}(?P<subject>[^?？]+?)\s*(?:{tail}){'?' if head else ''}\s*[?？.!]*")
    for head, tail in (
        (
            r"(?:and |so |but )?what(?:'s|’s| is| are| was| were| does| do| did)\s",
            r"mean|stand for|refer to|measure|denote",
        ),
        (r"(?:(?:please )?(?:define|explain)|(?:the )?(?:definition|meaning) of)\s", r"to me|briefly"),
        (r"(?:was (?:ist|sind|bedeutet|bezeichnet|heisst|meint|misst)|wofur steht)\s", ""),
        (r"(?:qu['’ ]est[- ]ce que?(?: c['’ ]est que?| que?)?|que (?:signifie|veut dire|designe|mesure))\s", ""),
        (r"(?:que (?:es|son|significa|mide)|o que (?:e|sao|significa))\s", ""),
        (r"(?:che )?(?:cos['’ ]e|cosa (?:e|sono|significa|vuol dire|misura))\s", ""),
        (r"(?:wat (?:is|zijn|betekent)|что (?:такое|значит|означает))\s", ""),
        (r"(?:什么是|何为)", ""),
        ("", r"是什么(?:意思)?|是指什么|とは(?:何(?:ですか)?)?|이?란|은 무엇인가요"),
    )
)
# What follows the subject in a sentence that tells its meaning, a bracket with its long form aside.
_TELLS = re.compile(
    r"\s*(?:[(（][^)）]*[)）])?\s*(?:,[^,]*,)?\s*"
    r"(?:\b(?:is|are|was|were|means?|measures?|refers? to|stands? for|denotes?|describes?|consists? of|"
    r"ist|sind|bedeutet|bezeichnet|heisst|steht fur|est|sont|signifie|designe|es|son|significa|sono|e|betekent)\b|"
    r"[:=—–](?=\s)|是|指|とは|는|은|란)"
)
_MOST_TERMS = 4


def subject_of(question: str) -> str:
    """What a question asks the meaning of, folded; "" where it asks something else."""
    folded = fold(question).strip(" ¿¡\n\t")
    for pattern in _QUESTIONS:
        match = pattern.fullmatch(folded)
        if match and 0 < len(terms(match["subject"])) <= _MOST_TERMS:
            return match["subject"].strip(" \"'“”«»`*")
    return ""


def tells_meaning(sentence: str, subject: str) -> bool:
    """Whether `sentence` begins with the subject and goes on to say what it is."""
    wanted = frozenset(terms(subject))
    if not wanted:
        return False
    opening = re.match(_ARTICLE, text := fold(sentence).lstrip("-*+•# \"'“«`"))
    text = text[opening.end() if opening else 0 :].replace("*", "").replace("`", "")
    for match in _TELLS.finditer(text):
        head = frozenset(terms(text[: match.start()]))
        if head:
            return head == wanted
    return False
