"""Commands of ``slicewise gateway``, for operators."""

import asyncio
import shutil
from collections.abc import Iterator
from datetime import UTC, datetime
from pathlib import Path
from typing import Annotated

import typer

from slicewise.cluster.language.codes import Code
from slicewise.cluster.language.errors import InvalidInputError
from slicewise.cluster.runtime.wall_clock import wall_s
from slicewise.cluster.settings.gateway import GatewaySettings
from slicewise.cluster.settings.read import load_settings
from slicewise.launcher.gateway import haproxy
from slicewise.launcher.gateway.files import replace_file
from slicewise.launcher.gateway.identity import KEY, ends_s
from slicewise.launcher.rules.engines.registry import ENGINES, require_known
from slicewise.launcher.rules.gateway.checks import SOON_S
from slicewise.launcher.scripts.render import CONFIGURATION, Owners, gateway_files

gateway_app = typer.Typer(
    no_args_is_help=True,
    help="The gateway in front of all services.",
    epilog="Example: slicewise gateway render --check",
)


@gateway_app.command(
    "render",
    epilog="Examples: slicewise gateway render --check"
    " | slicewise gateway render --user haproxy --group haproxy --socket-user slicewise",
)
def render_gateway(
    check: Annotated[
        bool, typer.Option("--check", help="Check it with HAProxy, and when certificates end.")
    ] = False,
    user: Annotated[str, typer.Option(help="User that HAProxy runs as, if root starts it.")] = "",
    group: Annotated[str, typer.Option(help="Group that HAProxy runs as, if root starts it.")] = "",
    socket_user: Annotated[str, typer.Option(help="Owner of the runtime socket.")] = "",
    socket_group: Annotated[str, typer.Option(help="Group of the runtime socket.")] = "",
) -> None:
    """Write HAProxy's configuration into gateway.directory, and name its haproxy.cfg.

    Also writes hold.lua, sequence.lua, openai.lua, usage.lua, allowances.lua, the maps, and
    identity.pem, the key by which replicas recognize the gateway; its certificate goes to
    gateway.identity, which every host needs where services are applied. Services, replicas and
    keys are added at run time, and known ones stay: render again only after settings have changed,
    then reload HAProxy.
    """
    settings = load_settings()
    require_known(settings.engines)
    gateway = settings.gateway
    owners = Owners(user, group, socket_user, socket_group)
    files = gateway_files(gateway, owners, most_files=haproxy.files_allowed())
    for name, text in files.items():
        _write(gateway.directory / name, text)
    try:
        haproxy.prepare(gateway)
        if socket_user:
            shutil.chown(gateway.directory / KEY, user=socket_user)
    except (OSError, LookupError) as error:
        raise _unwritten(gateway.directory, error) from None
    if check:
        asyncio.run(haproxy.check_configuration(gateway.directory / CONFIGURATION))
        for notice in _soon_ended(gateway, wall_s()):
            typer.echo(notice, err=True)
    written = gateway.directory / CONFIGURATION
    typer.echo(f"{written}: {files[CONFIGURATION].count(chr(10))} lines")
    for name, why in ENGINES.broken.items():
        typer.echo(f"Engine {name} can't be used and is left out: {why}", err=True)


def _soon_ended(gateway: GatewaySettings, now_s: float) -> Iterator[str]:
    """Say of each of the gateway's certificates whether it ends soon.

    Raises InvalidInputError (SW-CERTIFICATE) for one that has ended, which HAProxy accepts.
    """
    for file in filter(None, (gateway.certificate, gateway.directory / KEY)):
        end_s = ends_s(file)
        day = f"{datetime.fromtimestamp(end_s, UTC):%Y-%m-%d %H:%M} UTC"
        if end_s <= now_s:
            raise InvalidInputError(
                Code.CERTIFICATE,
                f"The certificate in {file} ended on {day}.",
                "Put a new one there, and reload HAProxy."
                if file == gateway.certificate
                else "Make a new one: docs/how-to/gateway.md.",
            )
        if end_s - now_s < SOON_S:
            yield f"The certificate in {file} ends on {day}."


def _write(path: Path, text: str) -> None:
    try:
        replace_file(path, text)
    except OSError as error:
        raise _unwritten(path, error) from None


def _unwritten(path: Path, error: Exception) -> InvalidInputError:
    why = getattr(error, "strerror", None) or error
    return InvalidInputError(
        Code.SETTINGS,
        f"gateway.directory: {path}: {why}.",
        f"Make it, for the user of the launcher: install -d -m 711 -o slicewise {path.parent}"
        if isinstance(error, FileNotFoundError)
        else "",
    )
