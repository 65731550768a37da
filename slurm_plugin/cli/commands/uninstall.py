"""``slicewise uninstall``: takes Slicewise out of Slurm, without a daemon."""

from typing import Annotated

import typer

from slicewise.cluster.runtime.output_options import Json
from slicewise.slurm_plugin.cli.commands.compile import DryRun


def uninstall_command(
    dry_run: DryRun = False,
    yes: Annotated[bool, typer.Option("--yes", help="Do not ask for confirmation.")] = False,
    finishing: Annotated[
        bool,
        typer.Option("--finish", help="Remove what had to stay, where no job uses it any more."),
    ] = False,
    as_json: Json = False,
) -> None:
    """Put all of Slurm's limits back to what they were before Slicewise, and remove its QOS.

    Stop the daemon first. No part of Slicewise sets limits again before slicewise compile --again,
    whatever still runs. Jobs continue; jobs that wait on borrowed quota are moved to their tenant's
    own QOS if they can ever start there. A QOS stays while jobs are in it; --finish removes it
    later, and so does the daemon or slicewise rebalance when it runs. --finish exits 75 while
    something remains. The command works without daemon and PostgreSQL, by what is recorded in
    Slurm. The ledger keeps its data. After a crash, run it again.
    """
    # Imported here: not for --help.
    from slicewise.slurm_plugin.cli.commands import uninstall_run  # noqa: PLC0415

    uninstall_run.run(dry_run=dry_run, yes=yes, finishing=finishing, as_json=as_json)
