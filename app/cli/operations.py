"""`ragstone doctor`, `settings`, `profile`, `backup` and `restore`: for who keeps a server running."""

from pathlib import Path
from typing import Annotated

import typer
from rich.markup import escape

from app.cli.options import (
    ConfigOption,
    ContextOption,
    DataOption,
    DeviceOption,
    DtypeOption,
    ModelOption,
    PortOption,
    errors_to,
    prepare,
    read_settings,
)

operations_cli = typer.Typer()

MARKS = {"ok": "[green]ok[/]      ", "warning": "[yellow]warning[/] ", "problem": "[red]problem[/] "}


@operations_cli.command(epilog="Example: ragstone doctor --port 9000")
def doctor(
    port: PortOption = None,
    model: ModelOption = None,
    device: DeviceOption = None,
    data: DataOption = None,
    config: ConfigOption = None,
) -> None:
    """Look at what could keep the server from running well, and say what to do. Exit code 1 if there is a problem."""
    settings = read_settings(config, port=port, model=model, device=device, data=data)
    from app.doctor import examine

    num_problems = 0
    for finding in examine(settings):
        num_problems += finding.state == "problem"
        errors_to.print(f"{MARKS[finding.state]} {escape(finding.what):<22} {escape(finding.found)}")
        if finding.advice:
            errors_to.print(f"         {escape(finding.advice)}")
    print("no problem found" if not num_problems else f"{num_problems} to mend")
    raise typer.Exit(1 if num_problems else 0)


@operations_cli.command(epilog="Example: ragstone settings --markdown")
def settings(
    markdown: Annotated[
        bool, typer.Option("--markdown", help="Print the table of all settings, as docs/settings.md has it.")
    ] = False,
    config: ConfigOption = None,
) -> None:
    """Print the settings in force, one a line, or the table of all there are."""
    from app.settings_table import in_force, markdown_table

    if markdown:
        print(markdown_table(), end="")
        return
    for name, value in in_force(read_settings(config)):
        print(f"{name:<34} {value}")


@operations_cli.command(epilog='Example: ragstone profile "What does TTFT measure?" --steps 40 --out trace.json')
def profile(
    prompt: Annotated[str, typer.Argument(metavar="PROMPT", help="A message to answer.")],
    steps: Annotated[int, typer.Option("--steps", metavar="N", min=1, max=10_000, help="Steps to trace.")] = 20,
    out: Annotated[
        Path, typer.Option("--out", metavar="FILE", help="Trace to write, for chrome://tracing or ui.perfetto.dev.")
    ] = Path("ragstone-trace.json"),
    model: ModelOption = None,
    device: DeviceOption = None,
    dtype: DtypeOption = None,
    max_model_len: ContextOption = None,
    data: DataOption = None,
    config: ConfigOption = None,
) -> None:
    """Trace the first steps of an answer, and print which parts and operators of them take the time."""
    settings = read_settings(config, model=model, device=device, dtype=dtype, max_model_len=max_model_len, data=data)
    prepare(settings)
    from app.profiling import profile as trace

    found = trace(settings, prompt, num_steps=steps, trace=out)
    print(found.table)
    print(f"{found.summary}; the trace is {found.trace} ({found.trace.stat().st_size / 1e6:,.1f} MB)")


@operations_cli.command(epilog="Example: ragstone backup ragstone-2026-11-30.tar.gz")
def backup(
    archive: Annotated[Path, typer.Argument(metavar="FILE.tar.gz", help="Archive to write; it must not exist yet.")],
    data: DataOption = None,
    config: ConfigOption = None,
) -> None:
    """Write documents, conversations, keys and accounts into one archive, whether or not the server runs."""
    from app.backup import backup as write

    settings = read_settings(config, data=data)
    count = write(settings, archive)
    print(f"{count} files of {settings.data_dir} in {archive} ({archive.stat().st_size / 1e6:,.1f} MB)")


@operations_cli.command(epilog="Example: ragstone restore ragstone-2026-11-30.tar.gz --data restored-data")
def restore(
    archive: Annotated[Path, typer.Argument(metavar="FILE.tar.gz", help="Archive of `ragstone backup`.")],
    data: DataOption = None,
    config: ConfigOption = None,
) -> None:
    """Put an archive's files into a data folder that holds none yet."""
    from app.backup import restore as unpack

    settings = read_settings(config, data=data)
    count = unpack(settings, archive)
    print(f"{count} files restored into {settings.data_dir}")
