"""Files in, text out: picks the loader by extension. One module a format; each takes bytes and touches no disk."""

from collections.abc import Callable
from pathlib import PurePosixPath

from retrieval.errors import DocumentTooLargeError, EmptyDocumentError, UnsupportedFormatError
from retrieval.loaders.document import Block, LoadedDocument
from retrieval.loaders.html import load_html
from retrieval.loaders.markdown import load_markdown
from retrieval.loaders.pdf import load_pdf
from retrieval.loaders.text import load_text

MAX_FILE_BYTES = 256 * 1024 * 1024

_LOADERS: dict[str, Callable[[bytes, str], LoadedDocument]] = {
    ".md": load_markdown,
    ".markdown": load_markdown,
    ".txt": load_text,
    ".text": load_text,
    ".html": load_html,
    ".htm": load_html,
    ".pdf": load_pdf,
}
SUPPORTED_EXTENSIONS = tuple(_LOADERS)


def load(name: str, data: bytes) -> LoadedDocument:
    """Reads one file's bytes. `name` gives the extension, and the title where the file has none. Raises LoadError."""
    path = PurePosixPath(name)
    extension = path.suffix.lower()
    loader = _LOADERS.get(extension)
    if loader is None:
        given = f"files of type {extension!r} are" if extension else "files without an extension are"
        raise UnsupportedFormatError(f"{given} not supported; supported: {' '.join(SUPPORTED_EXTENSIONS)}")
    if not data:
        raise EmptyDocumentError("no text: the file is empty (0 bytes)")
    if len(data) > MAX_FILE_BYTES:
        raise DocumentTooLargeError(
            f"the file is {len(data) / 2**20:.0f} MB; files are read up to {MAX_FILE_BYTES // 2**20} MB: split it"
        )
    return loader(data, path.stem)


__all__ = ["MAX_FILE_BYTES", "SUPPORTED_EXTENSIONS", "Block", "LoadedDocument", "load"]
