"""``slicewise observe``: what the days in mode observe have shown."""

from collections import Counter
from collections.abc import Mapping
from dataclasses import asdict
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Annotated

import typer
from rich.text import Text

from slicewise.cluster.runtime.console import console, print_json
from slicewise.cluster.runtime.output_options import Json
from slicewise.cluster.runtime.time_options import local_time
from slicewise.cluster.runtime.wall_clock import wall_s
from slicewise.cluster.settings.read import load_settings
from slicewise.slurm_plugin.cli.common.options import opened_ledger
from slicewise.slurm_plugin.cli.views import observed as present
from slicewise.slurm_plugin.rules.accounting.statement import part
from slicewise.slurm_plugin.rules.common.observations import day_of
from slicewise.slurm_plugin.rules.explain.observed import (
    ObservedReport,
    first_day_s,
    observed_report,
)

if TYPE_CHECKING:
    from slicewise.slurm_plugin.ledger.store import Ledger

observe_app = typer.Typer()


def _utc(text: str) -> datetime:
    return local_time(text, zone=UTC)


@observe_app.command(
    epilog="Examples: slicewise observe | slicewise observe --since 7d | slicewise observe --json",
)
def observe(
    *,
    since: Annotated[
        datetime | None,
        typer.Option(
            parser=_utc, metavar="TIME", help="Leave out the days (UTC) before that of this time."
        ),
    ] = None,
    as_json: Json = False,
) -> None:
    """Say what the days in mode observe have shown: refusals, moves, loans, recalls, use.

    The daemon records what it decides in every mode, and what it would lend in observe and advise:
    sums by day (UTC), for [ledger] journal_days. Up to 5 s of it are lost when the daemon ends. No
    log file is read. Amounts are slice-hours; use is that of the books, from the first day shown
    on.
    """
    since_s = day_of(since.timestamp()) if since else 0
    with opened_ledger(load_settings()) as ledger:
        report = _report(ledger, since_s)
    if as_json:
        print_json(asdict(report))
        return
    out = console()
    out.print(Text(present.head_text(report)))
    if report.tenants:
        out.print(present.tenants_table(report.tenants))
    if report.refusals:
        out.print(present.refusals_table(report.refusals))
    if report.types:
        out.print(present.types_table(report.types))
    if report.loans:
        out.print(present.loans_table(report.loans))
    for sentence in present.sentences(report):
        out.print(Text(sentence))


def _report(ledger: "Ledger", since_s: int) -> ObservedReport:
    recorded = ledger.observations.since(since_s)
    now_s = int(wall_s())
    first_s = first_day_s(recorded)
    from_s = day_of(now_s) if first_s is None else max(since_s, first_s)
    return observed_report(recorded, _used(ledger, from_s, now_s), ledger.tenants.policy(), from_s)


def _used(ledger: "Ledger", from_s: int, now_s: int) -> Mapping[str, int]:
    """Return the millislice-seconds that each tenant's runs have used since ``from_s``."""
    used: Counter[str] = Counter()
    for row in part(ledger.audit.statement(None, from_s, now_s).rows, from_s, None):
        used[row.run.tenant] += row.used_millislice_s
    return used
