"""``slicewise repartition``: run repartitions of GPUs or plan them, and show earlier ones."""

from typing import Annotated

import typer

from slicewise.cluster.rpc.client import DaemonClient
from slicewise.cluster.rpc.journal_messages import RepartitionRequest
from slicewise.cluster.runtime.console import console, print_json
from slicewise.cluster.runtime.output_options import Json
from slicewise.cluster.settings.read import load_settings
from slicewise.slurm_plugin.cli.common.journals import newest_repartitions
from slicewise.slurm_plugin.cli.common.options import HistoryLines, authored
from slicewise.slurm_plugin.cli.views import repartitions as present
from slicewise.slurm_plugin.common.repartition_requests import RepartitionCloseRequest

repartition_app = typer.Typer(
    no_args_is_help=True,
    help="Give GPUs other MIG instances, so that waiting jobs find what they ask for.",
    epilog="Examples: slicewise repartition survey | slicewise repartition run --dry-run",
)

RepartitionId = Annotated[
    int, typer.Argument(help="The id that slicewise repartition history shows.")
]
DryRun = Annotated[bool, typer.Option("--dry-run", help="Print what would be done; do nothing.")]


@repartition_app.command(
    "run", epilog="Examples: slicewise repartition run | slicewise repartition run --dry-run"
)
def run_repartitions(dry_run: DryRun = False, as_json: Json = False) -> None:
    """Repartition GPUs, one after the other; for cron, as root.

    Which GPUs, and for which demand, follows from waiting jobs, expected demand, and the last look
    at each node (slicewise repartition survey). A site that lets Slicewise repartition nothing
    (repartition.allowed) can carry out what --dry-run shows manually.

    Those that an earlier run left unfinished come first. Each step is recorded before it begins:
    if a run is killed, the next one continues it. A step that fails is undone. Exits 1 if a
    repartition was rolled back or is stuck. It works without the daemon.
    """
    # Imported here: to read the journal takes a part of it.
    from slicewise.slurm_plugin.cli.commands import repartition_run  # noqa: PLC0415

    repartition_run.run(dry_run=dry_run, as_json=as_json)


@repartition_app.command(
    "history",
    epilog="Examples: slicewise repartition history | slicewise repartition history --lines 100",
)
def history(
    lines: HistoryLines = 20,
    as_json: Json = False,
) -> None:
    """List repartitions, newest first."""
    repartitions = newest_repartitions(DaemonClient(load_settings().daemon), lines)
    if as_json:
        print_json(repartitions)
    else:
        console().print(present.history_table(repartitions).or_say("No GPU was repartitioned yet."))


@repartition_app.command(
    "show", epilog="Examples: slicewise repartition show 7 | slicewise repartition show 7 --json"
)
def show(repartition_id: RepartitionId, as_json: Json = False) -> None:
    """Show one repartition with its steps and how long each took."""
    request = RepartitionRequest.of(repartition_id=repartition_id)
    repartition = DaemonClient(load_settings().daemon).call(request).repartition
    if as_json:
        print_json(repartition)
        return
    console().print(present.repartition_facts(repartition))
    console().print(present.steps_table(repartition.steps))


@repartition_app.command("close", epilog="Example: slicewise repartition close 7")
def close(repartition_id: RepartitionId, as_json: Json = False) -> None:
    """Close a stuck repartition: later runs leave it alone.

    Use it for a GPU or node that is gone, or that you have repaired manually. Only the journal is
    changed: resume the node yourself.
    """
    request = RepartitionCloseRequest.of(repartition_id=repartition_id, **authored(""))
    repartition = DaemonClient(load_settings().daemon).call(request).repartition
    if as_json:
        print_json(repartition)
    else:
        node = repartition.node
        console().print(f"Closed. Let jobs in: scontrol update NodeName={node} State=RESUME")


@repartition_app.command(
    "survey",
    epilog="Examples: slicewise repartition survey | slicewise repartition survey gpu07 gpu08",
)
def look(
    nodes: Annotated[
        list[str] | None,
        typer.Argument(help="Nodes to look at; all with GPUs if left out.", show_default=False),
    ] = None,
    as_json: Json = False,
) -> None:
    """Look up and show how each node's GPUs are cut now, through short jobs of root; for cron.

    Memory slices in brackets form an instance; a dot is a free memory slice. The answers are kept
    for repartition run. Exits 8 if some nodes could not be looked at, 1 if none could. It works
    without the daemon.
    """
    from slicewise.slurm_plugin.cli.commands import repartition_run  # noqa: PLC0415 -- as above

    repartition_run.look(nodes or (), as_json=as_json)
