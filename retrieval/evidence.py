"""Which sentences of the passages answer a question, whether any does, and what of them to quote. No model is asked.

A sentence's score is the sum of

    coverage   share of the question's words that it holds, each word weighing its inverse document frequency
    cosine     of the embeddings of question and sentence, that with its title and headings before it
    0.5 x      coverage of the words it lacks by the sentence before, title and headings (what "he" and "it" stand for)
    0.2        where it has what is asked for: a number, a time, a name that is not in the question, a meaning
    0.2 x      the score of its passage
    0.2        where it speaks of the very day of the week that the question does; -0.3 where of other days only
    -0.4       where it is a title rather than a sentence
    -4         where it is about something else (`retrieval/near_misses.py`), or no sentence and only words of the
               question ("Cost", "Best wishes, Ines"), which does not count as an answer either

Coverage and cosine are both shares between 0 and 1, so they need no scaling to one another, and neither depends on how
long the question is or how rare its words are. The other weights are round and small: they decide between near ties.
"""

import math
import re
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import zip_longest

import numpy as np

from retrieval.definitions import subject_of, tells_meaning
from retrieval.embeddings import Vectors
from retrieval.facts import numbers
from retrieval.item_lists import introductions, with_list
from retrieval.language import FUNCTION_WORDS, UNKNOWN, function_words, language_among, language_of
from retrieval.near_misses import NearMisses
from retrieval.overview import leads, overview_topic
from retrieval.qualifiers import limits, refers_back, speaks_of_other_days, speaks_of_the_day
from retrieval.question_kind import (
    QuestionKind,
    asks_for_list,
    candidates,
    question_kind,
    stands_alone,
    topic_terms,
    wording_shares,
)
from retrieval.records import Passage
from retrieval.request_frames import without_frame
from retrieval.sentence_pieces import QUESTION_MARKS
from retrieval.sentences import without_odd_marks
from retrieval.statements import statements
from retrieval.titles import SENTENCE_ENDS, is_title
from retrieval.trimming import trimmed
from retrieval.words import terms

TermWeights = Callable[[Collection[str]], Mapping[str, float]]
"""Terms -> inverse document frequencies in the whole store; a term that no document holds has the highest there is."""
Embed = Callable[[Sequence[str]], Vectors]
"""Texts -> unit vectors [n, dimension]."""

CONTEXT_WEIGHT = 0.5
KIND_WEIGHT = 0.2
PASSAGE_WEIGHT = 0.2
SAME_DAY_WEIGHT = 0.2
OTHER_DAYS_WEIGHT = 0.3
TITLE_WEIGHT = 0.4
# Of a question's function words, at most, beside those that say what it is about.
FUNCTION_WORD_WEIGHT = 0.15
# More than there is to be had: what is about something else comes last.
NEAR_MISS = 4.0

# Least strength that counts as an answer. `python -m benchmarks.answers` prints what is kept and refused on each set,
# and what would be at the threshold that the other sets teach.
ANSWERABLE = 0.85

# Between languages no word is shared, and the same meaning has a lower cosine: from this one on it counts as an answer.
ANSWERABLE_COSINE = 0.35

# What is left of it where the question names what no passage does: they are about something like it.
UNKNOWN_NAME = 0.75

# Embedding is what costs time here: only so many sentences are, those that share the most words with the question.
MAX_EMBEDDED = 40
# Sentences about nothing in particular, from which a question's cosine to unrelated text is taken.
UNRELATED = (
    "The cat slept on the warm roof all afternoon.",
    "Add two eggs and stir until the dough is smooth.",
    "Their train was late because of the snow.",
    "She plays the violin in a small orchestra.",
    "The river was wide and the water very cold.",
    "He painted the old fence green last summer.",
)

# Sentences of an answer, by the model or quoted.
MOST_QUOTES = 2
# A second sentence is quoted where it is nearly as good as the first: a difference like this is within the noise.
NEAR_TIE = 0.1

