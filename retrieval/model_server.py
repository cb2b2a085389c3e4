"""Asking a model behind HTTP: one POST with JSON, and each way in which it can fail as one kind of error."""

from collections.abc import Callable
from typing import Any, TypeVar

import httpx

from retrieval.errors import RetrievalError

T = TypeVar("T")


def ask(
    http: httpx.Client, url: str, body: Any, read: Callable[[Any], T], kind: type[RetrievalError], setting: str
) -> T:
    """What `read` makes of the JSON that `url` answers to `body`. Raises `kind`; `setting` is where the URL stands."""
    try:
        response = http.post(url, json=body)
        response.raise_for_status()
        return read(response.json())
    except httpx.HTTPStatusError as error:
        answer = error.response.text[:300].strip()
        raise kind(f"{url} refused: HTTP {error.response.status_code}: {answer}") from error
    except httpx.HTTPError as error:
        raise kind(
            f"no answer from {url}: {error or type(error).__name__}; check {setting} and that the server runs"
        ) from error
    except (KeyError, TypeError, ValueError) as error:
        raise kind(f"{url} does not answer as /v1/{url.rpartition('/')[2]} does: {error!r}") from error
