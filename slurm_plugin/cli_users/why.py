"""``slicewise why``: asks the daemon about a job or a tenant."""

from typing import Annotated

import typer

from cluster.rpc.client import DaemonClient
from cluster.rpc.read_messages import WhyRequest
from cluster.runtime.console import console, print_json
from cluster.settings.file import load_settings
from slurm_plugin.cli_views import why as present

why_app = typer.Typer()


@why_app.command(
    epilog="Examples: slicewise why 814 | slicewise why 814_3 | slicewise why vision --json"
)
def why(
    about: Annotated[
        str,
        typer.Argument(
            metavar="JOB|TENANT",
            help="A job (814), an array task (814_3), or a Slurm account.",
            show_default=False,
        ),
    ],
    as_json: Annotated[bool, typer.Option("--json", help="Print JSON.")] = False,
) -> None:
    """Say why a job waits, or how a tenant stands.

    It shows Slurm's reason in words, which jobs hold what it waits for, and when the job starts.
    Users see their own jobs and tenants, on every host that can reach the daemon.
    """
    answer = DaemonClient(load_settings().daemon).call(WhyRequest.of(about=about))
    if as_json:
        print_json(answer.model_dump(mode="json"))
    else:
        console().print(present.screen(answer))
