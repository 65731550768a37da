"""What ``slicewise service list --json`` and ``status --json`` show an operator.

Asked in this very process: a test that waits asks many times, and as many commands would take most
of a processor.
"""

import asyncio
from contextlib import suppress
from typing import Any

from waiting import PATIENCE_S, until

from slicewise.cluster.language.errors import UnreachableError
from slicewise.cluster.runtime.console import plain
from slicewise.cluster.settings.read import load_settings
from slicewise.launcher.services.address import wait_for_route
from slicewise.launcher.services.overview import ServiceObservation, observe
from slicewise.sandbox.cluster import Sandbox


def services(sandbox: Sandbox) -> dict[str, dict[str, Any]]:
    """By tenant/name; waits while the daemon or HAProxy does not answer or can't see all of Slurm.

    Raises what else ``observe`` raises.
    """
    (found,) = until(lambda: _seen(sandbox))
    return {one.service: plain(one) for one in found}


def _seen(sandbox: Sandbox) -> tuple[tuple[ServiceObservation, ...]] | None:
    with suppress(UnreachableError):
        return (asyncio.run(observe(load_settings(sandbox.layout.settings_file))),)
    return None


def status(sandbox: Sandbox, service: str) -> dict[str, Any]:
    """Of one; waits until the daemon has seen it: ``service apply`` does so for some seconds."""
    return until(lambda: services(sandbox).get(service))


def until_routed(sandbox: Sandbox, service: str) -> None:
    """``service apply`` waits for some seconds only, and a request before that gets 404."""
    url = f"{sandbox.layout.gateway_url}/{service}"
    assert asyncio.run(wait_for_route(url, PATIENCE_S)) == ""
