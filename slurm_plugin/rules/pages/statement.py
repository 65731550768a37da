"""A month of a statement: which runs, and what they add up to."""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from slicewise.cluster.language.periods import Period, date_text, next_start_s, period_start_s
from slicewise.slurm_plugin.rules.accounting.statement import by_service, part, totals
from slicewise.slurm_plugin.rules.accounting.types import (
    InvoiceLine,
    ShareLine,
    StatementRow,
    TenantTotal,
)

_MONTHS = 36


@dataclass(frozen=True)
class Month:
    """A month of the ledger's zone: ``2026-11``, from ``start_s`` up to ``end_s``, Unix seconds."""

    name: str
    start_s: int
    end_s: int


@dataclass(frozen=True)
class MonthlyStatement:
    """What was used in a month.

    Attributes:
        rows: each run, cut to the month, in the order of the answer.
        lines: sums by tenant and service.
        totals: sums by tenant.
    """

    rows: Sequence[StatementRow]
    lines: Sequence[InvoiceLine]
    totals: Sequence[TenantTotal]


def months(now_s: float, zone: str) -> Sequence[Month]:
    """The months that may be chosen, the one of ``now_s`` first."""
    months: list[Month] = []
    at_s = int(now_s)
    for _ in range(_MONTHS):
        start_s = period_start_s(Period.MONTH, at_s, zone)
        end_s = next_start_s(Period.MONTH, start_s, zone) or start_s
        months.append(Month(date_text(start_s, zone)[:7], start_s, end_s))
        at_s = start_s - 1
    return months


def month_of(name: str, now_s: float, zone: str) -> Month:
    """The month of that name; the one of ``now_s`` if it is none that may be chosen."""
    all_months = months(now_s, zone)
    return next((month for month in all_months if month.name == name), all_months[0])


def monthly_statement(
    runs: Iterable[StatementRow], month: Month, shares: Sequence[ShareLine] = ()
) -> MonthlyStatement:
    """Sum up what runs used in a month, with the shares of its days."""
    rows = part(runs, month.start_s, month.end_s)
    return MonthlyStatement(rows, by_service(rows, shares), totals(rows, shares))
