"""Commands of ``slicewise service`` that show what a service does now: list, status, logs."""

import asyncio
import json
import time
from collections.abc import Iterable, Sequence
from typing import Annotated

import typer
from rich.live import Live

from cluster.runtime.console import console, print_json
from cluster.settings.file import Settings, load_settings
from launcher.cli import show_services
from launcher.services.logs import Line, chosen_slots, last_lines, new_lines, offsets_now
from launcher.services.lookup import Json, Name, choose, find
from launcher.services.overview import ServiceObservation, observe

_WATCH_S = 0.5
_FOLLOW_S = 0.25

view_app = typer.Typer()


@view_app.command("list", epilog="Example: slicewise service list --json")
def list_services(as_json: Json = False) -> None:
    """Show every service that you may see.

    Works on other hosts, too, where daemon.connect names the daemon; there requests are shown as
    the launcher last reported them.
    """
    services = asyncio.run(observe(load_settings()))
    if as_json:
        print_json([show_services.as_json(service) for service in services])
    elif services:
        console().print(show_services.services_overview(services))
    else:
        console().print("No services. Start one: slicewise service apply FILE.toml")


@view_app.command(
    "status",
    epilog="Examples: slicewise service status bert | slicewise service status bert --watch",
)
def service_status(
    name: Name,
    watch: Annotated[bool, typer.Option("--watch", help="Update until Ctrl-C.")] = False,
    as_json: Json = False,
) -> None:
    """Show a service's replicas, requests and quota now, and why wanted replicas do not run.

    Works on other hosts, too, where daemon.connect names the daemon; there requests are shown as
    the launcher last reported them.
    """
    settings = load_settings()
    service = _find(name, asyncio.run(observe(settings)))
    if as_json:
        print_json(show_services.as_json(service))
    elif watch:
        _watch(settings, service)
    else:
        console().print(show_services.service_details(service))


def _find(name: str, services: Sequence[ServiceObservation]) -> ServiceObservation:
    chosen = choose(name, (one.service for one in services))
    return next(one for one in services if one.service == chosen)


def _watch(settings: Settings, service: ServiceObservation) -> None:
    with Live(
        show_services.service_details(service), console=console(), auto_refresh=False
    ) as live:
        while True:
            try:
                time.sleep(_WATCH_S)
                service = _find(service.service, asyncio.run(observe(settings)))
            except KeyboardInterrupt:
                return
            live.update(show_services.service_details(service), refresh=True)


@view_app.command(
    "logs",
    epilog="Examples: slicewise service logs bert"
    " | slicewise service logs bert --slot 2 --lines 100"
    " | slicewise service logs bert -f",
)
def service_logs(
    name: Name,
    slot: Annotated[
        int | None, typer.Option(help="Show only this slot's log.", show_default=False)
    ] = None,
    follow: Annotated[
        bool, typer.Option("--follow", "-f", help="Show new lines, too, until Ctrl-C.")
    ] = False,
    lines: Annotated[
        int, typer.Option("--lines", "-n", min=0, help="Lines to show of each log.")
    ] = 20,
    as_json: Json = False,
) -> None:
    """Show what the replicas of the newest generation have written: batch script and Triton.

    Shows the logs of slots that are under way, else the log written last; --follow continues with
    all. The files are read as your user, who must be able to read them. With --json, one object per
    line.
    """
    view = asyncio.run(find(load_settings(), name))[0]
    shown = chosen_slots(view, slot)
    found, read = last_lines(view, shown, lines)
    _print_lines(found, as_json=as_json)
    if slot is None:
        read = {**offsets_now(view, range(len(view.slots))), **read}
    while follow:
        try:
            time.sleep(_FOLLOW_S)
        except KeyboardInterrupt:
            return
        found, read = new_lines(view, read)
        _print_lines(found, as_json=as_json)


def _print_lines(lines: Iterable[Line], *, as_json: bool) -> None:
    for line in lines:
        if as_json:
            typer.echo(json.dumps({"slot": line.slot, "line": line.text}))
        else:
            typer.echo(f"{line.slot} | {line.text}")
