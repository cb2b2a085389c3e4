"""Reads evaluation cases: a JSONL file, one object a line.

| field | value |
| --- | --- |
| question | text; required |
| answer | an accepted answer, or a list of them: for exact match and F1, and as `expected` where that is missing |
| expected (or fact) | a fact that the answer has to hold, or a list of which it has to hold one |
| source (or page) | the document that should be found, by title, path or file name, or a list of them |
| answerable | false: the documents do not hold it, and the right answer is a refusal |
| id | names the case, so that two runs can be compared; the line number where missing |
| rating | "down": `answer` and `source` are wrong ones; the line counts only with `expected` or `answerable: false` |

What `GET /api/v1/feedback?format=jsonl` exports is such a file; what it says beside these fields is not looked at.
A file with faults is refused with all of them, each with its line, so that one edit mends it.
"""

import difflib
import json
from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from app.errors import EvaluationFileError
from app.evaluation.records import Case

FIELDS = ("question", "answer", "expected", "source", "answerable", "id", "rating")
# Of exported feedback, for people.
REMARKS = ("comment", "passages", "settings", "session_id", "index", "created_at")
OTHER_NAMES = {"fact": "expected", "page": "source"}
MAX_FAULTS_SHOWN = 10
_WRITE_EXPECTED = "write what is right into their lines as `expected`"


@dataclass(frozen=True)
class CaseFile:
    """The cases of a file, and what in it was passed over, in sentences."""

    cases: tuple[Case, ...]
    warnings: tuple[str, ...]


class _LineError(Exception):
    """What is wrong with a line, in words."""


def read_cases(path: Path) -> CaseFile:
    """The cases of a file. Raises EvaluationFileError, naming every line at fault (the first ten in full)."""
    try:
        data = path.read_bytes().removeprefix(b"\xef\xbb\xbf")
    except OSError as error:
        raise EvaluationFileError(f"{path} cannot be read: {error.strerror}") from None
    cases: dict[str, Case] = {}
    faults: list[str] = []
    unknown: Counter[str] = Counter()
    num_rated_down = 0
    for number, line in enumerate(data.split(b"\n"), start=1):
        if not line.strip():
            continue
        try:
            fields = _parse(line)
            unknown.update(name for name in fields if name not in (*FIELDS, *REMARKS))
            if _rated_down(fields):
                for name in ("answer", "source"):
                    fields.pop(name, None)
                if "expected" not in fields and fields.get("answerable", True) is True:
                    num_rated_down += 1
                    continue
            case = _case(fields, number)
            if case.id in cases:
                raise _LineError(f"the id {case.id!r} is that of line {cases[case.id].line} too: give each its own")
            cases[case.id] = case
        except _LineError as error:
            faults.append(f"line {number}: {error}")
    if not cases and not faults and not num_rated_down:
        faults.append('there is no line with a case: write one object a line, such as {"question": "…", "answer": "…"}')
    if faults:
        more = f"\n  and {len(faults) - MAX_FAULTS_SHOWN} more" if len(faults) > MAX_FAULTS_SHOWN else ""
        raise EvaluationFileError(f"{path}:\n  " + "\n  ".join(faults[:MAX_FAULTS_SHOWN]) + more)
    if not cases:
        raise EvaluationFileError(f"{path}: all answers in it are rated down: {_WRITE_EXPECTED}")
    warnings = [_passed_over(name, count) for name, count in unknown.items()]
    if num_rated_down:
        warnings.append(f"{num_rated_down} answers that are rated down are passed over: {_WRITE_EXPECTED}")
    return CaseFile(tuple(cases.values()), tuple(warnings))


def _rated_down(fields: Mapping[str, Any]) -> bool:
    rating = fields.get("rating")
    if rating not in (None, "up", "down"):
        raise _LineError(f'rating is {_short(rating)}: give "up" or "down", or leave it out')
    return bool(rating == "down")


def _parse(line: bytes) -> dict[str, Any]:
    try:
        # Numbers as they are written: 3.50 is not 3.5 to who compares texts.
        value = json.loads(line.decode("utf-8"), parse_int=str, parse_float=str, parse_constant=str)
    except UnicodeDecodeError as error:
        raise _LineError(f"not UTF-8 at byte {error.start}: save the file as UTF-8") from None
    except json.JSONDecodeError as error:
        hint = ": write one whole object on each line" if line.strip()[:1] in b"[]{" else ""
        raise _LineError(f"not JSON, {error.msg} at column {error.colno}{hint}") from None
    except RecursionError:
        raise _LineError("nested too deeply: a case is a flat object") from None
    if not isinstance(value, dict):
        raise _LineError(f'a {type(value).__name__}, not an object such as {{"question": "…", "answer": "…"}}')
    fields: dict[str, Any] = {}
    for given, content in value.items():
        if content is None:
            continue
        name = OTHER_NAMES.get(given, str(given))
        if name in fields:
            raise _LineError(f"{name} is given twice, once by another name: keep one of them")
        fields[name] = content
    return fields


def _case(fields: Mapping[str, Any], line: int) -> Case:
    answerable = fields.get("answerable", True)
    if not isinstance(answerable, bool):
        raise _LineError(f"answerable is {answerable!r}: give true or false, or leave it out")
    case = Case(
        id=_text(fields, "id") if "id" in fields else str(line),
        line=line,
        question=_text(fields, "question"),
        answers=_texts(fields, "answer"),
        expected=_texts(fields, "expected"),
        sources=_texts(fields, "source"),
        answerable=answerable,
    )
    if answerable and not (case.facts or case.sources):
        raise _LineError(
            f"nothing to measure: it has {_listed(fields)}; give an answer, an expected fact or a source, "
            "or answerable: false"
        )
    return case


def _text(fields: Mapping[str, Any], name: str) -> str:
    if name not in fields:
        raise _LineError(f"{name} is missing; it has {_listed(fields)}")
    return _checked(fields[name], name, "a text that is not empty")


def _texts(fields: Mapping[str, Any], name: str) -> tuple[str, ...]:
    if name not in fields:
        return ()
    given = fields[name] if isinstance(fields[name], list) else [fields[name]]
    if not given:
        raise _LineError(f"{name} is an empty list: give a text or a list of texts, or leave it out")
    return tuple(_checked(value, name, "a text or a list of texts, none of them empty") for value in given)


def _checked(value: Any, name: str, allowed: str) -> str:
    if not isinstance(value, str) or not value.strip():
        raise _LineError(f"{name} is {_short(value)}: give {allowed}")
    try:
        value.encode("utf-8")
    except UnicodeEncodeError:
        raise _LineError(f"{name} holds half a surrogate pair, which is not a character: mend the text") from None
    return value.strip()


def _short(value: Any) -> str:
    text = json.dumps(value)
    return text if len(text) <= 60 else text[:60] + "…"


def _listed(fields: Mapping[str, Any]) -> str:
    return ", ".join(map(_short, fields)) or "no field with a value"


def _passed_over(name: str, count: int) -> str:
    near = difflib.get_close_matches(name, (*FIELDS, *OTHER_NAMES), n=1)
    hint = f"; did you mean {near[0]}?" if near else ""
    return f"the field {_short(name)} of {count} cases is not used{hint} (fields: {', '.join(FIELDS)})"
