"""Numbers, dates and durations as a sheet shows them: the codes of ECMA-376, part 1, section 18.8.31.

Dates are the exception: those with a day, month and year are given as 2025-01-31, whatever order the code asks for.
Readers differ over what "1/2/2025" is, and not over this.
"""

import re
from calendar import day_name, month_abbr, month_name
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from datetime import date, datetime, time, timedelta
from decimal import ROUND_HALF_UP, Context, Decimal
from functools import cached_property

# Names, literal texts and what takes no room come before the signs that mean something.
_TOKEN = re.compile(
    r'"(?P<quoted>[^"]*)"?|\\(?P<escaped>.)|(?P<filling>[_*].)|\[(?P<bracket>[^\]]*)\]|(?P<general>General)|'
    r"(?P<half>AM/PM|A/P)|(?P<exponent>E[+-])|(?P<digit>[0#?])|(?P<point>\.)|(?P<comma>,)|(?P<percent>%)|(?P<text>@)|"
    r"(?P<moment>y+|m+|d+|h+|s+)|(?P<end>;)|(?P<other>.)",
    re.IGNORECASE | re.DOTALL,
)
_ELAPSED = re.compile(r"h+|m+|s+", re.IGNORECASE)
_THOUSANDS = re.compile(r"(?<=\d)(?=(?:\d{3})+$)")
_CONDITION = re.compile(r"(<=|>=|<>|<|>|=)\s*(-?[\d.]+)")
_LITERAL = "literal"
_AS_STORED = ("general", "text")
# Beyond, a number is written with an exponent whatever its code.
_LARGE = 1e21
_EXACT = Context(prec=100)

Moment = date | time | timedelta


@dataclass(frozen=True)
class _Part:
    kind: str
    text: str


@dataclass(frozen=True)
class _Section:
    """One of the up to four alternatives of a code. `condition`: of which numbers it is, where it says so."""

    parts: tuple[_Part, ...]
    condition: tuple[str, float] | None = None

    @cached_property
    def kinds(self) -> frozenset[str]:
        return frozenset(part.kind for part in self.parts)

    @cached_property
    def plan(self) -> "_Plan":
        return _plan(self.parts)


class NumberFormat:
    """One code, such as `#,##0.00 "€"`."""

    def __init__(self, code: str) -> None:
        self._sections = tuple(_sections(code))

    def number(self, value: float) -> str:
        """A number as it is shown, on one line; empty where the code hides it."""
        if self._sections == (_GENERAL,):
            return plain_number(value)
        section, with_sign = self._section_for(value)
        text = _number(value, section)
        if not value and text and not any(letter.isalnum() for letter in text):
            text = _number(value, self._sections[0])  # a dash stands for zero
        sign = "-" if with_sign and value < 0 and re.search("[1-9]", text) else ""
        return sign + text

    def text(self, value: str) -> str:
        """A text as it is shown; empty where the code hides it."""
        if len(self._sections) < 4 and "text" not in self._sections[-1].kinds:
            return value
        pieces = (value if part.kind == "text" else part.text for part in self._sections[-1].parts)
        return "".join(pieces) if "text" in self._sections[-1].kinds or not self._sections[-1].parts else value

    def moment(self, value: Moment) -> str:
        """A date, time of day or duration as it is shown, a whole date as 2025-01-31."""
        units = list(_units(self._sections[0].parts))
        shows_time = any(unit in "HMS" for unit, _ in units)
        if isinstance(value, date) and any(unit in "ymdw" for unit, _ in units):
            shown = _date(value, dict(units))
            return f"{shown} {_clock(value, units)}" if shows_time and isinstance(value, datetime) else shown
        if shows_time and not (isinstance(value, date) and not isinstance(value, datetime)):
            return _time(value, self._sections[0].parts)
        return value.isoformat() if isinstance(value, date | time) else str(value)

    def _section_for(self, value: float) -> tuple[_Section, bool]:
        """The alternative for a number, and whether a sign is put before it."""
        numeric = self._sections[:3]
        if any(section.condition for section in numeric):
            return next((section for section in numeric if _holds(section.condition, value)), _GENERAL), True
        if value < 0 and len(numeric) > 1:
            return numeric[1], False
        return numeric[2 if not value and len(numeric) > 2 else 0], True


