"""Which lines of a passage are titles: where a format has no headings, they stand in the text."""

import re

from retrieval.statements import Statement

SENTENCE_ENDS = (*".!?:…。！？।؟;", '"', "”", "»", ")", "*", "_", "`")
ITEM = re.compile(r"(?:[-*+•–]|\d{1,3}[.)]|[a-z][.)])\s")

_MOST_WORDS = 12
_NUMBERED = re.compile(r"\d{1,3}[.)]\s")


def is_title(statement: Statement, text: str) -> bool:
    """Whether it is a paragraph of its own, or a short line above a longer one, and has no sentence's end.

    Items of lists have none either, but stand among items.
    """
    line = text[statement.start : statement.end].strip()
    if statement.is_row or line.endswith(SENTENCE_ENDS) or len(line.split()) > _MOST_WORDS:
        return False
    before, after = text[: statement.start].rstrip(" \t"), text[statement.end :].lstrip(" \t\r")
    if before and not before.endswith("\n\n"):
        return False
    if after.startswith("\n\n"):
        return not ITEM.match(line) or (bool(_NUMBERED.match(line)) and not ITEM.match(after.lstrip()))
    below = after.removeprefix("\n").partition("\n")[0]
    return after.startswith("\n") and len(below) > len(line) and not ITEM.match(below)
