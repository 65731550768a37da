"""Tenants, their quotas and histories for people and as JSON."""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Annotated

from rich.text import Text

from slicewise.cluster.language.documents import HIDDEN
from slicewise.cluster.language.meters import meter_named
from slicewise.cluster.language.units import slices_text, slices_words
from slicewise.cluster.runtime.console import Column, Facts, FittingTable, column, time_text
from slicewise.slurm_plugin.cli.views.texts import (
    NOTHING,
    amount_text,
    hours_cell,
    reset_text,
    slice_hours_text,
    slices_cells,
    times_column,
)
from slicewise.slurm_plugin.rules.accounting.overview import BudgetStatus, Details, TenantStatus
from slicewise.slurm_plugin.rules.quota.accounts import AccountDifference, TakeOver, below_text
from slicewise.slurm_plugin.rules.quota.amounts import limit_text
from slicewise.slurm_plugin.rules.quota.quota_texts import (
    budget_text,
    quota_texts,
    quota_words,
)
from slicewise.slurm_plugin.rules.quota.type_limits import TypeOfQuota
from slicewise.slurm_plugin.rules.quota.types import (
    Loan,
    QuotaChange,
    Tenant,
    TenantUpdate,
)

if TYPE_CHECKING:
    from slicewise.slurm_plugin.rules.quota.waiting_work import WaitingWork

_INDENT = "  "


# The tree


def tree_table(tenant_statuses: Sequence[TenantStatus]) -> FittingTable:
    """One line per tenant, those below another indented."""
    quotas = [status.quota for status in tenant_statuses]
    return FittingTable(
        (
            column(
                "tenant",
                (_INDENT * status.depth + status.tenant for status in tenant_statuses),
            ),
            column(
                "nominal", slices_cells(s.nominal_millislices for s in tenant_statuses), right=True
            ),
            column("lent", _some(s.lent_millislices for s in tenant_statuses), right=True, rank=2),
            column(
                "borrowed",
                _some(s.borrowed_millislices for s in tenant_statuses),
                right=True,
                rank=1,
            ),
            column("limit", slices_cells(s.limit_millislices for s in tenant_statuses), right=True),
            column("in use", _in_use(tenant_statuses), right=True),
            column("hours left", map(_left, tenant_statuses), right=True),
            column(
                "borrowing limit",
                (_limit(q.borrowing_limit_millislices) for q in quotas),
                right=True,
                rank=4,
            ),
            column(
                "lending limit",
                (_limit(q.lending_limit_millislices) for q in quotas),
                right=True,
                rank=4,
            ),
            column("account", map(_in_slurm, tenant_statuses), rank=3),
        )
    )


def _some(amounts_millislices: Iterable[int]) -> Iterable[Text]:
    return (Text(slices_text(amount)) if amount else NOTHING for amount in amounts_millislices)


def _in_use(tenant_statuses: Iterable[TenantStatus]) -> Iterable[Text]:
    """Slices in use; red above the limit, where nothing more starts until some runs end."""
    for status in tenant_statuses:
        above = status.in_use_millislices > status.limit_millislices
        yield Text(slices_text(status.in_use_millislices), style="red" if above else "")


def _left(tenant: TenantStatus) -> Text:
    if tenant.left_millislice_s is None:
        return NOTHING
    return hours_cell(tenant.left_millislice_s)


def _in_slurm(tenant: TenantStatus) -> Text:
    if tenant.in_slurm is None:
        return Text("?", style="dim")
    return Text("yes") if tenant.in_slurm else Text("no account", style="red")


# Quotas


def _limit(amount_millislices: int) -> Text:
    return Text(limit_text(amount_millislices)) if amount_millislices else NOTHING


@dataclass(frozen=True)
class QuotaOutcome:
    """The result of setting a quota; ``in_force_after_s`` is None if it is not in force yet.

    ``force_text`` says so in words. ``change`` is the one of before if the tenant had all this.
    """

    before: Tenant | None
    after: Tenant
    change: QuotaChange
    in_force_after_s: float | None
    force_text: Annotated[str, HIDDEN]


