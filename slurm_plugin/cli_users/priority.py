"""``slicewise priority``: asks the daemon what a waiting job's priority is made of."""

from typing import Annotated

import typer

from cluster.rpc.client import DaemonClient
from cluster.rpc.read_messages import PriorityRequest
from cluster.runtime.console import console, print_json
from cluster.settings.file import load_settings
from slurm_plugin.cli_common.options import Json
from slurm_plugin.cli_views import priority as present

priority_app = typer.Typer(no_args_is_help=True, help="In which order waiting jobs start.")


@priority_app.callback()
def priority() -> None:
    """In which order waiting jobs start."""


@priority_app.command(
    epilog="Examples: slicewise priority explain 814 | slicewise priority explain 814_3 --json"
)
def explain(
    job: Annotated[
        str,
        typer.Argument(
            metavar="JOB",
            help="A waiting job: 814, or 814_3 for an array task.",
            show_default=False,
        ),
    ],
    as_json: Json = False,
) -> None:
    """Show what a waiting job's priority is made of, and when newer jobs can't go before it.

    The job's class, its tenant's share, its service's urgency and its wait make the site_factor.
    Slurm adds that to the factors of its own formula, as sprio shows them.
    """
    answer = DaemonClient(load_settings().daemon).call(PriorityRequest.of(job=job))
    if as_json:
        print_json(answer.model_dump(mode="json"))
    else:
        console().print(present.screen(answer))
