"""Answering only from the sources: what of a model's words reaches the reader, and what is quoted instead.

Three modes. `strict`, for models that cannot be trusted: the ranking of sentences (`retrieval/evidence.py`) chooses
what is said; a sentence of the model passes only if it says what one of these says, and what the model leaves unsaid is
quoted; where no passage is about the question, the answer is that it is not in the documents, and the model
is not asked. `mark`, for better ones: the answer streams as it is written, and each sentence is followed by the number
of the passage that supports it, or by a mark that none does. `off`: the model's words as they are.

Citations are ours in both: a model's own marks are taken out. Knows no HTTP and no history.
"""

import asyncio
import re
from collections.abc import AsyncGenerator, AsyncIterator, Callable, Iterator, Sequence
from contextlib import aclosing
from dataclasses import dataclass
from typing import Annotated, Any, Literal

from pydantic import BaseModel, Field

from app.fixed_texts import ENGLISH, NO, YES, FixedTexts
from retrieval.evidence import Embed, Quote, Ranking, TermWeights, beside, quotes, rank_sentences, retained
from retrieval.grounding import LENIENT, STRICT, GroundingChecker, Support
from retrieval.highlights import highlights
from retrieval.qualifiers import limits
from retrieval.question_kind import candidates
from retrieval.records import Passage
from retrieval.sentences import split_sentences, without_odd_marks
from retrieval.words import terms
from retrieval.yes_or_no import yes_or_no

GroundingMode = Literal["off", "mark", "strict"]

UNSUPPORTED_MARK = " [?]"

# A sentence of the model must tell this share of what the quotation that it stands for tells beyond the question.
LEAST_RETAINED = 0.75
# A sentence that grows longer than this is no answer, and most likely a circle: nobody should wait for its end.
MOST_WORDS = 60
# The model's own marks, whole, or begun at the end of what has arrived so far. In code they are indexes; code that has
# not ended yet is code already.
_OWN_MARK = re.compile(r"(?P<code>```.*?(?:```|\Z)|`[^`\n]*(?:`|\n|\Z))|\s*\[(?:\?|\d+(?:\s*,\s*\d+)*)\]", re.DOTALL)
_FENCE = "```"
_BEGUN_MARK = re.compile(r"\s*\[[\d\s,]*$|\s+$")
_SENTENCE_ENDS = tuple(".!?…。！？\"')”»")
_WORD = re.compile(r"\S+\s*|\s+")
# What stands between the place of a passage and its text.
_PLACE_ENDS = re.compile(r"(?:, page \d+)?\s*(?:\n|[:–—-]\s)")


Place = Annotated[list[int], Field(min_length=2, max_length=2)]
"""From and to, in characters."""


class SentenceSupport(BaseModel):
    """One sentence of an answer, and what supports it."""

    text: str
    origin: Literal["model", "quote"] = Field(description="The model's words, or a passage's.")
    supported: bool
    n: int | None = Field(default=None, description="Number of the source that supports it, or comes nearest.")
    quote: str | None = Field(default=None, description="That source's own sentence.")
    span: Place | None = Field(
        default=None, description="Where that sentence stands in the source's `text`: from and to, in characters."
    )
    words: list[Place] = Field(
        default=[],
        description="Which words of it the answer has too: from and to, in characters of the source's `text`.",
    )
    reason: str | None = Field(
        default=None, description="Which check failed: numbers, names, order, negation, wording, left out, meaning."
    )


class LeftOut(BaseModel):
    """A passage that was found and not given to the model, for want of room."""

    document_id: str
    title: str
    page: int | None = None
    heading: str | None = None
    num_tokens: int


class Grounding(BaseModel):
    """How an answer stands to its sources.

    `state`: "answered"; "not_found" where the documents do not hold it; "unchecked" where they were not asked (small
    talk, retrieval off).
    """

    mode: GroundingMode
    state: Literal["answered", "not_found", "unchecked"]
    sentences: list[SentenceSupport] = []
    left_out: list[LeftOut] = []


def left_out(passage: Passage, num_tokens: int) -> LeftOut:
    """The entry for a passage that had no room."""
    return LeftOut(
        document_id=passage.document_id,
        title=passage.title,
        page=passage.page,
        heading=passage.heading,
        num_tokens=num_tokens,
    )


@dataclass(frozen=True)
class Answering:
    """How answers are checked. `weights` and `embed` are the knowledge base's; both may block.

    `model_name` is told to who asks what is answering.
    """

    mode: Literal["mark", "strict"]
    weights: TermWeights
    embed: Embed
    model_name: str = ""

    def rank(self, questions: Sequence[str], passages: Sequence[Passage]) -> Ranking:
        """The evidence for a question. Blocks for as long as embedding takes."""
        return rank_sentences(questions, passages, self.weights, self.embed)

    def checker(self, passages: Sequence[Passage]) -> GroundingChecker:
        """A checker of claims against `passages`."""
        return GroundingChecker(passages, self.weights, self.embed, STRICT if self.mode == "strict" else LENIENT)


