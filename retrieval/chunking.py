"""Documents into chunks: about 1,000 characters, one heading path, one page, never more tokens than the embedder reads.

Chunks do not overlap. A section that is too long is cut into parts of about equal size at the best border there is:
between blocks, then sentences, lines, words, and only then inside a word. A table is cut between rows and each part
carries the table's header.

    text of the document   ......[block][block]....[block.................]....
    chunks                       [ chunk 0    ]    [ chunk 1 ][ chunk 2   ]        start, end: offsets into that text
    indexed text           "Title > Heading > Subheading\\n" + chunk.text           embedded and searched, not shown
"""

import re
import unicodedata
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from itertools import groupby

from retrieval.loaders.document import Block, LoadedDocument

# Raised when loaders or chunking change what they make of the same bytes: documents are then taken in anew.
REVISION = 4
MAX_CHARS = 1000
_MAX_PATH_CHARS = 160
# However long the headings, this many tokens are left for the text.
_MIN_TEXT_TOKENS = 16

_SENTENCE_END = re.compile(r"(?<=[.!?…])[\"'”’)\]]*\s+|(?<=[。！？．])")
_LINE_END = re.compile(r"\n")
_SPACE = re.compile(r"\s+")
_FIELD_END = re.compile(r"; ")
_BORDERS = (_SENTENCE_END, _LINE_END, _SPACE)
_PLACE = re.compile(r"(?:row|line|item)s? \d+(?:–\d+)?")
_LINK = re.compile(r"!?\[([^\]\n]*)\]\([^)\s]*(?:\s+\"[^\"\n]*\")?\)")

CountTokens = Callable[[str], int]


@dataclass(frozen=True)
class Chunk:
    """One chunk. `text` is what is shown: the document's `[start:end]`, below a repeated header in a cut table."""

    text: str
    start: int
    end: int
    headings: tuple[str, ...]
    page: int | None


def heading_below_title(title: str, headings: Sequence[str]) -> tuple[str, ...]:
    """The heading path without a first heading that only repeats the title."""
    repeats = bool(headings) and headings[0].casefold() == title.casefold()
    return tuple(headings[1:] if repeats else headings)


def indexed_text(title: str, headings: Sequence[str], text: str) -> str:
    """What is embedded and searched for a chunk: title and heading path, then the text without link targets.

    A heading such as "rows 17–20" says where a chunk stands and not what it is about: it is shown only.
    """
    path = _path_line((title, *without_place(heading_below_title(title, headings))))
    body = _LINK.sub(r"\1", text)
    return f"{path}\n{body}" if path else body


def without_place(headings: Sequence[str]) -> tuple[str, ...]:
    """The heading path without a part that only counts, such as "row 17": what a section is about."""
    return tuple(part for part in headings if not _PLACE.fullmatch(part))


def _path_line(parts: Sequence[str]) -> str:
    """The path in at most 160 characters: headings in the middle go first, then the ends are cut."""
    parts = [part for part in parts if part]
    while len(parts) > 2 and len(" > ".join(parts)) > _MAX_PATH_CHARS:
        del parts[1]
    room = (_MAX_PATH_CHARS - 3 * (len(parts) - 1)) // max(1, len(parts))
    if len(" > ".join(parts)) > _MAX_PATH_CHARS:
        parts = [part[:room] for part in parts]
    return " > ".join(parts)


def chunk_document(
    document: LoadedDocument, count_tokens: CountTokens, max_tokens: int, max_chars: int = MAX_CHARS
) -> list[Chunk]:
    """Cuts a document so that no chunk's indexed text has more than `max_tokens`.

    `count_tokens` counts as the embedder does, without the special tokens that it adds.
    """
    chunks: list[Chunk] = []
    for (headings, page), blocks in groupby(document.blocks, key=lambda block: (block.headings, block.page)):
        path = heading_below_title(document.title, headings)
        room = max(_MIN_TEXT_TOKENS, max_tokens - count_tokens(indexed_text(document.title, path, "")))
        packer = _Packer(document.text, count_tokens, room, max_chars)
        chunks += [Chunk(text, start, end, path, page) for text, start, end in packer.pack(list(blocks))]
    return chunks


@dataclass(frozen=True)
class _Piece:
    """A span that stays whole. `header` is put in front of a chunk that begins with it (rows of a cut table)."""

    start: int
    end: int
    header: str = ""


