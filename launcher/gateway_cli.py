"""Commands: the gateway, for operators."""

import asyncio
from pathlib import Path
from typing import Annotated

import typer

from cluster.errors import InvalidInputError
from cluster.settings import load_settings
from launcher import haproxy
from launcher.haproxy_text import Maps
from launcher.render import CONFIGURATION, Owners, gateway_files

gateway_app = typer.Typer(help="The gateway in front of all services.", no_args_is_help=True)


@gateway_app.command(
    "render",
    epilog="Examples: slicewise gateway render --check"
    " | slicewise gateway render --user haproxy --group haproxy --socket-user slicewise",
)
def render_gateway(
    check: Annotated[bool, typer.Option("--check", help="Let HAProxy read it, too.")] = False,
    user: Annotated[str, typer.Option(help="As whom HAProxy works, if root starts it.")] = "",
    group: Annotated[str, typer.Option(help="Likewise.")] = "",
    socket_user: Annotated[str, typer.Option(help="Owner of the runtime socket.")] = "",
    socket_group: Annotated[str, typer.Option(help="Group of the runtime socket.")] = "",
) -> None:
    """Write HAProxy's configuration into gateway.directory, and print haproxy.cfg.

    Beside it: hold.lua and the maps. Services, replicas and keys come later, at run time, and what
    is known of them stays: render again only after settings have changed, then reload HAProxy.
    """
    gateway = load_settings().gateway
    files = gateway_files(gateway, Owners(user, group, socket_user, socket_group))
    for name, text in files.items():
        _write(gateway.directory / name, text)
    for path in Maps(gateway.directory).all:
        if not path.exists():
            _write(path, "")
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
