"""``slicewise tenant``: tenants, their tree, and how the tree follows Slurm's accounts."""

import time
from collections.abc import Sequence
from dataclasses import asdict
from typing import TYPE_CHECKING, Annotated

import typer
from rich.text import Text

from slicewise.cluster.language.codes import Code
from slicewise.cluster.language.errors import InvalidInputError
from slicewise.cluster.rpc.own_tenant import typed_account
from slicewise.cluster.runtime.console import console, print_json
from slicewise.cluster.runtime.output_options import Json
from slicewise.cluster.runtime.questions import confirm
from slicewise.cluster.settings.read import load_settings
from slicewise.slurm_plugin.cli.common.in_force import force_text
from slicewise.slurm_plugin.cli.common.options import (
    AnyTenant,
    Reason,
    TenantName,
    TimeoutS,
    Yes,
    author_name,
    opened_ledger,
    require_in_force,
    require_tenant,
    wait_until_compiled,
)
from slicewise.slurm_plugin.cli.common.output import counting
from slicewise.slurm_plugin.cli.common.slurm_look import (
    SlurmLook,
    look_at_slurm,
    try_to_find_waiting,
    try_to_look_at_slurm,
)
from slicewise.slurm_plugin.cli.common.tenant_overview import details, gathered
from slicewise.slurm_plugin.cli.views import tenants as present
from slicewise.slurm_plugin.ledger.summaries import ledger_view_now
from slicewise.slurm_plugin.rules.accounting.overview import tenant_statuses
from slicewise.slurm_plugin.rules.limits.warnings import place_warning
from slicewise.slurm_plugin.rules.quota.accounts import (
    TakeOver,
    differences,
    place_in_slurm,
    take_over,
    tenant_parent,
)
from slicewise.slurm_plugin.rules.quota.tenants import changed
from slicewise.slurm_plugin.rules.quota.types import ROOT_ACCOUNT, Policy, Tenant, TenantUpdate

if TYPE_CHECKING:
    from slicewise.slurm_plugin.ledger.store import Ledger


tenant_app = typer.Typer(help="Tenants: Slurm accounts that are charged.", no_args_is_help=True)

DryRun = Annotated[bool, typer.Option("--dry-run", help="Change nothing.")]


@tenant_app.command(
    "create",
    epilog="Examples: slicewise tenant create vision | slicewise tenant create speech --parent nlp",
)
def create_tenant(
    tenant: TenantName,
    parent: Annotated[
        str | None,
        typer.Option(
            help="The tenant above it, '' for none; by default the nearest above its account in"
            " Slurm.",
            callback=typed_account,
        ),
    ] = None,
    reason: Reason = "",
    as_json: Json = False,
) -> None:
    """Make a Slurm account a tenant; it may hold nothing until it gets a quota.

    One that is a tenant already stays as it is.
    """
    settings = load_settings()
    with opened_ledger(settings) as ledger:
        policy = ledger.tenants.policy()
        if tenant in policy:
            _require_place(policy[tenant], parent)
            _print_place(tenant, policy[tenant].parent, "is already", as_json=as_json)
            return
        look = look_at_slurm(settings)
        place = place_in_slurm(policy, tenant, look.accounts) if parent is None else parent
        ledger.tenants.change(TenantUpdate(tenant, parent=place), author_name(), reason)
    if parent is not None:
        _warn_of_another_place(policy, tenant, place, look, settings.cluster.name)
    _print_place(tenant, place, "is now", as_json=as_json)
    if not as_json:
        console().print(f"It needs a quota: slicewise tenant-quota set {tenant} --nominal SLICES")


@tenant_app.command(
    "move",
    epilog="Examples: slicewise tenant move speech --parent nlp"
    " | slicewise tenant move speech --parent ''",
)
def move_tenant(
    tenant: TenantName,
    parent: Annotated[
        str, typer.Option(help="The tenant above it, '' for none.", callback=typed_account)
    ],
    reason: Reason = "",
    as_json: Json = False,
) -> None:
    """Move a tenant below another one, with all below it.

    Its account stays where it is in Slurm, whose limits bind along Slurm's own tree.
    """
    settings = load_settings()
    with opened_ledger(settings) as ledger:
        policy = ledger.tenants.policy()
        if require_tenant(policy, tenant).parent == parent:
            _print_place(tenant, parent, "is already", as_json=as_json)
            return
        ledger.tenants.change(TenantUpdate(tenant, parent=parent), author_name(), reason)
    look = try_to_look_at_slurm(settings)
    _warn_of_another_place(policy, tenant, parent, look, settings.cluster.name)
    _print_place(tenant, parent, "is now", as_json=as_json)


