"""Values of settings in words: what a setting takes, and what stands in the environment for one that it has."""

import difflib
import json
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any, Literal, get_args, get_origin

from pydantic import BaseModel
from pydantic.fields import FieldInfo
from pydantic_core import ErrorDetails


def as_text(value: object) -> str:
    """A setting's value as it stands in the environment."""
    if isinstance(value, tuple):
        return json.dumps([v.model_dump(exclude_unset=True) if isinstance(v, BaseModel) else v for v in value])
    return str(value).lower() if isinstance(value, bool) else str(value)


def allowed_values(name: str, field: FieldInfo) -> str:
    """The values that a setting takes, in words: 'one of: debug, info', 'a whole number from 1 to 65535'."""
    kinds = [kind for kind in get_args(field.annotation) if kind is not type(None)]
    kind = kinds[0] if kinds and get_origin(field.annotation) is not Literal else field.annotation
    if get_origin(field.annotation) is tuple:
        return _list_of(kind) + ", in the environment as JSON"
    if get_origin(kind) is Literal:
        return _one_of(kind)
    if kind is bool:
        return "true or false"
    if kind is int:
        return "a whole number" + _bounds(field)
    if kind is float:
        return "a number" + _bounds(field)
    if kind is Path:
        return "a path"
    if name == "history_url":
        return "a URL that begins with redis://, rediss://, unix:// or postgresql://"
    if name.endswith(("url", "_endpoint")):
        return "a URL that begins with http:// or https://"
    if name == "device":
        return "one of: auto, cpu, cuda, cuda:N"
    if name == "degradation":
        return "a list of fewer-passages, shorter-answers, asynchronous"
    if name == "vector_store":
        return "faiss, or qdrant: followed by a URL or a folder"
    return "a non-empty text"


def json_example(field: FieldInfo) -> str:
    """A list that a setting might take, as it stands in the environment."""
    first = next(iter(_entry_fields(field)), None)
    return json.dumps([{first: "large"} if first else "large"])


def did_you_mean(key: str, known: Iterable[str], *, prefix: str = "") -> str:
    """A hint at the name that is most like the one given, as a variable where there is a prefix; empty without one."""
    close = difflib.get_close_matches(key.replace("-", "_"), known, n=1)
    return f"; did you mean {prefix + close[0].upper() if prefix else close[0]}?" if close else ""


def entry_fault(detail: ErrorDetails, field: FieldInfo) -> str:
    """What is wrong within a setting that is a list: the place in it, and the fault."""
    *places, last = detail["loc"]
    fields = list(_entry_fields(field))
    if detail["type"] == "extra_forbidden":
        fault = f": {last!r} is not one of its fields ({', '.join(fields)}){did_you_mean(str(last), fields)}"
    elif detail["type"] == "missing":
        fault = f" has no {last}: every one needs it; its fields are {', '.join(fields)}"
    elif detail["type"] == "value_error":
        places, fault = [*places, last], f": {detail['msg'].removeprefix('Value error, ')}"
    else:
        places = [*places, last]
        fault = f" is {detail['input']!r}, which is not {_allowed_within(field, places[2:])}"
    return "".join(f"[{part}]" if isinstance(part, int) else f".{part}" for part in places[1:]) + fault


def _allowed_within(field: FieldInfo, places: Sequence[int | str]) -> str:
    """The values that may stand at a place within an entry of a list, in words."""
    fields = _entry_fields(field)
    if not places:
        return f"a table with fields such as {next(iter(fields))}" if fields else "a text in quotes"
    name = str(places[0])
    kinds = [kind for kind in get_args(fields[name].annotation) if kind is not type(None)]
    listed = next((kind for kind in (fields[name].annotation, *kinds) if get_origin(kind) is tuple), None)
    if listed is None:
        return allowed_values(name, fields[name])
    kind = get_args(listed)[0]
    if len(places) > 1:
        return _one_of(kind) if get_origin(kind) is Literal else "a text in quotes"
    is_filled = any(getattr(entry, "min_length", 0) for entry in fields[name].metadata)
    return _list_of(kind) + (", with one at least" if is_filled else "")


def _one_of(kind: Any) -> str:
    return "one of: " + ", ".join(str(value) for value in get_args(kind))


def _list_of(kind: Any) -> str:
    if get_origin(kind) is Literal:
        return "a list of " + " and ".join(str(value) for value in get_args(kind))
    return "a list of names" if kind is str else "a list of tables"


def _entry_fields(field: FieldInfo) -> Mapping[str, FieldInfo]:
    """Fields of the tables in a list; none where it holds names."""
    kind = next(iter(get_args(field.annotation)), None)
    return kind.model_fields if isinstance(kind, type) and issubclass(kind, BaseModel) else {}


def _bounds(field: FieldInfo) -> str:
    marks = {
        mark: getattr(entry, mark) for entry in field.metadata for mark in ("ge", "gt", "le") if hasattr(entry, mark)
    }
    if "ge" in marks and "le" in marks:
        return f" from {marks['ge']:,} to {marks['le']:,}"
    words = [f"of {marks['ge']:,} or more"] if "ge" in marks else []
    words += [f"above {marks['gt']:,}"] if "gt" in marks else []
    words += [f"up to {marks['le']:,}"] if "le" in marks else []
    return f" {' and '.join(words)}" if words else ""