class _Packer:
    """Packs the blocks of one section into chunks of at most `max_chars` and `max_tokens`."""

    def __init__(self, text: str, count_tokens: CountTokens, max_tokens: int, max_chars: int) -> None:
        self._text = text
        self._count_tokens = count_tokens
        self._max_tokens = max_tokens
        self._max_chars = max_chars

    def pack(self, blocks: list[Block]) -> Iterator[tuple[str, int, int]]:
        """Yields (shown text, start, end)."""
        pieces = [piece for block in blocks for piece in self._pieces(block)]
        # Parts of equal size rather than full ones and a tail: the tail would match nothing and answer nothing.
        length = sum(piece.end - piece.start for piece in pieces)
        target = length / max(1, -(-length // self._max_chars))
        group: list[_Piece] = []
        for piece in pieces:
            full = bool(group) and piece.start - group[0].start >= target
            if group and (full or not self._fits(self._shown([*group, piece]))):
                yield self._shown(group), group[0].start, group[-1].end
                group = []
            group.append(piece)
        if group:
            yield self._shown(group), group[0].start, group[-1].end

    def _shown(self, group: list[_Piece]) -> str:
        return group[0].header + self._text[group[0].start : group[-1].end]

    def _fits(self, text: str) -> bool:
        return len(text) <= self._max_chars and self._count_tokens(text) <= self._max_tokens

    def _pieces(self, block: Block) -> Iterator[_Piece]:
        if self._fits(self._text[block.start : block.end]):
            yield _Piece(block.start, block.end)
        elif block.kind == "table":
            yield from self._rows(block)
        elif block.kind == "records":
            yield from self._records(block)
        else:
            borders = _BORDERS[1:] if block.kind == "code" else _BORDERS
            yield from self._split(block.start, block.end, borders)

    def _rows(self, block: Block) -> Iterator[_Piece]:
        """A table's rows. The first carries the header as it stands; the others repeat it, unless it is very wide."""
        lines = list(_parts(self._text, block.start, block.end, _LINE_END))
        header_end = lines[min(2, len(lines)) - 1][1]
        header = self._text[block.start : header_end] + "\n"
        if len(lines) < 3 or self._is_wide(header):
            yield from self._split(block.start, block.end, _BORDERS[1:])
            return
        inside = self._below(header)
        for start, end in lines[2:]:
            for piece in inside._split(start, end, _BORDERS):
                # The first row needs no copy of the header: its piece begins where the table begins.
                first = piece.start == lines[2][0]
                yield _Piece(block.start, piece.end) if first else _Piece(piece.start, piece.end, header)

    def _records(self, block: Block) -> Iterator[_Piece]:
        """Records, one a line. One that is too long is cut between its fields, and each part repeats its label."""
        for start, end in _parts(self._text, block.start, block.end, _LINE_END):
            label_end = self._text.find(": ", start, end) + 2
            label = self._text[start:label_end] if label_end > 1 else ""
            if self._fits(self._text[start:end]) or not label or self._is_wide(label):
                yield from self._split(start, end, (_FIELD_END, *_BORDERS))
                continue
            for piece in self._below(label)._split(label_end, end, (_FIELD_END, *_BORDERS)):
                first = piece.start == label_end
                yield _Piece(start, piece.end) if first else _Piece(piece.start, piece.end, label)

    def _is_wide(self, header: str) -> bool:
        """Whether repeating this header would leave too little room for what stands below it."""
        return len(header) > self._max_chars // 3 or self._count_tokens(header) > self._max_tokens // 3

    def _below(self, header: str) -> "_Packer":
        """A packer for what has this header in front."""
        room = self._max_tokens - self._count_tokens(header)
        return _Packer(self._text, self._count_tokens, room, self._max_chars - len(header))

    def _split(self, start: int, end: int, borders: Sequence[re.Pattern[str]]) -> Iterator[_Piece]:
        """Spans that fit, cut at the first kind of border that there is."""
        if self._fits(self._text[start:end]):
            yield _Piece(start, end)
            return
        for index, border in enumerate(borders):
            parts = list(_parts(self._text, start, end, border))
            if len(parts) > 1:
                for part_start, part_end in parts:
                    yield from self._split(part_start, part_end, borders[index:])
                return
        middle = _safe_cut(self._text, start, end)
        if middle in (start, end):
            yield _Piece(start, end)  # one character and its marks: smaller there is not
            return
        yield from self._split(start, middle, ())
        yield from self._split(middle, end, ())


def _parts(text: str, start: int, end: int, border: re.Pattern[str]) -> Iterator[tuple[int, int]]:
    """The non-empty spans between borders; punctuation that belongs to a border stays with the span before it."""
    position = start
    for match in border.finditer(text, start, end):
        cut = match.end()
        part_end = position + len(text[position:cut].rstrip())
        if part_end > position:
            yield position, part_end
        position = cut
    part_end = position + len(text[position:end].rstrip())
    if part_end > position:
        yield position, part_end


def _safe_cut(text: str, start: int, end: int) -> int:
    """The middle of the span, moved so that no mark, joiner or variation selector is cut from its letter."""
    middle = (start + end) // 2
    while middle > start and (
        unicodedata.category(text[middle]) in ("Mn", "Mc", "Me", "Cf") or text[middle - 1] == "\u200d"
    ):
        middle -= 1
    return middle if middle > start else (start + end) // 2
