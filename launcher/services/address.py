"""Waits until a service's address leads to the service."""

import asyncio
from http import HTTPStatus
from http.client import HTTPException
from urllib.error import HTTPError, URLError
from urllib.request import ProxyHandler, build_opener

from slicewise.cluster.rpc.client import DaemonClient
from slicewise.cluster.rpc.messages import ViewRequest

PATIENCE_S = 5.0
_POLL_S = 0.1
_DEADLINE_S = 1.0
_DIRECT = build_opener(ProxyHandler({}))
"""Asks the gateway directly, whatever proxy the user's environment names."""


async def wait_for_route(url: str, patience_s: float = PATIENCE_S) -> str:
    """Wait until the gateway knows the service with that address.

    Returns in one line why it does not; "" if it does.
    """
    deadline_s = asyncio.get_running_loop().time() + patience_s
    while trouble := await asyncio.to_thread(_trouble, url):
        if asyncio.get_running_loop().time() >= deadline_s:
            return trouble
        await asyncio.sleep(_POLL_S)
    return ""


async def wait_until_followed(
    daemon: DaemonClient, array_job_id: int, patience_s: float = PATIENCE_S
) -> str:
    """Wait until the launcher looks after a new array; by then it has made the route.

    The address of a protected tenant does not show that, since it refuses every request without a
    key. Returns in one line why not; "" if it does.
    """
    deadline_s = asyncio.get_running_loop().time() + patience_s
    while not await _is_followed(daemon, array_job_id):
        if asyncio.get_running_loop().time() >= deadline_s:
            return "the launcher has not taken the service up; check that it runs"
        await asyncio.sleep(_POLL_S)
    return ""


async def _is_followed(daemon: DaemonClient, array_job_id: int) -> bool:
    services = (await daemon.ask(ViewRequest())).services
    return any(service.is_followed for service in services if service.array_job_id == array_job_id)


def _trouble(url: str) -> str:
    """Ask the bare address: it is refused (403) if it is known, and the request wakes nothing."""
    try:
        # urllib, because a client with more features takes long to import.
        with _DIRECT.open(f"{url}/", timeout=_DEADLINE_S) as answer:
            status = answer.status
    except HTTPError as error:
        status = error.code
    except (OSError, HTTPException, ValueError) as error:
        cause = error.reason if isinstance(error, URLError) else error
        return f"the gateway does not answer: {cause}"
    # A protected tenant's services answer 401 without a key, known or not.
    if status in {HTTPStatus.FORBIDDEN, HTTPStatus.UNAUTHORIZED}:
        return ""
    return f"the gateway answers {status}; check that the launcher runs"
