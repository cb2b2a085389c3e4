"""Whether a sentence that a model wrote is supported by passages, by which sentence of which, and if not, why not.

The checks, in the order in which their reasons are given:

    numbers    every number of the claim stands in the supporting sentence or the one before
    names      every name of the claim stands there, in the title or in the headings
    order      numbers and names come in the source's order, none of its own left out between them; so that "A beat B"
               is not taken for "B beat A", nor one row's figure for another's
    negation   the claim denies where the source does, and only there
    wording    the claim's words, weighed by inverse document frequency, stand there; one that takes words from the
               sentence before, where "he" and "it" are told, keeps those of the supporting sentence, so that the end of
               one and the beginning of the other make no third
    left out   what the claim leaves out of the sentence changes nothing (`retrieval/shortening.py`): not "the lamp
               lasts …" for "the guarantee of the lamp lasts …"
    meaning    the cosine of the embeddings of claim and supporting sentence

It is one-sided on purpose: a true sentence in other words may fail it; one that says something else should not pass.
"""

import math
import re
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Literal

from retrieval.evidence import Embed, TermWeights
from retrieval.facts import Fact, facts, name_keys, names, negations, number_keys
from retrieval.omissions import lost
from retrieval.records import Passage
from retrieval.shortening import row_says, says_the_same
from retrieval.statements import statements
from retrieval.words import terms

Reason = Literal["numbers", "names", "order", "negation", "wording", "left out", "meaning", "nothing to check"]

CONTRADICTIONS: tuple[Reason, ...] = ("order", "negation")


@dataclass(frozen=True)
class Bar:
    """How much of a claim's wording must stand in its source, and how near their meanings must be (0 to 1).

    `verbatim`: it must be the source's but for what that sets off, and limits nothing.
    """

    wording: float
    meaning: float
    verbatim: bool = False


# For a model that is not to be trusted its words must be the source's; a good one may word things its own way.
STRICT = Bar(wording=0.85, meaning=0.5, verbatim=True)
LENIENT = Bar(wording=0.55, meaning=0.5)

# What a claim that takes words from two sentences must keep of the second.
LEAST_KEPT = 0.85
_PAUSES = frozenset(",;:.!?—–")
_BEGINS_WITH_PRONOUN = re.compile(
    r"(?:he|she|it|they|er|sie|es|il|elle|ils|elles|hij|zij|ze|het|lui|lei|ele|ela|он|она|оно|они)\b", re.IGNORECASE
)


@dataclass(frozen=True)
class Support:
    """What was found for a claim.

    `passage` (from 0) and `quote` are the sentence that comes nearest to it, None where there is none at all; `reason`
    says which check failed there, and is None where the claim is supported.
    """

    supported: bool
    passage: int | None
    quote: str | None
    reason: Reason | None
    detail: str = ""


@dataclass(frozen=True)
class _Source:
    passage: int
    text: str
    around: str  # sentence before and this one
    place: str  # title and headings
    own: frozenset[str]  # its own terms
    named: frozenset[str]  # those of `place`
    names: frozenset[str]  # those of names in `around`
    words: frozenset[str]  # those of `around` and `place`
    meant: frozenset[str]  # those that a pronoun at its beginning may stand for
    is_row: bool


class GroundingChecker:
    """Checks claims against the same passages. Embeds the sentences that could support a claim, at most `tries`."""

    def __init__(
        self, passages: Sequence[Passage], weights: TermWeights, embed: Embed, bar: Bar = STRICT, tries: int = 3
    ) -> None:
        self._sources = [source for number, passage in enumerate(passages) for source in _sources(number, passage)]
        self._weights = weights
        self._embed = embed
        self._bar = bar
        self._tries = tries

    def check(self, claim: str) -> Support:
        """Whether `claim`, one sentence, is supported."""
        wanted = self._weights(_words(claim))
        total = math.fsum(wanted.values())
        if total <= 0 or not self._sources:
            return Support(False, None, None, "nothing to check")

        def share(words: frozenset[str]) -> float:
            return math.fsum(weight for term, weight in wanted.items() if term in words) / total

        nearest = sorted(self._sources, key=lambda source: (-share(source.own), -share(source.words)))[: self._tries]
        failures: list[Support] = []
        for source in nearest:
            reason, detail = self._failure(claim, source, share(source.words))
            if reason is None:
                return Support(True, source.passage, source.text, None)
            failures.append(Support(False, source.passage, source.text, reason, detail))
            if reason in CONTRADICTIONS and share(source.own) >= self._bar.wording:
                return failures[-1]  # the source says otherwise; that another sentence does not is no excuse
        return failures[0]

    def _failure(self, claim: str, source: _Source, wording: float) -> tuple[Reason | None, str]:
        if not self._says_the_same(claim, source) and (failure := self._departure(claim, source, wording)) is not None:
            return failure
        vectors = self._embed([claim, source.text])
        meaning = float(vectors[0] @ vectors[1])
        return ("meaning", f"{meaning:.2f}") if meaning < self._bar.meaning else (None, "")

    def _says_the_same(self, claim: str, source: _Source) -> bool:
        return not source.is_row and says_the_same(claim, source.text, source.meant)

    def _departure(self, claim: str, source: _Source, wording: float) -> tuple[Reason, str] | None:
        """The first check that fails of a claim that is not the source's sentence, or short for it."""
        claimed = facts(claim)
        known_numbers = number_keys(source.around)
        for fact in claimed:
            if fact.kind == "number" and fact.key not in known_numbers:
                return "numbers", claim[fact.start : fact.end]
        known_names = name_keys(f"{source.around} {source.place}")
        for fact in claimed:
            if fact.kind == "name" and not _is_known(fact, known_names):
                return "names", claim[fact.start : fact.end]
        if out_of_place := _out_of_order(facts(claim, openers=True), facts(source.around, openers=True)):
            return "order", claim[out_of_place.start : out_of_place.end]
        if _denies_differently(claim, source.text):
            return "negation", ""
        if wording < self._bar.wording:
            return "wording", f"{wording:.2f}"
        if (kept := _kept(frozenset(terms(claim)), source)) < LEAST_KEPT:
            return "wording", f"{kept:.2f}"
        if source.is_row:
            return None if row_says(claim, source.text) else ("left out", "")
        missing = lost(claim, source.text)
        if missing is None and not self._bar.verbatim:
            return None
        return "left out", missing or ""


