"""Text and Markdown as HTML. Everything that came from a person, a document or the model passes through here.

Two rules: questions, titles, headings and passages are plain text, shown letter for letter; an answer is Markdown in
which raw HTML is text, images are text and links lead only to http(s) and mailto. In an answer, the marks `[1]` and
`[?]` become links to sources and explanations.
"""

import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from html import escape
from itertools import groupby, pairwise
from typing import Any

from markdown_it import MarkdownIt
from markdown_it.renderer import RendererHTML
from markdown_it.token import Token

from ui.conversation import Span
from ui.icons import icon_button

_LINK_SCHEMES = ("http://", "https://", "mailto:")
_MARK = re.compile(r"\[(\?|\d{1,4}(?:\s*,\s*\d{1,4})*)\]")
# Of a passage: plain, of a sentence that supports the answer, of a word in it that the answer has too.
_LEVELS = (("", ""), ("<mark>", "</mark>"), ('<mark class="word">', "</mark>"))
# What begins a line that is not the one before it, gone on: list marks, table rows, indents, fences.
_NEW_LINE = re.compile(r"[-*+•–]\s|\d{1,3}[.)]\s|[a-z][.)]\s|#{1,6}\s|\||>|```|\s", re.IGNORECASE)
_APART = re.compile(r"\t|\S {3,}\S|[{};]$")  # cells of a table, code
_UNSPACED = re.compile(r"[\u3040-\u30ff\u3400-\u9fff\uf900-\ufaff\uff00-\uffef\u3000-\u303f]")
# A line is wrapped where it is not much shorter than the longest of its paragraph, and that is not short itself.
_LEAST_WIDTH = 30
_LEAST_FILL = 0.7
_REFERENCE = re.compile(r"\[([^\[\]\n]+)\]\[[^\[\]\n]*\]")
UNEXPLAINED = "No source supports this sentence."


@dataclass(frozen=True)
class Marks:
    """What the marks of an answer mean.

    turn: position of its turn. titles: of its sources, by number. explanations: of its `[?]`, in order.
    """

    turn: int = 0
    titles: Mapping[int, str] = field(default_factory=dict)
    explanations: Sequence[str] = ()


def _may_link(url: str) -> bool:
    return url.lower().startswith(_LINK_SCHEMES)


def _image_as_text(self: RendererHTML, tokens: Sequence[Token], index: int, options: Any, env: Any) -> str:
    # An image would be loaded as soon as it is shown, telling its server who reads what.
    token = tokens[index]
    return escape(f"![{token.content}]({token.attrs.get('src', '')})")


def _link_open(self: RendererHTML, tokens: Sequence[Token], index: int, options: Any, env: Any) -> str:
    tokens[index].attrs.update({"target": "_blank", "rel": "noopener noreferrer nofollow"})
    return self.renderToken(tokens, index, options, env)


def _code(self: RendererHTML, tokens: Sequence[Token], index: int, options: Any, env: Any) -> str:
    # What scrolls by itself must be reached by keyboard.
    button = icon_button("copy", "Copy code", "copy-code")
    return f'<div class="code">{button}<pre tabindex="0"><code>{escape(tokens[index].content)}</code></pre></div>\n'


def _table_open(self: RendererHTML, tokens: Sequence[Token], index: int, options: Any, env: Any) -> str:
    tokens[index].attrs["tabindex"] = "0"
    return self.renderToken(tokens, index, options, env)


def _text(self: RendererHTML, tokens: Sequence[Token], index: int, options: Any, env: Any) -> str:
    text = escape(tokens[index].content)
    marks, explanations = env.get("marks"), env.get("explanations")
    if marks is None or "[" not in text:
        return text
    return _MARK.sub(lambda match: _mark_html(match, marks, explanations), text)


def _mark_html(match: "re.Match[str]", marks: Marks, explanations: Iterator[str]) -> str:
    if match[1] == "?":
        why = escape(next(explanations, UNEXPLAINED))
        return (
            f'<button type="button" class="unsupported" data-act="explain" data-explanation="{why}" '
            f'aria-label="Not supported. {why}">?</button>'
        )
    numbers = [int(number) for number in match[1].split(",")]
    if any(number not in marks.titles for number in numbers):
        return match[0]
    return "".join(_citation_html(number, marks) for number in numbers)


def _citation_html(number: int, marks: Marks) -> str:
    title = text_html(marks.titles[number])
    return (
        f'<a class="cite" href="#source-{marks.turn}-{number}" data-act="cite" title="{title}" '
        f'aria-label="Source {number}: {title}">{number}</a>'
    )


