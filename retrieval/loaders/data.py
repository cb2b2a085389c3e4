"""JSON, JSON lines and XML: a sentence an object, under the path of keys or elements that leads to it."""

import json
from collections.abc import Iterable, Mapping
from typing import Any
from xml.etree.ElementTree import Element, ParseError

from defusedxml.common import DefusedXmlException
from defusedxml.ElementTree import fromstring

from retrieval.errors import CorruptDocumentError
from retrieval.loaders.archive import ENTITIES, reading
from retrieval.loaders.document import LoadedDocument, TextBuilder
from retrieval.loaders.encoding import decode, has_byte_order_mark
from retrieval.loaders.tables import RowReader, add_records, cell_text, record

# A text this long in an object is a paragraph of its own, not a part of the sentence.
_LONG_TEXT = 300
_TITLE_KEYS = ("title", "name")


def load_json(data: bytes, fallback_title: str) -> LoadedDocument:
    """Reads JSON. Title: its own "title" or "name", else the file's name. Raises LoadError."""
    text = decode(data)
    if not text.strip():
        return TextBuilder().build(fallback_title)
    with reading("JSON"):
        value = _parsed(text, "the file")
        builder = TextBuilder()
        _add(builder, value, ())
    title = next((value[key] for key in _TITLE_KEYS if key in value), "") if isinstance(value, dict) else ""
    return builder.build(title if isinstance(title, str) and 0 < len(title) <= 200 else fallback_title)


def load_jsonl(data: bytes, fallback_title: str) -> LoadedDocument:
    """Reads JSON lines: a value a line. Raises LoadError."""
    builder = TextBuilder()
    records: list[tuple[int, str, tuple[str, ...]]] = []
    with reading("JSON lines"):
        for number, line in enumerate(decode(data).split("\n"), 1):
            if line.strip():
                records += _record(_parsed(line, f"line {number}"), (), number)
        add_records(builder, records, unit="line")
    return builder.build(fallback_title)


def load_xml(data: bytes, fallback_title: str) -> LoadedDocument:
    """Reads XML: elements without children are the fields of the one that holds them. Raises LoadError."""
    try:
        # Bytes, where the file names its encoding itself; else text, whose encoding is found out.
        named = data.lstrip().startswith(b"<?xml") or has_byte_order_mark(data)
        with reading("XML"):
            root = fromstring(data if named else decode(data), forbid_entities=True)
            builder = TextBuilder()
            _add_element(builder, root, ())
    except CorruptDocumentError as error:
        if isinstance(error.__cause__, DefusedXmlException):
            raise CorruptDocumentError(ENTITIES) from error
        if isinstance(error.__cause__, ParseError):
            raise CorruptDocumentError(f"the file is not well-formed XML ({error.__cause__})") from error
        raise
    return builder.build(fallback_title)


def _parsed(text: str, where: str) -> Any:
    try:
        # Numbers stay as they are written: 1.10 is not 1.1, and a long one is no error.
        return json.loads(text, parse_float=str, parse_int=str)
    except json.JSONDecodeError as error:
        raise CorruptDocumentError(
            f"{where} is not JSON: {error.msg} at line {error.lineno}, column {error.colno}"
        ) from error


def _add(builder: TextBuilder, value: Any, path: tuple[str, ...]) -> None:
    """Adds a JSON value: an object's plain fields as one sentence, its objects and lists below it under their keys."""
    if isinstance(value, list) and any(isinstance(item, dict) for item in value):
        records = [entry for number, item in enumerate(value, 1) for entry in _record(item, path, number)]
        add_records(builder, records, unit="item")
        return
    if isinstance(value, list) and value and all(isinstance(item, list) for item in value):
        reader = RowReader(builder, path, one_table=True)
        for number, row in enumerate(value, 1):
            reader.feed(number, [cell_text(_plain(cell)) for cell in row])
        reader.finish()
        return
    if not isinstance(value, dict):
        builder.add(_plain(value), "prose", path)
        return
    plain = {key: field for key, field in value.items() if not _is_nested(field)}
    _add_fields(builder, plain.items(), path)
    for key, field in value.items():
        if key not in plain:
            _add(builder, field, (*path, str(key)))


def _add_fields(builder: TextBuilder, fields: Iterable[tuple[str, Any]], path: tuple[str, ...]) -> None:
    short: list[tuple[str, str]] = []
    long: list[tuple[str, str]] = []
    for key, value in fields:
        text = _plain(value)
        if len(text) > _LONG_TEXT:
            long.append((key, text))
        else:
            short.append((key, cell_text(text)))
    if short:
        builder.add(record([key for key, _ in short], [text for _, text in short]), "records", path)
    for key, text in long:
        builder.add(text, "prose", (*path, key))


def _record(value: Any, path: tuple[str, ...], number: int) -> list[tuple[int, str, tuple[str, ...]]]:
    """A value's sentence with number and path; none where it is empty. Objects within are written as "address.city"."""
    fields = list(_flat(value, ""))
    text = record([key for key, _ in fields], [field for _, field in fields])
    return [(number, text, path)] if text else []


def _flat(value: Any, prefix: str) -> Iterable[tuple[str, str]]:
    if isinstance(value, Mapping):
        for key, field in value.items():
            yield from _flat(field, f"{prefix}.{key}" if prefix else str(key))
    elif isinstance(value, list) and any(map(_is_nested, value)):
        for field in value:
            yield from _flat(field, prefix)
    else:
        yield prefix, cell_text(_plain(value))


def _is_nested(value: Any) -> bool:
    return isinstance(value, dict) or (
        isinstance(value, list) and any(isinstance(item, (dict, list)) for item in value)
    )


def _plain(value: Any) -> str:
    if isinstance(value, list):
        return ", ".join(_plain(item) for item in value)
    if isinstance(value, bool):
        return "true" if value else "false"
    return "" if value is None else json.dumps(value, ensure_ascii=False) if isinstance(value, dict) else str(value)


def _add_element(builder: TextBuilder, element: Element, path: tuple[str, ...]) -> None:
    """Adds an element: plain fields as one sentence, running text as a paragraph, the others below it."""
    children = [child for child in element if isinstance(child.tag, str)]
    mixed = any((child.tail or "").strip() for child in children)
    here = (*path, _tag(element))
    if mixed or not children:
        builder.add(" ".join("".join(element.itertext()).split()), "prose", here)
        _add_fields(builder, element.attrib.items(), here)
        return
    leaves = [child for child in children if len(child) == 0]
    fields = [*element.attrib.items()]
    for child in leaves:
        fields += [
            (_tag(child), cell_text(child.text)),
            *((f"{_tag(child)} {key}", text) for key, text in child.attrib.items()),
        ]
    _add_fields(builder, [(key.rpartition("}")[2], text) for key, text in fields if text], here)
    for child in children:
        if len(child):
            _add_element(builder, child, here)


def _tag(element: Element) -> str:
    return str(element.tag).rpartition("}")[2]