@dataclass(frozen=True)
class Material:
    """What an answer may draw on: passages, their numbers in the conversation, the ranking of their sentences.

    `texts` are the fixed sentences, in the language of who asks.
    """

    passages: Sequence[Passage]
    numbers: Sequence[int]
    ranking: Ranking
    texts: FixedTexts = ENGLISH


Deltas = Callable[[], AsyncIterator[str]]
"""Starts the model and gives its words as they come."""


async def grounded(
    answering: Answering, material: Material, deltas: Deltas, was_cut: Callable[[], bool] = lambda: False
) -> AsyncGenerator[str | Grounding, None]:
    """The answer in pieces, and at last its Grounding. `was_cut` tells, after `deltas`, whether words are missing."""
    if answering.mode == "strict":
        answer = _strict(answering, material, deltas)
    else:
        answer = _marked(answering, material, deltas, was_cut)
    async with aclosing(answer) as pieces:
        async for piece in pieces:
            yield piece


async def told(mode: GroundingMode, text: str) -> AsyncGenerator[str | Grounding, None]:
    """A fixed text word by word: what is said of the assistant itself, which no small model can be asked."""
    for word in _words(text, after=False):
        yield word
    yield Grounding(mode=mode, state="unchecked")


async def unchecked(
    mode: GroundingMode, deltas: Deltas, texts: FixedTexts = ENGLISH, *, goes_on: bool = False
) -> AsyncGenerator[str | Grounding, None]:
    """The model's own words, where there are no documents to check them against. An answer that goes on may be over."""
    said = goes_on
    async with aclosing(_as_generator(deltas())) as stream:
        async for delta in stream:
            said = said or bool(delta.strip())
            yield delta
    if not said:
        yield texts.no_answer
    yield Grounding(mode=mode, state="unchecked")


# ── strict ───────────────────────────────────────────────────────────────────────────────────────────────────────────


async def _strict(answering: Answering, material: Material, deltas: Deltas) -> AsyncGenerator[str | Grounding, None]:
    if not material.ranking.is_answerable:
        if material.ranking.is_unclear and material.texts.which:
            yield material.texts.which
        else:
            yield material.texts.not_found
            if material.passages:
                yield f" {material.texts.nearest}"
        yield Grounding(mode="strict", state="not_found")
        return
    chosen = quotes(material.ranking, material.passages)
    # What limits the best sentence leaves neither for certain.
    certain = not any(limits(quote.source) for quote in chosen)
    ranked = [evidence.text for evidence in material.ranking.ranked]
    if certain and (said_so := yes_or_no(material.ranking.question, ranked, *_around_best(material))) is not None:
        yield f"{YES if said_so else NO} "
    checker = answering.checker(material.passages)
    passed: list[SentenceSupport] = []
    left = list(chosen)
    places = sorted({passage.place for passage in material.passages if passage.place}, key=len, reverse=True)
    async with aclosing(_complete_sentences(deltas())) as sentences:
        async for whole in sentences:
            if not (sentence := _without_place(whole, places)):
                continue
            support = await asyncio.to_thread(checker.check, sentence)
            said = next((quote for quote in left if _says(sentence, support, quote, material.ranking, answering)), None)
            if said is None:
                break
            left.remove(said)
            passed.append(_sentence(sentence, "model", support, material))
            for word in _words(f"{sentence}{_citation(passed[-1])}", after=len(passed) > 1):
                yield word
            if not left:
                break
    for quote in left:
        support = Support(True, quote.passage, quote.source, None)
        passed.append(_sentence(quote.text, "quote", support, material))
        for word in _words(f"{_quoted(quote.text)}{_citation(passed[-1])}", after=len(passed) > 1):
            yield word
    yield Grounding(mode="strict", state="answered", sentences=passed)


def _around_best(material: Material) -> tuple[str, list[str]]:
    """The headings of the best sentence's passage, and what stands beside it."""
    best = material.ranking.ranked[0]
    passage = material.passages[best.passage]
    return f"{passage.title} > {passage.heading or ''}", beside(best, passage)


def _quoted(text: str) -> str:
    """In quotation marks; such marks within it become single ones."""
    return '"' + text.replace('"', "'") + '"'


def _without_place(sentence: str, places: Sequence[str]) -> str:
    """A sentence that does not begin with where a passage stands: small models copy that line of it too."""
    sentence = sentence.strip()
    for place in places:
        rest = sentence.removeprefix(place)
        # A title may also be how a sentence begins: "Rules apply to all."
        if rest != sentence and (not rest or " > " in place or _PLACE_ENDS.match(rest)):
            return _PLACE_ENDS.sub("", rest, count=1).strip()
    return sentence


def _says(sentence: str, support: Support, quote: Quote, ranking: Ranking, answering: Answering) -> bool:
    """Whether a sentence of the model may stand for a quotation: it is supported by the same, and tells most of it.

    What it leaves out may be the answer, and nothing here can tell. Where the quotation holds what is asked for (a
    number, a time, a name), so must the sentence.
    """
    if not support.supported or support.quote != quote.source:
        return False
    if retained(sentence, quote.text, ranking.question, answering.weights) < LEAST_RETAINED:
        return False
    expected = candidates(ranking.kind, quote.text, ranking.question)
    return not expected or bool(candidates(ranking.kind, sentence, ranking.question))


