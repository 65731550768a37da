"""``slicewise budget``: what tenants may use up in a period."""

from decimal import Decimal
from typing import TYPE_CHECKING, Annotated, Literal
from uuid import uuid4

import typer
from rich.text import Text

from slicewise.cluster.language.codes import Code
from slicewise.cluster.language.errors import InvalidInputError, UnreachableError
from slicewise.cluster.language.periods import RENEWED, period_start_s
from slicewise.cluster.rpc.client import DaemonClient
from slicewise.cluster.runtime.console import console, print_json
from slicewise.cluster.runtime.output_options import Json
from slicewise.cluster.runtime.wall_clock import wall_s
from slicewise.cluster.settings.file import Settings
from slicewise.cluster.settings.read import load_settings
from slicewise.slurm_plugin.cli.common.books import Books
from slicewise.slurm_plugin.cli.common.options import (
    OPERATORS_PANEL,
    AnyTenant,
    Reason,
    TenantName,
    author_name,
    opened_ledger,
    wait_until,
)
from slicewise.slurm_plugin.cli.views import budgets as present
from slicewise.slurm_plugin.cli.views.texts import hours_change_text, slice_hours_text
from slicewise.slurm_plugin.ledger.summaries import ledger_view_now, left_millislice_s
from slicewise.slurm_plugin.rules.accounting.budgets import Amend, amended, lost
from slicewise.slurm_plugin.rules.accounting.types import BudgetEntry
from slicewise.slurm_plugin.rules.quota.amounts import (
    SLICE_HOUR_MILLISLICE_S,
    BudgetWords,
    budget_from_words,
    signed_slice_hours_from_text,
    slice_hours_from_text,
)
from slicewise.slurm_plugin.rules.quota.tenants import check_words, payers, require_tenant
from slicewise.slurm_plugin.rules.quota.types import Budget, TenantUpdate
from slicewise.slurm_plugin.rules.quota.words import budget_text

if TYPE_CHECKING:
    from slicewise.slurm_plugin.ledger.store import Ledger


budget_app = typer.Typer(help="What tenants may use up in a period.", no_args_is_help=True)

RequiredReason = Annotated[str, typer.Option("--reason", help="Kept in the history.")]

Key = Annotated[
    str | None,
    typer.Option(
        help="Any word, for scripts: an entry given again with the same key is booked once."
    ),
]


@budget_app.command(
    "set",
    rich_help_panel=OPERATORS_PANEL,
    epilog="Examples: slicewise budget set vision --period month --amount 1000"
    " | slicewise budget set vision --carry-over all --overdraft 50 --reason 'as agreed'",
)
def set_budget(
    tenant: TenantName,
    *,
    period: Annotated[
        str | None,
        typer.Option(
            metavar="PERIOD", help=f"{', '.join(RENEWED)}, or none: one amount that never renews."
        ),
    ] = None,
    amount: Annotated[
        str | None, typer.Option(metavar="SLICE-HOURS", help="Given at the start of each period.")
    ] = None,
    carry_over: Annotated[
        str | None,
        typer.Option(
            metavar="SLICE-HOURS",
            help="Most unused slice-hours carried into the next period, or all.",
        ),
    ] = None,
    overdraft: Annotated[
        str | None,
        typer.Option(
            metavar="SLICE-HOURS",
            help="Slice-hours that jobs may start beyond the budget, or unlimited.",
        ),
    ] = None,
    reason: Reason = "",
    as_json: Json = False,
) -> None:
    """Set a tenant's budget; options left out keep their values.

    The budget pays for the tenant's runs and for those of tenants below it that have none. Slurm
    starts no job that would exceed it; debt is carried into the next period. A new amount counts
    immediately: the difference is booked as an adjustment. Another --period begins at once, and
    keeps of what was left the carry-over at most; the answer says what is gone.
    """
    settings = load_settings()
    with opened_ledger(settings) as ledger:
        before = require_tenant(ledger.tenants.policy(), tenant).budget
        words = BudgetWords(period, amount, carry_over, overdraft)
        budget = budget_from_words(tenant, before, words)
        start_s = period_begun_s(budget, settings)
        gone = _lost(ledger, settings, tenant, budget)
        adjusted = ledger.tenants.set_budget(
            TenantUpdate(tenant, budget=budget),
            author_name(),
            reason,
            amend_of(tenant, budget, settings, reason),
        )
        begun = wait_until(lambda: _has_begun(ledger, tenant, start_s))
    if as_json:
        print_json(
            present.SetBudget(
                **vars(budget),
                tenant=tenant,
                adjusted_millislice_s=adjusted,
                started=begun,
                lost_millislice_s=gone,
            )
        )
        return
    was = f" (was {budget_text(before)})" if before else ""
    console().print(Text(f"{tenant}: {budget_text(budget)}{was}"))
    if adjusted:
        console().print(f"Applies now: {hours_change_text(adjusted)} in this period.")
    if gone:
        console().print(Text(_lost_text(tenant, gone)))
    if not begun:
        console().print("The daemon is not running, or busy: it begins the period later.")


