"""``slicewise tenant-quota``: what tenants may hold at one time, by plan, on loan, and by hour."""

import inspect
import time
from collections.abc import Callable
from typing import Annotated, Any

import typer
from rich.text import Text

from slicewise.cluster.rpc.client import DaemonClient
from slicewise.cluster.runtime.console import console, print_json
from slicewise.cluster.runtime.output_options import Json
from slicewise.cluster.settings.read import load_settings
from slicewise.slurm_plugin.cli.commands.calendar import calendar_app
from slicewise.slurm_plugin.cli.commands.quota import plan_and_loans_app
from slicewise.slurm_plugin.cli.common.in_force import until_in_force
from slicewise.slurm_plugin.cli.common.options import (
    Overcommit,
    Reason,
    TenantName,
    TimeoutS,
    authored,
    require_in_force,
)
from slicewise.slurm_plugin.cli.views import tenants as present
from slicewise.slurm_plugin.common.tenant_requests import QuotaSetRequest, TenantHistoryRequest
from slicewise.slurm_plugin.rules.quota.attributes import SETTINGS, require_readable

tenant_quota_app = typer.Typer(
    help="Who may hold how many slices: quotas, plans, loans, the calendar.",
    no_args_is_help=True,
    epilog="Examples: slicewise tenant-quota set vision --nominal 6"
    " | slicewise tenant-quota apply quotas.toml --dry-run | slicewise tenant-quota loans"
    " | slicewise tenant-quota calendar list",
)
tenant_quota_app.add_typer(plan_and_loans_app)
tenant_quota_app.add_typer(calendar_app, name="calendar")


def _with_settings(command: Callable[..., None]) -> Callable[..., None]:
    """Give a command an option for each setting of a quota; it takes them by key."""
    own = inspect.signature(command).parameters.values()
    options = [
        inspect.Parameter(
            setting.key,
            inspect.Parameter.KEYWORD_ONLY,
            default=None,
            annotation=Annotated[
                list[str] | None if setting.is_table else str | None,
                typer.Option(
                    setting.option, metavar=setting.metavar, help=setting.help, show_default=False
                ),
            ],
        )
        for setting in SETTINGS
    ]
    first, *others = (one for one in own if one.kind is not inspect.Parameter.VAR_KEYWORD)
    command.__dict__["__signature__"] = inspect.Signature([first, *options, *others])
    command.__annotations__ |= {option.name: option.annotation for option in options}
    return command


@tenant_quota_app.command(
    "set",
    epilog="Examples: slicewise tenant-quota set vision --nominal 6"
    " | slicewise tenant-quota set vision --nominal 6 --timeout 60"
    " | slicewise tenant-quota set nlp --borrowing-limit unlimited --weight 2"
    " | slicewise tenant-quota set nlp --limit 3g.40gb=2 --limit H200-141GB=none --reason 'paper'"
    " | slicewise tenant-quota set nlp --nominal 12 --type-nominal 1g.10gb=5",
)
@_with_settings
def set_quota(
    tenant: TenantName,
    *,
    overcommit: Overcommit = False,
    reason: Reason = "",
    timeout_s: TimeoutS = None,
    as_json: Json = False,
    **quota: Any,
) -> None:
    """Set what a tenant may hold at one time; options left out keep their values.

    The change is recorded immediately; the daemon writes it into Slurm's limits within moments.
    A lower quota stops new starts and may recall loans; jobs on the tenant's guaranteed quota run
    on. An account that is not a tenant yet becomes one, below the nearest tenant above it in Slurm.
    Values that hold already are not recorded again.
    After slicewise uninstall the command is refused, because no limit would follow.
    """
    words = {key: given for key, given in quota.items() if given not in (None, [])}
    if not words:
        raise typer.BadParameter("Give what to set: --nominal, --limit or another option.")
    settings = load_settings()
    require_readable(words, settings)
    request = QuotaSetRequest.of(
        tenant=tenant, quota=words, overcommit=overcommit, **authored(reason)
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
