"""``slicewise ledger``: what was used, for all users; checks and exports, for operators."""

import csv
import json
import re
import sys
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import fields, replace
from datetime import datetime
from enum import StrEnum
from pathlib import Path
from typing import IO, Annotated
from zoneinfo import ZoneInfo

import typer
from rich.text import Text

from slicewise.cluster.language.codes import Code
from slicewise.cluster.language.errors import OutsideError
from slicewise.cluster.rpc.client import DaemonClient
from slicewise.cluster.rpc.own_tenant import complete_tenant, typed_account
from slicewise.cluster.runtime.console import console, print_json
from slicewise.cluster.runtime.output_options import Json
from slicewise.cluster.runtime.questions import confirm
from slicewise.cluster.runtime.time_options import local_time
from slicewise.cluster.runtime.wall_clock import wall_s
from slicewise.cluster.settings.read import load_settings
from slicewise.slurm_plugin.cli.commands.invoice import invoice_app
from slicewise.slurm_plugin.cli.commands.ledger_db import ledger_db_app
from slicewise.slurm_plugin.cli.common.answer_pages import pages
from slicewise.slurm_plugin.cli.common.books import Books
from slicewise.slurm_plugin.cli.common.ledger_days import ledger_days
from slicewise.slurm_plugin.cli.common.options import (
    OPERATORS_PANEL,
    AnyTenant,
    Yes,
)
from slicewise.slurm_plugin.cli.common.output import counting, spinner, whole_file
from slicewise.slurm_plugin.cli.views import ledger as present
from slicewise.slurm_plugin.cli.views.focus import Billing, FocusRow, focus_rows
from slicewise.slurm_plugin.common.ledger_requests import BalanceRequest
from slicewise.slurm_plugin.common.record_requests import ExportRequest
from slicewise.slurm_plugin.common.usage_requests import ForgetPersonRequest
from slicewise.slurm_plugin.rules.accounting.run_csv import csv_text, inert, run_line, runs_csv
from slicewise.slurm_plugin.rules.accounting.statement import (
    by_day,
    by_service,
    by_user,
    part,
    totals,
)
from slicewise.slurm_plugin.rules.accounting.types import (
    BalanceLine,
    InvoiceLine,
    ShareLine,
    Statement,
    StatementRow,
    Verification,
)

_SEAL = re.compile("[0-9a-f]{64}")

ledger_app = typer.Typer(
    no_args_is_help=True,
    help="What was used: statements, balances, checks; and the database in which it stands.",
    epilog="Examples: slicewise ledger statement --from 2026-01 --until 2026-02"
    " | slicewise ledger verify",
)
ledger_app.add_typer(invoice_app)
ledger_app.add_typer(ledger_db_app, name="db", rich_help_panel=OPERATORS_PANEL)


def _zone() -> ZoneInfo:
    """Return the time zone in which budgets' periods begin: days and months add up to them."""
    return ZoneInfo(load_settings().ledger.time_zone)


def _ledger_time(text: str) -> datetime:
    zone = _zone()
    return local_time(text, zone=zone).astimezone(zone)


Csv = Annotated[bool, typer.Option("--csv", help="Print CSV, with JSON's names and integers.")]
Since = Annotated[
    datetime | None,
    typer.Option(
        parser=_ledger_time,
        metavar="TIME",
        help="Show runs that still run, or ended at this time or later.",
    ),
]

From = Annotated[
    datetime | None,
    typer.Option(
        "--from", parser=_ledger_time, metavar="TIME", help="Count use from this time on."
    ),
]
Until = Annotated[
    datetime | None,
    typer.Option(
        "--until", parser=_ledger_time, metavar="TIME", help="Count use before this time."
    ),
]


class Grouping(StrEnum):
    """What a line of a statement is about, besides its tenant."""

    SERVICE = "service"
    USER = "user"
    DAY = "day"


By = Annotated[Grouping, typer.Option(help="What each line is about.")]
Journal = Annotated[bool, typer.Option("--journal", help="Show every run.")]
Focus = Annotated[
    bool,
    typer.Option(
        "--focus",
        help="Print the charges from --from to --until as CSV in the columns of FOCUS 1.2.",
    ),
]


