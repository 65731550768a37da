"""What a change of quotas would do, and loans with their terms, for people and programs."""

from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import TYPE_CHECKING

from rich.text import Text

from slicewise.cluster.language.units import slices_text
from slicewise.cluster.runtime.console import FittingTable, column, time_text
from slicewise.slurm_plugin.cli.views.texts import NOTHING, times_column
from slicewise.slurm_plugin.rules.quota.loan_lines import LoanLine
from slicewise.slurm_plugin.rules.quota.types import LoanChange

if TYPE_CHECKING:
    from rich.console import RenderableType

    from slicewise.slurm_plugin.rules.explain.change_report import (
        ChangeReport,
        Impact,
        LoanPlan,
        TenantPlan,
        TenantSide,
    )

_INDENT = "  "


def change_shown(change: "ChangeReport") -> "Iterator[RenderableType]":
    """What a file of quotas would change, one after the other: words, tenants, loans, harm."""
    for words in change.changes:
        yield Text(words)
    for warned in change.warnings:
        yield Text(warned, style="yellow")
    yield tenants_table(change.tenants)
    if others := change.unchanged:
        words = "other tenant stays as it is" if others == 1 else "other tenants stay as they are"
        yield Text(f"{others} {words}.")
    yield from _calendar_shown(change)
    if change.loans:
        yield "\nLoans:"
        yield loan_changes_table(change.loans)
    if change.harms:
        yield "\nJobs and tenants that it would harm:"
        yield impacts_table(change.harms)


def _calendar_shown(change: "ChangeReport") -> Iterator[Text]:
    """Say where the calendar's windows hide what the file sets now, and which windows end."""
    if hidden := change.hidden:
        names = ", ".join(hidden)
        yield Text(f"By the calendar other quotas are in force now for: {names}.")
    if change.ended_windows:
        ids = ", ".join(map(str, change.ended_windows))
        yield Text(f"Windows of the calendar that end with their tenants: {ids}.")


def tenants_table(plans: "Sequence[TenantPlan]") -> FittingTable:
    """One line per tenant, in slices; an amount that changes has an arrow."""

    def arrows(amount: "Callable[[TenantSide], int]") -> Iterable[Text]:
        for plan in plans:
            was, then = (amount(side) if side else None for side in (plan.before, plan.after))
            yield _arrow(was, then or 0)

    return FittingTable(
        (
            column("tenant", map(_indented, plans)),
            column("nominal", arrows(lambda side: side.nominal_millislices)),
            column("guaranteed", arrows(lambda side: side.guaranteed_millislices), rank=1),
            column("lent", arrows(lambda side: side.lent_millislices), rank=3),
            column("borrowed", arrows(lambda side: side.borrowed_millislices), rank=2),
            column("limit", arrows(lambda side: side.limit_millislices)),
        )
    )


def _indented(plan: "TenantPlan") -> str:
    return f"{plan.tenant} (removed)" if plan.after is None else _INDENT * plan.depth + plan.tenant


def _arrow(before: int | None, after: int) -> Text:
    """``6 → 12``; green is more, red is less."""
    if before == after:
        return Text(slices_text(after)) if after else NOTHING
    style = "green" if before is None or after > before else "red"
    was = "new" if before is None else slices_text(before)
    return Text.assemble((f"{was} → ", "dim"), (slices_text(after), style))


def loan_changes_table(loans: "Sequence[LoanPlan]") -> FittingTable:
    """One line per loan that would change."""
    return FittingTable(
        (
            column("lender", (loan.lender for loan in loans)),
            column("borrower", (loan.borrower for loan in loans)),
            column(
                "slices",
                (_arrow(loan.before_millislices, loan.after_millislices) for loan in loans),
            ),
        )
    )


def impacts_table(impacts: "Sequence[Impact]") -> FittingTable:
    """One line per impact on a tenant."""
    return FittingTable(
        (
            column("whom", (impact.tenant or "all" for impact in impacts)),
            column("about", (impact.about or NOTHING for impact in impacts), rank=1),
            column("what", (Text(impact.words, style="yellow") for impact in impacts), folds=True),
        )
    )


# Loans with their terms


def loans_table(lines: Sequence[LoanLine]) -> FittingTable:
    """One line per loan, and one per part that is recalled."""
    return FittingTable(
        (
            column("lender", (line.lender for line in lines)),
            column("borrower", (line.borrower for line in lines)),
            column("slices", (slices_text(line.amount_millislices) for line in lines), right=True),
            times_column("since", (line.since_s for line in lines), rank=1),
            column("until", map(_until, lines)),
        )
    )


def _until(line: LoanLine) -> Text:
    if line.is_recalled and line.until_s is not None:
        return Text(f"recalled, back by {time_text(line.until_s, '%H:%M:%S')}", style="yellow")
    if line.until_s is None:
        return Text("it is asked for", style="dim")
    return Text(f"promised until {time_text(line.until_s)}")


def loan_history_table(changes: Sequence[LoanChange]) -> FittingTable:
    """One line per change, newest first."""
    loans = [change.loan for change in changes]
    return FittingTable(
        (
            times_column("when", (change.at_s for change in changes)),
            column("lender", (loan.lender for loan in loans)),
            column("borrower", (loan.borrower for loan in loans)),
            column(
                "slices",
                (
                    slices_text(loan.amount_millislices) if loan.amount_millislices else "ended"
                    for loan in loans
                ),
                right=True,
            ),
            column("why", (change.reason for change in changes), folds=True, rank=1),
        )
    )
