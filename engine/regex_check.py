"""How large a regular expression is with its repetitions written out, and how large it may be.

The library that follows an expression bounds its own work in steps and not in time: one step of `(a{1,1000}){1000}`
takes minutes, since all ways to divide the text so far among the repetitions are alternatives. So what it would choke
on is refused before it sees it.
"""

from __future__ import annotations

import re
from dataclasses import dataclass

from engine.errors import InvalidParameterError

MAX_REGEX_CHARS = 8 * 1024
MAX_QUANTIFIERS = 1000
# Characters with repetitions written out: of the whole, and of what is inside groups that are repeated.
MAX_REGEX_SIZE = 10_000
MAX_REPEATED_SIZE = 2_000
# Where counting ends.
_ENOUGH = 10**9

_TOKEN = re.compile(
    r"""
      (?P<count> \{ (?P<least> \d+ ) ,? (?P<most> \d* ) \} | [*+?] ) \??
    | (?P<open> \( (?: \? (?: P?<\w+> | [a-zA-Z-]* :? ) )? )
    | (?P<close> \) )
    | \|
    | (?P<one> \\ (?: [pPxuU] \{ [^}]* \} | [pP] . | x .. | u .{4} | U .{8} | . ) | \[ | . )
    """,
    re.VERBOSE | re.DOTALL,
)


@dataclass
class Size:
    """Characters of an expression with its repetitions written out, and those of them that stand in repeated groups."""

    whole: int = 0
    repeated: int = 0

    def add(self, other: Size) -> None:
        """What stands behind it counts too."""
        self.whole = min(_ENOUGH, self.whole + other.whole)
        self.repeated = min(_ENOUGH, self.repeated + other.repeated)

    def times(self, count: int, *, is_group: bool) -> Size:
        """That of so many of them."""
        whole = min(_ENOUGH, self.whole * count)
        return Size(whole, whole if is_group and count > 1 else self.repeated)


def check_regex(field: str, regex: str) -> None:
    """Raises InvalidParameterError, naming `field`, for an expression that is too long or whose repetitions are."""
    if len(regex) > MAX_REGEX_CHARS:
        raise InvalidParameterError(field, f"has {len(regex):,} characters; at most {MAX_REGEX_CHARS:,} are allowed")
    size, num_quantifiers = size_of(regex)
    if num_quantifiers > MAX_QUANTIFIERS:
        raise InvalidParameterError(
            field, f"has {num_quantifiers:,} repetitions; at most {MAX_QUANTIFIERS:,} are allowed"
        )
    check_size(field, size)


def check_size(field: str, size: Size, what: str = "") -> None:
    """Raises InvalidParameterError, naming `field` and `what` of it, for a size that would take too long to follow."""
    for count, most, where in (
        (size.whole, MAX_REGEX_SIZE, ""),
        (size.repeated, MAX_REPEATED_SIZE, " in repeated groups"),
    ):
        if count > most:
            more = "more than " if count >= _ENOUGH else ""
            raise InvalidParameterError(
                field,
                f"{what}comes to {more}{count:,} characters{where} with its repetitions written out; at most {most:,} "
                f"are allowed: lower its counts",
            )


def size_of(regex: str) -> tuple[Size, int]:
    """Its size, and how many quantifiers it has.

    What is no regular expression gets some size: to say what is wrong with it is the library's business.
    """
    sums, last, is_group = [Size()], Size(), False
    at = num_quantifiers = 0
    while found := _TOKEN.match(regex, at):
        at = found.end()
        if found["count"]:
            last, is_group = last.times(most_of(found), is_group=is_group), True
            num_quantifiers += 1
            continue
        sums[-1].add(last)
        last, is_group = Size(), False
        if found["open"]:
            sums.append(Size())
        elif found["close"] and len(sums) > 1:
            last, is_group = sums.pop(), True
        elif found["one"]:
            last = Size(1)
            at = _class_end(regex, at) if found["one"] == "[" else at
    while sums:
        last.add(sums.pop())
    return last, num_quantifiers


def most_of(found: re.Match[str]) -> int:
    """How often a quantifier repeats at most; without an end, as often as it must."""
    digits = found["most"] or found["least"] or "1"
    return min(_ENOUGH, max(1, int(digits[:10])))


def _class_end(regex: str, at: int) -> int:
    """Where a character class ends whose `[` ends at `at`; classes may hold others."""
    depth, start = 1, at
    while depth and at < len(regex):
        char = regex[at]
        first = regex[start:at] in ("", "^")
        depth += (char == "[") - (char == "]" and not first)
        at += 2 if char == "\\" else 1
        if char == "[":
            start = at
    return at
