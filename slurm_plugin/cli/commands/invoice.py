"""``slicewise ledger invoice``: what payers owe, and for what."""

import sys
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from datetime import date, datetime, time
from enum import StrEnum
from typing import Annotated
from zoneinfo import ZoneInfo

import typer
from rich.text import Text

from slicewise.cluster.language.periods import DAYS_YEARS
from slicewise.cluster.rpc.client import DaemonClient
from slicewise.cluster.rpc.own_tenant import complete_tenant, typed_account
from slicewise.cluster.runtime.console import Column, FittingTable, column, console, print_json
from slicewise.cluster.runtime.output_options import Json
from slicewise.cluster.runtime.wall_clock import wall_s
from slicewise.cluster.settings.read import load_settings
from slicewise.slurm_plugin.cli.common.books import Books
from slicewise.slurm_plugin.cli.views.texts import slice_hours_text
from slicewise.slurm_plugin.rules.accounting.invoice import (
    INVOICE_FIELDS,
    InvoiceSum,
    Payable,
    free_days,
    invoice_rows,
    invoice_sums,
    list_per_million_tokens,
    money_text,
    payables,
    per_million_tokens,
)
from slicewise.slurm_plugin.rules.accounting.run_csv import csv_text
from slicewise.slurm_plugin.rules.pages.words import kwh_text

invoice_app = typer.Typer()

_MONTHS = 12


class InvoiceGrouping(StrEnum):
    """What a line is about, besides its payer."""

    SERVICE = "service"
    PERSON = "person"
    TENANT = "tenant"
    DAY = "day"
    MONTH = "month"


@dataclass(frozen=True)
class InvoiceShown:
    """What ``--json`` prints.

    Attributes:
        currency: "" without a tariff.
        from_s, until_s: the month, in Unix seconds; its end is exclusive.
        free_days: days of use for which there was no tariff.
    """

    month: str
    currency: str
    from_s: int
    until_s: int
    by: str
    lines: tuple[InvoiceSum, ...]
    payables: tuple[Payable, ...]
    free_days: int


def _month(text: str) -> date:
    """Read ``2026-11``; raises typer.BadParameter."""
    try:
        first = datetime.strptime(text, "%Y-%m").date()  # noqa: DTZ007 -- a day has no zone
    except ValueError:
        raise typer.BadParameter(f"{text!r} is not a month such as 2026-11.") from None
    if first.year not in DAYS_YEARS:
        raise typer.BadParameter(f"{text!r} is not a month of these times.")
    return first


@invoice_app.command(
    "invoice",
    epilog="Examples: slicewise ledger invoice --month 2026-11"
    " | slicewise ledger invoice --month 2026-11 --tenant vision --by person"
    " | slicewise ledger invoice --month 2026-11 --by day --csv",
)
def invoice(
    *,
    month: Annotated[
        date | None,
        typer.Option(
            parser=_month,
            metavar="YYYY-MM",
            help="By ledger.time_zone; the running one unless set.",
        ),
    ] = None,
    tenant: Annotated[
        str | None,
        typer.Option(
            help="Only what this tenant used or pays for.",
            autocompletion=complete_tenant,
            callback=typed_account,
        ),
    ] = None,
    by: Annotated[
        InvoiceGrouping, typer.Option(help="What each line is about.")
    ] = InvoiceGrouping.SERVICE,
    as_json: Json = False,
    as_csv: Annotated[
        bool, typer.Option("--csv", help="Print CSV, with JSON's names and integers.")
    ] = False,
) -> None:
    """Show what a month cost: line by line, and what each payer owes.

    By the tariffs of each moment; a later tariff changes nothing of it. A day's use of a payer,
    tenant, service, user and price is rounded once, to a millionth of the currency, and lines are
    sums of these: so lines by person, service, tenant and day add up to the same. What is owed is
    rounded once more, to the currency's minor unit. "a million" is what a million tokens of a
    service cost, and "list" what they would cost by list_prices of the tariff. Running jobs count
    up to now. Users see the tenants that they belong to, and no other person's requests by name.
    JSON and CSV have millionths of the currency, and in CSV "payer_payable" is what the line's
    payer owes in all.
    """
    if as_json and as_csv:
        raise typer.BadParameter("Choose --json or --csv.")
    zone = ZoneInfo(load_settings().ledger.time_zone)
    first = month or datetime.fromtimestamp(wall_s(), zone).date().replace(day=1)
    following = (
        first.replace(month=first.month + 1)
        if first.month < _MONTHS
        else first.replace(year=first.year + 1, month=1)
    )
    from_s, until_s = (
        int(datetime.combine(day, time(), zone).timestamp()) for day in (first, following)
    )
    books = Books(DaemonClient(load_settings().daemon))
    currency, charged = books.charges(tenant, from_s, until_s)
    shown = InvoiceShown(
        month=f"{first:%Y-%m}",
        currency=currency,
        from_s=from_s,
        until_s=until_s,
        by=by.value,
        lines=invoice_sums(charged, by.value),
        payables=payables(charged, currency),
        free_days=free_days(charged),
    )
    if as_json:
        print_json(shown)
    elif as_csv:
        rows = invoice_rows(shown.lines, shown.payables, shown.month, currency)
        sys.stdout.write(csv_text(rows, INVOICE_FIELDS))
    else:
        _print(shown)


