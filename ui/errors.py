"""The errors of the UI: what can go wrong between the chat page and the API, each with a message for a person."""


class UIError(Exception):
    """Base of all of them. `str(error)` is shown on the page as it stands (escaped), so it holds no stack trace.

    `status` is what the page's own routes answer with.
    """

    status = 502


class UISettingsError(UIError):
    """A setting of the UI process is unusable; the message names the variable, what was given and what is allowed."""


class ApiUnreachableError(UIError):
    """Nothing answers at the API's address."""


class ApiNotReadyError(UIError):
    """The API answers but cannot work yet or any more (503). `reason` is its own word for it."""

    status = 503

    def __init__(self, message: str, reason: str) -> None:
        super().__init__(message)
        self.reason = reason


class RequestRefusedError(UIError):
    """The API refused the request (4xx). `code` and `field` are the API's, where it gave them."""

    def __init__(self, message: str, *, status: int, code: str | None = None, field: str | None = None) -> None:
        super().__init__(message)
        self.status = status
        self.code = code
        self.field = field


class NotFoundError(RequestRefusedError):
    """The conversation or document does not exist (404)."""


class LoginNeededError(RequestRefusedError):
    """The API asks for a key, or knows nothing of the one that was sent (401)."""


class ApiFaultError(UIError):
    """The API failed while it worked on the request (5xx, or an `error` event in a stream)."""


class AnswerBrokenOffError(UIError):
    """The connection ended before the answer did."""
