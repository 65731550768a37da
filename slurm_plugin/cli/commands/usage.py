"""``slicewise usage``: who used how many tokens of which service, and when."""

import sys
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from datetime import datetime
from enum import StrEnum
from typing import Annotated
from zoneinfo import ZoneInfo

import typer
from rich.text import Text

from slicewise.cluster.language.units import counted
from slicewise.cluster.rpc.client import DaemonClient
from slicewise.cluster.rpc.own_tenant import complete_tenant, typed_account
from slicewise.cluster.runtime.console import Column, FittingTable, column, console, print_json
from slicewise.cluster.runtime.output_options import Json
from slicewise.cluster.runtime.time_options import local_time
from slicewise.cluster.settings.read import load_settings
from slicewise.slurm_plugin.cli.common.answer_pages import pages
from slicewise.slurm_plugin.cli.views.texts import slice_hours_text
from slicewise.slurm_plugin.common.usage_requests import (
    TokenLine,
    TokenUsageRequest,
    Unattributed,
)
from slicewise.slurm_plugin.rules.accounting.invoice import money_text
from slicewise.slurm_plugin.rules.accounting.run_csv import csv_text

usage_app = typer.Typer()

_ABOUT = {
    "day": (("day", "day"),),
    "month": (("month", "month"),),
    "service": (("service", "service"),),
    "tenant": (("tenant", "tenant"),),
    "person": (("tenant", "tenant"), ("person", "person")),
    "key": (("tenant", "tenant"), ("person", "person"), ("key", "key_id")),
}


class TokenGrouping(StrEnum):
    """What a line is about."""

    DAY = "day"
    MONTH = "month"
    SERVICE = "service"
    PERSON = "person"
    KEY = "key"
    TENANT = "tenant"


@dataclass(frozen=True)
class UsageShown:
    """What ``--json`` prints."""

    by: str
    lines: tuple[TokenLine, ...]
    unattributed: tuple[Unattributed, ...]
    unattributed_left_out: int


def _ledger_time(text: str) -> datetime:
    zone = ZoneInfo(load_settings().ledger.time_zone)
    return local_time(text, zone=zone).astimezone(zone)


By = Annotated[TokenGrouping, typer.Option(help="What each line is about.")]
From = Annotated[
    datetime | None,
    typer.Option(
        "--from",
        parser=_ledger_time,
        metavar="TIME",
        help="From the day of this time on; all if left out.",
    ),
]
Until = Annotated[
    datetime | None,
    typer.Option(
        "--until", parser=_ledger_time, metavar="TIME", help="Days that begin before this time."
    ),
]


