"""The layout of PDF pages: columns that the file interleaves are put in reading order, running heads and feet dropped.

PDFium gives a page's text in the order in which the file draws it, which for most files is the order of reading. Some
draw line by line across the columns; those are told by a gutter that most lines of the page leave free.
"""

import ctypes
import re
import statistics
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import takewhile
from typing import Any

from pypdfium2 import raw

# The upper and the lower margin, as shares of the page's height, and how many lines in each may run over the pages.
_MARGIN = 0.085
_MARGIN_LINES = 3
# On how many pages, and on what share of them, a line must stand to be a running one.
_MIN_PAGES = 3
_MIN_SHARE = 0.3
_MIN_GUTTER_LINES = 6
_GUTTER_SHARE = 0.4
# How much of its column a line of prose fills on average; the cells of a table fill less.
_PROSE_FILL = 0.6
_NUMBER = re.compile(r"\d+")
_LINE = re.compile(r"[^\r\n]+")

Box = tuple[float, float, float, float]  # left, bottom, right, top, in points from the page's lower left corner


@dataclass(frozen=True)
class PageText:
    """A page's lines in reading order, and the indexes of those in the upper and lower margin, outermost first."""

    lines: Sequence[str]
    top: Sequence[int] = ()
    bottom: Sequence[int] = ()


@dataclass(frozen=True)
class _Line:
    text: str
    start: int
    box: Box
    gap: tuple[float, float] | None  # the widest empty stretch within the line


def page_text(text_page: Any, height: float) -> PageText:
    """The lines of an open text page."""
    text = text_page.get_text_range(errors="replace")
    if len(text) != text_page.count_chars():  # letters beyond the basic plane: places in the text are not known
        return PageText(text.splitlines())
    lines = [_measured(text_page, match.group(), match.start()) for match in _LINE.finditer(text)]
    gutter = _gutter(lines)
    if gutter is not None:
        lines = _by_columns(text_page, lines, gutter)
    return PageText([line.text for line in lines], *_margins(lines, height))


def without_running_lines(pages: Sequence[PageText]) -> list[str]:
    """The pages' texts without heads and feet: lines in a margin that many pages share, but for the page's number."""
    keys = [
        {index: _running_key(page.lines[index], number) for index in (*page.top, *page.bottom)}
        for number, page in enumerate(pages)
    ]
    counts = Counter(key for of_page in keys for key in set(of_page.values()))
    needed = max(_MIN_PAGES, _MIN_SHARE * sum(1 for page in pages if page.lines))
    texts = []
    for page, of_page in zip(pages, keys, strict=True):
        repeated = {index for index, key in of_page.items() if counts[key] >= needed}
        # What stands further in than a line of the text belongs to the text.
        running = {index for margin in (page.top, page.bottom) for index in takewhile(repeated.__contains__, margin)}
        # A page that would be left empty consists of what looks like a running line.
        kept = [line for index, line in enumerate(page.lines) if index not in running] or page.lines
        texts.append("\n".join(kept))
    return texts


def _running_key(line: str, page: int) -> str:
    """The line with each number as its distance from the page's index: "12 of 40" on the next page is "13 of 40"."""
    plain = " ".join(line.split())
    if len(plain) > 80:
        return plain
    numbers = list(_NUMBER.finditer(plain))
    for match in numbers:
        # The page's number alone may change from page to page; a wrong guess leaves lines that are equal on no page.
        distance = int(match.group()) - page if len(match.group()) < 6 else None
        if distance is not None and -50 <= distance <= 50:
            return f"{plain[: match.start()]}#{distance}{plain[match.end() :]}"
    return plain


def _measured(text_page: Any, text: str, start: int) -> _Line:
    boxes = []
    left, top, right, bottom = (ctypes.c_double() for _ in range(4))
    for index in range(raw.FPDFText_CountRects(text_page.raw, start, len(text))):
        if raw.FPDFText_GetRect(text_page.raw, index, left, top, right, bottom):
            boxes.append((left.value, bottom.value, right.value, top.value))
    if not boxes:
        return _Line(text, start, (0.0, 0.0, 0.0, 0.0), None)
    whole = (min(b[0] for b in boxes), min(b[1] for b in boxes), max(b[2] for b in boxes), max(b[3] for b in boxes))
    return _Line(text, start, whole, _widest_gap(boxes))


def _widest_gap(boxes: list[Box]) -> tuple[float, float] | None:
    gaps = []
    reached = min(box[0] for box in boxes)
    for left, _, right, _ in sorted(boxes):
        if left > reached:
            gaps.append((reached, left))
        reached = max(reached, right)
    return max(gaps, key=lambda gap: gap[1] - gap[0], default=None)


def _gutter(lines: Sequence[_Line]) -> float | None:
    """Where two columns of prose are parted that the file draws line by line; None for all other pages."""
    cut = [line for line in lines if line.gap is not None and line.gap[1] - line.gap[0] >= _height(line)]
    if len(cut) < max(_MIN_GUTTER_LINES, _GUTTER_SHARE * len(lines)):
        return None
    right_edges = [line.gap[1] for line in cut if line.gap]
    middle = statistics.median(right_edges) - 1.0
    across = [line for line in cut if line.gap and line.gap[0] < middle < line.gap[1]]
    if len(across) < 0.8 * len(cut):
        return None
    first, last = min(line.box[0] for line in across), max(line.box[2] for line in across)
    left_fill = statistics.mean((line.gap[0] - first) / (middle - first) for line in across if line.gap)
    right_fill = statistics.mean((line.box[2] - middle) / (last - middle) for line in across)
    return middle if min(left_fill, right_fill) >= _PROSE_FILL else None


def _by_columns(text_page: Any, lines: Sequence[_Line], gutter: float) -> list[_Line]:
    """Between lines that cross the gutter: first what stands left of it, then what stands right."""
    ordered: list[_Line] = []
    left: list[_Line] = []
    right: list[_Line] = []
    for line in lines:
        if line.gap is not None and line.gap[0] < gutter < line.gap[1]:
            cut = _char_right_of(text_page, line, gutter)
            x0, y0, x1, y1 = line.box
            left.append(_Line(line.text[:cut].rstrip(), line.start, (x0, y0, line.gap[0], y1), None))
            right.append(_Line(line.text[cut:], line.start + cut, (line.gap[1], y0, x1, y1), None))
        elif line.box[2] <= gutter:
            left.append(line)
        elif line.box[0] >= gutter:
            right.append(line)
        else:
            ordered += [*left, *right, line]
            left, right = [], []
    return [*ordered, *left, *right]


def _char_right_of(text_page: Any, line: _Line, gutter: float) -> int:
    left, right, bottom, top = (ctypes.c_double() for _ in range(4))
    for offset, char in enumerate(line.text):
        found = raw.FPDFText_GetCharBox(text_page.raw, line.start + offset, left, right, bottom, top)
        if found and not char.isspace() and left.value >= gutter:
            return offset
    return len(line.text)


def _margins(lines: Sequence[_Line], height: float) -> tuple[list[int], list[int]]:
    placed = [index for index, line in enumerate(lines) if line.box != (0.0, 0.0, 0.0, 0.0)]
    top = [index for index in placed if lines[index].box[1] >= (1 - _MARGIN) * height]
    bottom = [index for index in placed if lines[index].box[3] <= _MARGIN * height]
    top.sort(key=lambda index: -lines[index].box[3])
    bottom.sort(key=lambda index: lines[index].box[1])
    return top[:_MARGIN_LINES], bottom[:_MARGIN_LINES]


def _height(line: _Line) -> float:
    return line.box[3] - line.box[1]
