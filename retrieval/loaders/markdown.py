"""Markdown: front matter, headings, tables and code listings. The text stays as written; only structure is read.

What its page does not show or strikes out is left out (`markdown_shown`).
"""

import re
from collections.abc import Mapping
from typing import Any

import yaml

from retrieval.errors import EmptyDocumentError
from retrieval.loaders.document import MOST_LEFT_OUT, LoadedDocument, TextBuilder
from retrieval.loaders.encoding import decode
from retrieval.loaders.markdown_shown import MAX_CHARS, says_more_than_it_shows, shown_markdown

_FRONT_MATTER = re.compile(r"\A---[ \t]*\n(.*?)\n(?:---|\.\.\.)[ \t]*(?:\n|\Z)", re.DOTALL)
_MAX_FRONT_MATTER = 20_000
_ATX_HEADING = re.compile(r" {0,3}(#{1,6})(?:[ \t]+(.*?))?(?:[ \t]+#+)?[ \t]*$")
_SETEXT_RULE = re.compile(r" {0,3}(=+|-+)[ \t]*$")
_FENCE = re.compile(r" {0,3}(`{3,}|~{3,})")
_TABLE_RULE = re.compile(r"[ \t]*\|?[ \t]*:?-+:?[ \t]*(?:\|[ \t]*:?-+:?[ \t]*)*\|?[ \t]*$")
_INLINE_MARKS = re.compile(r"!?\[([^\]]*)\]\([^)]*\)|[*_`]{1,3}(?=\S)([^*_`]+)[*_`]{1,3}")


def load_markdown(data: bytes, fallback_title: str) -> LoadedDocument:
    """Reads Markdown. Title: the front matter's, else the first heading, else the file's name. Raises LoadError."""
    text, metadata = read_markdown(data)
    text, notice = _shown(text)
    parser = _Parser()
    for line in text.split("\n"):
        parser.feed(line)
    parser.finish()
    title = metadata.get("title") or parser.first_heading or fallback_title
    if parser.builder.is_empty and parser.first_heading:
        # Nothing but headings: they are the text then.
        for heading in parser.all_headings:
            parser.builder.add(heading)
    return parser.builder.build(title, metadata=metadata, notice=notice)


def _shown(text: str) -> tuple[str, str | None]:
    """The text that a reader of the page sees, and what is to be told of it. Raises EmptyDocumentError."""
    if not says_more_than_it_shows(text):
        return text, None
    if len(text) > MAX_CHARS:
        return text, f"over {MAX_CHARS:,} characters: what it strikes out or comments was read like all else; split it"
    shown = shown_markdown(text)
    if text.strip() and not shown.strip():
        raise EmptyDocumentError("no text: all of it is commented out, struck out or hidden")
    return shown, MOST_LEFT_OUT if len(shown) < len(text) / 2 else None


def read_markdown(data: bytes) -> tuple[str, dict[str, str]]:
    """The Markdown in `data` behind its front matter, and the values of that. Raises LoadError."""
    return _split_front_matter(decode(data))


def _split_front_matter(text: str) -> tuple[str, dict[str, str]]:
    match = _FRONT_MATTER.match(text)
    if match is None or len(match[1]) > _MAX_FRONT_MATTER:
        return text, {}
    try:
        parsed = yaml.safe_load(match[1])
    except (yaml.YAMLError, ValueError, RecursionError):
        return text, {}
    if not isinstance(parsed, Mapping):
        return text, {}  # a document that merely opens with a rule
    return text[match.end() :], _plain_values(parsed)


def _plain_values(parsed: Mapping[Any, Any]) -> dict[str, str]:
    """Scalars as they are written, lists of scalars joined; deeper structure is not kept."""
    values: dict[str, str] = {}
    for key, value in parsed.items():
        items = value if isinstance(value, list) else [value]
        plain = [str(item) for item in items if item is not None and not isinstance(item, (dict, list, set))]
        if plain:
            values[str(key)] = ", ".join(plain)[:1000]
    return values


def plain_heading(text: str) -> str:
    """A heading without emphasis, code marks and link targets."""
    return _INLINE_MARKS.sub(lambda match: match[1] or match[2] or "", text).strip()


class _Parser:
    """A line at a time: open lines wait in `_lines` until a blank line, a heading, a fence or the end closes them."""

    def __init__(self) -> None:
        self.builder = TextBuilder()
        self.first_heading: str | None = None
        self.all_headings: list[str] = []
        self._path: list[tuple[int, str]] = []
        self._lines: list[str] = []
        self._fence: str | None = None

    def feed(self, line: str) -> None:
        if self._fence is not None:
            self._lines.append(line)
            if line.strip().startswith(self._fence) and not line.strip().strip(self._fence[0]):
                self._fence = None
                self._close("code")
            return
        if (fence := _FENCE.match(line)) and not (fence[1][0] == "`" and "`" in line[fence.end() :]):
            self._close()
            self._fence = fence[1]
            self._lines.append(line)
            return
        if heading := _ATX_HEADING.match(line):
            self._close()
            self._open_heading(len(heading[1]), heading[2] or "")
            return
        if len(self._lines) == 1 and (rule := _SETEXT_RULE.match(line)) and "|" not in self._lines[0]:
            heading_text = self._lines.pop()
            self._open_heading(1 if rule[1][0] == "=" else 2, heading_text)
            return
        if not line.strip():
            self._close()
            return
        self._lines.append(line)

    def finish(self) -> None:
        self._close("code" if self._fence is not None else None)

    def _open_heading(self, level: int, raw: str) -> None:
        text = plain_heading(raw)
        while self._path and self._path[-1][0] >= level:
            self._path.pop()
        if not text:
            return
        self._path.append((level, text))
        self.all_headings.append(text)
        self.first_heading = self.first_heading or text

    def _close(self, kind: str | None = None) -> None:
        lines, self._lines = self._lines, []
        if not lines:
            return
        headings = tuple(text for _, text in self._path)
        if kind == "code":
            self.builder.add("\n".join(lines), "code", headings)
            return
        start = _table_start(lines)
        self.builder.add("\n".join(lines[:start]), "prose", headings)
        self.builder.add("\n".join(lines[start:]), "table", headings)


def _table_start(lines: list[str]) -> int:
    """Index of a pipe table's header line, len(lines) where there is none. A table runs to the end of the lines."""
    for index in range(1, len(lines)):
        if "|" in lines[index] and "|" in lines[index - 1] and _TABLE_RULE.match(lines[index]):
            return index - 1
    return len(lines)
