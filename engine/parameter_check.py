"""Checks of single parameters, whatever is given: a wrong kind, NaN, a number without end. Ranges are the callers'."""

from __future__ import annotations

import math
from collections.abc import Iterable
from typing import Any

from engine.errors import InvalidParameterError

_SHOWN_CHARS = 80


def shown(value: Any) -> str:
    """A value for a message: short, whatever it is."""
    try:
        text = repr(value)
    except Exception:  # numbers of too many digits, objects that cannot be shown
        text = f"a {type(value).__name__} that cannot be shown"
    return text if len(text) <= _SHOWN_CHARS else f"{text[:_SHOWN_CHARS]}…"


def check_integer(field: str, value: Any, least: int, most: int | None = None) -> None:
    """Raises InvalidParameterError unless `value` is an integer (no bool) from `least` to `most`."""
    if not isinstance(value, int) or isinstance(value, bool) or value < least or (most is not None and value > most):
        allowed = f"of at least {least:,}" if most is None else f"from {least:,} to {most:,}"
        raise InvalidParameterError(field, f"must be an integer {allowed}, got {shown(value)}")


def check_number(field: str, value: Any, low: float, high: float, *, above_low: bool = False) -> None:
    """Raises InvalidParameterError unless `value` is a number in [low, high]; with `above_low`, in (low, high]."""
    if not is_number(value) or not low <= value <= high or (above_low and value == low):
        raise InvalidParameterError(
            field, f"must be a number in {'(' if above_low else '['}{low:g}, {high:g}], got {shown(value)}"
        )


def is_number(value: Any) -> bool:
    """Whether it is a finite number; True and False are none."""
    if isinstance(value, bool) or not isinstance(value, int | float):
        return False
    return isinstance(value, int) or math.isfinite(value)


def check_bool(field: str, value: Any) -> None:
    """Raises InvalidParameterError unless `value` is True or False."""
    if not isinstance(value, bool):
        raise InvalidParameterError(field, f"must be true or false, got {shown(value)}")


def as_tuple(field: str, value: Any, what: str) -> tuple[Any, ...]:
    """The elements of a list. Raises InvalidParameterError for what is none: a single value, text, a mapping."""
    if not isinstance(value, Iterable) or isinstance(value, str | bytes | dict):
        raise InvalidParameterError(field, f"must be a list of {what}, got {shown(value)}")
    return tuple(value)
