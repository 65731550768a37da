"""``slicewise ledger db``: the ledger's database, its schema and roles."""

from collections.abc import Mapping
from dataclasses import asdict
from enum import StrEnum
from typing import Annotated

import typer
from rich.text import Text

from cluster.runtime.console import console, print_json
from cluster.runtime.questions import confirm
from cluster.settings.file import database_url, load_settings
from slurm_plugin.cli_common.options import Json

ledger_db_app = typer.Typer(help="The ledger's PostgreSQL schema.", no_args_is_help=True)


class Duty(StrEnum):
    """What a role of PostgreSQL may do in the ledger."""

    DAEMON = "daemon"
    OPERATOR = "operator"
    READER = "reader"
    LAUNCHER = "launcher"


@ledger_db_app.command("upgrade", epilog="Example: slicewise ledger db upgrade")
def upgrade() -> None:
    """Bring the ledger's tables up to date; do nothing if they already are."""
    from slurm_plugin.ledger_tables import schema_revisions  # noqa: PLC0415 -- not for --help

    _print_step(schema_revisions.upgrade(_url(), _say))


@ledger_db_app.command("current", epilog="Example: slicewise ledger db current")
def current(as_json: Json = False) -> None:
    """Show which database is used, its revision, and the one that this version needs.

    The database is that of $SLICEWISE_DATABASE_URL, else of [database] url_file.
    """
    from cluster.runtime.database import database_place  # noqa: PLC0415 -- not for --help
    from slurm_plugin.ledger_tables import schema_revisions  # noqa: PLC0415 -- as above

    url = _url()
    revisions = {"current": schema_revisions.current_of(url), "head": schema_revisions.head()}
    place = database_place(url)
    if as_json:
        print_json({**revisions, **asdict(place)})
    else:
        console().print(Text(f"{_revision_text(revisions)}: {place.text()}"))


@ledger_db_app.command("downgrade", epilog="Example: slicewise ledger db downgrade 0001")
def downgrade(
    revision: Annotated[str, typer.Argument(help="An older revision, or base to drop all tables.")],
    yes: Annotated[bool, typer.Option("--yes", help="Don't ask for confirmation.")] = False,
) -> None:
    """Go back to an older revision; data for which it has no tables is lost."""
    from slurm_plugin.ledger_tables import schema_revisions  # noqa: PLC0415 -- not for --help

    confirm("What the older revision has no tables for will be lost. Go on?", yes=yes)
    _print_step(schema_revisions.downgrade(_url(), revision, _say))


@ledger_db_app.command(
    "grant",
    epilog="Examples: slicewise ledger db grant slurm --as daemon"
    " | slicewise ledger db grant auditor --as reader",
)
def grant(
    role: Annotated[str, typer.Argument(help="A PostgreSQL role.", show_default=False)],
    duty: Annotated[
        Duty,
        typer.Option("--as", metavar="DUTY", help="daemon, operator, reader or launcher."),
    ],
) -> None:
    """Give a PostgreSQL role the rights that its duty needs, and no others.

    No role may change or delete an entry. A reader only reads; an operator sets quotas and budgets;
    the daemon charges; the launcher stores what it has learnt and can't read the ledger. Run the
    command as the owner of the tables.
    """
    from slurm_plugin.ledger_tables import schema_revisions  # noqa: PLC0415 -- not for --help

    schema_revisions.grant(_url(), role, duty.value)
    console().print(f"{role} may do what a {duty} does.", markup=False)


def _url() -> str:
    return database_url(load_settings().database)


def _say(text: str) -> None:
    typer.echo(text, err=True)


def _revision_text(revisions: Mapping[str, str]) -> str:
    at, head = revisions["current"], revisions["head"]
    return f"{at}, up to date" if at == head else f"{at}; this version needs {head}"


def _print_step(step: tuple[str, str]) -> None:
    before, after = step
    text = f"{after}, nothing to do" if before == after else f"{before} → {after}"
    console().print(text)
