"""``slicewise service history``: the generations of a service, and what each has changed."""

import asyncio
from collections.abc import Sequence
from typing import Annotated

import typer

from slicewise.cluster.rpc.client import DaemonClient
from slicewise.cluster.rpc.messages import ViewRequest
from slicewise.cluster.rpc.read_messages import GenerationsRequest
from slicewise.cluster.runtime.console import (
    TO_THE_MINUTE,
    FittingTable,
    column,
    console,
    print_json,
    time_text,
    toned,
)
from slicewise.cluster.runtime.output_options import Json
from slicewise.cluster.settings.file import Settings
from slicewise.cluster.settings.read import load_settings
from slicewise.launcher.rules.services.apply_plan import KeyChange, generations_of
from slicewise.launcher.rules.services.history import PastGeneration, history, to_go_back_to
from slicewise.launcher.services.lookup import choose, complete_service

history_app = typer.Typer()

HistoryName = Annotated[
    str,
    typer.Argument(
        metavar="NAME",
        help="NAME of the service, which may have ended, or TENANT/NAME.",
        show_default=False,
        autocompletion=complete_service,
    ),
]


@history_app.command("history", epilog="Example: slicewise service history bert")
def service_history(name: HistoryName, as_json: Json = False) -> None:
    """Show the generations of a service, the newest first, and which keys each has changed.

    The last 100 of each tenant's service of that name, also of services that have ended. To
    go back: slicewise service rollback.
    """
    past = asyncio.run(_past(load_settings(), name))
    if as_json:
        print_json(past)
    else:
        console().print(_table(past))


async def earlier_generation(
    settings: Settings, name: str, array_job_id: int | None
) -> PastGeneration:
    """Return the generation that a rollback applies again; raises what ``to_go_back_to`` raises."""
    return to_go_back_to(await _past(settings, name), array_job_id)


async def _past(settings: Settings, name: str) -> tuple[PastGeneration, ...]:
    daemon = DaemonClient(settings.daemon)
    tenant, _, last = name.rpartition("/")
    request = GenerationsRequest.of(name=last, tenant=tenant or None)
    answer, view = await asyncio.gather(daemon.ask(request), daemon.ask(ViewRequest()))
    records = answer.generations
    names = (f"{record.tenant}/{record.name}" for record in records)
    chosen, _, service = choose(name, names).partition("/")
    return history(
        [record for record in records if record.tenant == chosen],
        generations_of(view.services, chosen, service),
    )


def _table(past: Sequence[PastGeneration]) -> FittingTable:
    return FittingTable(
        (
            column("array job", (generation.array_job_id for generation in past), right=True),
            column(
                "submitted",
                (time_text(generation.submitted_s, TO_THE_MINUTE) for generation in past),
            ),
            column("by", (generation.user for generation in past), rank=1),
            column(
                "state",
                (toned(generation.state) for generation in past),
            ),
            column("changes", (_changes(generation.changes) for generation in past), folds=True),
        )
    )


def _changes(changes: Sequence[KeyChange]) -> str:
    return "; ".join(
        f"{change.key}: {_value(change.before)} → {_value(change.after)}" for change in changes
    )


def _value(value: str | None) -> str:
    return "–" if value is None else value
