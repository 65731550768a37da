"""``slicewise budget``: what tenants may use up in a period."""

from decimal import Decimal
from enum import StrEnum
from typing import Annotated, Literal
from uuid import uuid4

import typer
from rich.text import Text

from slicewise.cluster.language.codes import Code
from slicewise.cluster.language.errors import InvalidInputError, SlicewiseError, UnreachableError
from slicewise.cluster.language.meters import BUDGETED, SLICES, TOKENS, Meter
from slicewise.cluster.language.periods import RENEWED
from slicewise.cluster.rpc.client import DaemonClient
from slicewise.cluster.runtime.console import console, print_json
from slicewise.cluster.runtime.output_options import Json
from slicewise.cluster.runtime.wall_clock import wall_s
from slicewise.cluster.settings.read import load_settings
from slicewise.slurm_plugin.cli.common.options import (
    OPERATORS_PANEL,
    AnyTenant,
    Reason,
    TenantName,
    authored,
)
from slicewise.slurm_plugin.cli.views import budgets as present
from slicewise.slurm_plugin.cli.views.texts import amount_change_text, amount_text
from slicewise.slurm_plugin.common.budget_requests import (
    BudgetDeleteRequest,
    BudgetEnterAnswer,
    BudgetEnterRequest,
    BudgetHistoryRequest,
    BudgetSetRequest,
)
from slicewise.slurm_plugin.common.ledger_requests import BudgetsRequest
from slicewise.slurm_plugin.rules.quota.amounts import budget_amount
from slicewise.slurm_plugin.rules.quota.quota_texts import budget_text

budget_app = typer.Typer(
    no_args_is_help=True,
    help="What tenants may use up in a period.",
    epilog="Examples: slicewise budget set vision --period month --amount 1000"
    " | slicewise budget show",
)

RequiredReason = Annotated[str, typer.Option("--reason", help="Kept in the history.")]


class MeterName(StrEnum):
    """Of what a budget is."""

    SLICES = SLICES.name
    TOKENS = TOKENS.name

    @property
    def meter(self) -> Meter:
        """How its amounts are read."""
        return BUDGETED[self.value]


MeterOption = Annotated[
    MeterName, typer.Option("--meter", help="Of what it is a budget; slices by the hour.")
]

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
    " | slicewise budget set vision --carry-over all --overdraft 50 --reason 'as agreed'"
    " | slicewise budget set vision --meter tokens --period month --amount 2000000",
)
def set_budget(
    tenant: TenantName,
    *,
    meter: MeterOption = MeterName.SLICES,
    period: Annotated[
        str | None,
        typer.Option(
            metavar="PERIOD", help=f"{', '.join(RENEWED)}, or none: one amount that never renews."
        ),
    ] = None,
    amount: Annotated[
        str | None, typer.Option(metavar="AMOUNT", help="Given at the start of each period.")
    ] = None,
    carry_over: Annotated[
        str | None,
        typer.Option(
            metavar="AMOUNT",
            help="Most of an unused amount that is carried into the next period, or all.",
        ),
    ] = None,
    overdraft: Annotated[
        str | None,
        typer.Option(
            metavar="AMOUNT",
            help="What jobs may start, or requests use, beyond the budget, or unlimited.",
        ),
    ] = None,
    reason: Reason = "",
    as_json: Json = False,
) -> None:
    """Set a tenant's budget of slice-hours or tokens; options left out keep their values.

    The budget pays for the tenant and for tenants below it that have none. Slurm starts no job that
    would exceed it, and the gateway refuses requests once it is used up; debt is carried into the
    next period. A new amount counts immediately: the difference is booked as an adjustment. Another
    --period begins at once, and keeps of what was left the carry-over at most; the answer says what
    is gone.
    """
    given = {
        "period": period,
        "amount": amount,
        "carry_over": carry_over,
        "overdraft": overdraft,
    }
    if not any(word is not None for word in given.values()):
        raise typer.BadParameter("Give what to set: --period, --amount or another option.")
    request = BudgetSetRequest.of(tenant=tenant, meter=meter.value, **given, **authored(reason))
    answer = _daemon().call(request)
    adjusted, gone, budget = answer.adjusted, answer.lost, answer.after
    if as_json:
        print_json(answer)
        return
    was = f" (was {budget_text(answer.before)})" if answer.before else ""
    console().print(Text(f"{tenant}: {budget_text(budget)}{was}"))
    if adjusted:
        console().print(f"Applies now: {amount_change_text(adjusted, meter.meter)} in this period.")
    if gone:
        console().print(Text(_lost_text(tenant, gone, meter)))
    if not answer.has_started:
        console().print("The daemon is busy: it begins the period later.")


