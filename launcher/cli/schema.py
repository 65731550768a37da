"""``slicewise schema``: the JSON schema of what each command prints with ``--json``."""

from typing import Annotated

import typer

from slicewise.cluster.language.codes import Code
from slicewise.cluster.language.errors import InvalidInputError
from slicewise.cluster.runtime.console import print_json
from slicewise.launcher.cli.json_outputs import OUTPUTS, schema_of

schema_app = typer.Typer()


def _complete(incomplete: str) -> list[str]:
    return sorted({command.split()[0] for command in OUTPUTS if command.startswith(incomplete)})


@schema_app.command(
    epilog="Examples: slicewise schema | slicewise schema service status | slicewise schema why"
)
def schema(
    command: Annotated[
        list[str] | None,
        typer.Argument(
            help="A command; if left out, those that print JSON are listed.",
            show_default=False,
            autocompletion=_complete,
        ),
    ] = None,
) -> None:
    """Print the JSON schema of what a command prints with --json.

    The number in its $id is the version: keys may be added to one, and none goes or changes its
    meaning.
    """
    if not command:
        typer.echo("\n".join(sorted(OUTPUTS)))
        return
    name = " ".join(command)
    if name not in OUTPUTS:
        raise InvalidInputError(
            Code.NAME_UNKNOWN,
            f"There is no command {name!r} that prints JSON.",
            "Those that do: slicewise schema",
        )
    print_json(schema_of(name))
