"""Finds services by name, as commands take it: NAME, or TENANT/NAME where that is ambiguous."""

from collections.abc import Iterable, Sequence
from typing import Annotated

import typer

from slicewise.cluster.language.accounts import account_name
from slicewise.cluster.language.codes import Code
from slicewise.cluster.language.errors import InvalidInputError, SlicewiseError, UnreachableError
from slicewise.cluster.rpc.client import DaemonClient
from slicewise.cluster.rpc.messages import ServiceView, ViewAnswer, ViewRequest
from slicewise.cluster.settings.file import Settings
from slicewise.cluster.settings.read import load_settings
from slicewise.launcher.rules.services.apply_plan import generations_of


def complete_service(incomplete: str) -> list[str]:
    """Return services for the shell's completion; none if the daemon does not answer."""
    try:
        views = DaemonClient(load_settings().daemon).call(ViewRequest()).services
    except SlicewiseError:
        return []
    return sorted({view.name for view in views if view.name.startswith(incomplete)})


Name = Annotated[
    str,
    typer.Argument(
        help="NAME of the service, or TENANT/NAME if NAME is ambiguous.",
        show_default=False,
        autocompletion=complete_service,
    ),
]
SkipModelCheck = Annotated[
    bool,
    typer.Option(
        "--skip-model-check",
        help="Skip checks of model repository and image: only the nodes see them.",
    ),
]


def choose(name: str, services: Iterable[str]) -> str:
    """Return which of the services (``tenant/name``) is meant by ``name``.

    Raises InvalidInputError: SW-SERVICE-UNKNOWN, SW-USAGE.
    """
    keys, name = sorted(set(services)), account_name(name)
    matches = [service for service in keys if name in {service, service.partition("/")[2]}]
    if len(matches) == 1:
        return matches[0]
    listed = ", ".join(keys)
    if not matches:
        # Whoever asks for one name gets no other: that none came says nothing of those.
        hint = f"You may see: {listed}." if keys else "All that you may see: slicewise service list"
        raise InvalidInputError(Code.SERVICE_UNKNOWN, f"There is no service {name!r}.", hint)
    raise InvalidInputError(
        Code.USAGE, f"Several services are named {name!r}.", f"Name one of: {listed}."
    )


def living(name: str, views: Sequence[ServiceView]) -> tuple[ServiceView, ...]:
    """Return the generations of the service that is meant, the newest first.

    Raises what ``choose`` raises.
    """
    chosen = choose(name, (f"{view.tenant}/{view.name}" for view in views))
    tenant, _, service = chosen.partition("/")
    return generations_of(views, tenant, service)


async def find(settings: Settings, name: str) -> tuple[ServiceView, ...]:
    """Return the same as ``living``, as the daemon sees it now."""
    return living(name, (await whole_view(DaemonClient(settings.daemon))).services)


async def whole_view(daemon: DaemonClient) -> ViewAnswer:
    """Return the daemon's view of now.

    Raises UnreachableError (SW-DAEMON-BLIND) if the daemon could not see all of Slurm: such a
    view must not be taken for "nothing runs".
    """
    view = await daemon.ask(ViewRequest())
    if not view.complete:
        raise UnreachableError(
            Code.DAEMON_BLIND, "The daemon can't see all of Slurm now.", "Try again."
        )
    return view