def _markdown() -> MarkdownIt:
    markdown = MarkdownIt("commonmark", {"html": False, "breaks": True}).enable(["table", "strikethrough"])
    # A definition `[1]: …` in an answer would take the citations' place.
    markdown.disable("reference")
    markdown.validateLink = _may_link  # type: ignore[method-assign]
    markdown.add_render_rule("image", _image_as_text)
    markdown.add_render_rule("link_open", _link_open)
    markdown.add_render_rule("text", _text)
    for name in ("fence", "code_block"):
        markdown.add_render_rule(name, _code)
    markdown.add_render_rule("table_open", _table_open)
    return markdown


_MARKDOWN = _markdown()


def valid_text(text: str) -> str:
    """`text` with surrogate pairs joined and lone surrogates, which no page can hold, replaced by U+FFFD."""
    return text if text.isascii() else text.encode("utf-16", "surrogatepass").decode("utf-16", "replace")


def text_html(text: str) -> str:
    """`text` letter for letter, fit for an element and for a quoted attribute."""
    return escape(valid_text(text))


def markdown_html(markdown: str, marks: Marks | None = None) -> str:
    """Markdown as HTML that cannot load or run anything."""
    env = {} if marks is None else {"marks": marks, "explanations": iter(marks.explanations)}
    return str(_MARKDOWN.render(valid_text(markdown), env))


def text_of_markdown(markdown: str) -> str:
    """What a reader sees of it as text: no addresses of links, no numbers of lists, no pictures, entities as letters.

    A reference is taken for a link, as what it refers to may stand elsewhere.
    """
    pieces: list[str] = []
    for token in _MARKDOWN.parse(_REFERENCE.sub(r"\1", valid_text(markdown))):
        for part in token.children or (token,):
            if part.type in ("text", "code_inline", "fence", "code_block"):
                pieces.append(part.content)
            elif part.type in ("softbreak", "hardbreak"):
                pieces.append(" ")
        if token.nesting <= 0 and pieces and pieces[-1] != "\n":
            pieces.append("\n")
    return "".join(pieces).strip()


def unwrapped(text: str) -> str:
    """Prose that was wrapped line by line, as PDFs hold it, fit to be wrapped anew; tables, lists and code stay.

    Each line break becomes one character, so that places in the text stay right: a space, or one of no width behind a
    hyphen and between characters of scripts without spaces.
    """
    return "\n\n".join(_unwrapped_paragraph(paragraph) for paragraph in text.split("\n\n"))


def _unwrapped_paragraph(paragraph: str) -> str:
    lines = paragraph.split("\n")
    width = max(map(len, lines))
    parts = [lines[0]]
    for before, after in pairwise(lines):
        joins = width >= _LEAST_WIDTH and len(before) >= _LEAST_FILL * width and _goes_on(before, after)
        parts += [_joint(before, after) if joins else "\n", after]
    return "".join(parts)


def _goes_on(before: str, after: str) -> bool:
    if not before.strip() or not after or _NEW_LINE.match(after) or before.startswith("|"):
        return False
    return not any(_APART.search(line) or _is_mostly_numbers(line) for line in (before, after))


def _is_mostly_numbers(line: str) -> bool:
    words = line.split()
    return sum(any(character.isdigit() for character in word) for word in words) * 3 > len(words)


def _joint(before: str, after: str) -> str:
    is_cut = re.search(r"\w[-‐]$", before) or (_UNSPACED.match(before[-1]) and _UNSPACED.match(after[0]))
    return "\u200b" if is_cut else " "


def marked_html(text: str, sentences: Sequence[Span], words: Sequence[Span]) -> str:
    """`text` letter for letter, with sentences marked, and words in them once more. Overlapping spans are one."""
    characters = valid_text(text)
    if len(characters) != len(text):
        return escape(characters)  # places are those of the text as it was
    levels = [0] * len(characters)
    for level, spans in enumerate((sentences, words), 1):
        for start, end in spans:
            levels[start:end] = [level] * len(levels[start:end])
    for space in re.finditer(r"\s+", characters):
        # Words that follow each other are marked as one.
        if all(0 < at < len(levels) and levels[at] == 2 for at in (space.start() - 1, space.end())):
            levels[space.start() : space.end()] = [2] * len(space.group())
    parts, done = [], 0
    for level, run in groupby(levels):
        end = done + len(list(run))
        before, after = _LEVELS[level]
        parts.append(f"{before}{escape(characters[done:end])}{after}")
        done = end
    return "".join(parts)