@usage_app.command(
    epilog="Examples: slicewise usage | slicewise usage --by day --from 7d"
    " | slicewise usage --by key --tenant vision --from 2026-11-01 --until 2026-12-01 --json"
    " | slicewise usage --by person --service science/chat --csv",
)
def usage(
    *,
    tenant: Annotated[
        str | None,
        typer.Option(
            help="Only requests that this tenant pays for.",
            autocompletion=complete_tenant,
            callback=typed_account,
        ),
    ] = None,
    person: Annotated[str | None, typer.Option(help="Only requests of this person.")] = None,
    key: Annotated[str | None, typer.Option(help="Only requests with the key of this id.")] = None,
    service: Annotated[
        str | None, typer.Option(help="Only requests to this service, as OWNER/NAME.")
    ] = None,
    begin: From = None,
    end: Until = None,
    by: By = TokenGrouping.SERVICE,
    as_json: Json = False,
    as_csv: Annotated[bool, typer.Option("--csv", help="Print CSV, with JSON's names.")] = False,
) -> None:
    """Show requests and tokens, by service, day, month, tenant, person or key.

    You see your own requests, and those to services of your tenants, of these not whose they were:
    "-". Operators see all. A request counts on the day on which it ended; "first token" is the
    mean time until it. "slice-hours" is what of the replicas' time is charged for them, ten
    minutes after the hour, with the tenants' part of idle time. With a tariff, "cost" is what both
    cost, and "a million" that of a million tokens, beside what they cost by list prices: of days
    with a tariff, and not of other tenants' requests to your services. A line of more than 20,000
    days, tenants and services has no cost: ask for fewer days.
    Unattributed is what engines counted and no request has, as the question that tries a replica at
    its start, or what was in flight when the gateway was killed: nobody pays for it.
    """
    if as_json and as_csv:
        raise typer.BadParameter("Choose --json or --csv.")
    if begin is not None and end is not None and begin >= end:
        raise typer.BadParameter("--until is not after --from.")
    request = TokenUsageRequest.of(
        by=by.value,
        tenant=tenant,
        person=person,
        key_id=key,
        service=service,
        since_s=int(begin.timestamp()) if begin else 0,
        until_s=int(end.timestamp()) if end else None,
    )
    daemon = DaemonClient(load_settings().daemon)
    answers = tuple(pages(lambda after: daemon.call(request.model_copy(update={"after": after}))))
    lines = tuple(line for answer in answers for line in answer.lines)
    first = answers[0]
    shown = UsageShown(by.value, lines, first.unattributed, first.unattributed_left_out)
    if as_json:
        print_json(shown)
    elif as_csv:
        rows = (line.model_dump() for line in lines)
        sys.stdout.write(csv_text(rows, TokenLine.model_fields))
    else:
        console().print(_table(shown).or_say("No requests."))
        for rest in shown.unattributed:
            console().print(Text(_unattributed_text(rest)))
        if shown.unattributed_left_out:
            services = counted(shown.unattributed_left_out, "further service")
            console().print(Text(f"And of {services}: slicewise usage --service OWNER/NAME"))


def _table(shown: UsageShown) -> FittingTable:
    lines = shown.lines
    return FittingTable(
        (
            *(
                column(heading, (getattr(line, field) for line in lines))
                for heading, field in _ABOUT[shown.by]
            ),
            column("requests", (f"{line.requests:,}" for line in lines), right=True, rank=1),
            column("prompt", (f"{line.prompt_tokens:,}" for line in lines), right=True),
            column(
                "cached", (f"{line.cached_prompt_tokens:,}" for line in lines), right=True, rank=3
            ),
            column("output", (f"{line.output_tokens:,}" for line in lines), right=True),
            column(
                "slice-hours", (slice_hours_text(line.millislice_s) for line in lines), right=True
            ),
            *_money_columns(lines),
            column("first token", map(_first_token_text, lines), right=True, rank=2),
        )
    )


def _money_columns(lines: Sequence[TokenLine]) -> Iterator[Column]:
    """What it cost, in all and of a million tokens, beside list prices; none without a tariff."""
    if any(line.millionths is not None for line in lines):
        costs = [line.millionths for line in lines]
        yield column("cost", map(_money_text, costs), right=True)
        whole = [_per_million(line.millionths, line.priced_tokens) for line in lines]
        if any(each is not None for each in whole):
            yield column("a million", map(_money_text, whole), right=True, rank=1)
    if any(line.list_millionths is not None for line in lines):
        listed = [_per_million(line.list_millionths, line.listed_tokens) for line in lines]
        yield column("list", map(_money_text, listed), right=True, rank=1)


def _money_text(millionths: int | None) -> str:
    return "" if millionths is None else money_text(millionths)


def _per_million(millionths: int | None, tokens: int) -> int | None:
    return round(millionths * 10**6 / tokens) if tokens and millionths is not None else None


def _first_token_text(line: TokenLine) -> str:
    return "" if line.first_token_ms is None else f"{line.first_token_ms:,.0f} ms"


def _unattributed_text(rest: Unattributed) -> str:
    return (
        f"{rest.service}: {rest.prompt_tokens:,} prompt and {rest.output_tokens:,} output tokens"
        " are unattributed."
    )