def _lost(ledger: "Ledger", settings: Settings, tenant: str, budget: Budget) -> int:
    """Return what of the budget that holds now is gone with the new one, in millislice-seconds."""
    view = ledger_view_now(ledger, settings)
    return lost(
        view.tenants[tenant].budget,
        budget,
        period_start_s=period_begun_s(budget, settings),
        last_rollover_s=view.rollovers.get(tenant),
        left_millislice_s=left_millislice_s(view).get(tenant, 0),
    )


def _lost_text(tenant: str, gone_millislice_s: int) -> str:
    amount = f"{Decimal(gone_millislice_s) / SLICE_HOUR_MILLISLICE_S:.4f}".rstrip("0").rstrip(".")
    return (
        f"A new period begins at once: {slice_hours_text(gone_millislice_s)} slice-hours that were"
        f" left are gone. To give them again: slicewise budget grant {tenant} --amount {amount}"
        " --reason WHY"
    )


def amend_of(tenant: str, budget: Budget, settings: Settings, reason: str) -> Amend:
    """Return a function that computes what the running period gets or loses by a new budget.

    The ledger calls it with the budget as it was, the last roll and what is unspent; None means
    that nothing has to be booked.
    """

    def entry(
        was: Budget | None, last_rollover_s: int | None, unspent_millislice_s: int
    ) -> BudgetEntry | None:
        return amended(
            tenant,
            was,
            budget,
            period_start_s=period_begun_s(budget, settings),
            last_rollover_s=last_rollover_s,
            unspent_millislice_s=unspent_millislice_s,
            author=author_name(),
            reason=reason,
        )

    return entry


def period_begun_s(budget: Budget, settings: Settings) -> int:
    """Return when the budget's running period began, in Unix seconds."""
    return period_start_s(budget.period, int(wall_s()), settings.ledger.time_zone)


@budget_app.command(
    "delete",
    rich_help_panel=OPERATORS_PANEL,
    epilog="Example: slicewise budget delete vision --reason 'by mistake'",
)
def delete_budget(tenant: TenantName, reason: Reason = "", as_json: Json = False) -> None:
    """Delete a tenant's budget: the nearest tenant above it with a budget pays from now on.

    If there is none, only quotas bind. What running jobs have reserved stays with this tenant.
    """
    with opened_ledger(load_settings()) as ledger:
        _require_budget(ledger, tenant)
        ledger.tenants.change(TenantUpdate(tenant, budget="off"), author_name(), reason)
        payer = payers(ledger.tenants.policy())[tenant]
    if as_json:
        print_json(present.Payer(tenant, payer))
        return
    pays = "only its quota limits it" if payer == tenant else f"{payer} pays for its new runs"
    console().print(Text(f"{tenant} has no budget any more; {pays}."))


@budget_app.command(
    "show", epilog="Examples: slicewise budget show | slicewise budget show vision --json"
)
def show_budgets(tenant: AnyTenant = None, as_json: Json = False) -> None:
    """Show what is left of budgets, in slice-hours, and when they end at this rate.

    For a single tenant it is the budget that pays for it, with what was used: left and used add up
    to what the period had. Users see the budgets that pay for the tenants that they belong to.
    """
    found = Books(DaemonClient(load_settings().daemon)).budgets(tenant)
    if tenant is not None and not found:
        raise _no_budget(f"No budget pays for tenant {tenant!r}.")
    if as_json:
        print_json(found)
    else:
        console().print(
            present.budgets_table(found, int(wall_s())).or_say(
                "No budgets. Operators set them:"
                " slicewise budget set NAME --period month --amount H"
            )
        )


def _require_budget(ledger: "Ledger", tenant: str) -> Budget:
    budget = require_tenant(ledger.tenants.policy(), tenant).budget
    if budget is None:
        raise _no_budget(f"Tenant {tenant!r} has no budget of its own.")
    return budget


def _no_budget(message: str) -> InvalidInputError:
    return InvalidInputError(
        Code.BUDGET_NONE,
        message,
        "Operators set one: slicewise budget set NAME --period month --amount SLICE_HOURS",
    )


def _require_begun(ledger: "Ledger", tenant: str, start_s: int) -> None:
    """Refuse to book before the running period has begun: its roll would take the entry back.

    Raises InvalidInputError (SW-BUSY).
    """
    if not _has_begun(ledger, tenant, start_s):
        raise InvalidInputError(
            Code.BUSY,
            f"The running period of {tenant}'s budget has not begun in the ledger yet.",
            "A running daemon begins it within seconds. Then try again.",
        )


