"""`ragstone eval`: a user's own questions put to a running server, or two such runs compared."""

import time
from pathlib import Path
from typing import Annotated

import typer
from rich.markup import escape

from app import serve as process
from app.cli.options import ConfigOption, HostOption, PortOption, errors_to, fail, progress_bar, read_settings

evaluation_cli = typer.Typer()


@evaluation_cli.command("eval", epilog="Example: ragstone eval questions.jsonl --label baseline")
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
    with Server(url) as server, progress_bar() as progress:
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
