"""How large the terminals of a Lark grammar are with their repetitions written out, and how large they may be.

The library's parser bounds what rules cost; regular expressions and terminals, which become one, it follows as it does
a `regex`, for minutes (`engine/regex_check.py`). Schemas within the grammar have the limits of schemas.
"""

from __future__ import annotations

import json
import re
from dataclasses import dataclass, field

from engine.errors import InvalidParameterError
from engine.regex_check import Size, check_regex, check_size, most_of, size_of
from engine.schema_check import parse_schema

# Terminals that are made of terminals that are made of …, and groups in groups.
MAX_DEPTH = 64

_TOKEN = re.compile(
    r"""
      (?P<skipped> \s+ | //[^\n]* | \#[^\n]* )
    | (?P<schema> %json \s* )
    | "(?P<text> (?: [^"\\\n] | \\. )* )" i?
    | (?P<regex> /(?: [^/\\\n] | \\. )+/ [a-z]* )
    | (?P<count> \{ \s* (?P<least> \d+ ) \s* ,? \s* (?P<most> \d* ) \s* \} | [*+?] )
    | (?P<name> %? [A-Za-z_] [\w-]* )
    | (?P<open> [(\[] )
    | (?P<close> [)\]] )
    | (?P<colon> : )
    | .
    """,
    re.VERBOSE | re.DOTALL,
)


@dataclass
class _Group:
    """What stands one behind the other in a definition: sizes, names of terminals, and groups; each so often."""

    parts: list[tuple[Size | str | _Group, int]] = field(default_factory=list)


def check_lark(name: str, grammar: str) -> None:
    """Raises InvalidParameterError, naming the parameter `name`, for a grammar that would take too long to follow."""
    terminals = _Terminals(_definitions(name, grammar))
    for terminal in terminals.bodies:
        size = terminals.size(name, terminal, 0)
        # A list of words as long as the grammar is no trouble.
        if size.repeated or size.whole > len(grammar):
            check_size(name, size, f"its terminal {terminal} ")


class _Terminals:
    def __init__(self, bodies: dict[str, _Group]) -> None:
        self.bodies = bodies
        self._known: dict[str, Size] = {}

    def size(self, field: str, terminal: str, depth: int) -> Size:
        """A terminal's size, those that it is made of included; nothing for one that there is not."""
        if depth > MAX_DEPTH:
            raise InvalidParameterError(field, f"nests terminals deeper than {MAX_DEPTH}: write them out")
        if terminal not in self._known:
            self._known[terminal] = Size()  # one that is made of itself is refused by the library
            body = self.bodies.get(terminal, _Group())
            self._known[terminal] = self._size_of_group(field, body, depth)
        return self._known[terminal]

    def _size_of_group(self, field: str, group: _Group, depth: int) -> Size:
        total = Size()
        for part, count in group.parts:
            if isinstance(part, str):
                size = self.size(field, part, depth + 1)
            elif isinstance(part, _Group):
                size = self._size_of_group(field, part, depth)
            else:
                size = part
            total.add(size.times(count, is_group=size.whole > 1))
        return total


def _definitions(name: str, grammar: str) -> dict[str, _Group]:
    """The bodies of the terminals; of what is no grammar, some, for to say what is wrong is the library's business."""
    bodies: dict[str, _Group] = {}
    stack = [_Group()]
    at = 0
    while found := _TOKEN.match(grammar, at):
        at = found.end()
        parts = stack[-1].parts
        if found["schema"] is not None:
            at = _check_schema(name, grammar, at)
        elif found["text"] is not None:
            parts.append((Size(len(found["text"])), 1))
        elif found["regex"]:
            regex = found["regex"][1 : found["regex"].rindex("/")]
            check_regex(name, regex)
            parts.append((size_of(regex)[0], 1))
        elif found["count"] and parts:
            part, count = parts[-1]
            parts[-1] = (part, count * most_of(found))
        elif found["name"]:
            parts.append((found["name"], 1))
        elif found["open"]:
            if len(stack) > MAX_DEPTH:
                raise InvalidParameterError(name, f"nests groups deeper than {MAX_DEPTH}: give some of them names")
            stack.append(_Group())
            parts.append((stack[-1], 1))
        elif found["close"] and len(stack) > 1:
            stack.pop()
        elif found["colon"]:
            stack = [_begun(bodies, stack[0])]
    return {terminal: body for terminal, body in bodies.items() if not terminal.startswith("%") and terminal.isupper()}


def _begun(bodies: dict[str, _Group], before: _Group) -> _Group:
    """The body of the definition whose name, and perhaps options in brackets, are the last of what stands before it."""
    parts = before.parts
    options = [parts.pop()] if parts and isinstance(parts[-1][0], _Group) else []
    name = parts.pop()[0] if parts and isinstance(parts[-1][0], str) else ""
    body = bodies.setdefault(str(name), _Group())
    body.parts.extend(options)
    return body


def _check_schema(name: str, grammar: str, start: int) -> int:
    """Where the schema that begins there ends. Raises InvalidParameterError for one that cannot be served."""
    try:
        schema, end = json.JSONDecoder().raw_decode(grammar, start)
    except (ValueError, RecursionError):
        return start
    try:
        parse_schema(schema)
    except InvalidParameterError as error:
        raise InvalidParameterError(name, str(error)) from None
    return end
