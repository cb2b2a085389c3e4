"""What makes a JSON schema impossible to serve: size, depth, patterns that explode, and recursion that never ends.

Which keywords can be enforced is the grammar library's to say; this file holds the limits that keep one request from
taking the server's time and memory, and the one question that the library leaves open: whether any finite document
matches.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from decimal import Decimal
from typing import Any

from engine.errors import InvalidParameterError
from engine.regex_check import check_regex

MAX_SCHEMA_CHARS = 128 * 1024
MAX_SCHEMA_DEPTH = 64
MAX_PROPERTIES = 1000  # of one object; compiling takes time quadratic in them
MAX_DIVISOR = 10_000


def parse_schema(schema: Mapping[str, Any] | str) -> dict[str, Any]:
    """A JSON schema, given as data or as JSON text, as data.

    Raises:
        InvalidParameterError: no JSON schema, over a limit, or such that no finite document can match it.
    """
    parsed = _parsed(schema)
    if isinstance(parsed, bool):
        parsed = {} if parsed else {"not": {}}
    if not isinstance(parsed, dict):
        raise InvalidParameterError("json_schema", f"must be an object, not {type(parsed).__name__}")
    for place, node in _nodes(parsed):
        properties = node.get("properties")
        if isinstance(properties, Mapping) and len(properties) > MAX_PROPERTIES:
            raise InvalidParameterError(
                "json_schema", f"{place} has {len(properties):,} properties; at most {MAX_PROPERTIES:,} are allowed"
            )
        _check_patterns(place, node)
        _check_multiple(place, node.get("multipleOf"))
    if not _has_finite_match(parsed):
        raise InvalidParameterError(
            "json_schema",
            "is recursive without an end: every document that matches would contain another; make the recursive "
            "property optional, or allow null or an empty list beside it",
        )
    return parsed


def _parsed(schema: Any) -> Any:
    if not isinstance(schema, str):
        try:
            schema = json.dumps(schema)
        except (TypeError, ValueError, RecursionError) as error:
            raise InvalidParameterError("json_schema", f"cannot be written as JSON: {error}") from None
    if len(schema) > MAX_SCHEMA_CHARS:
        raise InvalidParameterError(
            "json_schema", f"has {len(schema):,} characters; at most {MAX_SCHEMA_CHARS:,} are allowed"
        )
    try:
        return json.loads(schema)
    except (ValueError, RecursionError) as error:
        raise InvalidParameterError("json_schema", f"is not valid JSON: {error}") from None


def _nodes(root: dict[str, Any]) -> Iterator[tuple[str, dict[str, Any]]]:
    """Every object in the schema with its place. Raises InvalidParameterError below MAX_SCHEMA_DEPTH."""
    todo: list[tuple[str, Any, int]] = [("#", root, 0)]
    while todo:
        place, node, depth = todo.pop()
        if depth > MAX_SCHEMA_DEPTH:
            raise InvalidParameterError(
                "json_schema",
                f"is nested too deeply, at {place[:80]}: at most {MAX_SCHEMA_DEPTH} objects and lists of its JSON may "
                f"lie in one another, of which a property takes two (its schema, and the list of properties)",
            )
        if isinstance(node, dict):
            yield place, node
            todo += [(f"{place}/{key}", value, depth + 1) for key, value in node.items()]
        elif isinstance(node, list):
            todo += [(f"{place}/{index}", value, depth + 1) for index, value in enumerate(node)]


def _check_patterns(place: str, node: dict[str, Any]) -> None:
    keyed = node.get("patternProperties")
    for pattern in (node.get("pattern"), *(keyed if isinstance(keyed, dict) else ())):
        if isinstance(pattern, str):
            try:
                check_regex("pattern", pattern)
            except InvalidParameterError as error:
                raise InvalidParameterError("json_schema", f"{error}, at {place[:80]}") from None


def _check_multiple(place: str, divisor: Any) -> None:
    """Remainders are followed digit by digit, in as many states as there are remainders."""
    if isinstance(divisor, int | float) and not isinstance(divisor, bool):
        digits = Decimal(str(divisor)).as_tuple().digits
        if int("".join(map(str, digits)).strip("0") or "0") > MAX_DIVISOR:
            raise InvalidParameterError(
                "json_schema",
                f"multipleOf is {divisor} at {place[:80]}; its digits without zeros at either end may make a number of "
                f"at most {MAX_DIVISOR:,}",
            )


def _has_finite_match(root: dict[str, Any]) -> bool:
    """Whether some finite document can match, as far as recursion through `$ref` decides it.

    The least fixed point: a reference counts as ending once what it names has been shown to end.
    """
    refs = {node["$ref"] for _, node in _nodes(root) if isinstance(node.get("$ref"), str)}
    targets = {ref: _resolve(root, ref) for ref in refs}
    # What lies elsewhere cannot be judged here: the library refuses it, with its reason.
    ending = {ref for ref, target in targets.items() if target is None}
    while True:
        more = {ref for ref, target in targets.items() if ref not in ending and _ends(target, ending)}
        if not more:
            return _ends(root, ending)
        ending |= more


def _resolve(root: dict[str, Any], ref: str) -> Any:
    """What a reference into the same schema names; None for any other."""
    if not ref.startswith("#"):
        return None
    node: Any = root
    for part in ref[1:].strip("/").split("/") if ref[1:].strip("/") else ():
        key = part.replace("~1", "/").replace("~0", "~")
        node = node.get(key) if isinstance(node, dict) else None
    return node


def _ends(node: Any, ending: set[str]) -> bool:
    """Whether a document can match `node` without entering a reference outside `ending`."""
    if not isinstance(node, dict) or "enum" in node or "const" in node:
        return True
    if isinstance(node.get("$ref"), str) and node["$ref"] not in ending:
        return False
    if not all(_ends(part, ending) for part in _listed(node, "allOf")):
        return False
    for key in ("anyOf", "oneOf"):
        parts = _listed(node, key)
        if parts and not any(_ends(part, ending) for part in parts):
            return False
    kinds = node.get("type", ("object", "array"))
    kinds = {kinds} if isinstance(kinds, str) else set(map(str, kinds if isinstance(kinds, list | tuple) else ()))
    if "type" not in node and not {"required", "minItems"} & node.keys():
        return True
    if not kinds <= {"object", "array"}:
        return True
    return ("object" in kinds and _object_ends(node, ending)) or ("array" in kinds and _array_ends(node, ending))


def _object_ends(node: dict[str, Any], ending: set[str]) -> bool:
    properties = node.get("properties")
    known = properties if isinstance(properties, dict) else {}
    return all(_ends(known.get(name), ending) for name in _listed(node, "required") if isinstance(name, str))


def _array_ends(node: dict[str, Any], ending: set[str]) -> bool:
    least = node.get("minItems", 0)
    if not isinstance(least, int) or least < 1:
        return True
    first = _listed(node, "prefixItems")[:least]
    rest = node.get("items") if least > len(first) else None
    return all(_ends(part, ending) for part in (*first, rest))


def _listed(node: dict[str, Any], key: str) -> list[Any]:
    value = node.get(key)
    return value if isinstance(value, list) else []
