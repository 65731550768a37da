"""What ``slicewise service list --json`` and ``status --json`` show an operator.

Asked in this very process: a test that waits asks many times, and as many commands would take most
of a processor.
"""

import asyncio
import json
from typing import Any

from waiting import PATIENCE_S

from cluster.settings.file import load_settings
from launcher.cli import show_services
from launcher.services.address import wait_for_route
from launcher.services.overview import observe
from sandbox.cluster import Sandbox


def services(sandbox: Sandbox) -> dict[str, dict[str, Any]]:
    """By tenant/name; raises SlicewiseError where the commands would say so."""
    found = asyncio.run(observe(load_settings(sandbox.layout.settings_file)))
    return {one.service: json.loads(json.dumps(show_services.as_json(one))) for one in found}


def status(sandbox: Sandbox, service: str) -> dict[str, Any]:
    """Of one that is there."""
    return services(sandbox)[service]


def until_routed(sandbox: Sandbox, service: str) -> None:
    """``service apply`` waits for some seconds only, and a request before that gets 404."""
    url = f"{sandbox.layout.gateway_url}/{service}"
    assert asyncio.run(wait_for_route(url, PATIENCE_S)) == ""