# A reply so short ("No.") is quoted with the question that it answers.
_MOST_REPLY_WORDS = 8
_CLOSING = " *_`'\"”’»)]"
# A letter and three figures at least, as in "E12345" or "INV-2024-7": what has such a name is meant, and nothing else.
_IDENTIFIER = re.compile(
    r"(?<![\w-])(?=[\w-]*[^\W\d_])(?=(?:[\w-]*\d){3})(?!\d+(?:s|st|nd|rd|th)\b)\w+(?:[-_/]\w+)*(?![\w-])"
)

_CODE = re.compile(r"\w\(\S*\)|^(?:import|from|def|class|return)\s+\w+(?:\.\w+)*(?:\s+(?:as|import)\b|$)|^\w+ = ")
_SMALL_WORDS = frozenset(FUNCTION_WORDS)
_JOINED_NAME = re.compile(r"\b[A-Z]*[a-z]{2,}(?:[A-Z]+[a-z]{2,})+\b")
_NAME_PART = re.compile(r"[A-Z]*[a-z]+")
_MEASURED = re.compile(r"\bhow (?:much|many|long|often|old|far|big|large|tall|high|deep|wide|heavy|fast|soon)\b", re.I)
_NUMBER_BEFORE = re.compile(r"\d[\d.]*[.)]?\s+")


@dataclass(frozen=True)
class Evidence:
    """A sentence of passage number `passage` (from 0), its place among that passage's sentences, and its score."""

    passage: int
    index: int
    text: str
    score: float


@dataclass(frozen=True)
class Ranking:
    """The sentences for a question, best first.

    `strength` says whether they hold the answer: the highest sum of coverage (in context) and cosine, from 0 to 2, with
    the question as it was asked where that stands alone, else with any form of it. `most_quotes`: so many sentences
    may be quoted as the answer. `is_unclear`: an overview is asked for, and not said of which document.
    """

    question: str
    kind: QuestionKind
    ranked: tuple[Evidence, ...]
    strength: float
    most_quotes: int = MOST_QUOTES
    is_unclear: bool = False

    @property
    def is_answerable(self) -> bool:
        """Whether the passages are about what is asked."""
        return self.strength >= ANSWERABLE


@dataclass(frozen=True)
class Quote:
    """What to quote of passage number `passage`: a piece of its text without markup, "..." for what was left out."""

    passage: int
    text: str
    source: str  # the sentence it is taken from


