"""The published description of the routes, put to the test: what it allows is answered, without a fault, as it says.

Requests are made up by schemathesis from /openapi.json alone, the same ones every time.
"""

from collections.abc import Iterator
from typing import Any

import pytest
import schemathesis
from hypothesis import HealthCheck, Phase, given, seed, settings
from hypothesis.errors import Unsatisfiable
from schemathesis import Case, GenerationMode
from schemathesis.checks import not_a_server_error
from schemathesis.core.failures import FailureGroup
from schemathesis.schemas import APIOperation
from schemathesis.specs.openapi.checks import (
    content_type_conformance,
    response_headers_conformance,
    response_schema_conformance,
    status_code_conformance,
)

from tests.app.conftest import DOCUMENTS
from tests.app.serving import RunningServer

CHECKS = [
    not_a_server_error,
    status_code_conformance,
    content_type_conformance,
    response_headers_conformance,
    response_schema_conformance,
]
# An answer is not what is tested here, and a long one takes its time.
MOST_TOKENS = 2
TIMEOUT_S = 60
# The routes are gone through in so many parts, each well below the time after which a test is taken to hang.
NUM_PARTS = 8


@pytest.fixture
def visited(server: RunningServer) -> Iterator[RunningServer]:
    """The server, and afterwards again with its own documents alone."""
    yield server
    for document in server.client.get("/api/v1/documents").json()["documents"]:
        if document["source"] not in DOCUMENTS:
            server.client.delete(f"/api/v1/documents/{document['document_id']}")
    for name in {"default"} ^ server.services.knowledge_base.visible_collections():
        server.services.knowledge_base.delete_collection(name)


def operations(server: RunningServer) -> list[APIOperation[Any, Any, Any, Any]]:
    schema = schemathesis.openapi.from_url(f"{server.url}/openapi.json")
    return [result.ok() for result in schema.get_all_operations()]


def faults_of(operation: APIOperation[Any, Any, Any, Any], mode: GenerationMode, max_examples: int) -> list[str]:
    """What requests of one route bring to light; the first fault ends the search."""

    @seed(1)
    @settings(
        max_examples=max_examples,
        deadline=None,
        database=None,
        phases=[Phase.explicit, Phase.generate],
        suppress_health_check=list(HealthCheck),
    )
    @given(case=operation.as_strategy(generation_mode=mode))
    def call(case: Case) -> None:
        if isinstance(case.body, dict):
            _shorten(case.body)
        response = case.call(timeout=TIMEOUT_S)
        case.validate_response(response, checks=CHECKS)

    try:
        call()
    except Unsatisfiable:
        return []  # nothing that could be sent to it is wrong
    except (Exception, FailureGroup) as error:
        return [f"{operation.method.upper()} {operation.path} ({mode.value}): {error}"]
    return []


def _shorten(body: dict[str, Any]) -> None:
    for name in ("max_tokens", "max_completion_tokens", "n"):
        if isinstance(value := body.get(name), int) and value > MOST_TOKENS:
            body[name] = MOST_TOKENS
    if "model" in body:
        body.setdefault("max_tokens", MOST_TOKENS)


def check_all(server: RunningServer, max_examples: int, part: int = 0, num_parts: int = 1) -> None:
    found = [
        fault
        for operation in operations(server)[part::num_parts]
        for mode in (GenerationMode.POSITIVE, GenerationMode.NEGATIVE)
        for fault in faults_of(operation, mode, max_examples)
    ]
    assert found == [], "\n\n".join(found)


def test_no_request_that_the_description_allows_or_forbids_is_a_fault(visited: RunningServer) -> None:
    check_all(visited, max_examples=3)


@pytest.mark.slow
@pytest.mark.parametrize("part", range(NUM_PARTS))
def test_no_request_of_many_is_a_fault(visited: RunningServer, part: int) -> None:
    check_all(visited, 60, part, NUM_PARTS)
