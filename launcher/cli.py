"""Commands: services for their tenants; the gateway for operators."""

import asyncio
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Annotated

import typer
from rich.live import Live
from rich.text import Text

from cluster.console import console, print_json
from cluster.daemon_client import DaemonClient
from cluster.errors import InvalidInputError
from cluster.settings import Settings, load_settings
from cluster.slurm.submit import submit
from launcher import haproxy, show
from launcher.address import wait_for_route
from launcher.observe import ServiceObservation, observe, service_url
from launcher.render import CONFIGURATION, gateway_files, service_script
from launcher.service_file import read_service_file, require_model, require_writable

_WATCH_S = 0.5
_EXAMPLE = """\
# bert.toml
[service]
name = "bert"
tenant = "vision"                   # a Slurm account with a quota
model_repository = "/models/bert"   # Triton's layout: /models/bert/bert/config.pbtxt
model = "bert"
profile = "1g.10gb"
max_replicas = 8
concurrency = 2
keep_alive_s = 60
"""

service_app = typer.Typer(
    help="Inference services that follow their requests.", no_args_is_help=True
)
gateway_app = typer.Typer(help="The gateway in front of all services.", no_args_is_help=True)

File = Annotated[Path, typer.Argument(help="A service's TOML file.", show_default=False)]
Name = Annotated[
    str, typer.Argument(help="NAME, or TENANT/NAME where that is ambiguous.", show_default=False)
]
Json = Annotated[bool, typer.Option("--json", help="Print JSON.")]


@service_app.command(
    "apply",
    epilog="Examples: slicewise service apply bert.toml"
    " | slicewise service apply bert.toml --dry-run",
)
def apply_service(
    file: File,
    dry_run: Annotated[bool, typer.Option(help="Check everything, submit nothing.")] = False,
    skip_model_check: Annotated[
        bool, typer.Option(help="Only the nodes see the model repository.")
    ] = False,
    as_json: Json = False,
) -> None:
    """Check a service and submit it as a held job array; its replicas start with its requests.

    The file, the model repository, and what Slurm will be told are checked first; nothing is
    submitted if anything is wrong. Then it waits until the address answers, for 5 s at most.
    """
    settings = load_settings()
    spec = read_service_file(file)
    if not skip_model_check:
        require_model(spec)
    require_writable(Path.cwd())
    script = service_script(spec, settings.triton)
    asyncio.run(_daemon(settings).check(spec.tenant, spec.directives()))
    url = service_url(settings.gateway.url, spec.tenant, spec.name)
    submitted = None if dry_run else submit(script)
    job_id = submitted.job_id if submitted is not None else None
    trouble = "" if dry_run else asyncio.run(wait_for_route(url))
    if as_json:
        print_json({"array_job_id": job_id, "url": url})
    else:
        out = console()
        for message in submitted.messages if submitted is not None else ():
            out.print(Text(message))
        done = f"is array job {job_id}" if job_id is not None else "would be accepted"
        out.print(Text(f"{spec.tenant}/{spec.name} {done}; its address: {url}"))
    if trouble:
        typer.echo(f"The address can't be used yet: {trouble}", err=True)


@service_app.command("render", epilog="Example: slicewise service render bert.toml > bert.sbatch")
def render_service(file: File) -> None:
    """Print the batch script that apply would submit; plain sbatch of it does the same."""
    typer.echo(service_script(read_service_file(file), load_settings().triton), nl=False)


@service_app.command("list", epilog="Example: slicewise service list --json")
def list_services(as_json: Json = False) -> None:
    """Every service that you may see.

    Works on other hosts, too, where daemon.connect names the daemon; requests are not shown there.
    """
    services = asyncio.run(observe(load_settings()))
    if as_json:
        print_json([show.as_json(service) for service in services])
    elif services:
        console().print(show.services_overview(services))
    else:
        console().print("No services. Start one: slicewise service apply FILE.toml")


