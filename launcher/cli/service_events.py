"""``slicewise service events``: what happened to a service's replicas."""

from collections.abc import Sequence

import typer

from slicewise.cluster.rpc.client import DaemonClient
from slicewise.cluster.rpc.read_messages import ServiceEvent, ServiceEventsRequest
from slicewise.cluster.runtime.console import (
    FittingTable,
    column,
    console,
    print_json,
    time_text,
    toned,
)
from slicewise.cluster.runtime.output_options import Json
from slicewise.cluster.settings.read import load_settings
from slicewise.launcher.cli.service_history import HistoryName
from slicewise.launcher.services.lookup import choose

events_app = typer.Typer()


@events_app.command("events", epilog="Example: slicewise service events bert")
def service_events(name: HistoryName, as_json: Json = False) -> None:
    """Show what happened to the replicas of a service: started, ready, told to end and for whom,
    drains, ended, failed and how.

    The last 100 events since the daemon began, the newest last. Older ones: slicewise service
    logs, and sacct --duplicates -j ARRAY.
    """
    tenant, _, last = name.rpartition("/")
    request = ServiceEventsRequest.of(name=last, tenant=tenant or None)
    services = DaemonClient(load_settings().daemon).call(request).services
    events_by_service = {f"{service.tenant}/{service.name}": service.events for service in services}
    events = events_by_service[choose(name, events_by_service)]
    if as_json:
        print_json(events)
    else:
        console().print(_table(events))


def _table(events: Sequence[ServiceEvent]) -> FittingTable:
    return FittingTable(
        (
            column("time", (time_text(event.at_s) for event in events)),
            column("replica", (f"{event.array_job_id}_{event.slot}" for event in events)),
            column("node", (event.node or "" for event in events), rank=1),
            column("what", (toned(event.what) for event in events)),
            column("why", (event.why or "" for event in events), folds=True),
        )
    )
