"""``slicewise rebalance``: one run of rebalancing, and what earlier runs did."""

from typing import Annotated

import typer

from slicewise.cluster.rpc.client import DaemonClient
from slicewise.cluster.rpc.journal_messages import RebalanceRequest
from slicewise.cluster.runtime.console import console, print_json
from slicewise.cluster.runtime.output_options import Json
from slicewise.cluster.settings.read import load_settings
from slicewise.slurm_plugin.cli.common.journals import newest_runs
from slicewise.slurm_plugin.cli.common.options import HistoryLines
from slicewise.slurm_plugin.cli.views import rebalances as present

rebalance_app = typer.Typer(
    help="Bring everything to what is wanted now: ledger, loans, limits, priorities, GPUs; "
    "for cron.\n\n"
    "One run looks once and takes its steps in order, beside a daemon or without one. Each is "
    "written down before it begins, with what it saw, did, and why. The next run repeats one that"
    " was killed. Exits 0 if all was done, 1 if something was not, 75 if another run is "
    "under way.",
    epilog="Examples: slicewise rebalance --dry-run | slicewise rebalance --quiet"
    " | slicewise rebalance history",
)

RunId = Annotated[int, typer.Argument(help="The id that slicewise rebalance history shows.")]
DryRun = Annotated[
    bool, typer.Option("--dry-run", help="Print what each step would do; write nothing.")
]
Quiet = Annotated[bool, typer.Option("--quiet", help="Print only what was not done, for cron.")]


@rebalance_app.callback(invoke_without_command=True)
def rebalance(
    context: typer.Context, dry_run: DryRun = False, quiet: Quiet = False, as_json: Json = False
) -> None:
    """Run once, unless a subcommand is named."""
    if context.invoked_subcommand is not None:
        return
    # Imported here: to read the journal takes a part of it.
    from slicewise.slurm_plugin.cli.commands import rebalance_run  # noqa: PLC0415

    rebalance_run.run_once(dry_run=dry_run, quiet=quiet, as_json=as_json)


@rebalance_app.command(
    "history", epilog="Examples: slicewise rebalance history | slicewise rebalance history --json"
)
def history(
    lines: HistoryLines = 20,
    as_json: Json = False,
) -> None:
    """List runs, newest first."""
    runs = newest_runs(DaemonClient(load_settings().daemon), lines)
    if as_json:
        print_json(runs)
    else:
        console().print(present.history_table(runs).or_say("There were no runs yet."))


@rebalance_app.command(
    "show", epilog="Examples: slicewise rebalance show 7 | slicewise rebalance show 7 --json"
)
def show(run_id: RunId, as_json: Json = False) -> None:
    """Show one run: what each step saw, did, and why."""
    run = DaemonClient(load_settings().daemon).call(RebalanceRequest.of(run_id=run_id)).run
    if as_json:
        print_json(run)
        return
    console().print(present.run_facts(run))
    present.print_steps(run.steps, most=None)