def _print(shown: InvoiceShown) -> None:
    console().print(Text(f"{shown.month}, {shown.currency or 'without a tariff'}"))
    console().print(_lines_table(shown.lines, shown.by).or_say("Nothing was used."))
    if shown.currency and shown.free_days:
        console().print(Text(f"{shown.free_days} days of use had no tariff: they cost nothing."))
    if shown.currency and shown.payables:
        console().print(_payables_table(shown.payables))


def _lines_table(lines: Sequence[InvoiceSum], by: str) -> FittingTable:
    nothing = "other jobs" if by == InvoiceGrouping.SERVICE else "-"
    return FittingTable(
        (
            column("payer", (line.payer for line in lines)),
            column(by, (line.key or nothing for line in lines)),
            column(
                "slice-hours", (slice_hours_text(line.millislice_s) for line in lines), right=True
            ),
            *_counts("requests", lines, lambda line: line.requests),
            *_counts("tokens", lines, lambda line: line.prompt_tokens + line.output_tokens),
            *_kwh(lines),
            column("cost", (_money_text(line.millionths) for line in lines), right=True),
            *(_per_million(lines) if by == InvoiceGrouping.SERVICE else ()),
        )
    )


def _counts(
    heading: str, lines: Sequence[InvoiceSum], count: Callable[[InvoiceSum], int]
) -> Iterable[Column]:
    if any(map(count, lines)):
        yield column(heading, (f"{count(line):,}" for line in lines), right=True, rank=1)


def _kwh(lines: Sequence[InvoiceSum]) -> Iterable[Column]:
    if any(line.energy_mj for line in lines):
        yield column("kWh", (kwh_text(line.energy_mj) for line in lines), right=True, rank=1)


def _per_million(lines: Sequence[InvoiceSum]) -> Iterable[Column]:
    for heading, price in (("a million", per_million_tokens), ("list", list_per_million_tokens)):
        prices = [price(line) for line in lines]
        if any(each is not None for each in prices):
            yield column(heading, map(_money_text, prices), right=True, rank=1)


def _money_text(millionths: int | None) -> str:
    return "" if millionths is None else money_text(millionths)


def _payables_table(lines: Sequence[Payable]) -> FittingTable:
    return FittingTable(
        (
            column("payer", (each.payer for each in lines)),
            column("sum", (money_text(each.millionths) for each in lines), right=True),
            column(
                "rounding", (money_text(each.rounding_millionths) for each in lines), right=True
            ),
            column("to pay", (each.payable for each in lines), right=True),
        )
    )
