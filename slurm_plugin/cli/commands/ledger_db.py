"""``slicewise ledger db``: the ledger's database: its schema, roles and dumps."""

import json
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from enum import StrEnum
from pathlib import Path
from typing import Annotated

import typer
from rich.text import Text

from slicewise.cluster.language.codes import Code
from slicewise.cluster.language.errors import InvalidInputError
from slicewise.cluster.runtime.console import console, print_json
from slicewise.cluster.runtime.output_options import Json
from slicewise.cluster.runtime.questions import confirm
from slicewise.cluster.settings.read import database_url, load_settings
from slicewise.slurm_plugin.cli.common.output import spinner, whole_file
from slicewise.slurm_plugin.rules.accounting.types import BackupRecord

ledger_db_app = typer.Typer(
    no_args_is_help=True,
    help="The ledger's PostgreSQL schema; each command works without the daemon.",
    epilog="Examples: slicewise ledger db upgrade | slicewise ledger db current",
)


class Duty(StrEnum):
    """What a role of PostgreSQL may do in the ledger."""

    DAEMON = "daemon"
    OPERATOR = "operator"
    READER = "reader"
    LAUNCHER = "launcher"


@dataclass(frozen=True)
class DatabaseRevisions:
    """The database's revision, the one that this version needs, and which database it is."""

    current: str
    head: str
    host: str
    port: str
    database: str
    role: str


@ledger_db_app.command("upgrade", epilog="Example: slicewise ledger db upgrade")
def upgrade() -> None:
    """Bring the ledger's tables up to date; do nothing if they already are."""
    from slicewise.slurm_plugin.ledger import schema_revisions  # noqa: PLC0415 -- not for --help

    _print_step(schema_revisions.upgrade(_url(), _say))


@ledger_db_app.command("current", epilog="Example: slicewise ledger db current")
def current(as_json: Json = False) -> None:
    """Show which database is used, its revision, and the one that this version needs.

    The database is that of $SLICEWISE_DATABASE_URL, else of database.url_file.
    """
    from slicewise.cluster.runtime.database import database_place  # noqa: PLC0415 -- not for --help
    from slicewise.slurm_plugin.ledger import schema_revisions  # noqa: PLC0415 -- as above

    url = _url()
    revisions = {"current": schema_revisions.current_of(url), "head": schema_revisions.head()}
    place = database_place(url)
    if as_json:
        print_json(DatabaseRevisions(**revisions, **vars(place)))
    else:
        console().print(Text(f"{_revision_text(revisions)}: {place.text()}"))


@ledger_db_app.command("downgrade", epilog="Example: slicewise ledger db downgrade 0001")
def downgrade(
    revision: Annotated[str, typer.Argument(help="An older revision, or base to drop all tables.")],
    yes: Annotated[bool, typer.Option("--yes", help="Do not ask for confirmation.")] = False,
) -> None:
    """Go back to an older revision; data for which it has no tables is lost."""
    from slicewise.slurm_plugin.ledger import schema_revisions  # noqa: PLC0415 -- not for --help

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
    from slicewise.slurm_plugin.ledger import schema_revisions  # noqa: PLC0415 -- not for --help

    schema_revisions.grant(_url(), role, duty.value)
    console().print(f"{role} may do what a {duty} does.", markup=False)


@ledger_db_app.command(
    "backup",
    epilog="Example: slicewise ledger db backup /var/backups/slicewise-$(date +%F).dump",
)
def backup(
    file: Annotated[
        Path,
        typer.Argument(help="The dump; FILE.json is written beside it.", show_default=False),
    ],
    as_json: Json = False,
) -> None:
    """Dump the database by pg_dump, whole or not at all, and name the newest seal in the dump.

    Keep that seal on another host, too. FILE.json says what the dump holds, for "check-backup".
    Run the command as the owner of the tables; the daemon goes on meanwhile.
    """
    from slicewise.slurm_plugin.ledger import backups  # noqa: PLC0415 -- not for --help

    with spinner("Dumping the ledger"), whole_file(file) as dump:
        record = backups.dump(_url(), dump)
    with whole_file(_record_of(file)) as written:
        written.write(json.dumps(asdict(record)) + "\n")
    _print_record(file, record, "was written", as_json=as_json)


@ledger_db_app.command(
    "check-backup",
    epilog="Example: slicewise ledger db check-backup /var/backups/slicewise-2026-11-01.dump",
)
def check_backup(
    file: Annotated[Path, typer.Argument(help='What "backup" wrote.', show_default=False)],
    as_json: Json = False,
) -> None:
    """Restore a dump into a scratch database, verify the ledger and its seals there, and drop it.

    The scratch database is made on the server of the URL, by a role that may create databases.
    Nothing else is changed there.
    """
    from slicewise.slurm_plugin.ledger import backups  # noqa: PLC0415 -- not for --help

    record = _read_record(file)
    with spinner("Restoring the dump"):
        backups.check(_url(), file, record)
    _print_record(file, record, "can be restored, and adds up", as_json=as_json)


def _record_of(file: Path) -> Path:
    return file.with_name(f"{file.name}.json")


def _read_record(file: Path) -> BackupRecord:
    """Raise InvalidInputError (SW-BACKUP-BROKEN) unless the dump and its record can be read."""
    from pydantic import TypeAdapter, ValidationError  # noqa: PLC0415 -- not for --help

    path = _record_of(file)
    try:
        with file.open("rb"):
            return TypeAdapter(BackupRecord).validate_json(path.read_bytes())
    except OSError as error:
        words = f"{error.filename} can't be read: {error.strerror}."
    except ValidationError:
        words = f"{path} is no record of a dump."
    raise InvalidInputError(
        Code.BACKUP_BROKEN,
        words,
        'Both files are needed that "slicewise ledger db backup" writes.',
    )


def _print_record(file: Path, record: BackupRecord, words: str, *, as_json: bool) -> None:
    if as_json:
        print_json(record)
        return
    text = f"{file} {words}: {record.transfers:,} transfers, revision {record.revision}."
    seal = f" Its newest seal: {record.seal}" if record.seal else " Nothing is sealed in it."
    console().print(Text(text + seal))


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