class Format(StrEnum):
    """Format of an export."""

    CSV = "csv"
    JSONL = "jsonl"


@ledger_app.command(
    "statement",
    epilog="Examples: slicewise ledger statement"
    " | slicewise ledger statement vision --from 2026-01-01 --until 2026-02-01"
    " | slicewise ledger statement --by day --from 7d"
    " | slicewise ledger statement --journal --from today --csv"
    " | slicewise ledger statement --focus --from 2026-01 --until 2026-02",
)
def statement(
    tenant: AnyTenant = None,
    *,
    since: Since = None,
    begin: From = None,
    end: Until = None,
    by: By = Grouping.SERVICE,
    journal: Journal = False,
    focus: Focus = False,
    as_json: Json = False,
    as_csv: Csv = False,
) -> None:
    """Show what was used, in slice-hours, line by line, and the sum of each tenant.

    Of one tenant, that is what its own runs used, and the runs of other accounts that it pays for.
    Running jobs count up to now. --journal shows every run instead, in slice-seconds. Of shared
    services an owner is relieved of what others are charged, and tokens are shown of who used them;
    both by the days that begin in that time. What a tenant was charged is what its runs used, less
    what it was relieved of, and its shares. "pool" is what a service used of replicas of other
    services of its pool, less what these used of its own: so each line has what its service used.

    With --since, each run counts in full, even if it started earlier. With --from and --until, runs
    are cut at these times, so that consecutive periods such as months add up. --by day cuts them at
    midnight. --from, --until, days and months are those of ledger.time_zone, in which budgets
    begin, too. JSON and CSV have integers in millislice-seconds. Users see the tenants that they
    belong to.

    --focus is for billing: a row for each day, payer, tenant, service, user, GPU type and price,
    without what was waived; shares are cut at the hour. With --json it prints the same as JSON.
    """
    _require_one_form(as_json=as_json, as_csv=as_csv)
    if focus and (journal or since or by is not Grouping.SERVICE or not begin or not end):
        raise typer.BadParameter("--focus needs --from and --until, and takes no other grouping.")
    if since is not None and (begin is not None or end is not None):
        raise typer.BadParameter("Choose --since, or --from and --until.")
    if begin is not None and end is not None and begin >= end:
        raise typer.BadParameter("--until is not after --from.")
    books = Books(DaemonClient(load_settings().daemon))
    if focus and begin and end:
        _print_focus(books, tenant, _since_s(begin), _since_s(end), as_json=as_json)
        return
    found, now_s, charged_below = books.statement(tenant, _since_s(since or begin))
    below = () if as_json or as_csv else charged_below
    from_s, until_s = _since_s(begin), int(end.timestamp()) if end else None
    whole, shares = found.rows, books.shares(tenant, _since_s(since or begin), until_s)
    rows = part(whole, from_s, until_s) if begin is not None or end is not None else whole
    found = Statement(rows, totals(rows, shares), shares)
    lines = _by_day(whole, from_s, until_s, shares) if by is Grouping.DAY else _lines(found, by)
    if as_json:
        shown = present.StatementShown(
            now_s=now_s,
            by=by.value,
            lines=lines,
            tenants=found.totals,
        )
        runs = [run_line(row, now_s) for row in found.rows] if journal else []
        print_json(present.JournalShown(**vars(shown), runs=runs) if journal else shown)
    elif as_csv:
        text = runs_csv(found.rows, now_s) if journal else present.lines_csv(lines, InvoiceLine)
        sys.stdout.write(text)
    else:
        runs_table = present.runs_table(found.rows, now_s)
        console().print(Text(present.period_text(begin, end, since)))
        table = runs_table if journal else present.invoice_table(lines, by)
        console().print(table.or_say("No runs."))
        if found.totals:
            console().print(present.totals_table(found.totals))
    if below:
        console().print(Text(present.below_text(below)))


