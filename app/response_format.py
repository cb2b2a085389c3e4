"""What an answer must look like, from OpenAI's `response_format` to fields of the engine's SamplingParams."""

from collections.abc import Mapping
from typing import Any


def constraint_of(response_format: Any) -> dict[str, Any]:
    """Fields of SamplingParams for a `response_format`: empty for text.

    `{"type": "json_schema", "json_schema": {"schema": …, "strict": true}}`: with `strict`, objects are closed
    to properties that their schema does not list; without it, the schema is followed to the letter.

    Raises engine.errors.InvalidParameterError for anything that is not of OpenAI's form.
    """
    from engine.errors import InvalidParameterError
    from engine.tool_format import closed

    kind = response_format.get("type") if isinstance(response_format, Mapping) else None
    if kind == "text":
        return {}
    if kind == "json_object":
        return {"json_object": True}
    if kind != "json_schema":
        raise InvalidParameterError(
            "response_format", 'must be {"type": "text"}, {"type": "json_object"} or {"type": "json_schema", …}'
        )
    described = response_format.get("json_schema")
    schema = described.get("schema") if isinstance(described, Mapping) else None
    if not isinstance(schema, Mapping):
        given = (
            "is missing" if schema is None else f"is {'an' if isinstance(schema, int) else 'a'} {type(schema).__name__}"
        )
        raise InvalidParameterError(
            "response_format", f'needs {{"json_schema": {{"name": …, "schema": {{…}}}}}}: the schema {given}'
        )
    return {"json_schema": closed(schema) if described.get("strict") else dict(schema)}
