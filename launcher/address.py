"""A service's address: until it leads to the service."""

import asyncio
from http import HTTPStatus
from http.client import HTTPException
from urllib.error import HTTPError, URLError
from urllib.request import ProxyHandler, build_opener

from cluster.daemon_client import DaemonClient

PATIENCE_S = 5.0
_POLL_S = 0.1
_DEADLINE_S = 1.0
_DIRECT = build_opener(ProxyHandler({}))
"""The gateway is asked itself, whatever proxy the user's environment names."""


async def wait_for_route(url: str, patience_s: float = PATIENCE_S) -> str:
    """Wait until the gateway knows the service with that address.

    Returns why it does not, in one line; "" if it does.
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
    """Wait until the launcher looks after a new array: it has made the route before.

    A protected tenant's address does not tell, since it answers nobody without a key. Returns why
    not, in one line; "" if it does.
    """
    deadline_s = asyncio.get_running_loop().time() + patience_s
    while not await _is_followed(daemon, array_job_id):
        if asyncio.get_running_loop().time() >= deadline_s:
            return "the launcher has not taken it up; is it running?"
        await asyncio.sleep(_POLL_S)
    return ""


async def _is_followed(daemon: DaemonClient, array_job_id: int) -> bool:
    services = (await daemon.view()).services
    return any(one.is_followed for one in services if one.array_job_id == array_job_id)


def _trouble(url: str) -> str:
    """The bare address is refused (403) if it is known: a question that wakes no replica."""
    try:
        # urllib: a client that can more takes long to import.
        with _DIRECT.open(f"{url}/", timeout=_DEADLINE_S) as answer:
            status = answer.status
    except HTTPError as error:
        status = error.code
    except (OSError, HTTPException, ValueError) as error:
        cause = error.reason if isinstance(error, URLError) else error
        return f"the gateway does not answer: {cause}"
    # Without a key a protected tenant's services tell nothing.
    if status in {HTTPStatus.FORBIDDEN, HTTPStatus.UNAUTHORIZED}:
        return ""
    return f"the gateway answers {status}; is the launcher running?"