def outcome_text(outcome: QuotaOutcome) -> str:
    """``vision: nominal 6 slices (was 4 slices), in force in Slurm (0.8 s)``."""
    if outcome.before == outcome.after:
        held = ", ".join(f"{key} {text}" for key, text in quota_texts(outcome.after.quota).items())
        return f"{outcome.after.name} has this already, nothing was recorded: {held}"
    before = outcome.before.quota if outcome.before else None
    words = quota_words(before, outcome.after.quota)
    return f"{outcome.after.name}: {words}, {outcome.force_text}"


def left_text(running: int, waiting: "WaitingWork | None") -> str:
    """Say what becomes of a deleted tenant's jobs; None for ``waiting`` is unknown, "" is none."""
    words = []
    if running:
        words.append(f"{running} of its runs go on and are charged.")
    if waiting is not None and waiting.jobs:
        words.append(f"{waiting.jobs} of its jobs and array tasks wait, and never start.")
    if waiting is not None and waiting.services:
        words.append(f"Its services start no more replicas: {', '.join(waiting.services)}.")
    return "".join(f"{word} " for word in words)


def no_tenants_text(accounts: Sequence[str], refusals: Sequence[str]) -> str:
    """``Accounts that are no tenants: optics, physics. ...``; ``refusals`` say which can't be."""
    refused = "".join(f"\n{refusal}" for refusal in refusals)
    can_be = len(accounts) > len(refusals)
    others = ", the others" if refusals else ""
    return (
        f"Accounts that are no tenants: {', '.join(accounts)}. They may start no jobs with GPUs in"
        f" mode enforce.{refused}"
        + (f" Take them over{others}: slicewise tenant import" if can_be else "")
    )


# One tenant


def details_table(details: Details) -> Facts:
    """Everything about a tenant on one screen."""
    found = _details(details)
    return Facts(
        tuple((heading, text if isinstance(text, Text) else Text(text)) for heading, text in found)
    )


def _details(details: Details) -> Iterable[tuple[str, str | Text]]:
    yield "tenant", _place_text(details)
    yield "quota", quota_words(None, details.quota)
    if details.nominal_millislices != details.quota.nominal_millislices:
        yield "", f"of its parts together: {slices_words(details.nominal_millislices)}"
    yield "loans", loans_text(details.tenant, details.loans)
    yield "limit", _limit_text(details)
    yield "in use", _use_text(details)
    if details.types:
        yield "by type", "; ".join(map(type_text, details.types))
    yield "budget", _budget_text(details)
    if details.token_budget is not None:
        yield "tokens", _tokens_text(details.tenant, details.token_budget)
    yield "in Slurm", slurm_text(details)
    yield "changed", last_change_text(details.last_change)


def last_change_text(last: QuotaChange) -> str:
    """``2026-11-21 18:00:00 by root: nominal 6 (until the paper is out)``."""
    reason = f" ({last.reason})" if last.reason else ""
    return f"{time_text(last.at_s)} by {last.author}: {change_text(last.update)}{reason}"


def _place_text(details: Details) -> str:
    above = f", below {details.parent}" if details.parent else ""
    parts = f", with {', '.join(details.children)} below it" if details.children else ""
    return f"{details.tenant}{above}{parts}"


def loans_text(tenant: str, loans: Iterable[Loan]) -> str:
    """The tenant's own loans: ``lends 2 to nlp; borrows 1 from speech``."""
    words = [
        f"lends {slices_text(loan.amount_millislices)} to {loan.borrower}"
        if loan.lender == tenant
        else f"borrows {slices_text(loan.amount_millislices)} from {loan.lender}"
        for loan in loans
    ]
    return "; ".join(words) or "none"


def _limit_text(tenant: TenantStatus) -> str:
    return (
        f"{slices_words(tenant.limit_millislices)}, of them"
        f" {slices_text(tenant.guaranteed_millislices)} guaranteed;"
        f" {slices_text(tenant.lent_millislices)} lent,"
        f" {slices_text(tenant.borrowed_millislices)} borrowed"
    )


