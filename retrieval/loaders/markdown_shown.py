"""Markdown as a reader of its page takes it: without comments, and without what is struck out or hidden.

The text stays as it is written but for that. Where something begins and ends is told by markdown-it, so that code stays
whole. What has no end (a comment that is not closed, a lone `~~` or `<del>`) is text like any other.
"""

import re
from bisect import bisect_right
from collections.abc import Iterable, Iterator, Sequence
from itertools import pairwise
from operator import itemgetter
from typing import Any

from bs4 import BeautifulSoup
from bs4.element import Tag
from markdown_it import MarkdownIt
from markdown_it.common.html_re import HTML_TAG_RE
from markdown_it.rules_block import StateBlock, html_block
from markdown_it.rules_inline import StateInline, html_inline, strikethrough
from markdown_it.token import Token

from retrieval.loaders.html_tree import STRUCK_TAGS, is_unsaid

# Beyond, the parser would take longer than all else that is done with the text, and gigabytes.
MAX_CHARS = 4_000_000
_COMMENT, _COMMENT_END, _STRIKE = "<!--", "-->", "~~"
_SIGNS = re.compile(
    rf"{_STRIKE}|{_COMMENT}|<(?:{'|'.join(STRUCK_TAGS)})\b|<[a-z][^<>]*\b(?:hidden|style)\b|\]:[ \t]*(?:#|<>)[ \t]",
    re.IGNORECASE,
)
_CLOSED_COMMENT = re.compile(rf"{_COMMENT}(?:(?!{_COMMENT}).)*?{_COMMENT_END}", re.DOTALL)
_FENCE = re.compile(r"`{3,}|~{3,}")
_TAG_NAME = re.compile(r"</?([A-Za-z][A-Za-z0-9-]*)")
# What may be left of a line that said nothing else: marks of a quotation, list, task, row or emphasis.
_BARE = re.compile(r"[\s>]*(?:[-*+]|\d+[.)])?[ \t]*(?:\[[ xX]\])?[\s|*_]*")
_MAX_BARE = 200
_NOWHERE = ("", "#")
_ENDS_WORDS = frozenset(" \t\n.,;:!?)]}|")

Span = tuple[int, int]
# An offset in a block's content, and where in the text that is.
Place = tuple[int, int]
_UNKNOWN = -1


def says_more_than_it_shows(text: str) -> bool:
    """Whether there may be something in it that its page does not show."""
    return _SIGNS.search(text) is not None


def shown_markdown(text: str) -> str:
    """The Markdown without what its page does not show. The time it takes is that of the text's length."""
    # Comments first: what stands behind one on its line is then read as all else.
    text = _without(text, _comments(text))
    return _without(text, _unsaid(text))


def _comments(text: str) -> Iterator[Span]:
    """Comments of HTML, and references to nowhere, which are written as comments (`[//]: # (…)`)."""
    page = _Page(text)
    for token in page.tokens:
        if token.type == "html_block":
            found = (match.span() for match in _CLOSED_COMMENT.finditer(text, *page.lines(token)))
            yield from [token.meta["comment"]] if token.meta else found
    for token, child in page.children("html_inline"):
        if child.content.startswith(_COMMENT):
            yield from page.span(token, child.meta["start"], child.meta["end"])
    named = [*page.env.get("references", {}).values(), *page.env.get("duplicate_refs", ())]
    for reference in named:
        if reference["href"] in _NOWHERE and reference["title"]:
            first, end = reference["map"]
            yield page.starts[first], page.starts[end] - 1


def _unsaid(text: str) -> Iterator[Span]:
    page = _Page(text)
    for before, token in pairwise(page.tokens):
        if token.type != "inline":
            continue
        pairs = list(_pairs(token.children or ()))
        if before.markup in ("=", "-") and (0, len(token.content)) in pairs:
            first, end = page.lines(before)  # a heading goes with the line below it
            yield first, end - 1
        for pair in pairs:
            yield from page.span(token, *pair)
    tags = [
        (match[0], *match.span())
        for token in page.tokens
        if token.type == "html_block"
        for match in HTML_TAG_RE.finditer(text, *page.lines(token))
    ]
    yield from _tag_pairs(tags)