def _sections(code: str) -> Iterator[_Section]:
    parts: list[_Part] = []
    condition = None
    for match in _TOKEN.finditer(code or "General"):
        kind, text = str(match.lastgroup), match[match.lastgroup or 0]
        if kind == "end":
            yield _Section(tuple(parts), condition)
            parts, condition = [], None
        elif kind == "bracket":
            if found := _CONDITION.fullmatch(text):
                condition = found[1], float(found[2])
            elif text.startswith("$"):  # a currency, and whose: "$€-407"
                parts.append(_Part(_LITERAL, text[1:].partition("-")[0]))
            elif _ELAPSED.fullmatch(text):
                parts.append(_Part("elapsed", text.lower()))
        elif kind in ("quoted", "escaped", "other"):
            parts.append(_Part(_LITERAL, text))
        elif kind != "filling":
            parts.append(_Part(kind, text.lower() if kind == "moment" else text))
    yield _Section(tuple(parts), condition)


def _holds(condition: tuple[str, float] | None, value: float) -> bool:
    if condition is None:
        return True
    sign, bound = condition
    if value == bound:
        return sign in ("<=", ">=", "=")
    return sign == "<>" or (sign[0] == "<" and value < bound) or (sign[0] == ">" and value > bound)


def plain_number(value: float) -> str:
    """A number as it is stored, without what is left of binary fractions."""
    return f"{value:.15g}" if isinstance(value, float) else str(value)


def _number(value: float, section: _Section) -> str:
    """The number without its sign, in one alternative's form."""
    plan = section.plan
    value = abs(value)
    if plan.as_stored or (plan.digits and value >= _LARGE):
        shown = {plan.first: plain_number(value)}
    elif plan.is_scientific:
        shown = {plan.first: f"{value:.{len(plan.decimals)}E}"}
    else:
        shown = _placed(value, section.parts, plan)
    pieces = (shown.get(index, text) for index, text in plan.texts)
    return " ".join("".join(pieces).split())


@dataclass(frozen=True)
class _Plan:
    """How an alternative writes numbers: the places of its parts, and what they come to."""

    digits: Sequence[int]
    whole: Sequence[int]
    decimals: Sequence[int]
    point: int | None
    as_stored: bool
    is_scientific: bool
    grouped: bool
    scale: int
    """The power of ten by which the number is taken: two for each "%", minus three for each "," behind the digits."""
    texts: Sequence[tuple[int, str]]
    """What stands in each place whatever the number."""
    step: Decimal
    """One in the last decimal."""

    @property
    def first(self) -> int:
        return self.digits[0]


def _plan(parts: Sequence[_Part]) -> _Plan:
    kinds = [part.kind for part in parts]
    digits = [index for index, kind in enumerate(kinds) if kind == "digit"]
    is_fraction = bool(digits) and any(part == _Part(_LITERAL, "/") for part in parts[digits[0] : digits[-1]])
    as_stored = is_fraction or not set(kinds).isdisjoint(_AS_STORED)
    if as_stored and not digits:
        digits = [index for index, kind in enumerate(kinds) if kind in _AS_STORED]
    is_scientific = "exponent" in kinds and bool(digits)
    mantissa = [index for index in digits if not is_scientific or index < kinds.index("exponent")]
    point = kinds.index("point") if "point" in kinds else None
    end = len(parts) if point is None else point
    whole, decimals = [index for index in mantissa if index < end], [index for index in mantissa if index > end]
    commas = [index for index, kind in enumerate(kinds) if kind == "comma"]
    behind = [index for index in commas if digits and index > (whole or digits)[-1]]
    thousands = sum(index < end or index > digits[-1] for index in behind)
    # A number that is written as one piece stands in the place of its first digit, and nothing in those of the others.
    covered = range(digits[0] + 1, digits[-1] + 1) if digits and (as_stored or is_scientific) else range(0)
    return _Plan(
        digits,
        whole,
        decimals,
        point,
        as_stored,
        is_scientific,
        grouped=bool(whole) and any(whole[0] < index < whole[-1] for index in commas),
        scale=2 * kinds.count("percent") - 3 * thousands,
        texts=[
            (index, part.text if part.kind in (_LITERAL, "percent") else "")
            for index, part in enumerate(parts)
            if index not in covered
        ],
        step=Decimal(1).scaleb(-len(decimals)),
    )


