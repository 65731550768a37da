"""``slicewise observe``: what the days in mode observe have shown."""

from collections import Counter
from collections.abc import Mapping
from dataclasses import asdict
from datetime import UTC, datetime
from typing import Annotated

import typer
from rich.text import Text

from slicewise.cluster.rpc.client import DaemonClient
from slicewise.cluster.runtime.console import console, print_json
from slicewise.cluster.runtime.output_options import Json
from slicewise.cluster.runtime.time_options import local_time
from slicewise.cluster.runtime.wall_clock import wall_s
from slicewise.cluster.settings.read import load_settings
from slicewise.slurm_plugin.cli.common.books import Books
from slicewise.slurm_plugin.cli.views import observed as present
from slicewise.slurm_plugin.common.record_requests import ObservationsRequest
from slicewise.slurm_plugin.rules.accounting.statement import part
from slicewise.slurm_plugin.rules.common.observations import day_of
from slicewise.slurm_plugin.rules.explain.observed import (
    ObservedReport,
    first_day_s,
    observed_report,
)

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
    sums by day (UTC), for ledger.journal_days. Up to 5 s of it are lost when the daemon ends. No
    log file is read. Amounts are slice-hours; use is that of the books, from the first day shown
    on.
    """
    since_s = day_of(since.timestamp()) if since else 0
    report = _report(DaemonClient(load_settings().daemon), since_s)
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


def _report(daemon: DaemonClient, since_s: int) -> ObservedReport:
    answer = daemon.call(ObservationsRequest(since_s=since_s))
    first_s = first_day_s(answer.recorded)
    from_s = day_of(wall_s()) if first_s is None else max(since_s, first_s)
    return observed_report(answer.recorded, _used(daemon, from_s), answer.policy, from_s)


def _used(daemon: DaemonClient, from_s: int) -> Mapping[str, int]:
    """Return the millislice-seconds that each tenant's runs have used since ``from_s``."""
    used: Counter[str] = Counter()
    statement, *_ = Books(daemon).statement(None, from_s)
    for row in part(statement.rows, from_s, None):
        used[row.run.tenant] += row.used_millislice_s
    return used