def _pairs(children: Sequence[Token]) -> Iterator[Span]:
    """What is struck out or hidden within the text of one block."""
    opened = []
    for child in children:
        if child.type == "s_open":
            opened.append(child.meta["start"])
        elif child.type == "s_close":
            yield opened.pop(), child.meta["end"]
    inline = (child for child in children if child.type == "html_inline")
    yield from _tag_pairs((child.content, child.meta["start"], child.meta["end"]) for child in inline)


def _tag_pairs(tags: Iterable[tuple[str, int, int]]) -> Iterator[Span]:
    """From the first to the last of each pair of tags that strikes out or hides what is between them."""
    opened: list[tuple[str, int, bool]] = []
    for tag, start, end in tags:
        if (named := _TAG_NAME.match(tag)) is None:
            continue
        name = named[1].lower()
        if not tag.startswith("</"):
            opened.append((name, start, _hides(name, tag)))
            continue
        place = next((index for index in range(len(opened) - 1, -1, -1) if opened[index][0] == name), None)
        if place is not None:
            if opened[place][2]:
                yield opened[place][1], end
            del opened[place:]


def _hides(name: str, tag: str) -> bool:
    if name in STRUCK_TAGS:
        return True
    if "hidden" not in tag.lower() and "style" not in tag.lower():
        return False
    element = BeautifulSoup(tag, "html.parser").find(True)
    return isinstance(element, Tag) and is_unsaid(element)


def _without(text: str, spans: Iterable[Span]) -> str:
    """The text without these spans; a line that is left with nothing goes too, and parts no paragraphs."""
    pieces: list[str] = []
    cuts: list[int] = []
    kept = length = 0
    for start, end in sorted(_with_marks(text, *span) for span in spans):
        if start < kept:
            if end <= kept:
                continue  # within the one before
            start = kept
        piece = text[kept:start]
        # One blank is enough between what stands before and after.
        if text[end : end + 1] in _ENDS_WORDS or end == len(text):
            piece = piece.rstrip(" \t")
        pieces.append(piece)
        length += len(piece)
        cuts.append(length)
        kept = end
    if not cuts:
        return text
    pieces.append(text[kept:])
    return "\n".join(_lines_that_say("".join(pieces), cuts))


def _with_marks(text: str, start: int, end: int) -> Span:
    """A span with the marks of emphasis right around it, which would be left with nothing between them."""
    while start and text[start - 1] in "*_" and text[end : end + 1] == text[start - 1]:
        start, end = start - 1, end + 1
    return start, end


def _lines_that_say(text: str, cuts: Sequence[int]) -> Iterator[str]:
    start = index = 0
    for line in text.split("\n"):
        end = start + len(line)
        first = index
        while index < len(cuts) and cuts[index] <= end:
            index += 1
        if index == first or len(line) > _MAX_BARE or not _BARE.fullmatch(line):
            yield line
        start = end + 1


class _Page:
    """A text as markdown-it reads it, with the place of each part."""

    def __init__(self, text: str) -> None:
        self.text = text
        self.env: dict[str, Any] = {}
        self.tokens = _PARSER.parse(text, self.env)
        self.starts = [0]
        for line in text.split("\n"):
            self.starts.append(self.starts[-1] + len(line) + 1)
        self._places = dict(self._cell_places())

    def lines(self, token: Token) -> Span:
        first, end = token.map or (0, 0)
        return self.starts[first], min(self.starts[end], len(self.text))

    def children(self, kind: str) -> Iterator[tuple[Token, Token]]:
        for token in self.tokens:
            if token.type == "inline":
                yield from ((token, child) for child in token.children or () if child.type == kind)

    def span(self, token: Token, start: int, end: int) -> Iterator[Span]:
        """Where a part of a block's content stands in the text; nothing where that cannot be told."""
        if id(token) not in self._places:
            self._places[id(token)] = list(self._line_places(token))
        places = self._places[id(token)]
        first, last = _placed(places, start), _placed(places, end)
        if first is not None and last is not None:
            yield first, last

    def _cell_places(self) -> Iterator[tuple[int, list[Place]]]:
        """Where the content of each cell of a table begins, and goes on behind each bar, by the id of its token."""
        position = 0
        for before, token in pairwise(self.tokens):
            if before.type in ("th_open", "td_open") and token.map and token.content:
                position = max(position, self.starts[token.map[0]])
                written = token.content.replace("|", "\\|")
                if (start := self.text.find(written, position)) >= 0:
                    bars = [index for index, letter in enumerate(token.content) if letter == "|"]
                    behind = [(bar + 1, start + bar + 1 + count) for count, bar in enumerate(bars, 1)]
                    yield id(token), [(0, start), *behind]
                    position = start + len(written)

    def _line_places(self, token: Token) -> Iterator[Place]:
        """Where each line of a block's content begins, which is its line without its indent and marks of quotations."""
        offset = 0
        first, end = token.map or (0, 0)
        for number, content in zip(range(first, end), token.content.split("\n"), strict=False):
            line = self.text[self.starts[number] : self.starts[number + 1] - 1].rstrip()
            written = content.strip()
            # A heading may have marks behind it.
            at = len(line) - len(written) if line.endswith(written) else line.find(written)
            yield offset + len(content) - len(content.lstrip()), self.starts[number] + at if at >= 0 else _UNKNOWN
            offset += len(content) + 1


