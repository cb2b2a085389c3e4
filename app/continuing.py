"""Going on with an answer that was cut or stopped: what it drew on, and the new part of what is said.

The model is given its own words again, as the beginning of its answer; what checks them runs over the whole, old words
and new, so that a sentence that was cut in the middle is checked as one. The reader gets what is beyond the old ones.
Whether documents were asked, and how the answer is checked, is the turn's own: a request to go on cannot change it.
"""

import re
from collections.abc import AsyncGenerator, AsyncIterator, Sequence
from contextlib import aclosing
from dataclasses import replace

from app.answering import Answering, Grounding
from app.chat_schema import ChatOptions
from app.errors import ConflictError
from app.history import Turn
from app.turn_prompt import TurnDraft
from retrieval.records import Passage

_MARK = re.compile(r"\s*\[(?:\d+|\?)\]")
_LAST_MARK = re.compile(r"\s*\[(?:\d+|\?)\]\s*$")
# What of a turn's options says which documents are asked.
_SEARCH_OPTIONS = ("retrieval", "num_passages", "collections", "where")


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


def options_of(turn: Turn, options: ChatOptions) -> ChatOptions:
    """`options`, but the documents that are asked are those that the turn asked, where that is known."""
    if turn.settings is None:
        return options
    made_with = ChatOptions.model_validate(
        {name: turn.settings[name] for name in _SEARCH_OPTIONS if name in turn.settings}
    )
    return options.model_copy(update={name: getattr(made_with, name) for name in _SEARCH_OPTIONS})


def answering_of(turn: Turn, answering: Answering | None) -> Answering | None:
    """`answering` in the mode that the turn's answer was begun in, where that is known."""
    mode = (turn.grounding or {}).get("mode") or (turn.settings or {}).get("grounding")
    if answering is None or mode == "off":
        return None
    return replace(answering, mode=mode) if mode in ("mark", "strict") else answering


def was_unchecked(turn: Turn) -> bool:
    """Whether the turn's answer is known to be the model's own words, every mark in it too."""
    return turn.grounding is not None and turn.grounding["state"] == "unchecked"


def draft_of(turn: Turn, answering: Answering | None, queries: Sequence[str], *, asks_documents: bool) -> TurnDraft:
    """The draft that a turn was answered from. Blocks for as long as ranking its passages takes.

    `queries` are the forms of its question; `asks_documents` tells whether such a turn is given passages, for one that
    was stopped before it said how it stands to its sources.
    """
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
    is_checked = not was_unchecked(turn) and (bool(passages) or turn.grounding is not None or asks_documents)
    return TurnDraft(
        prompt=turn.prompt or turn.question,
        sources=list(turn.sources),
        placed=list(turn.placed),
        passages=passages,
        ranking=answering.rank(queries, passages) if answering is not None and is_checked else None,
    )


async def begun(said: str, deltas: AsyncIterator[str]) -> AsyncGenerator[str, None]:
    """The words of the answer so far, then those that come."""
    try:
        if said:
            yield said
        async for delta in deltas:
            yield delta
    finally:
        close = getattr(deltas, "aclose", None)
        if close is not None:
            await close()


async def following(said: str, deltas: AsyncIterator[str]) -> AsyncGenerator[str, None]:
    """The words that come, without the space before them where `said` ends with one."""
    has_begun = not said[-1:].isspace()
    async with aclosing(begun("", deltas)) as stream:
        async for delta in stream:
            text = delta if has_begun else delta.lstrip()
            has_begun = has_begun or bool(text)
            yield text


async def beyond(
    said: str, pieces: AsyncIterator[str | Grounding], dropped: str = ""
) -> AsyncGenerator[str | Grounding, None]:
    """Of an answer that is said from its beginning, what comes after `said`.

    Where it begins otherwise than `said`, the whole of it in a paragraph of its own. Nothing, where all that comes is
    `dropped`, the mark that stood behind `said`.
    """
    length = len(plain(said).rstrip())
    text, passed = "", False
    async for piece in pieces:
        if isinstance(piece, Grounding) or passed:
            if not passed and (rest := _rest(said, text)) != dropped:
                yield rest
            passed = True
            yield piece
            continue
        text += piece
        if len(plain(text).rstrip()) > length:
            passed = True
            yield _rest(said, text)
    if not passed and (rest := _rest(said, text)) != dropped:
        yield rest


def _rest(said: str, text: str) -> str:
    """What `text` says after `said`: all of it, where it begins otherwise."""
    words, told = plain(said).rstrip(), plain(text).rstrip()
    if told.startswith(words):
        rest = text[_end_of(words, len(_MARK.findall(said)), text) :]
        return rest.lstrip() if said[-1:].isspace() else rest
    return "" if words.startswith(told) else f"\n\n{text}"


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