def _has_begun(ledger: "Ledger", tenant: str, start_s: int) -> bool:
    return ledger.budgets.rollovers().get(tenant, -1) >= start_s


@budget_app.command(
    "grant",
    rich_help_panel=OPERATORS_PANEL,
    epilog="Example: slicewise budget grant vision --amount 100 --reason 'for the paper'",
)
def grant_budget(
    tenant: TenantName,
    amount: Annotated[str, typer.Option(help="Slice-hours, above zero.")],
    reason: RequiredReason,
    key: Key = None,
    as_json: Json = False,
) -> None:
    """Give a tenant more in the running period; the carry-over rule applies to it, too."""
    granted = slice_hours_from_text(amount, "--amount")
    if not granted:
        raise _no_amount()
    _book(_entry(tenant, "grant", granted, reason, key), as_json=as_json)


@budget_app.command(
    "adjust",
    rich_help_panel=OPERATORS_PANEL,
    epilog="Examples: slicewise budget adjust vision --amount=-12.5 --reason 'counted twice'"
    " | slicewise budget adjust vision --amount=+3 --reason 'node was slow'",
)
def adjust_budget(
    tenant: TenantName,
    amount: Annotated[str, typer.Option(help="Slice-hours with a sign, such as =-12.5.")],
    reason: RequiredReason,
    key: Key = None,
    as_json: Json = False,
) -> None:
    """Correct a tenant's budget in the running period, up or down."""
    adjusted = signed_slice_hours_from_text(amount, "--amount")
    if not adjusted:
        raise _no_amount()
    _book(_entry(tenant, "adjust", adjusted, reason, key), as_json=as_json)


def _entry(
    tenant: str, kind: Literal["grant", "adjust"], amount: int, reason: str, key: str | None
) -> BudgetEntry:
    """Build the entry, always with a key: if the ledger's answer is lost, it may be booked.

    Raises InvalidInputError (SW-VALUE) if ``key`` is empty.
    """
    if key is not None and not key.strip():
        raise InvalidInputError(Code.VALUE, "--key: it is empty.", "Give one, or leave it out.")
    return BudgetEntry(
        tenant, kind, amount, None, author_name(), reason, key=key or f"command-{uuid4().hex}"
    )


def _no_amount() -> InvalidInputError:
    return InvalidInputError(
        Code.VALUE, "--amount: 0 slice-hours change nothing.", "Give another amount."
    )


def _book(entry: BudgetEntry, *, as_json: bool) -> None:
    """Book what an operator gives or takes, and print what is left."""
    check_words(entry.author, entry.reason)
    if not entry.reason.strip():
        raise InvalidInputError(Code.VALUE, "--reason: it is empty.", "Say why, in a few words.")
    settings = load_settings()
    with opened_ledger(settings) as ledger:
        budget = _require_budget(ledger, entry.tenant)
        _require_begun(ledger, entry.tenant, period_begun_s(budget, settings))
        _enter(ledger, entry)
        left = left_millislice_s(ledger_view_now(ledger, settings)).get(entry.tenant)
    if as_json:
        print_json(present.BookedEntry(**vars(entry), left_millislice_s=left))
        return
    now = "" if left is None else f"; {slice_hours_text(left)} are left"
    change = hours_change_text(entry.amount_millislice_s)
    console().print(Text(f"{entry.tenant}: {change}{now}"))


def _enter(ledger: "Ledger", entry: BudgetEntry) -> None:
    """Book the entry, and try again if no answer came: its key prevents booking it twice."""
    try:
        ledger.budgets.enter(entry, None)
    except UnreachableError:
        try:
            ledger.budgets.enter(entry, None)
        except UnreachableError as error:
            raise UnreachableError(
                error.refusal.code,
                f"{error.refusal.message} It is not known whether the entry was booked.",
                f"Run the same again with --key {entry.key}: it is booked only once.",
            ) from None


@budget_app.command(
    "history",
    epilog="Examples: slicewise budget history vision | slicewise budget history vision --json",
)
def budget_history(tenant: TenantName, as_json: Json = False) -> None:
    """Show every rule, roll (start of a period), grant and adjustment of a budget, newest first."""
    with opened_ledger(load_settings()) as ledger:
        found = present.events(ledger.tenants.history(tenant), ledger.budgets.entries(tenant, 0))
        if not found:
            _require_budget(ledger, tenant)
    if as_json:
        print_json(found)
    else:
        console().print(present.events_table(found).or_say("Nothing has changed it yet."))
