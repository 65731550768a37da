"""Statements and balances for people, programs and as CSV."""

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, fields
from datetime import datetime
from typing import Literal

from rich.text import Text

from slicewise.cluster.language.meters import SLICES, meter_named
from slicewise.cluster.runtime.console import Column, FittingTable, column
from slicewise.slurm_plugin.cli.views.texts import (
    NOTHING,
    amount_cell,
    slice_hours_text,
    slice_seconds_text,
    slices_cells,
    times_column,
)
from slicewise.slurm_plugin.rules.accounting.run_csv import (
    RunLine,
    csv_text,
    gres_text,
    run_seconds,
)
from slicewise.slurm_plugin.rules.accounting.types import (
    BalanceLine,
    InvoiceLine,
    StatementRow,
    TenantTotal,
    Verification,
)

# Statements


def totals_table(totals: Sequence[TenantTotal]) -> FittingTable:
    """One line per tenant."""
    used = [total.used_millislice_s for total in totals]
    waived = [total.waived_millislice_s for total in totals]
    reserved = (slice_seconds_text(total.reserved_millislice_s) for total in totals)
    return FittingTable(
        (
            column("tenant", (total.tenant for total in totals)),
            column("runs", (total.runs for total in totals), right=True, rank=1),
            column("running", (total.running for total in totals), right=True, rank=2),
            column("slice-hours", map(slice_hours_text, used), right=True, rank=3),
            column("slice-seconds used", map(slice_seconds_text, used), right=True),
            *_waived("waived", waived),
            column("reserved beyond", reserved, right=True),
            *_shares(totals, slice_seconds_text),
        )
    )


def runs_table(rows: Sequence[StatementRow], now_s: int) -> FittingTable:
    """One line per run."""
    used = (slice_seconds_text(row.used_millislice_s) for row in rows)
    costs = slices_cells(row.run.cost_millislices for row in rows)
    return FittingTable(
        (
            column("tenant", (row.run.tenant for row in rows), rank=1),
            column("task", (row.run.task for row in rows)),
            column("user", (row.run.user for row in rows), rank=3),
            column("profile", (gres_text(row.run.gres) for row in rows), rank=2),
            times_column("start", (row.run.key.start_s for row in rows)),
            times_column("end", (row.end_s for row in rows)),
            column("seconds", (run_seconds(row, now_s) for row in rows), right=True, rank=5),
            column("slices", costs, right=True, rank=4),
            column("slice-seconds", used, right=True),
            *_waived("waived", [row.waived_millislice_s for row in rows]),
        )
    )


def _waived(heading: str, amounts_millislice_s: Sequence[int]) -> Iterable[Column]:
    """The column of what was waived, only if some amount is not zero."""
    if any(amounts_millislice_s):
        yield column(heading, map(slice_seconds_text, amounts_millislice_s), right=True)


def invoice_table(lines: Sequence[InvoiceLine], by: str) -> FittingTable:
    """One line per tenant and user, or whatever else the lines are ``by``."""
    used = [line.used_millislice_s for line in lines]
    waived = [line.waived_millislice_s for line in lines]
    return FittingTable(
        (
            column("tenant", (line.tenant for line in lines)),
            column(by, (line.key or "other jobs" for line in lines)),
            column("runs", (line.runs for line in lines), right=True, rank=1),
            column("running", (line.running for line in lines), right=True, rank=2),
            column("slice-hours", map(slice_hours_text, used), right=True),
            *_waived("waived slice-seconds", waived),
            *_shares(lines, slice_hours_text, [line.pooled_millislice_s for line in lines]),
        )
    )


def _shares(
    lines: Sequence[InvoiceLine | TenantTotal],
    text: Callable[[int], str],
    pooled_millislice_s: Sequence[int] = (),
) -> Iterable[Column]:
    """The columns of shares, pools and tokens, only if there are any."""
    has_shares = any(line.relieved_millislice_s or line.shared_millislice_s for line in lines)
    if has_shares:
        yield column("relieved", (text(line.relieved_millislice_s) for line in lines), right=True)
        yield column("shares", (text(line.shared_millislice_s) for line in lines), right=True)
    if any(pooled_millislice_s):
        yield column("pool", map(text, pooled_millislice_s), right=True)
    if has_shares or any(pooled_millislice_s):
        yield column("charged", (text(line.charged_millislice_s) for line in lines), right=True)
    if any(line.requests for line in lines):
        yield column("requests", (f"{line.requests:,}" for line in lines), right=True, rank=4)
        yield column("prompt", (f"{line.prompt_tokens:,}" for line in lines), right=True, rank=3)
        yield column("output", (f"{line.output_tokens:,}" for line in lines), right=True, rank=3)


