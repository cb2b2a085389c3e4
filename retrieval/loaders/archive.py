"""ZIP files that hold a document (Office, OpenDocument, EPUB): opened only where they are safe to unpack.

Sizes are checked before anything is unpacked, and `zipfile` gives out no more bytes than a member declares. Entities
are refused, whether or not the library that reads the XML afterwards would expand them.
"""

import io
import zipfile
from collections.abc import Iterator
from contextlib import contextmanager
from xml.etree.ElementTree import ParseError

from defusedxml.common import DefusedXmlException
from defusedxml.ElementTree import iterparse

from retrieval.errors import (
    CorruptDocumentError,
    DocumentTooLargeError,
    EncryptedDocumentError,
    LoadError,
    UnsupportedFormatError,
)

# All that a document may hold when it is unpacked, and what a part may that is read as one tree (some 8 × in memory).
MAX_EXPANDED_BYTES = 512 * 1024 * 1024
MAX_TREE_BYTES = 64 * 1024 * 1024
MAX_MEMBERS = 20_000
ENTITIES = "the file declares XML entities, which can be made to expand without end: save it anew without them"
_OLD_OFFICE = b"\xd0\xcf\x11\xe0\xa1\xb1\x1a\xe1"
_XML = (".xml", ".rels", ".xhtml", ".opf", ".ncx")


def open_archive(data: bytes, kind: str, streamed: str = "") -> zipfile.ZipFile:
    """The archive in `data`, checked. `kind` names the format in errors.

    Members whose path begins with `streamed` are read piece by piece and may be larger than `MAX_TREE_BYTES`.
    Raises LoadError: no archive, encrypted, too large when unpacked, or with entity declarations in its XML.
    """
    if data.startswith(_OLD_OFFICE):
        raise _old_or_encrypted(data, kind)
    try:
        archive = zipfile.ZipFile(io.BytesIO(data))
    except (zipfile.BadZipFile, ValueError, OSError) as error:
        raise CorruptDocumentError(f"the file is damaged, or is not {kind}: open and save it again") from error
    members = archive.infolist()
    expanded = sum(member.file_size for member in members)
    if expanded > MAX_EXPANDED_BYTES or len(members) > MAX_MEMBERS:
        raise DocumentTooLargeError(
            f"unpacked it would be {expanded / 2**20:,.0f} MB in {len(members):,} parts; up to "
            f"{MAX_EXPANDED_BYTES // 2**20} MB in {MAX_MEMBERS:,} parts are read: split it, or shrink its pictures"
        )
    for member in members:
        if member.flag_bits & 1:
            raise EncryptedDocumentError("the file opens with a password only: save a copy without one")
        if not member.filename.lower().endswith(_XML):
            continue
        if member.file_size > MAX_TREE_BYTES and not (streamed and member.filename.startswith(streamed)):
            raise DocumentTooLargeError(
                f"its part {member.filename!r} would be {member.file_size / 2**20:,.0f} MB unpacked; up to "
                f"{MAX_TREE_BYTES // 2**20} MB are read: split it"
            )
        _refuse_entities(archive, member)
    return archive


@contextmanager
def reading(kind: str) -> Iterator[None]:
    """Whatever a library raises over a damaged file becomes a CorruptDocumentError; errors of our own pass."""
    try:
        yield
    except (LoadError, MemoryError):
        raise
    except RecursionError as error:
        raise CorruptDocumentError(f"the parts of the file are nested too deeply to be read as {kind}") from error
    # The libraries raise what the damage happens to provoke: KeyError, AttributeError, lxml's and zlib's own.
    except Exception as error:
        raise CorruptDocumentError(
            f"the file is damaged, or is not {kind} ({error}): open and save it again"
        ) from error


def _refuse_entities(archive: zipfile.ZipFile, member: zipfile.ZipInfo) -> None:
    """Entities can be declared before the first element only, so the parser is stopped there."""
    try:
        with archive.open(member) as file:
            next(iter(iterparse(file, events=("start",), forbid_entities=True, forbid_external=False)), None)
    except DefusedXmlException as error:
        raise CorruptDocumentError(ENTITIES) from error
    except (ParseError, ValueError, LookupError):
        return  # no XML: whoever reads this part says so
    except Exception as error:  # zlib's and zipfile's own, of many kinds
        raise CorruptDocumentError(f"its part {member.filename!r} is damaged: open and save it again") from error


def _old_or_encrypted(data: bytes, kind: str) -> LoadError:
    """Office keeps encrypted documents in the container of its old formats."""
    if "EncryptedPackage".encode("utf-16-le") in data:
        return EncryptedDocumentError("the file opens with a password only: save a copy without one")
    return UnsupportedFormatError(
        f"this is a file in Office's old binary format, not {kind}: open it and save it as such"
    )
