"""Files in, text out: picks the loader by extension. One module a format; each takes bytes and touches no disk."""

from collections.abc import Callable
from pathlib import PurePosixPath

from retrieval.errors import DocumentTooLargeError, EmptyDocumentError, UnsupportedFormatError
from retrieval.loaders.code import CODE_EXTENSIONS, load_code
from retrieval.loaders.data import load_json, load_jsonl, load_xml
from retrieval.loaders.delimited import load_csv, load_tsv
from retrieval.loaders.document import Block, LoadedDocument
from retrieval.loaders.ebook import load_epub
from retrieval.loaders.html import load_html
from retrieval.loaders.mail import load_eml
from retrieval.loaders.markdown import load_markdown
from retrieval.loaders.opendocument import load_odt
from retrieval.loaders.pdf import load_pdf
from retrieval.loaders.rtf import load_rtf
from retrieval.loaders.sheets import load_xlsx
from retrieval.loaders.slides import load_pptx
from retrieval.loaders.text import load_text
from retrieval.loaders.word import load_docx

MAX_FILE_BYTES = 256 * 1024 * 1024
# Text takes several times its size while it is decoded and cut.
MAX_TEXT_BYTES = 64 * 1024 * 1024

Loader = Callable[[bytes, str], LoadedDocument]

_TEXT_LOADERS: dict[str, Loader] = {
    ".md": load_markdown,
    ".markdown": load_markdown,
    ".txt": load_text,
    ".text": load_text,
    ".rst": load_text,
    ".tex": load_text,
    ".log": load_text,
    ".html": load_html,
    ".htm": load_html,
    ".xhtml": load_html,
    ".csv": load_csv,
    ".tsv": load_tsv,
    ".tab": load_tsv,
    ".json": load_json,
    ".jsonl": load_jsonl,
    ".ndjson": load_jsonl,
    ".xml": load_xml,
    ".eml": load_eml,
    ".rtf": load_rtf,
    **dict.fromkeys(CODE_EXTENSIONS, load_code),
}
_BINARY_LOADERS: dict[str, Loader] = {
    ".pdf": load_pdf,
    ".docx": load_docx,
    ".docm": load_docx,
    ".pptx": load_pptx,
    ".pptm": load_pptx,
    ".xlsx": load_xlsx,
    ".xlsm": load_xlsx,
    ".odt": load_odt,
    ".epub": load_epub,
}
_LOADERS = {**_TEXT_LOADERS, **_BINARY_LOADERS}
SUPPORTED_EXTENSIONS = tuple(_LOADERS)
_NAMED_EXTENSIONS = tuple(extension for extension in _LOADERS if extension not in CODE_EXTENSIONS)
# Formats that are near to a supported one: what to save such a file as.
_CONVERTED = {
    ".doc": ".docx", ".dot": ".docx", ".wps": ".docx", ".pages": ".docx or .pdf", ".xls": ".xlsx", ".xlsb": ".xlsx",
    ".ods": ".xlsx", ".numbers": ".xlsx", ".ppt": ".pptx", ".pps": ".pptx", ".odp": ".pptx or .pdf",
    ".key": ".pptx or .pdf", ".msg": ".eml", ".mobi": ".epub", ".azw3": ".epub", ".djvu": ".pdf", ".ps": ".pdf",
}  # fmt: skip


def load(name: str, data: bytes) -> LoadedDocument:
    """Reads one file's bytes. `name` gives the extension, and the title where the file has none. Raises LoadError."""
    path = PurePosixPath(name)
    extension = path.suffix.lower()
    loader = _LOADERS.get(extension)
    if loader is None:
        raise UnsupportedFormatError(_why_unsupported(extension))
    if not data:
        raise EmptyDocumentError("no text: the file is empty (0 bytes)")
    limit = MAX_TEXT_BYTES if extension in _TEXT_LOADERS else MAX_FILE_BYTES
    if len(data) > limit:
        raise DocumentTooLargeError(
            f"the file is {len(data) / 2**20:.0f} MB; {extension} files are read up to {limit // 2**20} MB: split it"
        )
    return loader(data, path.name if extension in CODE_EXTENSIONS else path.stem)


def _why_unsupported(extension: str) -> str:
    if extension in _CONVERTED:
        return f"{extension} files are not supported: save it as {_CONVERTED[extension]} and add that"
    given = f"files of type {extension!r} are" if extension else "files without an extension are"
    return f"{given} not supported; supported: {' '.join(_NAMED_EXTENSIONS)} and source code"


__all__ = ["MAX_FILE_BYTES", "SUPPORTED_EXTENSIONS", "Block", "LoadedDocument", "load"]
