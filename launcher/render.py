"""Templates: a service's batch script, the gateway's configuration."""

import re
import shlex
from collections.abc import Mapping
from functools import cache
from pathlib import Path

from jinja2 import Environment, FileSystemLoader, StrictUndefined

from cluster.errors import InvalidInputError
from cluster.service import ServiceSpec
from cluster.settings import GatewaySettings, TritonSettings
from launcher.haproxy import COMPLETE_KEY

TEMPLATES = Path(__file__).resolve().parents[1] / "templates"
CONFIGURATION, HOLD, SERVICES_MAP = "haproxy.cfg", "hold.lua", "services.map"
_SAFE_PATH = re.compile(r"/[A-Za-z0-9_./@+-]*")
_SAFE_BIND = re.compile(r"[A-Za-z0-9_.:*\[\],-]+")
_SAFE_NAME = re.compile(r"[A-Za-z_][A-Za-z0-9_.-]*")


@cache
def _environment() -> Environment:
    environment = Environment(  # noqa: S701 -- no HTML: what users choose is checked and quoted
        loader=FileSystemLoader(TEMPLATES),
        undefined=StrictUndefined,
        keep_trailing_newline=True,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    environment.filters["quote"] = lambda value: shlex.quote(str(value))
    return environment


def service_script(spec: ServiceSpec, triton: TritonSettings) -> str:
    """The batch script of a service; ``sbatch`` takes it as it is."""
    template = _environment().get_template("service.sbatch.j2")
    return template.render(spec=spec, triton_command=triton.command)


def services_map(settings: GatewaySettings) -> Path:
    """The map's file: also its name in the Runtime API."""
    return settings.directory / SERVICES_MAP


def gateway_files(
    settings: GatewaySettings, socket_user: str = "", socket_group: str = ""
) -> Mapping[str, str]:
    """Text by file name, for ``settings.directory``; services come later, at run time.

    Raises InvalidInputError (SW-GATEWAY-SETTINGS) for a value that HAProxy would misread.
    """
    _require("gateway.directory", str(settings.directory), _SAFE_PATH)
    _require("gateway.runtime_socket", str(settings.runtime_socket), _SAFE_PATH)
    _require("gateway.bind", settings.bind, _SAFE_BIND)
    for option, value in (("--socket-user", socket_user), ("--socket-group", socket_group)):
        if value:
            _require(option, value, _SAFE_NAME)
    values = {
        "directory": settings.directory,
        "services_map": services_map(settings),
        "complete_key": COMPLETE_KEY,
        "socket": settings.runtime_socket,
        "socket_user": socket_user,
        "socket_group": socket_group,
        "bind": settings.bind,
        "backends": settings.backends,
        "servers": settings.servers,
        "hold_s": settings.hold_s,
    }
    texts = {
        name: _environment().get_template(f"{name}.j2").render(values)
        for name in (CONFIGURATION, HOLD)
    }
    return {**texts, SERVICES_MAP: ""}


def _require(key: str, value: str, allowed: re.Pattern[str]) -> None:
    if allowed.fullmatch(value) is None:
        raise InvalidInputError(
            "SW-GATEWAY-SETTINGS",
            f"{key}: {value!r} can't stand in HAProxy's configuration.",
            f"Allowed: {allowed.pattern}",
        )