def _require_place(tenant: Tenant, parent: str | None) -> None:
    """Raise InvalidInputError (SW-VALUE) if the tenant is elsewhere than below ``parent``."""
    if parent not in {None, tenant.parent}:
        raise InvalidInputError(
            Code.VALUE,
            f"--parent {parent!r}: {tenant.name} is a tenant already, {_below(tenant.parent)}.",
            f"Move it: slicewise tenant move {tenant.name} --parent {parent or repr('')}",
        )


def _print_place(tenant: str, parent: str, verb: str, *, as_json: bool) -> None:
    """Say where the tenant is, and by ``verb`` whether that is new."""
    if as_json:
        print_json({"tenant": tenant, "parent": parent, "changed": verb == "is now"})
    else:
        console().print(Text(f"{tenant} {verb} a tenant {_below(parent)}."))


def _below(parent: str) -> str:
    return f"below {parent}" if parent else "at the top"


def _warn_of_another_place(
    policy: Policy, tenant: str, place: str, look: SlurmLook | None, cluster: str
) -> None:
    """Warn if Slurm has the account elsewhere: limits bind along Slurm's own tree."""
    if look is None or (slurms := tenant_parent(tenant, look.accounts, policy)) == place:
        return
    typer.echo(place_warning(tenant, place, slurms, cluster), err=True)


@tenant_app.command("list", epilog="Examples: slicewise tenant list | slicewise tenant list --json")
def list_tenants(as_json: Json = False) -> None:
    """Show the tree: each tenant's quota, loans and limit, and what it holds now.

    Amounts are in slices and include what the tenants below hold. What is left of a budget is in
    slice-hours.
    """
    settings = load_settings()
    look = try_to_look_at_slurm(settings)
    with opened_ledger(settings) as ledger:
        ledger_view = ledger_view_now(ledger, settings)
    found = tenant_statuses(gathered(ledger_view, ledger_view.policy, look))
    if as_json:
        print_json([present.status_json(one) for one in found])
    else:
        console().print(
            present.tree_table(found).or_say(
                "No tenants. Take Slurm's accounts over: slicewise tenant import"
            )
        )
        _print_calendar(ledger_view.tenants, ledger_view.policy)


@tenant_app.command(
    "show",
    epilog="Examples: slicewise tenant show vision | slicewise tenant show vision --json",
)
def show_tenant(tenant: AnyTenant = None, as_json: Json = False) -> None:
    """Show everything about one tenant: quota, use also by type, loans, budget, last change.

    Without a name it shows the tree, as tenant list does.
    """
    if tenant is None:
        list_tenants(as_json)
        return
    settings = load_settings()
    with opened_ledger(settings) as ledger:
        ledger_view = ledger_view_now(ledger, settings)
        found = details(ledger, ledger_view, ledger_view.policy, settings, tenant)
    if as_json:
        print_json(present.details_json(found))
    else:
        console().print(present.details_table(found))
        _print_calendar({tenant: ledger_view.tenants[tenant]}, ledger_view.policy)


def _print_calendar(policy: Policy, now: Policy) -> None:
    for note in present.calendar_notes(policy, now):
        console().print(Text(note))


