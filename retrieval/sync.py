"""A folder or an address and its documents kept alike: what changed goes in, what vanished goes out, the rest stays.

What a collection holds of a folder is what has a source below it, however it came in; nothing else is kept on the side.
"""

import os
from collections.abc import Callable, Collection, Iterable, Iterator
from functools import partial
from pathlib import Path
from threading import Event

from watchfiles import watch

from retrieval.errors import FetchError, InvalidArgumentError, LoadError
from retrieval.ingest import find_files, shown_path, source_of
from retrieval.knowledge_base import KnowledgeBase
from retrieval.records import IngestResult
from retrieval.web import fetch, normal_url

Progress = Callable[[IngestResult], None]
Embedding = Callable[[Path, int, int], None]

# Changes that follow each other within this time are one: a file is often written in several steps.
_QUIET_MS = 1600


def sync_folder(
    knowledge_base: KnowledgeBase,
    folder: Path,
    *,
    collection: str = "default",
    owner: str = "local",
    allow_empty: bool = False,
    only: Collection[Path] | None = None,
    progress: Progress | None = None,
    embedding: Embedding | None = None,
) -> list[IngestResult]:
    """Takes in the files below `folder` that are new or changed, and deletes documents whose file is gone.

    `only` names the files to look at (those that vanished are found in any case). A file that cannot be read leaves its
    old version answering. Raises InvalidArgumentError where `folder` is none, or holds no file at all while documents
    of it are in the store (a drive that is not mounted), unless `allow_empty`.
    """
    if not folder.is_dir():
        raise InvalidArgumentError("folder", f"{folder} is not a folder that can be read: nothing was changed")
    found = list(find_files([folder]))
    below = os.path.join(source_of(folder), "")
    stored = {
        document.source: document.document_id
        for document in knowledge_base.documents(collection, owner)
        if document.source.startswith(below)
    }
    if stored and all(file.refused is not None for file in found) and not allow_empty:
        raise InvalidArgumentError(
            "folder",
            f"{folder} is empty, and {len(stored)} documents of it are in the store: is a drive not mounted? "
            "Nothing was changed; add --even-if-empty to drop them",
        )
    wanted = [file for file in found if only is None or file.path in only]
    results = [_failed(shown_path(file.path), file.refused) for file in wanted if file.refused is not None]
    for result in results:
        _tell(progress, result)
    if readable := [file.path for file in wanted if file.refused is None]:
        results += knowledge_base.ingest_paths(
            readable, collection=collection, owner=owner, progress=progress, embedding=embedding
        )
    present = {file.source for file in found}
    # A folder that became a link is not looked into: what there was below it stays, as with a file that cannot be read.
    unseen = tuple(os.path.join(file.source, "") for file in found if file.refused is not None)
    gone = {
        source: document_id
        for source, document_id in stored.items()
        if source not in present and not source.startswith(unseen)
    }
    return results + _removed(knowledge_base, gone, owner, progress)


def sync_urls(
    knowledge_base: KnowledgeBase,
    urls: Iterable[str],
    *,
    collection: str = "default",
    owner: str = "local",
    allow_private: bool = False,
    progress: Progress | None = None,
    embedding: Embedding | None = None,
) -> list[IngestResult]:
    """Fetches each address and takes it in where it changed; one that is gone (404, 410) is deleted.

    The address is the document's identity. An address that cannot be fetched leaves its old version answering.
    """
    results = []
    for given in dict.fromkeys(urls):
        embedded = None if embedding is None else partial(embedding, Path(given))
        try:
            url = normal_url(given)
            fetched = fetch(url, allow_private=allow_private)
        except LoadError as error:
            result = _failed(given, str(error))
        else:
            if fetched is not None:
                result = knowledge_base.ingest_bytes(
                    fetched.data, fetched.name, url, collection=collection, owner=owner, embedded=embedded
                )
            else:
                documents = knowledge_base.documents(collection, owner)
                gone = {entry.source: entry.document_id for entry in documents if entry.source == url}
                results += _removed(knowledge_base, gone, owner, progress)
                if gone:
                    continue
                result = _failed(url, str(FetchError("the server has no such page (404)")))
        results.append(result)
        _tell(progress, result)
    return results


def watch_folders(
    knowledge_base: KnowledgeBase,
    folders: Iterable[Path],
    stop: Event,
    *,
    collection: str = "default",
    owner: str = "local",
    quiet_ms: int = _QUIET_MS,
) -> Iterator[list[IngestResult]]:
    """Syncs folders whenever something in them changes, until `stop` is set; yields what each change came to.

    Raises OSError where the system watches no more folders.
    """
    roots = [Path(os.path.abspath(folder)) for folder in folders]
    for changes in watch(*roots, stop_event=stop, debounce=quiet_ms, step=min(50, quiet_ms), watch_filter=None):
        changed = {Path(path) for _, path in changes}
        results = []
        for root in roots:
            if any(path.is_relative_to(root) for path in changed):
                only = _files_at(changed)
                try:
                    results += sync_folder(knowledge_base, root, collection=collection, owner=owner, only=only)
                except InvalidArgumentError as error:
                    results.append(_failed(str(root), str(error)))
        if results:
            yield results


def _files_at(changed: Iterable[Path]) -> set[Path]:
    """The changed files, with all that lie in a changed folder (one that was moved here changes as a whole)."""
    files: set[Path] = set()
    for path in changed:
        files.add(path)
        files.update(file.path for file in find_files([path]))
    return files


def _removed(
    knowledge_base: KnowledgeBase, gone: dict[str, str], owner: str, progress: Progress | None
) -> list[IngestResult]:
    deleted = knowledge_base.delete_documents(list(gone.values()), owner)
    results = [
        IngestResult(source, "removed", document_id, 0, 0, None)
        for source, document_id in gone.items()
        if document_id in deleted
    ]
    for result in results:
        _tell(progress, result)
    return results


def _failed(path: str, reason: str) -> IngestResult:
    return IngestResult(path, "failed", None, 0, 0, reason)


def _tell(progress: Progress | None, result: IngestResult) -> None:
    if progress is not None:
        progress(result)
