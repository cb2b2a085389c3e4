"""What is measured of answers: what they hold, what backs them, and the table's row of one way of answering."""

import re
from collections.abc import Iterable, Sequence
from statistics import median
from typing import Any

import numpy as np

from benchmarks.answer_sets import Answer, CachedEmbedder, Question
from retrieval.evidence import TermWeights
from retrieval.metrics import Interval, contains_gold, exact_match, mean_interval, proportion, token_f1
from retrieval.records import Passage
from retrieval.sentences import split_sentences
from retrieval.words import terms

_MARK = re.compile(r'\s*\[(?:\d+|\?)\]|"')
_NUMBER = re.compile(r"\d+(?:[.,]\d+)*")
_NAME = re.compile(r"(?<=[a-z,] )[A-Z]\w+")


def bare(answer: str) -> str:
    """An answer without citations and quotation marks."""
    return _MARK.sub("", answer)


def is_backed(text: str, sources: str) -> bool:
    """Whether all numbers and names of `text`, and nine in ten of its words, stand in `sources`: a check of its own."""
    words = re.findall(r"\w+", text.casefold())
    known = set(re.findall(r"\w+", sources.casefold()))
    share = sum(word in known for word in words) / max(1, len(words))
    return share >= 0.9 and not strange_facts(text, sources)


def strange_facts(text: str, sources: str) -> list[str]:
    """Numbers, and capitalised words within a sentence, that stand nowhere in `sources`."""
    folded = sources.casefold()
    return [fact for fact in [*_NUMBER.findall(text), *_NAME.findall(text)] if fact.casefold() not in folded]


def quote_best(question: Question, count: int, weights: TermWeights, embed: CachedEmbedder) -> Answer:
    """The best `count` sentences of the passages by BM25 (scaled by the question's own weight) and cosine."""
    texts = [sentence.text for passage in question.passages for sentence in split_sentences(passage.text)]
    asked = weights(frozenset(terms(question.text)))
    length = np.mean([len(terms(text)) for text in texts])

    def bm25(text: str) -> float:
        found = terms(text)
        norm = 1.2 * (0.25 + 0.75 * len(found) / length)
        counts = {term: found.count(term) for term in asked}
        return sum(asked[term] * count * 2.2 / (count + norm) for term, count in counts.items() if count)

    vectors = embed([question.text, *texts])
    total = sum(asked.values()) or 1.0
    scores = np.array([bm25(text) / total for text in texts]) + vectors[1:] @ vectors[0]
    return Answer(" ".join(texts[row] for row in np.argsort(-scores, kind="stable")[:count]))


def figures(questions: Sequence[Question], answers: Sequence[Answer]) -> dict[str, Any]:
    """The table's row for one way."""
    texts = [bare(answer.text) for answer in answers]
    pairs = list(zip(texts, questions, strict=True))
    sources = [
        f"{question.text} " + " ".join(f"{p.title} {p.heading or ''} {p.text}" for p in question.passages)
        for question in questions
    ]
    row: dict[str, Any] = {
        "gold": proportion(sum(contains_gold(text, question.answers) for text, question in pairs), len(pairs)),
        "exact": proportion(sum(exact_match(text, question.answers) for text, question in pairs), len(pairs)),
        "f1": mean_interval([token_f1(text, question.answers) for text, question in pairs]),
        "words": median(len(text.split()) for text in texts),
        "strange": proportion(
            sum(bool(strange_facts(text, known)) for text, known in zip(texts, sources, strict=True)), len(texts)
        ),
        "kept": proportion(sum(not answer.refused for answer in answers), len(answers)),
    }
    sentences = [
        (sentence, next((p for n, p in numbered(question) if n == sentence["n"]), None))
        for question, answer in zip(questions, answers, strict=True)
        for sentence in answer.sentences
    ]
    if sentences:
        cited = [(sentence, passage) for sentence, passage in sentences if sentence["supported"]]
        right = sum(
            passage is not None
            and is_backed(sentence["text"], f"{passage.title} {passage.heading or ''} {passage.text}")
            for sentence, passage in cited
        )
        row["citations"] = proportion(right, len(cited))
        row["by model"] = proportion(sum(sentence["origin"] == "model" for sentence, _ in sentences), len(sentences))
    timed = [
        answer.first_words_s / answer.first_sentence_s
        for answer in answers
        if answer.first_words_s and answer.first_sentence_s
    ]
    if timed:
        row["first words"] = median(timed)
    return row


def numbered(question: Question) -> Iterable[tuple[int, Passage]]:
    """Passages with the numbers they have in a conversation's first turn."""
    return enumerate(question.passages, start=1)


def shown(value: Any) -> str:
    """A figure as the table shows it, an interval with its ends."""
    if isinstance(value, Interval):
        return f"{value.value:.3f} [{value.low:.2f} {value.high:.2f}]"
    return f"{value:.3g}"


def plain_value(value: Any) -> Any:
    """Intervals for JSON."""
    if isinstance(value, Interval):
        return {"value": value.value, "low": value.low, "high": value.high}
    raise TypeError(f"{type(value).__name__} is no value of a report")
