"""``slicewise tenant-quota apply|propose|loans``: changes of quotas and their effect; loans."""

from pathlib import Path
from typing import Annotated

import typer

from slicewise.cluster.language.errors import SlicewiseError
from slicewise.cluster.language.units import millislices_from_text
from slicewise.cluster.rpc.client import DaemonClient
from slicewise.cluster.runtime.output_options import Json, Watch, show
from slicewise.cluster.settings.read import load_settings
from slicewise.slurm_plugin.cli.common.answer_pages import pages
from slicewise.slurm_plugin.cli.common.options import (
    AnyTenant,
    Overcommit,
    Reason,
    TimeoutS,
)
from slicewise.slurm_plugin.cli.views import quota_plan as present
from slicewise.slurm_plugin.common.record_requests import PolicyRequest, RememberedLimitsRequest
from slicewise.slurm_plugin.common.tenant_requests import LoansAnswer, LoansRequest

plan_and_loans_app = typer.Typer()


@plan_and_loans_app.command(
    "apply",
    epilog="Examples: slicewise tenant-quota apply --example > quotas.toml"
    " | slicewise tenant-quota apply quotas.toml --dry-run"
    " | slicewise tenant-quota apply quotas.toml --reason 'new GPUs'",
)
def apply_quotas(
    file: Annotated[
        Path | None, typer.Argument(help="A TOML file like that of --example.", show_default=False)
    ] = None,
    *,
    example: Annotated[
        bool, typer.Option("--example", help="Print an example of such a file.")
    ] = False,
    dry_run: Annotated[
        bool, typer.Option("--dry-run", help="Show what the file would do; change nothing.")
    ] = False,
    overcommit: Overcommit = False,
    reason: Reason = "",
    timeout_s: TimeoutS = None,
    as_json: Json = False,
) -> None:
    """Set quotas by a file, all of it or nothing; say which tenants and jobs that hurts.

    Limits and loans are computed for the jobs that run and wait now; Slurm's limits are in
    millislices, as in compile --dry-run. A change of quotas never ends a job that runs on its
    tenant's guaranteed quota.
    """
    if example:
        typer.echo(_example(), nl=False)
        return
    if file is None:
        raise typer.BadParameter("Name a file, or say --example.")
    # Imported here: planning takes three times as long to import as the rest, for this command.
    from slicewise.slurm_plugin.cli.commands import quota_plan  # noqa: PLC0415

    quota_plan.apply(
        file,
        dry_run=dry_run,
        overcommit=overcommit,
        reason=reason,
        timeout_s=timeout_s,
        as_json=as_json,
    )


@plan_and_loans_app.command(
    "propose",
    epilog="Examples: slicewise tenant-quota propose sacctmgr.cfg > quotas.toml"
    " | slicewise tenant-quota propose allocations.json --gpu 7 > quotas.toml",
)
def propose_quotas(
    file: Annotated[
        Path,
        typer.Argument(
            help="What sacctmgr dump, coldfront slurm_dump or ColdFront's REST API have written; -"
            " for standard input.",
        ),
    ],
    gpu: Annotated[
        str | None,
        typer.Option(
            metavar="SLICES",
            help="Slices that a GPU without a type stands for; by default those of the dearest"
            " type.",
        ),
    ] = None,
) -> None:
    """Print a file for tenant-quota apply: a quota for each account that other tools limit.

    Nothing is changed. An account may hold what its GrpTRES says of GPUs; where the accounts below
    one may hold more than that one, each is guaranteed its share and may borrow the rest.
    GrpTRESMins becomes a budget without periods. Tenants that have all this get no table.
    """
    # Imported here: only this command needs it.
    from slicewise.slurm_plugin.cli.commands.quota_propose import (  # noqa: PLC0415
        proposal_text,
        read_accounts,
        set_by_others,
    )

    settings = load_settings()
    whole = None if gpu is None else millislices_from_text(gpu, "--gpu")
    accounts = read_accounts(file)
    daemon = DaemonClient(settings.daemon)
    others = set_by_others(accounts, dict(daemon.call(RememberedLimitsRequest()).known))
    policy = daemon.call(PolicyRequest()).policy
    typer.echo(proposal_text(others, policy, settings, whole), nl=False)


def _example() -> str:
    """Return an example for this site; where it can't be asked, one for any."""
    from slicewise.slurm_plugin.rules.quota.quota_file import example  # noqa: PLC0415 -- only for this

    try:
        settings = load_settings()
        tenants = DaemonClient(settings.daemon).call(PolicyRequest()).policy
        return example(sorted(tenants), sorted(settings.costs))
    except SlicewiseError:
        return example((), ())


@plan_and_loans_app.command(
    "loans",
    epilog="Examples: slicewise tenant-quota loans | slicewise tenant-quota loans vision --all"
    " | slicewise tenant-quota loans --json",
)
def show_loans(
    tenant: AnyTenant = None,
    *,
    with_past: Annotated[
        bool, typer.Option("--all", help="Show every loan that the tenant gave or took.")
    ] = False,
    watch: Watch = False,
    as_json: Json = False,
) -> None:
    """Show every loan: lender, borrower, since when, and until when it is promised.

    A job that starts on a loan is left alone for term_s (slicewise.toml), so a loan is promised
    until term_s after it last grew. Neither lender nor borrower can start jobs on a part that is
    recalled; it is back by the time shown, or sooner.
    """
    if with_past and tenant is None:
        raise typer.BadParameter("--all needs one tenant: name it.")
    daemon = DaemonClient(load_settings().daemon)

    def look() -> LoansAnswer:
        request = LoansRequest.of(tenant=tenant, past=with_past)
        answers = tuple(
            pages(lambda before: daemon.call(request.model_copy(update={"before": before})))
        )
        changes = tuple(change for answer in answers for change in answer.changes)
        return answers[0].model_copy(update={"changes": changes})

    if with_past:
        show(
            look,
            lambda answer: present.loan_history_table(answer.changes).or_say(
                f"{tenant} has never lent or borrowed anything."
            ),
            watch=watch,
            as_json=as_json,
            as_values=lambda answer: answer.changes,
        )
        return
    show(
        look,
        lambda answer: present.loans_table(answer.lines).or_say("Nothing is lent."),
        watch=watch,
        as_json=as_json,
        as_values=lambda answer: answer.lines,
    )
