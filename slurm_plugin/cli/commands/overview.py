"""``slicewise overview``: how the cluster stands, and what needs attention."""

import typer

from slicewise.cluster.language.exit_codes import ExitCode
from slicewise.cluster.language.findings import exit_code_by
from slicewise.cluster.rpc.client import DaemonClient
from slicewise.cluster.rpc.overview_messages import OverviewRequest
from slicewise.cluster.runtime.console import console, print_json
from slicewise.cluster.runtime.output_options import Json
from slicewise.cluster.runtime.wall_clock import wall_s
from slicewise.cluster.settings.read import load_settings

overview_app = typer.Typer()


@overview_app.command(epilog="Examples: slicewise overview | slicewise overview --json")
def overview(as_json: Json = False) -> None:
    """Show the cluster on one screen, and what needs attention with the command that mends it.

    Slices by state, tenants, services, GPUs with their MIG instances to scale, jobs that wait, and
    the running month's money and kilowatt-hours by tenant, as of the last ten minutes.
    A terminal shows as many rows of each as it has room for; a pipe gets them all. Users see their
    own tenants in full and the others as sums. The daemon answers from memory, also while Slurm or
    the ledger is down.

    Exits 1 if something is an error, 9 if there are warnings only, and 0 otherwise.
    """
    answer = DaemonClient(load_settings().daemon).call(OverviewRequest())
    if as_json:
        print_json(answer)
    else:
        # Imported here: rich's tables take longer to import than the rest of what --json does.
        from slicewise.slurm_plugin.cli.views.overview import Screen  # noqa: PLC0415

        console().print(Screen(answer, wall_s()))
    if (code := exit_code_by(item.severity for item in answer.attention)) is not ExitCode.DONE:
        raise typer.Exit(code)