def _sources(number: int, passage: Passage) -> list[_Source]:
    place = f"{passage.title} {passage.heading or ''}".strip()
    place_terms = frozenset(terms(place))
    found, before = [], ""
    for statement in statements(passage.text):
        text = statement.text
        around = f"{before} {text}".strip()
        words = frozenset(terms(f"{around} {place}"))
        spans = [around[fact.start : fact.end] for fact in facts(around, openers=True) if fact.kind == "name"]
        named_around = frozenset(terms(" ".join(spans)))
        found.append(
            _Source(
                passage=number,
                text=text,
                around=around,
                place=place,
                own=frozenset(terms(text)),
                named=place_terms,
                names=named_around,
                words=words,
                meant=_meant(before) if before else place_terms,
                is_row=statement.is_row,
            )
        )
        before = text
    return found


def _meant(before: str) -> frozenset[str]:
    """The terms of the only name in a sentence: "he" in the next may be that.

    Of two ("Ann hired Bob.") nothing here can tell which it is.
    """
    found = names(before, openers=True)
    if any(before[one.end : other.start].strip() for one, other in pairwise(found)):
        return frozenset()
    return frozenset(terms(" ".join(before[name.start : name.end] for name in found)))


def _words(claim: str) -> frozenset[str]:
    """The terms of a claim but for its numbers, which have a check of their own, if it has others."""
    counted = " ".join(claim[fact.start : fact.end] for fact in facts(claim) if fact.kind == "number")
    said = frozenset(terms(claim))
    return said - frozenset(terms(counted)) or said


def _kept(claimed: frozenset[str], source: _Source) -> float:
    """The share of the source's own terms that a claim keeps; 1 where it may leave out what it likes.

    That is so where it takes nothing from the sentence before, or only the name that the source's "he" or "it" is.
    """
    taken = (claimed & source.words) - source.own - source.named
    if not taken or (taken <= source.names and _BEGINS_WITH_PRONOUN.match(source.text)):
        return 1.0
    return len(claimed & source.own) / len(source.own)


def _is_known(name: Fact, known: set[str]) -> bool:
    """Whether a name stands among `known`, whole or in all the parts that a hyphen joins."""
    return name.key in known or all(part in known for part in name.key.split("-"))


def _out_of_order(claimed: Sequence[Fact], stated: Sequence[Fact]) -> Fact | None:
    """The first fact of the claim that stands before its predecessor in the source, or beyond another of its kind.

    Facts that the source sentence does not hold (its neighbours do) have no order, nor do those that it holds twice.
    """
    places: dict[str, list[int]] = {}
    for place, fact in enumerate(stated):
        places.setdefault(fact.key, []).append(place)
    claimed_keys = {fact.key for fact in claimed}
    previous: int | None = None
    for fact in claimed:
        standing = places.get(fact.key, [])
        if len(standing) != 1:
            previous = None
            continue
        place = standing[0]
        if previous is not None:
            if place < previous:
                return fact
            skipped = [other for other in stated[previous + 1 : place] if other.key not in claimed_keys]
            if any(other.kind == fact.kind for other in skipped):
                return fact
        previous = place
    return None


def _denies_differently(claim: str, source: str) -> bool:
    """Whether claim and source disagree on a denial, within the part of the source that the claim speaks of."""
    spoken, denials = frozenset(terms(claim)), negations(source)
    # From the first to the last word that the claim shares; what stands outside is another matter.
    words = _word_ranges(source)
    shared = [place for place, (start, end) in enumerate(words) if not spoken.isdisjoint(terms(source[start:end]))]
    if not shared:
        return bool(negations(claim))
    first = shared[0]
    while first > 0 and _leads_on(source[slice(*words[first - 1])]):
        first -= 1  # "No dogs are allowed"
    begin, end = words[first][0], words[shared[-1]][0]
    return len([place for place in denials if begin <= place <= end]) != len(negations(claim))


def _leads_on(word: str) -> bool:
    """Whether a word says nothing but that what follows it is denied, or less."""
    return word[-1:] not in _PAUSES and (not terms(word) or bool(negations(word)))


def _word_ranges(text: str) -> list[tuple[int, int]]:
    ranges, start = [], 0
    for word in text.split():
        start = text.index(word, start)
        ranges.append((start, start + len(word)))
        start += len(word)
    return ranges