def _daemon() -> DaemonClient:
    return DaemonClient(load_settings().daemon)


def _lost_text(tenant: str, gone: int, name: MeterName) -> str:
    amount = f"{Decimal(gone) / name.meter.scale:.4f}".rstrip("0").rstrip(".")
    option = "" if name is MeterName.SLICES else f" --meter {name}"
    return (
        f"A new period begins at once: {amount_text(gone, name.meter)} {name.meter.unit} that were"
        f" left are gone. To give them again: slicewise budget grant {tenant}{option} --amount"
        f" {amount} --reason WHY"
    )


@budget_app.command(
    "delete",
    rich_help_panel=OPERATORS_PANEL,
    epilog="Example: slicewise budget delete vision --reason 'by mistake'",
)
def delete_budget(
    tenant: TenantName,
    meter: MeterOption = MeterName.SLICES,
    reason: Reason = "",
    as_json: Json = False,
) -> None:
    """Delete a tenant's budget: the nearest tenant above it with a budget pays from now on.

    If there is none, only quotas bind, or limits of tokens. What running jobs have reserved stays
    with this tenant.
    """
    request = BudgetDeleteRequest.of(tenant=tenant, meter=meter.value, **authored(reason))
    answer = _daemon().call(request)
    if as_json:
        print_json(answer)
        return
    free, paid = _WITHOUT[meter]
    pays = free if answer.payer == tenant else f"{answer.payer} pays for its {paid}"
    console().print(Text(f"{tenant} has no budget any more; {pays}."))


_WITHOUT = {
    MeterName.SLICES: ("only its quota limits it", "new runs"),
    MeterName.TOKENS: ("only limits on requests bind it", "requests"),
}
"""What limits a tenant for which no budget pays, and what of it another's pays for."""


@budget_app.command(
    "show", epilog="Examples: slicewise budget show | slicewise budget show vision --json"
)
def show_budgets(
    tenant: AnyTenant = None, meter: MeterOption = MeterName.SLICES, as_json: Json = False
) -> None:
    """Show what is left of budgets, in slice-hours or tokens, and when they end at this rate.

    For a single tenant it is the budget that pays for it, with what was used: left and used add up
    to what the period had. Users see the budgets that pay for the tenants that they belong to.
    """
    found = _daemon().call(BudgetsRequest.of(tenant=tenant, meter=meter.value)).budgets
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


def _no_budget(message: str) -> InvalidInputError:
    return InvalidInputError(
        Code.BUDGET_NONE,
        message,
        "Operators set one: slicewise budget set NAME --period month --amount SLICE_HOURS",
    )


@budget_app.command(
    "grant",
    rich_help_panel=OPERATORS_PANEL,
    epilog="Example: slicewise budget grant vision --amount 100 --reason 'for the paper'",
)
def grant_budget(
    tenant: TenantName,
    amount: Annotated[str, typer.Option(help="Slice-hours or tokens, above zero.")],
    reason: RequiredReason,
    *,
    meter: MeterOption = MeterName.SLICES,
    key: Key = None,
    as_json: Json = False,
) -> None:
    """Give a tenant more in the running period; the carry-over rule applies to it, too."""
    granted = budget_amount(amount, "--amount", "", meter.meter)
    if not granted:
        raise _no_amount(meter)
    _book(tenant, "grant", granted, reason, key, meter=meter, as_json=as_json)