@dataclass(frozen=True, kw_only=True)
class StatementShown:
    """A statement in integers; running jobs count up to ``now_s``.

    ``key`` of each line is what it is ``by``: the service, "" for other jobs, the user, or the day.
    """

    now_s: int
    by: Literal["service", "user", "day"]
    lines: Sequence[InvoiceLine]
    tenants: Sequence[TenantTotal]


@dataclass(frozen=True, kw_only=True)
class JournalShown(StatementShown):
    """A statement with every run."""

    runs: Sequence[RunLine]


def lines_csv(
    lines: Iterable[InvoiceLine | BalanceLine], kind: type[InvoiceLine] | type[BalanceLine]
) -> str:
    """A row for each line of that kind, with the same names and integers as JSON."""
    return csv_text(map(vars, lines), (field.name for field in fields(kind)))


_MINUTE = "%Y-%m-%d %H:%M %Z"


# Balances


def balances_table(lines: Sequence[BalanceLine]) -> FittingTable:
    """One line per tenant and meter; without a budget it has nothing granted or left."""
    granted = (_budgeted(line, line.granted) for line in lines)
    available = (_budgeted(line, line.available) for line in lines)
    return FittingTable(
        (
            column("tenant", (line.tenant for line in lines)),
            *_units(lines),
            column("granted", granted, right=True, rank=2),
            column("used", (_amount(line, line.used) for line in lines), right=True),
            column("waived", (_amount(line, line.waived) for line in lines), right=True, rank=3),
            column("reserved", (_amount(line, line.reserved) for line in lines), right=True),
            column("available", available, right=True, rank=1),
            column("left now", map(_left, lines), right=True),
        )
    )


def _units(lines: Sequence[BalanceLine]) -> Iterable[Column]:
    """The column that says of what each line is, only if they are not all of slices."""
    if any(line.meter != SLICES.name for line in lines):
        yield column("of", (meter_named(line.meter).unit for line in lines))


def _amount(line: BalanceLine, amount: int) -> Text:
    return amount_cell(amount, meter_named(line.meter))


def _budgeted(line: BalanceLine, amount: int) -> Text:
    """The amount; nothing for a tenant without a budget, where it only mirrors what was used."""
    return _amount(line, amount) if line.left is not None or line.granted else NOTHING


def _left(line: BalanceLine) -> Text:
    return NOTHING if line.left is None else _amount(line, line.left)


@dataclass(frozen=True, kw_only=True)
class TimedVerification(Verification):
    """What was verified, and how long it took."""

    seconds: float


def period_text(begin: datetime | None, end: datetime | None, since: datetime | None) -> str:
    """Say of which time a statement is: ``Use from 2026-11-01 00:00 CET until now.``."""
    if since is not None:
        return f"Runs that ended since {since:{_MINUTE}} or still run, each in full."
    until = "now" if end is None else f"{end:{_MINUTE}}"
    return f"Use {'' if begin is None else f'from {begin:{_MINUTE}} '}until {until}."


def below_text(below: Sequence[str]) -> str:
    """Say where the runs of tenants below a tenant stand: ``slicewise ledger statement optics``."""
    return (
        f"Tenants below it have runs, all of which their own statements show: {', '.join(below)}."
        f" For example: slicewise ledger statement {below[0]}"
    )


def verified_text(found: Verification, took_s: float) -> str:
    """Say what was compared, and how fast."""
    speed = found.transfers / max(took_s, 0.001)
    seal = f" {found.sealed:,} transfers are sealed: {found.seal}." if found.seal else ""
    return (
        f"The ledger is balanced: {found.transfers:,} transfers, {found.accounts:,} accounts and"
        f" {found.reservations:,} open reservations in {took_s:.1f} s ({speed:,.0f} transfers/s)."
        f"{seal}"
    )
