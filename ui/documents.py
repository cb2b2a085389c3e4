"""The document panel: sending files to the API one by one, and the list of what is there, as HTML for the page."""

import asyncio
import contextlib
from collections.abc import AsyncGenerator, Sequence
from dataclasses import dataclass
from pathlib import Path

from ui.client import ApiClient, UploadResult
from ui.errors import UIError
from ui.rendering import documents_html, text_html, uploads_html


@dataclass(frozen=True)
class UploadStep:
    """The state of an upload: a line for each file, and at its end (else None) the new list of documents. Both HTML."""

    results: str
    documents: str | None = None


class Library:
    """The documents that the API at `client` keeps."""

    def __init__(self, client: ApiClient) -> None:
        self._client = client

    async def listing(self) -> str:
        """The list of documents as HTML, or in its place what kept us from reading it."""
        try:
            return documents_html(await self._client.documents())
        except UIError as error:
            return f'<p class="error" role="alert">{text_html(str(error))}</p>'

    async def remove(self, document_id: str) -> str:
        """Take one document out; the new list as HTML."""
        try:
            await self._client.delete_document(document_id)
        except UIError as error:
            return f'<p class="error" role="alert">{text_html(str(error))}</p>{await self.listing()}'
        return await self.listing()

    async def upload(self, paths: Sequence[Path]) -> AsyncGenerator[UploadStep]:
        """Send the files at `paths` (our temporary copies, deleted afterwards), one step for each as it is done."""
        results: list[UploadResult] = []
        try:
            for position, path in enumerate(paths):
                yield UploadStep(uploads_html(results, [path.name for path in paths[position:]]))
                results.append(await self._send(path))
        finally:
            await asyncio.to_thread(_delete, paths)
        yield UploadStep(uploads_html(results), await self.listing())

    async def _send(self, path: Path) -> UploadResult:
        try:
            return await self._client.upload(path, path.name)
        except UIError as error:
            return UploadResult(path.name, "failed", reason=str(error))


def _delete(paths: Sequence[Path]) -> None:
    for path in paths:
        with contextlib.suppress(OSError):
            path.unlink()
            # Gradio makes a folder for each file.
            path.parent.rmdir()
