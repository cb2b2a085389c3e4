"""The command `ragstone`: options become settings, results and errors become text and an exit code.

The work is done elsewhere (`app.serve`, `app.models`, retrieval), and what is slow to import is imported only where it
is needed, so that `--help` and `models path` answer at once. Results go to stdout, progress and errors to stderr. Exit
codes: 0 done, 1 failed, 2 wrong usage or a wrong setting.
"""

import os
import sys
from typing import Annotated

import typer

from app import __version__
from app.cli.documents import documents_cli
from app.cli.evaluation import evaluation_cli
from app.cli.keys import keys_cli
from app.cli.model_commands import models_cli
from app.cli.operations import operations_cli
from app.cli.options import fail
from app.cli.server import server_cli
from app.errors import RagstoneError

cli = typer.Typer(
    name="ragstone",
    help="Chat with your documents on your own machine.",
    epilog="Start with: ragstone serve",
    no_args_is_help=True,
    pretty_exceptions_enable=False,
    add_completion=False,
    context_settings={"help_option_names": ["-h", "--help"]},
)
for commands in (server_cli, documents_cli, evaluation_cli, operations_cli):
    cli.add_typer(commands)
cli.add_typer(models_cli, name="models")
cli.add_typer(keys_cli, name="keys")


def main() -> None:
    """Run the command line and exit with its code; errors of the app become one sentence on stderr.

    What it and its child processes write holds documents and conversations: nobody else may read it.
    """
    os.umask(0o077)
    try:
        cli()
    except RagstoneError as error:
        fail(error.message, error.exit_code)
    except KeyboardInterrupt:
        sys.exit(130)


@cli.callback(invoke_without_command=True)
def _root(
    version: Annotated[bool, typer.Option("--version", help="Print the version and exit.")] = False,
) -> None:
    if version:
        print(f"ragstone {__version__}")
        raise typer.Exit
