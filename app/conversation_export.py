"""A conversation as a document to keep: Markdown for people."""

import re
from collections.abc import Sequence

from app.history import Conversation, Turn

MARKS = {"length": "cut by the limit of tokens", "abort": "stopped", "error": "broken off by an error"}


def as_markdown(conversation: Conversation, turns: Sequence[Turn]) -> str:
    """Questions as headings, answers as they are, and the sources of each below it."""
    parts = [f"# {_one_line(conversation.title)}"]
    for turn in turns:
        parts.append(f"## {_one_line(turn.question) or '(no question)'}")
        parts.append(turn.answer.strip() or "*(no answer)*")
        mark = MARKS.get(turn.finish_reason or ("abort" if turn.interrupted else ""))
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