def _placed(places: Sequence[Place], offset: int) -> int | None:
    index = bisect_right(places, offset, key=itemgetter(0)) - 1
    if index < 0 or places[index][1] == _UNKNOWN:
        return None
    return places[index][1] + offset - places[index][0]


def _comment_block(state: StateBlock, start: int, end: int, silent: bool) -> bool:
    """markdown-it's rule for blocks of HTML, but that a comment ends where it is meant to, or else is none."""
    position = state.bMarks[start] + state.tShift[start]
    if not state.src.startswith(_COMMENT, position) or state.is_code_block(start):
        return html_block(state, start, end, silent)
    if (found := _end_of_comment(state, start, end)) is None:
        return False
    if not silent:
        last, comment_end = found
        token = state.push("html_block", "", 0)
        token.map = [start, last + 1]
        token.meta = {"comment": (position, comment_end)}
        state.line = last + 1
    return True


def _end_of_comment(state: StateBlock, start: int, end: int) -> Span | None:
    """The line and the place where the comment ends that begins a line: before another one, and not within code."""
    fence = ""
    indent = min(state.blkIndent, state.sCount[start])
    for number in range(start, end):
        if state.sCount[number] < indent and not state.isEmpty(number):
            return None
        begins = state.bMarks[number] + state.tShift[number]
        line = state.src[begins : state.eMarks[number]]
        mark = _FENCE.match(line)
        if mark and not fence:
            fence = mark[0]
        elif mark and mark[0].startswith(fence) and mark[0] == line.strip():
            fence = ""
        if fence:
            continue
        ended = line.find(_COMMENT_END)
        again = line.find(_COMMENT, len(_COMMENT) if number == start else 0)
        if again >= 0 and (ended < 0 or again < ended):
            return None
        if ended >= 0:
            return number, begins + ended + len(_COMMENT_END)
    return None


def _inline_html(state: StateInline, silent: bool) -> bool:
    """markdown-it's rule, which notes places here; a comment that would end in another, or within code, has no end."""
    start = state.pos
    if state.src.startswith(_COMMENT, start):
        another = state.src.find(_COMMENT, start + 1)
        end = state.src.find(_COMMENT_END, start, another if another >= 0 else None)
        if end < 0 or state.src.count("`", start, end) % 2:
            return False
    found = html_inline(state, silent)
    if found and not silent:
        state.tokens[-1].meta = {"start": start, "end": state.pos}
    return found


def _struck(state: StateInline, silent: bool) -> bool:
    """markdown-it's rule, which notes places here."""
    found = strikethrough.tokenize(state, silent)
    position = state.pos
    for token in reversed(state.tokens if found else ()):
        if token.content != _STRIKE or token.meta:
            break
        token.meta = {"start": position - len(_STRIKE), "end": position}
        position -= len(_STRIKE)
    return found


def _parser() -> MarkdownIt:
    parser = MarkdownIt("commonmark", {"html": True}).enable(["table", "strikethrough"])
    parser.block.ruler.at("html_block", _comment_block, {"alt": ["paragraph", "reference", "blockquote"]})
    parser.inline.ruler.at("html_inline", _inline_html)
    parser.inline.ruler.at("strikethrough", _struck)
    return parser


_PARSER = _parser()
