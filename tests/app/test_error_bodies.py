"""Every error of every route has one of two shapes, names what is to blame, and says it in words of its own."""

import re
from typing import Any

import pytest
from pydantic import BaseModel, ConfigDict, Field, TypeAdapter

from app.routes.faults import OPENAI_PATHS
from app.validation_text import explain
from retrieval.records import Scalar
from tests.app.serving import RunningServer

# What pydantic, the framework and the language say by themselves.
INTERNAL = re.compile(
    r"should (be|have|match)|Field required|Extra inputs|Not Found$|Method Not|Traceback|object at 0x|NoneType|"
    r"config\.configurable(?!\.session_id)|<class|validation error"
)
BAD_BODIES: tuple[bytes, ...] = (
    b"",
    b"{",
    b"[]",
    b"7",
    b"null",
    b"\xff",
    b'{"nonsense": 1}',
    b'{"input": 7, "inputs": 7, "messages": [], "prompt": {}, "title": 7, "name": [], "session_id": 7, "model": 7}',
    b'{"input": {"input": "hi"}, "inputs": [{"input": "hi"}],'
    b' "config": {"configurable": {"session_id": "s", "top_p": 7}}}',
    b'{"model": "none", "messages": [{"role": "user", "content": 7}], "prompt": "x", "input": [""], "query": {},'
    b' "passages": []}',
    b'{"model": "none", "messages": [{"role": "king", "content": "hi"}], "session_id": "s", "index": -1,'
    b' "rating": "x"}',
)
BAD_PATH_VALUES = {"index": "x", "number": "x"}


def bad_requests(server: RunningServer) -> list[tuple[str, str, dict[str, Any]]]:
    """(method, address, options of the request) for every published route and some that are not."""
    found: list[tuple[str, str, dict[str, Any]]] = [("GET", "/no/such", {}), ("GET", "/v1/no/such", {})]
    for path, methods in server.client.get("/openapi.json").json()["paths"].items():
        address = re.sub(r"\{(\w+)\}", lambda name: BAD_PATH_VALUES.get(name[1], "none"), path)
        found.append(("TRACE", address, {}))
        for method, route in methods.items():
            if method in ("post", "put", "patch"):
                headers = {"Content-Type": "application/json"}
                found += [(method.upper(), address, {"content": body, "headers": headers}) for body in BAD_BODIES]
                found.append((method.upper(), address, {"content": b"{}", "headers": {"Content-Type": "text/plain"}}))
            names = [parameter["name"] for parameter in route.get("parameters", ()) if parameter["in"] == "query"]
            found += [(method.upper(), address, {"params": dict.fromkeys(names, "-1")})]
    return found


def test_every_error_of_every_route_has_its_family_s_shape_and_plain_words(server: RunningServer) -> None:
    requests = bad_requests(server)
    assert len(requests) > 300
    statuses: dict[int, int] = {}
    for method, address, options in requests:
        response = server.client.request(method, address, **options)
        where = (method, address, options, response.status_code, response.text[:400])
        statuses[response.status_code] = statuses.get(response.status_code, 0) + 1
        if response.status_code < 400:
            continue
        assert response.status_code < 500, where
        assert response.headers["content-type"] == "application/json", where
        error = response.json()["error"]
        is_openai = address.startswith(OPENAI_PATHS)
        assert set(error) == ({"message", "type", "param", "code"} if is_openai else {"code", "message", "field"}), (
            where
        )
        field = error["param" if is_openai else "field"]
        assert isinstance(error["code"], str), where
        assert len(error["message"]) > 10, where
        assert INTERNAL.search(error["message"]) is None, where
        if response.status_code in (400, 413, 422) and error["code"] not in ("too_large", "invalid_hash"):
            assert field, where
        if response.status_code == 405:
            assert response.headers["allow"], where
    assert {400, 404, 405, 415, 422} <= set(statuses)


# ── the words ────────────────────────────────────────────────────────────────────────────────────────────────────────


class Part(BaseModel):
    size: int = Field(default=1, ge=1, le=2_000)


class Body(BaseModel):
    model_config = ConfigDict(extra="forbid")

    title: str = Field(default="a", min_length=1, max_length=3)
    parts: list[Part] = Field(default_factory=list, max_length=1)
    stop: str | list[str] | None = None
    values: dict[str, Scalar | list[Scalar]] = Field(default_factory=dict)


@pytest.mark.parametrize(
    ("given", "says", "field"),
    [
        ({"title": ""}, "title is empty: fill it", "title"),
        ({"title": "four"}, "title may have at most 3 characters; it has 4: send less", "title"),
        ({"title": 7}, "title must be a text, not 7", "title"),
        ({"titel": "a"}, "titel is not known here: leave it out", "titel"),
        ({"parts": {}}, "parts must be a list, not an object", "parts"),
        ({"parts": [{}, {}]}, "parts may have at most 1 entries; it has 2: send less", "parts"),
        ({"parts": [7]}, "parts[0] must be an object, not 7", "parts[0]"),
        ({"parts": [{"size": 2001}]}, "parts[0].size must be at most 2,000, not 2001", "parts[0].size"),
        ({"parts": [{"size": "x"}]}, 'parts[0].size must be a whole number, not "x"', "parts[0].size"),
        ({"stop": 7}, "stop must be a text or a list, not 7", "stop"),
        ({"stop": [7]}, "stop[0] must be a text, not 7", "stop[0]"),
        (7, "the body must be an object, not 7", None),
    ],
)
def test_what_is_wrong_is_said_in_plain_words(given: Any, says: str, field: str | None) -> None:
    with pytest.raises(ValueError) as caught:
        TypeAdapter(Body).validate_python(given)
    assert explain(caught.value.errors()) == (says, field)  # type: ignore[attr-defined]


def test_a_place_is_that_of_the_request_and_the_words_name_what_is_wrong() -> None:
    with pytest.raises(ValueError) as caught:
        TypeAdapter(Body).validate_python({"values": {"year": {"from": 1}}})
    message, field = explain(caught.value.errors(), "config.where")  # type: ignore[attr-defined]
    assert field == "config.where.values.year"
    assert message.startswith("values.year must be ")
