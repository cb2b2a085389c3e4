"""EPUB: its chapters in reading order, each an HTML page read as such."""

import posixpath
import warnings
import zipfile
from urllib.parse import unquote

from bs4 import XMLParsedAsHTMLWarning
from bs4.element import Tag
from defusedxml.ElementTree import fromstring

from retrieval.errors import CorruptDocumentError, EncryptedDocumentError
from retrieval.loaders.archive import open_archive, reading
from retrieval.loaders.document import LoadedDocument, TextBuilder
from retrieval.loaders.encoding import clean, decode
from retrieval.loaders.html import HtmlReader
from retrieval.loaders.html_tree import HtmlTree

_CONTAINER = "META-INF/container.xml"
_ENCRYPTION = "META-INF/encryption.xml"
_ROOT_FILE = ".//{urn:oasis:names:tc:opendocument:xmlns:container}rootfile"
_OPF = "{http://www.idpf.org/2007/opf}"
_DC = "{http://purl.org/dc/elements/1.1/}"
_CHAPTER_TYPES = ("application/xhtml+xml", "text/html")


def load_epub(data: bytes, fallback_title: str) -> LoadedDocument:
    """Reads an e-book's chapters. Title: the book's own, else the file's name. Raises LoadError."""
    kind = "an e-book (.epub)"
    archive = open_archive(data, kind)
    with reading(kind):
        package_path, title, chapters = _contents(archive)
        if _is_encrypted(archive, set(chapters)):
            raise EncryptedDocumentError("the e-book is copy-protected (DRM): only its vendor's reader can open it")
        builder = TextBuilder()
        members = set(archive.namelist())
        missing = [chapter for chapter in chapters if chapter not in members]
        for chapter in chapters:
            if chapter in members:
                _read_chapter(builder, decode(archive.read(chapter)))
        if not chapters:
            raise CorruptDocumentError(f"the e-book's contents ({package_path}) name no chapters")
    notice = f"{len(missing)} of its {len(chapters)} chapters are missing in the file" if missing else None
    return builder.build(title or fallback_title, notice=notice)


def _contents(archive: zipfile.ZipFile) -> tuple[str, str, list[str]]:
    """The path of the package document, the book's title, and its chapters' paths in reading order."""
    root_file = fromstring(archive.read(_CONTAINER)).find(_ROOT_FILE)
    if root_file is None:
        raise CorruptDocumentError(f"the e-book has no contents: {_CONTAINER} names none")
    path = root_file.get("full-path", "")
    package = fromstring(archive.read(path))
    folder = posixpath.dirname(path)
    files = {
        item.get("id"): posixpath.normpath(posixpath.join(folder, unquote(item.get("href", ""))))
        for item in package.iter(f"{_OPF}item")
        if item.get("media-type") in _CHAPTER_TYPES and "nav" not in item.get("properties", "").split()
    }
    spine = [files[item.get("idref")] for item in package.iter(f"{_OPF}itemref") if item.get("idref") in files]
    title = package.find(f".//{_DC}title")
    return path, clean(title.text or "").strip() if title is not None else "", spine


def _is_encrypted(archive: zipfile.ZipFile, chapters: set[str]) -> bool:
    """Whether a chapter is: fonts alone are often obfuscated, which harms nobody."""
    if _ENCRYPTION not in archive.namelist():
        return False
    references = (element.get("URI") for element in fromstring(archive.read(_ENCRYPTION)).iter())
    return any(unquote(reference) in chapters for reference in references if reference)


def _read_chapter(builder: TextBuilder, markup: str) -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", XMLParsedAsHTMLWarning)
        tree = HtmlTree(markup)
    body = tree.find("body")
    HtmlReader(builder).read(body if isinstance(body, Tag) else tree)
