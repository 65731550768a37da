"""Commands of ``slicewise service`` that change a running service: scale, restart, delete."""

import asyncio
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass
from typing import Annotated

import typer
from rich.text import Text

from slicewise.cluster.language.codes import Code
from slicewise.cluster.language.errors import InvalidInputError, OutsideError, SlicewiseError
from slicewise.cluster.language.service import MAX_SLOTS, whole_number
from slicewise.cluster.language.units import counted
from slicewise.cluster.rpc.client import DaemonClient
from slicewise.cluster.rpc.messages import DeleteRequest, ServiceView, ViewRequest
from slicewise.cluster.rpc.order_messages import OrderRequest
from slicewise.cluster.runtime.console import console, print_json
from slicewise.cluster.runtime.output_options import Json
from slicewise.cluster.settings.read import load_settings
from slicewise.launcher.cli.service_wait import Timeout
from slicewise.launcher.rules.services.apply_plan import generations_of
from slicewise.launcher.services.lookup import Name, find

_POLL_S = 0.5
_UNDER_WAY = frozenset({"released", "starting", "running", "ending"})

order_app = typer.Typer()


@dataclass(frozen=True)
class OrderedService:
    """The service and the array job of its newest generation."""

    service: str
    array_job_id: int


@dataclass(frozen=True)
class Scaled(OrderedService):
    """The bounds after ``service scale``."""

    min_replicas: int
    max_replicas: int


@dataclass(frozen=True)
class Restarted(OrderedService):
    """How many replicas will be replaced."""

    replicas: int


@dataclass(frozen=True)
class Deleted(OrderedService):
    """Whether the service has ended."""

    ended: bool


@order_app.command(
    "scale",
    epilog="Examples: slicewise service scale bert --min 2 --max 6"
    " | slicewise service scale bert --min 1"
    " | slicewise service scale bert --reset",
)
def scale_service(
    name: Name,
    least: Annotated[
        int | None, typer.Option("--min", min=0, max=MAX_SLOTS, help="Replicas kept even if idle.")
    ] = None,
    most: Annotated[
        int | None, typer.Option("--max", min=1, max=MAX_SLOTS, help="Maximum number of replicas.")
    ] = None,
    reset: Annotated[
        bool, typer.Option("--reset", help="Return to the bounds of the file.")
    ] = False,
    as_json: Json = False,
) -> None:
    """Change how many replicas a service may have, without a new generation.

    A bound that is not given stays as it is. Bounds hold until --reset, for later generations too.
    The slots of the array are the limit: for more, apply a file with a larger max_replicas.
    """
    settings = load_settings()
    if reset == (least is not None or most is not None):
        raise InvalidInputError(
            Code.VALUE,
            "No new bounds were given.",
            "Give either --min or --max, or --reset.",
        )
    newest = asyncio.run(find(settings, name))[0]
    bounds = (None, None) if reset else _bounds(newest, least, most)
    order = OrderRequest(
        array_job_id=newest.array_job_id,
        what="scale",
        min_replicas=bounds[0],
        max_replicas=bounds[1],
    )
    daemon = DaemonClient(settings.daemon)
    daemon.call(order)
    after = _scripted(newest) if reset else bounds
    if as_json:
        print_json(Scaled(*_which(newest), *after))
    else:
        _say(newest, f"{after[0]} to {after[1]} replicas")
    if after[0] and (payer := _used_up(daemon, newest.tenant)):
        typer.echo(
            f"The budget of {payer} is used up: no replica starts before it has more."
            f" See: slicewise budget show {newest.tenant}",
            err=True,
        )


def _used_up(daemon: DaemonClient, tenant: str) -> str:
    """Return whose budget, of those that pay for the tenant, is used up; "" if none is known."""
    with suppress(SlicewiseError):
        for seen in daemon.call(ViewRequest()).tenants:
            budget = seen.budget if seen.name == tenant else None
            if budget is not None and budget.run_millislice_min <= 0:
                return budget.payer
    return ""


def _scripted(view: ServiceView) -> tuple[int, int]:
    return whole_number(view.directives, "min_replicas", 0), len(view.slots)