def rank_sentences(
    questions: Sequence[str], passages: Sequence[Passage], weights: TermWeights, embed: Embed
) -> Ranking:
    """Ranks the sentences of `passages` for a question.

    `questions` holds the question as it was asked, first, and other forms of it (with what went before); scores are
    averaged over the forms by their `wording_shares`. Raises ValueError where it is empty.
    """
    questions = [without_frame(question) for question in questions]
    counted = wording_shares(questions)
    asked = questions[0]
    kind = question_kind(asked)
    if (topic := overview_topic(asked)) is not None:
        if overview := _overview(topic, passages, goes_on=len(questions) > 1):
            return Ranking(asked, kind, overview, ANSWERABLE, len(overview))
        if not topic and passages:
            return Ranking(asked, kind, (), 0.0, is_unclear=True)
    found = [candidate for number, passage in enumerate(passages) for candidate in _candidates_in(number, passage)]
    if not found:
        return Ranking(asked, kind, (), 0.0)
    forms, shares = [_Form.of(wording, weights) for wording in counted], list(counted.values())
    texts = [candidate.told for candidate in found]
    words = [_words(text) for text in texts]
    coverage = np.array([[form.coverage(own) for own in words] for form in forms])
    in_context = np.array(
        [[form.coverage(own | near.context) for own, near in zip(words, found, strict=True)] for form in forms]
    )
    placed = [f"{near.place}: {near.told}" if near.place else near.told for near in found]
    cosine = _cosines([form.text for form in forms], placed, np.average(in_context, axis=0, weights=shares), embed)
    defined = subject_of(asked)
    fits = np.array(
        [bool(candidates(kind, text, asked)) or tells_meaning(text, defined) for text in texts], dtype=np.float64
    )
    passage_scores = np.array([passages[candidate.passage].score for candidate in found])
    scores = np.average(coverage + cosine + CONTEXT_WEIGHT * (in_context - coverage), axis=0, weights=shares)
    days = np.array([_days_fit(text, asked) for text in texts], dtype=np.float64)
    titles = np.array([candidate.is_title for candidate in found], dtype=np.float64)
    scores += KIND_WEIGHT * fits + PASSAGE_WEIGHT * passage_scores + days - TITLE_WEIGHT * titles
    topic, is_translated = topic_terms(asked), _in_another_language(asked, passages)
    subject = NearMisses.of(asked, frozenset() if is_translated else topic, passages)
    misses = np.array(
        [subject.is_missed(near.text, passages[near.passage].place, near.passage, is_row=near.is_row) for near in found]
    )
    misses |= np.array([_repeats(near, own, forms[0]) for near, own in zip(found, words, strict=True)])
    if _asks_for_more(questions, topic) and kind is not QuestionKind.OTHER:
        misses |= fits == 0  # what was said before is no reason, and no time
    scores -= NEAR_MISS * misses
    ranked = tuple(
        Evidence(found[row].passage, found[row].index, found[row].text, float(scores[row]))
        for row in np.argsort(-scores, kind="stable")
    )
    # Of a question that stands alone nothing but itself says whether it is answered: passages found for the question
    # before it would answer that one again, whatever is asked. So too where what a follow-up adds ("and in Berlin?")
    # is in no passage.
    adds_unknown = bool(topic) and all(
        topic.isdisjoint(own | near.context) for own, near in zip(words, found, strict=True)
    )
    counted_forms = slice(1 if adds_unknown or stands_alone(asked) else None)
    strength = float(((in_context + cosine) * ~misses)[counted_forms].max())
    if is_translated:
        # Words cannot cover it, and their absence says nothing. Code is in no language, and near to any question.
        told = np.array([_CODE.search(text) is None for text in texts]) & ~misses
        strength = max(strength, float((cosine[counted_forms] * told).max()) / ANSWERABLE_COSINE * ANSWERABLE)
    elif subject.unknown:
        strength *= UNKNOWN_NAME
    if ranked and (named := _identifiers(asked)) and named <= _identifiers(ranked[0].text):
        strength = max(strength, ANSWERABLE)
    return Ranking(asked, kind, ranked, strength)


def _overview(topic: frozenset[str], passages: Sequence[Passage], *, goes_on: bool) -> tuple[Evidence, ...]:
    """The sentences that give an overview of a topic, all as good as one another."""
    found = leads(topic, passages, goes_on=goes_on)
    return tuple(Evidence(lead.passage, lead.statement.index, lead.statement.text, ANSWERABLE) for lead in found)


def quotes(ranking: Ranking, passages: Sequence[Passage]) -> list[Quote]:
    """What to quote as the answer: the best sentence, and the next where it is nearly as good, trimmed where long.

    A sentence that limits the best one ("However, …") goes before the next best, and one that limits what stands before
    it ("This does not apply to …") brings that along. One about other days of the week is no second best, nor one
    without the identifier that is asked for.
    """
    found: list[Quote] = []
    most = ranking.most_quotes
    named = _identifiers(ranking.question)

    def add(passage: int, text: str, source: str) -> None:
        if len(found) < most and all(text not in earlier.text and earlier.text not in text for earlier in found):
            found.append(Quote(passage, text, source))

    for evidence in ranking.ranked:
        if len(found) == most or evidence.score < ranking.ranked[0].score - NEAR_TIE:
            break
        if found and (speaks_of_other_days(evidence.text, ranking.question) or named - _identifiers(evidence.text)):
            continue
        before, after = _limited_and_limiting(evidence, passages[evidence.passage])
        if before and most > 1 and len(found) < most - 1:
            add(evidence.passage, without_odd_marks(before), before)
        whole = with_list(
            evidence.text,
            evidence.index,
            passages[evidence.passage].text,
            asks_for_all=asks_for_list(ranking.question),
        )
        add(evidence.passage, without_odd_marks(trimmed(whole, ranking.question, ranking.kind)), evidence.text)
        if after:
            add(evidence.passage, without_odd_marks(after), after)
    return found