async def _complete_sentences(deltas: AsyncIterator[str]) -> AsyncGenerator[str, None]:
    """Sentences as they become whole, without the model's own marks; ends where it repeats itself or finds no end."""
    seen: set[str] = set()
    rest = ""
    async with aclosing(_as_generator(deltas)) as stream:
        async for delta in stream:
            rest += delta
            sentences = split_sentences(rest)
            for sentence in sentences[:-1]:  # the last one may go on
                text = without_odd_marks(_without_own_marks(sentence.text))
                if text in seen:
                    return
                seen.add(text)
                yield text
            if len(sentences) > 1:
                rest = rest[sentences[-1].start :]
            if len(rest.split()) > MOST_WORDS:
                return
        text = without_odd_marks(_without_own_marks(rest.strip()))
        if text and text not in seen:
            yield text


# ── mark ─────────────────────────────────────────────────────────────────────────────────────────────────────────────


async def _marked(
    answering: Answering, material: Material, deltas: Deltas, was_cut: Callable[[], bool]
) -> AsyncGenerator[str | Grounding, None]:
    checker = answering.checker(material.passages)
    checked: list[SentenceSupport] = []
    seen: set[str] = set()
    text, sent, said = "", 0, False  # `text` begins with the sentence being written; `sent` of its characters are out
    repeats = in_code = False
    async with aclosing(_as_generator(deltas())) as stream:
        async for delta in stream:
            text = _without_own_marks(text + delta, in_code=in_code)
            while len(sentences := split_sentences(text)) > 1 and not repeats:
                first = sentences[0]
                if repeats := first.text in seen:
                    break
                seen.add(first.text)
                yield text[sent : first.end]
                if not in_code and (support := await _checked(checker, first.text, material)) is not None:
                    checked.append(support)
                    yield _citation(support)
                in_code ^= bool(first.text.count(_FENCE) % 2)
                text, sent = text[first.end :], 0
            if repeats:
                break  # the model goes in circles, and would to the end of its budget
            if any(earlier.startswith(text.strip()) for earlier in seen):
                continue  # perhaps a repetition: what follows will tell
            ready = len(text) if (begun := _BEGUN_MARK.search(text)) is None else begun.start()
            if ready > sent:
                said = True
                yield text[sent:ready]
                sent = ready
    last = text.strip()
    if last and last not in seen and not repeats:
        said = True
        yield text[sent:].rstrip()
        is_whole = not in_code and (not was_cut() or last.endswith(_SENTENCE_ENDS))
        if is_whole and (support := await _checked(checker, last, material)) is not None:
            checked.append(support)
            yield _citation(support)
    if not said and not checked:
        yield material.texts.no_answer
    found = material.ranking.is_answerable or any(sentence.supported for sentence in checked)
    yield Grounding(mode="mark", state="answered" if found else "not_found", sentences=checked)


async def _checked(checker: GroundingChecker, sentence: str, material: Material) -> SentenceSupport | None:
    """What supports a sentence; None for what claims nothing: headings, table rows, code, a lead-in to a list."""
    if sentence.startswith(("#", "|", "```", "~~~")) or sentence.endswith(":") or not terms(sentence):
        return None
    return _sentence(sentence, "model", await asyncio.to_thread(checker.check, sentence), material)


# ── both ─────────────────────────────────────────────────────────────────────────────────────────────────────────────


def _sentence(text: str, origin: Literal["model", "quote"], support: Support, material: Material) -> SentenceSupport:
    number = place = None
    if support.passage is not None:
        number = material.numbers[support.passage]
        if support.supported and support.quote is not None:
            place = highlights(material.passages[support.passage].text, support.quote, text)
    return SentenceSupport(
        text=text,
        origin=origin,
        supported=support.supported,
        n=number,
        quote=support.quote,
        span=None if place is None else list(place.sentence),
        words=[] if place is None else [list(word) for word in place.words],
        reason=support.reason,
    )


def _without_own_marks(text: str, *, in_code: bool = False) -> str:
    """`text` without the model's own marks; `in_code`: it begins within a block of code."""
    opened = _FENCE if in_code else ""
    return _OWN_MARK.sub(lambda match: match["code"] or "", opened + text).removeprefix(opened)


def _citation(sentence: SentenceSupport) -> str:
    return f" [{sentence.n}]" if sentence.supported else UNSUPPORTED_MARK


def _words(text: str, *, after: bool) -> Iterator[str]:
    """The words of a sentence with the space behind them; in a paragraph of its own `after` another sentence."""
    return (match.group() for match in _WORD.finditer(f"\n\n{text}" if after else text))


async def _as_generator(deltas: AsyncIterator[str]) -> AsyncGenerator[str, None]:
    """`deltas` as a generator, which can be closed, and closes them."""
    try:
        async for delta in deltas:
            yield delta
    finally:
        close: Any = getattr(deltas, "aclose", None)
        if close is not None:
            await close()
