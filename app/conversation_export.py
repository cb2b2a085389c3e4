"""A conversation as a document to keep: Markdown for people."""

import re
from collections.abc import Sequence

from app.history import Conversation, Turn

MARKS = {"length": "cut by the limit of tokens", "abort": "stopped", "error": "broken off by an error"}
BEING_WRITTEN = "the answer is still being written: export again when it is complete"


def as_markdown(conversation: Conversation, turns: Sequence[Turn], *, is_answering: bool = False) -> str:
    """Questions as headings, answers as they are, and the sources of each below it.

    `is_answering`: an answer is under way, the newest one unless it is complete; what is stored is not how it ended.
    """
    parts = [f"# {_one_line(conversation.title)}"]
    for number, turn in enumerate(turns, 1):
        is_open = is_answering and number == len(turns) and turn.finish_reason != "stop"
        mark = BEING_WRITTEN if is_open else MARKS.get(turn.finish_reason or ("abort" if turn.interrupted else ""))
        parts.append(f"## {_one_line(turn.question) or '(no question)'}")
        if turn.answer.strip() or not is_open:
            parts.append(turn.answer.strip() or "*(no answer)*")
        if mark:
            parts.append(f"*({mark})*")
        if turn.sources:
            parts.append("\n".join(_source_line(source) for source in sorted(turn.sources, key=lambda one: one["n"])))
    return "\n\n".join(parts) + "\n"


def file_stem(title: str) -> str:
    """A file's name made of a title: letters, digits, spaces and dashes of any script."""
    return re.sub(r"\s+", " ", re.sub(r"[^\w\s-]", " ", title)).strip()[:80] or "conversation"


def _source_line(source: dict[str, object]) -> str:
    place = " > ".join(_one_line(str(part)) for part in (source["title"], source.get("heading")) if part)
    page = f", page {source['page']}" if source.get("page") is not None else ""
    return f"- [{source['n']}] {place}{page}"


def _one_line(text: str) -> str:
    return " ".join(text.split())