def beside(evidence: Evidence, passage: Passage) -> list[str]:
    """The sentence before it in its passage and the two after it, as far as they are there."""
    shown = {statement.index: statement.text for statement in statements(passage.text)}
    return [shown[evidence.index + step] for step in (-1, 1, 2) if evidence.index + step in shown]


def retained(claim: str, source: str, question: str, weights: TermWeights) -> float:
    """The share of what `source` tells beyond the question that `claim` keeps, by weight of its words; 1 if nothing."""
    told = weights(frozenset(terms(source)) - frozenset(terms(question)))
    kept = frozenset(terms(claim))
    total = math.fsum(told.values())
    return math.fsum(weight for term, weight in told.items() if term in kept) / total if total > 0 else 1.0


@dataclass(frozen=True)
class _Candidate:
    """A sentence, its title and headings, and the terms of what stands before it: those and the sentence before.

    `lead` introduces the list that it is an item of; `is_title`: it stands alone, and is no sentence.
    """

    passage: int
    index: int
    text: str
    place: str
    context: frozenset[str]
    lead: str = ""
    is_row: bool = False
    is_title: bool = False

    @property
    def told(self) -> str:
        """What it says."""
        return f"{self.lead} {self.text}" if self.lead else self.text


@dataclass(frozen=True)
class _Form:
    """One form of the question with its words and their weights."""

    text: str
    words: frozenset[str]
    weights: Mapping[str, float]
    total: float

    @classmethod
    def of(cls, text: str, weigh: TermWeights) -> "_Form":
        words = _words(text)
        weights = dict(weigh(words))
        # `terms` leaves the commonest out. A store that is small, or of another language, may hold none of the others,
        # which would make them telling.
        small = frozenset(terms(" ".join(function_words(language_among(text, _SMALL_WORDS)))))
        if content := _words(_MEASURED.sub("how", text)) - small:
            most = FUNCTION_WORD_WEIGHT * math.fsum(weights.get(term, 0.0) for term in content) / len(content)
            weights |= {term: min(weights[term], most) for term in words - content}
        return cls(text, words, weights, math.fsum(weights.values()))

    def coverage(self, present: Collection[str]) -> float:
        """The share of the question's weight that `present` holds; 0 for a question without a single term."""
        held = math.fsum(weight for term, weight in self.weights.items() if term in present)
        return held / self.total if self.total > 0 else 0.0


def _candidates_in(number: int, passage: Passage) -> Iterator[_Candidate]:
    place = passage.place
    of_place = _words(place)
    before: frozenset[str] = frozenset()
    replies = False
    stated = statements(passage.text)
    introduced = introductions(passage.text)
    for statement, following in zip_longest(stated, stated[1:]):
        own = _words(statement.text)
        # A question is answered by what follows it, be that "No.": it is no answer itself.
        asks = _asks(statement.text) and following is not None and not _asks(following.text)
        titled = is_title(statement, passage.text)
        if (own or replies) and not asks:
            yield _Candidate(
                number,
                statement.index,
                statement.text,
                place,
                of_place | before,
                introduced.get(statement.index, ""),
                statement.is_row,
                titled,
            )
        if titled:
            place = " > ".join(part for part in (passage.place, statement.text) if part)
            of_place = _words(place)
        before, replies = own, asks


