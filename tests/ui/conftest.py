"""Fixtures of the UI's tests: the scripted API, and the parts of the UI speaking to it."""

from collections.abc import AsyncIterator, Iterator

import pytest

from tests.ui.fake_api import FakeApi, fake_api
from ui.chat import Chat
from ui.client import ApiClient


@pytest.fixture(scope="session")
def served_api() -> Iterator[FakeApi]:
    with fake_api() as api:
        yield api


@pytest.fixture
def api(served_api: FakeApi) -> FakeApi:
    """The scripted API, as new."""
    served_api.reset()
    return served_api


@pytest.fixture
async def client(api: FakeApi) -> AsyncIterator[ApiClient]:
    client = ApiClient(api.url)
    yield client
    await client.aclose()


@pytest.fixture
def chat(client: ApiClient) -> Chat:
    return Chat(client)
