"""Commands of ``slicewise service`` that show what a service does now: list, status, url, logs."""

import asyncio
import re
import sys
import time
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import chain
from typing import Annotated, Any

import typer
from rich.live import Live

from slicewise.cluster.rpc.messages import ServiceView
from slicewise.cluster.runtime.console import console, plain, print_json, print_json_line
from slicewise.cluster.runtime.output_options import Json, Watch, show
from slicewise.cluster.runtime.time_options import local_time
from slicewise.cluster.settings.file import Settings
from slicewise.cluster.settings.read import load_settings
from slicewise.launcher.cli import show_services
from slicewise.launcher.services.logs import (
    Chosen,
    Line,
    chosen_slots,
    followed_generation,
    last_lines,
    log_file,
    new_lines,
    offsets_now,
)
from slicewise.launcher.services.lookup import Name, choose, find
from slicewise.launcher.services.overview import ServiceObservation, observe, service_url
from slicewise.launcher.services.pool_view import pool_of

_WATCH_S = 0.5
_FOLLOW_S = 0.25
_ENDS_IN = re.compile(r"^ends in [0-9]+ s")

view_app = typer.Typer()


@dataclass(frozen=True)
class Address:
    """A service, as ``tenant/name``, and its address."""

    service: str
    url: str


@view_app.command(
    "list", epilog="Examples: slicewise service list --watch | slicewise service list -o yaml"
)
def list_services(watch: Watch = False, as_json: Json = False) -> None:
    """Show every service that you may see.

    Works on other hosts, too, where daemon.connect names the daemon; there requests are shown as
    the launcher last reported them.
    """
    settings = load_settings()
    show(
        lambda: asyncio.run(observe(settings)),
        show_services.services_overview,
        watch=watch,
        as_json=as_json,
    )


@view_app.command(
    "url", epilog="Examples: slicewise service url bert | slicewise service url vision/bert --json"
)
def print_url(name: Name, as_json: Json = False) -> None:
    """Print a service's address, which stays the same whatever its replicas do."""
    settings = load_settings()
    newest = asyncio.run(find(settings, name))[0]
    url = service_url(settings.gateway.url, newest.tenant, newest.name)
    if as_json:
        print_json(Address(f"{newest.tenant}/{newest.name}", url))
    else:
        typer.echo(url)


@view_app.command(
    "status",
    epilog="Examples: slicewise service status bert | slicewise service status bert --watch"
    " | slicewise service status bert --watch --json",
)
def service_status(
    name: Name,
    watch: Annotated[bool, typer.Option("--watch", help="Update until Ctrl-C.")] = False,
    as_json: Json = False,
) -> None:
    """Show a service's replicas, requests and quota now, and why wanted replicas do not run.

    Works on other hosts, too, where daemon.connect names the daemon; there requests are shown as
    the launcher last reported them.

    With --watch and --json, each change is one object on a line of its own (NDJSON). Ages, time
    left, rates, quality and what is left of a budget are no change: they tick.
    """
    settings = load_settings()
    service = _find(name, asyncio.run(observe(settings)))
    if watch and as_json:
        _watch_as_lines(settings, service)
    elif as_json:
        print_json(service)
    elif watch:
        _watch(settings, service)
    else:
        console().print(show_services.service_details(service))


def _find(name: str, services: Sequence[ServiceObservation]) -> ServiceObservation:
    chosen = choose(name, (service.service for service in services))
    service = next(service for service in services if service.service == chosen)
    return replace(service, pool=pool_of(service, services))


def _watch(settings: Settings, service: ServiceObservation) -> None:
    if not sys.stdout.isatty():
        for change in _changes(settings, service):
            console().print(show_services.service_details(change))
        return
    with Live(
        show_services.service_details(service), console=console(), auto_refresh=False
    ) as live:
        for details in _watched(settings, service):
            live.update(show_services.service_details(details), refresh=True)


def _watch_as_lines(settings: Settings, service: ServiceObservation) -> None:
    """Print a line of JSON now, and one whenever more has changed than what ticks."""
    for change in _changes(settings, service):
        print_json_line(change)


