"""Whether the request at hand is private: what it says, and what is found for it, is shown to models here only.

Noted where a request says so or where it may find private documents; checked again at the border, when something is
about to be sent to a model that is not on this machine.
"""

import contextvars

from app.engines.entries import is_here
from app.errors import RequestError
from app.settings import Settings

# Says that a request is private, on any route to a model.
HEADER = "X-Ragstone-Private"

_private: contextvars.ContextVar[bool] = contextvars.ContextVar("private", default=False)


class PrivateRequestError(RequestError):
    """A private request that only a model elsewhere could answer."""

    code = "private_request"
    status_code = 403

    def __init__(self, model_name: str) -> None:
        super().__init__(
            f"this request is private, and the model {model_name!r} is not on this machine: ask a model that runs "
            "here, or leave private documents out by naming the collections to search",
            field="model",
        )


def readers_elsewhere(settings: Settings) -> list[str]:
    """Settings whose URL gets the text of documents and is not of this machine."""
    urls = {"embedding_url": settings.embedding_url, "reranker_url": settings.reranker_url}
    return [name for name, url in urls.items() if url is not None and not is_here(url)]


def is_private() -> bool:
    """Whether the request at hand must not leave this machine."""
    return _private.get()


def begin(*, private: bool) -> None:
    """What this task and those it starts are about from now on is a request of its own."""
    _private.set(private)


def note_private() -> None:
    """From now on, in this task and those it starts, the request is private."""
    _private.set(True)
