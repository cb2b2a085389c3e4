"""What commands share: options, how they become settings, and how progress and errors are shown."""

import os
import sys
from pathlib import Path
from typing import Annotated, Any

import typer
from rich.console import Console
from rich.markup import escape
from rich.progress import BarColumn, MofNCompleteColumn, Progress, SpinnerColumn, TextColumn, TimeElapsedColumn

from app import serve as process
from app.settings import CONFIG_VARIABLE, Settings, unknown_variables

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
# Numbers come as text: what is wrong with them is said as of every other setting.
ContextOption = Annotated[
    str | None, typer.Option("--max-model-len", metavar="N", help="Longest prompt + answer in tokens.")
]
ModelOption = Annotated[
    str | None, typer.Option("--model", metavar="NAME", help="Chat model: a path, packaged name or Hub repo id.")
]
LogLevelOption = Annotated[str | None, typer.Option("--log-level", metavar="L", help="debug, info, warning or error.")]
HostOption = Annotated[str | None, typer.Option("--host", metavar="H", help="Address to listen on, e.g. 0.0.0.0.")]
PortOption = Annotated[str | None, typer.Option("--port", metavar="P", help="Port of the API.")]
UIPortOption = Annotated[str | None, typer.Option("--ui-port", metavar="P", help="Port of the chat UI.")]


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


def progress_bar() -> Progress:
    """A bar on stderr for what takes long."""
    return Progress(
        SpinnerColumn(),
        TextColumn("{task.description}"),
        BarColumn(),
        MofNCompleteColumn(),
        TimeElapsedColumn(),
        console=errors_to,
    )


def prepare(settings: Settings) -> None:
    """Logs as the settings say, and warns of variables that are no settings."""
    process.configure_logging(settings)
    for warning in unknown_variables():
        errors_to.print(f"[yellow]warning:[/] {escape(warning)}")
