"""Measures replies: what of a case was found and answered, what is wrong in words, and figures over all cases."""

import ntpath
import re
import statistics
import unicodedata
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

from app.evaluation.records import Case, Figure, FoundPassage, Reply, Result
from retrieval.metrics import contains_gold, exact_match, mean_interval, ndcg, proportion, token_f1

# From this F1 on, an answer that does not hold the accepted one word for word is not listed as wrong.
GOOD_F1 = 0.5


@dataclass(frozen=True)
class Measure:
    """One measure: its name in files, its words for people, and whether its values are yes and no (1 and 0)."""

    name: str
    label: str
    group: Literal["Finding", "Answering"]
    yes_or_no: bool = True


MEASURES = (
    Measure("source_at_1", "source at rank 1", "Finding"),
    Measure("source_at_3", "source in the first 3", "Finding"),
    Measure("source_found", "source among the passages", "Finding"),
    Measure("source_ndcg_at_10", "nDCG@10 of the source", "Finding", yes_or_no=False),
    Measure("answer_in_passages", "expected text in the passages", "Finding"),
    Measure("contains", "expected text in the answer", "Answering"),
    Measure("exact_match", "exact match", "Answering"),
    Measure("f1", "token F1", "Answering", yes_or_no=False),
    Measure("supported", "sentences that a passage supports", "Answering", yes_or_no=False),
    Measure("answered", "answerable, and answered", "Answering"),
    Measure("refused", "not answerable, and refused", "Answering"),
)

# How models say that they do not know, for a server that does not tell whether it refused.
_REFUSAL = re.compile(
    r"\b(?:documents?|passages?|sources?|contexts?|texts?)\b[^.!?]{0,40}\b(?:do|does|did)(?: not|n['’]t)\b"
    r"|\bi (?:do not|don['’]t) (?:know|have)\b"
    r"|\bi(?: am|['’]m) (?:not able|unable|not sure)\b"
    r"|\bi (?:cannot|can['’]?t|could not|couldn['’]t) (?:answer|find|determine|tell|provide)\b"
    r"|\b(?:there is )?no (?:information|answer|mention)\b"
    r"|\bnot (?:mentioned|stated|specified|provided|given)\b",
    re.IGNORECASE,
)

_REFERENCE = re.compile(r"\s*\[(\d+|\?)\]")


def score(case: Case, reply: Reply) -> Result:
    """The case's measures, and what is wrong with the reply. One without an answer has no measures."""
    if reply.error is not None:
        return Result(case=case, reply=reply, scores={}, failures=(f"no answer: {reply.error}",))
    scores = {**_finding(case, reply.passages), **_answering(case, reply)}
    return Result(case=case, reply=reply, scores=scores, failures=tuple(_failures(case, scores)))


def figures(results: Sequence[Result]) -> dict[str, Figure]:
    """Every measure that applies to some case, over the cases that it applies to."""
    found = {}
    for measure in MEASURES:
        values = [result.scores[measure.name] for result in results if measure.name in result.scores]
        if values:
            interval = proportion(int(sum(values)), len(values)) if measure.yes_or_no else mean_interval(values)
            found[measure.name] = Figure(value=interval.value, low=interval.low, high=interval.high, cases=len(values))
    return found


def median_seconds(results: Sequence[Result]) -> float | None:
    """Median time of an answer; None without one."""
    times = [result.reply.seconds for result in results if result.reply.error is None]
    return statistics.median(times) if times else None


def median_words(results: Sequence[Result]) -> float | None:
    """Median length of an answer in words, by spaces; None without one."""
    lengths = [len(result.reply.answer.split()) for result in results if result.reply.error is None]
    return statistics.median(lengths) if lengths else None


def source_rank(case: Case, passages: Sequence[FoundPassage]) -> int | None:
    """Rank of the first passage from a source of the case, from 1; None if there is none."""
    ranks = (rank for rank, passage in enumerate(passages, start=1) if _named(case, passage) is not None)
    return next(ranks, None)


def is_refusal(answer: str) -> bool:
    """Whether an answer says, in English, that it cannot be given. No answer at all is one too."""
    return not answer.strip() or _REFUSAL.search(answer) is not None


def _finding(case: Case, passages: Sequence[FoundPassage]) -> dict[str, float]:
    if not case.answerable:
        return {}
    scores: dict[str, float] = {}
    if case.sources:
        rank = source_rank(case, passages)
        for depth in (1, 3):
            scores[f"source_at_{depth}"] = float(rank is not None and rank <= depth)
        scores["source_found"] = float(rank is not None)
        ranked = [_named(case, passage) or f"\0{passage.document_id}" for passage in passages]
        scores["source_ndcg_at_10"] = ndcg(ranked, dict.fromkeys(case.sources, 1.0), 10)
    if case.facts:
        scores["answer_in_passages"] = float(any(contains_gold(passage.text, case.facts) for passage in passages))
    return scores


def _answering(case: Case, reply: Reply) -> dict[str, float]:
    answer = _without_marks(reply)
    refused = is_refusal(answer) if reply.refused is None else reply.refused
    scores = {} if reply.supported is None else {"supported": reply.supported}
    if not case.answerable:
        return {**scores, "refused": float(refused)}
    scores["answered"] = float(not refused)
    if case.facts:
        scores["contains"] = float(contains_gold(answer, case.facts))
    if case.answers:
        scores["exact_match"] = float(exact_match(answer, case.answers))
        scores["f1"] = token_f1(answer, case.answers)
    return scores


def _failures(case: Case, scores: dict[str, float]) -> list[str]:
    found = []
    if not scores.get("source_found", 1.0):
        found.append("the source is not among the passages")
    if not scores.get("contains", 1.0) and (case.expected or scores["f1"] < GOOD_F1):
        held = "the passages hold it" if scores["answer_in_passages"] else "nor do the passages hold it"
        found.append(f"the answer does not hold the expected text; {held}")
    if not scores.get("answered", 1.0):
        found.append("refused, though the documents should answer it")
    if not scores.get("refused", 1.0):
        found.append("answered, though the documents should not answer it")
    return found


def _named(case: Case, passage: FoundPassage) -> str | None:
    """By which of the case's sources the passage's document is named, if any."""
    names = document_names(passage.title, passage.source)
    return next((name for name in case.sources if folded_name(name) in names), None)


def _without_marks(reply: Reply) -> str:
    """The answer without its references [n] to passages and marks [?] of unsupported sentences, which no gold has."""
    numbers = {"?", *(str(passage.n) for passage in reply.passages)}
    return _REFERENCE.sub(lambda mark: "" if mark[1] in numbers else mark[0], reply.answer)


def document_names(title: str, source: str) -> frozenset[str]:
    """What a document may be called, folded: title, path, each end of the path, and file name without suffix."""
    path = folded_name(source)
    parts = path.split("/")
    ends = ("/".join(parts[start:]) for start in range(1, len(parts)))
    return frozenset((folded_name(title), path, *ends, ntpath.splitext(parts[-1])[0])) - {""}


def folded_name(name: str) -> str:
    """A document's name as it is compared: case, kind of slash and encoding of accents make no difference."""
    folded = unicodedata.normalize("NFC", unicodedata.normalize("NFC", name).casefold())
    return folded.strip().replace("\\", "/").removeprefix("./")
