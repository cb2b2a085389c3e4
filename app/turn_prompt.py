"""How a turn reads to the model: passages first, numbered, the best one last, then the question.

Passages stand in the turn that found them and stay there, so that a conversation's prompt only ever grows at its end
and the prefix cache holds the rest; a passage that is already in sight is pointed to by its number.
"""

from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import count
from typing import Any

from retrieval.evidence import Ranking
from retrieval.records import Passage

CountTokens = Callable[[str], int]
Widen = Callable[[Passage, int], str]
"""The section around a passage, up to so many tokens and never less than the passage: `KnowledgeBase.surroundings`."""

# How many sentences a small model is shown where it is shown sentences.
NUM_EXCERPTS = 3
# Stands between the passages and the question.
QUESTION_LEAD = "Answer from the passages above, in one or two sentences: "


@dataclass(frozen=True)
class PassageRule:
    """How many passages a question gets: at most `count`, of `max_tokens` together, scoring `min_score` or more."""

    count: int = 4
    max_tokens: int = 1024
    min_score: float = 0.0


@dataclass
class TurnDraft:
    """A turn before it is answered: what the model is sent, and what it draws on.

    `passages` and `sources` are all that count for this turn, best first; `placed` the numbers of those that stand
    whole in `prompt`; `left_out` what was found and had no room there, with sizes in tokens. `ranking` is the evidence
    for the question in `passages`, None where answers are not checked.
    """

    prompt: str
    sources: list[dict[str, Any]] = field(default_factory=list)
    placed: list[int] = field(default_factory=list)
    passages: list[Passage] = field(default_factory=list)
    left_out: list[tuple[Passage, int]] = field(default_factory=list)
    ranking: Ranking | None = None


def write_turn(
    question: str,
    passages: Sequence[Passage],
    *,
    known: Mapping[str, int],
    next_number: int,
    max_tokens: int,
    count_tokens: CountTokens,
) -> TurnDraft:
    """The turn's text and sources.

    Args:
        known: text of each passage that earlier turns in sight hold -> its number there.
        next_number: number for the next passage that is new to the conversation.
        max_tokens: most tokens that new passages may take; what does not fit is left out, worst first. The first
            passage is cut rather than left out.
    """
    draft = TurnDraft(prompt="")
    blocks: list[str] = []
    in_sight: list[int] = []
    left = max_tokens
    for passage in passages:
        number = known.get(passage.text)
        if number is None:
            number = next_number + len(blocks)
            block = passage_block(number, passage)
            size = count_tokens(block)
            if size > left and blocks:
                draft.left_out.append((passage, size))
                continue
            if size > left:
                block = _cut(block, left, count_tokens)
                if not block:
                    draft.left_out.append((passage, size))
                    continue
            left -= size
            blocks.append(block)
            draft.placed.append(number)
        else:
            in_sight.append(number)
        draft.sources.append(source_of(number, passage))
        draft.passages.append(passage)
    draft.prompt = _join(question, blocks, in_sight)
    return draft


def in_their_sections(
    passages: Sequence[Passage], known: Collection[str], max_tokens: int, widen: Widen, count_tokens: CountTokens
) -> list[Passage]:
    """The passages with as much of their sections as `max_tokens` for all of them has room for: small is found, big is
    read.

    A passage that stands in the section of a better one is left to it, and one that stands in a text of `known` (what
    earlier turns show) is that text.
    """
    room = max_tokens - sum(count_tokens(passage_block(len(known) + 1, passage)) for passage in passages)
    grown: list[Passage] = []
    for passage in passages:
        if any(passage.document_id == better.document_id and passage.text in better.text for better in grown):
            continue
        text = next((shown for shown in known if passage.text in shown), None)
        if text is None:
            share = max(0, room) // len(passages)
            text = widen(passage, count_tokens(passage.text) + share) if share else passage.text
        grown.append(replace(passage, text=text))
    return grown


def write_excerpt_turn(
    question: str,
    passages: Sequence[Passage],
    ranking: Ranking,
    *,
    numbers: Mapping[str, int],
    next_number: int,
    max_tokens: int,
    count_tokens: CountTokens,
) -> TurnDraft:
    """The turn for a model that cannot find its way in whole passages: it is shown only their best sentences.

    All passages are sources; an excerpt that does not fit into `max_tokens` is left out. `numbers` holds the text of
    each passage that the conversation knows -> its number there. Where nothing in the passages is about the question,
    the prompt is the question alone.
    """
    draft = TurnDraft(prompt=question, passages=list(passages), ranking=ranking)
    fresh = count(next_number)
    for passage in passages:
        number = numbers.get(passage.text)
        draft.sources.append(source_of(next(fresh) if number is None else number, passage))
    if not ranking.is_answerable:
        return draft
    blocks: list[str] = []
    left = max_tokens
    best = ranking.ranked[:NUM_EXCERPTS]
    for index in dict.fromkeys(evidence.passage for evidence in best):
        chosen = sorted((evidence for evidence in best if evidence.passage == index), key=lambda item: item.index)
        excerpt = " ".join(evidence.text for evidence in chosen)
        block = passage_block(draft.sources[index]["n"], replace(passages[index], text=excerpt))
        size = count_tokens(block)
        if size > left:
            draft.left_out.append((passages[index], size))
            continue
        left -= size
        blocks.append(block)
    draft.prompt = _join(question, blocks, [])
    return draft


def passage_block(number: int, passage: Passage) -> str:
    """A passage as the model reads it."""
    page = f", page {passage.page}" if passage.page is not None else ""
    return f"[{number}] {passage.place}{page}\n{passage.text.strip()}"


def source_of(number: int, passage: Passage) -> dict[str, Any]:
    """A passage as clients see it under an answer."""
    return {
        "n": number,
        "document_id": passage.document_id,
        "title": passage.title,
        "page": passage.page,
        "heading": passage.heading,
        "text": passage.text,
        "score": round(float(passage.score), 4),
    }


def _join(question: str, blocks: Sequence[str], in_sight: Sequence[int]) -> str:
    if not blocks and not in_sight:
        return question
    # The best passage stands last, beside the question: a small model answers best from what it has read last.
    parts = list(reversed(blocks))
    if in_sight:
        parts.append(f"See also {', '.join(f'[{number}]' for number in sorted(in_sight))} above.")
    return "Passages:\n\n" + "\n\n".join(parts) + f"\n\n{QUESTION_LEAD}{question}"


def _cut(text: str, max_tokens: int, count_tokens: CountTokens) -> str:
    """The longest beginning of `text`, cut at a space, that has at most `max_tokens` tokens."""
    words = text.split(" ")
    low, high = 0, len(words)
    while low < high:
        middle = (low + high + 1) // 2
        if count_tokens(" ".join(words[:middle])) <= max_tokens:
            low = middle
        else:
            high = middle - 1
    return " ".join(words[:low])