@tenant_app.command(
    "delete",
    epilog="Examples: slicewise tenant delete vision --reason 'moved out'"
    " | slicewise tenant delete vision --yes --timeout 60",
)
def delete_tenant(
    tenant: TenantName,
    yes: Yes = False,
    reason: Reason = "",
    timeout_s: TimeoutS = None,
    as_json: Json = False,
) -> None:
    """Delete a tenant from the ledger's policy: its account may start nothing more.

    Its running jobs continue and are charged; those that wait in managed partitions never start.
    Its history, runs and balance stay in the ledger, and its account stays in Slurm.
    """
    settings = load_settings()
    with opened_ledger(settings) as ledger:
        update = TenantUpdate(tenant, removed=True)
        changed(ledger.tenants.policy(), update)
        left = present.left_text(
            sum(run.tenant == tenant for run in ledger.charges.open_reservations()),
            try_to_find_waiting(settings, tenant),
        )
        confirm(
            f"{tenant} may then start nothing more, and its quota and loans end. {left}Delete it?",
            yes=yes,
            as_json=as_json,
        )
        began_s = time.monotonic()
        change = ledger.tenants.change(update, author_name(), reason)
        took_s = wait_until_compiled(ledger, settings, change.change_id, began_s, timeout_s)
        running = sum(run.tenant == tenant for run in ledger.charges.open_reservations())
        force = force_text(ledger, settings, took_s)
    if as_json:
        print_json({"tenant": tenant, "running": running, "in_force": took_s is not None})
    else:
        console().print(Text(f"{tenant} is no longer a tenant, {force}."))
        if left:
            console().print(Text(left.rstrip()))
    require_in_force(took_s, timeout_s)


@tenant_app.command(
    "import",
    epilog="Examples: slicewise tenant import --dry-run | slicewise tenant import --reason 'start'",
)
def import_tenants(dry_run: DryRun = False, reason: Reason = "", as_json: Json = False) -> None:
    """Take over Slurm's account tree: add every account, move tenants that are elsewhere.

    It removes no tenant: those whose account is gone are only shown. New tenants may hold nothing
    until they get a quota. It can be repeated at any time. Exits 8 if an account can't be taken
    over; the others are.
    """
    settings = load_settings()
    look = look_at_slurm(settings)
    with opened_ledger(settings) as ledger:
        policy = ledger.tenants.policy()
        found = take_over(policy, look.accounts)
        if not dry_run:
            _take_over(ledger, found, reason)
    absent = (one for one in differences(policy, look.accounts) if one.kind == "absent")
    _show_import((*found, *map(TakeOver, absent)), dry_run=dry_run, as_json=as_json)


def _take_over(ledger: "Ledger", found: Sequence[TakeOver], reason: str) -> None:
    places = [one.difference for one in found if one.refusal is None]
    with counting("accounts", every=1) as counted:
        for place in counted(places):
            update = TenantUpdate(place.account, parent=place.slurm_parent)
            ledger.tenants.change(update, author_name(), reason)


def _show_import(rows: Sequence[TakeOver], *, dry_run: bool, as_json: bool) -> None:
    if as_json:
        print_json([asdict(row) for row in rows])
    else:
        console().print(
            present.differences_table(rows, "would be" if dry_run else "is").or_say(
                "Every account is a tenant, each below its parent."
            )
        )
    if refused := [row for row in rows if row.refusal is not None]:
        raise InvalidInputError(
            Code.TENANT_IMPORT,
            f"Accounts that can't be taken over: {len(refused)}; the others "
            + ("could be." if dry_run else "are."),
            "The table says why; fix that and import again.",
        )


@tenant_app.command(
    "check", epilog="Examples: slicewise tenant check | slicewise tenant check --json"
)
def check_tenants(as_json: Json = False) -> None:
    """Compare tenants with Slurm's accounts; exit 1 if an account is missing or elsewhere.

    Accounts that are no tenants are named, and are no fault: in mode enforce they start no job with
    GPUs.
    """
    settings = load_settings()
    look = look_at_slurm(settings)
    with opened_ledger(settings) as ledger:
        policy = ledger.tenants.policy()
    found = differences(policy, look.accounts)
    if as_json:
        print_json([asdict(one) for one in found])
    elif found:
        console().print(present.places_table(found))
    if not as_json and (others := sorted(look.accounts.keys() - policy.keys() - {ROOT_ACCOUNT})):
        found_new = (
            one for one in take_over(policy, look.accounts) if one.difference.kind == "new"
        )
        refused = [one.refusal for one in found_new if one.refusal is not None]
        console().print(Text(present.no_tenants_text(others, refused)))
    if found:
        raise InvalidInputError(
            Code.TENANT_ACCOUNTS,
            f"Tenants that are not where Slurm has their accounts: {len(found)}.",
            "Take Slurm's places: slicewise tenant import; or, for those without an account,"
            " sacctmgr add account NAME cluster=CLUSTER, or slicewise tenant delete.",
        )
    if not as_json:
        console().print("Every tenant has its account, and below the right one.")