def _lines(whole: Statement, by: Grouping) -> tuple[InvoiceLine, ...]:
    return (by_user if by is Grouping.USER else by_service)(whole.rows, whole.shares)


def _by_day(
    rows: Sequence[StatementRow], from_s: int, until_s: int | None, shares: Sequence[ShareLine]
) -> tuple[InvoiceLine, ...]:
    first_s = min((row.run.key.start_s for row in rows), default=0)
    days = ledger_days(max(from_s, first_s), wall_s(), _zone())
    return by_day(rows, days, from_s, until_s, shares)


def _print_focus(
    books: Books, tenant: str | None, from_s: int, until_s: int, *, as_json: bool
) -> None:
    currency, lines = books.charges(tenant, from_s, until_s)
    billing = Billing(load_settings().cluster.name, from_s, until_s, currency)
    shown = focus_rows(lines, billing)
    if as_json:
        print_json(shown)
    else:
        sys.stdout.write(csv_text(map(vars, shown), (field.name for field in fields(FocusRow))))


def _require_one_form(*, as_json: bool, as_csv: bool) -> None:
    if as_json and as_csv:
        raise typer.BadParameter("Choose one of --json and --csv.")


def _since_s(since: datetime | None) -> int:
    return int(since.timestamp()) if since else 0


@ledger_app.command(
    "balance",
    epilog="Examples: slicewise ledger balance | slicewise ledger balance vision --json"
    " | slicewise ledger balance --csv",
)
def balance(tenant: AnyTenant = None, as_json: Json = False, as_csv: Csv = False) -> None:
    """Show every tenant's balances, in slice-hours; an amount below zero is an overdraft.

    Where there are budgets of tokens, those follow, in tokens. "Left now" is what is available and
    reserved, less what running jobs have used so far. JSON and CSV have integers in
    millislice-seconds, or tokens: the meter says which. Users see the tenants that they belong to.
    """
    _require_one_form(as_json=as_json, as_csv=as_csv)
    daemon = DaemonClient(load_settings().daemon)
    balance_lines = daemon.call(BalanceRequest.of(tenant=tenant)).balances
    if as_json:
        print_json(balance_lines)
    elif as_csv:
        sys.stdout.write(present.lines_csv(balance_lines, BalanceLine))
    else:
        console().print(present.balances_table(balance_lines).or_say("Nothing was booked yet."))


@ledger_app.command(
    "verify",
    rich_help_panel=OPERATORS_PANEL,
    epilog="Examples: slicewise ledger verify | slicewise ledger verify --seal 5f3a... --json",
)
def verify(
    seal: Annotated[
        str,
        typer.Option(
            help="A seal printed earlier and kept elsewhere: verify that it is still in the chain.",
            show_default=False,
        ),
    ] = "",
    as_json: Json = False,
) -> None:
    """Replay every transfer and compare with every stored balance; exit 1 if anything differs.

    It can be run on a live system: it reads one consistent state. It works without the daemon.
    """
    kept = seal.strip().lower()
    if kept and not _SEAL.fullmatch(kept):
        raise typer.BadParameter(
            f"--seal {seal!r}: a seal is the 64 hexadecimal digits that ledger verify prints."
        )
    # Imported here: it takes as long as the rest of the commands, which ask the daemon.
    from slicewise.slurm_plugin.cli.common.opened_ledger import opened_ledger  # noqa: PLC0415

    with opened_ledger(load_settings()) as ledger, spinner("Replaying the ledger"):
        began_s = time.monotonic()
        found = ledger.audit.verify()
        if kept and not ledger.audit.has_seal(kept):
            found = _lacking(found, kept)
        took_s = time.monotonic() - began_s
    if as_json:
        print_json(present.TimedVerification(**vars(found), seconds=round(took_s, 3)))
    if found.imbalance or found.faults:
        raise _imbalance(found)
    if not as_json:
        console().print(present.verified_text(found, took_s))


def _lacking(found: Verification, seal: str) -> Verification:
    fault = f"seal {seal} is not in the chain: it was rewritten, or its end deleted, since"
    return replace(found, imbalance=found.imbalance + 1, faults=(*found.faults, fault))


