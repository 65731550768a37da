"""``slicewise tenant-quota``: what tenants may hold at one time, by plan, on loan, and by hour."""

import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Annotated

import typer
from rich.text import Text

from slicewise.cluster.language.codes import Code
from slicewise.cluster.language.errors import InvalidInputError
from slicewise.cluster.language.units import (
    Millislices,
    millislices_from_text,
    slices_text,
    slices_words,
)
from slicewise.cluster.runtime.console import console, print_json
from slicewise.cluster.runtime.output_options import Json
from slicewise.cluster.settings.file import Settings
from slicewise.cluster.settings.read import load_settings
from slicewise.slurm_plugin.cli.commands.calendar import calendar_app
from slicewise.slurm_plugin.cli.commands.quota import plan_and_loans_app
from slicewise.slurm_plugin.cli.common.in_force import force_text
from slicewise.slurm_plugin.cli.common.options import (
    BorrowingLimit,
    LendingLimit,
    Overcommit,
    Reason,
    TenantName,
    TimeoutS,
    author_name,
    opened_ledger,
    require_in_force,
    wait_until_compiled,
)
from slicewise.slurm_plugin.cli.common.slurm_look import (
    SlurmLook,
    look_at_slurm,
    try_to_look_at_slurm,
)
from slicewise.slurm_plugin.cli.views import tenants as present
from slicewise.slurm_plugin.rules.common.known_names import names_text
from slicewise.slurm_plugin.rules.common.uninstalled import require_installed
from slicewise.slurm_plugin.rules.quota.accounts import place_in_slurm
from slicewise.slurm_plugin.rules.quota.amounts import (
    limit_from_text,
    limits_from_texts,
    type_nominals_from_texts,
)
from slicewise.slurm_plugin.rules.quota.tenants import (
    changed,
    newly_overcommitted_types,
    overcommitted_millislices,
    overcommitted_types,
)
from slicewise.slurm_plugin.rules.quota.types import Policy, Quota, QuotaChange, TenantUpdate
from slicewise.slurm_plugin.rules.quota.words import types_beyond_text

if TYPE_CHECKING:
    from slicewise.slurm_plugin.ledger.store import Ledger


tenant_quota_app = typer.Typer(
    help="Who may hold how many slices: quotas, plans, loans, the calendar.",
    no_args_is_help=True,
    epilog="Examples: slicewise tenant-quota set vision --nominal 6"
    " | slicewise tenant-quota apply quotas.toml --dry-run | slicewise tenant-quota loans"
    " | slicewise tenant-quota calendar list",
)
tenant_quota_app.add_typer(plan_and_loans_app)
tenant_quota_app.add_typer(calendar_app, name="calendar")


_TypeNominals = Annotated[
    list[str] | None,
    typer.Option(
        metavar="TYPE=COUNT",
        help="Instances of a type that the nominal guarantees at most; more run on loan."
        " TYPE=none: as many as its slices pay for. May be given several times.",
        show_default=False,
    ),
]
_Limits = Annotated[
    list[str] | None,
    typer.Option(
        metavar="NAME=LIMIT",
        help="TYPE=COUNT, MODEL=SLICES or NAME=none; may be given several times.",
        show_default=False,
    ),
]


@tenant_quota_app.command(
    "set",
    epilog="Examples: slicewise tenant-quota set vision --nominal 6"
    " | slicewise tenant-quota set vision --nominal 6 --timeout 60"
    " | slicewise tenant-quota set nlp --borrowing-limit unlimited --weight 2"
    " | slicewise tenant-quota set nlp --limit 3g.40gb=2 --limit H200-141GB=none --reason 'paper'"
    " | slicewise tenant-quota set nlp --nominal 12 --type-nominal 1g.10gb=5",
)
def set_quota(
    tenant: TenantName,
    *,
    nominal: Annotated[
        str | None,
        typer.Option(
            metavar="SLICES", help="Slices at one time, such as 6 or 3.5; a GPU of weight 1 has 7."
        ),
    ] = None,
    borrowing_limit: BorrowingLimit = None,
    lending_limit: LendingLimit = None,
    weight: Annotated[
        int | None, typer.Option(help="Its share of idle slices, relative to other borrowers.")
    ] = None,
    type_nominal: _TypeNominals = None,
    limit: _Limits = None,
    overcommit: Overcommit = False,
    reason: Reason = "",
    timeout_s: TimeoutS = None,
    as_json: Json = False,
) -> None:
    """Set what a tenant may hold at one time; options left out keep their values.

    The change is recorded immediately; the daemon writes it into Slurm's limits within moments.
    A lower quota stops new starts and may recall loans; jobs on the tenant's guaranteed quota run
    on. An account that is not a tenant yet becomes one, below the nearest tenant above it in Slurm.
    Values that hold already are not recorded again.
    After slicewise uninstall the command is refused, because no limit would follow.
    """
    update = TenantUpdate(
        tenant,
        nominal_millislices=_read(millislices_from_text, nominal, "--nominal"),
        borrowing_limit_millislices=_read(limit_from_text, borrowing_limit, "--borrowing-limit"),
        lending_limit_millislices=_read(limit_from_text, lending_limit, "--lending-limit"),
        weight=weight,
    )
    if update == TenantUpdate(tenant) and not limit and not type_nominal:
        raise typer.BadParameter("Give what to set: --nominal, --limit or another option.")
    settings = load_settings()
    with opened_ledger(settings) as ledger:
        policy = ledger.tenants.policy()
        require_installed(ledger.limits.is_uninstalled())
        if tenant in policy:
            look = try_to_look_at_slurm(settings)
        else:
            look = look_at_slurm(settings)
            update = replace(update, parent=place_in_slurm(policy, tenant, look.accounts))
        require_installed(look is not None and look.is_uninstalled)
        if limit or type_nominal:
            update = _by_type(update, policy, settings, limit or (), type_nominal or ())
        if look is not None and not overcommit:
            check_capacity(
                policy, changed(policy, update), look.capacity_millislices, look.instances
            )
        began_s = time.monotonic()
        change = _changed(ledger, policy, update, reason)
        took_s = wait_until_compiled(ledger, settings, change.change_id, began_s, timeout_s)
        force = force_text(ledger, settings, took_s)
    outcome = present.QuotaOutcome(
        policy.get(tenant), changed(policy, update)[tenant], change, took_s, force
    )
    _print_outcome(outcome, as_json=as_json)
    if look is not None:
        _warn_of_overcommitment(changed(policy, update), look)
    require_in_force(took_s, timeout_s)