@budget_app.command(
    "adjust",
    rich_help_panel=OPERATORS_PANEL,
    epilog="Examples: slicewise budget adjust vision --amount=-12.5 --reason 'counted twice'"
    " | slicewise budget adjust vision --amount=+3 --reason 'node was slow'",
)
def adjust_budget(
    tenant: TenantName,
    amount: Annotated[str, typer.Option(help="Slice-hours or tokens with a sign, such as =-12.5.")],
    reason: RequiredReason,
    *,
    meter: MeterOption = MeterName.SLICES,
    key: Key = None,
    as_json: Json = False,
) -> None:
    """Correct a tenant's budget in the running period, up or down."""
    adjusted = meter.meter.amount(amount, "--amount")
    if not adjusted:
        raise _no_amount(meter)
    _book(tenant, "adjust", adjusted, reason, key, meter=meter, as_json=as_json)


def _no_amount(name: MeterName) -> InvalidInputError:
    return InvalidInputError(
        Code.VALUE, f"--amount: 0 {name.meter.unit} change nothing.", "Give another amount."
    )


def _book(
    tenant: str,
    kind: Literal["grant", "adjust"],
    amount: int,
    reason: str,
    key: str | None,
    *,
    meter: MeterName,
    as_json: bool,
) -> None:
    """Have booked what an operator gives or takes, and print what is left.

    It always has a key: if an answer is lost, it may be booked.
    """
    if not reason.strip():
        raise InvalidInputError(Code.VALUE, "--reason: it is empty.", "Say why, in a few words.")
    if key is not None and not key.strip():
        raise InvalidInputError(Code.VALUE, "--key: it is empty.", "Give one, or leave it out.")
    request = BudgetEnterRequest.of(
        tenant=tenant,
        kind=kind,
        units=amount,
        meter=meter.value,
        key=key or f"command-{uuid4().hex}",
        **authored(reason),
    )
    answer = _entered(request)
    entry, left = answer.entry, answer.left
    if as_json:
        print_json(answer)
        return
    now = "" if left is None else f"; {amount_text(left, meter.meter)} are left"
    change = amount_change_text(entry.amount, meter.meter)
    console().print(Text(f"{entry.tenant}: {change}{now}"))


def _entered(request: BudgetEnterRequest) -> BudgetEnterAnswer:
    """Have it booked, and ask again if no answer came: its key prevents booking it twice."""
    daemon = _daemon()
    try:
        return daemon.call(request)
    except SlicewiseError as error:
        if error.refusal.code not in _UNANSWERED:
            raise
    try:
        return daemon.call(request)
    except SlicewiseError as error:
        if error.refusal.code not in _UNANSWERED:
            raise
        raise UnreachableError(
            error.refusal.code,
            f"{error.refusal.message} It is not known whether the entry was booked.",
            f"Run the same again with --key {request.key}: it is booked only once.",
        ) from None


_UNANSWERED = frozenset({Code.DAEMON_UNSURE, Code.DATABASE_DOWN, Code.DATABASE_FAILED})
"""After a failure with one of these codes an entry may have been booked."""


@budget_app.command(
    "history",
    epilog="Examples: slicewise budget history vision | slicewise budget history vision --json",
)
def budget_history(
    tenant: TenantName, meter: MeterOption = MeterName.SLICES, as_json: Json = False
) -> None:
    """Show every rule, roll (start of a period), grant and adjustment of a budget, newest first."""
    answer = _daemon().call(BudgetHistoryRequest.of(tenant=tenant, meter=meter.value))
    events = present.events(answer.changes, answer.entries, meter.value)
    if as_json:
        print_json(events)
    else:
        table = present.events_table(events, meter.meter)
        console().print(table.or_say("Nothing has changed it yet."))