@service_app.command(
    "status",
    epilog="Examples: slicewise service status bert | slicewise service status bert --watch",
)
def service_status(
    name: Name,
    watch: Annotated[bool, typer.Option(help="Go on until Ctrl-C.")] = False,
    as_json: Json = False,
) -> None:
    """Replicas, requests and quota of a service now.

    Works on other hosts, too, where daemon.connect names the daemon; requests are not shown there.
    """
    settings = load_settings()
    service = _find(name, asyncio.run(observe(settings)))
    if as_json:
        print_json(show.as_json(service))
    elif watch:
        _watch(settings, name, service)
    else:
        console().print(show.service_details(service))


def _watch(settings: Settings, name: str, service: ServiceObservation) -> None:
    with Live(show.service_details(service), console=console(), auto_refresh=False) as live:
        while True:
            try:
                time.sleep(_WATCH_S)
                service = _find(name, asyncio.run(observe(settings)))
            except KeyboardInterrupt:
                return
            live.update(show.service_details(service), refresh=True)


@service_app.command("delete", epilog="Example: slicewise service delete bert")
def delete_service(name: Name, as_json: Json = False) -> None:
    """Cancel a service: its array leaves Slurm, its address answers 404.

    Requests in flight are cut off, waiting ones are refused.
    """
    settings = load_settings()
    views = asyncio.run(_daemon(settings).view()).services
    keys = {view.array_job_id: f"{view.tenant}/{view.name}" for view in views}
    array_job_id = _choose(name, keys)
    asyncio.run(_daemon(settings).delete(array_job_id))
    if as_json:
        print_json({"array_job_id": array_job_id, "service": keys[array_job_id]})
    else:
        console().print(Text(f"{keys[array_job_id]}: array job {array_job_id} is cancelled"))


@service_app.command("schema", epilog="Example: slicewise service schema --example > bert.toml")
def service_schema(
    example: Annotated[bool, typer.Option(help="Print an example file instead.")] = False,
    as_json: Json = False,
) -> None:
    """The keys of a service file and what they mean."""
    if example:
        typer.echo(_EXAMPLE, nl=False)
    elif as_json:
        print_json(show.schema_rows())
    else:
        console().print(show.schema_table())


def _daemon(settings: Settings) -> DaemonClient:
    return DaemonClient(settings.daemon)


def _find(name: str, services: Sequence[ServiceObservation]) -> ServiceObservation:
    chosen = _choose(name, {s.array_job_id: s.service for s in services})
    return next(service for service in services if service.array_job_id == chosen)


def _choose(name: str, keys: dict[int, str]) -> int:
    """The array job of NAME or TENANT/NAME."""
    found = [array for array, key in keys.items() if name in {key, key.partition("/")[2]}]
    if len(found) == 1:
        return found[0]
    known = ", ".join(sorted(keys.values())) or "none"
    if not found:
        raise InvalidInputError(
            "SW-SERVICE-UNKNOWN", f"There is no service {name!r}.", f"You may see: {known}."
        )
    raise InvalidInputError(
        "SW-SERVICE-AMBIGUOUS", f"Several services are named {name!r}.", f"Name one of: {known}."
    )


@gateway_app.command(
    "render",
    epilog="Examples: slicewise gateway render --check"
    " | slicewise gateway render --socket-user slicewise --socket-group haproxy > /dev/null",
)
def render_gateway(
    check: Annotated[bool, typer.Option(help="Let HAProxy read it, too.")] = False,
    socket_user: Annotated[str, typer.Option(help="Owner of the runtime socket.")] = "",
    socket_group: Annotated[str, typer.Option(help="Group of the runtime socket.")] = "",
) -> None:
    """Write HAProxy's configuration into gateway.directory, and print haproxy.cfg.

    Beside it: hold.lua, and services.map, which is empty. Services and replicas come later, at
    run time: render again only after settings have changed.
    """
    gateway = load_settings().gateway
    files = gateway_files(gateway, socket_user, socket_group)
    for name, text in files.items():
        _write(gateway.directory / name, text)
    if check:
        asyncio.run(haproxy.check_configuration(gateway.directory / CONFIGURATION))
    typer.echo(files[CONFIGURATION], nl=False)


def _write(path: Path, text: str) -> None:
    try:
        haproxy.replace_file(path, text)
    except OSError as error:
        raise InvalidInputError(
            "SW-GATEWAY-SETTINGS", f"gateway.directory: {path}: {error.strerror}."
        ) from None
