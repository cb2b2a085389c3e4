"""Uploads: multipart bodies streamed to files, with a limit on each file, and names that cannot leave the folder.

Format: RFC 7578, with names as the HTML standard has browsers write them ("multipart/form-data encoding"). Files are
written as they arrive, so that a large one never stands in memory, and below the data folder.
"""

import re
import secrets
import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import IO, TYPE_CHECKING, cast

from python_multipart.exceptions import MultipartParseError
from python_multipart.multipart import MultipartParser, parse_options_header
from starlette.requests import Request

from app.errors import RequestError, UploadTooLargeError

if TYPE_CHECKING:
    from python_multipart.multipart import MultipartCallbacks

MAX_FILES = 1000
MAX_FIELD_BYTES = 64 * 1024
# All that is escaped in a name; "%" is not, so that nothing else may be decoded.
_ESCAPED = {b"%22": b'"', b"%0D": b"\r", b"%0A": b"\n"}


@dataclass(frozen=True)
class Upload:
    """One file. `name` is what the client called it, without folders; empty where nothing usable is left."""

    name: str
    path: Path


@dataclass
class Form:
    """What a form held: its files in order, and its fields as text."""

    files: list[Upload] = field(default_factory=list)
    fields: dict[str, str] = field(default_factory=dict)


def safe_name(name: str) -> str:
    """The last part of a client's file name, whatever its system's separator, without control characters."""
    last = re.split(r"[/\\]", name)[-1]
    last = "".join(character for character in last if character.isprintable()).strip()
    return "" if last in ("", ".", "..") else last[-200:]


def _unescaped(name: bytes) -> str:
    """A field's or a file's name as it was before a browser wrote it into a header."""
    for escape, character in _ESCAPED.items():
        name = name.replace(escape, character)
    return name.decode("utf-8", "replace")


@contextmanager
def upload_folder(parent: Path) -> Iterator[Path]:
    """A fresh folder for one request's files, gone with all that is in it when the request is over."""
    folder = parent / secrets.token_hex(8)
    folder.mkdir(parents=True)
    try:
        yield folder
    finally:
        shutil.rmtree(folder, ignore_errors=True)


async def read_form(request: Request, folder: Path, *, max_file_bytes: int) -> Form:
    """The request's form; files are written to `folder`.

    Raises UploadTooLargeError for a file over the limit, RequestError for what is not a multipart form.
    """
    kind, options = parse_options_header(request.headers.get("content-type"))
    boundary = options.get(b"boundary")
    if kind != b"multipart/form-data" or not boundary:
        raise RequestError(
            "send the files as multipart/form-data in the field `files`, for example: curl -F files=@notes.md …",
            field="files",
        )
    reader = _FormReader(folder, max_file_bytes)
    parser = MultipartParser(boundary, reader.callbacks())
    try:
        async for chunk in request.stream():
            parser.write(chunk)
        parser.finalize()
    except MultipartParseError as error:
        raise RequestError(f"the body is not a well-formed multipart form: {error}", field="files") from None
    finally:
        reader.close()
    if not reader.complete:
        raise RequestError("the body ends in the middle of the form: send it again", field="files")
    return reader.form


class _FormReader:
    """Builds a Form from the parser's callbacks."""

    def __init__(self, folder: Path, max_file_bytes: int) -> None:
        self.form = Form()
        self.complete = False
        self._folder = folder
        self._max_file_bytes = max_file_bytes
        self._header: tuple[bytes, bytes] = (b"", b"")
        self._disposition = b""
        self._field = ""
        self._value = bytearray()
        self._file: IO[bytes] | None = None
        self._size = 0

    def callbacks(self) -> "MultipartCallbacks":
        names = ("part_begin", "part_data", "part_end", "header_field", "header_value", "header_end")
        methods = {f"on_{name}": getattr(self, f"_{name}") for name in (*names, "headers_finished", "end")}
        return cast("MultipartCallbacks", methods)

    def close(self) -> None:
        """Closes a file that was not finished."""
        if self._file is not None:
            self._file.close()
            self._file = None

    def _part_begin(self) -> None:
        self._header, self._disposition, self._field, self._value, self._size = (b"", b""), b"", "", bytearray(), 0

    def _header_field(self, data: bytes, start: int, end: int) -> None:
        self._header = (self._header[0] + data[start:end], self._header[1])

    def _header_value(self, data: bytes, start: int, end: int) -> None:
        self._header = (self._header[0], self._header[1] + data[start:end])

    def _header_end(self) -> None:
        if self._header[0].lower() == b"content-disposition":
            self._disposition = self._header[1]
        self._header = (b"", b"")

    def _headers_finished(self) -> None:
        _, options = parse_options_header(self._disposition)
        self._field = _unescaped(options.get(b"name", b""))
        if b"filename" not in options:
            return
        if len(self.form.files) >= MAX_FILES:
            raise RequestError(f"more than {MAX_FILES} files in one request: send them in several", field="files")
        name = safe_name(_unescaped(options[b"filename"]))
        # The client's name goes no further than the listing; on disk the file has a number and its extension.
        path = self._folder / f"{len(self.form.files)}{Path(name).suffix[:16]}"
        self._file = path.open("wb")
        self.form.files.append(Upload(name, path))

    def _part_data(self, data: bytes, start: int, end: int) -> None:
        self._size += end - start
        if self._file is not None:
            if self._size > self._max_file_bytes:
                raise UploadTooLargeError(self.form.files[-1].name or "a file", limit=self._max_file_bytes)
            self._file.write(data[start:end])
        elif self._size > MAX_FIELD_BYTES:
            raise RequestError(f"the field {self._field!r} is longer than {MAX_FIELD_BYTES} bytes", field=self._field)
        else:
            self._value += data[start:end]

    def _part_end(self) -> None:
        if self._file is None:
            self.form.fields[self._field] = self._value.decode("utf-8", "replace")
        self.close()

    def _end(self) -> None:
        self.complete = True
