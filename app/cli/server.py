"""`ragstone serve` and `status`: the server in this process, and what can be seen of one that runs."""

from pathlib import Path
from typing import Annotated

import typer

from app import models, packaged_models, preflight
from app import serve as process
from app.cli.options import (
    CacheOption,
    ConfigOption,
    ContextOption,
    DataOption,
    DeviceOption,
    DtypeOption,
    EmbeddingModelOption,
    HostOption,
    LogLevelOption,
    ModelOption,
    PortOption,
    UIPortOption,
    read_settings,
)
from app.settings import Settings, config_path

server_cli = typer.Typer()
ENGINE_PORT = 8000


@server_cli.command(epilog="Example: ragstone serve --port 9000 --ui-port 9001 --data ~/my-documents-data")
def serve(
    host: HostOption = None,
    port: PortOption = None,
    ui_port: UIPortOption = None,
    data: DataOption = None,
    model: ModelOption = None,
    embedding_model: EmbeddingModelOption = None,
    ui: Annotated[bool | None, typer.Option("--ui/--no-ui", help="Start the chat UI beside the API.")] = None,
    sample_kb: Annotated[
        bool | None, typer.Option("--sample-kb/--no-sample-kb", help="Put the sample handbook in at first start.")
    ] = None,
    device: DeviceOption = None,
    dtype: DtypeOption = None,
    max_model_len: ContextOption = None,
    model_cache: CacheOption = None,
    log_level: LogLevelOption = None,
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


@server_cli.command(epilog="Example: ragstone engine --port 8000 --model smollm2-135m-instruct")
def engine(
    host: HostOption = None,
    port: Annotated[str | None, typer.Option("--port", metavar="P", help="Port of /v1 (default: 8000).")] = None,
    socket: Annotated[
        Path | None, typer.Option("--socket", metavar="PATH", help="Listen on a Unix socket there, not on a port.")
    ] = None,
    model: ModelOption = None,
    device: DeviceOption = None,
    dtype: DtypeOption = None,
    max_model_len: ContextOption = None,
    data: DataOption = None,
    model_cache: CacheOption = None,
    log_level: LogLevelOption = None,
    config: ConfigOption = None,
) -> None:
    """Serve the chat model alone on OpenAI's /v1, until Ctrl+C.

    `ragstone serve` uses it with RAGSTONE_ENGINE_URL=http://host:8000, from this machine or another.
    """
    settings = read_settings(
        config,
        host=host,
        port=port or ENGINE_PORT,
        model=model,
        device=device,
        dtype=dtype,
        max_model_len=max_model_len,
        data=data,
        model_cache=model_cache,
        log_level=log_level,
    )
    from app.serve_engine import serve_engine

    raise typer.Exit(serve_engine(settings, socket))


@server_cli.command(epilog="Example: ragstone ui --api-url http://box.lan:8080 --ui-port 9001")
def ui(
    api_url: Annotated[
        str | None,
        typer.Option("--api-url", metavar="URL", envvar="RAGSTONE_API_URL", help="The API (default: by the settings)."),
    ] = None,
    host: HostOption = None,
    port: PortOption = None,
    ui_port: UIPortOption = None,
    data: DataOption = None,
    config: ConfigOption = None,
) -> None:
    """Serve the chat page alone, for an API that runs already, here or elsewhere, until Ctrl+C.

    Who uses the page is asked for a key where that API wants one. Uploads on their way are kept in the data folder.
    """
    process.serve_ui(read_settings(config, host=host, port=port, ui_port=ui_port, data=data), api_url)


@server_cli.command(epilog="Example: ragstone status --port 9000 && echo ready")
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
    states = process.model_states(api) if state == process.READY else {}
    rows = {
        "API": f"{api}  {state}",
        "Chat": f"{chat}  {'answers' if process.answers(chat) else 'does not answer'}",
        "Data": f"{settings.data_dir}" + ("" if settings.data_dir.is_dir() else "  (not made yet)"),
        "Chat model": settings.model + _fetched(settings.model, fetched),
        **({"Models": ", ".join(f"{name} {how}" for name, how in states.items())} if states else {}),
        "Embeddings": settings.embedding_model + _fetched(settings.embedding_model, fetched),
        **_saved_index(settings),
        "Settings": str(file.absolute()) if file else "no ragstone.toml here",
    }
    for name, value in rows.items():
        print(f"{name:<11} {value}")
    raise typer.Exit(0 if state == process.READY else 1)


def _saved_index(settings: Settings) -> dict[str, str]:
    """The index as rows of the status: what it is, and what is advised about its embedding model."""
    saved = None
    if settings.knowledge_dir.is_dir():
        from retrieval.snapshot import saved_index  # seconds of imports

        saved = saved_index(settings.knowledge_dir)
    if saved is None:
        return {"Index": "none yet"}
    return {"Index": saved.text} | ({"Note": saved.advice} if saved.advice else {})


def _fetched(name: str, fetched: set[str]) -> str:
    if name.lower() not in packaged_models.PACKAGED:
        return ""
    return "  (fetched)" if name.lower() in fetched else "  (is fetched at first start)"