def _changed(ledger: "Ledger", policy: Policy, update: TenantUpdate, reason: str) -> QuotaChange:
    """Record the change, and return it; of a tenant that has all this, the newest one."""
    if policy == changed(policy, update):
        return ledger.tenants.history(update.tenant)[0]
    return ledger.tenants.change(update, author_name(), reason)


def _print_outcome(outcome: present.QuotaOutcome, *, as_json: bool) -> None:
    if as_json:
        print_json(present.outcome_json(outcome))
    else:
        console().print(Text(present.outcome_text(outcome)))


def _read(
    reader: Callable[[str, str], Millislices], text: str | None, key: str
) -> Millislices | None:
    return None if text is None else reader(text, key)


def _by_type(
    update: TenantUpdate,
    policy: Policy,
    settings: Settings,
    limits: Sequence[str],
    nominals: Sequence[str],
) -> TenantUpdate:
    """Return the update with all limits of types and models, or all guarantees by type.

    Of what is set of one of both, unchanged ones are included.
    """
    quota = policy[update.tenant].quota if update.tenant in policy else Quota(Millislices(0))
    if limits:
        found = limits_from_texts(limits, quota, settings.costs, settings.gpus)
        update = replace(update, type_limits=found.types, model_limits=found.models)
    if nominals:
        types = type_nominals_from_texts(nominals, quota, settings.costs)
        update = replace(update, type_nominals=types)
    return update


def check_capacity(
    before: Policy, after: Policy, capacity_millislices: int, instances: Mapping[str, int]
) -> None:
    """Refuse a policy that exceeds the cluster by more than the one before, in slices or of a type.

    One wrong number would let tenants' jobs contend. ``instances`` are by GRES type. Raises
    InvalidInputError (SW-QUOTA-CAPACITY).
    """
    above = overcommitted_millislices(after, capacity_millislices)
    if above > overcommitted_millislices(before, capacity_millislices):
        raise InvalidInputError(
            Code.QUOTA_CAPACITY,
            f"The quotas at the top would be {slices_words(above)} above the cluster's"
            f" {slices_text(capacity_millislices)}: jobs within their guarantee may wait for each"
            " other.",
            "Give less, or say --overcommit.",
        )
    if types := newly_overcommitted_types(before, after, instances):
        raise InvalidInputError(
            Code.QUOTA_CAPACITY,
            f"Quotas would guarantee {types_beyond_text(types, instances)}: jobs within their"
            " guarantee may wait for each other.",
            "Guarantee fewer, have GPUs cut into more of them, or say --overcommit.",
        )


def _warn_of_overcommitment(policy: Policy, look: SlurmLook) -> None:
    if above := overcommitted_millislices(policy, look.capacity_millislices):
        typer.echo(
            f"Overcommitted: the quotas at the top are {slices_words(above)} above the cluster's"
            f" {slices_text(look.capacity_millislices)}; jobs within their guarantee may wait for"
            " each other.",
            err=True,
        )
    if types := overcommitted_types(policy, look.instances):
        typer.echo(
            f"Overcommitted: quotas guarantee {types_beyond_text(types, look.instances)}; jobs"
            " within their guarantee may wait for each other.",
            err=True,
        )


@tenant_quota_app.command(
    "history",
    epilog="Examples: slicewise tenant-quota history vision"
    " | slicewise tenant-quota history vision --json",
)
def quota_history(tenant: TenantName, as_json: Json = False) -> None:
    """Show every change ever made to a tenant, newest first, with time, author and reason."""
    with opened_ledger(load_settings()) as ledger:
        changes = ledger.tenants.history(tenant)
        if not changes:
            raise _no_quota(ledger, tenant)
    if as_json:
        print_json([present.change_json(change) for change in changes])
    else:
        console().print(present.history_table(changes))


def _no_quota(ledger: "Ledger", tenant: str) -> InvalidInputError:
    known = names_text(tenant, ledger.tenants.policy())
    return InvalidInputError(
        Code.QUOTA_NONE,
        f"Tenant {tenant!r} has no quota.",
        f"Tenants with one: {known}. Set it: slicewise tenant-quota set NAME --nominal N",
    )