def _imbalance(found: Verification) -> OutsideError:
    faults = "".join(f"\n  {fault}" for fault in found.faults)
    if found.imbalance > len(found.faults):
        words = f"Amounts do not add up: {found.imbalance:,} in the ledger's units."
    else:  # Each fault that is no amount counts as 1.
        words = "The ledger does not hold what it should:"
    return OutsideError(
        Code.LEDGER_IMBALANCE,
        f"{words}{faults}",
        "The tables were written to around the triggers: compare with a backup. But where an "
        "engine had counted less, its owner's replicas answer with more tokens than they make.",
    )


@ledger_app.command(
    "forget",
    rich_help_panel=OPERATORS_PANEL,
    epilog="Examples: slicewise ledger forget alice | slicewise ledger forget alice --tenant vision"
    " --yes",
)
def forget(
    person: Annotated[str, typer.Argument(help="The person's name, as slicewise usage shows it.")],
    *,
    tenant: Annotated[
        str | None,
        typer.Option(
            help="Only what this tenant paid for; all if left out.",
            autocompletion=complete_tenant,
            callback=typed_account,
        ),
    ] = None,
    yes: Yes = False,
) -> None:
    """Forget who a person was in all that is kept of requests and tokens.

    "-" takes the place of the person's name and keys, also in what gateways tell later of requests
    that have ended. Every sum of tokens stays what it was; what
    the person's jobs used of slices is not touched. It can't be undone.
    """
    request = ForgetPersonRequest.of(person=person, tenant=tenant)
    confirm(f"{person}'s use of tokens becomes nobody's for good. Forget it?", yes=yes)
    daemon = DaemonClient(load_settings().daemon)
    days = pages(lambda after: daemon.call(request.model_copy(update={"after": after})))
    typer.echo(f"{person} was named in {sum(each.records for each in days):,} records.")


@ledger_app.command(
    "export",
    rich_help_panel=OPERATORS_PANEL,
    epilog="Examples: slicewise ledger export --output ledger.csv"
    " | slicewise ledger export --format jsonl --since 2026-01-01",
)
def export(
    since: Annotated[
        datetime | None,
        typer.Option(
            parser=_ledger_time, metavar="TIME", help="Transfers recorded at this time or later."
        ),
    ] = None,
    form: Annotated[
        Format, typer.Option("--format", help="Format of the export: one line per transfer.")
    ] = Format.CSV,
    output: Annotated[
        Path | None, typer.Option(help="A file, written whole or not at all; by default stdout.")
    ] = None,
) -> None:
    """Write every transfer, oldest first, for example to fill a ledger of your own."""
    rows = _exported(DaemonClient(load_settings().daemon), _since_s(since))
    if output is None:
        _write(rows, form, sys.stdout)
        return
    with whole_file(output) as file, counting("transfers", every=1000) as counted:
        count = _write(counted(rows), form, file)
    typer.echo(f"{output}: {count:,} transfers", err=True)


def _exported(daemon: DaemonClient, since_s: int) -> Iterator[Mapping[str, object]]:
    """Yield every transfer up to the one that was the newest at the first question."""
    for answer in pages(lambda after: daemon.call(ExportRequest(since_s=since_s, after=after))):
        yield from answer.rows


def _write(rows: Iterable[Mapping[str, object]], form: Format, file: IO[str]) -> int:
    write = _csv_writer(file) if form is Format.CSV else _jsonl_writer(file)
    count = 0
    for row in rows:
        write(row)
        count += 1
    return count


def _jsonl_writer(file: IO[str]) -> Callable[[Mapping[str, object]], object]:
    return lambda row: file.write(json.dumps(row) + "\n")


def _csv_writer(file: IO[str]) -> Callable[[Mapping[str, object]], object]:
    names: list[str] = []
    writer = csv.DictWriter(file, names, lineterminator="\n")

    def write(row: Mapping[str, object]) -> None:
        if not names:
            names.extend(row)
            writer.writeheader()
        writer.writerow(inert(row))

    return write
