"""Long sentences without the clauses at their ends that have nothing to do with the question."""

import re

from retrieval.omissions import is_attribution, is_condition
from retrieval.question_kind import QuestionKind, candidates
from retrieval.sentence_pieces import pieces_of
from retrieval.words import terms

# Sentences up to this length are quoted whole. Longer ones lose the clauses at their ends that the question does not
# touch, but for one beside those that it does: there the answer may stand. Where it is known what is asked for, half
# this length is enough, and the clauses that the question touches, if they hold such a thing; after a number, those
# with others too.
WHOLE_WORDS = 30
# A table's row has its answer in a cell that the question need not name.
ROW_WORDS = 60
_LEAST_CELLS = 2

_CLAUSE = re.compile(r"(?<=[,;:—])\s+|\s+(?=\()|(?<=\))\s+|\s+[–-]\s+")


def trimmed(sentence: str, question: str, kind: QuestionKind) -> str:
    """A long sentence without the clauses at its ends that have nothing to do with the question; "..." marks them."""
    limit = WHOLE_WORDS if kind is QuestionKind.OTHER else WHOLE_WORDS // 2
    if sentence.count("; ") >= _LEAST_CELLS:
        limit = ROW_WORDS
    if len(sentence.split()) <= limit:
        return sentence
    asked = frozenset(terms(question))
    clauses = _clauses(sentence)
    touched = [
        number for number, (start, end) in enumerate(clauses) if not asked.isdisjoint(terms(sentence[start:end]))
    ]
    if not touched:
        return sentence
    pieces = [pieces_of(sentence[start:end]) for start, end in clauses]
    conditions = {number for number, found in enumerate(pieces) if any(map(is_condition, found))}
    attributions = {number for number, found in enumerate(pieces) if any(map(is_attribution, found))}
    for beside in (1,) if kind is QuestionKind.OTHER else (0, 1):
        first, last = max(0, touched[0] - beside), min(len(clauses) - 1, touched[-1] + beside)
        # "80 for adults, 40 for students": which of them is meant, the question need not say in these words.
        while (
            kind is QuestionKind.NUMBER
            and last + 1 < len(clauses)
            and _has(kind, sentence, clauses[last + 1], question)
        ):
            last += 1
        # "If it rains, …", "…, except on Sundays"; "…, she said" is said of what it stands beside.
        start = clauses[min({first} | conditions | attributions)][0]
        end = clauses[max({last} | conditions | (attributions & {last + 1}))][1]
        piece = sentence[start:end]
        if kind is QuestionKind.OTHER or candidates(kind, piece, question):
            return ("... " if start > 0 else "") + piece.rstrip(" ,;:—–-") + (" ..." if end < len(sentence) else "")
    return sentence


def _has(kind: QuestionKind, sentence: str, clause: tuple[int, int], question: str) -> bool:
    return bool(candidates(kind, sentence[slice(*clause)], question))


def _clauses(sentence: str) -> list[tuple[int, int]]:
    """Ranges of the clauses, by commas and their like."""
    edges = [0]
    ends = []
    for match in _CLAUSE.finditer(sentence):
        ends.append(match.start())
        edges.append(match.end())
    return list(zip(edges, [*ends, len(sentence)], strict=True))
