"""What pydantic finds wrong with a request, for the person who sent it: which field, what it must be, what it was.

Pydantic's own words ("String should have at least 1 character") are for programmers, and its places name members of
unions, which are no part of what was sent.
"""

import json
from collections.abc import Mapping, Sequence
from typing import Any

MOST_SHOWN_CHARS = 60
# Members of unions, as pydantic names them in places.
_UNION_MEMBERS = frozenset({"str", "int", "float", "bool", "none"})

_MUST_BE = {
    "string": "a text",
    "int": "a whole number",
    "float": "a number",
    "finite": "a finite number",
    "bool": "true or false",
    "list": "a list",
    "tuple": "a list",
    "dict": "an object",
    "model": "an object",
    "datetime": "a time such as 2026-01-31T12:00:00Z",
    "date": "a date such as 2026-01-31",
    "none": "null",
}
_BOUNDS = {
    "greater_than": ("gt", "must be more than"),
    "greater_than_equal": ("ge", "must be at least"),
    "less_than": ("lt", "must be less than"),
    "less_than_equal": ("le", "must be at most"),
}
_SIZES = ("string_too_long", "string_too_short", "too_long", "too_short")


def explain(errors: Sequence[Mapping[str, Any]], place: str = "") -> tuple[str, str | None]:
    """A sentence about the first thing that is wrong, and the field that is to blame, as clients write it.

    `errors` are pydantic's, `place` is where the data that they are about stands in the request. The sentence calls the
    field by its name within that data.
    """
    placed = [(_place(error.get("loc", ())), error) for error in errors]
    first = placed[0][0]
    # Of a union each member says what is wrong; the one that looked deepest is the one that was meant.
    name = max((name for name, _ in placed if name.startswith(first)), key=_depth)
    about = [error for found, error in placed if found == name]
    field = ".".join(part for part in (place, name) if part)
    return f"{name or place or 'the body'} {_phrase(about)}", field or None


def shown(value: Any) -> str:
    """A value that was sent, in short; of what holds others, only its kind."""
    if isinstance(value, Mapping):
        return "an object"
    if isinstance(value, list | tuple | set):
        return "a list"
    text = json.dumps(value, ensure_ascii=False, default=lambda other: type(other).__name__)
    return text if len(text) <= MOST_SHOWN_CHARS else f"{text[:MOST_SHOWN_CHARS]}…"


def _phrase(errors: Sequence[Mapping[str, Any]]) -> str:
    error = errors[0]
    kind, context, given = str(error.get("type", "")), error.get("ctx") or {}, error.get("input")
    if kind == "missing":
        return "is missing: send it"
    if kind == "extra_forbidden":
        return "is not known here: leave it out"
    if kind in _SIZES:
        return _size(kind, context, given)
    if kind in _BOUNDS:
        limit, must = _BOUNDS[kind]
        return f"{must} {_number(context[limit])}, not {shown(given)}"
    if kind in ("literal_error", "enum"):
        return f"must be {context.get('expected')}, not {shown(given)}"
    members = [
        None if str(each["type"]).endswith("mismatch") else _MUST_BE.get(each["type"].split("_")[0]) for each in errors
    ]
    if all(members):
        return f"must be {' or '.join(dict.fromkeys(str(member) for member in members))}, not {shown(given)}"
    message = str(error.get("msg", "")).removeprefix("Value error, ").removeprefix("Assertion failed, ")
    return message.replace("Input should be", "must be").replace("Input should", "must") or "is not valid"


def _size(kind: str, context: Mapping[str, Any], given: Any) -> str:
    unit = "characters" if kind.startswith("string") else "entries"
    has = f"it has {len(given):,}" if hasattr(given, "__len__") else "it has another number"
    if kind.endswith("long"):
        return f"may have at most {context.get('max_length'):,} {unit}; {has}: send less"
    least = context.get("min_length")
    return "is empty: fill it" if least == 1 else f"must have at least {least:,} {unit}; {has}: send more"


def _number(value: Any) -> str:
    return f"{value:,}" if isinstance(value, int) else f"{value:g}"


def _place(location: Sequence[Any]) -> str:
    """A place in a body as clients write it: `messages[0].content`."""
    place = ""
    for part in location:
        if isinstance(part, int):
            place += f"[{part}]"
        elif str(part).isidentifier() and part not in _UNION_MEMBERS:
            place += f".{part}" if place else str(part)
    return place


def _depth(place: str) -> int:
    return place.count(".") + place.count("[")
