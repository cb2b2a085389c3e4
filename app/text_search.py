"""Plain search in texts, for lists that people filter: all words of a query, whatever their case and accents."""

from functools import lru_cache

from retrieval.words import fold

SNIPPET_CHARS = 120


def contains(text: str, query: str) -> bool:
    """Whether `text` holds every word of `query`, also within longer words."""
    words = _words(query)
    if not words:
        return True
    folded = fold(text)
    return all(word in folded for word in words)


def snippet(text: str, query: str) -> str:
    """The part of `text`, on one line, around the first word of `query` that is in it; "…" where it was cut."""
    line = " ".join(text.split())
    start = max(0, _first(line, query) - SNIPPET_CHARS // 3)
    if start:
        start = line.find(" ", start, start + 20) + 1 or start
    end = start + SNIPPET_CHARS
    if end < len(line):
        end = max(line.rfind(" ", start, end), end - 20)
    return ("…" if start else "") + line[start:end].strip() + ("…" if end < len(line) else "")


def _first(line: str, query: str) -> int:
    """Where in `line` the first hit begins; folding may change lengths, so it is done letter by letter."""
    folded, places = "", []
    for place, letter in enumerate(line):
        part = fold(letter)
        folded += part
        places += [place] * len(part)
    hits = [place for word in _words(query) if (place := folded.find(word)) >= 0]
    return places[min(hits)] if hits else 0


@lru_cache(maxsize=64)
def _words(query: str) -> tuple[str, ...]:
    return tuple(fold(query).split())
