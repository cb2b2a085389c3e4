"""Values of settings in words: what a setting takes, and what stands in the environment for one that it has."""

import difflib
import json
from collections.abc import Iterable
from pathlib import Path
from typing import Literal, get_args, get_origin

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
        return "a list" + (" of names" if kind is str else " of tables") + ", in the environment as JSON"
    if get_origin(kind) is Literal:
        return "one of: " + ", ".join(str(value) for value in get_args(kind))
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
    if name.endswith(("_url", "_endpoint")):
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
    fields = _entry_fields(field)
    return json.dumps([{fields[0]: "large"} if fields else "large"])


def did_you_mean(key: str, known: Iterable[str], *, prefix: str = "") -> str:
    """A hint at the name that is most like the one given, as a variable where there is a prefix; empty without one."""
    close = difflib.get_close_matches(key.replace("-", "_"), known, n=1)
    return f"; did you mean {prefix + close[0].upper() if prefix else close[0]}?" if close else ""


def entry_fault(detail: ErrorDetails, field: FieldInfo) -> str:
    """What is wrong within a setting that is a list: the place in it, and the fault."""
    *places, last = detail["loc"]
    if detail["type"] == "extra_forbidden":
        fields = _entry_fields(field)
        fault = f"{last!r} is not one of its fields ({', '.join(fields)}){did_you_mean(str(last), fields)}"
    else:
        places, fault = [*places, last], detail["msg"].removeprefix("Value error, ")
    place = "".join(f"[{part}]" if isinstance(part, int) else f".{part}" for part in places[1:])
    return f"{place}: {fault}"


def _entry_fields(field: FieldInfo) -> list[str]:
    """Fields of the tables in a list; empty where it holds names."""
    kind = next(iter(get_args(field.annotation)), None)
    return list(kind.model_fields) if isinstance(kind, type) and issubclass(kind, BaseModel) else []


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
