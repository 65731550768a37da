"""``slicewise tenant``: tenants, their tree, and how the tree follows Slurm's accounts."""

import time
from collections.abc import Sequence
from typing import Annotated, TypeVar

import typer
from rich.console import Group
from rich.text import Text

from slicewise.cluster.language.codes import Code
from slicewise.cluster.language.errors import InvalidInputError
from slicewise.cluster.rpc.client import DaemonClient
from slicewise.cluster.rpc.own_tenant import typed_account
from slicewise.cluster.runtime.console import console, print_json
from slicewise.cluster.runtime.output_options import Json, Watch, show
from slicewise.cluster.runtime.questions import confirm
from slicewise.cluster.settings.read import load_settings
from slicewise.slurm_plugin.cli.common.in_force import until_in_force
from slicewise.slurm_plugin.cli.common.options import (
    AnyTenant,
    Reason,
    TenantName,
    TimeoutS,
    Yes,
    authored,
    require_in_force,
)
from slicewise.slurm_plugin.cli.views import tenants as present
from slicewise.slurm_plugin.common.tenant_requests import (
    AccountsRequest,
    TenantCreateRequest,
    TenantDeleteRequest,
    TenantDetailsAnswer,
    TenantDetailsRequest,
    TenantImportRequest,
    TenantMoveRequest,
    TenantPlaceAnswer,
    TenantRemainsRequest,
    TenantStatusesAnswer,
    TenantStatusesRequest,
)
from slicewise.slurm_plugin.rules.quota.accounts import TakeOver, below_text

AnswerWithoutSlurm = TypeVar("AnswerWithoutSlurm", TenantStatusesAnswer, TenantDetailsAnswer)

tenant_app = typer.Typer(
    no_args_is_help=True,
    help="Tenants: Slurm accounts that are charged.",
    epilog="Examples: slicewise tenant import | slicewise tenant list",
)

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
    request = TenantCreateRequest.of(tenant=tenant, parent=parent, **authored(reason))
    answer = _daemon().call(request)
    _print_place(tenant, answer, as_json=as_json)
    if answer.is_changed and not as_json:
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
    request = TenantMoveRequest.of(tenant=tenant, parent=parent, **authored(reason))
    _print_place(tenant, _daemon().call(request), as_json=as_json)


def _print_place(tenant: str, answer: TenantPlaceAnswer, *, as_json: bool) -> None:
    """Say where the tenant is, and whether that is new."""
    if answer.warning:
        typer.echo(answer.warning, err=True)
    if as_json:
        print_json(answer)
    else:
        verb = "is now" if answer.is_changed else "is already"
        console().print(Text(f"{tenant} {verb} a tenant {below_text(answer.parent)}."))


def _daemon() -> DaemonClient:
    return DaemonClient(load_settings().daemon)


@tenant_app.command(
    "list", epilog="Examples: slicewise tenant list | slicewise tenant list --watch"
)
def list_tenants(watch: Watch = False, as_json: Json = False) -> None:
    """Show the tree: each tenant's quota, loans and limit, and what it holds now.

    Amounts are in slices and include what the tenants below hold. What is left of a budget is in
    slice-hours.
    """
    daemon = _daemon()
    show(
        lambda: _told(daemon.call(TenantStatusesRequest())),
        lambda answer: Group(
            present.tree_table(answer.statuses).or_say(
                "No tenants. Take Slurm's accounts over: slicewise tenant import"
            ),
            *map(Text, answer.calendar_notes),
        ),
        watch=watch,
        as_json=as_json,
        as_values=lambda answer: answer.statuses,
    )


@tenant_app.command(
    "show",
    epilog="Examples: slicewise tenant show vision | slicewise tenant show vision --json",
)
def show_tenant(tenant: AnyTenant = None, as_json: Json = False) -> None:
    """Show everything about one tenant: quota, use also by type, loans, budget, last change.

    Without a name it shows the tree, as tenant list does.
    """
    if tenant is None:
        list_tenants(as_json=as_json)
        return
    answer = _told(_daemon().call(TenantDetailsRequest.of(tenant=tenant)))
    if as_json:
        print_json(answer.details)
    else:
        console().print(present.details_table(answer.details))
        for note in answer.calendar_notes:
            console().print(Text(note))


def _told(answer: AnswerWithoutSlurm) -> AnswerWithoutSlurm:
    """Return the answer, and say on stderr why Slurm could not be asked."""
    if answer.without_slurm:
        typer.echo(answer.without_slurm, err=True)
    return answer


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
    daemon = _daemon()
    remains = daemon.call(TenantRemainsRequest.of(tenant=tenant))
    left = present.left_text(remains.running, remains.waiting)
    confirm(
        f"{tenant} may then start nothing more, and its quota and loans end. {left}Delete it?",
        yes=yes,
        as_json=as_json,
    )
    began_s = time.monotonic()
    request = TenantDeleteRequest.of(tenant=tenant, **authored(reason))
    answer = daemon.call(request)
    took_s, force = until_in_force(daemon, answer.change.change_id, began_s, timeout_s)
    if as_json:
        in_force = took_s is not None
        print_json(present.DeletedTenant(tenant, answer.running, in_force))
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
    daemon = _daemon()
    request = TenantImportRequest.of(is_dry=dry_run, **authored(reason))
    # Asked first: what fails after the import would say that there was none.
    differences = daemon.call(AccountsRequest()).differences
    absent = (difference for difference in differences if difference.kind == "absent")
    rows = daemon.call(request).rows
    _show_import((*rows, *map(TakeOver, absent)), dry_run=dry_run, as_json=as_json)


def _show_import(rows: Sequence[TakeOver], *, dry_run: bool, as_json: bool) -> None:
    if as_json:
        print_json(rows)
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
    answer = _daemon().call(AccountsRequest())
    found = answer.differences
    if as_json:
        print_json(found)
    elif found:
        console().print(present.places_table(found))
    if not as_json and answer.others:
        console().print(Text(present.no_tenants_text(answer.others, answer.refusals)))
    if found:
        raise InvalidInputError(
            Code.TENANT_ACCOUNTS,
            f"Tenants that are not where Slurm has their accounts: {len(found)}.",
            "Take Slurm's places: slicewise tenant import; or, for those without an account,"
            " sacctmgr add account NAME cluster=CLUSTER, or slicewise tenant delete.",
        )
    if not as_json:
        console().print("Every tenant has its account, and below the right one.")
