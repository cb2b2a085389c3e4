"""Every error this package raises, as one tree. Messages say what was given, what is allowed and what to do."""

from typing import ClassVar


class RetrievalError(Exception):
    """Base of all errors raised here. `code` is stable and meant for programs; the message is meant for people."""

    code: ClassVar[str] = "retrieval_error"


class InvalidArgumentError(RetrievalError, ValueError):
    """A caller's argument is outside what is allowed. `field` names it."""

    code = "invalid_argument"

    def __init__(self, field: str, message: str) -> None:
        super().__init__(message)
        self.field = field


class InvalidVectorError(RetrievalError, ValueError):
    """A vector has the wrong dimension, or holds NaN or infinity."""

    code = "invalid_vector"


class LoadError(RetrievalError):
    """One document cannot be taken in. The message is the reason shown beside the file's name."""

    code = "unreadable_document"


class UnsupportedFormatError(LoadError):
    """The file's extension is not one that can be read."""

    code = "unsupported_format"


class EmptyDocumentError(LoadError):
    """The file is readable and holds no text."""

    code = "empty_document"


class NeedsOcrError(EmptyDocumentError):
    """The document consists of pictures of text."""

    code = "needs_ocr"


class EncryptedDocumentError(LoadError):
    """The document opens with a password only."""

    code = "encrypted_document"


class CorruptDocumentError(LoadError):
    """The file is damaged, or is not what its extension says."""

    code = "corrupt_document"


class DocumentTooLargeError(LoadError):
    """The file is larger than what is read."""

    code = "document_too_large"


class FetchError(LoadError):
    """An address must not be fetched, cannot be reached, or its server refuses."""

    code = "not_fetched"


class EmbedderError(RetrievalError):
    """The embedding model's folder is missing, incomplete, or not such a model."""

    code = "embedder_unavailable"


class RerankerError(RetrievalError):
    """The reranker's model cannot be loaded, or its server does not answer."""

    code = "reranker_unavailable"


class StoreError(RetrievalError):
    """Base of what can be wrong with the store on disk."""

    code = "store_error"


class StoreUnavailableError(StoreError):
    """The store's folder cannot be created, read or written."""

    code = "store_unavailable"


class StoreFullError(StoreError):
    """No space is left where the store lies."""

    code = "store_full"


class StoreBusyError(StoreError):
    """Another process has been writing to the store for longer than we wait."""

    code = "store_busy"


class StoreClosedError(StoreError):
    """The store was used after `close()`."""

    code = "store_closed"


class StoreDamagedError(StoreError):
    """The catalog's file is not a catalog, or is damaged."""

    code = "store_damaged"


class SchemaTooNewError(StoreError):
    """The store was written by a newer version of Ragstone."""

    code = "schema_too_new"


class EmbedderMismatchError(StoreError):
    """The store holds vectors of another embedding model."""

    code = "embedder_mismatch"
