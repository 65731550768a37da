"""Budgets for people and programs."""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from rich.text import Text

from slicewise.cluster.language.meters import SLICES, Meter, meter_named
from slicewise.cluster.runtime.console import Column, FittingTable, column
from slicewise.slurm_plugin.cli.views.texts import NOTHING, amount_cell, reset_text, times_column
from slicewise.slurm_plugin.rules.accounting.overview import BudgetStatus
from slicewise.slurm_plugin.rules.accounting.types import BudgetEntry
from slicewise.slurm_plugin.rules.quota.quota_texts import budget_text
from slicewise.slurm_plugin.rules.quota.types import QuotaChange


def budgets_table(found: Sequence[BudgetStatus], now_s: int) -> FittingTable:
    """One line per budget, in its meter's words."""
    reserved = (_amount(budget.reserved, budget) for budget in found)
    return FittingTable(
        (
            column("tenant", (budget.tenant for budget in found)),
            *_of_period(found),
            column("left", (_amount(budget.left, budget) for budget in found), right=True),
            column("reserved", reserved, right=True, rank=2),
            column("at this rate", (_end(budget, now_s) for budget in found)),
            column("resets", (reset_text(budget.resets_s) for budget in found), rank=1),
            column("rule", (budget_text(budget.budget) for budget in found), folds=True),
        )
    )


def _amount(amount: int | None, budget: BudgetStatus) -> Text:
    return NOTHING if amount is None else amount_cell(amount, meter_named(budget.budget.meter))


def _of_period(found: Sequence[BudgetStatus]) -> Iterable[Column]:
    """The columns of what the period had and what was used, only if known for all budgets."""
    if all(budget.used is not None for budget in found):
        yield column("had", (_amount(budget.had, budget) for budget in found), right=True)
        yield column("used", (_amount(budget.used, budget) for budget in found), right=True)


def _end(budget: BudgetStatus, now_s: int) -> Text:
    """When nothing is left, if not before the next period: ``ends in 3 h``."""
    if budget.ends_s is None:
        return NOTHING
    if budget.resets_s is not None and budget.ends_s >= budget.resets_s:
        return Text("lasts")
    left_s = budget.ends_s - now_s
    if left_s <= 0:
        return Text("ended", style="red")
    return Text(f"ends in {_span_text(left_s)}", style="yellow")


def _span_text(seconds: int) -> str:
    unit = next(((name, size) for name, size in _UNITS if seconds >= 2 * size), ("s", 1))
    return f"{seconds // unit[1]} {unit[0]}"


_UNITS = (("days", 86_400), ("h", 3600), ("min", 60))


@dataclass(frozen=True)
class Event:
    """An event in a budget's history: its rule was set, or an amount was booked.

    Attributes:
        amount: in the meter's unit; None where only the rule changed.
    """

    at_s: int
    kind: str
    text: str
    amount: int | None
    author: str
    reason: str


def events(
    changes: Sequence[QuotaChange], entries: Sequence[BudgetEntry], meter: str = SLICES.name
) -> list[Event]:
    """Merge changes of a meter's rule, given newest first, and its entries, given oldest first.

    The history that is returned has the newest first.
    """
    rules = (
        Event(
            change.at_s,
            "rule",
            budget_text(rule),
            None,
            change.author,
            change.reason,
        )
        for change in changes
        if (rule := change.update.budget_on(meter)) is not None
    )
    booked = (
        Event(
            entry.at_s or 0,
            entry.kind,
            entry.kind,
            entry.amount,
            entry.author,
            entry.reason,
        )
        for entry in reversed(entries)
    )
    # Within a second, what was booked results from the rule, and so counts as newer.
    return sorted((*booked, *rules), key=lambda event: event.at_s, reverse=True)


def events_table(found: Sequence[Event], meter: Meter = SLICES) -> FittingTable:
    """One line per event."""
    amounts = (
        NOTHING if event.amount is None else amount_cell(event.amount, meter) for event in found
    )
    return FittingTable(
        (
            times_column("when", (event.at_s for event in found)),
            column("what", (event.text for event in found), folds=True),
            column(meter.unit, amounts, right=True),
            column("by", (event.author for event in found), rank=1),
            column("reason", (event.reason for event in found), folds=True),
        )
    )
