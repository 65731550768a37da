"""What observing has shown, for people."""

from collections.abc import Iterator, Sequence

from rich.text import Text

from slicewise.cluster.language.units import counted, slices_text
from slicewise.cluster.runtime.console import FittingTable, column, time_text
from slicewise.slurm_plugin.cli.views.texts import NOTHING, slice_hours_text
from slicewise.slurm_plugin.rules.explain.observed import (
    ObservedLoan,
    ObservedRefusal,
    ObservedReport,
    ObservedTenant,
    ObservedType,
    tenant_words,
)

MOST_REFUSALS = 20
"""Rows of refusals that are shown; JSON has all."""


def head_text(report: ObservedReport) -> str:
    """Say what the report covers."""
    modes = ", ".join(f"{many} in {mode}" for mode, many in report.modes.items()) or "none"
    days = counted(report.days, "day")
    return f"Since {time_text(report.since_s)}, {days} recorded. Submissions decided: {modes}."


def tenants_table(tenants: Sequence[ObservedTenant]) -> FittingTable:
    """One line per tenant."""
    return FittingTable(
        (
            column("tenant", (tenant.tenant for tenant in tenants)),
            column("submitted", (tenant.submissions for tenant in tenants), right=True),
            column("refused", (tenant.refused or NOTHING for tenant in tenants), right=True),
            column(
                "QOS moved", (tenant.moved_qos or NOTHING for tenant in tenants), right=True, rank=2
            ),
            column(
                "type chosen",
                (tenant.moved_type or NOTHING for tenant in tenants),
                right=True,
                rank=3,
            ),
            column(
                "on loans",
                (tenant.on_borrowed or NOTHING for tenant in tenants),
                right=True,
                rank=1,
            ),
            column("used", (_hours(tenant.used_millislice_s) for tenant in tenants), right=True),
            column(
                "guaranteed",
                (_hours(tenant.guaranteed_millislice_s) for tenant in tenants),
                right=True,
            ),
            column("lends", (_hours(tenant.lent_millislice_s) for tenant in tenants), right=True),
            column(
                "borrows", (_hours(tenant.borrowed_millislice_s) for tenant in tenants), right=True
            ),
        )
    )


def refusals_table(refusals: Sequence[ObservedRefusal]) -> FittingTable:
    """One line per code, tenant and user; the most frequent ones."""
    shown = refusals[:MOST_REFUSALS]
    return FittingTable(
        (
            column("would be refused", (refusal.code for refusal in shown)),
            column("tenant", (refusal.tenant or NOTHING for refusal in shown)),
            column("user", (refusal.user for refusal in shown)),
            column("submissions", (refusal.submissions for refusal in shown), right=True),
        )
    )


def types_table(types: Sequence[ObservedType]) -> FittingTable:
    """One line per GPU type."""
    return FittingTable(
        (
            column("GPU type", (gpu_type.gpu_type or "(none named)" for gpu_type in types)),
            column("submitted", (gpu_type.submissions for gpu_type in types), right=True),
            column("refused", (gpu_type.refused or NOTHING for gpu_type in types), right=True),
            column("chosen", (gpu_type.chosen or NOTHING for gpu_type in types), right=True),
            column(
                "slices asked",
                (slices_text(gpu_type.asked_millislices) for gpu_type in types),
                right=True,
            ),
        )
    )


def loans_table(loans: Sequence[ObservedLoan]) -> FittingTable:
    """One line per lender and borrower."""
    return FittingTable(
        (
            column("lender", (loan.lender for loan in loans)),
            column("borrower", (loan.borrower for loan in loans)),
            column("slice-hours", (_hours(loan.lent_millislice_s) for loan in loans), right=True),
            column("recalls", (loan.recalls or NOTHING for loan in loans), right=True),
            column(
                "slices recalled",
                (
                    slices_text(loan.recalled_millislices) if loan.recalls else NOTHING
                    for loan in loans
                ),
                right=True,
            ),
        )
    )


def sentences(report: ObservedReport) -> Iterator[str]:
    """Say what follows: of lending, of each tenant, and what to do next."""
    if report.lent_share is not None:
        wanted = slice_hours_text(report.idle_wanted_millislice_s)
        yield (
            f"Of {wanted} idle slice-hours that others wanted,"
            f" {report.lent_share:.0%} would have been lent."
        )
    yield from map(tenant_words, report.tenants)
    if left := max(0, len(report.refusals) - MOST_REFUSALS):
        yield f"{left} more rows of refusals: --json"
    if report.hints:
        yield "To do next:"
        yield from (f"- {hint}" for hint in report.hints)


def _hours(amount_millislice_s: int) -> str | Text:
    return slice_hours_text(amount_millislice_s) if amount_millislice_s else NOTHING