def _changes(settings: Settings, service: ServiceObservation) -> Iterator[ServiceObservation]:
    """Yield the service now, and whenever more has changed than what ticks."""
    shown: object = None
    for observation in chain((service,), _watched(settings, service)):
        if (lasting := _without_ticks(plain(observation))) != shown:
            yield observation
            shown = lasting


def _without_ticks(status: Mapping[str, Any]) -> object:
    """Return the status for a comparison, without what changes by time or with each request."""
    replicas = [
        {
            **replica,
            "age_s": None,
            "lease_left_s": None,
            "why": _ENDS_IN.sub("ends", replica["why"]),
        }
        for replica in status["replicas"]
    ]
    report, quota = status["report"] or {}, status["quota"] or {}
    return {
        **status,
        "report": {**report, "rate_per_s": None, "quality": None, "warm_days": None},
        "quota": {**quota, "budget": None},
        "replicas": replicas,
    }


def _watched(settings: Settings, service: ServiceObservation) -> Iterator[ServiceObservation]:
    """Yield the service as it is seen again and again, until Ctrl-C."""
    while True:
        try:
            time.sleep(_WATCH_S)
            yield _find(service.service, asyncio.run(observe(settings)))
        except KeyboardInterrupt:
            return


@view_app.command(
    "logs",
    epilog="Examples: slicewise service logs bert"
    " | slicewise service logs bert --slot 2 --lines 100"
    " | slicewise service logs bert --since 15m"
    " | slicewise service logs bert --slot 2 --previous"
    " | slicewise service logs bert -f",
)
def service_logs(
    name: Name,
    *,
    slot: Annotated[
        int | None, typer.Option(help="Show only this slot's log.", show_default=False)
    ] = None,
    follow: Annotated[
        bool, typer.Option("--follow", "-f", help="Show new lines, too, until Ctrl-C.")
    ] = False,
    lines: Annotated[
        int | None,
        typer.Option(
            "--lines",
            "-n",
            min=0,
            help="Most lines to show of each log; 20, or with --since or --previous all, if left"
            " out.",
            show_default=False,
        ),
    ] = None,
    since: Annotated[
        str | None,
        typer.Option(
            metavar="TIME",
            help="Show only what was written since: 15m, 2h or 1d ago, today, or 2026-01-31T18:30.",
            show_default=False,
        ),
    ] = None,
    previous: Annotated[
        bool, typer.Option("--previous", "-p", help="Show the run before each slot's last one.")
    ] = False,
    as_json: Json = False,
) -> None:
    """Show what the replicas of the newest generation have written: batch script and server.

    Shows the logs of slots that are under way, else the log written last; --follow continues with
    all. The files are read as your user, who must be able to read them; at most 8 MiB of each
    slot. With --json, one object per line.
    """
    if follow and previous:
        raise typer.BadParameter("--previous shows a run that has ended: leave out --follow.")
    since_s = None if since is None else local_time(since).timestamp()
    if lines is None and since_s is None and not previous:
        lines = 20
    view = followed_generation(asyncio.run(find(load_settings(), name)))
    shown = chosen_slots(view, slot)
    lines_read, read = last_lines(view, shown, Chosen(lines, since_s, previous))
    _print_lines(lines_read, as_json=as_json)
    if not lines_read and not follow:
        typer.echo(_nothing(view, shown, since), err=True)
    if slot is None:
        read = {**offsets_now(view, range(len(view.slots))), **read}
    while follow:
        try:
            time.sleep(_FOLLOW_S)
        except KeyboardInterrupt:
            return
        lines_read, read = new_lines(view, read)
        _print_lines(lines_read, as_json=as_json)


def _nothing(view: ServiceView, slots: Iterable[int], since: str | None) -> str:
    asked = "" if since is None else f" since {since}"
    return f"Nothing was written{asked}: {', '.join(str(log_file(view, slot)) for slot in slots)}"


def _print_lines(lines: Iterable[Line], *, as_json: bool) -> None:
    for line in lines:
        if as_json:
            print_json_line(line)
        else:
            typer.echo(f"{line.slot} | {line.line}")
