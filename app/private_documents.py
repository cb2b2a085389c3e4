"""Which documents are private, and whether what is done with them would leave this machine.

A document is private where whoever put it in says so, where its file does (front matter), or by its collection.
"""

from app.errors import RequestError
from app.privacy import readers_elsewhere
from app.settings import Settings
from retrieval.records import PRIVATE_KEY, DocumentInfo, Filter

# A mark is True; the others are what front matter says, as text.
_PRIVATE_VALUES = ("true", "True", "yes", True)
PRIVATE_DOCUMENTS = Filter(metadata={PRIVATE_KEY: _PRIVATE_VALUES})


class PrivateDocumentError(RequestError):
    """A document that must stay here, on a server that would send its text away."""

    code = "private_document"
    status_code = 403

    def __init__(self, setting: str) -> None:
        super().__init__(
            f"the document is private, and {setting} of this server is on another machine, which would be sent its "
            f"text: unset {setting}, or send the document without `private` if that machine is yours",
            field="private",
        )


def is_private_document(document: DocumentInfo, settings: Settings) -> bool:
    """Whether its text is shown to models of this machine only."""
    return document.collection in settings.private_collections or document.metadata.get(PRIVATE_KEY) in _PRIVATE_VALUES


def require_documents_stay(settings: Settings) -> None:
    """Raises PrivateDocumentError where the text of a document would leave this machine."""
    if elsewhere := readers_elsewhere(settings):
        raise PrivateDocumentError(elsewhere[0])