def _repeats(candidate: _Candidate, words: frozenset[str], asked: "_Form") -> bool:
    """Whether it is no sentence, and holds words of the question only."""
    if candidate.text.endswith(SENTENCE_ENDS):
        return False
    # "2 Cancellation" is a heading, "2 carrots" an answer.
    number = _NUMBER_BEFORE.match(candidate.text) if candidate.is_title else None
    told = _words(candidate.text[number.end() :]) if number else words
    return bool(told) and told <= asked.words


def _asks_for_more(questions: Sequence[str], topic: frozenset[str]) -> bool:
    """Whether a question only asks for something more of what went before: "Why?", "Since when?"."""
    return len(questions) > 1 and not topic and bool(terms(" ".join(questions[1:])))


def _asks(text: str) -> bool:
    return text.rstrip(_CLOSING).endswith(QUESTION_MARKS)


def _words(text: str) -> frozenset[str]:
    """The terms of a text, numbers in words as figures: "eight years" and "8 years" are the same.

    Names written as one word count as their parts too: "PagedAttention" is also "paged attention".
    """
    found = set(terms(text))
    for joined in _JOINED_NAME.findall(text):
        found.update(terms(" ".join(_NAME_PART.findall(joined))))
    for fact in numbers(text):
        written = text[fact.start : fact.end]
        if not written[0].isdigit():
            found.difference_update(terms(written))
            found.add(fact.key)
    return frozenset(found)


def _identifiers(text: str) -> frozenset[str]:
    return frozenset(match.group().casefold() for match in _IDENTIFIER.finditer(text))


def _in_another_language(question: str, passages: Sequence[Passage]) -> bool:
    """Whether the question is in another language than the passages, as far as both can be told."""
    asked = language_of(question)
    asked = language_among(question, _SMALL_WORDS) if asked == UNKNOWN else asked
    told = language_of("\n".join(passage.text for passage in passages))
    return UNKNOWN not in (asked, told) and asked != told


def _cosines(questions: Sequence[str], texts: Sequence[str], promise: Vectors, embed: Embed) -> Vectors:
    """Cosines [questions, texts] from 0 to 1, 0 being that of unrelated text and of texts beyond MAX_EMBEDDED.

    Embedders differ in what they give to unrelated texts: MiniLM about 0, the E5 family 0.7.
    """
    rows = np.sort(np.argsort(-promise, kind="stable")[:MAX_EMBEDDED])
    vectors = embed([*questions, *UNRELATED, *(texts[row] for row in rows)])
    asked, unrelated, told = np.split(vectors, [len(questions), len(questions) + len(UNRELATED)])
    floor = np.clip((asked @ unrelated.T).mean(axis=1, keepdims=True), 0.0, 0.95)
    cosines = np.zeros((len(questions), len(texts)), dtype=np.float32)
    cosines[:, rows] = np.maximum((asked @ told.T - floor) / (1 - floor), 0)
    return cosines


def _limited_and_limiting(evidence: Evidence, passage: Passage) -> tuple[str, str]:
    """The sentence before, where this one cannot be read without it, and the one after, where it limits this one.

    "" for each that is not so.
    """
    shown = {statement.index: statement.text for statement in statements(passage.text)}
    before, after = shown.get(evidence.index - 1, ""), shown.get(evidence.index + 1, "")
    needs_before = refers_back(evidence.text) or (_asks(before) and len(evidence.text.split()) <= _MOST_REPLY_WORDS)
    return before if needs_before else "", after if limits(after) else ""


def _days_fit(text: str, question: str) -> float:
    """What a sentence gains by speaking of the question's day of the week, or loses by speaking of others only."""
    if speaks_of_the_day(text, question):
        return SAME_DAY_WEIGHT
    return -OTHER_DAYS_WEIGHT if speaks_of_other_days(text, question) else 0.0
