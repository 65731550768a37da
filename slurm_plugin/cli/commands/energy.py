"""``slicewise energy``: kilowatt-hours of runs, and of nobody."""

import sys
from dataclasses import dataclass
from datetime import datetime, timedelta
from enum import StrEnum
from typing import Annotated
from zoneinfo import ZoneInfo

import typer
from rich.text import Text

from slicewise.cluster.language.periods import Period, period_start_s
from slicewise.cluster.rpc.client import DaemonClient
from slicewise.cluster.rpc.own_tenant import complete_tenant, typed_account
from slicewise.cluster.runtime.console import (
    FittingTable,
    column,
    console,
    print_json,
    time_text,
)
from slicewise.cluster.runtime.output_options import Json
from slicewise.cluster.runtime.time_options import local_time
from slicewise.cluster.runtime.wall_clock import wall_s
from slicewise.cluster.settings.read import load_settings
from slicewise.slurm_plugin.common.energy_requests import EnergyAnswer, EnergyLine, EnergyRequest
from slicewise.slurm_plugin.rules.accounting.energy import LINE_FIELDS
from slicewise.slurm_plugin.rules.accounting.run_csv import csv_text
from slicewise.slurm_plugin.rules.pages.words import (
    kwh_per_million_text,
    kwh_text,
    measured_text,
)

energy_app = typer.Typer()
_MILLION = 1_000_000


class EnergyGrouping(StrEnum):
    """What a line is about."""

    TENANT = "tenant"
    SERVICE = "service"
    PERSON = "person"
    DAY = "day"
    NODE = "node"
    RUN = "run"


@dataclass(frozen=True)
class EnergyShown:
    """What ``--json`` prints."""

    by: str
    lines: tuple[EnergyLine, ...]
    power_mw: int | None


def _ledger_time(text: str) -> datetime:
    zone = ZoneInfo(load_settings().ledger.time_zone)
    return local_time(text, zone=zone).astimezone(zone)


@energy_app.command(
    epilog="Examples: slicewise energy | slicewise energy --by service --from 7d"
    " | slicewise energy --by day --tenant vision --from 2026-11-01 --until 2026-12-01 --json"
    " | slicewise energy --by node --csv",
)
def energy(
    *,
    tenant: Annotated[
        str | None,
        typer.Option(
            help="Only runs of this tenant.",
            autocompletion=complete_tenant,
            callback=typed_account,
        ),
    ] = None,
    begin: Annotated[
        datetime | None,
        typer.Option(
            "--from",
            parser=_ledger_time,
            metavar="TIME",
            help="From the day of this time on; thirty days if left out.",
        ),
    ] = None,
    end: Annotated[
        datetime | None,
        typer.Option(
            "--until", parser=_ledger_time, metavar="TIME", help="Days that begin before this time."
        ),
    ] = None,
    by: Annotated[
        EnergyGrouping, typer.Option(help="What each line is about.")
    ] = EnergyGrouping.TENANT,
    as_json: Json = False,
    as_csv: Annotated[bool, typer.Option("--csv", help="Print CSV, with JSON's names.")] = False,
) -> None:
    """Show kilowatt-hours of GPU boards, by tenant, service, person, day, node or run.

    You see runs of your tenants; operators see all, and what is nobody's: what boards take idle,
    whoever holds them. "measured" is the part that boards' meters saw; the rest is by the table of
    boards' watts, as if runs worked all the time. "shared" is what of the measured is an estimate,
    as several jobs held one board, or the doctor has a finding of it. Boards' energy only: not the
    node's, the cooling's, the network's.
    """
    if as_json and as_csv:
        raise typer.BadParameter("Choose --json or --csv.")
    if begin is not None and end is not None and begin >= end:
        raise typer.BadParameter("--until is not after --from.")
    until_s = int(end.timestamp()) if end else int(wall_s()) + 1
    thirty_days_s = int(timedelta(days=30).total_seconds())
    since_s = int(begin.timestamp()) if begin else max(0, until_s - thirty_days_s)
    since_s = period_start_s(Period.DAY, since_s, load_settings().ledger.time_zone)
    request = EnergyRequest.of(by=by.value, tenant=tenant, since_s=since_s, until_s=until_s)
    answer = DaemonClient(load_settings().daemon).call(request)
    if as_json:
        print_json(EnergyShown(by.value, answer.lines, answer.power_mw))
    elif as_csv:
        rows = (line.model_dump() for line in answer.lines)
        sys.stdout.write(csv_text(rows, EnergyLine.model_fields))
    else:
        _print(by, answer)


def _print(by: EnergyGrouping, answer: EnergyAnswer) -> None:
    lines = answer.lines
    columns = [
        *(
            column("started", map(_started_text, lines), rank=1)
            if name == "started_s"
            else column(name, (getattr(line, name) or "-" for line in lines))
            for name in LINE_FIELDS[by.value]
        ),
        column("kWh", (kwh_text(line.energy_mj) for line in lines), right=True),
        column(
            "measured",
            (measured_text(line.counter_mj + line.power_mj, line.energy_mj) for line in lines),
            right=True,
        ),
        column("shared", (kwh_text(line.shared_mj) for line in lines), right=True, rank=3),
    ]
    nobodys = [line.idle_mj + line.unknown_mj for line in lines]
    if any(nobodys):
        columns.append(column("nobody's", map(kwh_text, nobodys), right=True))
    if by is EnergyGrouping.SERVICE:
        of_tokens = (kwh_per_million_text(line.energy_mj, line.tokens) for line in lines)
        columns.append(column("kWh/M tokens", of_tokens, right=True, rank=2))
    if any(line.carbon_g is not None for line in lines):
        columns.append(column("kg CO2", map(_carbon_text, lines), right=True, rank=1))
    console().print(
        FittingTable(tuple(columns)).or_say("No joules: no run, and no meter told any.")
    )
    if answer.power_mw is not None:
        console().print(Text(f"Boards with a meter draw {answer.power_mw / _MILLION:,.3f} kW now."))


def _started_text(line: EnergyLine) -> str:
    return time_text(line.started_s) if line.started_s else "-"


def _carbon_text(line: EnergyLine) -> str:
    return "" if line.carbon_g is None else f"{line.carbon_g / 1000:,.3f}"
