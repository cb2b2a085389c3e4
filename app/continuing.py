"""Going on with an answer that was cut or stopped: what it drew on, and the new part of what is said.

The model is given its own words again, as the beginning of its answer; what checks them runs over the whole, old words
and new, so that a sentence that was cut in the middle is checked as one. The reader gets what is beyond the old ones.
"""

import re
from collections.abc import AsyncGenerator, AsyncIterator

from app.answering import Answering, Grounding
from app.errors import ConflictError
from app.history import Turn
from app.turn_prompt import TurnDraft
from retrieval.records import Passage

_MARK = re.compile(r"\s*\[(?:\d+|\?)\]")
_LAST_MARK = re.compile(r"\s*\[(?:\d+|\?)\]\s*$")


def require_unfinished(turn: Turn | None) -> Turn:
    """The turn. Raises ConflictError where there is none, or where its answer is complete."""
    if turn is None:
        raise ConflictError("there is no answer to continue: ask a question first", field="continue_turn")
    if turn.finish_reason != "length" and not turn.interrupted:
        raise ConflictError(
            "the last answer is complete: only one that was cut by max_tokens, or stopped, can be continued",
            field="continue_turn",
        )
    return turn


def plain(said: str) -> str:
    """An answer without the marks of its sources, as the model wrote it."""
    return _MARK.sub("", said)


def draft_of(turn: Turn, answering: Answering | None) -> TurnDraft:
    """The draft that a turn was answered from. Blocks for as long as ranking its passages takes."""
    passages = [
        Passage(
            document_id=source["document_id"],
            chunk_id="",
            title=source["title"],
            source="",
            page=source.get("page"),
            heading=source.get("heading"),
            text=source["text"],
            score=source["score"],
            collection="",
        )
        for source in turn.sources
    ]
    is_checked = answering is not None and (bool(passages) or turn.grounding is not None)
    return TurnDraft(
        prompt=turn.prompt or turn.question,
        sources=list(turn.sources),
        placed=list(turn.placed),
        passages=passages,
        ranking=answering.rank([turn.question], passages) if answering is not None and is_checked else None,
    )


async def begun(said: str, deltas: AsyncIterator[str]) -> AsyncGenerator[str, None]:
    """The words of the answer so far, then those that come."""
    if said:
        yield said
    try:
        async for delta in deltas:
            yield delta
    finally:
        close = getattr(deltas, "aclose", None)
        if close is not None:
            await close()


async def beyond(said: str, pieces: AsyncIterator[str | Grounding]) -> AsyncGenerator[str | Grounding, None]:
    """Of an answer that is said from its beginning, what comes after `said`.

    Where it begins otherwise than `said`, the whole of it in a paragraph of its own.
    """
    words = plain(said).rstrip()
    text, passed = "", False
    async for piece in pieces:
        if isinstance(piece, Grounding) or passed:
            yield piece
            continue
        text += piece
        if len(plain(text)) <= len(words):
            continue
        passed = True
        if not plain(text).startswith(words):
            yield f"\n\n{text}"
        elif rest := text[_end_of(words, len(_MARK.findall(said)), text) :]:
            yield rest.lstrip() if said[-1:].isspace() else rest


def without_last_mark(said: str) -> str:
    """An answer that was cut, without the mark behind its last words, which go on."""
    return _LAST_MARK.sub("", said)


def _end_of(words: str, num_marks: int, text: str) -> int:
    """Where in `text` the part ends that holds `words` and as many marks."""
    place = length = passed = 0
    for mark in _MARK.finditer(text):
        part = mark.start() - place
        if length + part > len(words) or passed == num_marks:
            break
        length, place, passed = length + part, mark.end(), passed + 1
    return place + len(words) - length