def _bounds(view: ServiceView, least: int | None, most: int | None) -> tuple[int, int]:
    """Return both bounds, from what was given and what holds now.

    Raises InvalidInputError (SW-VALUE).
    """
    scripted, order = _scripted(view), view.order
    now_least = scripted[0] if order.min_replicas is None else order.min_replicas
    now_most = scripted[1] if order.max_replicas is None else order.max_replicas
    wanted = (now_least if least is None else least, now_most if most is None else most)
    if wanted[0] > wanted[1]:
        raise InvalidInputError(
            Code.VALUE,
            f"--min {wanted[0]} is above --max {wanted[1]}; nothing was changed.",
            "Give both bounds.",
        )
    if wanted[1] > len(view.slots):
        raise InvalidInputError(
            Code.VALUE,
            f"--max {wanted[1]}: its array has {len(view.slots)} slots; nothing was changed.",
            "Apply its file with a larger max_replicas: the service rolls over.",
        )
    return wanted


def _which(view: ServiceView) -> tuple[str, int]:
    return f"{view.tenant}/{view.name}", view.array_job_id


def _say(view: ServiceView, what: str) -> None:
    console().print(Text(f"{view.tenant}/{view.name}: {what}"))


@order_app.command("restart", epilog="Example: slicewise service restart bert")
def restart_service(name: Name, as_json: Json = False) -> None:
    """Replace every replica that runs now, one by one; no request is lost.

    Use it when the content of a model repository has changed, or when a replica misbehaves. To see
    progress: slicewise service status NAME --watch
    """
    settings = load_settings()
    newest = asyncio.run(find(settings, name))[0]
    order = OrderRequest(array_job_id=newest.array_job_id, what="restart")
    DaemonClient(settings.daemon).call(order)
    replicas = _under_way((newest,))
    if as_json:
        print_json(Restarted(*_which(newest), replicas))
    else:
        _say(newest, f"{counted(replicas, 'replica')} will be replaced")


@order_app.command(
    "delete",
    epilog="Examples: slicewise service delete bert | slicewise service delete bert --now",
)
def delete_service(
    name: Name,
    now: Annotated[
        bool,
        typer.Option("--now", help="Cut off requests in flight and cancel the job immediately."),
    ] = False,
    timeout_s: Timeout = 120.0,
    as_json: Json = False,
) -> None:
    """End a service: its address refuses new requests, those in flight finish, it leaves Slurm.

    Exit code 7 if it has not ended within --timeout; it still ends by itself later.
    """
    settings = load_settings()
    daemon = DaemonClient(settings.daemon)
    generations = asyncio.run(find(settings, name))
    newest = generations[0]
    if now:
        _cancel(daemon, generations)
    else:
        daemon.call(OrderRequest(array_job_id=newest.array_job_id, what="end"))
    ended = asyncio.run(_wait_until_gone(daemon, newest, timeout_s))
    if as_json:
        print_json(Deleted(*_which(newest), ended))
    elif ended:
        _say(newest, "has ended")
    if not ended:
        raise OutsideError(
            Code.TIMEOUT,
            f"{newest.tenant}/{newest.name} has not ended after {timeout_s:g} s; it still ends by "
            "itself.",
            "To cut off requests in flight: --now",
        )


def _cancel(daemon: DaemonClient, generations: Sequence[ServiceView]) -> None:
    # The oldest generation is deleted first, so that none of them starts again in between.
    for view in reversed(generations):
        daemon.call(DeleteRequest(array_job_id=view.array_job_id))


async def _wait_until_gone(daemon: DaemonClient, service: ServiceView, timeout_s: float) -> bool:
    """Return whether no generation of the service was left in time; show progress on stderr."""
    clock = asyncio.get_running_loop()
    until_s = clock.time() + timeout_s
    told = ""
    while True:
        view = await daemon.ask(ViewRequest())
        living = generations_of(view.services, service.tenant, service.name)
        if view.complete and not living:
            return True
        replicas = _under_way(living)
        progress = f"waiting for {counted(replicas, 'replica')} to finish"
        if replicas and progress != told:
            typer.echo(progress, err=True)
            told = progress
        if clock.time() >= until_s:
            return False
        await asyncio.sleep(_POLL_S)


def _under_way(views: Sequence[ServiceView]) -> int:
    return sum(slot.state in _UNDER_WAY for view in views for slot in view.slots)
