"""``slicewise tenant-quota``: what tenants may hold at one time, by plan, on loan, and by hour."""

import time
from collections.abc import Callable
from typing import Annotated

import typer
from rich.text import Text

from slicewise.cluster.language.units import Millislices, millislices_from_text
from slicewise.cluster.rpc.client import DaemonClient
from slicewise.cluster.runtime.console import console, print_json
from slicewise.cluster.runtime.output_options import Json
from slicewise.cluster.settings.read import load_settings
from slicewise.slurm_plugin.cli.commands.calendar import calendar_app
from slicewise.slurm_plugin.cli.commands.quota import plan_and_loans_app
from slicewise.slurm_plugin.cli.common.in_force import until_in_force
from slicewise.slurm_plugin.cli.common.options import (
    BorrowingLimit,
    LendingLimit,
    Overcommit,
    Reason,
    TenantName,
    TimeoutS,
    authored,
    require_in_force,
)
from slicewise.slurm_plugin.cli.views import tenants as present
from slicewise.slurm_plugin.common.tenant_requests import QuotaSetRequest, TenantHistoryRequest
from slicewise.slurm_plugin.rules.quota.amounts import limit_from_text, require_readable

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
    values = {
        "nominal_millislices": _read(millislices_from_text, nominal, "--nominal"),
        "borrowing_limit_millislices": _read(limit_from_text, borrowing_limit, "--borrowing-limit"),
        "lending_limit_millislices": _read(limit_from_text, lending_limit, "--lending-limit"),
        "weight": weight,
    }
    if set(values.values()) == {None} and not limit and not type_nominal:
        raise typer.BadParameter("Give what to set: --nominal, --limit or another option.")
    settings = load_settings()
    require_readable(limit or (), type_nominal or (), settings.costs, settings.gpus)
    request = QuotaSetRequest.of(
        tenant=tenant,
        limits=limit or (),
        type_nominals=type_nominal or (),
        overcommit=overcommit,
        **authored(reason),
        **values,
    )
    daemon, began_s = DaemonClient(settings.daemon), time.monotonic()
    answer = daemon.call(request)
    change_id = answer.change.change_id
    took_s, force = until_in_force(daemon, change_id, began_s, timeout_s)
    outcome = present.QuotaOutcome(answer.before, answer.after, answer.change, took_s, force)
    if as_json:
        print_json(outcome)
    else:
        console().print(Text(present.outcome_text(outcome)))
    for warning in answer.warnings:
        typer.echo(warning, err=True)
    require_in_force(took_s, timeout_s)


def _read(reader: Callable[[str, str], Millislices], text: str | None, key: str) -> int | None:
    return None if text is None else reader(text, key)


@tenant_quota_app.command(
    "history",
    epilog="Examples: slicewise tenant-quota history vision"
    " | slicewise tenant-quota history vision --json",
)
def quota_history(tenant: TenantName, as_json: Json = False) -> None:
    """Show every change ever made to a tenant, newest first, with time, author and reason."""
    request = TenantHistoryRequest.of(tenant=tenant)
    changes = DaemonClient(load_settings().daemon).call(request).changes
    if as_json:
        print_json(changes)
    else:
        console().print(present.history_table(changes))
