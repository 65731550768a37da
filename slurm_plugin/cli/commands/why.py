"""``slicewise why``: why a job waits, how a tenant stands, and the numbers behind both."""

from typing import Annotated

import typer

from slicewise.cluster.rpc.own_tenant import complete_tenant, own_tenant, typed_account
from slicewise.cluster.runtime.console import console, print_json
from slicewise.cluster.runtime.output_options import Json
from slicewise.cluster.settings.read import load_settings

why_app = typer.Typer()


@why_app.command(
    epilog="Examples: slicewise why 814 | slicewise why 814_3 --priority | slicewise why bert"
    " | slicewise why vision --limits | slicewise why --json"
)
def why(
    about: Annotated[
        str | None,
        typer.Argument(
            metavar="JOB|SERVICE|TENANT",
            help="A job (814), an array task (814_3), a service (bert, vision/bert), or a Slurm"
            " account; your tenant if left out.",
            show_default=False,
            autocompletion=complete_tenant,
            callback=typed_account,
        ),
    ] = None,
    *,
    limits: Annotated[
        bool,
        typer.Option(
            "--limits",
            help="Of a tenant: what it may still start of each GPU type, and what allows no more.",
        ),
    ] = False,
    priority: Annotated[
        bool,
        typer.Option(
            "--priority",
            help="Of a waiting job: what its priority is made of, and when newer jobs can't go"
            " before it.",
        ),
    ] = False,
    as_json: Json = False,
) -> None:
    """Say why a job waits, or how a service or a tenant stands.

    It shows Slurm's reason in words, which jobs hold what it waits for, and when the job starts. Of
    a service it is about the job array of its newest generation. Users see their own jobs and
    tenants, on every host that can reach the daemon.

    With --limits, "guaranteed" counts instances in the tenant's own QOS, "borrowed" further ones in
    slicewise_TENANT_borrowed. A budget allows as many as could run on it for an hour. In
    parentheses is the reason that squeue shows for a job that waits for the limit.

    With --priority, the job's class, its tenant's share, its service's urgency and its wait make
    the site_factor. Slurm adds that to the factors of its own formula, as sprio shows them.
    """
    if limits and priority:
        raise typer.BadParameter("Choose --limits of a tenant, or --priority of a job.")
    if priority and about is None:
        raise typer.BadParameter("--priority is of a job: name it.")
    if priority and about is not None:
        _show_priority(about, as_json=as_json)
    elif limits:
        _show_limits(own_tenant(about), as_json=as_json)
    else:
        _show_reason(own_tenant(about), as_json=as_json)


# Each imports what it alone needs.


def _show_reason(about: str, *, as_json: bool) -> None:
    from slicewise.cluster.rpc.client import DaemonClient  # noqa: PLC0415
    from slicewise.cluster.rpc.read_messages import WhyRequest  # noqa: PLC0415
    from slicewise.slurm_plugin.cli.views import why as present  # noqa: PLC0415

    answer = DaemonClient(load_settings().daemon).call(WhyRequest.of(about=about))
    if as_json:
        print_json(answer)
    else:
        console().print(present.screen(answer))


def _show_limits(tenant: str, *, as_json: bool) -> None:
    from slicewise.cluster.rpc.client import DaemonClient  # noqa: PLC0415
    from slicewise.slurm_plugin.cli.views import headroom as present  # noqa: PLC0415
    from slicewise.slurm_plugin.common.explain_requests import HeadroomRequest  # noqa: PLC0415

    answer = DaemonClient(load_settings().daemon).call(HeadroomRequest.of(tenant=tenant))
    if as_json:
        print_json(answer.headroom)
    else:
        console().print(present.explanation(answer.headroom))


def _show_priority(job: str, *, as_json: bool) -> None:
    from slicewise.cluster.rpc.client import DaemonClient  # noqa: PLC0415
    from slicewise.cluster.rpc.read_messages import PriorityRequest  # noqa: PLC0415
    from slicewise.slurm_plugin.cli.views import priority as present  # noqa: PLC0415

    answer = DaemonClient(load_settings().daemon).call(PriorityRequest.of(job=job))
    if as_json:
        print_json(answer)
    else:
        console().print(present.screen(answer))
