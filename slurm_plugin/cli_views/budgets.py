"""Budgets for people and as JSON."""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass

from cluster.runtime.console import Column, FittingTable, column
from slurm_plugin.accounting.types import BudgetEntry
from slurm_plugin.cli_views.texts import NOTHING, budget_text, hours_cell, reset_text, times_column
from slurm_plugin.quota.types import Budget, QuotaChange


@dataclass(frozen=True)
class BudgetLine:
    """A tenant's budget as it is now.

    Attributes:
        left_millislice_s: what is left; None until the daemon has begun its first period.
        reserved_millislice_s: what running jobs may still use up of it.
        used_millislice_s: what the runs that it pays for have used since its period began; None if
            not asked for.
        resets_s: when the next period begins, in Unix seconds; None if never.
    """

    tenant: str
    budget: Budget
    left_millislice_s: int | None
    reserved_millislice_s: int
    used_millislice_s: int | None
    resets_s: int | None


def budgets_table(lines: Sequence[BudgetLine]) -> FittingTable:
    """One line per budget, in slice-hours."""
    reserved = (hours_cell(line.reserved_millislice_s) for line in lines)
    return FittingTable(
        (
            column("tenant", (line.tenant for line in lines)),
            column("left", map(_left, lines), right=True),
            *_used(lines),
            column("reserved", reserved, right=True, rank=2),
            column("resets", (reset_text(line.resets_s) for line in lines), rank=1),
            column("rule", (budget_text(line.budget) for line in lines), folds=True),
        )
    )


def _left(line: BudgetLine) -> object:
    return NOTHING if line.left_millislice_s is None else hours_cell(line.left_millislice_s)


def _used(lines: Sequence[BudgetLine]) -> Iterable[Column]:
    """The column of what was used, only if it is known for all lines."""
    used = [line.used_millislice_s for line in lines]
    if None not in used:
        yield column("used", (hours_cell(amount or 0) for amount in used), right=True)


def budget_json(line: BudgetLine) -> Mapping[str, object]:
    """A line as values, in millislice-seconds and Unix seconds."""
    return asdict(line)


@dataclass(frozen=True)
class Event:
    """An event in a budget's history: its rule was set, or an amount was booked.

    Attributes:
        amount_millislice_s: None where only the rule changed.
    """

    at_s: int
    kind: str
    text: str
    amount_millislice_s: int | None
    author: str
    reason: str


def events(changes: Sequence[QuotaChange], entries: Sequence[BudgetEntry]) -> list[Event]:
    """Merge the rule's changes, given newest first, and the entries, given oldest first.

    The history that is returned has the newest first.
    """
    rules = (
        Event(one.at_s, "rule", budget_text(one.update.budget), None, one.author, one.reason)
        for one in changes
        if one.update.budget is not None
    )
    booked = (
        Event(one.at_s or 0, one.kind, one.kind, one.amount_millislice_s, one.author, one.reason)
        for one in reversed(entries)
    )
    # Within a second, what was booked results from the rule, and so counts as newer.
    return sorted((*booked, *rules), key=lambda event: event.at_s, reverse=True)


def events_table(found: Sequence[Event]) -> FittingTable:
    """One line per event."""
    return FittingTable(
        (
            times_column("when", (event.at_s for event in found)),
            column("what", (event.text for event in found), folds=True),
            column("slice-hours", map(_amount, found), right=True),
            column("by", (event.author for event in found), rank=1),
            column("reason", (event.reason for event in found), folds=True),
        )
    )


def _amount(event: Event) -> object:
    return NOTHING if event.amount_millislice_s is None else hours_cell(event.amount_millislice_s)