def _use_text(tenant: TenantStatus) -> str:
    below = tenant.in_use_millislices - tenant.own_in_use_millislices
    parts = f", of them {slices_text(below)} below it" if below else ""
    return f"{slices_words(tenant.in_use_millislices)}{parts}; {tenant.running} own runs"


def type_text(own: TypeOfQuota) -> str:
    """``3 × 1g.10gb (at most 5), 2 of 2 guaranteed``."""
    held = f"{own.in_use:,} × {own.gres_type}"
    most = "" if own.limit is None else f" (at most {own.limit:,})"
    if own.guaranteed is None:
        return f"{held}{most}"
    return f"{held}{most}, {own.guaranteed_in_use:,} of {own.guaranteed:,} guaranteed"


def _budget_text(details: Details) -> str:
    payer, budget = details.payer, details.budget
    if budget is None:
        return f"none; {payer} pays" if payer != details.tenant else "none: unlimited"
    if details.left_millislice_s is None:
        return f"{budget_text(budget)}; begins when the daemon runs"
    left = slice_hours_text(details.left_millislice_s)
    return f"{left} left of {budget_text(budget)}; resets {reset_text(details.resets_s)}"


def _tokens_text(tenant: str, status: BudgetStatus) -> str:
    budget = budget_text(status.budget)
    payer = "" if status.tenant == tenant else f"; {status.tenant} pays"
    if status.left is None:
        return f"{budget}{payer}; begins when the daemon runs"
    left = amount_text(status.left, meter_named(status.budget.meter))
    return f"{left} left of {budget}{payer}; resets {reset_text(status.resets_s)}"


def slurm_text(details: Details) -> str | Text:
    """Whether Slurm's limits have the tenant's last change."""
    if details.in_slurm is False:
        return _in_slurm(details)
    return "limits are in force" if details.in_force else "the last change is not in force yet"


@dataclass(frozen=True)
class DeletedTenant:
    """How many jobs of it run, and whether Slurm has its removal."""

    tenant: str
    running: int
    in_force: bool


# Histories


def history_table(changes: Sequence[QuotaChange]) -> FittingTable:
    """One line per change, newest first."""
    return FittingTable(
        (
            times_column("when", (change.at_s for change in changes)),
            column("changed", (change_text(change.update) for change in changes), folds=True),
            column("by", (change.author for change in changes), rank=1),
            column("reason", (change.reason for change in changes), folds=True),
        )
    )


def change_text(update: TenantUpdate) -> str:
    """Say what a change sets: ``nominal 6 slices, weight 2``."""
    if update.removed:
        return "deleted"
    words = [f"{noun} {text}" for noun, text in quota_texts(update).items()]
    if update.parent is not None:
        words.append(f"parent {update.parent or 'none'}")
    budgets = (update.budget, update.token_budget)
    words += [f"budget {budget_text(budget)}" for budget in budgets if budget is not None]
    return ", ".join(words)


# Slurm's accounts


def differences_table(rows: Sequence[TakeOver], verb: str) -> FittingTable:
    """One line per account that is not where its tenant is, and whether it is taken over."""
    outcome = column(f"{verb} taken over", map(_outcome, rows), folds=True)
    return FittingTable((*_places([row.difference for row in rows]), outcome))


def places_table(found: Sequence[AccountDifference]) -> FittingTable:
    """One line per tenant that is not where its account is."""
    return FittingTable(_places(found))


def _places(found: Sequence[AccountDifference]) -> tuple[Column, ...]:
    return (
        column("account", (difference.account for difference in found)),
        column("in the ledger", map(_ledger_place, found)),
        column("in Slurm", map(_slurm_place, found)),
    )


def _ledger_place(difference: AccountDifference) -> str:
    return "not a tenant" if difference.kind == "new" else below_text(difference.parent)


def _slurm_place(difference: AccountDifference) -> str:
    return "no such account" if difference.kind == "absent" else below_text(difference.slurm_parent)


def _outcome(row: TakeOver) -> Text:
    if row.refusal is not None:
        return Text(row.refusal.text(), style="red")
    return Text("no" if row.difference.kind == "absent" else "yes")
