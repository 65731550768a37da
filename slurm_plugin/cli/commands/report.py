"""``slicewise report``: how a month was, for people as HTML, for spreadsheets as CSV."""

import re
import sys
from dataclasses import fields
from datetime import datetime
from pathlib import Path
from typing import Annotated
from zoneinfo import ZoneInfo

import typer
from rich.text import Text

from slicewise.cluster.language.periods import Period, period_start_s
from slicewise.cluster.rpc.client import DaemonClient
from slicewise.cluster.rpc.own_tenant import complete_tenant, typed_account
from slicewise.cluster.runtime.console import console, print_json
from slicewise.cluster.runtime.output_options import Json
from slicewise.cluster.runtime.wall_clock import wall_s
from slicewise.cluster.settings.read import load_settings
from slicewise.slurm_plugin.cli.common.books import Books
from slicewise.slurm_plugin.cli.common.output import spinner, whole_file

_MONTH = re.compile(r"[0-9]{4}-(0[1-9]|1[0-2])")

report_app = typer.Typer()


@report_app.command(
    epilog="Examples: slicewise report --output october.html --month 2026-10"
    " | slicewise report --tenant vision --csv > vision.csv | slicewise report --json"
)
def report(
    *,
    month: Annotated[
        str | None,
        typer.Option(
            metavar="YYYY-MM",
            help="A month by ledger.time_zone; by default the last one that is over.",
            show_default=False,
        ),
    ] = None,
    tenant: Annotated[
        str | None,
        typer.Option(
            help="This tenant alone, with drawings of its services.",
            show_default=False,
            autocompletion=complete_tenant,
            callback=typed_account,
        ),
    ] = None,
    output: Annotated[
        Path | None, typer.Option(help="Write the report as one HTML file.", show_default=False)
    ] = None,
    as_csv: Annotated[
        bool, typer.Option("--csv", help="Print a row for each tenant and day as CSV.")
    ] = False,
    as_json: Json = False,
) -> None:
    """Report a month: how the slices were used, by state, tenant and service, with drawings.

    The HTML file asks for nothing else: it can be kept, sent and printed. It draws the 40 tenants
    that were charged most, and three services of each. What was charged is what "ledger statement"
    says; other figures are those that the daemon has recorded, with gaps where it could not. CSV
    and JSON have amounts in integers. Without --output, --csv and --json a table of the tenants is
    printed. Users see the tenants that they belong to, and the cluster's sums.
    """
    if as_json and as_csv:
        raise typer.BadParameter("Choose one of --json and --csv.")
    settings = load_settings()
    now_s = int(wall_s())
    begin_s = _begin_s(month, now_s, settings.ledger.time_zone)
    from slicewise.slurm_plugin.cli.common.month_facts import month_facts  # noqa: PLC0415 -- not for --help

    books = Books(DaemonClient(settings.daemon))
    with spinner("Reading the month"):
        facts = month_facts(books, settings, tenant, begin_s, now_s)
    if output is not None:
        from slicewise.slurm_plugin.page.report import report_html  # noqa: PLC0415 -- not for --help

        with whole_file(output) as file:
            file.write(report_html(facts, now_s))
        typer.echo(f"{output}: written", err=True)
    if as_csv:
        from slicewise.slurm_plugin.rules.accounting.run_csv import csv_text  # noqa: PLC0415 -- as above
        from slicewise.slurm_plugin.rules.pages.month import ReportDay, day_rows  # noqa: PLC0415 -- as above

        columns = dict.fromkeys(("tenant", "day", *(field.name for field in fields(ReportDay))))
        sys.stdout.write(csv_text(map(vars, day_rows(facts)), columns))
    elif as_json:
        from slicewise.slurm_plugin.rules.pages.month import month_report  # noqa: PLC0415 -- as above

        print_json(month_report(facts))
    elif output is None:
        from slicewise.slurm_plugin.cli.views.report import report_table, report_text  # noqa: PLC0415

        console().print(Text(report_text(facts)))
        console().print(report_table(facts))


def _begin_s(month: str | None, now_s: int, zone: str) -> int:
    """Return when the month begins; typer.BadParameter for none, or one that is to come."""
    if month is None:
        return period_start_s(Period.MONTH, period_start_s(Period.MONTH, now_s, zone) - 1, zone)
    if not _MONTH.fullmatch(month) or month < "1970-02":
        raise typer.BadParameter(f"--month {month!r}: write a month as 2026-10.")
    begin_s = int(datetime.fromisoformat(f"{month}-01").replace(tzinfo=ZoneInfo(zone)).timestamp())
    if begin_s >= now_s:
        raise typer.BadParameter(f"--month {month}: it has not begun yet.")
    return begin_s
