"""`ragstone keys`: who may use a server that others can reach."""

import time
from contextlib import closing
from typing import Annotated

import typer
from rich.console import Console
from rich.table import Table

from app.api_keys import DEFAULT_SCOPES, DEFAULT_TENANT, KeyStore
from app.cli.options import ConfigOption, DataOption, errors_to, fail, read_settings
from app.limits import Limits
from app.principal import SCOPES

keys_cli = typer.Typer(
    help="Make, list and revoke API keys.", no_args_is_help=True, epilog="Example: ragstone keys create ada"
)


@keys_cli.command("create", epilog="Example: ragstone keys create ada --tenant sales --days 90")
def create(
    name: Annotated[str, typer.Argument(metavar="NAME", help="What the key is called, for whom it is for.")],
    user: Annotated[
        str | None,
        typer.Option(
            "--user",
            metavar="USER",
            help="Whose conversations and documents it opens (default: NAME; `local` owns those made without keys).",
        ),
    ] = None,
    tenant: Annotated[
        str, typer.Option("--tenant", metavar="TENANT", help="Who its use is limited and accounted with.")
    ] = DEFAULT_TENANT,
    scope: Annotated[
        list[str],
        typer.Option(
            "--scope", metavar="SCOPE", help=f"What it may do, may be given several times: {', '.join(SCOPES)}."
        ),
    ] = list(DEFAULT_SCOPES),  # noqa: B006
    days: Annotated[
        float | None, typer.Option("--days", metavar="N", min=0, help="Days until it expires (default: never).")
    ] = None,
    data: DataOption = None,
    config: ConfigOption = None,
) -> None:
    """Make a key and print it, once and alone, on stdout. A running server knows it at once."""
    settings = read_settings(config, data=data)
    with closing(KeyStore(settings.keys_path)) as keys:
        lifetime_s = None if days is None else days * 86_400
        key, record = keys.create(name, user=user, tenant=tenant, scopes=scope, lifetime_s=lifetime_s)
    errors_to.print(
        f"key {record.key_id} of user {record.user}, tenant {record.tenant}: {', '.join(record.scopes)}. "
        "It is kept as a hash and is shown this once:",
        markup=False,
    )
    print(key)


@keys_cli.command("list", epilog="Example: ragstone keys list")
def list_keys(data: DataOption = None, config: ConfigOption = None) -> None:
    """List all keys, those that are of no use any more too; never the keys themselves."""
    settings = read_settings(config, data=data)
    table = Table(box=None, pad_edge=False)
    for heading in ("ID", "NAME", "USER", "TENANT", "SCOPES", "MADE", "EXPIRES", "STATUS"):
        table.add_column(heading, overflow="fold")
    with closing(KeyStore(settings.keys_path)) as keys:
        for key in keys.records():
            expires = _day(key.expires_at) if key.expires_at else "never"
            scopes = ", ".join(key.scopes)
            table.add_row(key.key_id, key.name, key.user, key.tenant, scopes, _day(key.created_at), expires, key.status)
    Console(soft_wrap=True, highlight=False, markup=False).print(table)


@keys_cli.command("revoke", epilog="Example: ragstone keys revoke ada")
def revoke(
    name: Annotated[str, typer.Argument(metavar="NAME|ID", help="A key's id, or the name of one or more keys.")],
    data: DataOption = None,
    config: ConfigOption = None,
) -> None:
    """Make keys useless, from the next request on. What their user owns stays."""
    settings = read_settings(config, data=data)
    with closing(KeyStore(settings.keys_path)) as keys:
        revoked = keys.revoke(name)
    if not revoked:
        fail(f"there is no active key of the name or id {name!r}; `ragstone keys list` shows them")
    for key in revoked:
        print(f"revoked: key {key.key_id} ({key.name})")


@keys_cli.command("limit", epilog="Example: ragstone keys limit sales --requests-per-minute 60 --concurrency 4")
def limit(
    tenant: Annotated[str, typer.Argument(metavar="TENANT", help="Whose limits.")],
    requests_per_minute: Annotated[
        int | None, typer.Option("--requests-per-minute", metavar="N", min=1, help="Requests of models a minute.")
    ] = None,
    tokens_per_minute: Annotated[
        int | None,
        typer.Option("--tokens-per-minute", metavar="N", min=1, help="Tokens a minute, of prompts and answers."),
    ] = None,
    concurrency: Annotated[
        int | None, typer.Option("--concurrency", metavar="N", min=1, help="Requests under way at a time.")
    ] = None,
    data: DataOption = None,
    config: ConfigOption = None,
) -> None:
    """Set what a tenant may use, in place of the settings tenant_*; what is left out is as the settings say."""
    settings = read_settings(config, data=data)
    limits = Limits(requests_per_minute, tokens_per_minute, concurrency)
    with closing(KeyStore(settings.keys_path)) as keys:
        keys.set_limits(tenant, limits)
    said = [f"{name} {value:,}" for name, value in vars(limits).items() if value is not None]
    print(f"limits of the tenant {tenant}: {', '.join(said) or 'as the settings say'}")


def _day(time_s: float) -> str:
    return time.strftime("%Y-%m-%d", time.gmtime(time_s))