def _placed(value: float, parts: Sequence[_Part], plan: _Plan) -> dict[int, str]:
    """What stands in the place of each digit and of the point, by the index of the part."""
    if not plan.digits:
        return {}
    scaled = Decimal(plain_number(value)).scaleb(plan.scale).quantize(plan.step, ROUND_HALF_UP, _EXACT)
    before, _, after = f"{scaled:f}".partition(".")
    shown = _whole(before, parts, plan)
    needed = max((count for count, index in enumerate(plan.decimals, 1) if parts[index].text == "0"), default=0)
    after = after[:needed] + after[needed:].rstrip("0")
    if plan.point is not None:
        shown[plan.point] = ("" if plan.whole else before.lstrip("0")) + (f".{after}" if after else "")
    return shown


def _whole(number: str, parts: Sequence[_Part], plan: _Plan) -> dict[int, str]:
    """The digits before the point: each in its place, those that there are no places for in the first."""
    slots = plan.whole
    if not slots:
        return {}
    first_zero = next((count for count, index in enumerate(slots) if parts[index].text == "0"), len(slots))
    number = number.lstrip("0").rjust(len(slots) - first_zero, "0")
    if plan.grouped:
        return {slots[0]: _THOUSANDS.sub(",", number)}
    cut = max(0, len(number) - len(slots) + 1)
    singles = [number[:cut], *number[cut:]]
    return dict(zip(slots[len(slots) - len(singles) :], singles, strict=True))


def _units(parts: Sequence[_Part]) -> Iterator[tuple[str, int]]:
    """What of a moment is shown, with the length of its sign: y m d w (a weekday) H M S. "m" is either kind."""
    signs = [(part.text[0], len(part.text), part.kind) for part in parts if part.kind in ("moment", "elapsed")]
    for index, (sign, length, kind) in enumerate(signs):
        follows = index > 0 and signs[index - 1][0] == "h"
        precedes = index + 1 < len(signs) and signs[index + 1][0] == "s"
        if sign in "hs" or kind == "elapsed" or (sign == "m" and (follows or precedes)):
            yield sign.upper(), length
        else:
            yield "w" if sign == "d" and length > 2 else sign, length


def _date(value: date, units: dict[str, int]) -> str:
    named = month_abbr[value.month] if units.get("m") == 3 else month_name[value.month]
    match ("y" in units, "m" in units, "d" in units):
        case (True, _, True):
            shown = f"{value:%Y-%m-%d}"
        case (True, True, False):
            shown = f"{named} {value.year}" if units["m"] > 2 else f"{value:%Y-%m}"
        case (True, False, False):
            shown = str(value.year)
        case (False, True, True):
            shown = f"{value.day} {named}"
        case (False, True, False):
            shown = named
        case (False, False, True):
            shown = str(value.day)
        case _:
            shown = ""
    return f"{day_name[value.weekday()]} {shown}".strip() if "w" in units else shown


def _clock(value: datetime, units: Sequence[tuple[str, int]]) -> str:
    return value.time().isoformat("seconds" if any(unit == "S" for unit, _ in units) else "minutes")


def _time(value: Moment, parts: Sequence[_Part]) -> str:
    """A time of day or a duration, sign by sign; the first unit of a duration takes all that there is."""
    seconds = _seconds(value)
    halves = any(part.kind == "half" for part in parts)
    units = iter(list(_units(parts)))
    pieces = ["-" if seconds < 0 else ""]
    seconds = abs(seconds)
    for part in parts:
        if part.kind in ("moment", "elapsed"):
            unit, length = next(units)
            size = {"H": 3600, "M": 60, "S": 1}.get(unit, 1)
            count = int(seconds // size)
            if part.kind == "moment":
                count %= 24 if unit == "H" else 60
                count = (count + 11) % 12 + 1 if halves and unit == "H" else count
            pieces.append(f"{count:0{length}}")
        elif part.kind == "half":
            pieces.append("AM" if seconds // 3600 % 24 < 12 else "PM")
        elif part.kind == _LITERAL:
            pieces.append(part.text)
    return " ".join("".join(pieces).split())


def _seconds(value: Moment) -> float:
    if isinstance(value, timedelta):
        return round(value.total_seconds())
    moment = value.time() if isinstance(value, datetime) else value
    return moment.hour * 3600 + moment.minute * 60 + moment.second if isinstance(moment, time) else 0


_GENERAL = _Section((_Part("general", "General"),))
